# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own: fresh memory, and processor time that is its alone.

``run_engine`` is what such a process does; ``run_in_process`` starts one and waits for it.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np

from compare.report.delivered_topics import read_delivered, read_delivered_of
from compare.running.engine_watch import EngineWatch, Progress
from compare.running.engines import ENGINES, Engine
from compare.running.faults import KILL, Fault, end_with
from compare.running.observation import Delivered, Observation, RaceSettings
from compare.running.putting import Putter
from compare.running.virtual_run import VirtualRun
from compare.running.work_files import read_workload, remove
from compare.workloads.made_up import Recipe, make_workload
from compare.workloads.workload import MessageMaker, Workload
from message_store.base.clock import SystemClock, stopwatch_s
from message_store.base.errors import DelayStoreError, SourceError, TargetError
from message_store.interface.delay_store import DelayStore, Deliveries
from message_store.interface.runner import run_store

LEAD_MS = 500
"""So long after everything is ready the first message arrives, or the workload begins."""
_PRODUCER_NAP_MS = 0.5
_MOST_AT_ONCE = 10_000
_LOOK_EVERY_S = 0.1
_GRACE_MS = 10_000


@attrs.define(eq=False)
class WallRun:
    """One engine on the machine's clock: a thread that runs it, one that puts, one that flushes.

    What arrives before the workload's start is put in batches, and then time begins to count.

    The producer follows the schedule, not the engine: lateness counts from the time asked for, also
    where a busy engine let it wait. So an engine that stands still pays for every message that it
    kept waiting (coordinated omission).
    """

    store: DelayStore
    settings: RaceSettings
    watch: EngineWatch
    _clock: SystemClock = attrs.field(factory=SystemClock)
    _over: threading.Event = attrs.field(factory=threading.Event)
    _all_put: threading.Event = attrs.field(factory=threading.Event)
    _errors: list[BaseException] = attrs.field(factory=list)

    def run(self) -> None:
        """Until all that was taken is delivered, or long overdue. Raises what ended a thread."""
        gc.collect()
        gc.freeze()
        self.watch.look(self.watch.workload.start_ms, always=True)
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
        if self.settings.leaves_pending or self.watch.delivered >= self.watch.taken:
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
        putter = Putter(MessageMaker(workload), self.watch)
        putter.put(self.store, int(np.searchsorted(workload.arrival_ms, workload.start_ms)))
        self._over.wait(max(0, workload.start_ms - self._clock.now_ms()) / 1_000)
        self.watch.begin()
        total, one_by_one = len(workload), self.settings.puts_one_by_one
        while putter.next < total and not self._over.is_set():
            owed = int(np.searchsorted(workload.arrival_ms, self._clock.now_ms(), "right"))
            if owed > putter.next:
                last = min(owed, putter.next + _MOST_AT_ONCE)
                putter.put(self.store, last, one_by_one=one_by_one)
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


_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); "
    "from compare.running.engine_process import main; main(sys.argv[1])"
)
_PATIENCE_S = 10
_WARM_MESSAGES = 103
_WARM_RATE = 20_000.0
"""Twenty each millisecond as batches, and three that are put one by one."""
_WARM_DELAYS_MS = 300, 5_000
_WARM_KILL = Fault(KILL, 1_500)
"""By then some were delivered after the last flush, and some wait, on levels as on wheels."""


class EngineFailedError(DelayStoreError):
    """An engine's process ended before the race did."""


def run_engine(
    engine: Engine, workload: Workload, settings: RaceSettings, store: Path, progress: Progress
) -> Observation:
    """Run it here, and read what was delivered."""
    if settings.clock == "wall":
        return _on_the_wall_clock(engine, workload, settings, store, progress)
    watch = EngineWatch(workload, store, progress)
    kept: list[Delivered] = []

    def keep(open_store: DelayStore) -> None:
        if not engine.has_files:
            kept.append(read_delivered_of(open_store, workload.topics))

    run = VirtualRun(
        workload,
        settings,
        watch,
        lambda clock: engine.open_store(store, clock, settings),
        keep,
        has_files=engine.has_files,
    )
    last = run.run()
    watch.finish()
    return _closed(engine, last, watch, kept)


def _on_the_wall_clock(
    engine: Engine, workload: Workload, settings: RaceSettings, store: Path, progress: Progress
) -> Observation:
    clock = SystemClock()
    with closing(engine.open_store(store, clock, settings)) as opened:
        before_ms = workload.start_ms - int(workload.arrival_ms.min(initial=workload.start_ms))
        workload = workload.starting_at(clock.now_ms() + LEAD_MS + before_ms)
        watch = EngineWatch(workload, store, progress)
        WallRun(opened, settings, watch).run()
        watch.finish()
        return _closed(engine, opened, watch, [])


def _closed(
    engine: Engine, store: DelayStore, watch: EngineWatch, kept: list[Delivered]
) -> Observation:
    """What was seen, once the store is closed and its files are whole."""
    topics = watch.workload.topics
    if not engine.has_files:
        kept.append(read_delivered_of(store, topics))
    store.close()
    seen = watch.observation()
    watch.progress("reading what was delivered", 0, 0)
    delivered = read_delivered(watch.where, topics) if engine.has_files else Delivered.of(kept)
    return attrs.evolve(seen, delivered=delivered)


def _warm_place(store: Path) -> Path:
    return store.with_name(f"{store.name}-warm")


def warm_up(engine: Engine, settings: RaceSettings, store: Path) -> None:
    """Let compiled kernels be loaded, or compiled, before time counts: a small race of its own;
    where engines are opened again, with a kill in its middle.
    """
    scratch = _warm_place(store)
    least_ms, longest_ms = _WARM_DELAYS_MS
    recipe = Recipe(
        messages=_WARM_MESSAGES,
        rate_per_second=_WARM_RATE,
        delay_min_ms=least_ms,
        delay_max_ms=longest_ms,
    )
    small = make_workload("uniform", recipe)
    faults = (_WARM_KILL,) if settings.faults else ()
    quiet = RaceSettings(precision_ms=settings.precision_ms, faults=faults)
    run_engine(engine, small, quiet, scratch, lambda _stage, _done, _total: None)
    remove(scratch)


# --- the process ----------------------------------------------------------------------------------


def run_in_process(
    name: str, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
) -> Observation:
    """Run an engine in a fresh process. Raises what the engine raised: TargetError, SourceError,
    EngineFailedError for anything else.
    """
    order = pickle.dumps((name, workload_file, settings, store, os.getpid()))
    # -P: else a module of the working directory is imported in the place of one that is installed.
    command = [sys.executable, "-P", "-c", _PROGRAM, order.hex()]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None  # asked for above
    word: Any = None
    try:
        with child.stdout, suppress(EOFError, pickle.UnpicklingError):  # it ended, or was ended
            while isinstance(word := pickle.load(child.stdout), tuple):
                stage, done, total = word
                progress(f"{name}: {stage}", done, total)
        code = child.wait()
    except BaseException:
        _end(child)
        raise
    finally:
        remove(_warm_place(store))  # where it was ended on its way
    if type(word) in (TargetError, SourceError):
        raise type(word)(f"{name}: {word}")
    if isinstance(word, DelayStoreError):
        raise EngineFailedError(str(word))
    if not isinstance(word, Observation):
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise EngineFailedError(f"its process ended {how}")
    return word


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(order: str) -> None:
    """What the fresh process does. It says on stdout how far it is, and last what it saw, or the
    error that ended it: one pickled value behind another.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it tells it when to end
    name, workload_file, settings, store, parent = pickle.loads(bytes.fromhex(order))
    end_with(parent)

    def say(word: object) -> None:
        pickle.dump(word, sys.stdout.buffer)
        sys.stdout.flush()

    def progress(stage: str, done: int, total: int) -> None:
        say((stage, done, total))

    try:
        progress("getting ready", 0, 0)
        workload, engine = read_workload(workload_file), ENGINES[name]
        warm_up(engine, settings, store)
        say(run_engine(engine, workload, settings, store, progress))
    except DelayStoreError as error:
        say(error)
