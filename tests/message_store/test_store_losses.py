# SPDX-License-Identifier: Apache-2.0
"""What was removed from a closed store is noticed when it is opened; what was not is not."""

from pathlib import Path

import pytest

from message_store import ManualClock
from message_store.files.store_root import StoreRoot
from message_store.writing.losses import ENDS_NAME, StoreEnds, StoreLosses, queue_findings
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import NOW_MS, SMALL, append, stored

ENTRIES = 5


def opened(path: Path) -> LiveStore:
    return LiveStore.open(path, clock=ManualClock(NOW_MS), settings=SMALL)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    store = opened(tmp_path)
    for topic in ("orders", "payments"):
        for _ in range(ENTRIES):
            append(store, stored(b"body", topic=topic))
    store.close()
    return tmp_path


def losses_of(path: Path) -> StoreLosses:
    store = opened(path)
    store.abandon()
    return store.losses


def test_nothing_is_missed_in_a_store_that_is_whole(closed: Path) -> None:
    assert losses_of(closed) == StoreLosses()


def test_a_queue_that_was_removed_is_missed(closed: Path) -> None:
    for file in (closed / "consumequeue/orders/0").iterdir():
        file.unlink()
    store = opened(closed)
    assert store.losses == StoreLosses(0, {("orders", 0): ENTRIES})
    [finding] = queue_findings(store)
    assert "orders/0" in finding.where
    store.abandon()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log_end": 1}', '{"log_end": 1, "queues": [1]}'])
def test_ends_that_cannot_be_read_tell_nothing(closed: Path, text: str) -> None:
    (closed / "delaywheel" / ENDS_NAME).write_text(text)
    assert StoreEnds.read(StoreRoot(closed)) is None
    assert losses_of(closed) == StoreLosses()
