"""What an exception without any telling words is: the program's fault, the configuration's or the data's. Pure."""

from __future__ import annotations

import re

from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.raised import Raised

_CONTROL_FLOW = frozenset(
    {"Empty", "Full", "StopIteration", "GeneratorExit", "CancelledError", "SystemExit", "StopAsyncIteration"}
)
_BY_TYPE: dict[str, FailureKind] = {
    "ValidationError": FailureKind.CONFIG_ERROR,
    "ModuleNotFoundError": FailureKind.DEPENDENCY_ERROR,
    "ImportError": FailureKind.DEPENDENCY_ERROR,
    "MemoryError": FailureKind.HOST_OOM,
    "KeyboardInterrupt": FailureKind.INTERRUPTED,
    "PermissionError": FailureKind.PERMISSION_DENIED,
    "TemplateError": FailureKind.DATA_ERROR,
    "UndefinedError": FailureKind.DATA_ERROR,
    "UnicodeDecodeError": FailureKind.DATA_ERROR,
    "JSONDecodeError": FailureKind.DATA_ERROR,
    "ConnectionError": FailureKind.NETWORK,
    "ConnectionResetError": FailureKind.NETWORK,
    "ConnectionRefusedError": FailureKind.NETWORK,
    "ConnectTimeout": FailureKind.NETWORK,
    "ReadTimeout": FailureKind.NETWORK,
    "FSTimeoutError": FailureKind.NETWORK,
    "TimeoutError": FailureKind.NETWORK,
    "ServerTimeoutError": FailureKind.NETWORK,
    "ReadTimeoutError": FailureKind.NETWORK,
    "HTTPError": FailureKind.NETWORK,
    "HfHubHTTPError": FailureKind.NETWORK,
    "ClientOSError": FailureKind.NETWORK,
    "BrokenProcessPool": FailureKind.WORKER_KILLED,
    "FloatingPointError": FailureKind.NAN_LOSS,
    "DistBackendError": FailureKind.NCCL_ERROR,
    "UnpicklingError": FailureKind.CHECKPOINT_CORRUPT,
    "OutOfMemoryError": FailureKind.CUDA_OOM,
    "RayOutOfMemoryError": FailureKind.HOST_OOM,
}
_CHECKPOINT_PLACE = re.compile(
    r"load_checkpoint|_load_from_checkpoint|load_from_json|_load_optimizer_and_scheduler|_load_rng_state"
    r"|load_state\b|resume_from"
    r"|distributed[/\\]checkpoint[/\\]|dist_checkpointing"
    r"|load_state_dict|torch_load|serialization\.py\", line \d+, in _?load|safe_open|load_file|_load_scaler"
)
_CHECKPOINT_LOAD = re.compile(
    r"in (?:_?load_\w*checkpoint\w*|_load_optimizer_and_scheduler|load_state_dict|load_state"
    r"|load_weights|weight_loader)\b"
)
_DATA_PLACE = re.compile(
    r"datasets?/(?:arrow_dataset|builder|iterable_dataset|load|packaged_modules|formatting|features|table|utils)"
    r"|collat|__getitem__"
    r"|data_utils|datasets?\.py|dataset\w*\.map\("
    r"|in (?:\w*tokenize\w*|(?:generate|format|build|make|create|get)_\w*prompt\w*)\b"
    r"|in (?:preprocess\w*|format\w*|_prepare_dataset|to_chat|encode_\w+|load_data\w*"
    r"|build_dataset|process_example\w*|apply_chat_template|_?pad\w*)\b"
    r"|_utils/(?:fetch|worker|collate)\.py|/data/\w+\.py"
)
_OF_DATA = frozenset({"ValueError", "KeyError", "IndexError", "TypeError", "error"})
"""What bad data raise; `error` is what C libraries such as cv2, struct and zlib call theirs."""
_OF_DATASET = re.compile(r"\b(?:dataset|split|column)s?\b", re.IGNORECASE)
_DATASET_FILE = re.compile(r"dataset\w*\.py\"")
_DATA_FILE = re.compile(r"\.(?:jsonl|csv|tsv|parquet|arrow|lmdb|tfrecords?|tar|bin|idx|npy|npz|h5|hdf5)\b")
_SAVE_PLACE = re.compile(
    r"in (?:_save\w*|save_(?:model|pretrained|checkpoint|state)\w*|_rotate_checkpoints)\b"
    r"|os\.(?:rename|replace)\(|shutil\.(?:move|rmtree)\("
)
_SETTINGS_PLACE = re.compile(r"[/\\](?:\w*config\w*|\w*args|arguments|hparams|settings|deepspeed)\.py\"")
_COLLATE_PLACE = re.compile(r"_utils/collate\.py|\bin \w*collat\w*\b")
_ENGINE_PLACE = re.compile(r"vllm_client|(?:sglang|rollout|inference|generation)\w*/\w*(?:client|server|engine)\w*\.py")
_NO_ANSWER = re.compile(r"Internal Server Error|\b50[0-4]\b|refused|timed out|not respond|disconnected", re.IGNORECASE)
_BUILT_FROM_CONFIG = re.compile(r"instantiate\w*\.py\"|in (?:_?instantiate\w*|_create_component|_call_target)\b")
_CONFIG_PLACE = re.compile(
    r"(?:training_args|_config|config|arguments|hparams|argument_parser|hf_argparser|arg_utils"
    r"|schemas?)\.py\", line \d+, in (?:__post_init__|validate\w*|__init__|from_\w+|parse\w*"
    r"|check\w*|_?load\w*|verify\w*|create_\w+)"
    r""
    r"|in (?:parse_args\w*|get_\w*_args|validate_config|load_cfg|_?validate_args|check_\w*args\w*|validate_environment"
    r"|_verify\w*)\b"
)
_DATA_WORDS = re.compile(
    r"\b(?:dataset|column|row|example|sample|label|conversation|messages?|prompt|tokeniz\w+|truncat\w+"
    r"|padding)s?\b",
    re.IGNORECASE,
)
_CONFIG_WORDS = re.compile(
    r"\b(?:config(?:uration)?|argument|option|setting|flag|parameter|hyper-?parameter)\b|(?<!\w)--\w[\w\-]+|`\w+=\w+`|"
    r"not (?:a )?valid|unsupported|not supported|must be|should be|expected one of|invalid value|set `?\w+`?"
    r"|please (?:use|set|specify|pass|add|enable|disable|launch)\b"
    r"|\bare not used by\b|\bcan only be (?:used|set)\b",
    re.IGNORECASE,
)
_FALLBACK_TYPES = frozenset(
    {"ImportError", "ModuleNotFoundError", "FileNotFoundError", "KeyError", "AttributeError", "StopIteration"}
)


_NETWORK_TYPE = re.compile(
    r"Connect(?:ion|or)?(?:Timeout)?(?:Error|Exception)$|(?:API|Read|Write|Pool|Gateway|Request|Server)Timeout(?:Error)?$"
    r"|^(?:Network|RateLimit|InternalServer|ServiceUnavailable|RemoteProtocol|ServerDisconnected)\w*(?:Error|Exception)$"
)


_CONFIG_TYPE = re.compile(
    r"(?:Mis)?[Cc]onfig\w*(?:Error|Exception)$|(?:Argument|Option|Usage|Settings|Validation)(?:Error|Exception)$"
)
_CONFIG_TOLD = re.compile(
    r"\b(?:both|either|only one of|mutually|at the same time|you requested|requested .{0,40} but|does not support"
    r"|invalid .{1,40} requested|doesn't support|incompatible with"
    r"|can(?:not| ?'t) (?:be )?(?:use|combine|match|set|mix)\w*)\b",
    re.IGNORECASE,
)


_WHILE_IMPORTING = re.compile(
    r"\bimport .*\n(?:[ ~^]+\n)? *File \"[^\"]*-packages[^\"]*\", line \d+, in <module>(?:\n(?! *File ).*)*\Z"
)
"""The last frame is the top level of an installed package that another module was importing."""
_CELL_IMPORTS = re.compile(
    r"[^>]*?(?:<ipython-input[^\n]*|Cell In\[[^\n]*)(?:\n(?!-+> )[^\n]*)*\n-+> +\d+ (?:from|import) "
)
"""The first frame of a notebook is an import."""


def _kind_of_type(name: str) -> FailureKind | None:
    if name in _BY_TYPE:
        return _BY_TYPE[name]
    if _NETWORK_TYPE.search(name):
        return FailureKind.NETWORK
    return FailureKind.CONFIG_ERROR if _CONFIG_TYPE.search(name) else None


def ordinary_kind(raised: Raised) -> FailureKind | None:
    """The kind by type, message and place; None for what is control flow or only says that a child failed."""
    if raised.type in _CONTROL_FLOW:
        return None
    context = raised.context
    if kind := _kind_of_type(raised.type):
        return kind
    if _WHILE_IMPORTING.search(context[-1500:]) or _CELL_IMPORTS.match(context):
        return FailureKind.DEPENDENCY_ERROR
    if raised.type == "FileNotFoundError" or "No such file or directory" in raised.message:
        of_data = _DATA_PLACE.search(context) or _DATA_FILE.search(raised.message)
        return FailureKind.DATA_ERROR if of_data else FailureKind.CONFIG_ERROR
    tail = context[-6000:]
    if raised.type in ("ValueError", "AssertionError", "NotImplementedError", "TypeError", "KeyError", "OSError"):
        if _CONFIG_PLACE.search(tail[-1200:]) and raised.type != "TypeError":
            return FailureKind.CONFIG_ERROR
        if (
            raised.type == "ValueError"
            and (_CONFIG_WORDS.search(raised.message) or _CONFIG_TOLD.search(raised.message))
            and not _DATA_WORDS.search(raised.message)
        ):
            return FailureKind.CONFIG_ERROR
    if raised.type == "ValueError" and _OF_DATASET.search(raised.message):
        return FailureKind.DATA_ERROR
    if raised.type in ("RuntimeError", "ValueError", "KeyError", "AssertionError") and _CHECKPOINT_LOAD.search(
        tail[-700:]
    ):
        return FailureKind.CHECKPOINT_INCOMPATIBLE
    if raised.type == "AssertionError" and _DATASET_FILE.search(tail[-400:]):
        return FailureKind.DATA_ERROR
    if raised.type in _OF_DATA and _DATA_PLACE.search(tail[-2500:]):
        return FailureKind.DATA_ERROR
    if raised.type == "RuntimeError" and _COLLATE_PLACE.search(tail[-400:]):
        return FailureKind.DATA_ERROR
    return FailureKind.PROGRAM_ERROR


_CUT_OFF = frozenset({"BrokenPipeError", "ConnectionResetError", "EOFError"})
_UNREADABLE = frozenset(
    {"JSONDecodeError", "EOFError", "UnicodeDecodeError", "FileNotFoundError", "BadZipFile", "OverflowError"}
)


def placed_kind(raised: Raised) -> FailureKind | None:
    """The kind that the place of an exception gives away, whatever its message; None when it doesn't."""
    near = raised.context[-1500:]
    if raised.type in ("FileNotFoundError", "FileExistsError") and _SAVE_PLACE.search(near):
        return FailureKind.FILESYSTEM_ERROR
    if raised.type in _CUT_OFF and (raised.type == "BrokenPipeError" or "multiprocess" in near):
        return FailureKind.WORKER_KILLED
    if raised.type in _UNREADABLE and _CHECKPOINT_PLACE.search(near):
        return FailureKind.CHECKPOINT_CORRUPT
    if raised.type == "JSONDecodeError" and _SETTINGS_PLACE.search(near):
        return FailureKind.CONFIG_ERROR
    if raised.message.startswith("Can't get attribute") and ("torch.load(" in near or _CHECKPOINT_PLACE.search(near)):
        return FailureKind.CHECKPOINT_INCOMPATIBLE
    if raised.type == "KeyError" and "configuration_auto.py" in near:
        return FailureKind.DEPENDENCY_ERROR
    if _kind_of_type(raised.type) is FailureKind.NETWORK and _ENGINE_PLACE.search(raised.context[-6000:]):
        return FailureKind.ENGINE_DEATH
    if _NO_ANSWER.search(raised.message) and _ENGINE_PLACE.search(near):
        return FailureKind.ENGINE_DEATH
    if raised.type == "TypeError" and "argument" in raised.message and _BUILT_FROM_CONFIG.search(near):
        return FailureKind.CONFIG_ERROR
    return None


def is_fallback(raised: Raised) -> bool:
    """Was this one raised only to be handled, as programs do that try one way and then another?"""
    return raised.handled and raised.type in _FALLBACK_TYPES
