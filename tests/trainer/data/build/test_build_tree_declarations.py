# proves DAT-5: declarations of other languages: real names, clean of front matter
from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from trainer.data.build.mix import Language
from trainer.data.build.tree_declarations import GRAMMARS, read_tree
from trainer.data.messages import Row

SOURCES = {
    "a.rs": '''// Copyright somebody. All rights reserved.
//! The crate.
use std::fmt;

/// Adds two numbers.
/// Never overflows.
///
/// # Examples
/// ```
/// add(1, 2);
/// ```
#[inline]
pub fn add(a: i32, b: i32) -> i32 {
    a.wrapping_add(b)
}

impl<T> Holder<T> {
    /// What is held.
    pub fn get(&self) -> &T {
        &self.held
    }
}

#[cfg(test)]
mod tests {
    /// Not for training.
    fn probe() { super::add(1, 2); }
}

pub fn undocumented() -> i32 { 1 }

/// Broken.
fn broken( { x
''',
    "b.js": '''/* Licence. */
import x from "y";

/**
 * Adds one.
 * @param {number} a the number
 */
export function addOne(a) {
  return a + 1;
}
''',
    "c.ts": '''/** Doubles. */
export const twice = async (x: number): Promise<number> => {
  return x * 2;
};
/** A shelf. */
class Shelf {
  /** Takes one down. */
  take(key: string): Promise<void> {
    return this.fetch(key);
  }
}
''',
    "d.go": '''// Copyright somebody.

// Package p does things.
package p

import "fmt"

// Area is that of a rectangle.
func Area(w, h int) int {
	return w * h
}

// Pop takes the last one.
func (s *Stack[T]) Pop() T {
	return s.items[len(s.items)-1]
}

// Far away.

func Lonely() int { return 1 }
''',
    "e.c": '''/* Licence */
#include <stdio.h>

#ifdef EXTRA
/**
 * @brief Add one.
 * @param a a number
 */
static char *next(char *a)
{
    return a + 1;
}
#endif
''',
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    (top / "node_modules").mkdir()
    for name, text in SOURCES.items():
        (top / name).write_text(text)
        (top / "node_modules" / name).write_text(text.replace("add", "plus"))
    (top / "a_test.rs").write_text(SOURCES["a.rs"])
    (top / "binary.rs").write_bytes(b"/// Doc.\nfn x() { \xff; }\n")
    return top


def rows(tree: Path, language: str) -> dict[str, Row]:
    return {str(row.extra["name"]): row for row in read_tree(tree, language)}


def test_every_language_names_its_declarations(tree: Path) -> None:
    assert {"python", *GRAMMARS} == set(get_args(Language))
    found = {language: list(rows(tree, language)) for language in GRAMMARS}
    assert found == {
        "rust": ["add", "Holder<T>.get"],
        "javascript": ["addOne"],
        "typescript": ["twice", "Shelf", "Shelf.take"],
        "go": ["Area", "Stack.Pop"],
        "c": ["next"],
    }


def test_question_and_answer_are_those_of_the_source(tree: Path) -> None:
    add = rows(tree, "rust")["add"]
    assert add.messages[0].content == (
        "Write the Rust function `add`.\n\nAdds two numbers.\nNever overflows.\n\n"
        "#[inline]\npub fn add(a: i32, b: i32) -> i32"
    )
    assert add.response.strip() == "#[inline]\npub fn add(a: i32, b: i32) -> i32 {\n    a.wrapping_add(b)\n}"
    assert add.line == 13
    take = rows(tree, "typescript")["Shelf.take"]
    assert take.messages[0].content.endswith("\n\nTakes one down.\n\ntake(key: string): Promise<void>")
    assert take.response.strip() == "take(key: string): Promise<void> {\n  return this.fetch(key);\n}"
    assert rows(tree, "typescript")["twice"].messages[0].content.endswith("(x: number): Promise<number>")
    assert "Add one.\n\nstatic char *next(char *a)" in rows(tree, "c")["next"].messages[0].content
    assert "method `Pop` of `Stack`" in rows(tree, "go")["Stack.Pop"].messages[0].content


def test_front_matter_reaches_nothing(tree: Path) -> None:
    for language in GRAMMARS:
        for row in rows(tree, language).values():
            text = "\n".join(message.content for message in row.messages).lower()
            assert not any(word in text for word in ("copyright", "licence", "import", "#include", "@param", "package"))
