# SPDX-License-Identifier: Apache-2.0
"""What people do with a store, done with one that is damaged."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np

from message_store import AfterMs, AtMs, DelayStore, ManualClock, Message, MessageBatch, Severity
from message_store.base.errors import DelayStoreError
from tests.faults.engines import ENGINES, Engine, abandon
from tests.faults.harm_rounds import run_rounds

START_MS = 1_793_000_000_000
HALF_MS = START_MS + 40_000
END_MS = START_MS + 86_400_000
_TOPICS = ("orders", "orders2")


@attrs.frozen
class Outcome:
    """What came of a store: bodies that its topics hold in the end, errors that it raised, what
    ``check`` found, and what it must never do.
    """

    delivered: dict[str, int]
    errors: list[str]
    findings: list[str]
    crashes: list[str]


def build(engine: Engine, path: Path, end: str) -> None:
    """A store with some of everything: delivered, waiting, taken back, not yet placed."""
    clock = ManualClock(START_MS)
    store = engine.open(path, clock, False)
    waiting = [store.schedule(_message(number), AtMs(_due_ms(number))) for number in range(60)]
    rows = range(100, 160)
    batch = MessageBatch.of(map(_message, rows))
    store.schedule_batch(batch, np.array([_due_ms(number) for number in rows], np.int64))
    clock.tick(HALF_MS - START_MS)
    store.advance(clock.now_ms())
    for receipt in waiting[-5:]:
        store.cancel(receipt)
    for number in range(200, 230):
        store.schedule(_message(number), AfterMs(1_000 * (number % 90)))
    if end == "closed":
        store.close()
    else:
        abandon(store)


def _message(number: int) -> Message:
    return Message(
        _TOPICS[number % 2],
        f"body {number} {'x' * (number % 7 * 90)}".encode(),
        tags="late",
        unique_key=f"KEY{number:08X}",
    )


def _due_ms(number: int) -> int:
    return START_MS + 1_300 * (number * 7 % 83)


def exercise(engine: Engine, path: Path) -> Outcome:
    """Open the store, look at all of it, go on working, close, and open it again."""
    outcome = Outcome({}, [], [], [])
    for step_ms in (HALF_MS, END_MS):
        clock = ManualClock(step_ms)
        opened: list[DelayStore] = []
        _attempt(outcome, lambda: opened.append(engine.open(path, clock, False)))  # noqa: B023
        if not opened:
            return outcome
        for call in _calls(outcome, opened[0], clock):
            _attempt(outcome, call)
    return outcome


def _calls(outcome: Outcome, store: DelayStore, clock: ManualClock) -> list[Callable[[], object]]:
    def check() -> None:
        try:
            found = store.check()
        except DelayStoreError as error:
            outcome.crashes.append(f"check raised {error!r}")
        else:
            bad = [str(each) for each in found if each.severity is not Severity.INFO]
            outcome.findings.extend(bad)

    def take_back() -> None:
        store.cancel(store.schedule(_message(900), AfterMs(50_000)))

    def read() -> None:
        for topic in _TOPICS:
            for message in store.topic(topic).read(0, 0, 10_000):
                came[message.body.decode("latin-1")] += 1

    came: Counter[str] = Counter()

    def keep() -> None:
        outcome.delivered.clear()
        outcome.delivered.update(came)

    return [
        check,
        lambda: list(store.pending()),
        store.next_due_ms,
        lambda: list(store.advance(clock.now_ms())),
        take_back,
        lambda: store.schedule(_message(901), AfterMs(20_000)),
        lambda: store.advance(clock.now_ms() + 30_000).to_batch(),
        check,
        store.flush,
        read,
        keep,
        store.close,
    ]


def _attempt(outcome: Outcome, call: Callable[[], object]) -> None:
    try:
        call()
    except DelayStoreError as error:
        outcome.errors.append(f"{type(error).__name__}: {error}")
    except Exception:
        outcome.crashes.append(traceback.format_exc())


if __name__ == "__main__":
    run_rounds(sys.argv[1:], lambda shape, copy: exercise(ENGINES[shape], copy))
