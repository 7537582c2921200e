# SPDX-License-Identifier: Apache-2.0
"""docs/COMPATIBILITY.md claims nothing without a test: each exists, runs, and names the version."""

import ast
import itertools
import re

import attrs
import pytest

from tests.interop.jars import LAST, NEWEST, VERSIONS
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
        if tuple(cells[1 : 1 + len(VERSIONS)]) == VERSIONS:
            in_table = True
        elif not cells:
            in_table = False
        elif in_table and set(line) - set("|-"):
            signs = tuple(cells[1 : 1 + len(VERSIONS)])
            tests = tuple(re.findall(r"`(tests/[^`]*)`", cells[1 + len(VERSIONS)]))
            rows.append(Row(cells[0], signs, tests))
    return rows


def scenarios_of(text: str) -> dict[str, str]:
    """What RocketMQ's own tests ask, and the cell that names ours or says why there is none."""
    _before, _heading, rest = text.partition("| test of RocketMQ | what it asks | our tests |\n")
    lines = itertools.takewhile(lambda line: line[:1] == "|", rest.splitlines()[1:])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {f"{test}: {asks}": ours for test, asks, ours in rows}


TEXT = PAGE.read_text(encoding="utf-8")
ROWS = rows_of(TEXT)
SCENARIOS = scenarios_of(TEXT)
NAMED = sorted(
    {test for row in ROWS for test in row.tests}
    | {test for cell in SCENARIOS.values() for test in re.findall(r"`(tests/[^`]*)`", cell)}
)


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
    texts = [source.replace("NEWEST", NEWEST).replace("LAST", LAST) for source in sources]
    assert [version for version in proven if not any(version in text for text in texts)] == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_one_of_our_tests_or_has_a_reason_to_be_none(scenario: str) -> None:
    ours = SCENARIOS[scenario]
    reason = ours.removeprefix("–").strip()
    assert (ours.startswith("–") and len(reason.split()) > 3) or ours.startswith("`tests/")


def test_the_scenarios_name_every_test_class_and_every_test_that_was_written_for_them() -> None:
    classes = """ScheduleMessageServiceTest ScheduleMessageTest TimerMessageStoreTest TimerWheelTest
    TimerLogTest TimerCheckpointTest TimerMetricsTest HookUtilsTest RecallMessageHandleTest"""
    assert {scenario.split()[0].rstrip(",:") for scenario in SCENARIOS} == set(classes.split())
    for engine in ("legacy_levels", "timer_wheel"):
        [path] = [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "tests" / engine).rglob("test_java_scenarios.py")
        ]
        written = {f"{path}::{name}" for name in functions_of(path) if name.startswith("test_")}
        assert written - set(NAMED) == set()


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
        ("@pytest.mark.nightly", False),
    ],
)
def test_a_test_that_is_never_run_is_noticed(decorator: str, is_never_run: bool) -> None:
    [function] = ast.parse(f"{decorator}\ndef test_it() -> None: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert never_runs(function) is is_never_run
