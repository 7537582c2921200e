# SPDX-License-Identifier: Apache-2.0
"""docs/JAVA.md, the table from RocketMQ's methods to ours, names what is there."""

import ast
import re

import pytest

from tests.source_laws import ROOT, Source, defined_in

PAGE = (ROOT / "docs" / "JAVA.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.split("\n")
    if line.startswith("| `")
]
PAIR = re.compile(r"`([\w/]+\.py)` `([\w.]+)`")
FAST_FORM = re.compile(r"The (?:bulk|asynchronous) form of ([\w.#]+)")


def test_a_row_has_a_class_methods_a_reference_and_a_fast_form() -> None:
    assert len(ROWS) >= 60
    assert [row for row in ROWS if len(row) != 4 or not PAIR.search("".join(row))] == []
    cells = {cell for row in ROWS for cell in row[2:] if not PAIR.search(cell)}
    assert cells == {"the same", "–"}


@pytest.mark.parametrize(("path", "name"), sorted(set(PAIR.findall(PAGE))))
def test_a_name_of_the_page_exists(path: str, name: str) -> None:
    assert name in defined_in(Source.read(ROOT / path))


def test_fast_modules_say_of_which_reference_they_are_the_fast_form() -> None:
    """In the first line of their docstring, by Java's name, which has a row."""
    methods = {f"{row[0].strip('`')}#{name}" for row in ROWS for name in re.findall(r"\w+", row[1])}
    said = {}
    for path in sorted((ROOT / "legacy_levels").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if found := FAST_FORM.search(docstring.split("\n")[0]):
            said[path.name] = found[1].rstrip(".,:")
    assert said.keys() >= {
        "async_delivery.py", "cursor.py", "delivery.py",
        "offset_persistence.py", "state.py",
    }  # fmt: skip
    assert set(said.values()) - methods == set()


def test_fast_modules_of_the_wheel_say_of_which_reference_they_are_the_fast_form() -> None:
    """In the first line of their docstring, by the name of our reference."""
    references = [ROOT / "timer_wheel" / "timer_message_store.py"]
    references += (ROOT / "timer_wheel" / "reference").glob("*.py")
    known = {name for path in references for name in defined_in(Source.read(path))}
    fast = {path for row in ROWS for path, _ in PAIR.findall(row[3])}
    for path in sorted(fast):
        if path.startswith("timer_wheel/wheel/") or path.endswith("unit_kernels.py"):
            docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
            said = re.search(r"fast form of ``([\w.]+)``", (docstring or "").split("\n")[0])
            assert said, path
            assert said[1].removeprefix("reference.files.") in known, said[1]
