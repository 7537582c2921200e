# SPDX-License-Identifier: Apache-2.0
"""Kills processes at random moments, one generation after the other on the same store."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs

from message_store import Cancellation, ManualClock, Severity
from tests.faults.broker_view import look_as_a_broker
from tests.faults.engines import ENGINES, REFERENCES
from tests.faults.kill_account import early, faults
from tests.faults.kill_journal import Journal, read_journal
from tests.faults.kill_worker import Task, can_be_asked_for
from tests.faults.store_reading import delivered, disagreements
from tests.simulation.simulated_disk import KILLED

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_LIFE_S = 0.4
LONGER_LIVES_S = (1, 3, 10, 30)
_STEPS_TO_THE_END_MS = (0, 1_000, 20_000, 600_000, 86_400_000)


@attrs.frozen
class Nursery:
    """A process that forks children which work until they are killed."""

    asks: IO[str]
    answers: IO[str]

    def kill_one(self, task: Task, life_s: float) -> None:
        """Let a child live for so long."""
        self.asks.write(json.dumps(attrs.asdict(task)) + "\n")
        self.asks.flush()
        child = int(self.answers.readline())
        time.sleep(life_s)
        os.kill(child, signal.SIGKILL)
        self._end()

    def let_die(self, task: Task) -> bool:
        """Let a child open a store until it dies of it; whether it did."""
        self.asks.write(json.dumps(attrs.asdict(task)) + "\n")
        self.asks.flush()
        self.answers.readline()
        return self._end() == KILLED

    def _end(self) -> int:
        self.asks.write("\n")
        self.asks.flush()
        return int(self.answers.readline())


@contextmanager
def nursery(engine: str) -> Iterator[Nursery]:
    """A nursery for stores of one engine."""
    command = [sys.executable, "-m", "tests.faults.kill_worker", engine]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Nursery(process.stdin, process.stdout)
        process.stdin.close()


def kill_generations(home: Nursery, task: Task, generations: int) -> list[str]:
    """Kill so many processes on one store; what was early by then.

    Where none of them lived to deliver anything, as on a slow machine, more follow.
    """
    rng = random.Random(task.seed)
    lives_s = [rng.uniform(0, LONGEST_LIFE_S) for _ in range(generations)]
    wrong = []
    for life_s in [*lives_s, *LONGER_LIVES_S]:
        if life_s > LONGEST_LIFE_S and read_journal(task.journal).delivered:
            break
        home.kill_one(task, life_s)
        wrong += early(read_journal(task.journal), delivered(task.store))
    return wrong


def lost_to_a_broker(task: Task) -> list[str]:
    """What a broker that takes over what a kill left of a wheel would never deliver, and where its
    chains lead astray, by the reader that follows its rules. What it would repeat is not told.
    """
    history = read_journal(task.journal)
    view = look_as_a_broker(task.store, history.now_ms)
    comes = Counter(found.name for found in delivered(task.store))
    comes.update(view.keys)
    lives = [each for each in history.lives if each.receipt and not each.was_asked_back]
    promised = Counter(life.row.name for life in lives)
    wrong = [
        f"lost to a broker: {name}, {count} of them" for name, count in (promised - comes).items()
    ]
    return wrong + view.wrong


def settle(task: Task) -> list[str]:
    """Open what the last kill left, deliver everything, and account for it."""
    engine = (ENGINES | REFERENCES)[task.engine]
    history = read_journal(task.journal)
    clock = ManualClock(history.now_ms)
    journal = Journal(task.journal)
    store = engine.open(task.store, clock, task.faithful)
    wrong = [f"found: {each}" for each in store.check() if each.severity is not Severity.INFO]
    for step_ms in _STEPS_TO_THE_END_MS:
        clock.tick(step_ms)
        journal.write("advance", now_ms=clock.now_ms())
        store.advance(clock.now_ms())
    wrong += [f"still waits: {each}" for each in store.pending()]
    for life in history.lives:
        if life.answer == "cancelled" and can_be_asked_for(life):
            assert life.receipt is not None
            if store.cancel(life.receipt[1]) is Cancellation.ALREADY_DELIVERED:
                wrong.append(f"taken back, and now said to be delivered: {life}")
    wrong += [f"found: {each}" for each in store.check() if each.severity is not Severity.INFO]
    store.close()
    journal.close()
    history = read_journal(task.journal)
    found = list(delivered(task.store))
    wrong += faults(history, found, may_repeat=task.faithful) + early(history, found)
    return wrong + disagreements(task.store)
