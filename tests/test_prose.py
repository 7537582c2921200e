# SPDX-License-Identifier: Apache-2.0
"""Pages, help texts, messages, docstrings and comments use the glossary's words in short sentences.

CHANGELOG.md is history and is left out.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

import pytest

from tests.helpers.prose import (
    CODE,
    WORDS_AT_MOST,
    Sentence,
    docstring_sentences,
    help_sentences,
    message_sentences,
    page_sentences,
    source_sentences,
    without_code,
)
from tests.source_laws import ROOT, Source, product_sources

GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@cache
def phrases() -> re.Pattern[str]:
    """The last column of the glossary's tables: what is not said."""
    rows = [line for line in GLOSSARY.read_text("utf-8").split("\n") if line.startswith("| ")]
    cells = [row.strip("| ").split(" | ")[-1] for row in rows]
    listed = [phrase for cell in cells if cell not in ("–", "not") for phrase in cell.split(", ")]
    assert len(listed) == len(set(listed)) >= 50
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, listed))})\b", re.IGNORECASE)


@cache
def page_texts() -> list[Sentence]:
    """All sentences of the pages; of the glossary without its last column."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        if page == GLOSSARY:
            text = re.sub(r"(?m)^(\|.*\|)[^|\n]+\|$", r"\1", text)
        found += list(page_sentences(page.relative_to(ROOT).as_posix(), text))
    return found


@cache
def product_texts() -> list[Sentence]:
    """All sentences of module docstrings, raised messages, examples, and the help of all verbs."""
    found = list(help_sentences(import_module("cli").main))
    for source in product_sources():
        found += [*docstring_sentences(source), *message_sentences(source)]
    for path in sorted((ROOT / "examples").glob("*.py")):
        found += docstring_sentences(Source.read(path))
    return found


def source_texts() -> list[Sentence]:
    """All sentences of the product's docstrings and comments, of private functions too."""
    return [each for source in product_sources() for each in source_sentences(source)]


@pytest.mark.parametrize("texts", [page_texts, product_texts])
def test_a_sentence_is_read_once(texts: Callable[[], list[Sentence]]) -> None:
    assert [each.shown() for each in texts() if each.is_long] == []


@pytest.mark.parametrize("texts", [page_texts, product_texts, source_texts])
def test_one_word_stands_for_one_thing(texts: Callable[[], list[Sentence]]) -> None:
    assert [each.shown() for each in texts() if phrases().search(each.text)] == []


# --- what the test itself reads -------------------------------------------------------------------


def test_names_in_code_and_links_are_words() -> None:
    assert (
        without_code("See [the page](docs/x.md) of `a b`, `c` and `d`.")
        == f"See the page of {CODE}."
    )


def test_a_page_is_taken_apart_into_its_sentences() -> None:
    page = "# Head\n\nOne. Two\nlines.\n\n- item\n  goes\n- other\n\n```sh\nno.\n```\n"
    table = "| a | b. C |\n|---|---|\n"
    texts = [each.text for each in page_sentences("page", page + table)]
    assert texts == ["Head", "One.", "Two lines.", "item goes", "other", "a", "b.", "C"]


def test_docstrings_and_comments_of_a_source_are_read() -> None:
    text = (
        'def f():\n    """Say.\n\n    More."""\n    # One\n    # two.\n    return "a#b"  # three\n'
    )
    found = source_sentences(Source("x.py", text))
    assert [each.text for each in found] == ['"""Say.', 'More."""', "One two.", "three"]


def test_a_long_sentence_and_a_wrong_word_are_noticed() -> None:
    words = " ".join(["word"] * WORDS_AT_MOST)
    assert [s.is_long for s in page_sentences("page", f"{words}.\n\nOne {words}.")] == [False, True]
    assert phrases().search("The message was taken back.")
    assert not phrases().search("The message was cancelled.")
