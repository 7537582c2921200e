# SPDX-License-Identifier: Apache-2.0
"""Runs one engine through a workload on a clock that is set by hand.

Nothing is waited for, and the same workload gives the same deliveries on every machine. Time jumps
from one event to the next: messages arrive, messages are due, a fault strikes. After a put the
engine is called within a second, as in a real run, so the next delivery does not pay for placing.
A real run also flushes every second. Here only the last flush before a kill matters, so it alone
is made.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np

from compare.report.results import FaultSeen, Opening
from compare.running.engine_watch import EngineWatch
from compare.running.faults import (
    CLOCK_BACK,
    CLOCK_FORWARD,
    DISK_FULL,
    KILL,
    KILL_INSIDE,
    REBOOT,
    RESTART,
    Fault,
    fill_disk,
    make_room,
    run_until_killed,
)
from compare.running.observation import RaceSettings
from compare.running.putting import Putter
from compare.running.work_files import forget_pages, read_from_disk_bytes
from compare.workloads.workload import MessageMaker, Workload
from message_store.base.clock import ManualClock, stopwatch_s
from message_store.base.errors import TargetError
from message_store.base.printable import duration
from message_store.interface.delay_store import DelayStore


def end_store(store: DelayStore, kind: str) -> None:
    """End it as this kind of fault does; all but a restart leave it without a last word, and
    without an answer.
    """
    if kind == RESTART:
        store.close()
        return
    with suppress(Exception):  # RocksDB complains of the write that a full disk refused before
        getattr(store, "abandon", store.close)()


def clear_the_way(where: Path, kind: str) -> None:
    """What is left of a store that was ended and that nobody holds: its mapped files go, and after
    a reboot all that the page cache has of them. Raises TargetError.
    """
    gc.collect()
    if kind == REBOOT:
        forget_pages(where)


@attrs.define(eq=False)
class Reopening:
    """The stopwatch of one opening, and what it cost so far. It is over with the first delivery."""

    opening: Opening
    _read_before: int = attrs.field(factory=read_from_disk_bytes)
    _spent_s: float = 0.0

    def timed(self, open_store: Callable[[], DelayStore]) -> tuple[DelayStore, int | None]:
        """Open it; the store, and what is due next."""
        started = stopwatch_s()
        store = open_store()
        due_ms = store.next_due_ms()
        open_s = stopwatch_s() - started
        self.opening = attrs.evolve(self.opening, open_s=open_s, read_bytes=self._newly_read())
        return store, due_ms

    def advanced(self, took_s: float, count: int) -> None:
        """A call of ``advance`` came back with so many deliveries."""
        self._spent_s += took_s
        if count and not self.opening.first_messages:
            self.opening = attrs.evolve(
                self.opening,
                first_messages=count,
                first_s=self._spent_s,
                first_read_bytes=self._newly_read(),
            )

    def _newly_read(self) -> int:
        read = read_from_disk_bytes()
        self._read_before, newly = read, read - self._read_before
        return newly


LOOK_EVERY_MS = 1_000
NEVER_MS = 1 << 62
_GRACE_MS = 60_000
_ANSWERS = {
    RESTART: "closed, and opened again",
    REBOOT: "opened again, with nothing in the page cache",
}


@attrs.define(eq=False)
class VirtualRun:
    """One engine and its clock. ``open_store`` opens it, again after each end; ``before_end`` gets
    the store that is about to be ended. What has no files is killed between calls only.

    ``skew_ms`` is how far the engine's clock has leapt away from the race's own.
    """

    workload: Workload
    settings: RaceSettings
    watch: EngineWatch
    open_store: Callable[[ManualClock], DelayStore]
    before_end: Callable[[DelayStore], object]
    clock: ManualClock = attrs.field(init=False)
    store: DelayStore = attrs.field(init=False)
    has_files: bool = True
    skew_ms: int = 0
    _dies_inside: list[Fault] = attrs.field(factory=list)
    _putter: Putter = attrs.field(init=False)
    _due_ms: int | None = None
    _waits_until_ms: int = 0
    _looked_ms: int = attrs.field(init=False)
    _was_put: bool = False
    _faults: list[Fault] = attrs.field(init=False)
    _full: list[Fault] = attrs.field(factory=list)
    _answered: list[tuple[Fault, str, Reopening | None]] = attrs.field(factory=list)
    _flushes_ms: list[int] = attrs.field(init=False)
    _is_stalled: bool = False
    _reopening: Reopening | None = None

    def __attrs_post_init__(self) -> None:
        self.clock = ManualClock(self.workload.start_ms)
        self.store = self.open_store(self.clock)
        self._putter = Putter(MessageMaker(self.workload), self.watch)
        self._faults = sorted(self.settings.faults, key=lambda fault: fault.at_ms)
        ends_ms = (each.at_ms for each in self._faults if each.kind in (KILL, REBOOT))
        flushes_ms = (at_ms - self.settings.flush_every_ms for at_ms in ends_ms)
        self._flushes_ms = [at_ms for at_ms in flushes_ms if at_ms >= 0]
        self._looked_ms = self.workload.start_ms
        self._due_ms = self.store.next_due_ms()
        if self._due_ms is not None:  # a store that is not new
            self._waits_until_ms = max(waiting.due_ms for waiting in self.store.pending())

    # --- the loop ---------------------------------------------------------------------------------

    def run(self) -> DelayStore:
        """Go through everything; the store at the end, still open."""
        self.watch.look(self.clock.now_ms(), always=True)
        self.watch.begin()
        while True:
            arrival_ms, due_ms, fault_ms, room_ms, flush_ms = (
                self._arrival(), self._due(), self._fault(), self._room_at_ms(), self._flush(),
            )  # fmt: skip
            if min(arrival_ms, due_ms, room_ms) == NEVER_MS:
                break
            event_ms = min(arrival_ms, due_ms, fault_ms, room_ms, flush_ms)
            if event_ms > self._horizon_ms():
                break
            if self._looks_around(event_ms):
                self._advance()
                continue
            self._go_to(event_ms)
            if event_ms == room_ms:
                self._room_again()
            elif event_ms == flush_ms:
                self._flush_before_an_end()
            elif event_ms == fault_ms:
                self._strike(self._faults.pop(0))
            elif event_ms == arrival_ms:
                self._put_arrived(event_ms)
            else:
                self._advance()
        self._look_once_more()
        self.watch.look(self.clock.now_ms(), always=True)
        return self.store

    def _looks_around(self, event_ms: int) -> bool:
        if not self._was_put or self._is_stalled:
            return False
        is_awake = self._race_ms >= self.settings.asleep_until_ms
        return is_awake and event_ms - self._looked_ms >= LOOK_EVERY_MS

    def _arrival(self) -> int:
        if self._is_stalled or self._putter.next >= len(self.workload):
            return NEVER_MS
        return max(int(self.workload.arrival_ms[self._putter.next]), self._race_ms)

    def _due(self) -> int:
        """When the engine should be looked at again, by the race's time and on its grid."""
        if self._due_ms is None or self._is_stalled:
            return NEVER_MS
        tick_ms = self.settings.tick_ms
        due_ms = max(self._due_ms - self.skew_ms, self.settings.asleep_until_ms)
        return max(-(-due_ms // tick_ms) * tick_ms, self._race_ms)

    def _fault(self) -> int:
        return self.workload.start_ms + self._faults[0].at_ms if self._faults else NEVER_MS

    def _flush(self) -> int:
        """When a running engine would have flushed for the last time before the next end."""
        return self.workload.start_ms + self._flushes_ms[0] if self._flushes_ms else NEVER_MS

    def _room_at_ms(self) -> int:
        """When the disk has room again, after the last of those that filled it."""
        ends_ms = [fault.at_ms + fault.length_ms for fault in self._full]
        return self.workload.start_ms + max(ends_ms) if ends_ms else NEVER_MS

    @property
    def _race_ms(self) -> int:
        return self.clock.now_ms() - self.skew_ms

    def _go_to(self, race_ms: int) -> None:
        self.clock.tick(max(0, race_ms - self._race_ms))

    def _horizon_ms(self) -> int:
        """By then everything has come, whatever an engine says is still to come."""
        last_ms = max(self.watch.last_promise_ms, self.workload.end_ms, self._waits_until_ms)
        last_ms = max(last_ms, self.settings.asleep_until_ms)
        return last_ms + abs(self.skew_ms) + self.settings.tick_ms + _GRACE_MS

    # --- what happens -----------------------------------------------------------------------------

    def _put_arrived(self, race_ms: int) -> None:
        last = int(np.searchsorted(self.workload.arrival_ms, race_ms, "right"))
        try:
            promised_ms = self._putter.put(self.store, last)
        except TargetError:
            self._is_stalled = True
            return
        self._was_put = True
        if promised_ms is not None:
            self._due_ms = promised_ms if self._due_ms is None else min(self._due_ms, promised_ms)
        self.watch.look(self.clock.now_ms())

    def _advance(self) -> None:
        if self._dies_inside:
            self._killed_inside(self._dies_inside.pop(0))
            return
        now_ms = self.clock.now_ms()
        started = stopwatch_s()
        try:
            count = len(self.store.advance(now_ms))
            took_s = stopwatch_s() - started
            self.watch.advanced(took_s, count, now_ms)
            if self._reopening is not None:
                self._reopening.advanced(took_s, count)
            due_ms = self.store.next_due_ms()
        except TargetError:
            self._is_stalled = True
            return
        self._looked_ms, self._was_put = self._race_ms, False
        # Whatever it says, time goes on.
        self._due_ms = None if due_ms is None else max(due_ms, now_ms + 1)
        self.watch.look(now_ms)

    def _look_once_more(self) -> None:
        """What an engine has forgotten to announce is late, and not missing."""
        if self._full:
            self._room_again()
        for fault in (*self._dies_inside, *self._faults):
            self._note_answer(fault, "came after everything was delivered")
        self._dies_inside = []
        self._go_to(self._horizon_ms())
        self._advance()
        self.watch.faults = [
            FaultSeen(
                fault.kind, fault.at_ms, answer, None if reopening is None else reopening.opening
            )
            for fault, answer, reopening in sorted(
                self._answered, key=lambda answered: answered[0].at_ms
            )
        ]

    def _flush_before_an_end(self) -> None:
        self._flushes_ms.pop(0)
        if not self._is_stalled and not self._full:
            self.store.flush()

    # --- what goes wrong --------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        if fault.kind == DISK_FULL:
            if not self._full:
                fill_disk()
            self._full.append(fault)
            return
        if fault.kind == KILL_INSIDE and self.has_files:
            self._dies_inside.append(fault)
            return
        if fault.kind in (CLOCK_BACK, CLOCK_FORWARD):
            is_forward = fault.kind == CLOCK_FORWARD
            by_ms = fault.length_ms if is_forward else -fault.length_ms
            where = "forward" if is_forward else "back"
            self.clock.tick(by_ms)
            self.skew_ms += by_ms
            self._note_answer(fault, f"its clock leapt {where} by {duration(fault.length_ms)}")
        else:
            self._open_again(fault.kind)
            self._note_answer(fault, _ANSWERS.get(fault.kind, "opened again"), self._reopening)

    def _note_answer(self, fault: Fault, answer: str, reopening: Reopening | None = None) -> None:
        self._answered.append((fault, answer, reopening))

    def _killed_inside(self, fault: Fault) -> None:
        """The delivery that is due goes on in a fork until that is killed."""
        store, now_ms = self.store, self.clock.now_ms()
        run_until_killed(lambda: store.advance(now_ms), fault.call)
        self.watch.was_killed(now_ms)
        self._open_again()
        answer = "killed in the middle of a delivery, and opened again"
        self._note_answer(fault, answer, self._reopening)

    def _room_again(self) -> None:
        over, self._full = self._full, []
        make_room()
        answer, reopening = "nothing was refused", None
        if self._is_stalled:
            # Nobody can know what is on the disk: such a store is opened again.
            self._is_stalled = False
            self._open_again()
            answer = "refused, and opened again when there was room"
            reopening = self._reopening
        for fault in over:
            self._note_answer(fault, answer, reopening)

    def _open_again(self, kind: str = KILL) -> None:
        """As after such an end; while the disk is full that may have to wait for room."""
        if self._full:
            make_room()
        self.watch.progress(f"opening it again after a {kind}", 0, 0)
        self.before_end(self.store)
        # What the disk refused may be anywhere: such a store has no last word.
        end_store(self.store, KILL if self._is_stalled else kind)
        del self.store
        clear_the_way(self.watch.where, kind)
        waiting = self.watch.taken - self.watch.delivered
        self._reopening = Reopening(Opening(waiting=waiting))
        self.store, self._due_ms = self._reopening.timed(lambda: self.open_store(self.clock))
        self._was_put, self._is_stalled = False, False
        if self._full:
            fill_disk()
