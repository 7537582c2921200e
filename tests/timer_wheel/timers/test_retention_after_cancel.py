# SPDX-License-Identifier: Apache-2.0
"""A message that was cancelled keeps no log file once its time is over: retention goes on."""

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    Clock,
    DelayStore,
    ManualClock,
    Message,
)
from message_store.writing.settings import StoreSettings
from tests.faults.engines import abandon, open_hierarchy, open_levels, open_wheel
from tests.helpers.tiers import by_turns
from timer_wheel import WheelStore
from timer_wheel.timers.rows import TimerRows
from timer_wheel.timers.unit_kernels import LOG_OFFSET
from timer_wheel.wheel.log import LiveTimerLog
from timer_wheel.wheel.unit_repair import right_places

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000
SETTINGS = StoreSettings(commit_log_file_bytes=8_192, queue_file_bytes=50 * 20, retention_ms=DAY_MS)
DAYS = 9


@attrs.frozen
class Opening:
    """An engine with one precision, None where it has none."""

    open: Callable[..., DelayStore]
    precision_ms: int | None = None

    def __call__(self, folder: Path, clock: Clock) -> DelayStore:
        widths = {} if self.precision_ms is None else {"precision_ms": self.precision_ms}
        return self.open(folder, clock, SETTINGS, **widths)


OPENINGS = {
    "levels": Opening(open_levels),
    **{f"wheel {ms}": Opening(open_wheel, ms) for ms in (100, 1_000)},
    **{f"hierarchy {ms}": Opening(open_hierarchy, ms) for ms in (1, 100, 1_000)},
}


def leave_open(store: DelayStore, _: Path, __: Clock) -> DelayStore:
    return store


def flushed(store: DelayStore, _: Path, __: Clock) -> DelayStore:
    store.flush()
    return store


@pytest.mark.parametrize("at_night", [leave_open, flushed], ids=["never flushed", "flushed"])
@pytest.mark.parametrize("name", OPENINGS)
def test_files_go_however_many_were_cancelled(
    tmp_path: Path, name: str, at_night: Callable[[DelayStore, Path, Clock], DelayStore]
) -> None:
    """As many log files are left as where nobody cancels anything, give or take the markers."""
    counts = []
    for cancels in (False, True):
        folder, clock = tmp_path / f"{cancels}", ManualClock(START_MS)
        store = OPENINGS[name](folder, clock)
        for day in range(DAYS):
            receipts = [
                store.schedule(
                    Message("orders", b"x" * 700, unique_key=f"{day}.{n}"), AfterMs(1_000 * n)
                )
                for n in range(5)
            ]
            if cancels:
                assert store.cancel(receipts[3]) is Cancellation.CANCELLED
            for _ in range(2):
                clock.tick(DAY_MS // 2)
                store.advance(clock.now_ms())
                store = at_night(store, folder, clock)
        counts.append(len(list((folder / "commitlog").iterdir())))
        assert store.check() == []
        store.close()
    without, with_cancels = counts
    assert with_cancels <= without + 1 <= 4


@pytest.mark.parametrize("is_kill", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("precision_ms", [1, 1_000])
def test_a_marker_keeps_its_file_while_its_target_may_come(
    tmp_path: Path, precision_ms: int, is_kill: bool
) -> None:
    """What was cancelled and is due after its file is gone stays cancelled."""
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    opening = OPENINGS[f"hierarchy {precision_ms}"]
    store = opening(folder, clock)
    due_ms = START_MS + DAYS * DAY_MS
    taken = store.schedule(Message("orders", b"taken", unique_key="taken"), AtMs(due_ms))
    kept = store.schedule(Message("orders", b"kept", unique_key="kept"), AtMs(due_ms))
    assert store.cancel(taken) is Cancellation.CANCELLED
    came = []
    for day in range(DAYS + 1):
        for number in range(5):
            store.schedule(Message("other", b"x" * 700), AfterMs(1_000 * number))
        clock.tick(DAY_MS)
        came += [each.message.body for each in store.advance(clock.now_ms())]
        if day % 3 == 1:
            store.flush()
            if is_kill:
                abandon(store)
            else:
                store.close()
            store = opening(folder, clock)
    assert came.count(b"kept") == 1
    assert came.count(b"taken") == 0
    assert store.cancel(kept) is not Cancellation.CANCELLED
    assert len(list((folder / "commitlog").iterdir())) < 5
    store.close()


@pytest.mark.filterwarnings("ignore::message_store.base.errors.OtherEngineWarning")
def test_where_nothing_waits_the_timer_log_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in each round, where levels in the same store still need its oldest file."""
    read: list[int] = []
    units = LiveTimerLog.units

    def counted(log: LiveTimerLog, position: int, count: int) -> TimerRows:
        read.append(count)
        return units(log, position, count)

    clock = ManualClock(START_MS)
    with OPENINGS["levels"](tmp_path / "store", clock) as levels:
        levels.schedule(Message("orders", b""), AtLevel(18))
    with OPENINGS["wheel 1000"](tmp_path / "store", clock) as store:
        for _ in range(500):
            store.schedule(Message("orders", b""), AfterMs(5_000))
        clock.tick(2 * DAY_MS)
        assert len(store.advance(clock.now_ms())) == 500
        store.advance(clock.now_ms())
        monkeypatch.setattr(LiveTimerLog, "units", counted)
        for _ in range(10):
            store.advance(clock.now_ms())
        assert sum(read) <= 500


WAYS: dict[str, Callable[[DelayStore, Path], None]] = {
    "closed": lambda store, _: store.close(),
    "killed": lambda store, _: abandon(store),
    "its index gone": lambda store, folder: gone(store, folder / "hierarchy" / "index"),
    "its timer log gone": lambda store, folder: gone(store, folder / "timerlog"),
}


def gone(store: DelayStore, place: Path) -> None:
    """The process is killed, and a folder is lost with it."""
    abandon(store)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize(
    ("owner", "later", "end", "is_past", "is_flushed"),
    by_turns(
        itertools.product(*[["hierarchy 1", "wheel 1000"]] * 2, WAYS),
        itertools.product([True, False], repeat=2),
        [
            ("hierarchy 1", "wheel 1000", "killed"),
            ("wheel 1000", "wheel 1000", "its timer log gone"),
        ],
    ),
)
def test_nothing_is_said_of_a_marker_whose_message_is_long_gone(
    tmp_path: Path,
    owner: str,
    later: str,
    end: str,
    *,
    is_past: bool,
    is_flushed: bool,
) -> None:
    """Its record is where retention has not come yet, and its message's is not."""
    delay_ms = DAY_MS * 9 // 10 if is_past else 2 * DAY_MS + DAY_MS // 2
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPENINGS[owner](folder, clock)
    taken = store.schedule(Message("orders", b"", unique_key="taken"), AfterMs(delay_ms))
    store.schedule(Message("orders", b"x" * 7_000), AfterMs(1_000))
    store.schedule(Message("orders", b"x" * 7_000), AfterMs(2_000))
    clock.tick(DAY_MS // 2)
    assert len(list(store.advance(clock.now_ms()))) == 2
    assert store.cancel(taken) is Cancellation.CANCELLED
    if is_flushed:
        store.flush()
    for step_ms in (DAY_MS * 6 // 10, 60_000):
        clock.tick(step_ms)
        assert list(store.advance(clock.now_ms())) == []
    assert min(map(int, os.listdir(folder / "commitlog"))) > 0
    for name in (owner, later, owner):
        WAYS[end](store, folder)
        store = OPENINGS[name](folder, clock)
        assert store.check() == [], name
        assert list(store.advance(clock.now_ms())) == []
        store.flush()
    store.close()


def require_left_alone(store: WheelStore) -> None:
    """A unit one bit away from its entry is given its place, unless it leads to before the log."""
    timers, begin = store._timers, store.live.log.min_offset
    before: list[object] = []
    within: list[object] = []
    for position in timers.in_slots(timers.wheel.used_slots()).position.tolist():
        for bit in range(24):
            unit = timers.log.unit_at(position)
            unit.table[LOG_OFFSET] ^= 1 << bit
            places = right_places(timers, unit, timers.facts(unit))
            (before if unit.commit_log_offset[0] < begin else within).append(places)
    assert before
    assert not any(before)
    assert any(within)


@pytest.mark.parametrize("is_reopened", [pytest.param(False, marks=pytest.mark.check), True])
def test_a_unit_whose_record_retention_took_is_given_no_other(
    tmp_path: Path, *, is_reopened: bool
) -> None:
    """Its message was stored again; records of one size lie where a bit would lead to."""
    clock = ManualClock(START_MS)
    store = open_wheel(tmp_path, clock, SETTINGS, precision_ms=1_000)
    came: Counter[str | None] = Counter()
    for day in range(5):
        for number in range(40):
            key = f"{day}.{number:02d}"
            store.schedule(Message("orders", b"", unique_key=key), AfterMs(2 * DAY_MS))
        for _ in range(3):
            clock.tick(DAY_MS // 3)
            came.update(each.message.unique_key for each in store.advance(clock.now_ms()))
        if is_reopened:
            store.close()
            store = open_wheel(tmp_path, clock, SETTINGS, precision_ms=1_000)
    assert isinstance(store, WheelStore)
    require_left_alone(store)
    clock.tick(3 * DAY_MS)
    came.update(each.message.unique_key for each in store.advance(clock.now_ms()))
    assert (len(came), set(came.values())) == (200, {1})
    assert min(map(int, os.listdir(tmp_path / "commitlog"))) > 0
    assert store.check() == []
    store.close()
