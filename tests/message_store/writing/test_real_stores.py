# SPDX-License-Identifier: Apache-2.0
"""Stores that real brokers left, opened for writing: what they hold stays, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from message_store.files.config_files import read_topics
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.consume_queue import read_queue
from message_store.writing.queue import NATIVE_UNIT
from message_store.writing.store import LiveStore
from tests.independent.real_stores import ALL_STORES, LEVELS_49_CRASH, RealStore, unpack
from tests.message_store.live_workload import append, log_records, stored


def dialect_of(name: str) -> Dialect:
    return Dialect.ROCKETMQ_4_9 if "4.9" in name else Dialect.ROCKETMQ_5_5


def open_real(real: RealStore) -> LiveStore:
    levels = real.about.get("messageDelayLevel")
    table = DelayLevels.parse(levels) if isinstance(levels, str) else None
    return LiveStore.open(real.root, dialect=dialect_of(real.name), level_table=table)


def queue_contents(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for directory in sorted((root / "consumequeue").glob("*/*")):
        entries = read_queue(directory)
        key = f"{directory.parent.name}/{directory.name}"
        if len(entries):
            found[key] = (entries.first_queue_offset, entries.queue_max, entries.units.tobytes())
    return found


def log_files(root: Path, read_bytes: int = 1 << 20) -> dict[str, bytes]:
    """The beginning of each file that is not empty: all of it, but for files of 1 GiB."""
    found = {}
    for path in (root / "commitlog").iterdir():
        with path.open("rb") as file:
            content = file.read(read_bytes).rstrip(b"\0")
        if content:
            found[path.name] = content
    return found


@pytest.mark.parametrize("name", ALL_STORES)
def test_opening_and_closing_changes_no_message(name: str, tmp_path: Path) -> None:
    real = unpack(name, tmp_path / "store")
    before, log_before = queue_contents(real.root), log_files(real.root)
    topics = read_topics(real.root)
    store = open_real(real)
    assert store.was_clean is not (name == LEVELS_49_CRASH)
    assert (store.recovery.repaired, store.recovery.cut, store.recovery.zeroed_bytes) == (0, 0, 0)
    assert store.recovery.dispatched == 0
    store.close()
    assert queue_contents(real.root) == before
    assert log_files(real.root) == log_before
    assert read_topics(real.root) == topics
    assert not (real.root / "abort").exists()
    assert (real.root / "lock").read_bytes() == b"lock"
    checkpoint = StoreCheckpoint.decode((real.root / "checkpoint").read_bytes())
    assert checkpoint.commit_log_timestamp_ms == checkpoint.queue_timestamp_ms > 1_700_000_000_000
    assert bool(checkpoint.queue_commit_log_offset) is (dialect_of(name) is Dialect.ROCKETMQ_5_5)


@pytest.mark.parametrize("name", ALL_STORES)
def test_a_broker_s_store_that_lost_its_queues_gets_the_same_ones_back(
    name: str, tmp_path: Path
) -> None:
    """Dispatch is held equal to the brokers': their own entries are what has to come out."""
    real = unpack(name, tmp_path / "store")
    before = queue_contents(real.root)
    for path in sorted((real.root / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    open_real(real).close()
    after = queue_contents(real.root)
    assert after == before


@pytest.mark.check
@pytest.mark.parametrize("name", ALL_STORES)
@pytest.mark.parametrize("end", [LiveStore.close, LiveStore.abandon])
def test_a_broker_s_store_is_appended_to(
    name: str, end: Callable[[LiveStore], None], tmp_path: Path
) -> None:
    real = unpack(name, tmp_path / "store")
    store = open_real(real)
    before = {
        (queue.topic, queue.queue_id): queue.units(0, queue.max_offset) for queue in store.queues
    }
    count = len(log_records(store))
    next_level = store.queue(LEVEL_TOPIC, 2).max_offset
    for number in range(120):
        append(store, stored(b"%d" % number * 300, topic="fresh", queue_id=number % 2))
        append(store, stored(b"%d" % number, topic=LEVEL_TOPIC, queue_id=2, level=3))
    end(store)
    again = open_real(real)
    assert again.recovery.dispatched == 0
    assert len(log_records(again)) == count + 240
    for (topic, queue_id), units in before.items():
        queue = again.queue(topic, queue_id)
        first = queue.segments.min_offset // 20
        assert np.array_equal(queue.units(first, first + len(units)), units)
        assert units.dtype == NATIVE_UNIT
    assert again.queue(LEVEL_TOPIC, 2).max_offset == next_level + 120
    assert len(again.topic("fresh").read(1, 0, 1_000)) == 60
    again.close()
    sizes = {
        path.stat().st_size for path in (real.root / "consumequeue").rglob("0*0") if path.is_file()
    }
    assert len(sizes) == 1
