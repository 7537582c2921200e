# SPDX-License-Identifier: Apache-2.0
"""Redelivery in a store on disk: what consumers read, what a kill leaves, what is handed out."""

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.base.errors import FormatError, StoreClosedError, TargetError
from message_store.columns.byte_column import Int64s
from message_store.format import properties as names
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import encode_message
from message_store.interface.delay_store import Delivered, Deliveries
from message_store.redelivery.batch import FROM_LEVEL, FROM_WHEEL, ROLLED, redeliver
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.queue import LiveQueue
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.message_store.vectors import message
from timer_wheel.timers.timer_properties import wheel_stamps

NOW_MS = 1_793_000_000_123
SMALL_FILES = StoreSettings(commit_log_file_bytes=16_384, queue_file_bytes=400)


def open_store(root: Path) -> LiveStore:
    return LiveStore.open(root, settings=SMALL_FILES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    with_files = open_store(tmp_path / "store")
    yield with_files
    with_files.close()


def waiting(number: int) -> StoredMessage:
    """A timer record for one of three topics, one of them with a long name."""
    topic = ["orders", "alerts", "%RETRY%" + "g" * 150][number % 3]
    return message(
        topic=names.TIMER_TOPIC,
        body=b"body %d " % number * (number % 40),
        properties_text=(
            f"REAL_TOPIC\x01{topic}\x02TAGS\x01tag{number % 5}\x02REAL_QID\x01{number % 2}\x02"
            f"UNIQ_KEY\x01KEY{number}\x02TIMER_OUT_MS\x01{NOW_MS}\x02"
        ).encode(),
    )


def put(store: LiveStore, messages: list[StoredMessage]) -> tuple[Int64s, Int64s]:
    """Records into the log, and their units into the queue of the timer topic."""
    offsets, sizes = [], []
    queue = store.queue(names.TIMER_TOPIC, 0)
    for each in messages:
        size_bytes = len(encode_message(each))

        def record(position: int, one: StoredMessage = each) -> bytes:
            at = queue.max_offset
            return encode_message(attrs.evolve(one, commit_log_offset=position, queue_offset=at))

        offsets.append(store.log.append(size_bytes, record))
        sizes.append(size_bytes)
        queue.append_one(offsets[-1], size_bytes, string_hash(each.tags or ""))
    return np.array(offsets, np.int64), np.array(sizes, np.int64)


def read_all(store: LiveStore, topic: str) -> list[StoredMessage]:
    """Everything in a topic, queue after queue."""
    queues = store.queues.of_topic(topic)
    return [one for queue in queues for one in store.topic(topic).read(queue.queue_id, 0, 10_000)]


def delivered(store: LiveStore, count: int) -> LogDeliveries:
    offsets, sizes = put(store, [waiting(number) for number in range(count)])
    stamps = wheel_stamps(np.arange(count), NOW_MS)
    done = redeliver(store, offsets, sizes, FROM_WHEEL, suffixes=stamps, store_ms=NOW_MS)
    assert done.bad == []
    return LogDeliveries(store, done.positions, done.sizes, np.arange(count) + NOW_MS)


# --- what consumers read -------------------------------------------------------------------------


def test_every_message_is_read_from_its_real_topic_over_many_files(store: LiveStore) -> None:
    delivered(store, 200)
    assert len(store.log.segments.starts) > 4
    for number, topic in enumerate(["orders", "alerts", "%RETRY%" + "g" * 150]):
        copies = read_all(store, topic)
        expected = [waiting(n) for n in range(number, 200, 3)]
        expected.sort(key=lambda one: one.properties["REAL_QID"])
        assert [(one.body, one.unique_key) for one in copies] == [
            (one.body, one.unique_key) for one in expected
        ]
        assert {one.store_timestamp_ms for one in copies} == {NOW_MS}
        assert all(one.properties["TIMER_DEQUEUE_MS"] == str(NOW_MS) for one in copies)
        for queue_id in (0, 1):
            offsets = [one.queue_offset for one in copies if one.queue_id == queue_id]
            assert offsets == list(range(len(offsets)))


def test_rolled_records_go_behind_the_others_of_the_timer_topic(store: LiveStore) -> None:
    offsets, sizes = put(store, [waiting(number) for number in range(5)])
    stamps = wheel_stamps(np.arange(5), NOW_MS, np.ones(5, np.int64))
    redeliver(store, offsets, sizes, ROLLED, suffixes=stamps, store_ms=NOW_MS)
    timers = read_all(store, names.TIMER_TOPIC)
    assert [one.queue_offset for one in timers] == list(range(10))
    assert [one.properties.get("TIMER_ROLL_TIMES") for one in timers] == [None] * 5 + ["1"] * 5


def test_a_store_of_4_9_never_gets_a_record_of_version_2(tmp_path: Path) -> None:
    with_levels = LiveStore.open(tmp_path, settings=SMALL_FILES, dialect=Dialect.ROCKETMQ_4_9)
    offsets, sizes = put(with_levels, [waiting(number) for number in range(6)])
    done = redeliver(with_levels, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS)
    assert [row for row, _ in done.bad] == [2, 5]
    with_levels.close()


def test_what_lies_beyond_the_log_or_across_its_files_is_bad_and_no_crash(
    store: LiveStore,
) -> None:
    offsets, sizes = put(store, [waiting(number) for number in range(30)])
    end = store.log.end
    wrong = np.array([-5, end, end - 1, 16_384 - 10, 2**62, -(2**63), 2**63 - 1, int(offsets[3])])
    lengths = np.array([100, 100, 100, 100, 100, 100, 2**31, int(sizes[3]) + 1])
    everything = np.concatenate([wrong, offsets[:2]]), np.concatenate([lengths, sizes[:2]])
    done = redeliver(store, *everything, FROM_WHEEL, store_ms=NOW_MS)
    assert [row for row, _ in done.bad] == list(range(8))
    assert done.rows.tolist() == [8, 9]


# --- kills and failures --------------------------------------------------------------------------


def test_after_a_kill_between_log_and_queues_recovery_makes_the_same_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit

    whole, killed = open_store(tmp_path / "whole"), open_store(tmp_path / "killed")
    for each in (whole, killed):
        offsets, sizes = put(each, [waiting(number) for number in range(60)])
        if each is killed:
            monkeypatch.setattr(LiveQueue, "append", die)
            with pytest.raises(SystemExit):
                redeliver(each, offsets, sizes, FROM_WHEEL, store_ms=NOW_MS)
            monkeypatch.undo()
            each.abandon()
        else:
            redeliver(each, offsets, sizes, FROM_WHEEL, store_ms=NOW_MS)
    again = open_store(tmp_path / "killed")
    assert again.recovery.dispatched == 60
    for queue in whole.queues:
        units = again.queue(queue.topic, queue.queue_id).units(0, 1_000)
        assert units.tolist() == queue.units(0, 1_000).tolist()
    whole.close()
    again.close()


def test_a_disk_that_refuses_leaves_nothing_of_the_delivery(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, sizes = put(store, [waiting(number) for number in range(60)])
    end = store.log.end
    write_at: Callable[..., None] = store.log.segments.write_at
    calls: list[int] = []

    def refuse(offset: int, data: memoryview) -> None:
        calls.append(offset)
        if len(calls) == 2:
            raise TargetError("no space")
        write_at(offset, data)

    monkeypatch.setattr(store.log.segments, "write_at", refuse)
    with pytest.raises(TargetError):
        redeliver(store, offsets, sizes, FROM_WHEEL, store_ms=NOW_MS)
    monkeypatch.undo()
    assert store.log.end == end
    assert not store.log.segments.has_data_from(end)
    assert read_all(store, "orders") == []
    assert len(redeliver(store, offsets, sizes, FROM_WHEEL, store_ms=NOW_MS).rows) == 60


# --- what is handed out --------------------------------------------------------------------------


def test_deliveries_are_a_sequence_that_is_read_when_it_is_looked_at(store: LiveStore) -> None:
    found: Deliveries = delivered(store, 50)
    assert len(found) == 50
    everything = list(found)
    assert [one.message.unique_key for one in everything] == [f"KEY{n}" for n in range(50)]
    assert [one.promised_ms for one in everything] == [NOW_MS + n for n in range(50)]
    assert found[7] == everything[7] == found[-43]
    assert isinstance(found[0], Delivered)
    assert found[3].lateness_ms == -3
    for index in (50, -51):
        with pytest.raises(IndexError):
            found[index]


def test_deliveries_as_columns_are_those_as_objects(store: LiveStore) -> None:
    found = delivered(store, 200)
    batch = found.to_batch()
    store.close()
    assert len(batch) == 200
    with pytest.raises(StoreClosedError):
        found.to_batch()
    again = open_store(store.root.path)
    reread = LogDeliveries(again, found.offsets, found.sizes, found.promised_ms)
    assert [batch.message(row) for row in range(200)] == [one.message for one in reread]
    again.close()


def test_deliveries_of_a_closed_store_say_so(store: LiveStore) -> None:
    found = delivered(store, 2)
    rest = iter(found)
    next(rest)
    store.close()
    assert len(found) == 2
    for look in (lambda: found[0], lambda: next(rest), found.to_batch):
        with pytest.raises(StoreClosedError):
            look()


def test_two_deliveries_of_one_store_become_one(store: LiveStore, tmp_path: Path) -> None:
    both = delivered(store, 3) + delivered(store, 2)
    assert [one.message.unique_key for one in both] == ["KEY0", "KEY1", "KEY2", "KEY0", "KEY1"]
    assert len(both.to_batch()) == 5
    other = open_store(tmp_path / "other")
    with pytest.raises(ValueError, match="two stores"):
        both + delivered(other, 1)
    other.close()


def test_no_deliveries_are_an_empty_batch(store: LiveStore) -> None:
    nothing = np.empty(0, np.int64)
    found = LogDeliveries(store, nothing, nothing, nothing)
    assert (len(found), list(found), len(found.to_batch())) == (0, [], 0)


def test_a_record_that_is_not_there_any_more_is_a_format_error(store: LiveStore) -> None:
    gone = LogDeliveries(store, np.array([1 << 40]), np.array([200]), np.array([NOW_MS]))
    for look in (lambda: gone[0], gone.to_batch):
        with pytest.raises(FormatError):
            look()
