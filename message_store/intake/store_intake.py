# SPDX-License-Identifier: Apache-2.0
"""Puts messages that wait into a store, one at a time: a record in the log, then its entry.

Every message that an engine takes by itself passes here. What it costs is Python's calls, as many
as the work itself: each step is one function, and none makes an object for the next.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NoReturn

import numpy as np

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message, StoredMessage
from message_store.format.message_rules import DELIVERY_GROWTH_BYTES, RETRY_TOPIC_MAX_BYTES
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.intake.records import RecordForm, RecordMaker, StoredAgainMaker
from message_store.intake.rescheduling import for_another_time, replacing
from message_store.interface.delay_store import Receipt, receipt_of
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore


class WaitingTopics:
    """The topics and queues that a store was told of, each time no more than once.

    ``highest`` is the highest queue of each: what is not above it need not be remembered.
    """

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self.highest: dict[str, int] = {}

    def remember(self, topic: str, queue_id: int) -> None:
        """A message waits that goes to this queue."""
        if self.highest.get(topic, -1) < queue_id:
            self.highest[topic] = queue_id
            self._store.remember_topic(topic, queue_id)

    def remember_all(self, batch: MessageBatch) -> None:
        """The messages of a batch wait."""
        from message_store.intake.kernels import topics_of_rows
        from message_store.kernels.raw_memory import address_of

        firsts, highest, counts = found = np.empty((3, len(batch)), np.int64)
        table = np.full(2 << len(batch).bit_length(), -1, np.int64)
        places = *batch.topic.addresses, address_of(batch.queue_id)
        topics = topics_of_rows(*places, firsts, highest, counts, table)
        for row, queue_id, count in np.transpose(found[:, :topics]).tolist():
            topic = batch.topic[row].decode()
            self.remember(topic, queue_id)
            self._store.came_in[topic] += count


_DELIVERED_BYTES = END_OF_FILE_MIN_BYTES + DELIVERY_GROWTH_BYTES + RETRY_TOPIC_MAX_BYTES + 1
"""The room in a log file for what delivery adds to a pending record at most."""

Extra = tuple[tuple[str, str], ...]

Part = tuple[LiveQueue, Callable[[int], tuple[bytes, int]]]
"""A queue, and what makes the record for it, by its commit log offset, and the tag's hash. The size
of the record does not depend on that offset.
"""


class LiveIntake:
    """Stores messages under one system topic; whoever calls holds the store's lock.

    ``topics`` is told of every topic that a message waits for.
    """

    def __init__(self, live: LiveStore, system_topic: str, form: RecordForm) -> None:
        self.topics = WaitingTopics(live)
        self._highest_queue = self.topics.highest
        self._log, self._came_in = live.log, live.came_in
        self._maker = RecordMaker(system_topic, form)
        self._again_maker = StoredAgainMaker(system_topic, form)
        self._broker_name = live.settings.broker_name
        self._most_bytes = live.log.file_bytes - _DELIVERED_BYTES

    def store(
        self,
        message: Message | StoredMessage,
        queue: LiveQueue,
        due_ms: int,
        promised_ms: int,
        now_ms: int,
        level: int | None,
        out_ms: int | None,
        extra: Extra = (),
    ) -> Receipt:
        """Store a message, for a level or with an out time for a wheel, in this queue.

        A level's entry holds when it is promised for, in place of the hash of its tag. ``extra``
        are properties that the record gets as well. Raises BadFieldError for a message that cannot
        be stored or delivered, TargetError when the disk refuses.
        """
        log = self._log
        if isinstance(message, StoredMessage):
            at = queue.queue_id, queue.max_offset, log.offset_for, now_ms
            record, offset, tags_code, key = self._again_maker.record(message, level, out_ms, *at)
        else:
            record, offset, tags_code, key = self._maker.record(
                message,
                level,
                out_ms,
                extra,
                queue.queue_id,
                queue.max_offset,
                log.offset_for,
                now_ms,
                now_ms,
            )
        if len(record) > self._most_bytes:
            self._refuse(len(record))
        log.put(record, offset)
        queue.append_one(offset, len(record), tags_code if level is None else promised_ms)
        topic = message.topic
        if not (extra or isinstance(message, StoredMessage)):  # a marker, or given back
            self._came_in[topic] += 1
        if self._highest_queue.get(topic, -1) < message.queue_id:  # seldom: remember says so too
            self.topics.remember(topic, message.queue_id)
        return receipt_of((key, topic, due_ms, promised_ms, offset, self._broker_name))

    def store_again(
        self,
        older: Receipt,
        message: StoredMessage,
        queue: LiveQueue,
        due_ms: int,
        promised_ms: int,
        now_ms: int,
        level: int | None,
        out_ms: int | None,
        cancels: Sequence[Part] = (),
    ) -> tuple[Receipt, list[int]]:
        """Store a pending message again, for another time: see ``rescheduling``. ``cancels`` are
        stored behind it, in the same append. Returns the new receipt, and where all records are.

        Raises as ``store``.
        """
        again, queue_offset = for_another_time(message), queue.max_offset

        def make(at: int) -> tuple[bytes, int]:
            place = queue.queue_id, queue_offset, lambda _size: at, now_ms
            extra = replacing(older, at)
            record, _, tags_code, _ = self._again_maker.record(again, level, out_ms, *place, extra)
            return record, tags_code if level is None else promised_ms

        offsets = self.store_together([(queue, make), *cancels])
        key, topic = again.unique_key or "", again.topic
        return receipt_of((key, topic, due_ms, promised_ms, offsets[0], self._broker_name)), offsets

    def cancel_part(
        self, marker: Message, queue: LiveQueue, out_ms: int, extra: Extra, now_ms: int
    ) -> Part:
        """The record of a delete marker, for behind a record that goes to the same queue."""
        queue_offset = queue.max_offset + 1

        def make(at: int) -> tuple[bytes, int]:
            place = queue.queue_id, queue_offset, lambda _size: at, now_ms, now_ms
            record, _, tags_code, _ = self._maker.record(marker, None, out_ms, extra, *place)
            return record, tags_code

        return queue, make

    def store_together(self, parts: Sequence[Part]) -> list[int]:
        """Store several records with one append, then their entries; returns where they are."""
        sizes = [len(make(0)[0]) for _queue, make in parts]
        if sum(sizes) > self._most_bytes:
            self._refuse(sum(sizes))
        position = self._log.offset_for(sum(sizes))
        offsets = list(accumulate(sizes[:-1], initial=position))
        made = [make(at) for (_queue, make), at in zip(parts, offsets, strict=True)]
        self._log.put_all([record for record, _ in made], position)
        for (queue, _), (record, tags_code), at in zip(parts, made, offsets, strict=True):
            queue.append_one(at, len(record), tags_code)
        return offsets

    def require_room(self, sizes: Int64s) -> None:
        """Raise BadFieldError, which names the row, for the first of many records that no log file
        could hold once it is delivered.
        """
        too_large = np.flatnonzero(sizes > self._most_bytes)
        if len(too_large):
            row = int(too_large[0])
            try:
                self._refuse(int(sizes[row]))
            except BadFieldError as error:
                raise error.of_row(row) from None

    def _refuse(self, size_bytes: int) -> NoReturn:
        raise BadFieldError(
            "a record larger than a log file, once it is delivered",
            expected=f"at most {self._most_bytes}",
            found=size_bytes,
        )
