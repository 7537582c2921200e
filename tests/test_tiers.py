# SPDX-License-Identifier: Apache-2.0
"""The tiers: every test belongs to one, nightly tests have their turns, parts leave nothing out."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import (
    BROKER_TURNS,
    SLOWER,
    TIERS,
    TURNS,
    Case,
    broker_lanes,
    by_turns,
    has_its_turn,
    is_chosen,
    is_in_part,
)
from tests.helpers.warm_kernels import modules
from tests.source_laws import ROOT, other_sources, product_sources, walked

pytestmark = pytest.mark.xdist_group("house")

NAMES = [f"tests/faults/test_{number}.py::test_it" for number in range(200)]
COMMITS = [f"{number:040x}" for number in range(TURNS)]
KNOWN_MARKERS = {
    "parametrize", "usefixtures", "skip", "skipif", "xfail", "filterwarnings", "xdist_group",
    "spark", "interop", "disk", *SLOWER,
}  # fmt: skip


def case(name: str, *markers: str) -> Case:
    return Case(frozenset(markers), name)


def test_a_test_belongs_to_the_slowest_tier_that_it_is_marked_for() -> None:
    assert case("a").tier == "test"
    assert case("a", "spark", "check").tier == "check"
    assert case("a", "check", "nightly").tier == "nightly"


@pytest.mark.parametrize("commit", COMMITS[:3])
def test_what_a_commit_runs_it_runs_once(commit: str) -> None:
    for name in NAMES:
        for marker in ((), ("check",), ("nightly",), ("nightly", "interop")):
            one = case(name, *marker)
            assert is_chosen(one, "test", commit) + is_chosen(one, "check", commit) <= 1
            assert is_chosen(one, "nightly", commit)


def test_every_nightly_test_has_its_turn() -> None:
    for markers, turns in ((("nightly",), TURNS), (("nightly", "interop"), BROKER_TURNS)):
        for name in NAMES:
            mine = [has_its_turn(case(name, *markers), commit) for commit in COMMITS[:turns]]
            assert mine.count(True) == 1


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_a_night_s_parts_hold_every_test_once(parts: int) -> None:
    for name in NAMES:
        assert sum(is_in_part(case(name), part, parts) for part in range(1, parts + 1)) == 1


def test_broker_tests_are_spread_by_what_they_start() -> None:
    lanes = broker_lanes({"one": 1, "three": 3, "two": 2, "another": 3})
    assert lanes == {
        "another": "brokers 0", "three": "brokers 1", "two": "brokers 0", "one": "brokers 1",
    }  # fmt: skip


def test_each_row_has_one_of_the_columns_and_the_night_has_all() -> None:
    pairs = by_turns(product("ab", "xy"), [1, 2], [("b", "x")])
    tiers = {each.values: [mark.name for mark in each.marks] for each in pairs}
    assert len(tiers) == 8
    assert {row for row, marks in tiers.items() if marks == ["check"]} == {
        ("a", "x", 1), ("a", "y", 2), ("b", "y", 1),
    }  # fmt: skip
    assert {row for row, marks in tiers.items() if not marks} == {("b", "x", 1), ("b", "x", 2)}


def _markers(tree: ast.Module) -> set[str]:
    return {
        node.attr
        for node in walked(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "mark"
    }


def test_every_module_belongs_to_a_tier() -> None:
    """A tier is a marker of the table or none; another word would be no tier at all."""
    modules = [each for each in other_sources() if Path(each.path).name.startswith("test_")]
    assert len(modules) > 200
    strange = {each.path: _markers(each.tree) - KNOWN_MARKERS for each in modules}
    assert {path: names for path, names in strange.items() if names} == {}


def test_the_page_names_each_tier_and_each_folder() -> None:
    page = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    assert {tier for tier in TIERS if not re.search(rf"\| {tier} \|", page)} == set()
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"__pycache__"}
    assert {folder for folder in folders if f"`{folder}`" not in page} == set()


def test_a_group_stays_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist knows a group by the end of a test's name. With a pytest that names tests in
    another way it spreads them, and says nothing: brokers, Spark and mutations meet each other.
    """
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@house")


def test_all_kernels_are_compiled_before_the_processes_of_a_run_begin() -> None:
    """Else each of them compiles all, where nothing is cached yet."""
    with_kernels = {
        each.path.removesuffix(".py").replace("/", ".")
        for each in product_sources()
        if "@kernel(" in each.text
    }
    assert with_kernels
    assert with_kernels <= set(modules())


@pytest.mark.skipif(not settings().derandomize, reason="at night chance is wanted")
def test_in_a_gate_no_example_comes_from_a_module_that_happens_to_be_loaded() -> None:
    """No other number that stands in a module lies between these two."""
    drawn: set[int] = set()

    @settings(max_examples=150)
    @given(st.integers(917_260_403_551, 917_260_403_559_000))
    def draw(number: int) -> None:
        drawn.add(number)

    draw()
    assert 917_260_403_557 not in drawn
    assert len(drawn) > 100
