# SPDX-License-Identifier: Apache-2.0
"""A killed wheel loses a file, or a piece of one. Whoever looks at it then lists what an opening
finds, refuses, or says what is missing; and nothing twice. An opening delivers nothing again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import DelayStoreError
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import BODY_RUN, HEAD_V4_V4
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from tests.faults.damage import copy_store, flip
from tests.faults.engines import OPEN, abandon
from tests.faults.test_whole_files_lost import destroy
from timer_wheel.format.checkpoint import read_last_flush
from timer_wheel.format.timer_log import TIMER_UNIT

START_MS = 1_793_000_000_000
FILES = ("commitlog/*", "timerlog/*", "consumequeue/rmq*/*/*", "timerwheel", "config/*")
WHEELS = ("wheel", "hierarchy")
DONE = [f"DONE{number}" for number in range(5)]


class Killed:
    """A wheel that delivered five messages and was killed while 110 waited. It was flushed before
    the last 90 of them, before the last 40, or never.
    """

    def __init__(self, engine: str, path: Path, *, flushed: str = "never") -> None:
        self.path, self.clock, self.engine = path, ManualClock(START_MS), engine
        self.store = OPEN[engine](path, self.clock)
        self.put("DONE", 5, 3_000)
        self.put("EARLY", 20, 50_000)
        self.advance(1_000)
        assert self.advance(6_000) == Counter(DONE)
        if flushed == "early":
            self.store.flush()
        self.put("PLACED", 50, 45_000)
        self.advance(1_000)
        if flushed == "late":
            self.store.flush()

    def put(self, letter: str, count: int, delay_ms: int, body: bytes = b"x" * 100) -> int:
        """Schedule so many; returns where in the log the last one is."""
        for number in range(count):
            message = Message("orders", body, unique_key=f"{letter}{number}")
            place = self.store.schedule(message, AfterMs(delay_ms)).commit_log_offset
        return int(place)

    def advance(self, by_ms: int) -> Counter[str]:
        self.clock.tick(by_ms)
        return Counter(str(e.message.unique_key) for e in self.store.advance(self.clock.now_ms()))

    def kill(self) -> None:
        self.put("LATER", 40, 40_000)
        self.advance(1_000)
        abandon(self.store)

    def waiting(self) -> Counter[str]:
        """All that waits."""
        counts = {"EARLY": 20, "PLACED": 50, "LATER": 40}
        return Counter([f"{letter}{n}" for letter, count in counts.items() for n in range(count)])

    def listed(self, path: Path) -> tuple[Counter[str], bool]:
        """What is listed, and whether anybody is told that it is not all."""
        found: Counter[str] = Counter()
        told: list[str] = []
        try:
            for each in pending_messages(path, now_ms=self.clock.now_ms(), warn=told.append):
                if isinstance(each, BadRecord):
                    told.append(each.reason)
                else:
                    found[str(each.unique_key)] += 1
            told += inspect_store(path, now_ms=self.clock.now_ms()).problems
        except DelayStoreError as error:
            told.append(str(error))
        usual = ("without closing the store", "delivered and not written down")
        return found, any(not any(part in each for part in usual) for each in told)

    def opened(self, path: Path) -> tuple[Counter[str], Counter[str], bool] | None:
        """What waits when a copy was opened, what is delivered then and at once, and whether the
        opening says that it found something.
        """
        clock = ManualClock(self.clock.now_ms())
        try:
            store: Any = OPEN[self.engine](path, clock)
        except DelayStoreError:
            return None
        waiting = Counter([str(each.unique_key) for each in store.pending()])
        is_told = bool(store.check())
        clock.tick(1_000)
        came = Counter([str(each.message.unique_key) for each in store.advance(clock.now_ms())])
        abandon(store)
        return waiting, came, is_told


def wrong_with(killed: Killed, path: Path) -> str | None:
    listed, is_told = killed.listed(path)
    if max(listed.values(), default=1) > 1:
        return f"listed twice: {listed}"
    opened = killed.opened(path)
    if opened is None:
        is_told |= listed == killed.waiting()
        return None if is_told else f"refused by an opening, and listed in silence: {len(listed)}"
    waiting, came, is_told_opened = opened
    lost = killed.waiting() - waiting - came
    if lost and not is_told_opened:
        return f"lost by the opening in silence: {sorted(lost)[:5]} of {len(lost)}"
    if again := came & Counter(DONE):
        return f"delivered again: {again}"
    if missing := waiting - listed:
        return None if is_told else f"not listed: {sorted(missing)[:5]} of {len(missing)}"
    if more := listed & Counter(DONE):
        return f"listed and delivered: {more}"
    return None


@pytest.mark.check
@pytest.mark.parametrize("engine", WHEELS)
@pytest.mark.parametrize("flushed", ["never", "early", "late"])
@pytest.mark.parametrize("kind", ["gone", "zero"])
def test_a_killed_wheel_that_lost_a_file_is_listed_as_it_is_opened(
    engine: str, flushed: str, kind: str, tmp_path: Path
) -> None:
    killed = Killed(engine, tmp_path / "store", flushed=flushed)
    killed.kill()
    assert wrong_with(killed, copied(killed, tmp_path / "whole")) is None
    wrong = []
    for number, file in enumerate(
        path for part in FILES for path in sorted(killed.path.glob(part)) if path.is_file()
    ):
        copy = copied(killed, tmp_path / str(number))
        destroy(copy / file.relative_to(killed.path), kind)
        if problem := wrong_with(killed, copy):
            wrong.append(f"{file.relative_to(killed.path)}: {problem}")
    assert not wrong, "\n".join(wrong)


def copied(killed: Killed, copy: Path) -> Path:
    copy_store(killed.path, copy)
    return copy


def test_a_killed_wheel_whose_timer_log_is_zeros_behind_a_lost_file_is_listed(
    tmp_path: Path,
) -> None:
    killed = Killed("wheel", tmp_path / "store", flushed="late")
    killed.kill()
    first, *others = sorted((killed.path / "timerlog").iterdir())
    first.unlink()
    for file in others:
        destroy(file, "zero")
    assert wrong_with(killed, killed.path) is None
    assert killed.listed(killed.path)[0] == killed.waiting()


def test_a_damaged_last_unit_of_a_flush_hides_nothing_that_came_later(tmp_path: Path) -> None:
    killed = Killed("wheel", tmp_path / "store", flushed="late")
    end = read_last_flush(StoreRoot(killed.path)).position
    killed.kill()
    files = sorted((killed.path / "timerlog").iterdir())
    [file] = [each for each in files if int(each.name) <= end - 52 < int(each.name) + 2096]
    offset_at = TIMER_UNIT.offset_of("commit_log_offset")
    harms = [(begin, bytes(52 - begin)) for begin in (4, 16, 30, offset_at + 2)]
    for number, (begin, harm) in enumerate([*harms, (offset_at + 2, b"\1")]):
        copy = copied(killed, tmp_path / f"{number}")
        with (copy / "timerlog" / file.name).open("r+b") as log:
            log.seek(end - 52 - int(file.name) + begin)
            log.write(harm)
        assert wrong_with(killed, copy) is None, begin


@pytest.mark.parametrize("engine", WHEELS)
def test_a_synced_record_that_is_damaged_is_listed_as_one(engine: str, tmp_path: Path) -> None:
    killed = Killed(engine, tmp_path / "store")
    place = killed.put("BAD", 1, 40_000, b"b" * 300)
    killed.store.flush()
    killed.kill()
    for begin, end in ((95, 260), (4, 64)):
        copy = copied(killed, tmp_path / f"{begin}")
        file = max(each for each in (copy / "commitlog").iterdir() if int(each.name) <= place)
        with file.open("r+b") as log:
            log.seek(place - int(file.name) + begin)
            log.write(bytes(end - begin))
        _, is_told = killed.listed(copy)
        assert is_told, begin


@pytest.mark.parametrize("units_are_lost", [False, True])
def test_a_message_that_rolled_behind_a_hole_is_listed_once(
    units_are_lost: bool, tmp_path: Path
) -> None:
    """Recovery ends the log at the hole: it waits where it was before."""
    clock = ManualClock(START_MS)
    store = OPEN["wheel"](tmp_path / "store", clock, roll_window_slots=60)
    store.flush()
    store.schedule(Message("orders", b"x", unique_key="K"), AfterMs(3_600_000))
    clock.tick(2_000)
    store.advance(clock.now_ms())
    if units_are_lost:
        store.flush()
    hole = store.schedule(Message("orders", b"x" * 2_500, unique_key="F"), AfterMs(3_600_000))
    for _ in range(14):
        clock.tick(5_000)
        store.advance(clock.now_ms())
    store.schedule(Message("orders", b"x", unique_key="LAST"), AfterMs(3_600_000))
    abandon(store)
    with (tmp_path / "store/commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(hole.commit_log_offset)
        log.write(bytes(2_500))
    if units_are_lost:
        shutil.rmtree(tmp_path / "store/timerlog")
    listed = pending_messages(tmp_path / "store", now_ms=clock.now_ms())
    places = [(each.unique_key, each.commit_log_offset) for each in listed]  # type: ignore[union-attr]
    assert ("K", 0) in places
    assert [key for key, _ in places].count("K") == 1


def test_slots_of_a_killed_wheel_are_as_wide_as_its_checkpoint_says(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = OPEN["wheel"](tmp_path, clock, precision_ms=100, roll_window_slots=600)
    for delay_ms in (5_050, 5_250, 5_850, 30_010):
        store.schedule(Message("orders", b"x"), AfterMs(delay_ms))
    clock.tick(2_000)
    store.advance(clock.now_ms())
    abandon(store)
    due_ms = [each.due_ms for each in pending_messages(tmp_path, now_ms=clock.now_ms())]  # type: ignore[union-attr]
    assert due_ms == [START_MS + after_ms for after_ms in (5_100, 5_300, 5_900, 30_100)]


def body(path: Path, at: int) -> None:
    flip(path, at + HEAD_V4_V4.size + BODY_RUN.length.size, 0)


def head(path: Path, at: int) -> None:
    flip(path, at + HEAD_V4_V4.offset_of("magic"), 0)


def hole(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(200))


@pytest.mark.parametrize("engine", WHEELS)
@pytest.mark.parametrize("harm", [body, head, hole], ids=["body", "head", "hole"])
def test_damage_in_what_was_synced_hides_no_later_delivery(
    engine: str, harm: Callable[[Path, int], None], tmp_path: Path
) -> None:
    """An opening steps over it, and so do listings: three messages were delivered behind it."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN[engine](path, clock)
    places = []
    for number in range(10):
        message = Message("orders", b"body%d" % number * 9, unique_key=f"K{number}")
        due = AfterMs(2_000 + 1_000 * number)
        places.append(store.schedule(message, due).commit_log_offset)
    for number in range(8):
        clock.tick(1_000 if number else 3_000)
        store.advance(clock.now_ms())
        if number == 5:
            store.flush()
    abandon(store)
    harm(next((path / "commitlog").iterdir()), places[2])
    copy_store(path, tmp_path / "copy")
    listed = [
        f"bad at {each.commit_log_offset}" if isinstance(each, BadRecord) else each.unique_key
        for each in pending_messages(path, now_ms=clock.now_ms())
    ]
    with OPEN[engine](tmp_path / "copy", clock) as opened:
        assert listed == [each.unique_key for each in opened.pending()] == ["K9"]


@pytest.mark.parametrize("engine", [*WHEELS, "levels", "time-index"])
@pytest.mark.parametrize("is_note_gone", [False, True])
def test_a_broker_s_queue_that_begins_late_is_no_lost_one(
    engine: str, is_note_gone: bool, tmp_path: Path
) -> None:
    """Its store was opened once, and killed. Without notes nobody knows where a queue began."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    with OPEN[engine](path, clock) as store:
        for _ in range(60):
            store.schedule(Message("orders", b"x"), AfterMs(1_000))
        clock.tick(5_000)
        store.advance(clock.now_ms())
    shutil.rmtree(path / "delaywheel", ignore_errors=engine == "wheel")
    min((path / "consumequeue/orders/0").iterdir()).unlink()
    for _ in range(3):
        store = OPEN[engine](path, clock)
        assert store.topic("orders").ranges()[0] == (50, 60)
        abandon(store)
        if is_note_gone:
            (path / "delaywheel/queue-ends.json").unlink()


@pytest.mark.parametrize("engine", [*WHEELS, "levels", "time-index"])
def test_a_queue_without_its_last_file_is_whole_again_though_the_log_went_on_without_it(
    engine: str, tmp_path: Path
) -> None:
    """Nothing in the newest part of the log is of that queue, and no note has its end."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN[engine](path, clock)

    def put(topic: str, numbers: range, delay_ms: int, body: bytes = b"x") -> None:
        for number in numbers:
            message = Message(topic, body, unique_key=f"{topic}{number}")
            store.schedule(message, AfterMs(delay_ms))
        clock.tick(120_000)
        store.advance(clock.now_ms())
        store.flush()

    for numbers in range(10), range(10, 70):  # all queues are there, and noted, before they grow
        put("orders", numbers, 1_000)
        put("waiting", numbers, 7_200_000)
        put("others", numbers, 1_000, b"x" * 3_000)
    abandon(store)
    for copy in _without_last_files(path, tmp_path):
        waits = Counter(f"waiting{number}" for number in range(70))
        listed = pending_messages(copy, now_ms=clock.now_ms())
        assert Counter(each.unique_key for each in listed if not isinstance(each, BadRecord)) == (
            waits
        ), copy.name
        with OPEN[engine](copy, clock) as opened:
            assert Counter(each.unique_key for each in opened.pending()) == waits, copy.name
            assert opened.topic("orders").ranges()[0] == (0, 70), copy.name


def _without_last_files(path: Path, folder: Path) -> Iterator[Path]:
    """Copies of a store, each without the last file of one queue that has several."""
    for queue in sorted((path / "consumequeue").glob("*/*")):
        files = sorted(queue.iterdir())
        if len(files) > 1:
            copy = folder / f"{queue.parent.name}-{queue.name}"
            copy_store(path, copy)
            (copy / files[-1].relative_to(path)).unlink()
            yield copy
