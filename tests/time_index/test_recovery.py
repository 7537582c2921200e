# SPDX-License-Identifier: Apache-2.0
"""The index follows from queue and log: whatever its files say, each message comes once."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store import (
    AfterMs,
    AtMs,
    Cancellation,
    DelayStore,
    ManualClock,
    Message,
    MessageBatch,
)
from message_store.base.errors import DelayLimitError, SourceError, TargetError
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.interface.delay_store import Severity
from tests.faults.damage import flip
from tests.faults.engines import SMALL, abandon, open_time_index
from time_index.buckets import Bucket
from time_index.layouts import SPAN_MS
from time_index.reading import UNREAD_MS, pending_in_time_index

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
DELAYS_MS = (0, 1, 5_000, 5_000, 70_000, SPAN_MS - 1, SPAN_MS, 3 * SPAN_MS + 17, 30 * HOUR_MS)


def keys(store: DelayStore) -> Counter[str]:
    return Counter(each.unique_key or "" for each in store.pending())


def come(store: DelayStore, now_ms: int) -> list[str]:
    return [each.message.unique_key or "" for each in store.advance(now_ms)]


def fill(store: DelayStore, name: str) -> list[str]:
    """Messages for several buckets, one by one and many at once."""
    for number, delay_ms in enumerate(DELAYS_MS):
        store.schedule(Message("orders", b"x", unique_key=f"{name}{number}"), AfterMs(delay_ms))
    names = [f"{name}ROW{number}" for number in range(len(DELAYS_MS))]
    batch = MessageBatch.of(Message("orders", b"y", unique_key=each) for each in names)
    store.schedule_batch(batch, np.array(DELAYS_MS) + START_MS)
    return [*(f"{name}{number}" for number in range(len(DELAYS_MS))), *names]


def nothing(folder: Path) -> None:
    """The files as they are."""


def without_index(folder: Path) -> None:
    shutil.rmtree(folder / "delaywheel" / "time-index", ignore_errors=True)


def without_state(folder: Path) -> None:
    (folder / "delaywheel" / "time-index" / "state").unlink(missing_ok=True)


def torn_state(folder: Path) -> None:
    path = folder / "delaywheel" / "time-index" / "state"
    if path.exists():
        path.write_bytes(path.read_bytes()[:-3])


def without_buckets(folder: Path) -> None:
    for path in (folder / "delaywheel" / "time-index").glob("0*"):
        path.unlink()


def flipped_buckets(folder: Path) -> None:
    for path in (folder / "delaywheel" / "time-index").glob("0*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


HARMS = [nothing, without_index, without_state, torn_state, without_buckets, flipped_buckets]


def closed(store: DelayStore) -> None:
    store.close()


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("end", [closed, abandon])
def test_whatever_the_files_say_each_message_comes_once(
    tmp_path: Path, harm: Callable[[Path], None], end: Callable[[DelayStore], None]
) -> None:
    clock = ManualClock(START_MS)
    store = open_time_index(tmp_path, clock)
    names = fill(store, "A")
    store.flush()
    names += fill(store, "B")
    taken = store.schedule(Message("orders", b"x", unique_key="BACK"), AfterMs(2 * SPAN_MS))
    assert store.cancel(taken) is Cancellation.CANCELLED
    found = come(store, START_MS + 6_000)
    waits = Counter(names) - Counter(found)
    assert keys(store) == waits
    end(store)
    harm(tmp_path)
    store = open_time_index(tmp_path, clock)
    assert keys(store) == waits
    assert store.cancel(taken) is Cancellation.CANCELLED
    found += come(store, START_MS + SPAN_MS)
    end(store)
    harm(tmp_path)
    store = open_time_index(tmp_path, clock)
    for step_ms in (SPAN_MS, 3 * SPAN_MS, 40 * HOUR_MS):
        found += come(store, START_MS + SPAN_MS + step_ms)
    assert Counter(found) == Counter(names)
    assert store.next_due_ms() is None
    store.close()
    assert not list((tmp_path / "delaywheel" / "time-index").glob("0*"))


def test_an_older_index_is_brought_up_to_date(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    index, old = tmp_path / "store" / "delaywheel" / "time-index", tmp_path / "old"
    store = open_time_index(tmp_path / "store", clock)
    names = fill(store, "A")
    store.flush()
    shutil.copytree(index, old)
    found = come(store, START_MS + 2 * SPAN_MS)
    names += fill(store, "B")
    found += come(store, START_MS + 2 * SPAN_MS)
    waits = keys(store)
    store.close()
    shutil.rmtree(index)
    old.rename(index)
    with open_time_index(tmp_path / "store", clock) as store:
        assert keys(store) == waits
        assert Counter(found + come(store, START_MS + 40 * HOUR_MS)) == Counter(names)


def test_damage_of_a_closed_store_is_told_and_repaired(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_time_index(tmp_path, clock) as store:
        names = fill(store, "A")
    flipped_buckets(tmp_path)
    with open_time_index(tmp_path, clock) as store:
        [finding] = store.check()
        assert (finding.severity, finding.where) == (Severity.WARNING, "delaywheel/time-index")
        assert keys(store) == Counter(names)
    with open_time_index(tmp_path, clock) as store:
        assert store.check() == []


def test_a_delay_beyond_the_log_is_refused_and_says_why(tmp_path: Path) -> None:
    settings = attrs.evolve(SMALL, retention_ms=HOUR_MS)
    with open_time_index(tmp_path, ManualClock(START_MS), settings) as store:
        message = Message("orders", b"x")
        assert store.schedule(message, AfterMs(HOUR_MS)).promised_ms == START_MS + HOUR_MS
        with pytest.raises(DelayLimitError, match=r"beyond the limit of 1h: the log's retention"):
            store.schedule(message, AfterMs(HOUR_MS + 1))
        with pytest.raises(DelayLimitError, match="beyond the limit"):
            store.schedule_batch(
                MessageBatch.of([message, message]), np.array([0, START_MS + 2 * HOUR_MS])
            )
        assert len(list(store.pending())) == 1


def test_a_log_file_stays_while_a_message_of_it_is_pending(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    settings = attrs.evolve(SMALL, retention_ms=HOUR_MS)
    with open_time_index(tmp_path, clock, settings) as store:
        log = store.live.log  # type: ignore[attr-defined]
        store.schedule(Message("orders", b"x", unique_key="FIRST"), AfterMs(HOUR_MS))
        for number in range(3):
            store.schedule(Message("orders", bytes(40_000)), AfterMs(number))
        clock.tick(HOUR_MS - 1)
        store.advance(clock.now_ms())
        clock.tick(2 * HOUR_MS)  # nobody ran meanwhile
        assert log.min_offset == 0
        assert come(store, clock.now_ms()) == ["FIRST"]
        store.flush()
        store.advance(clock.now_ms() + 2 * HOUR_MS)
        assert log.min_offset > 0


def test_a_receipt_takes_its_own_message_alone(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    twin = Message("orders", b"x", unique_key="TWIN")
    with open_time_index(tmp_path, clock) as store:
        receipts = [store.schedule(twin, AtMs(START_MS + 9_000)) for _ in range(3)]
        assert store.cancel(receipts[1]) is Cancellation.CANCELLED
        assert [each.commit_log_offset for each in store.pending()] == [
            receipts[number].commit_log_offset for number in (0, 2)
        ]
        assert store.cancel(receipts[0].handle) is Cancellation.CANCELLED
        assert not list(store.pending())
        assert store.check() == []


def test_a_queue_that_lost_its_beginning_costs_nothing(tmp_path: Path) -> None:
    """It is refused, and rebuilt once it is removed. Without the note the log has all."""
    clock = ManualClock(START_MS)
    store = open_time_index(tmp_path / "store", clock)
    names = [name for letter in "ABCD" for name in fill(store, letter)]
    abandon(store)
    queue = tmp_path / "store/consumequeue/rmq_sys_time_index/0"
    assert len(list(queue.iterdir())) > 1
    min(queue.iterdir()).unlink()
    with pytest.raises(SourceError, match="remove this directory to have the queue rebuilt"):
        open_time_index(tmp_path / "store", clock)
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    shutil.rmtree(queue)
    (tmp_path / "other/delaywheel/queue-ends.json").unlink()
    for name in ("store", "other"):
        with open_time_index(tmp_path / name, clock) as store:
            assert Counter(come(store, START_MS + 40 * HOUR_MS)) == Counter(names)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_index_that_was_stopped_half_way_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    clock = ManualClock(START_MS)
    store = open_time_index(tmp_path, clock)
    names = fill(store, "A")

    def stopped(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "add", stopped)
        with pytest.raises(error):
            store.next_due_ms()
    with pytest.raises(TargetError, match="open it again"):
        store.advance(clock.now_ms())
    store.close()
    with open_time_index(tmp_path, clock) as again:
        assert Counter(come(again, START_MS + 40 * HOUR_MS)) == Counter(names)


@pytest.mark.parametrize("damaged", [0, 1, 3], ids=["first", "inner", "last"])
def test_a_damaged_entry_is_no_damaged_record_to_a_reader(tmp_path: Path, damaged: int) -> None:
    """Any bit of its place and its length: the log has all messages, and none is told as lost."""
    with open_time_index(tmp_path, ManualClock(START_MS)) as store:
        places = [
            store.schedule(Message("orders", b"x"), AfterMs(5_000)).commit_log_offset
            for _ in range(4)
        ]
    [queue] = (tmp_path / "consumequeue").glob("*/*/*")
    for bit in range(8 * 12):
        flip(queue, QUEUE_UNIT.size * damaged + bit // 8, bit % 8)
        units = pending_in_time_index(StoreRoot(tmp_path))
        assert (units.offsets.tolist(), UNREAD_MS in units.due_ms) == (places, False), bit
        flip(queue, QUEUE_UNIT.size * damaged + bit // 8, bit % 8)
