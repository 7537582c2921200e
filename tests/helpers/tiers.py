# SPDX-License-Identifier: Apache-2.0
"""Which tests run when: three tiers by marker, parts of a night, a turn for each commit.

tests/README.md says what belongs into which tier. A test without a marker is of the first one.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final
from zlib import crc32

import attrs
import pytest

TIERS: Final = ("test", "check", "nightly")
SLOWER: Final = TIERS[1:]

#: `make check` runs one of so many turns of the nightly tests, chosen by the commit's hash.
TURNS: Final = 64
#: Broker tests that share a store have their turn together, and one such group takes minutes.
BROKER_TURNS: Final = 32

#: So many processes run tests with brokers: four, and the brokers starve each other on two cores.
BROKER_PROCESSES: Final = 2

#: At how many of the places where a fault may strike a tier lets it strike; None: at each of them.
POSITIONS: Final = {"test": 1, "check": 4, "nightly": None}


@attrs.frozen
class Case:
    """What the choice depends on: a test's markers, and the name of the group that it shares
    something dear with (its own name if it shares nothing).
    """

    markers: frozenset[str]
    group: str

    @property
    def tier(self) -> str:
        """The slowest tier that the test is marked for."""
        return next((tier for tier in reversed(SLOWER) if tier in self.markers), TIERS[0])


def with_examples(cases: Iterable[Any], examples: Collection[Any]) -> list[Any]:
    """Parameters of a test: `make test` runs the examples alone, `make check` the others."""
    every = list(cases)
    assert all(example in every for example in examples), examples
    values = [case if isinstance(case, tuple) else (case,) for case in every]
    return [
        pytest.param(*value, marks=() if case in examples else pytest.mark.check)
        for case, value in zip(every, values, strict=True)
    ]


def by_turns(
    rows: Iterable[Any],
    columns: Iterable[Any],
    examples: Collection[Any] = (),
    *,
    often: Any = pytest.mark.check,
) -> list[Any]:
    """Parameters of a test over a whole product: `make check` (or the tier of ``often``) runs each
    row with one of the columns by turns, the night every pair, `make test` the rows of examples.
    """
    every, pairs = list(columns), []
    for at, row in enumerate(rows):
        for number, column in enumerate(every):
            # Shifted with each lap: rows that are a product themselves meet all columns.
            tier = often if (at + at // len(every)) % len(every) == number else pytest.mark.nightly
            value = [*(row if isinstance(row, tuple) else (row,))]
            value += column if isinstance(column, tuple) else (column,)
            pairs.append(pytest.param(*value, marks=() if row in examples else tier))
    return pairs


def at_night(count: int, *, parts: int) -> list[Any]:
    """Parameters of a long nightly test: ``count`` rounds in parts, each with a seed and a turn of
    its own, so that no turn of `make check` gets them all.
    """
    return [
        pytest.param(count // parts, id=f"{count}, part {part}", marks=pytest.mark.nightly)
        for part in range(1, parts + 1)
    ]


def share(name: str, count: int) -> int:
    """Which of ``count`` shares a name falls into; the same in every process and on every day."""
    return crc32(name.encode()) % count


def has_its_turn(case: Case, commit: str) -> bool:
    """Whether a nightly test is among those that `make check` runs on this commit (hexadecimal)."""
    turns = BROKER_TURNS if "interop" in case.markers else TURNS
    return share(case.group, turns) == int(commit, 16) % turns


def broker_lanes(versions: Mapping[str, int]) -> dict[str, str]:
    """Which process runs which group of broker tests, given how many versions each names: one that
    names more takes longer, and the next goes where least is to be done.
    """
    todo, lanes = [0] * BROKER_PROCESSES, {}
    for name, count in sorted(versions.items(), key=lambda each: (-each[1], each[0])):
        lane = todo.index(min(todo))
        todo[lane] += count
        lanes[name] = f"brokers {lane}"
    return lanes


def is_chosen(case: Case, tier: str, commit: str) -> bool:
    """Whether a tier runs the test. `check` leaves out what `test` runs: the two run beside each
    other. `nightly` runs everything.
    """
    if tier == "nightly":
        return True
    if tier == "check":
        turn = case.tier == "nightly" and has_its_turn(case, commit)
        return case.tier == "check" or turn
    return case.tier == "test"


def is_in_part(case: Case, part: int, parts: int) -> bool:
    """Whether the test belongs to this part (1 to ``parts``) of a night's work."""
    return share(case.group, parts) == part - 1


def positions(count: int, wanted: int | None, seed: int) -> range:
    """So many of ``count`` places, as far apart as can be; which of them, the seed says."""
    step = 1 if wanted is None else max(1, -(-count // wanted))
    return range(seed * 7 % step, count, step)
