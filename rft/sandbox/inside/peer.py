"""One side of the line between a test and the program under test. Both sides may ask: a program under test calls
functions that it was given as arguments."""

from __future__ import annotations

import builtins
import json
import os
import struct
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rft.sandbox.inside.values import NOT_OURS, Codec, MalformedError, Nodes, NoValueError

_LENGTH = struct.Struct(">I")
_ENCODER, _DECODER = json.JSONEncoder(check_circular=False), json.JSONDecoder()
"""Messages are trees. What json.loads does besides, child after child would pay for."""
_MAX_TRACE = 3000
_ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Raised by a function, they would end a loop of the test's without a word."""


class GoneError(Exception):
    """The other side has ended."""


def framed(message: Any) -> bytes:
    body = _ENCODER.encode(message).encode()
    return _LENGTH.pack(len(body)) + body


class Line(Protocol):
    """What messages go over. Raises GoneError, MalformedError, NoValueError."""

    def send(self, message: Any) -> None: ...

    def receive(self) -> Any: ...


class Channel:
    """Messages of at most so many bytes over a stream socket. Raises GoneError, MalformedError, NoValueError."""

    def __init__(self, descriptor: int, max_received: int, max_sent: int) -> None:
        self._descriptor, self._max_received, self._max_sent = descriptor, max_received, max_sent
        self._buffer = b""

    def send(self, message: Any) -> None:
        whole = framed(message)
        if len(whole) > self._max_sent:
            raise NoValueError("it is too large to be handed over")
        try:
            left = memoryview(whole)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except (BrokenPipeError, ConnectionResetError):
            raise GoneError from None

    def receive(self) -> Any:
        size = _LENGTH.unpack(self._read(_LENGTH.size))[0]
        if size > self._max_received:
            raise MalformedError("too large")
        try:
            text = self._read(size).decode()
            message, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            raise MalformedError from None
        if end != len(text):
            raise MalformedError
        return message

    def _read(self, size: int) -> bytes:
        pieces = [self._buffer]
        got = len(self._buffer)
        while got < size:
            try:
                piece = os.read(self._descriptor, max(1 << 16, min(size - got, 1 << 20)))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise GoneError
            pieces.append(piece)
            got += len(piece)
        whole = b"".join(pieces)
        self._buffer = whole[size:]
        return whole[:size]


class Remote:
    """Something of the other side's: may be called, iterated, indexed and asked for attributes, and not compared."""

    __slots__ = ("_mens_kind", "_mens_manner", "_mens_number", "_mens_peer")

    def __init__(self, peer: Peer, number: int, manner: str, kind: str) -> None:
        object.__setattr__(self, "_mens_peer", peer)
        object.__setattr__(self, "_mens_number", number)
        object.__setattr__(self, "_mens_manner", manner)
        object.__setattr__(self, "_mens_kind", kind)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        peer = self._mens_peer
        peer.last_call = (arguments, named)
        peer.last_answer = peer.ask("call", self._mens_number, arguments, named)
        return peer.last_answer

    def __iter__(self) -> Any:
        return self if self._mens_manner == "iterator" else self._mens_peer.ask("iter", self._mens_number)

    def __next__(self) -> Any:
        return self._mens_peer.ask("next", self._mens_number)

    def __len__(self) -> int:
        return int(self._mens_peer.ask("len", self._mens_number))

    def __getitem__(self, key: Any) -> Any:
        return self._mens_peer.ask("getitem", self._mens_number, (key,))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mens_peer.ask("setitem", self._mens_number, (key, value))

    def __contains__(self, item: Any) -> bool:
        return bool(self._mens_peer.ask("contains", self._mens_number, (item,)))

    def __str__(self) -> str:
        return str(self._mens_peer.ask("str", self._mens_number))

    def __repr__(self) -> str:
        return str(self._mens_peer.ask("repr", self._mens_number))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._mens_peer.ask("getattr", self._mens_number, (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        self._mens_peer.ask("setattr", self._mens_number, (name, value))

    def _compared(self, *_: object) -> Any:
        raise self._mens_peer.not_comparable(self._mens_kind)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = _compared


class Given(Remote):
    """The same, where nothing depends on its being no value: an argument of the program under test."""

    __slots__ = ()
    __eq__ = object.__eq__  # type: ignore[assignment]
    __ne__ = object.__ne__  # type: ignore[assignment]
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __bool__(self) -> bool:  # type: ignore[override]
        return True


class Peer:
    """One side. What went wrong stays noted, whatever a test made of the exception: ``lost`` (the other side has ended,
    or talks nonsense), ``no_value`` (something of the other side's was used as the value that it isn't), ``unsendable``
    (something of this side's could not be handed over); phrases, None as long as all is well.

    ``served``: what the other side may ask of things that stay here, by name: (thing, arguments, named) -> answer.
    """

    def __init__(
        self, channel: Line, served: Mapping[str, Callable[..., Any]], stands_for: type[Remote] = Remote
    ) -> None:
        self.channel = channel
        self.codec = Codec(self._refer, self._own, self._reference, self._referred)
        self.lost: str | None = None
        self.no_value: str | None = None
        self.unsendable: str | None = None
        self.error: BaseException | None = None
        """The last exception that came from the other side, and its traceback there."""
        self.trace = ""
        self.last_call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.last_answer: Any = None
        self.take_printed: Callable[[], str] = lambda: ""
        self.print_theirs: Callable[[str], object] = lambda _: None
        self._served = served
        self._stands_for = stands_for
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}

    def ask(
        self, what: str, target: int | None, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        """The answer of the other side. Raises what was raised there; NoValueError, GoneError, MalformedError."""
        nodes = Nodes()
        try:
            try:
                self.channel.send(["ask", what, target, self.codec.encode((arguments, dict(named or {})), nodes)])
            except RecursionError:
                self.unsendable = "an argument is nested too deeply"
                raise NoValueError(self.unsendable) from None
            return self._answer(nodes, what)
        except GoneError:
            self.lost = "gone"
            raise
        except MalformedError as error:
            self.lost = str(error) or "malformed"
            raise

    def _answer(self, nodes: Nodes, what: str) -> Any:
        while True:
            message = self.channel.receive()
            if isinstance(message, list) and message and message[0] == "ask":
                self.serve(message)
                continue
            try:
                how, form, changed, printed = message
                if printed:
                    self.print_theirs(str(printed))
                given = len(nodes.objects)
                if how == "value":
                    value = self.codec.decode(form, nodes)
                elif how == "raised":
                    self.error = self._error(form, nodes, what)
                elif how == "no value":
                    self.no_value = str(form)
                    self.error = NoValueError(self.no_value)
                else:
                    raise MalformedError
                self.codec.apply(changed, nodes, given)
            except NOT_OURS:
                raise MalformedError from None
            if how != "value":
                assert self.error is not None
                raise self.error
            return value

    def serve(self, message: Any) -> None:
        """Do what was asked, and say how it went. Raises GoneError, MalformedError."""
        nodes = Nodes()
        try:
            _, what, target, form = message
            arguments, named = self.codec.decode(form, nodes)
            thing = None if target is None else self._own(target)
            act = self._served[what]
            before = self.codec.contents(nodes)
        except NOT_OURS:
            raise MalformedError from None
        try:
            try:
                value = act(thing, *arguments, **named)
            except GoneError:
                raise
            except BaseException as error:  # noqa: BLE001  (whatever it is, it is told)
                reply = ["raised", _described(error, what, self.codec, nodes), self.codec.changes(nodes, before)]
            else:
                reply = ["value", self.codec.encode(value, nodes), self.codec.changes(nodes, before)]
            self.channel.send([*reply, self.take_printed()])
        except NoValueError as error:
            self.channel.send(["no value", str(error), [], self.take_printed()])
        except RecursionError:
            self.channel.send(["no value", "it is nested too deeply", [], self.take_printed()])
        except (GoneError, MalformedError):
            raise
        except Exception as error:  # noqa: BLE001  (an object that only pretends to be what it is taken for)
            self.channel.send(["no value", f"{type(error).__name__} while it was handed over", [], self.take_printed()])

    def not_comparable(self, kind: str) -> Exception:
        self.no_value = f"an answer of type {kind} was compared: it is no value that can be handed over"
        return NoValueError(self.no_value)

    def _refer(self, value: Any, manner: str) -> int:
        if manner == "object" and "getattr" not in self._served:
            self.unsendable = f"an argument of type {type(value).__name__} cannot be handed over"
            raise NoValueError(self.unsendable)
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return number

    def _own(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._kept):
            raise MalformedError
        return self._kept[number]

    def _reference(self, number: int, manner: str, kind: str) -> Remote:
        return self._stands_for(self, number, manner, kind)

    def _referred(self, value: Any) -> int | None:
        return int(value._mens_number) if isinstance(value, Remote) else None

    def _error(self, form: Any, nodes: Nodes, what: str) -> BaseException:
        """An exception of the nearest class that is built in, as the other side described it."""
        names, arguments, self.trace = form[0], self.codec.decode(form[1], nodes), str(form[2])[:_MAX_TRACE]
        if not all(isinstance(name, str) for name in names) or not isinstance(arguments, tuple):
            raise MalformedError
        for name in names:
            found = _EXCEPTIONS.get(name)
            if found is not None:
                break
        else:
            found = RuntimeError
        if issubclass(found, _ENDS_LOOPS) and not (what == "next" and found is StopIteration):
            return RuntimeError(f"{found.__name__} was raised")
        kind: type[BaseException] = found if names and found.__name__ == names[0] else type(str(names[0]), (found,), {})
        try:
            return kind(*arguments)
        except TypeError:
            return RuntimeError(f"{kind.__name__}: {arguments}")


def _described(error: BaseException, what: str, codec: Codec, nodes: Nodes) -> list[Any]:
    names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    kept = len(nodes.objects)
    try:
        arguments = codec.encode(tuple(error.args), nodes)
    except (NoValueError, RecursionError):
        nodes.forget(kept)
        arguments = ["t", "it cannot be told"]
    if what == "next" and isinstance(error, StopIteration):
        return [names, arguments, ""]
    return [names, arguments, trace_of(error)]


def trace_of(error: BaseException) -> str:
    """The traceback, without the frames that run the program, at most so long."""
    steps = error.__traceback__
    while steps is not None and "/rft/sandbox/inside/" in steps.tb_frame.f_code.co_filename:
        steps = steps.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, steps))
    except Exception as second:  # noqa: BLE001  (an exception whose __str__ raises)
        text = f"{type(error).__name__}, and telling it raises {type(second).__name__}"
    return text if len(text) <= _MAX_TRACE else text[: _MAX_TRACE // 2] + "\n...\n" + text[-_MAX_TRACE // 2 :]


_EXCEPTIONS: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
