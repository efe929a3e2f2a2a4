"""The one function that turns a conversation into token ids and a label mask.

Training, evaluation and serving all go through :class:`Renderer`. The tokenizer's chat template writes the
text; the text is cut where the model takes over (after the generation prompt) and where it stops (after the
stop token), and every piece is tokenised by itself. So a training row has exactly the ids that generation
sees and produces, also where the tokenizer would have merged across the cut.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from trainer.data.fidelity import RenderError, check_shown
from trainer.data.messages import BadRow, Message, Row
from trainer.errors import ConfigurationError

_BATCH_ROWS = 256


class Tokenizer(Protocol):
    """The part of a transformers fast tokenizer that is used here."""

    eos_token_id: int | None
    added_tokens_decoder: Mapping[int, Any]

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> Mapping[str, list[list[int]]]: ...
    def get_chat_template(self) -> str: ...
    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...
    def convert_ids_to_tokens(self, ids: int) -> str: ...
    def decode(self, ids: list[int], **kwargs: Any) -> str: ...


class TemplateUnusableError(ConfigurationError):
    """No row can be rendered: the chat template or the tokenizer does not fit. One paragraph with the remedy."""


@dataclass(frozen=True)
class Rendered:
    """One conversation as tokens.

    ``labels[t]`` says whether ``ids[t]`` is learnt: all tokens of every assistant turn, its stop token
    included, nothing else. ``dropped_reasoning`` counts turns whose reasoning the template left out of the
    history, as some do for all turns but the last; what it left is labelled.
    """

    ids: list[int]
    labels: list[bool]
    dropped_reasoning: int = 0


@dataclass(frozen=True)
class _Text:
    """A rendered text: ``cuts`` are the character spans of the assistant turns, in order."""

    text: str
    cuts: tuple[tuple[int, int], ...]
    dropped_reasoning: int

    def pieces(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether it is the assistant's; empty pieces are left out."""
        edges = [0, *(edge for cut in self.cuts for edge in cut), len(self.text)]
        spans = ((self.text[start:end], index % 2 == 1) for index, (start, end) in enumerate(pairwise(edges)))
        return [(piece, answer) for piece, answer in spans if piece]


class Renderer:
    """Renders conversations with one tokenizer and one template.

    ``chat_template`` replaces the tokenizer's own (None). ``template_kwargs`` go to the template as
    variables. ``default_system`` is the system prompt of conversations that have none.
    ``stop_token_ids`` end an answer; without them it is the tokenizer's end-of-sequence token.
    Raises TemplateUnusableError when a probe shows that no row could be rendered faithfully.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        default_system: str | None = None,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template if chat_template is not None else _own_template(tokenizer)
        self._kwargs = dict(template_kwargs or {})
        self._default_system = default_system
        own_stop = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.stop_token_ids = tuple(stop_token_ids or own_stop)
        if not self.stop_token_ids:
            raise TemplateUnusableError("The tokenizer has no end-of-sequence token; name the stop tokens yourself.")
        stops = [tokenizer.convert_ids_to_tokens(token) for token in self.stop_token_ids]
        special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._stop = _any_of(stops)
        self._control = _any_of([*special, *stops])
        identity = [self._template, self._kwargs, default_system, stops]
        self.template_hash = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        """SHA-256 over all that shapes the text: template, variables, default system prompt, stop tokens."""
        self._check_tokenizer()
        self._headers = self._find_headers()
        self._check_template()

    @property
    def chat_template(self) -> str:
        return self._template

    def describe(self) -> dict[str, Any]:
        """What travels with an adapter so that serving can prove that it renders the same way."""
        return {
            "template_hash": self.template_hash,
            "chat_template_kwargs": self._kwargs,
            "default_system": self._default_system,
            "stop_token_ids": list(self.stop_token_ids),
        }

    def render(self, row: Row) -> Rendered:
        """One row, whole. Raises RenderError when the template would lose or blur a part of it."""
        for result in self.render_many([row]):
            if isinstance(result, BadRow):
                raise RenderError(result.reason, result.problem)
            return result
        raise AssertionError("render_many yields one result per row")

    def render_many(self, rows: Iterable[Row]) -> Iterator[Rendered | BadRow]:
        """The same for many rows, in order and tokenised in batches; rows that cannot be rendered as BadRow."""
        for batch in _batches(rows):
            texts = [self._text_or_bad(row) for row in batch]
            pieces = [piece for text in texts if isinstance(text, _Text) for piece in text.pieces()]
            tokens = iter(self._tokenise([piece for piece, _ in pieces]))
            for text in texts:
                if isinstance(text, BadRow):
                    yield text
                    continue
                ids: list[int] = []
                labels: list[bool] = []
                for _, answer in text.pieces():
                    piece_ids = next(tokens)
                    ids += piece_ids
                    labels += [answer] * len(piece_ids)
                yield Rendered(ids, labels, text.dropped_reasoning)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids to generate from: the conversation so far and the assistant's header.

        Raises RenderError like :meth:`render`.
        """
        text = self._text(self._with_system(messages), tools, generation_prompt=True)
        return [token for ids in self._tokenise([piece for piece, _ in text.pieces()]) for token in ids]

    def _tokenise(self, pieces: list[str]) -> list[list[int]]:
        return self._tokenizer(pieces, add_special_tokens=False)["input_ids"] if pieces else []

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        if self._default_system is None or (messages and messages[0].role == "system"):
            return messages
        return [Message("system", self._default_system), *messages]

    def _text_or_bad(self, row: Row) -> _Text | BadRow:
        try:
            return self._text(self._with_system(row.messages), row.tools)
        except RenderError as error:
            return BadRow(row.file, row.line, error.reason, error.problem)

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], generation_prompt: bool = False
    ) -> _Text:
        self._refuse_control_tokens(messages, tools)
        conversation = [_as_dict(message) for message in messages]
        full = self._apply(conversation, tools, generation_prompt)
        cuts = tuple(self._cuts(full, messages, conversation, tools, generation_prompt))
        dropped = check_shown(full, cuts, messages, tools)
        return _Text(full, cuts, dropped)

    def _apply(
        self, conversation: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], generation_prompt: bool
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=list(tools) or None,
                chat_template=self._template,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._kwargs,
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            problem = f"the chat template refuses this conversation: {error}"
            raise RenderError("refused by the template", problem) from error
        return str(text)

    def _cuts(
        self,
        full: str,
        messages: Sequence[Message],
        conversation: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        generation_prompt: bool,
    ) -> Iterator[tuple[int, int]]:
        """Where each assistant turn starts (after its header) and ends (after its stop token)."""
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        end = 0
        for number, index in enumerate(turns):
            start = None
            if index:
                before = self._apply(conversation[:index], tools, True)
                if len(before) >= end and full.startswith(before):
                    start = len(before)
            if start is None:
                start = self._header_end(full, number, len(turns) + generation_prompt)
            stop = self._stop.search(full, start)
            if start < end or stop is None:
                raise RenderError(
                    "no stop token",
                    f"the chat template does not end turn {index + 1} with a stop token, so the model would never "
                    "learn to stop; use a template that does",
                )
            end = stop.end()
            yield start, end

    def _header_end(self, full: str, number: int, total: int) -> int:
        """The end of the ``number``-th assistant header, for templates that rewrite earlier turns."""
        for header in self._headers:
            places = [match.end() for match in re.finditer(re.escape(header), full)]
            if len(places) == total:
                start = places[number]
                rest = self._headers[0].removeprefix(header)
                return start + len(rest) if full.startswith(rest, start) else start
        raise RenderError(
            "no assistant header",
            f"the beginning of assistant turn {number + 1} cannot be told in the rendered text; the chat template "
            "does not write history as it writes a prompt",
        )

    def _refuse_control_tokens(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        parts = [
            (f"turn {index + 1} ({message.role})", text)
            for index, message in enumerate(messages)
            for text in _texts(message)
        ]
        parts += [("a tool definition", json.dumps(tool, ensure_ascii=False)) for tool in tools]
        for where, text in parts:
            if found := self._control.search(text):
                raise RenderError(
                    "control token in the text",
                    f"{where} contains {found.group()!r}, which this tokenizer reads as a control token; "
                    "remove or rewrite it",
                )

    def _check_tokenizer(self) -> None:
        """Pieces tokenised apart must read like the whole."""
        first, second = self._tokenise(["one", "two"])
        if self._tokenizer.decode(first + second, clean_up_tokenization_spaces=False) != "onetwo":
            raise TemplateUnusableError(
                "This tokenizer puts a space before every text that it is given, so a conversation cannot be tokenised "
                "piece by piece as generation does. Use a model with a byte-level tokenizer."
            )

    def _find_headers(self) -> tuple[str, ...]:
        """Ways to recognise the assistant's header, the whole one first; each holds a control token."""
        probe = [{"role": "user", "content": "probe"}]
        try:
            without, with_header = self._apply(probe, (), False), self._apply(probe, (), True)
        except RenderError as error:
            raise TemplateUnusableError(f"The chat template fails on a plain question: {error.problem}.") from error
        header = with_header.removeprefix(without)
        if not header or not with_header.startswith(without):
            raise TemplateUnusableError(
                "The chat template writes no assistant header when asked for a generation prompt, so it cannot be told "
                "where an answer begins. Use a template that knows add_generation_prompt."
            )
        last = max((match.end() for match in self._control.finditer(header)), default=0)
        candidates = [header, header[: header.find("\n") + 1], header[:last]]
        return tuple(dict.fromkeys(text for text in candidates if self._control.search(text)))

    def _check_template(self) -> None:
        probe = [Message("user", "probe"), Message("assistant", "answer")]
        try:
            self._text(self._with_system(probe), ())
        except RenderError as error:
            message = f"The chat template cannot render a plain question and answer: {error.problem}."
            raise TemplateUnusableError(message) from error
        try:
            # Something that cannot be called in the clock's place: only a template that reads the clock stumbles.
            self._tokenizer.apply_chat_template(
                [_as_dict(message) for message in probe],
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
                **{**self._kwargs, "strftime_now": ""},
            )
        except TypeError as error:
            raise TemplateUnusableError(
                "The chat template writes today's date into the prompt, so a run resumed tomorrow would train on other "
                "data. Fix the date by a template variable (many templates know date_string) or use your own template."
            ) from error


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _own_template(tokenizer: Tokenizer) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        raise TemplateUnusableError(f"The tokenizer has no chat template of its own; name one. ({error})") from error


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(token) for token in sorted(set(tokens), key=lambda text: (-len(text), text))))


def _as_dict(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates expect; what it doesn't have is left out."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                **({"id": call.id} if call.id else {}),
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    return turn


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    for call in message.tool_calls:
        yield json.dumps([call.name, call.arguments], ensure_ascii=False)
    yield from filter(None, (message.tool_call_id, message.name))
