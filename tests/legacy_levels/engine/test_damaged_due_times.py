# SPDX-License-Identifier: Apache-2.0
"""A flipped bit in the due time or the length of an entry hurries no message, holds none back for
ever, and is told.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from legacy_levels import LevelRules, LevelStore
from message_store import AtLevel, AtMs, DelayLevels, ManualClock
from message_store.format.java_numbers import LONG_MAX
from message_store.format.record_layout import HEAD_V4_V4
from tests.faults.damage import flip
from tests.legacy_levels.level_stores import START_MS, Bench, message

DAY_MS = 86_400_000
BITS = [
    pytest.param((0, 9, 12, 20, 40, 63), id="some bits"),
    pytest.param(tuple(range(64)), id="every bit", marks=pytest.mark.check),
]


def _flip(bench: Bench, queue_offset: int, bit: int, *, at: int = 12, size: int = 8) -> None:
    """A bit of the due time of an entry, or of what ``size`` bytes are ``at`` another place."""
    path = min((bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir())
    flip(path, 20 * queue_offset + at + size - 1 - bit // 8, bit % 8)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("queue_offset", [0, 1, 2])
def test_a_flipped_bit_in_a_length_loses_no_message(
    tmp_path: Path, queue_offset: int, is_async: bool
) -> None:
    """Any of the 32: the record is whole, and says which entry it is."""
    rules, bodies = LevelRules(async_delivery=is_async), {b"body 0", b"body 1", b"body 2"}
    for bit in range(32):
        bench = Bench(tmp_path / f"store-{bit}")
        with bench.open() as store:
            for number in range(3):
                store.schedule(message(number), AtLevel(3))
                bench.clock.tick(2_000)
        _flip(bench, queue_offset, bit, at=8, size=4)
        with bench.open(rules=rules) as store:
            came = bench.advance(store, 3_999) + bench.advance(store, 4_001)
            assert sorted(came) == sorted(bodies), bit
            problems = [each.problem for each in store.check()]
        # One that is negative is no entry to any reader: the opening fills it in like a hole.
        assert bit == 31 or any("1 entry" in each for each in problems), (bit, problems)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("queue_offset", [0, 1, 2])
@pytest.mark.parametrize("bits", BITS)
def test_a_flipped_bit_in_a_due_time_hurries_no_message(
    tmp_path: Path, bits: tuple[int, ...], queue_offset: int, how: str, is_async: bool
) -> None:
    """Three messages of one level, two seconds apart, each due ten seconds after it was stored."""
    rules = LevelRules(async_delivery=is_async)
    for bit in bits:
        bench = Bench(tmp_path / f"store-{bit}")
        store = bench.open()
        due_ms = []
        for number in range(3):
            due_ms.append(store.schedule(message(number), AtLevel(3)).promised_ms)
            bench.clock.tick(2_000)
        if how == "closed":
            store.close()
        else:
            store.flush()
            store.abandon()
        _flip(bench, queue_offset, bit)
        came: dict[bytes, int] = {}
        with bench.open(rules=rules) as store:
            while bench.clock.now_ms() < START_MS + 20_000:
                for body in bench.advance(store, 500):
                    assert body not in came, (bit, body)
                    came[body] = bench.clock.now_ms()
            problems = [each.problem for each in store.check()]
        expected = dict(zip([b"body 0", b"body 1", b"body 2"], due_ms, strict=True))
        late_ms = {body: at_ms - expected[body] for body, at_ms in came.items()}
        assert min(late_ms.values()) >= 0, bit
        # One that follows shows that it is too late; the last one's record is always asked.
        assert set(came) == set(expected), bit
        assert max(late_ms.values()) <= (2_048 if queue_offset < 2 else 0), bit
        is_corrected = how == "closed" and bit > 11 and len(came) == 3
        if is_corrected and max(late_ms.values()) == 0:
            assert any("cannot be those" in problem for problem in problems), bit


@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize(
    "cancelled", [1, 255, 256, 257, pytest.param(1_300, marks=pytest.mark.check)]
)
def test_the_last_that_waits_comes_in_time_however_many_were_cancelled_behind_it(
    tmp_path: Path, cancelled: int, how: str
) -> None:
    for bit in (9, 11, 12, 40):
        bench = Bench(tmp_path / f"store-{bit}")
        store = bench.open()
        due_ms = store.schedule(message(0), AtLevel(3)).promised_ms
        for number in range(cancelled):
            store.cancel(store.schedule(message(1 + number), AtLevel(3)))
        if how == "closed":
            store.close()
        else:
            store.flush()
            store.abandon()
        _flip(bench, 0, bit)
        bench.clock.tick(9_000)  # what is later by less than this could be right
        with bench.open() as store:
            assert [each.due_ms for each in store.pending()] == [due_ms]
            assert len(store.advance(due_ms - 1)) == 0
            assert len(store.advance(due_ms)) == 1


def test_due_times_that_are_right_are_left_alone(tmp_path: Path) -> None:
    """At once, of another level table, and in any order after a clock was set back."""
    bench = Bench(tmp_path / "store")
    with bench.open(levels=DelayLevels.parse("7s 1m")) as store:
        for number, step_ms in enumerate((0, -3_333, 1_717, 5)):
            bench.clock.tick(step_ms)
            store.schedule(message(number), AtLevel(1))
            store.schedule(message(10 + number), AtMs(0))
            store.schedule(message(20 + number), AtLevel(2))
        expected = [each.due_ms for each in store.pending()]
    for _ in range(2):
        with bench.open(rules=LevelRules(on_table_change="keep")) as store:
            assert [each.due_ms for each in store.pending()] == expected
            assert not any("cannot be those" in each.problem for each in store.check())
    with bench.open(rules=LevelRules(on_table_change="keep")) as store:
        for due_ms in sorted(expected):
            assert all(each.promised_ms <= due_ms for each in store.advance(due_ms))
        assert len(store.advance(LONG_MAX)) == 0
        assert not any("cannot be those" in each.problem for each in store.check())


# --- what is due at once, and levels that a table does not have -----------------------------------


@pytest.mark.parametrize(("table", "level"), [("2h 1s", 2), ("1s 2h", 1), ("1m 1s 1s", 2)])
def test_what_is_due_at_once_waits_in_the_shortest_level(
    tmp_path: Path, table: str, level: int
) -> None:
    """A broker that takes over lets it wait for what is in front of it."""
    bench = Bench(tmp_path / "store")
    with bench.open(levels=DelayLevels.parse(table)) as store:
        store.schedule(message(1), AtMs(0))
        assert [each.level for each in store.pending()] == [level]
        assert bench.advance(store) == [b"body 1"]


@pytest.mark.parametrize("by", ["receipt", "handle"])
def test_what_waits_in_a_level_that_the_table_does_not_have_can_be_cancelled(
    tmp_path: Path, by: str
) -> None:
    bench = Bench(tmp_path / "store")
    whole, short = DelayLevels.parse("5s 1m 1h"), DelayLevels.parse("5s 1m")
    with bench.open(levels=whole) as store:
        receipts = [store.schedule(message(number), AtLevel(3)) for number in range(3)]
    for is_async in (False, True):
        rules = LevelRules(on_table_change="broker", async_delivery=is_async)
        with bench.open(levels=short, rules=rules) as store:
            receipt = receipts[int(is_async)]
            wanted = receipt if by == "receipt" else receipt.handle
            assert [store.cancel(wanted).value for _ in range(2)] == ["cancelled"] * 2
            assert bench.advance(store, DAY_MS) == []
    with bench.open(levels=whole) as store:
        assert bench.advance(store) == [b"body 2"]


@pytest.mark.parametrize("bit", [12, 22, 30])
def test_a_record_of_a_clock_that_was_ahead_is_believed(tmp_path: Path, bit: int) -> None:
    """The clock was set right since: the record is of a time to come."""
    ahead_ms = 3_600_000
    with LevelStore.open(tmp_path, clock=ManualClock(START_MS + ahead_ms)) as store:
        receipt = store.schedule(message(0), AtLevel(16))
    [queue] = (tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX").rglob("0" * 20)
    flip(queue, 12 + 7 - bit // 8, bit % 8)
    clock = ManualClock(START_MS)
    with LevelStore.open(tmp_path, clock=clock) as store:
        clock.tick(receipt.promised_ms - START_MS - 1)
        assert len(store.advance(clock.now_ms())) == 0
        clock.tick(1_001)
        assert len(store.advance(clock.now_ms())) == 1


@pytest.mark.parametrize("back_ms", [0, 8_000, 86_400_000])
def test_a_record_of_an_impossible_time_tells_nothing(tmp_path: Path, back_ms: int) -> None:
    """Also where the clock was set back, so that the due time is farther away than the level."""
    with LevelStore.open(tmp_path, clock=ManualClock(START_MS)) as store:
        receipt = store.schedule(message(0), AtLevel(16))
    log = tmp_path / "commitlog" / ("0" * 20)
    flip(log, receipt.commit_log_offset + HEAD_V4_V4.offset_of("store_timestamp_ms"), 5)
    clock = ManualClock(START_MS - back_ms)
    with LevelStore.open(tmp_path, clock=clock) as store:
        clock.tick(receipt.promised_ms - clock.now_ms() + 1_000)
        assert len(store.advance(clock.now_ms())) == 1
