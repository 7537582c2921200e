# SPDX-License-Identifier: Apache-2.0
"""What a promise costs that outlives a loss of power: stored one by one with a flush each, and in
batches, beside SQLite by hand with ``synchronous=FULL``. All at once on one disk, by turns of a few
syncs, with memory that is warm. What a disk takes for a sync changes within seconds: with turns of
a second the same ratio was found between 0.7 and 1.5.
"""

import argparse
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.bars import POWER_SAFE
from benchmarks.machine import RESULTS, facts, keeping, prewarm, tell
from delaywheel import open_store
from message_store import AtMs, Message, MessageBatch, SystemClock
from message_store.base.clock import stopwatch_s
from message_store.reading.engine_choice import EngineName

BATCH = max(POWER_SAFE)
ENTRANTS: tuple[EngineName, ...] = ("levels", "wheel", "hierarchy")
SQLITE: Literal["SQLite FULL"] = "SQLite FULL"
_PUTS_A_TURN = 20
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


def measure(count: int, place: Path, seconds: float, first: int) -> dict[str, float]:
    """Messages a second of each entrant, stored so many at a time, by turns in one run; ``first``
    says who begins.
    """
    names = (SQLITE, *ENTRANTS)
    with ExitStack() as stack:
        puts = {
            name: stack.enter_context(
                _sqlite(place / "sqlite") if name == SQLITE else _ours(name, place / name)
            )
            for name in names
        }
        took_s = dict.fromkeys(names, 0.0)
        for put in puts.values():
            put(count)
        turns = 0
        while min(took_s.values()) < seconds:
            for number in range(len(names)):
                name = names[(first + turns + number) % len(names)]
                started_s = stopwatch_s()
                for _ in range(_PUTS_A_TURN):
                    puts[name](count)
                took_s[name] += stopwatch_s() - started_s
            turns += 1
    return {name: turns * _PUTS_A_TURN * count / took_s[name] for name in names}


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
                    prewarm(_WARM_BYTES)
                    with tempfile.TemporaryDirectory(dir=name) as place:
                        found = measure(count, Path(place), options.seconds, number)
                    measured["runs"].append({"batch": count, "messages a second": found})


if __name__ == "__main__":
    main()
