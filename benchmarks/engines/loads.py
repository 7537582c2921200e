# SPDX-License-Identifier: Apache-2.0
"""What the engines' benchmarks give to a store: messages with random bodies, as objects and as
Arrow columns, and fresh stores to put them into.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from message_store import Clock, DelayStore, Message
from message_store.columns.byte_column import Int64s

START_MS = 1_793_000_000_000
OpenStore = Callable[[Path, Clock, int], DelayStore]
"""Opens a store in a directory, by a clock; the number is the wheel's precision in ms."""


def open_levels(path: Path, clock: Clock, precision_ms: int = 1_000) -> DelayStore:
    """The levels, as they come; they know no precision."""
    from legacy_levels import LevelStore

    return LevelStore.open(path, clock=clock)


def open_wheel(path: Path, clock: Clock, precision_ms: int = 1_000) -> DelayStore:
    """The wheel, as it comes."""
    from timer_wheel import WheelStore

    return WheelStore.open(path, clock=clock, precision_ms=precision_ms)


def open_hierarchy(path: Path, clock: Clock, precision_ms: int = 1_000) -> DelayStore:
    """The hierarchical wheel; a precision of 1 is to the millisecond."""
    from timer_wheel import HierarchicalWheelStore

    return HierarchicalWheelStore.open(path, clock=clock, precision_ms=precision_ms)


def open_time_index(path: Path, clock: Clock, precision_ms: int = 1_000) -> DelayStore:
    """The time index, as it comes; it is to the millisecond whatever precision is asked for."""
    from time_index import TimeIndexStore

    return TimeIndexStore.open(path, clock=clock)


ENGINES: dict[str, OpenStore] = {"levels": open_levels, "wheel": open_wheel}
ALL_ENGINES = ENGINES | {"hierarchy": open_hierarchy, "time-index": open_time_index}

_TOPICS = ("OrderTimeout", "PayNotify", "Reminder", "Refund")
_TAGS = ("create", "pay", "remind", "late")
_BLOCK_BYTES = 1 << 20


def bodies(count: int, body_bytes: int) -> list[bytes]:
    """Random bodies, pieces of one block."""
    rng = np.random.default_rng(1)
    block = rng.integers(0, 256, _BLOCK_BYTES + body_bytes, np.uint8).tobytes()
    starts = rng.integers(0, _BLOCK_BYTES, count).tolist()
    return [block[start : start + body_bytes] for start in starts]


def message(number: int, body: bytes) -> Message:
    """One message as an application makes it."""
    return Message(_TOPICS[number % 4], body, _TAGS[number % 3], (f"order-{number}",))


def messages_table(count: int, body_bytes: int) -> pa.Table:
    """The same messages as columns."""
    numbers = np.arange(count)
    topics = pa.DictionaryArray.from_arrays(numbers % 4, list(_TOPICS))
    tags = pa.DictionaryArray.from_arrays(numbers % 3, list(_TAGS[:3]))
    keys = pa.array([f"order-{number}" for number in range(count)])
    body = pa.array(bodies(count, body_bytes), pa.large_binary())
    return pa.table({"topic": topics, "tags": tags, "keys": keys, "body": body})


@contextmanager
def fresh_store(
    open_store: OpenStore, directory: Path, clock: Clock, precision_ms: int = 1_000
) -> Iterator[DelayStore]:
    """An empty store that is gone afterwards."""
    path = directory / "store"
    try:
        with open_store(path, clock, precision_ms) as store:
            yield store
    finally:
        shutil.rmtree(path, ignore_errors=True)


def all_due(count: int, due_ms: int) -> Int64s:
    """The same due time for each."""
    return np.full(count, due_ms, np.int64)
