# SPDX-License-Identifier: Apache-2.0
"""The process that is killed: opens a store and works on it without end, each step in a journal.

Run as a program it is a nursery: it loads an engine once, forks a child for every line that it is
given, says the child's process id, and waits for its end. Starting Python and loading kernels for
each of hundreds of kills would take minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import attrs
import numpy as np

from message_store import AtMs, Clock, DelayStore, ManualClock, Message, MessageBatch
from message_store.writing import pages_ahead
from tests.faults.engines import ENGINES, REFERENCES, Engine
from tests.faults.kill_journal import History, Journal, Life, Row, read_journal
from tests.faults.leeway import leeway_of
from tests.simulation.simulated_disk import full_disk
from timer_wheel.wheel import turn as foresight

START_MS = 1_793_000_000_000
_TWIN_BODY = "twin"
_LONGEST_LIFE_S = 60
_TOPICS = ("orders", "orders2", "payments")


@attrs.frozen
class Task:
    """One life: which engine, where, from which seed; ``faithful`` repeats after a kill as brokers
    do, and lets time pass slot by slot. One that ``dies_at`` a change of the disk, which may be
    ``torn``, does nothing but open the store.
    """

    engine: str
    folder: str
    seed: int
    faithful: bool = False
    dies_at: int | None = None
    torn: bool = False

    @property
    def store(self) -> Path:
        """The store's directory."""
        return Path(self.folder) / "store"

    @property
    def journal(self) -> Path:
        """What was done to it."""
        return Path(self.folder) / "journal"


class Worker:
    """One process's work on a store that earlier processes may have left."""

    def __init__(self, task: Task, engine: Engine) -> None:
        self.task, self.engine = task, engine
        self.history: History = read_journal(task.journal)
        self.journal = Journal(task.journal)
        self.random = random.Random(f"{task.seed} {self.history.generations}")
        self.clock = ManualClock(max(START_MS, self.history.now_ms))
        self._note("begin", now_ms=self.clock.now_ms())
        self.store = self._open()
        self._note("opened", log_end=self.store.live.log.end)  # type: ignore[attr-defined]

    def _open(self) -> DelayStore:
        clock: Clock = self.clock
        return self.engine.open(self.task.store, clock, self.task.faithful)

    def _note(self, step: str, **facts: object) -> None:
        self.journal.write(step, **facts)
        self.history.add({"step": step, **json.loads(json.dumps(facts))})

    def work(self, steps: int | None = None) -> None:
        """Steps in a random order: for as long as it lives, or so many."""
        actions = [self.schedule, self.batch, self.cancel, self.advance, self.flush, self.reopen]
        weights = [50, 10, 25, 25, 2, 1]
        while steps is None or steps > 0:
            [action] = self.random.choices(actions, weights)
            action()
            steps = None if steps is None else steps - 1

    def _row(self) -> Row:
        now_ms, rng = self.clock.now_ms(), self.random
        delay_ms = rng.choice(
            [
                rng.randint(0, 5_000),
                rng.randint(0, 20_000),
                rng.randint(0, 600_000),
                1_000 * rng.randint(1, 30),
                -rng.randint(0, 5_000),
            ]
        )
        if rng.random() < 0.1:
            return Row("TWIN", "twins", 0, _TWIN_BODY, now_ms + delay_ms)
        name = f"KEY{len(self.history.lives):08X}"
        body = name + "x" * rng.choice([0, 50, 400, 3_000])
        return Row(name, rng.choice(_TOPICS), rng.randint(0, 2), body, now_ms + delay_ms)

    def schedule(self) -> None:
        """One message, or a few."""
        for _ in range(self.random.choice([1, 1, 5])):
            row = self._row()
            self._note("schedule", now_ms=self.clock.now_ms(), rows=[attrs.astuple(row)])
            receipt = self.store.schedule(message(row), AtMs(row.due_ms))
            answer = receipt.promised_ms, receipt.handle, receipt.commit_log_offset
            self._note("scheduled", receipts=[answer])

    def batch(self) -> None:
        """Many messages at once."""
        rows: list[Row] = []
        for number in range(self.random.choice([2, 10, 100])):
            row = self._row()
            name = f"KEY{len(self.history.lives) + number:08X}"
            rows.append(row if row.name == "TWIN" else attrs.evolve(row, name=name))
        self._note("schedule", now_ms=self.clock.now_ms(), rows=[attrs.astuple(r) for r in rows])
        due_ms = np.array([row.due_ms for row in rows], np.int64)
        receipts = self.store.schedule_batch(MessageBatch.of(map(message, rows)), due_ms)
        columns = receipts.promised_ms.tolist(), receipts.commit_log_offsets.tolist()
        handles = (receipts.receipt(number).handle for number in range(len(rows)))
        answers = [[ms, handle, at] for ms, at, handle in zip(*columns, handles, strict=True)]
        self._note("scheduled", receipts=answers)

    def cancel(self) -> None:
        """Take one back, by its handle; twins have no handle of their own."""
        lives = self.history.lives
        recent = range(max(0, len(lives) - 200), len(lives))
        candidates = [number for number in recent if can_be_asked_for(lives[number])]
        if candidates and leeway_of(self.engine.name).cancels:
            number = self.random.choice(candidates)
            receipt = lives[number].receipt
            assert receipt is not None
            self._note("cancel", number=number)
            self._note("cancelled", answer=self.store.cancel(receipt[1]).value)

    def advance(self) -> None:
        """Let time pass and deliver."""
        steps_ms = (0, 0, 1_000, 1_000) if self.task.faithful else (0, 500, 1_000, 3_000, 20_000)
        self.clock.tick(self.random.choice(steps_ms))
        self._note("advance", now_ms=self.clock.now_ms())
        self._note("advanced", count=len(self.store.advance(self.clock.now_ms())))

    def flush(self) -> None:
        """As a timer would."""
        self.store.flush()

    def reopen(self) -> None:
        """An orderly end and a new beginning."""
        self.store.close()
        self.store = self._open()


def can_be_asked_for(life: Life) -> bool:
    """Whether it was promised, and its handle names nothing else."""
    return life.receipt is not None and life.row.name != "TWIN"


def message(row: Row) -> Message:
    """What is handed to the store."""
    return Message(row.topic, row.body.encode(), queue_id=row.queue_id, unique_key=row.name)


def run_child(task: Task, engine: Engine) -> None:
    """Work until killed; an error is left in the journal, for there is nobody to tell."""
    signal.alarm(_LONGEST_LIFE_S)
    try:
        if task.dies_at is not None:
            open_until_killed(task, engine)
        Worker(task, engine).work()
    except BaseException:
        journal = Journal(task.journal)
        journal.write("error", text=traceback.format_exc())
    os._exit(1)


def open_until_killed(task: Task, engine: Engine) -> None:
    """Open the store as if a kill came at one change of the disk, or right after all of them."""
    assert task.dies_at is not None
    clock = ManualClock(max(START_MS, read_journal(task.journal).now_ms))
    with full_disk(task.store, task.dies_at, is_torn=task.torn, is_fatal=True):
        engine.open(task.store, clock, task.faithful)
    os._exit(0)


def warm_up(engine: Engine) -> None:
    """Load what is loaded once: kernels, tables."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Task(engine.name, folder, 0), engine)
        worker.work(steps=60)
        worker.store.close()


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> None:
    """Fork a child for each task on the standard input, and wait for its end when told to."""
    foresight.WORTH_IT_UNITS = pages_ahead.AHEAD_FROM_BYTES = 1
    engine = (ENGINES | REFERENCES)[sys.argv[1]]
    warm_up(engine)
    _say("ready")
    for line in iter(sys.stdin.readline, ""):
        task = Task(**json.loads(line))
        child = os.fork()
        if not child:
            run_child(task, engine)
        _say(child)
        sys.stdin.readline()  # only now may its process id be given to another
        _, status = os.waitpid(child, 0)
        _say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
