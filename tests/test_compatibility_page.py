# SPDX-License-Identifier: Apache-2.0
"""docs/COMPATIBILITY.md claims nothing without a test: each exists, runs, and names the version."""

import ast
import re

import attrs
import pytest

from tests.interop.jars import NEWEST, VERSIONS
from tests.source_laws import ROOT

PAGE = ROOT / "docs" / "COMPATIBILITY.md"
SIGNS = {"✓", "◐", "✗", "–"}
NEVER_RUNS = {"skip", "xfail"}


@attrs.frozen
class Row:
    """One feature: a sign for each version, and the tests that prove it, as path::name."""

    feature: str
    signs: tuple[str, ...]
    tests: tuple[str, ...]


def rows_of(text: str) -> list[Row]:
    """Take the tables apart that have a column for each version."""
    rows = []
    in_table = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if tuple(cells[1:5]) == VERSIONS:
            in_table = True
        elif not cells:
            in_table = False
        elif in_table and set(line) - set("|-"):
            tests = tuple(re.findall(r"`(tests/[^`]*)`", cells[5]))
            rows.append(Row(cells[0], tuple(cells[1:5]), tests))
    return rows


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))
NAMED = sorted({test for row in ROWS for test in row.tests})


def functions_of(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def never_runs(function: ast.FunctionDef) -> bool:
    """Whether a mark without a condition keeps the test from being run, or from failing."""
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
    return any(isinstance(mark, ast.Attribute) and mark.attr in NEVER_RUNS for mark in marks)


def test_the_page_has_its_tables() -> None:
    assert len(ROWS) >= 15
    assert {sign for row in ROWS for sign in row.signs} == SIGNS


@pytest.mark.parametrize("named", NAMED)
def test_every_test_that_the_page_names_exists_and_runs(named: str) -> None:
    path, _, name = named.partition("::")
    assert not never_runs(functions_of(path)[name])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.feature)
def test_what_is_marked_as_proven_names_a_test_with_that_version(row: Row) -> None:
    sources = [(ROOT / test.partition("::")[0]).read_text(encoding="utf-8") for test in row.tests]
    proven = [v for v, sign in zip(VERSIONS, row.signs, strict=True) if sign == "✓"]
    # Tests of what does not depend on the version take the newest.
    texts = [source.replace("NEWEST", NEWEST) for source in sources]
    assert [version for version in proven if not any(version in text for text in texts)] == []


def test_every_test_with_a_broker_is_on_the_page_but_the_harness_s_own() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/interop").glob("test_*.py")}
    found = {
        f"{path}::{name}"
        for path in files - {"tests/interop/test_harness.py"}
        for name in functions_of(path)
        if name.startswith("test_")
    }
    assert found - set(NAMED) == set()


@pytest.mark.parametrize(
    ("decorator", "is_never_run"),
    [
        ("@pytest.mark.skip(reason='later')", True),
        ("@pytest.mark.skip", True),
        ("@pytest.mark.xfail", True),
        ("@pytest.mark.skipif(ON_A_LAPTOP, reason='no disk')", False),
        ("@pytest.mark.matrix", False),
    ],
)
def test_a_test_that_is_never_run_is_noticed(decorator: str, is_never_run: bool) -> None:
    [function] = ast.parse(f"{decorator}\ndef test_it() -> None: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert never_runs(function) is is_never_run
