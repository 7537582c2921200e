# SPDX-License-Identifier: Apache-2.0
"""How many messages a second an engine takes, one by one and many at once, and how fast it delivers
what is due together.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.engines.loads import (
    START_MS,
    all_due,
    bodies,
    fresh_store,
    message,
    messages_table,
)
from message_store import AtMs, DelayLevels, DelayStore, ManualClock, MessageBatch
from message_store.base.clock import stopwatch_s
from message_store.columns.byte_column import Int64s
from message_store.reading.engine_choice import EngineName

Round = dict[str, float]
_LEVELS_MS = DelayLevels.parse().delays_ms
_DAY_MS = 86_400_000


def one_by_one(engine: EngineName, directory: Path, count: int, body_bytes: int) -> Round:
    """Messages a second through ``schedule``: objects made before, and made by the same loop."""
    given = bodies(count, body_bytes)
    ready = [message(number, body) for number, body in enumerate(given)]
    due = AtMs(START_MS + 60_000)
    with fresh_store(engine, directory, ManualClock(START_MS)) as store:
        schedule = store.schedule
        started = stopwatch_s()
        for each in ready:
            schedule(each, due)
        middle = stopwatch_s()
        for number, body in enumerate(given):
            schedule(message(number, body), AtMs(START_MS + 60_000))
        ended = stopwatch_s()
    return {
        "schedule": count / (middle - started),
        "schedule, objects made too": count / (ended - middle),
    }


def in_batches(engine: EngineName, directory: Path, count: int, body_bytes: int) -> Round:
    """Messages a second through ``schedule_batch`` from an Arrow table, columns made too."""
    table = messages_table(count, body_bytes)
    due_ms = START_MS + 1_000 * np.random.default_rng(2).integers(1, 7_000, count)
    with fresh_store(engine, directory, ManualClock(START_MS)) as store:
        started = stopwatch_s()
        store.schedule_batch(MessageBatch.from_arrow(table), due_ms)
        took = stopwatch_s() - started
    return {"schedule_batch": count / took}


def drain(
    engine: EngineName, directory: Path, table: pa.Table, due_ms: Int64s, body_bytes: int
) -> Round:
    """Seconds of one ``advance`` that delivers everything, placed by one before it.

    Beside it what it takes to write that many bytes into a new file, a MiB at a time.
    """
    clock = ManualClock(START_MS)
    with fresh_store(engine, directory, clock) as store:
        store.schedule_batch(MessageBatch.from_arrow(table), due_ms)
        placing = _seconds(lambda: store.advance(START_MS))
        clock.tick(int(due_ms.max()) - START_MS + 1_000)
        took = _drain(store, clock.now_ms(), len(due_ms))
    written = plain_write(directory, len(due_ms) * (body_bytes + 250))
    return {"placing s": placing, "drain s": took, "write s": written, "ratio": took / written}


def _drain(store: DelayStore, now_ms: int, expected: int) -> float:
    started = stopwatch_s()
    deliveries = store.advance(now_ms)
    took = stopwatch_s() - started
    if len(deliveries) != expected:
        raise AssertionError(f"{len(deliveries)} of {expected} were delivered")
    return took


def _seconds(step: Callable[[], object]) -> float:
    started = stopwatch_s()
    step()
    return stopwatch_s() - started


def plain_write(directory: Path, size_bytes: int) -> float:
    """Seconds to write a new file of that size: what no engine can do without."""
    piece = bytes(1 << 20)
    path = directory / "plain"
    started = stopwatch_s()
    with path.open("wb", buffering=0) as file:
        os.ftruncate(file.fileno(), size_bytes)
        for place in range(0, size_bytes, len(piece)):
            file.write(piece[: size_bytes - place])
    took = stopwatch_s() - started
    path.unlink()
    return took


def burst(engine: EngineName, directory: Path, count: int, body_bytes: int) -> Round:
    """Everything due in the same second."""
    table = messages_table(count, body_bytes)
    within_a_second = all_due(count, START_MS + 60_000) - np.arange(count) % 1_000
    return drain(engine, directory, table, within_a_second, body_bytes)


def one_level(engine: EngineName, directory: Path, count: int, body_bytes: int) -> Round:
    """Everything in one level."""
    table = messages_table(count, body_bytes)
    return drain(engine, directory, table, all_due(count, START_MS + 60_000), body_bytes)


def all_levels(engine: EngineName, directory: Path, count: int, body_bytes: int) -> Round:
    """Spread over all levels, and due when somebody looks again."""
    table = messages_table(count, body_bytes)
    due_ms = START_MS + np.array(_LEVELS_MS, np.int64)[np.arange(count) % len(_LEVELS_MS)]
    return drain(engine, directory, table, due_ms, body_bytes)
