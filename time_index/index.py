# SPDX-License-Identifier: Apache-2.0
"""The time index of one store at work: from the queue into buckets, and from memory into files.

The index follows from the log. It holds each message of the topic that no later record names, as
a delivery does, and a cancel (``redelivery.lineage``). Where its files cannot be believed, they are
rebuilt by that rule. The queue only tells what is new.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np

from message_store.base.errors import (
    ChecksumError,
    DelayStoreError,
    FormatError,
    SourceError,
    TargetError,
)
from message_store.columns.byte_column import Int64s, int64s
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_error, found_warning
from message_store.redelivery.lineage import Names
from message_store.writing.dispatch import mend_astray
from message_store.writing.store import LiveStore
from time_index.buckets import Bucket, IndexFiles
from time_index.layouts import SPAN_MS, IndexState, SavedBucket, Units
from time_index.reading import lost_messages_of
from time_index.record_kernel import (
    DUE,
    FOUND_ROWS,
    OFFSET,
    SIZE,
    Facts,
    messages_in,
    read_facts,
    record_sizes,
)

MESSAGES, CANCELS = 0, 1
"""The queues of the topic: pending messages, and those that cancelled one."""

_PIECE = 1 << 17
_MANY_UNITS = 1 << 20
_MUCH_LOG_BYTES = 256 << 20
_PROBLEMS_KEPT = 1_000


class TimeIndex:
    """The pending messages of one store, by due time.

    ``queue`` is what it is an index of, up to the queue offset ``placed_end``; ``losses`` is
    what was wrong with files and entries, ``lost`` are messages that nobody can deliver. Whoever
    calls anything holds the store's lock.
    """

    def __init__(self, store: LiveStore) -> None:
        self.store = store
        self.queue = store.queue(TIME_INDEX_TOPIC, MESSAGES)
        self.lost = lost_messages_of(store.root)
        self.losses: deque[Finding] = deque(maxlen=_PROBLEMS_KEPT)
        self.placed_end = self.queue.min_offset
        self._files = IndexFiles(store.root)
        self._buckets: dict[int, Bucket] = {}
        self._starts: list[int] = []
        self._gone = self._files.starts()
        self._saved_log_end = store.log.min_offset
        self._saved_placed_end = self.placed_end

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(cls, store: LiveStore) -> "TimeIndex":
        """The index of a store whose log and queues are whole."""
        index = cls(store)
        try:
            state = index._files.read_state()
        except (FormatError, SourceError) as error:
            index._make_again_for(error)
            return index
        if state is None or not index._is_of_this_log(state):
            index.make_again()
            return index
        index.placed_end = index._saved_placed_end = state.placed_end
        index._saved_log_end = state.log_end
        for saved in state.buckets:
            index._put(Bucket(index._files, saved))
        names = Names.since(store.log, max(state.log_end, store.log.min_offset))
        index._mend_queue()
        index.place_queued(names)
        index._take_out_named(names)
        return index

    def _is_of_this_log(self, state: IndexState) -> bool:
        """Whether the state tells of this log and queue as they were: after a loss of power it may
        know more than the log, which may have grown again since.
        """
        log = self.store.log
        if state.log_end > log.end or state.placed_end > self.queue.max_offset:
            return False
        return log.head_checksum(state.last_start) == state.last_head

    def _make_again_for(self, error: DelayStoreError) -> None:
        """Make it again for damage; what a loss of power may leave is none."""
        if self.store.was_clean:
            self.losses.append(_damaged(error))
        self.make_again()

    def make_again(self) -> None:
        """Make the index from the log, whatever its files say, and else from the queue."""
        with self._whole_or_broken():
            self._make_again()

    @contextmanager
    def _whole_or_broken(self) -> Iterator[None]:
        """Around what takes messages in. Stopped half way, by Ctrl-C or the disk, some would be
        missing or there twice: nothing more is taken until the store is opened again.
        """
        try:
            yield
        except BaseException:
            self.store.log.break_off()
            raise

    def _make_again(self) -> None:
        self._files.forget_state()
        self._gone |= self._files.starts()
        self._buckets, self._starts = {}, []
        log = self.store.log
        parts = [messages_in(*stretch) for stretch in log.stretches(log.min_offset, log.end)]
        found = np.concatenate([np.empty((FOUND_ROWS, 0), np.int64), *parts], axis=1)
        found = found[:, found[DUE] >= 0]
        names = Names.since(log, log.min_offset)
        units = Units(found[DUE], found[OFFSET], found[SIZE])
        self._add(units.rows(~names.are_done(units.offsets, units.offsets)))
        self.placed_end = self.queue.min_offset
        self._mend_queue()
        self.place_queued(names, known=units.offsets)

    def _mend_queue(self) -> None:
        """Make what is still to be placed anew where it leads to the records of others."""
        store = self.store
        mend_astray(store.log, store.queues, store.levels, self.queue, self.placed_end)

    def _take_out_named(self, names: Names) -> None:
        """Take out what was delivered or cancelled since the files were written. A record that
        names another has its due time.
        """
        if not len(names):
            return
        log = self.store.log
        facts = read_facts(log, names.places, record_sizes(log, names.places))
        for start_ms in np.unique(bucket_of(facts.due_ms[facts.is_fine])).tolist():
            self.take_out(start_ms, names.firsts)

    # --- from the queue ---------------------------------------------------------------------------

    def place_queued(self, names: Names | None = None, known: Int64s | None = None) -> None:
        """Take in what the queue holds, but for ``known`` and what these names tell to be done."""
        if self.placed_end < self.queue.max_offset:
            with self._whole_or_broken():
                self._place_queued(names, known)

    def _place_queued(self, names: Names | None, known: Int64s | None) -> None:
        while self.placed_end < self.queue.max_offset:
            first = max(self.placed_end, self.queue.min_offset)
            units = self.queue.units(first, min(self.queue.max_offset, first + _PIECE))
            offsets, sizes = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
            facts = read_facts(self.store.log, offsets, sizes)
            self._tell(first, offsets, facts)
            waits = facts.is_fine
            if names is not None:
                waits &= ~names.are_done(offsets, offsets)
            if known is not None:
                waits &= ~np.isin(offsets, known)
            self._add(Units(facts.due_ms, offsets, sizes).rows(waits))
            self.placed_end = first + len(units)

    def _tell(self, first: int, offsets: Int64s, facts: Facts) -> None:
        for row, error in facts.problems.items():
            self.losses.append(_no_message(first + row, error))
        self.lost.lose(offsets, facts.problems.items())

    def _add(self, units: Units) -> None:
        starts = bucket_of(units.due_ms)
        order = np.argsort(starts, kind="stable")
        cuts = np.flatnonzero(np.diff(starts[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            start_ms = int(starts[rows[0]])
            if start_ms not in self._buckets:
                self._put(Bucket(self._files, SavedBucket(start_ms)))
            self._buckets[start_ms].add(units.rows(rows))

    def _put(self, bucket: Bucket) -> None:
        self._buckets[bucket.saved.start_ms] = bucket
        insort(self._starts, bucket.saved.start_ms)

    # --- pending messages -----------------------------------------------------------------------

    def starts(self) -> list[int]:
        """The buckets that there are, in order."""
        return list(self._starts)

    def look(self, start_ms: int, *, keeps: bool = False) -> Units:
        """The pending units of a bucket, in order of delivery. ``keeps`` leaves them in memory."""
        bucket = self._buckets.get(start_ms)
        if bucket is None:
            return Units.none()
        try:
            if keeps:
                bucket.load()
            return bucket.look()
        except (ChecksumError, SourceError) as error:
            self._make_again_for(error)  # from here on no bucket has a file
            return self.look(start_ms, keeps=keeps)

    def _load_until(self, now_ms: int) -> list[Bucket]:
        """The buckets that begin by then, all of them loaded."""
        buckets = [self._buckets[start] for start in self._starts if start <= now_ms]
        try:
            for bucket in buckets:
                bucket.load()
        except (ChecksumError, SourceError) as error:
            self._make_again_for(error)
            return self._load_until(now_ms)
        return buckets

    def due(self, now_ms: int) -> Units:
        """What is due, in the order of delivery. It stays: see ``drop_due``."""
        parts = [bucket.due(now_ms) for bucket in self._load_until(now_ms)]
        return Units.together([part for part in parts if len(part)])

    def drop_due(self, now_ms: int) -> None:
        """What was due waits no more: it was delivered."""
        for bucket in self._load_until(now_ms):
            bucket.drop_due(now_ms)
            self._drop_if_empty(bucket)

    def take_out(self, start_ms: int, offsets: Int64s) -> None:
        """Take the messages at these offsets out of a bucket, as far as they wait there."""
        self.look(start_ms, keeps=True)  # which makes it again where that has to be
        bucket = self._buckets.get(start_ms)
        if bucket is not None:
            bucket.take_out(offsets)
            self._drop_if_empty(bucket)

    def _drop_if_empty(self, bucket: Bucket) -> None:
        if not bucket.count:
            start_ms = bucket.saved.start_ms
            del self._buckets[start_ms]
            self._starts.remove(start_ms)
            self._gone.add(start_ms)

    def first_due_ms(self) -> int | None:
        """When the first of all is due; None where nothing waits."""
        if not self._starts:
            return None
        return self._load_until(self._starts[0])[0].first_due_ms()

    def first_offset(self) -> int:
        """No message that waits has its record before this; the log's end without any."""
        firsts = (bucket.first_offset for bucket in self._buckets.values())
        return min(firsts, default=self.store.log.end)

    # --- into files -------------------------------------------------------------------------------

    def relieve(self) -> None:
        """Let the files take what is in memory when it is much, or when the log has grown so that
        it would take long to find there what was delivered.
        """
        is_much = self.placed_end - self._saved_placed_end > _MANY_UNITS
        if is_much or self.store.log.end - self._saved_log_end > _MUCH_LOG_BYTES:
            with suppress(TargetError):  # the next flush says so; what was delivered is not hidden
                self.save()

    def save(self) -> None:
        """Bring the files to this moment, and to the end of the queue. Raises TargetError."""
        self.place_queued()
        log = self.store.log
        for bucket in self._buckets.values():
            bucket.save()
        state = IndexState(
            placed_end=self.placed_end,
            log_end=log.end,
            last_start=log.last_start,
            last_head=log.head_checksum(log.last_start),
            buckets=tuple(self._buckets[start].saved for start in self._starts),
        )
        self._files.write_state(state)
        self._saved_log_end, self._saved_placed_end = log.end, self.placed_end
        for start_ms in self._gone - self._buckets.keys():
            self._files.remove(start_ms)
        self._gone = set()


Times = TypeVar("Times", int, Int64s)


def bucket_of(due_ms: Times) -> Times:
    """The bucket that a time belongs to, or each of some times."""
    return due_ms - due_ms % SPAN_MS


def _damaged(error: DelayStoreError) -> Finding:
    return found_warning(
        "delaywheel/time-index",
        f"its files cannot be believed: {error}",
        "a broker does not look at it",
        "nothing after a loss of power: it was rebuilt from the log; else find out what damaged it",
    )


def _no_message(queue_offset: int, error: FormatError) -> Finding:
    return found_error(
        f"time index queue {queue_offset}",
        f"an entry that is no timed message: {error}",
        "a broker does not look at it",
        "it was passed over; look at the record",
    )
