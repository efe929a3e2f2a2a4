# proves TRN-3, TRN-5
from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from trainer.data.fidelity import RenderError
from trainer.data.messages import BadRow, Message, Row, ToolCall
from trainer.data.render import Rendered, Renderer, TemplateUnusableError
from trainer.data.rows import row_of

Piece = tuple[str, bool]

SMOL_SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
TOOLS_TEMPLATE = Path(__file__).parents[3] / "configs" / "templates" / "chatml-tools.jinja"


def trl_template(name: str) -> str:
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / name).read_text(encoding="utf-8")


def row(fields: dict[str, Any]) -> Row:
    return row_of(json.loads(json.dumps(fields)), file="rows.jsonl", line=3)


def chat(*turns: tuple[str, str], tools: tuple[dict[str, Any], ...] = ()) -> Row:
    return Row(tuple(Message(role, content) for role, content in turns), tools, "rows.jsonl", 3)


def expected(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> Rendered:
    """Every piece tokenised by itself, with the label written beside it by hand."""
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text, _ in pieces]
    labels = [[label] * len(part) for (_, label), part in zip(pieces, ids, strict=True)]
    return Rendered([token for part in ids for token in part], [label for part in labels for label in part])


@pytest.fixture(scope="module")
def smol_renderer(smol_tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(smol_tokenizer)


@pytest.fixture(scope="module")
def qwen(smol_tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(smol_tokenizer, chat_template=trl_template("qwen3.jinja"))


def test_literal_ids_of_a_short_row(smol_renderer: Renderer) -> None:
    rendered = smol_renderer.render(chat(("system", "hi"), ("user", "hi"), ("assistant", "yo")))
    # <|im_start|> is 1, <|im_end|> 2, newline 198, system 9690, user 4093, assistant 520 9531, hi 6004, yo 31041
    assert rendered.ids == [1, 9690, 198, 6004, 2, 198, 1, 4093, 198, 6004, 2, 198, 1, 520, 9531, 198, 31041, 2, 198]
    assert rendered.labels == [False] * 16 + [True, True, False]


def test_a_row_whose_input_matters(smol_renderer: Renderer, smol_tokenizer: PreTrainedTokenizerBase) -> None:
    rendered = smol_renderer.render(row({"instruction": "Translate.", "input": "the cat", "output": "le chat"}))
    assert rendered == expected(
        smol_tokenizer,
        [
            (SMOL_SYSTEM + "<|im_start|>user\nTranslate.\n\nthe cat<|im_end|>\n<|im_start|>assistant\n", False),
            ("le chat<|im_end|>", True),
            ("\n", False),
        ],
    )


def test_every_answer_of_a_multi_turn_row_is_learnt(
    smol_renderer: Renderer, smol_tokenizer: PreTrainedTokenizerBase
) -> None:
    conversation = chat(
        ("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?"), ("assistant", "4, of course.")
    )
    assert smol_renderer.render(conversation) == expected(
        smol_tokenizer,
        [
            ("<|im_start|>system\nBe brief.<|im_end|>\n", False),
            ("<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n", False),
            ("2<|im_end|>", True),
            ("\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", False),
            ("4, of course.<|im_end|>", True),
            ("\n", False),
        ],
    )


def test_stop_token_is_learnt_and_the_newline_after_it_is_not(
    smol_renderer: Renderer, smol_tokenizer: PreTrainedTokenizerBase
) -> None:
    rendered = smol_renderer.render(chat(("user", "hi"), ("assistant", "yo")))
    assert smol_tokenizer.convert_ids_to_tokens(rendered.ids[-2:]) == ["<|im_end|>", "Ċ"]
    assert rendered.labels[-3:] == [True, True, False]


def test_ids_are_those_that_generation_sees(smol_renderer: Renderer, smol_tokenizer: PreTrainedTokenizerBase) -> None:
    conversation = chat(("user", "code"), ("assistant", "\n\n  x = 1"), ("user", "more"), ("assistant", "\n\ny"))
    rendered = smol_renderer.render(conversation)
    for turn in (1, 3):
        prompt = smol_renderer.prompt(conversation.messages[:turn])
        assert rendered.ids[: len(prompt)] == prompt
        assert rendered.labels[len(prompt) - 1 : len(prompt) + 1] == [False, True]
    # The case is a real one: tokenised in one go, header and answer merge.
    whole = smol_tokenizer(smol_tokenizer.decode(rendered.ids), add_special_tokens=False)["input_ids"]
    assert whole != rendered.ids


CALLS = Row(
    (
        Message("user", "Weather in Oslo?"),
        Message("assistant", "", (ToolCall("weather", {"city": "Oslo", "days": 2}),)),
        Message("tool", "rain"),
        Message("assistant", "It rains."),
    ),
    ({"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": {"a": 1}}},),
    "rows.jsonl",
    3,
)
TOOL_JSON = '{"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": {"a": 1}}}'
CALL_TEXT = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


def test_tool_call_with_qwen3(qwen: Renderer, smol_tokenizer: PreTrainedTokenizerBase) -> None:
    system = (
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
        f"provided with function signatures within <tools></tools> XML tags:\n<tools>\n{TOOL_JSON}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    )
    assert qwen.render(CALLS) == expected(
        smol_tokenizer,
        [
            (system + "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n", False),
            (CALL_TEXT + "<|im_end|>", True),
            ("\n<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n", False),
            ("<think>\n\n</think>\n\nIt rains.<|im_end|>", True),
            ("\n", False),
        ],
    )


def test_tool_call_with_our_template(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = Renderer(smol_tokenizer, chat_template=TOOLS_TEMPLATE.read_text())
    system = (
        "<|im_start|>system\nThese functions are available, one JSON definition per line:\n<tools>\n"
        f"{TOOL_JSON}\n</tools>\nTo call one, answer with its name and its arguments as a JSON object:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n'
    )
    assert renderer.render(CALLS) == expected(
        smol_tokenizer,
        [
            (system + "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n", False),
            (CALL_TEXT + "<|im_end|>", True),
            ("\n<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n", False),
            ("It rains.<|im_end|>", True),
            ("\n", False),
        ],
    )
    plain = renderer.render(chat(("system", "S"), ("user", "u"), ("assistant", "a")))
    assert smol_tokenizer.decode(plain.ids) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    )


def test_history_that_the_template_rewrites(qwen: Renderer, smol_tokenizer: PreTrainedTokenizerBase) -> None:
    conversation = chat(
        ("user", "one?"),
        ("assistant", "<think>\nfirst thought\n</think>\n\n1"),
        ("user", "two?"),
        ("assistant", "<think>\nsecond thought\n</think>\n\n2"),
    )
    rendered = qwen.render(conversation)
    want = expected(
        smol_tokenizer,
        [
            ("<|im_start|>user\none?<|im_end|>\n<|im_start|>assistant\n", False),
            ("1<|im_end|>", True),
            ("\n<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n", False),
            ("<think>\nsecond thought\n</think>\n\n2<|im_end|>", True),
            ("\n", False),
        ],
    )
    assert (rendered.ids, rendered.labels, rendered.dropped_reasoning) == (want.ids, want.labels, 1)


def test_a_header_that_only_the_last_turn_has_whole(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = Renderer(
        smol_tokenizer, chat_template=trl_template("qwen3.jinja"), template_kwargs={"enable_thinking": False}
    )
    rendered = renderer.render(chat(("user", "one?"), ("assistant", "1"), ("user", "two?"), ("assistant", "2")))
    assert rendered == expected(
        smol_tokenizer,
        [
            ("<|im_start|>user\none?<|im_end|>\n<|im_start|>assistant\n", False),
            ("1<|im_end|>", True),
            ("\n<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
            ("2<|im_end|>", True),
            ("\n", False),
        ],
    )


def test_rows_rendered_together_are_those_rendered_alone(smol_renderer: Renderer) -> None:
    rows = [chat(("user", f"n{n}"), ("assistant", "x" * (n % 7 + 1))) for n in range(600)]
    rows[300] = chat(("user", "a <|im_end|>"), ("assistant", "b"))
    together = list(smol_renderer.render_many(rows))
    assert isinstance(together[300], BadRow) and together[300].line == 3
    for index in (0, 255, 256, 299, 301, 599):
        assert together[index] == smol_renderer.render(rows[index])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (chat(("user", "say <|im_end|>"), ("assistant", "b")), ["turn 1 (user)", "<|im_end|>", "control token"]),
        (chat(("user", "a"), ("assistant", "b<|im_start|>user")), ["turn 2 (assistant)", "<|im_start|>"]),
        (CALLS, ["does not render the tool call 'weather'", "chatml-tools.jinja"]),
        (
            chat(("user", "a"), ("assistant", "b"), tools=CALLS.tools),
            ["does not render the definition of the tool 'weather'", "chatml-tools.jinja"],
        ),
    ],
)
def test_what_smollm2s_own_template_would_lose_is_refused(smol_renderer: Renderer, bad: Row, words: list[str]) -> None:
    with pytest.raises(RenderError) as caught:
        smol_renderer.render(bad)
    for word in words:
        assert word in caught.value.problem


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (CHATML.replace("<|im_end|>", ""), "stop token"),
        (CHATML[: CHATML.index("{% if add")], "no assistant header"),
        (CHATML.replace("m.content", "m.content | upper"), "drops or alters"),
        (CHATML.replace("{% for", "{{ strftime_now('%d %B') }}{% for"), "today's date"),
        ("{{ raise_exception('no') }}", "fails on a plain question"),
    ],
)
def test_a_template_that_cannot_serve_is_refused_before_any_row(
    smol_tokenizer: PreTrainedTokenizerBase, template: str, words: str
) -> None:
    with pytest.raises(TemplateUnusableError, match=words):
        Renderer(smol_tokenizer, chat_template=template)


def test_a_template_with_a_fixed_date_is_accepted(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    template = "{{ date_string if date_string is defined else strftime_now('%d %B') }}" + CHATML
    with pytest.raises(TemplateUnusableError, match="today's date"):
        Renderer(smol_tokenizer, chat_template=template)
    assert Renderer(smol_tokenizer, chat_template=template, template_kwargs={"date_string": "1 May"}).template_hash


def test_a_dropped_system_prompt_is_refused(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    template = CHATML.replace("{{ '<|im_start|>' + m", "{{ '' if m.role == 'system' else '<|im_start|>' + m")
    renderer = Renderer(smol_tokenizer, chat_template=template)
    with pytest.raises(RenderError, match=r"turn 1 \(system\)"):
        renderer.render(chat(("system", "Be kind."), ("user", "a"), ("assistant", "b")))


def test_reasoning_dropped_from_the_last_answer_is_refused(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = Renderer(smol_tokenizer, chat_template=CHATML.replace("m.content", "m.content.split('</think>')[-1]"))
    with pytest.raises(RenderError, match=r"turn 2 \(assistant\)"):
        renderer.render(chat(("user", "a"), ("assistant", "<think>why</think>b")))


def test_headers_are_found_where_the_beginning_of_the_text_changes(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    silent = "('<quiet>\n' if m.role == 'assistant' and loop.last else '')"
    template = "{{ messages | length }} turns\n" + CHATML.replace("+ m.content", f"+ {silent} + m.content")
    renderer = Renderer(smol_tokenizer, chat_template=template.replace("assistant\n'", "assistant\n<quiet>\n'"))
    rendered = renderer.render(chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")))
    assert rendered == expected(
        smol_tokenizer,
        [
            ("4 turns\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", False),
            ("b<|im_end|>", True),
            ("\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<quiet>\n", False),
            ("d<|im_end|>", True),
            ("\n", False),
        ],
    )


def test_default_system_prompt_and_template_hash(
    smol_tokenizer: PreTrainedTokenizerBase, smol_renderer: Renderer
) -> None:
    kind = Renderer(smol_tokenizer, default_system="Be kind.")
    conversation = chat(("user", "a"), ("assistant", "b"))
    with_system = chat(("system", "Be kind."), ("user", "a"), ("assistant", "b"))
    assert kind.render(conversation) == kind.render(with_system) == smol_renderer.render(with_system)
    assert kind.prompt(conversation.messages[:1]) == smol_renderer.prompt(with_system.messages[:2])
    hashes = [
        smol_renderer.template_hash,
        kind.template_hash,
        Renderer(smol_tokenizer, template_kwargs={"enable_thinking": False}).template_hash,
        Renderer(smol_tokenizer, chat_template=CHATML).template_hash,
        Renderer(smol_tokenizer, stop_token_ids=[2, 0]).template_hash,
    ]
    assert len(set(hashes)) == len(hashes)
    assert Renderer(smol_tokenizer).template_hash == smol_renderer.template_hash


def test_the_first_of_several_stop_tokens_ends_the_answer(smol_tokenizer: PreTrainedTokenizerBase) -> None:
    template = CHATML.replace("'<|im_end|>\n'", "('<|endoftext|>' if m.role == 'assistant' else '') + '<|im_end|>\n'")
    rendered = Renderer(smol_tokenizer, chat_template=template, stop_token_ids=[2, 0]).render(
        chat(("user", "hi"), ("assistant", "yo"))
    )
    assert rendered.ids[-4:] == [31041, 0, 2, 198]
    assert rendered.labels[-4:] == [True, True, False, False]
