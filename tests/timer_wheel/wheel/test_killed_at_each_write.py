# SPDX-License-Identifier: Apache-2.0
"""Wheels that are killed before each write of a close or of a recovery in turn, or lose power
there: what we find then, and what a broker that takes over would.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, ManualClock, Message, Severity
from message_store.base.errors import TargetError
from message_store.writing.settings import StoreSettings
from tests.faults.broker_view import found_by_a_broker, look_as_a_broker
from tests.independent.raw_files import read_timer_check
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import WheelStore
from timer_wheel.format.timer_log import TIMER_UNIT, blank_bytes
from timer_wheel.timers.recall import RecallMarks
from timer_wheel.wheel.leaving import place_all

START_MS = 1_793_000_000_000
SIX_UNITS_A_FILE = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=1000, timer_log_file_bytes=6 * 52 + 30
)
FAITHFUL = attrs.evolve(SIX_UNITS_A_FILE, repeat_after_kill=True)
LONG_FILES = attrs.evolve(SIX_UNITS_A_FILE, timer_log_file_bytes=60 * 52 + 30)
SHORT_RETENTION = attrs.evolve(LONG_FILES, commit_log_file_bytes=4096, retention_ms=30_000)


def open_store(
    path: Path,
    clock: ManualClock,
    settings: StoreSettings = SIX_UNITS_A_FILE,
    *,
    snapshots: bool = False,
    window_slots: int = 60,
) -> WheelStore:
    return WheelStore.open(
        path, clock=clock, settings=settings, roll_window_slots=window_slots, snapshots=snapshots
    )


def put(store: WheelStore, key: str, delay_ms: int, *, body: bytes = b"") -> Counter[str]:
    store.schedule(Message("orders", body, unique_key=key), AfterMs(delay_ms))
    return Counter([key])


def waits_in(store: WheelStore) -> Counter[str]:
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    return Counter(each.unique_key or "" for each in store.pending())


def comes_from(store: WheelStore, clock: ManualClock) -> Counter[str]:
    """What comes in the next ten minutes, with an end in the middle."""
    came: Counter[str] = Counter()
    for _ in range(6):
        clock.tick(100_000)
        came += Counter(each.message.unique_key or "" for each in store.advance(clock.now_ms()))
    return came


# --- a close --------------------------------------------------------------------------------------


def to_be_closed(path: Path, clock: ManualClock) -> WheelStore:
    """A store with a slot of which the messages in the middle and on top have come."""
    with open_store(path, clock) as store:
        for key, is_overdue in zip("XAXYBXY", (1, 0, 1, 1, 0, 1, 1), strict=True):
            if is_overdue:
                store.schedule(Message("orders", b"", unique_key=key), AtMs(0))
            else:
                put(store, key, 700)
    store = open_store(path, clock)
    came = [each.message.unique_key for each in store.advance(clock.now_ms())]
    assert came == ["X", "X", "Y", "X", "Y"]
    return store


def with_a_hand_before_what_has_come(path: Path, clock: ManualClock) -> WheelStore:
    """The same, where the power took the hand and left what came of a slot before that."""
    check = path / "config" / "timercheck"
    store = open_store(path, clock)
    for key, delay_ms in zip("XAXYB", (700, 4_000, 700, 700, 5_000), strict=True):
        put(store, key, delay_ms)
    store.advance(clock.now_ms())
    store.flush()
    before = check.read_bytes()
    assert len(store.advance(clock.now_ms() + 2_000)) == 3
    store.abandon()
    check.write_bytes(before)
    return open_store(path, clock)


def assert_only_a_and_b_come(path: Path, clock: ManualClock) -> None:
    assert found_by_a_broker(path, clock.now_ms()) >= Counter("AB")
    store = open_store(path, clock)
    assert waits_in(store) == Counter("AB")
    assert comes_from(store, clock) == Counter("AB")
    store.close()


@pytest.mark.check
def test_later_ends_of_a_store_bring_nothing_back_that_a_stopped_one_had_taken_off_its_chain(
    tmp_path: Path,
) -> None:
    """Units that are off their chains are in the log yet. The next end puts away what it knows to
    be done, and what lay below that is on top of its slot for whoever comes then.
    """
    for number in itertools.count():
        path, clock = tmp_path / str(number), ManualClock(START_MS)
        store = with_a_hand_before_what_has_come(path, clock)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            store.close()
        store.abandon()
        for _ in range(2):
            with open_store(path, clock) as store:
                assert waits_in(store) == Counter("AB"), number
        assert_only_a_and_b_come(path, clock)
        if not disk.refused:
            break
    assert number > 20


def test_a_slot_that_only_the_file_knows_is_wiped_when_the_hand_moves_back_over_it(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock) as store:
        put(store, "CAME", 5_000)
        store.flush()
        assert len(store.advance(START_MS + 39_000)) == 1
    clock.tick(-100_000)
    with open_store(tmp_path, clock) as store:
        put(store, "WAITS", 2_000)
        store.advance(clock.now_ms())
    assert found_by_a_broker(tmp_path, clock.now_ms()) == Counter(["WAITS"])


def test_a_sync_that_fails_before_units_are_put_away_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS + 100)
    store = to_be_closed(tmp_path, clock)

    def refuse(_segments: object) -> None:
        raise TargetError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("message_store.files.live_segments.LiveSegments.sync", refuse)
        with pytest.raises(TargetError, match="Input/output error"):
            place_all(store._timers, clock.now_ms(), RecallMarks)
    with pytest.raises(TargetError, match="an earlier write failed; open it again"):
        store.flush()
    store.abandon()
    assert_only_a_and_b_come(tmp_path, clock)


def test_what_is_parked_a_round_away_is_not_ousted_by_what_is_put_away_before_the_hand(
    tmp_path: Path,
) -> None:
    """Both would have the same place on the wheel; a broker believes the later unit."""
    clock, ahead_ms = ManualClock(START_MS), 30 * 86_400_000
    store = WheelStore.open(tmp_path, clock=clock)
    clock.tick(ahead_ms)
    put(store, "FAR", 86_400_000)
    put(store, "CAME", 5_000)
    store.advance(clock.now_ms())
    clock.tick(10_000)
    assert len(store.advance(clock.now_ms())) == 1
    clock.tick(-ahead_ms)
    put(store, "NEAR", 10_000)
    store.schedule(Message("orders", b"", unique_key="NOW"), AtMs(0))
    assert len(store.advance(clock.now_ms())) == 1
    store.close()
    assert found_by_a_broker(tmp_path, clock.now_ms()) == Counter(["NEAR", "FAR"])


# --- a recovery -----------------------------------------------------------------------------------


def cut_at_the_beginning_of_a_file(path: Path, clock: ManualClock) -> Counter[str]:
    """What waits in a store whose timer log was flushed when a file of it had just begun, and got
    units since. It had gone on to that file and no further, as a broker's does that is killed then.
    """
    store, waits = open_store(path / "store", clock, FAITHFUL), Counter[str]()
    for each in range(6):
        waits += put(store, f"A{each}", 50_000)
    store.advance(START_MS)
    store.abandon()
    log = next((path / "store" / "timerlog").iterdir())
    units, file_bytes = log.read_bytes()[: 6 * TIMER_UNIT.size], log.stat().st_size
    log.write_bytes((units + blank_bytes(file_bytes)).ljust(file_bytes, b"\0"))
    store = open_store(path / "store", clock, FAITHFUL)
    found = read_timer_check(path / "store" / "config" / "timercheck").flush_position
    assert found == file_bytes
    for each in range(4):
        waits += put(store, f"B{each}", 50_000)
    store.advance(START_MS)
    store.abandon()
    return waits


@pytest.mark.check
def test_a_broker_that_takes_over_from_a_killed_recovery_finds_what_lay_behind_the_end_of_a_file(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    waits = cut_at_the_beginning_of_a_file(tmp_path, clock)
    for number in itertools.count():
        path = tmp_path / str(f"killed-{number}")
        shutil.copytree(tmp_path / "store", path)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            open_store(path, clock).abandon()
        assert found_by_a_broker(path, clock.now_ms()) == waits, number
        store = open_store(path, clock)
        assert waits_in(store) == waits
        store.abandon()
        if not disk.refused:
            break
    assert number > 3


def test_a_snapshot_that_is_newer_than_the_timer_log_leads_no_broker_to_other_units(
    tmp_path: Path,
) -> None:
    """It may be on the disk when the power goes, and the units that it leads to not yet."""
    clock, check = ManualClock(START_MS), tmp_path / "config" / "timercheck"
    store, waits = open_store(tmp_path, clock, snapshots=True), Counter[str]()
    for number in range(3):
        waits += put(store, f"A{number}", 50_000)
    store.advance(START_MS)
    store.flush()
    before, end = check.read_bytes(), 3 * 52
    for number in range(2):
        waits += put(store, f"B{number}", 200_000)
    store.advance(START_MS)
    store.flush()
    store.abandon()
    check.write_bytes(before)
    log = next((tmp_path / "timerlog").iterdir())
    log.write_bytes(log.read_bytes()[:end].ljust(log.stat().st_size, b"\0"))
    clock.tick(5_000)
    store = open_store(tmp_path, clock, snapshots=True)
    assert waits_in(store) == waits  # placed again, in another order of slots
    assert found_by_a_broker(tmp_path, clock.now_ms(), snapshots_on=True) == waits
    store.close()


def test_no_slot_of_the_file_leads_a_broker_to_what_came_to_lie_where_its_units_were(
    tmp_path: Path,
) -> None:
    """The file has a slot of units that a recovery took away, by a clock that was ahead."""
    for number in itertools.count():
        path, clock = tmp_path / str(number), ManualClock(START_MS)
        store = open_store(path, clock, window_slots=100)
        store.advance(START_MS + 101_000)  # by a clock that was ahead
        store.flush()
        clock.tick(-98_000)
        put(store, "NEAR", 1_000)
        store.advance(clock.now_ms())
        put(store, "FAR", 126_000)
        store.advance(clock.now_ms())
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            store.flush()
        store.abandon()
        if not disk.refused:
            break
        store = open_store(path, clock, window_slots=100)
        store.advance(clock.now_ms())
        store.abandon()
        view = look_as_a_broker(path, clock.now_ms())
        assert view.wrong == [], number
        assert sorted(key for key, _ in view.found) == ["FAR", "NEAR"], number
    assert number > 10


def test_equal_messages_come_as_often_as_they_were_stored_after_the_timer_log_lost_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is placed again lies where others lay, so that a second recovery cannot tell by places
    which of it is old.
    """
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, LONG_FILES)
    store.advance(START_MS)
    clock.tick(45_000)
    put(store, "DONE", 56_000)
    waits_in(store)
    clock.tick(-45_000)
    for _ in range(2):
        put(store, "TWIN", 256_000)
        waits_in(store)
    clock.tick(50_000)
    waits_in(store)
    clock.tick(11_000)
    assert len(store.advance(START_MS + 61_000)) == 0  # one twin has rolled
    store.flush()
    clock.tick(140_000)
    with monkeypatch.context() as patch:

        def die(*_given: object) -> None:
            raise Killed

        patch.setattr("timer_wheel.wheel.turn.Turning._roll", die)
        with pytest.raises(Killed):
            store.advance(START_MS + 101_000)
    store.abandon()
    clock.tick(-140_000)
    log = next((tmp_path / "timerlog").iterdir())
    log.write_bytes(log.read_bytes()[:52].ljust(log.stat().st_size, b"\0"))
    store = open_store(tmp_path, clock, LONG_FILES)
    assert len(store.advance(START_MS + 61_000)) == 0
    assert waits_in(store) == Counter(["TWIN"] * 2)
    store.flush()
    store.abandon()
    store = open_store(tmp_path, clock, LONG_FILES)
    assert comes_from(store, clock) == Counter(["TWIN"] * 2)
    store.close()


def test_copies_of_equal_messages_whose_records_are_gone_are_given_to_no_other(
    tmp_path: Path,
) -> None:
    """They have rolled, retention took their first records, and a clock that is put right lets
    copies be looked for in all of the log.
    """
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, SHORT_RETENTION)
    for _ in range(2):
        put(store, "TWIN", 256_000)
    for step_ms in (62_000, 40_000):
        store.advance(clock.now_ms())
        for _ in range(12):
            put(store, "OTHER", 500, body=b"x" * 300)
        clock.tick(step_ms)
    store.advance(clock.now_ms())
    assert not (tmp_path / "commitlog" / f"{0:020d}").exists()
    clock.tick(-5_000)
    put(store, "NEAR", 2_000)
    store.advance(clock.now_ms())
    store.flush()
    clock.tick(30_000)
    store.advance(clock.now_ms())
    assert waits_in(store) == Counter(["TWIN"] * 2)
    store.abandon()
    store = open_store(tmp_path, clock, SHORT_RETENTION)
    assert waits_in(store) == Counter(["TWIN"] * 2)
    assert comes_from(store, clock) == Counter(["TWIN"] * 2)
    store.close()


def test_equal_messages_of_which_some_rolled_and_some_came_before_come_once(tmp_path: Path) -> None:
    """After a kill those that came have no unit, which would tell that they never rolled."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, LONG_FILES)
    store.advance(START_MS)
    store.flush()
    for _ in range(3):
        put(store, "TWIN", 80_000)
    assert len(store.advance(START_MS + 90_000)) == 3
    put(store, "NEAR", 5_000)
    store.advance(START_MS)
    put(store, "TWIN", 80_000)
    store.advance(START_MS)
    clock.tick(70_000)
    assert len(store.advance(clock.now_ms())) == 1
    assert waits_in(store) == Counter(["TWIN"])
    store.abandon()
    store = open_store(tmp_path, clock, LONG_FILES)
    assert waits_in(store) == Counter(["TWIN"])
    assert comes_from(store, clock) == Counter(["TWIN"])
    store.close()
