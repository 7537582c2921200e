# SPDX-License-Identifier: Apache-2.0
"""Runs one engine through a workload on the machine's own clock, where lateness is real.

The producer follows the schedule, not the engine. A message that could not be put in time, because
the engine was busy, is put as soon as possible. Its lateness still counts from the time asked for.
So an engine that stands still pays for every message that it kept waiting, and not for the current
one alone (coordinated omission).
"""

import gc
import threading
from collections.abc import Callable
from typing import Any, cast

import attrs
import numpy as np

from compare.running.engine_watch import EngineWatch
from compare.running.observation import RaceSettings
from compare.running.putting import Putter
from compare.workloads.workload import MessageMaker
from message_store.base.clock import SystemClock, stopwatch_s
from message_store.interface.delay_store import DelayStore, Deliveries
from message_store.interface.runner import run_store

LEAD_MS = 500
"""So long after everything is ready the workload begins."""
_PRODUCER_NAP_MS = 0.5
_MOST_AT_ONCE = 10_000
_LOOK_EVERY_S = 0.1
_GRACE_MS = 10_000


@attrs.define(eq=False)
class WallRun:
    """One engine, run by ``run_store``; a thread that puts, one that flushes, one that looks."""

    store: DelayStore
    settings: RaceSettings
    watch: EngineWatch
    _clock: SystemClock = attrs.field(factory=SystemClock)
    _over: threading.Event = attrs.field(factory=threading.Event)
    _all_put: threading.Event = attrs.field(factory=threading.Event)
    _errors: list[BaseException] = attrs.field(factory=list)

    def run(self) -> None:
        """Until everything that was taken has been delivered, or is long overdue. Raises what ended
        a thread of the run.
        """
        gc.collect()
        gc.freeze()
        self.watch.look(self.watch.workload.start_ms, always=True)
        self.watch.begin()
        works = (self._produce, self._flush, self._look)
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            timed = cast(DelayStore, _Timed(self.store, self.watch, self._clock))
            run_store(timed, self._clock, _note, stop=self._is_done)
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            gc.unfreeze()
        if self._errors:
            raise self._errors[0]
        self.watch.look(self._clock.now_ms(), always=True)

    def _is_done(self) -> bool:
        if self._over.is_set():
            return True
        if not self._all_put.is_set():
            return False
        if self.watch.delivered >= self.watch.taken:
            return True
        last_ms = max(self.watch.last_promise_ms, self.watch.workload.end_ms)
        return self._clock.now_ms() > last_ms + _GRACE_MS

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
            self._over.set()

    def _produce(self) -> None:
        workload = self.watch.workload
        putter = Putter(MessageMaker(workload), self.watch, self.settings.puts_one_by_one)
        total = len(workload)
        while putter.next < total and not self._over.is_set():
            owed = int(np.searchsorted(workload.arrival_ms, self._clock.now_ms(), "right"))
            if owed > putter.next:
                putter.put(self.store, min(owed, putter.next + _MOST_AT_ONCE))
            else:
                self._clock.sleep_ms(_PRODUCER_NAP_MS)
        self._all_put.set()

    def _flush(self) -> None:
        while not self._over.wait(self.settings.flush_every_ms / 1_000):
            self.store.flush()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self.watch.look(self._clock.now_ms())


def _note(_deliveries: Deliveries) -> None:
    """Everything is noted around ``advance``."""


class _Timed:
    """A store with a stopwatch around ``advance``."""

    def __init__(self, store: DelayStore, watch: EngineWatch, clock: SystemClock) -> None:
        self._store, self._watch, self._clock = store, watch, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def advance(self, now_ms: int) -> Deliveries:
        """Deliver, and note how long that took and when it could be seen."""
        started = stopwatch_s()
        deliveries = self._store.advance(now_ms)
        took_s = stopwatch_s() - started
        self._watch.advanced(took_s, len(deliveries), self._clock.now_ms())
        return deliveries
