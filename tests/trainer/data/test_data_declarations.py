# Declaration-level pairs from Python sources: the quickstart's data.
from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trainer.data.declarations import MAX_ANSWER_CHARACTERS, STDLIB, read_declarations
from trainer.data.messages import Row

MODULE = '''\
import asyncio


def area(width: float, height: float = 1.0) -> float:
    """Area of a rectangle.

    This second paragraph is not part of the question.
    """
    return width * height


class Shelf:
    if True:
        @staticmethod
        async def fetch(
            key: str,  # where to look
        ) -> bytes:
            """Fetch one
            item."""
            await asyncio.sleep(0)
            return key.encode()

    def copied(self, width, height=1.0):
        """Not trivial."""
        text = """
    flush left
        deeper"""
        return text


def undocumented(x):
    return x + 1


def trivial(x):
    """Has nothing to teach."""
    raise NotImplementedError


def area_again(width: float, height: float = 1.0) -> float:
    """Area of a rectangle."""
    return [width * height]


def ÄÖ(s): "Short one."; return s + s
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "shapes.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "src" / "twin.py").write_text(MODULE.replace("    return width", "    return  width"), encoding="utf-8")
    (tmp_path / "src" / "broken.py").write_text("def f(:\n")
    (tmp_path / "src" / "tests").mkdir()
    (tmp_path / "src" / "tests" / "other.py").write_text(MODULE.replace("area", "volume"))
    return tmp_path / "src"


def test_question_and_answer_are_those_of_the_source(tree: Path) -> None:
    rows = {str(row.extra["name"]): row for row in read_declarations(tree)}
    assert list(rows) == ["area", "Shelf.fetch", "area_again", "ÄÖ"]
    assert rows["area"].messages[0].content == (
        "Write the Python function `area`.\n\nArea of a rectangle.\n\n"
        "def area(width: float, height: float = 1.0) -> float:"
    )
    assert rows["area"].response == MODULE[MODULE.index("def area") : MODULE.index("\n\n\nclass")]
    fetch = rows["Shelf.fetch"]
    assert fetch.messages[0].content == (
        "Write the Python method `fetch` of the class `Shelf`.\n\nFetch one\nitem.\n\n"
        "@staticmethod\nasync def fetch(\n    key: str,  # where to look\n) -> bytes:"
    )
    assert fetch.response.startswith("@staticmethod\nasync def fetch(\n    key: str")
    assert (Path(fetch.file).name, fetch.line) == ("shapes.py", 15)
    assert rows["ÄÖ"].messages[0].content.endswith("\n\ndef ÄÖ(s):")


def test_a_function_that_dedenting_would_alter_is_left_out(tree: Path) -> None:
    assert "Shelf.copied" not in [row.extra["name"] for row in read_declarations(tree)]


def test_the_cache_is_used_only_while_the_sources_are_the_same(tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = read_declarations(tree, cache)
    (stored,) = cache.iterdir()
    stored.write_bytes(stored.read_bytes().replace(b"rectangle", b"triangle!"))
    assert "triangle!" in read_declarations(tree, cache)[0].messages[0].content
    whole = stored.read_bytes()
    for cut in (whole[:-40], whole[: whole.rstrip().rindex(b"\n") + 1], b""):
        stored.write_bytes(cut)
        assert read_declarations(tree, cache) == first
    (tree / "more.py").write_text('def more(a):\n    """More."""\n    return a + a\n')
    assert len(read_declarations(tree, cache)) == len(first) + 1
    with pytest.raises(NotADirectoryError):
        read_declarations(tmp_path / "nowhere", cache)


def test_the_standard_library_gives_thousands_of_compiling_rows() -> None:
    rows: list[Row] = read_declarations(STDLIB)
    assert len(rows) > 3000
    assert len({row.response for row in rows}) == len(rows)
    for row in rows[::10]:
        ast.parse(row.response)
        assert len(row.response) <= MAX_ANSWER_CHARACTERS
        assert "/test/" not in row.file and "idlelib" not in row.file
