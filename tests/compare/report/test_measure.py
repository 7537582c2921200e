# SPDX-License-Identifier: Apache-2.0
"""Figures from what was seen: worked out by hand for a handful of messages."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest

from compare.report.measure import account, first_difference, measure, of_rounds
from compare.report.results import FaultSeen, Lateness, LatenessCurve, Opening, Usage
from compare.report.verdict import verdict
from compare.running.observation import (
    NOT_TAKEN,
    Costs,
    Delivered,
    Observation,
    SeenRounds,
)
from compare.workloads.made_up import START_MS
from compare.workloads.workload import Workload
from tests.compare.races import engines, race, small

COSTS = Costs(
    put_s=0.5, drain_s=0.25, other_s=0.25, elapsed_s=2.0, cpu_s=1.0, peak_memory_bytes=7,
    bytes_on_disk=9,
)  # fmt: skip


def four(**changes: object) -> Workload:
    """Four messages that arrive at the beginning and are due after 1, 2, 3 and 4 seconds."""
    made = Workload(
        name="four",
        start_ms=START_MS,
        arrival_ms=np.full(4, START_MS),
        due_ms=START_MS + 1_000 * np.arange(1, 5),
        level=np.zeros(4, np.int64),
        topic=np.zeros(4, np.int64),
        body_bytes=np.full(4, 8),
        topics=("orders",),
    )
    return attrs.evolve(made, **changes)  # type: ignore[arg-type]


def seen(
    delivered: Sequence[tuple[int, int]],
    promised: Sequence[int | None] = (1_000, 2_000, 3_000, 4_000),
    rounds: Sequence[tuple[int, int]] | None = None,
) -> Observation:
    """Deliveries as (number, stored) and rounds as (count, seen), in ms after the beginning."""
    told = [(1, stored_ms) for _number, stored_ms in delivered] if rounds is None else rounds
    return Observation(
        start_ms=START_MS,
        promised_ms=[NOT_TAKEN if one is None else START_MS + one for one in promised],
        rounds=SeenRounds([count for count, _ms in told], [START_MS + ms for _count, ms in told]),
        costs=COSTS,
        delivered=Delivered(
            [number for number, _ms in delivered], [START_MS + ms for _number, ms in delivered]
        ),
    )


IN_TIME = [(0, 1_000), (1, 2_000), (2, 3_000), (3, 4_000)]


@pytest.mark.parametrize(
    ("observed", "early", "missing", "duplicates", "not_taken", "delivered"),
    [
        (seen(IN_TIME), 0, 0, 0, 0, 4),
        (seen(IN_TIME[:2]), 0, 2, 0, 0, 2),
        (seen([*IN_TIME, (1, 5_000), (1, 6_000)]), 0, 0, 2, 0, 4),
        (seen([(0, 999), *IN_TIME[1:]]), 1, 0, 0, 0, 4),
        (seen(IN_TIME[:3], (1_000, 2_000, 3_000, None)), 0, 0, 0, 1, 3),
        # What was refused and comes all the same comes once too often.
        (seen(IN_TIME, (1_000, 2_000, 3_000, None)), 0, 0, 1, 1, 3),
        # Numbers that no message has are somebody else's.
        (seen([*IN_TIME, (4, 9_000), (-1, 9_000)]), 0, 0, 0, 0, 4),
        (seen([]), 0, 4, 0, 0, 0),
    ],
)
def test_what_is_wrong_is_counted_by_message(
    observed: Observation, early: int, missing: int, duplicates: int, not_taken: int, delivered: int
) -> None:
    result = measure("one", four(), observed, account(four(), observed))
    assert (result.early, result.missing, result.duplicates) == (early, missing, duplicates)
    assert (result.not_taken, result.delivered) == (not_taken, delivered)
    assert result.is_right == (early == missing == duplicates == 0)


def test_lateness_counts_from_the_time_asked_for_and_from_the_promise() -> None:
    late = [(0, 1_500), (1, 2_500), (2, 3_500), (3, 4_500)]
    observed = seen(late, (1_400, 2_400, 3_400, 4_400), [(2, 2_600), (2, 4_600)])
    result = measure("one", four(), observed, account(four(), observed))
    # Seen when advance came back: after 2,600 and 4,600 ms, whatever the records say.
    assert result.lateness_ms == Lateness(600, 1_600, 1_600, 1_600, 1_600)
    assert result.lateness_after_promise_ms == Lateness(200, 1_200, 1_200, 1_200, 1_200)


def test_of_a_repeated_message_the_first_delivery_counts() -> None:
    observed = seen([*IN_TIME, (0, 9_000)])
    result = measure("one", four(), observed, account(four(), observed))
    assert result.lateness_ms == Lateness(0, 0, 0, 0, 0)


def test_where_rounds_do_not_add_up_the_record_decides() -> None:
    # The engine told of two deliveries only; the records say when the others were stored.
    observed = seen(IN_TIME, rounds=[(1, 1_050), (1, 3_050)])
    known = account(four(), observed)
    assert (known.first_seen_ms - START_MS).tolist() == [1_050, 3_050, 3_050, 4_000]


def test_speeds_are_by_the_seconds_that_were_spent_on_them() -> None:
    observed = seen(IN_TIME)
    result = measure("one", four(), observed, account(four(), observed))
    assert (result.put_per_second, result.drain_per_second) == (8.0, 16.0)
    assert (result.through_per_second, result.cpu_percent) == (4.0, 50.0)
    assert (result.peak_memory_bytes, result.bytes_on_disk) == (7, 9)


def test_nothing_taken_has_no_lateness_and_no_speed() -> None:
    observed = seen([], (None,) * 4)
    result = measure("one", four(), observed, account(four(), observed))
    assert (result.lateness_ms, result.put_per_second, result.not_taken) == (None, None, 4)
    assert result.lateness_curve == LatenessCurve()


def test_a_run_at_another_time_is_measured_by_its_own_beginning() -> None:
    observed = attrs.evolve(
        seen(IN_TIME),
        start_ms=START_MS - 500,
        promised_ms=START_MS - 500 + 1_000 * np.arange(1, 5),
    )
    result = measure("one", four(), observed, account(four(), observed))
    assert result.lateness_ms == Lateness(500, 500, 500, 500, 500)


def test_the_middle_of_several_rounds_is_told_and_the_worst_of_what_is_wrong() -> None:
    results = []
    for put_s, delivered in ((1.0, IN_TIME), (4.0, IN_TIME[:3]), (2.0, IN_TIME)):
        observed = attrs.evolve(seen(delivered), costs=attrs.evolve(COSTS, put_s=put_s))
        results.append(measure("one", four(), observed, account(four(), observed)))
    result = of_rounds(results)
    assert (result.put_per_second, result.missing, len(result.rounds)) == (2.0, 1, 3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_lateness_of_several_rounds_is_that_of_the_middle_one_in_whatever_order(
    order: tuple[int, ...],
) -> None:
    observed = seen(IN_TIME)
    one = measure("one", four(), observed, account(four(), observed))
    results = [
        attrs.evolve(
            one,
            lateness_ms=Lateness(p50=late, p90=late, p99=late, p999=late, max=late),
            bytes_on_disk=late,
        )
        for late in (10, 20, 900)
    ]
    result = of_rounds([results[number] for number in order])
    assert result.lateness_ms is not None
    assert (result.lateness_ms.p99, result.bytes_on_disk) == (20, 900)


def an_opening(open_s: float) -> Opening:
    return Opening(
        waiting=9,
        open_s=open_s,
        read_bytes=1 << 20,
        first_messages=3,
        first_s=0.25,
        first_read_bytes=4_096,
    )


def test_of_several_rounds_the_opening_of_the_middle_one_is_told() -> None:
    results = []
    for open_s in (3.0, 1.0, 2.0):
        faults = (FaultSeen("kill", 7, "opened again", an_opening(open_s)),
                  FaultSeen("clock-back", 9, f"leapt {open_s}"))  # fmt: skip
        observed = attrs.evolve(seen(IN_TIME), faults=faults)
        results.append(measure("one", four(), observed, account(four(), observed)))
    kill, leap = of_rounds(results).faults
    assert kill.opening == an_opening(2.0)
    assert leap.answer == "leapt 2.0"


def test_a_curve_rises_to_the_latest_message() -> None:
    curve = LatenessCurve.of(np.arange(1_000))
    assert (curve.fractions[0], curve.late_ms[0]) == (0.0, 0.0)
    assert (curve.fractions[-1], curve.late_ms[-1]) == (1.0, 999.0)
    assert list(curve.late_ms) == sorted(curve.late_ms)
    assert list(curve.fractions) == sorted(set(curve.fractions))


@pytest.mark.parametrize(
    ("other", "kind", "number", "messages"),
    [
        (seen(IN_TIME[1:]), "delivered by some only", 0, 1),
        (seen([*IN_TIME, (2, 5_000)]), "repeated", 2, 1),
        (seen([*IN_TIME[:3], (3, 3_900)]), "early", 3, 1),
        (seen(IN_TIME[:3], (1_000, 2_000, 3_000, None)), "taken by some only", 3, 1),
        (seen([IN_TIME[0], (1, 2_001), (2, 3_001), IN_TIME[3]]), "other times", 1, 2),
    ],
)
def test_the_gravest_difference_is_the_first(
    other: Observation, kind: str, number: int, messages: int
) -> None:
    observed = {"one": seen(IN_TIME), "other": other}
    accounts = {name: account(four(), each) for name, each in observed.items()}
    found = first_difference(four(), accounts, observed)
    assert found is not None
    assert (found.kind, found.number, found.messages) == (kind, number, messages)


def test_engines_that_did_the_same_do_not_differ() -> None:
    observed = {"one": seen(IN_TIME), "other": seen(IN_TIME)}
    accounts = {name: account(four(), each) for name, each in observed.items()}
    assert first_difference(four(), accounts, observed) is None


def test_what_was_seen_survives_the_way_to_another_process() -> None:
    observed = attrs.evolve(
        seen(IN_TIME),
        usage=Usage((0, 5), (1, 2), (3, 4)),
        faults=(
            FaultSeen("clock-back", 6, "its clock leapt"),
            FaultSeen("kill", 7, "opened again", an_opening(0.5)),
        ),
        notes=("a note",),
    )
    back = pickle.loads(pickle.dumps(observed))
    assert (back.usage, back.faults, back.notes) == (
        observed.usage, observed.faults, observed.notes,
    )  # fmt: skip
    assert back.delivered.number.tolist() == [0, 1, 2, 3]
    assert measure("one", four(), back, account(four(), back)) == measure(
        "one", four(), observed, account(four(), observed)
    )


# --- the answer -----------------------------------------------------------------------------------


def test_the_answer_names_who_is_near_and_who_is_fast(tmp_path: Path) -> None:
    sentences = verdict(race(small("uniform"), engines("levels", "wheel"), tmp_path))
    assert sentences[0] == "every engine delivered all that was taken once, and nothing early"
    assert sentences[1].startswith("wheel comes closest to the time asked for: 99 of 100 within")
    assert " messages a second in and out: " in sentences[2]


def test_an_engine_that_loses_messages_wins_nothing(tmp_path: Path) -> None:
    results = race(small("uniform"), engines("wheel", "memory", "levels"), tmp_path)
    wrong = attrs.evolve(results.engine("memory"), missing=3)
    told = [wrong if engine.name == "memory" else engine for engine in results.engines]
    sentences = verdict(attrs.evolve(results, engines=tuple(told)))
    assert sentences[0] == "memory is wrong: 0 early, 3 missing, 0 repeated"
    assert sentences[1].startswith("wheel and levels delivered all")
    assert not [sentence for sentence in sentences[2:] if "memory" in sentence]
