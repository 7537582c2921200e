# SPDX-License-Identifier: Apache-2.0
"""What the engines' benchmarks give to a store: messages with random bodies, as objects and as
Arrow columns, and fresh stores to put them into.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from delaywheel import open_store
from message_store import Clock, DelayStore, Message
from message_store.columns.byte_column import Int64s
from message_store.reading.engine_choice import EngineName

START_MS = 1_793_000_000_000
ENGINES: tuple[EngineName, ...] = ("levels", "wheel")
ALL_ENGINES: tuple[EngineName, ...] = (*ENGINES, "hierarchy", "time-index")

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
def fresh_store(engine: EngineName, directory: Path, clock: Clock) -> Iterator[DelayStore]:
    """An empty store that is gone afterwards."""
    path = directory / "store"
    try:
        with open_store(path, engine=engine, clock=clock) as store:
            yield store
    finally:
        shutil.rmtree(path, ignore_errors=True)


def all_due(count: int, due_ms: int) -> Int64s:
    """The same due time for each."""
    return np.full(count, due_ms, np.int64)
