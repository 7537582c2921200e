# SPDX-License-Identifier: Apache-2.0
"""What a promise costs that outlives a loss of power: stored one by one with a flush each, and in
batches, beside SQLite by hand with ``synchronous=FULL``. All in turns, on one disk, each first in
its turn, with memory that is warm. What a disk takes for a sync changes within seconds, so turns
are short, and there are many.
"""

import argparse
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import POWER_SAFE
from benchmarks.machine import RESULTS, facts, keeping, prewarm, tell
from delaywheel import open_store
from message_store import AtMs, Message, MessageBatch, SystemClock
from message_store.base.clock import stopwatch_s
from message_store.reading.engine_choice import EngineName

BATCH = max(POWER_SAFE)
ENTRANTS: tuple[EngineName, ...] = ("levels", "wheel", "hierarchy")
SQLITE = "SQLite FULL"
_BODY = b"x" * 256
_DELAY_MS = 3_600_000
_WARM_BYTES = 1 << 30

Put = Callable[[int], None]
"""Stores so many messages, and comes back when they are on the disk."""


@contextmanager
def _ours(engine: EngineName, directory: Path) -> Iterator[Put]:
    message = Message("orders", _BODY)
    batch = MessageBatch.of(message for _ in range(BATCH))
    clock = SystemClock()
    with open_store(directory, engine=engine) as store:

        def put(count: int) -> None:
            due_ms = clock.now_ms() + _DELAY_MS
            if count == 1:
                store.schedule(message, AtMs(due_ms))
            else:
                store.schedule_batch(batch, np.full(count, due_ms, np.int64))
            store.flush()

        yield put


@contextmanager
def _sqlite(directory: Path) -> Iterator[Put]:
    directory.mkdir()
    with closing(sqlite3.connect(directory / "queue.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE waiting (id INTEGER PRIMARY KEY, due_ms INTEGER, body BLOB)")
        database.execute("CREATE INDEX by_due ON waiting (due_ms)")
        clock = SystemClock()

        def put(count: int) -> None:
            row = clock.now_ms() + _DELAY_MS, _BODY
            database.execute("BEGIN")
            database.executemany(
                "INSERT INTO waiting (due_ms, body) VALUES (?, ?)", (row for _ in range(count))
            )
            database.execute("COMMIT")

        yield put


def measure(entrant: EngineName | None, directory: Path, count: int, seconds: float) -> float:
    """Messages a second, stored so many at a time; by SQLite where ``entrant`` is None."""
    opened = _sqlite(directory) if entrant is None else _ours(entrant, directory)
    with opened as put:
        for _ in range(3):
            put(count)
        done, started_s = 0, stopwatch_s()
        while (took_s := stopwatch_s() - started_s) < seconds:
            put(count)
            done += count
        return done / took_s


def _in_turn(entrants: Sequence[EngineName | None], number: int) -> Sequence[EngineName | None]:
    first = number % len(entrants)
    return [*entrants[first:], *entrants[:first]]


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        measured: dict[str, Any] = {"facts": facts(Path(name)), "runs": []}
        with keeping("power", measured, options.results):
            for number in range(options.rounds):
                for count in POWER_SAFE:
                    tell(f"round {number + 1} of {options.rounds}, {count:,} at a time")
                    found = {}
                    for entrant in _in_turn((None, *ENTRANTS), number):
                        prewarm(_WARM_BYTES)
                        with tempfile.TemporaryDirectory(dir=name) as place:
                            per_s = measure(entrant, Path(place, "store"), count, options.seconds)
                        found[entrant or SQLITE] = per_s
                    measured["runs"].append({"batch": count, "messages a second": found})


if __name__ == "__main__":
    main()
