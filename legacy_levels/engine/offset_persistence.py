# SPDX-License-Identifier: Apache-2.0
"""The bulk form of ScheduleMessageService#persist: saves how far the levels are delivered.

delayOffset.json is for brokers, the marks are for ourselves. At an interval, as brokers do: that
survives a kill. At a flush, after everything that it covers: that also survives a loss of power.

Entries that were delivered out of turn are neutralised: no offset tells that they were delivered.
The order: sync the log, which has their copies; neutralise them; sync the queues; write the mark,
before which nobody looks for copies. What an opening knows by copies that a broker made is named in
a mark before it is neutralised. Without that, recovery would give such a copy, which names nothing,
to an equal message that is still pending.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import attrs
import numpy as np

from legacy_levels.delay_offsets import OffsetsWriter
from legacy_levels.delivery_marks import (
    FLUSHED_NAME,
    LATEST_NAME,
    DeliveryMark,
    checksum,
    to_runs,
    write_mark,
)
from legacy_levels.engine.cursor import LevelCursor
from legacy_levels.engine.state import LevelState
from legacy_levels.neutral_units import DELIVERED_BYTES
from message_store.base.errors import TargetError
from message_store.reading.consume_queue import Int64Array

_LOG_BYTES_A_MARK = 64 << 20


@attrs.frozen(eq=False)
class _Snapshot:
    """Where the levels stood at one moment."""

    log_end: int
    offsets: dict[int, int]
    ends: dict[int, int]
    done: dict[int, Int64Array]
    last_start: int
    last_head: int
    broker_table: dict[int, int] | None

    def has_same_deliveries(self, other: "_Snapshot") -> bool:
        """Whether nothing was delivered between the two, and the log is not much longer."""
        is_near = self.log_end - other.log_end < _LOG_BYTES_A_MARK
        is_same = (self.offsets, self.broker_table) == (other.offsets, other.broker_table)
        return is_same and not self.done and is_near

    def says_the_same(self, other: "_Snapshot") -> bool:
        """Whether nothing was delivered between the two, and nothing appended."""
        return self.has_same_deliveries(other) and self.log_end == other.log_end


class OffsetPersistence:
    """Writes down where the levels of one store stand."""

    def __init__(
        self,
        state: LevelState,
        offset_to_save: Callable[[int, int], int],
        broker_table: Callable[[], dict[int, int] | None],
    ) -> None:
        self._state = state
        self._broker_table = broker_table
        self._offset_to_save = offset_to_save
        live = state.live
        self._writer = OffsetsWriter(live.root.path, live.dialect, state.found, live.clock.now_ms())
        self._writing = threading.Lock()
        self._latest: _Snapshot | None = None
        self._flushed: _Snapshot | None = None
        self._next_ms: int | None = None
        self._has_cancels = False

    def note_cancel(self) -> None:
        """An entry was neutralised: the next flush notes durably how far queues are on the disk,
        so that an entry that is rebuilt from its record is known for damage. Called with the
        store's lock held.
        """
        self._has_cancels = True

    def count(self, deliveries: int, now_ms: int) -> None:
        """So many were delivered."""
        self._writer.count(deliveries, now_ms)

    def at_interval(self, now_ms: int) -> None:
        """Write down what changed if it is time to; called with the store's lock held.

        The first time is one interval after the first call. Raises TargetError.
        """
        interval_ms = self._state.rules.timings.persist_offsets_ms
        is_time = self._next_ms is None or not self._next_ms - interval_ms <= now_ms < self._next_ms
        if self._next_ms is not None and is_time:
            with self.try_writing() as is_free:
                if is_free:
                    self._write_latest()
        if is_time:
            self._next_ms = now_ms + interval_ms

    @contextmanager
    def try_writing(self) -> Iterator[bool]:
        """Whether this thread alone may write offsets down; if so, no other does until the end."""
        is_free = self._writing.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._writing.release()

    def make_known(self) -> None:
        """Say durably what was delivered, of which log and queues are on the disk: records of it
        are about to go. Whoever calls is within ``try_writing``. Raises TargetError.

        A full disk has no room for that, and retention has to make some: then it is not said, and
        a loss of power may let delivered messages be told lost.
        """
        now = self._snapshot()
        if self._flushed is None or not now.has_same_deliveries(self._flushed):
            if now.done:  # since the flush of the opening every copy names its record
                self._neutralise(now)
                self._state.live.sync_queues()
            with suppress(TargetError):
                self._state.skipped.save()
                self._put(now, is_durable=True)
                self._latest = self._flushed = now

    def _write_latest(self) -> None:
        now = self._snapshot()
        if self._latest is not None and now.says_the_same(self._latest):
            return
        self._state.live.require_in_place()
        if now.done or self._state.live.settings.repeat_after_kill:  # the offsets alone tell then
            self._state.live.sync_log()
        if now.done:
            self._neutralise(now)
            self._state.live.sync_queues()
        self._put(now, is_durable=False)
        self._latest = now

    def flush(self) -> None:
        """Come back when all that was stored and delivered so far survives a loss of power.

        Raises TargetError.
        """
        with self._writing:
            self._flush()

    def close(self) -> None:
        """Flush, and close the store, without anything between the two; twice is fine."""
        live = self._state.live
        with self._writing, live.lock:
            try:
                if not live.is_closed and not live.log.is_broken:
                    self._flush(is_last=True)
            except BaseException:
                live.abandon()
                raise
            live.close()

    def _flush(self, *, is_last: bool = False) -> None:
        """Where messages only came in, a flush costs one mark that is not synced: the log has all
        that it says. The last flush leaves marks that name the very end of the log.
        """
        live = self._state.live
        with live.lock:
            live.require_open()
            now = self._snapshot()
            is_new, self._has_cancels = self._has_cancels, False
        live.sync_log()
        is_new |= self._flushed is None or not now.has_same_deliveries(self._flushed)
        if is_last and self._flushed is not None:
            is_new |= not now.says_the_same(self._flushed)
        if self._flushed is None and now.done:
            live.sync_queues()
            self._put(now, is_durable=True)
        with live.lock:
            self._neutralise(now)
        live.flush()  # offsets come after all that they speak of
        self._state.skipped.save()
        if is_new:
            self._put(now, is_durable=True)
            self._latest = self._flushed = now
        elif self._latest is None or not now.says_the_same(self._latest):
            self._put(now, is_durable=False)
            self._latest = now

    def _snapshot(self) -> _Snapshot:
        # The log of a store in doubt may offset_to_save deliveries that nobody has counted.
        self._state.live.log.require_unbroken()
        cursors, log = self._state.cursors, self._state.live.log
        return _Snapshot(
            log.end,
            {level: self._offset_to_save(level, cursor.head) for level, cursor in cursors.items()},
            {level: cursor.queue.max_offset for level, cursor in cursors.items()},
            {level: cursor.done for level, cursor in cursors.items() if len(cursor.done)},
            log.last_start,
            log.head_checksum(log.last_start),
            self._broker_table(),
        )

    def _neutralise(self, snapshot: _Snapshot) -> None:
        """Let the units say what was delivered out of turn; the copies are on disk by now."""
        for level, done in snapshot.done.items():
            cursor = self._state.cursors[level]
            neutralise(self._state, cursor, np.intersect1d(done, cursor.done), DELIVERED_BYTES)
            cursor.done = np.setdiff1d(cursor.done, done)

    def _put(self, snapshot: _Snapshot, *, is_durable: bool) -> None:
        table = snapshot.broker_table
        text = self._writer.encode(self._table(snapshot.offsets) if table is None else table)
        mark = DeliveryMark(
            snapshot.log_end,
            snapshot.offsets,
            (checksum(self._writer.text), checksum(text)),
            snapshot.ends,
            {level: to_runs(done) for level, done in snapshot.done.items()},
            snapshot.last_start,
            snapshot.last_head,
            self._state.table.text(),
        )
        root = self._state.live.root.path
        if is_durable:
            write_mark(root, FLUSHED_NAME, mark, is_durable=True)
        write_mark(root, LATEST_NAME, mark, is_durable=is_durable)
        if text != self._writer.text or (is_durable and not self._writer.is_durable):
            self._writer.write(text, is_durable=is_durable)

    def _table(self, offsets: dict[int, int]) -> dict[int, int]:
        """What delayOffset.json names: levels that it named, and those that were ever used."""
        named = self._state.found.offsets
        return {level: at for level, at in offsets.items() if at or level in named} | {
            level: at for level, at in named.items() if level not in offsets
        }


def neutralise(
    state: LevelState, cursor: LevelCursor, queue_offsets: Int64Array, size_bytes: int
) -> None:
    """Make these entries, in order, ones that nobody delivers.

    Raises TargetError; the store is in doubt then: nobody knows which of them are.
    """
    try:
        state.queue(cursor.level).neutralise(queue_offsets, size_bytes)
    except TargetError:
        state.live.log.break_off()
        raise
