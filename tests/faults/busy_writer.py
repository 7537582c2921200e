# SPDX-License-Identifier: Apache-2.0
"""A program that works on a store as fast as it can until it is told to stop: it schedules,
cancels, reschedules, delivers, flushes. Some messages wait all the time.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import attrs

from message_store import (
    AfterMs,
    Cancellation,
    DelayStore,
    ManualClock,
    Message,
    Receipt,
    SystemClock,
)
from tests.faults.engines import SMALL, open_hierarchy, open_levels, open_time_index, open_wheel

START_MS = 1_793_000_000_000
WAITING = 60
SETTINGS = attrs.evolve(SMALL, commit_log_file_bytes=256 << 10)
OPENERS = {
    "levels": open_levels,
    "wheel": open_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}
WAIT_MS = 7_200_000
"""Longer than the clock of a writer ever runs, and no longer than a level takes."""


class BusyWriter:
    """A store, and the work on it, step by step."""

    def __init__(self, engine: str, path: Path, seed: int = 0, start_ms: int = START_MS) -> None:
        self.clock, self.end_ms = ManualClock(start_ms), start_ms + WAIT_MS - 300_000
        self.rng = random.Random(seed)
        self.store: DelayStore = OPENERS[engine](path, self.clock, SETTINGS)
        self.count = 0
        self.waiting: list[Receipt] = []
        for number in range(WAITING):
            message = Message("orders", b"waits", unique_key=f"W{number}")
            self.waiting.append(self.store.schedule(message, AfterMs(WAIT_MS)))
            if number == WAITING // 2:
                self.store.flush()
        self.step()

    def step(self) -> None:
        """Schedule some, cancel one in five of them, and deliver. Now and then, move what waits all
        the time, and flush.
        """
        for _ in range(self.rng.randrange(8)):
            message = Message("orders", b"%d" % self.count, unique_key=f"C{self.count}")
            receipt = self.store.schedule(message, AfterMs(self.rng.randrange(20_000)))
            self.count += 1
            if self.rng.random() < 0.2:
                assert self.store.cancel(receipt) is not Cancellation.NEVER_EXISTED
        if self.rng.random() < 0.2:
            self.move(self.rng.randrange(WAITING))
        self.clock.tick(self.rng.randrange(200))
        self.store.advance(self.clock.now_ms())
        if self.rng.random() < 0.02:
            self.store.flush()

    def move(self, number: int) -> None:
        """Reschedule a message that waits all the time."""
        moved = self.store.reschedule(self.waiting[number], AfterMs(WAIT_MS))
        assert isinstance(moved, Receipt)
        self.waiting[number] = moved

    def run_until(self, is_over: threading.Event) -> None:
        """Work, and close in the end."""
        with self.store:
            while not is_over.is_set() and self.clock.now_ms() < self.end_ms:
                self.step()
            is_over.wait()


def main() -> None:
    """``python -m tests.faults.busy_writer ENGINE PATH``: work until stdin is closed. Begins today:
    who looks at it goes by the machine's clock, and finds nothing by a week that is over.
    """
    writer = BusyWriter(sys.argv[1], Path(sys.argv[2]), start_ms=SystemClock().now_ms())
    is_over = threading.Event()
    worker = threading.Thread(target=writer.run_until, args=(is_over,))
    worker.start()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    sys.stdin.read()
    is_over.set()
    worker.join()


if __name__ == "__main__":
    main()
