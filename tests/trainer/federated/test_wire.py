"""What one node sends costs no other node's answer."""

from collections.abc import Sequence

import pytest

from trainer.federated.wire import Answer, WireError, collected, plain


def _pull(answers: dict[str, Answer | Exception | None], handle: str) -> Answer | None:
    found = answers[handle]
    if isinstance(found, Exception):
        raise found
    return found


def _handles(answers: Sequence[Answer]) -> list[str]:
    return [answer.handle for answer in answers]


# proves FED-1 (a malformed answer, which is gone once it was fetched, is its node's alone)
@pytest.mark.parametrize("error", [ValueError("junk"), EOFError(), TypeError("stype"), MemoryError(), KeyError("x")])
def test_an_answer_that_cannot_be_read_is_its_nodes_alone(error: Exception) -> None:
    answers: dict[str, Answer | Exception | None] = {"1": Answer("1"), "2": error, "3": None, "4": Answer("4")}
    found = collected(answers, lambda handle: _pull(answers, handle))
    assert _handles(found) == ["1", "2", "4"]
    assert found[1].failed.startswith(f"what it has sent cannot be read: {type(error).__name__}")
    assert not found[0].failed and not found[2].failed


# proves FED-1 (a line that fails is tried again, and what came before that is not lost)
def test_what_came_before_the_line_failed_is_kept() -> None:
    answers: dict[str, Answer | Exception | None] = {"1": Answer("1"), "2": WireError("cut"), "3": Answer("3")}
    assert _handles(collected(answers, lambda handle: _pull(answers, handle))) == ["1"]
    with pytest.raises(WireError, match="cut"):
        collected(["2", "3"], lambda handle: _pull(answers, handle))


def test_text_of_others_is_one_printable_line() -> None:
    assert plain("\x1b]0;title\x07 a\tb\u202ec\n") == "]0;title a b c"
    assert plain("y" * 5000) == "y" * 300
