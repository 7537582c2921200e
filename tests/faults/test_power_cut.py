# SPDX-License-Identifier: Apache-2.0
"""When the power goes, what was flushed is there: on a disk that keeps what somebody waited for and
any part of the rest.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store import ManualClock, Severity
from tests.faults.engines import ENGINES, Engine, abandon
from tests.faults.kill_account import early, faults
from tests.faults.kill_journal import History, Life
from tests.faults.kill_worker import START_MS, Task, Worker, warm_up
from tests.faults.store_reading import delivered, disagreements
from tests.simulation.simulated_disk import (
    Cut,
    Event,
    Note,
    SimulatedDisk,
    Write,
    any_choice,
    every_choice,
    make_disk,
    recording,
)

_STEPS_TO_THE_END_MS = (0, 1_000, 20_000, 600_000, 86_400_000)


class RecordedWorker(Worker):
    """Notes every step among the changes of the disk, and every flush that came back."""

    def __init__(self, task: Task, engine: Engine, recorder: SimulatedDisk) -> None:
        self.recorder = recorder
        super().__init__(task, engine)

    def _note(self, step: str, **facts: Any) -> None:
        super()._note(step, **facts)
        self.recorder.note(step=step, **facts)

    def flush(self) -> None:
        super().flush()
        self.recorder.note(step="flushed")

    def reopen(self) -> None:
        super().reopen()
        self.recorder.note(step="flushed")


def record(engine: Engine, folder: Path, seed: int, steps: Sequence[int]) -> list[Event]:
    """The changes that so many steps make, a flush after each row of them but the last."""
    folder.mkdir()
    task = Task(engine.name, str(folder), seed)
    with recording(task.store) as recorder:
        worker = RecordedWorker(task, engine, recorder)
        for number, count in enumerate(steps):
            worker.work(count)
            if number < len(steps) - 1:
                worker.flush()
        abandon(worker.store)
    worker.journal.close()
    shutil.rmtree(folder)
    return recorder.events


def told(events: Sequence[Event], moment: int) -> tuple[History, History]:
    """What was answered before this moment; and that part of it that was flushed."""
    notes = [event.facts for event in events[:moment] if isinstance(event, Note)]
    flushes = [index for index, facts in enumerate(notes) if facts["step"] == "flushed"]
    everything, flushed = History(), History()
    for history, until in ((everything, len(notes)), (flushed, max(flushes, default=0))):
        for facts in notes[:until]:
            if facts["step"] != "flushed":
                history.add(dict(facts))
    return everything, flushed


def owed(everything: History, flushed: History) -> History:
    """What must hold after the power came back: of the flushed everything, of the rest nothing but
    that it comes once at most, never early, and that what was asked back later may still come.
    """
    lives = []
    for number, life in enumerate(everything.lives):
        kept = flushed.lives[number] if number < len(flushed.lives) else Life(life.row, 0, 0)
        answer = life.answer if kept.answer or life.answer == "already delivered" else None
        lives.append(attrs.evolve(life, batch=number, receipt=kept.receipt, answer=answer))
    return attrs.evolve(everything, lives=lives)


def do_not_wait(descriptor: int) -> None:
    """In place of a sync: nobody cuts the power again."""


def after_the_cut(engine: Engine, events: Sequence[Event], cut: Cut, root: Path) -> list[str]:
    """What is wrong with the store that comes up again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, do_not_wait)
        return _after_the_cut(engine, events, cut, root)


def _after_the_cut(engine: Engine, events: Sequence[Event], cut: Cut, root: Path) -> list[str]:
    make_disk(events, cut, root)
    everything, flushed = told(events, cut.moment)
    clock = ManualClock(max(START_MS, everything.now_ms))
    with engine.open(root, clock, False) as store:
        wrong = [f"found: {each}" for each in store.check() if each.severity is Severity.ERROR]
        for step_ms in _STEPS_TO_THE_END_MS:
            clock.tick(step_ms)
            store.advance(clock.now_ms())
        wrong += [f"still waits: {each}" for each in store.pending()]
    found = list(delivered(root))
    history = owed(everything, flushed)
    wrong += faults(history, found)
    history.advanced_to_ms = clock.now_ms()
    wrong += early(history, found) + disagreements(root)
    shutil.rmtree(root)
    return wrong


def assert_survived(engine: str, events: Sequence[Event], cuts: Iterator[Cut], place: Path) -> None:
    for number, cut in enumerate(cuts):
        wrong = after_the_cut(ENGINES[engine], events, cut, place / str(number))
        assert wrong == [], cut


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("last", "seeds"),
    [
        pytest.param(4, 1, id="last 4 writes"),
        pytest.param(10, 1, id="last 10 writes", marks=pytest.mark.nightly),
    ],
)
def test_every_choice_among_the_last_writes_keeps_what_was_flushed(
    tmp_path: Path, engine: str, last: int, seeds: int
) -> None:
    warm_up(ENGINES[engine])
    for seed in range(seeds):
        events = record(ENGINES[engine], tmp_path / "recorded", seed, (12, 12, 6 + seed))
        cuts = every_choice(events, len(events), last)
        assert_survived(engine, events, cuts, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "cuts", [pytest.param(40, id="40"), pytest.param(400, id="400", marks=pytest.mark.nightly)]
)
def test_any_part_of_what_nobody_waited_for_may_be_missing(
    tmp_path: Path, engine: str, cuts: int
) -> None:
    warm_up(ENGINES[engine])
    rng = random.Random(f"{engine} {cuts}")
    for seed in range(cuts // 20):
        steps = [rng.randint(1, 15) for _ in range(rng.randint(1, 4))]
        events = record(ENGINES[engine], tmp_path / "recorded", seed, steps)
        first = next(index for index, event in enumerate(events) if isinstance(event, Write))
        chosen = (any_choice(events, rng.randint(first, len(events)), rng) for _ in range(20))
        assert_survived(engine, events, chosen, tmp_path)
