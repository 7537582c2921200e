# SPDX-License-Identifier: Apache-2.0
"""Delivers or rolls many due records at once: appends them to the log and to their queues.

Law: the bytes are those of ``redelivery.record``. Kernels measure all rows, the log gives each its
offset, and kernels write them. The scalar code makes a row of unusual shape, at its own offset. A
row that is damaged, or whose destination is unknown, is reported and left out.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import ByteColumn, Int64s, int64s
from message_store.format.message import StoredMessage
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.kernels.raw_memory import address_of
from message_store.redelivery.destinations import Destination, DestinationTable
from message_store.redelivery.kernels import (
    DESTINATION,
    FOUND_COLUMNS,
    NEW_SIZE,
    TAGS_CODE,
    fill_records,
    fill_units,
    mark_damaged_bodies,
    measure_records,
    number_rows,
    read_all_lines,
)
from message_store.redelivery.record import (
    FROM_LEVEL,
    FROM_WHEEL,
    ROLLED,
    Rewrite,
    destination_of,
    redelivered,
    tags_code_of,
    topic_problem,
)
from message_store.writing.store import LiveStore

Bools = NDArray[np.bool_]


@lru_cache
def dropped_table(dropped: frozenset[bytes]) -> tuple[ByteColumn, Int64s]:
    """Names for a kernel, an address and a length each; the column keeps them where they are."""
    column = ByteColumn.of(sorted(dropped))
    starts = address_of(column.data) + column.starts
    return column, np.ascontiguousarray(np.stack([starts, column.lengths], axis=1))


@attrs.frozen(eq=False)
class Measured:
    """Records of one log by offset, size and the length of what is added to each, and what
    ``measure_records`` found of them; ``addresses`` are where they lie, ``table`` has the numbers
    of their destinations.

    It can be found out before they are due: by the record, which does not change, the rules of
    rewriting and the length of what is added. That is a quarter to a third of a delivery from a
    large log, because every record is a cache miss. ``begins`` is where the log began then: while
    it does, no memory was given back.
    """

    offsets: Int64s
    sizes: Int64s
    suffix_lengths: Int64s
    begins: int
    how: Rewrite
    addresses: Int64s
    found: Int64s
    table: DestinationTable

    @classmethod
    def of(
        cls,
        store: LiveStore,
        offsets: Int64s,
        sizes: Int64s,
        suffix_lengths: Int64s,
        how: Rewrite,
        *,
        known: "Measured | None" = None,
    ) -> "Measured":
        """Measure these records, but for those that are ``known``. A store of 4.9 takes no long
        topics, whatever ``how`` says.

        The store's lock is held. One that is not there has a negative address.
        """
        log = store.log
        takes_long = how.takes_long_topics and store.dialect.knows_long_topics
        how = attrs.evolve(how, takes_long_topics=takes_long)
        if known is not None and (known.begins, known.how) != (log.min_offset, how):
            known = None
        addresses = log.record_addresses(offsets, sizes)
        found = np.zeros((FOUND_COLUMNS, len(offsets)), np.int64)
        table = DestinationTable() if known is None else known.table.copy()
        if how.topic is not None:
            table.number_of(how.topic.encode(), 0)
        this = cls(offsets, sizes, suffix_lengths, log.min_offset, how, addresses, found, table)
        rest = None if known is None else this._take_over(known)
        if rest is None:
            this._measure()
        elif len(rest):
            part = attrs.evolve(
                this,
                offsets=offsets[rest],
                sizes=sizes[rest],
                suffix_lengths=suffix_lengths[rest],
                addresses=addresses[rest],
                found=np.zeros((FOUND_COLUMNS, len(rest)), np.int64),
            )
            part._measure()
            found[:, rest] = part.found
        return this

    def prefetch(self) -> None:
        """Bring the whole records into the cache, because they will be copied at once."""
        read_all_lines(self.addresses, self.sizes)

    def _take_over(self, known: "Measured") -> Int64s:
        """Copy what is known of these records; returns the rows of which nothing is."""
        count = min(len(self.offsets), len(known.offsets))
        is_known = np.zeros(len(self.offsets), np.bool_)
        is_known[:count] = self._is_like(known, slice(count), slice(count))
        if is_known[:count].all():
            self.found[:, :count] = known.found[:, :count]
            return np.arange(count, len(self.offsets))
        order = np.argsort(known.offsets, kind="stable")
        places = np.searchsorted(known.offsets, self.offsets, sorter=order)
        its_rows = order[np.minimum(places, len(order) - 1)]
        is_known = self._is_like(known, slice(None), its_rows)
        self.found[:, is_known] = known.found[:, its_rows[is_known]]
        return np.flatnonzero(~is_known)

    def _is_like(self, other: "Measured", rows: slice, its_rows: slice | Int64s) -> Bools:
        """Which of some rows are those of another."""
        is_like: Bools = (
            (self.offsets[rows] == other.offsets[its_rows])
            & (self.sizes[rows] == other.sizes[its_rows])
            & (self.suffix_lengths[rows] == other.suffix_lengths[its_rows])
            & (other.addresses[its_rows] >= 0)
        )
        return is_like

    def _measure(self) -> None:
        _, dropped = dropped_table(self.how.dropped_names)
        row = 0
        while True:
            row = measure_records(
                self.addresses, self.sizes, self.offsets, self.suffix_lengths,
                self.how.topic is not None, dropped, self.table.rows, self.table.slots,
                self.table.used, self.found, row,
            )  # fmt: skip
            if row == len(self.offsets):
                return
            self.table.grow()


__all__ = [
    "FROM_LEVEL",
    "FROM_WHEEL",
    "ROLLED",
    "Redelivered",
    "Rewrite",
    "redeliver",
    "redelivered",
    "rows_without_successor",
]


@attrs.frozen(eq=False)
class Redelivered:
    """The appended records: a position and a size for each of ``rows``, the indexes of the input.

    ``bad`` are the rows that were not, each with what is wrong with it. ``counts`` say how many
    went to which queue.
    """

    positions: Int64s
    sizes: Int64s
    rows: Int64s
    bad: list[tuple[int, FormatError]]
    counts: dict[Destination, int]


def redeliver(
    store: LiveStore,
    offsets: Int64s,
    sizes: Int64s,
    how: Rewrite,
    *,
    suffixes: ByteColumn | None = None,
    prepared_offsets: Int64s | None = None,
    store_ms: int,
    known: Measured | None = None,
) -> Redelivered:
    """Append the successors of the records at these places of the log, in row order, and their
    queue units.

    All are appended or, if it fails or the process is killed, none. ``suffixes`` are ready
    properties to add, each closed by 0x02, ``prepared_offsets`` the prepared transaction offset of
    each, or none for 0; ``known`` is what was found of some records before. What is missing,
    damaged or can go nowhere comes back in ``bad``. A store of 4.9 takes no long topics, whatever
    ``how`` says. Raises TargetError when the disk refuses.
    """
    prepared = int64s([]) if prepared_offsets is None else int64s(prepared_offsets)
    given = store, int64s(offsets), int64s(sizes), how, suffixes, prepared, store_ms
    with store.reading():
        try:
            return _Redelivery(*given, known=known).run()
        except _DamagedBodyError:  # nothing was stored: now look at all before anything is written
            return _Redelivery(*given, doubts_bodies=True).run()


def rows_without_successor(
    store: LiveStore, offsets: Int64s, sizes: Int64s, how: Rewrite, *, store_ms: int
) -> list[tuple[int, FormatError]]:
    """What ``redeliver`` would give back in ``bad`` for these rows; nothing is written.

    For callers whose ``redeliver`` failed: these rows need no second try.
    """
    with store.reading():
        given = store, int64s(offsets), int64s(sizes), how, None, int64s([]), store_ms
        looked = _Redelivery(*given, doubts_bodies=True)
        looked.measure()
        return looked.bad


class _DamagedBodyError(Exception):
    """A body did not have its checksum when it was copied."""


class _Redelivery:
    """One call of ``redeliver``; a row of input keeps its number until all are measured."""

    def __init__(
        self,
        store: LiveStore,
        offsets: Int64s,
        sizes: Int64s,
        how: Rewrite,
        suffixes: ByteColumn | None,
        prepared_offsets: Int64s,
        store_ms: int,
        *,
        known: Measured | None = None,
        doubts_bodies: bool = False,
    ) -> None:
        count = len(offsets)
        self.doubts_bodies = doubts_bodies
        self.store, self.log, self.store_ms = store, store.log, store_ms
        self.offsets, self.sizes = offsets, sizes
        self.suffixes = ByteColumn.repeat(None, count) if suffixes is None else suffixes
        self.prepared_offsets = prepared_offsets
        if not len(sizes) == len(self.suffixes) == count or len(prepared_offsets) not in (0, count):
            raise ValueError("offsets, sizes, suffixes and prepared offsets differ in length")
        facts = Measured.of(store, offsets, sizes, self.suffixes.lengths, how, known=known)
        self.how = facts.how
        self.addresses, self.found, self.table = facts.addresses, facts.found, facts.table
        self.names, self.dropped = dropped_table(self.how.dropped_names)
        self.bad: list[tuple[int, FormatError]] = []

    def run(self) -> Redelivered:
        """Measure, and append what can be."""
        self.measure()
        return self.append()

    def measure(self) -> None:
        """See for every row that its successor can be made, or what is wrong with it."""
        if self.doubts_bodies:
            mark_damaged_bodies(self.addresses, self.sizes, self.found)
        if self.how.topic is None:
            self._mark_unusable_destinations()
        new_sizes = self.found[NEW_SIZE]
        new_sizes[new_sizes > self.log.file_bytes - END_OF_FILE_MIN_BYTES] = 0
        for odd in np.flatnonzero(new_sizes == 0).tolist():
            self.addresses[odd] = -1
            try:
                self._measure_odd(odd)
            except FormatError as error:
                self.bad.append((odd, error))

    def _mark_unusable_destinations(self) -> None:
        """Leave to the scalar code, which says what is wrong, what nothing can be delivered to."""
        found = self.found
        for number, destination in enumerate(self.table.destinations()):
            text = destination.topic.decode("utf-8", "replace")
            if "\ufffd" in text or topic_problem(text, self.how):
                found[NEW_SIZE, found[DESTINATION] == number] = 0

    def _measure_odd(self, row: int) -> None:
        """The same as the kernel for one row, by the scalar code."""
        message = self._message(row)
        topic, queue_id = destination_of(message, self.how)
        size_bytes = len(self._odd_record(row, message, queue_offset=0, position=0))
        if size_bytes + END_OF_FILE_MIN_BYTES > self.log.file_bytes:
            raise BadFieldError(
                "a record larger than a log file",
                offset=message.commit_log_offset,
                expected=f"at most {self.log.file_bytes - END_OF_FILE_MIN_BYTES}",
                found=size_bytes,
            )
        self.found[NEW_SIZE, row] = size_bytes
        self.found[DESTINATION, row] = self.table.number_of(topic.encode(), queue_id)
        self.found[TAGS_CODE, row] = tags_code_of(message)

    def _message(self, row: int) -> StoredMessage:
        return self.log.record(int(self.offsets[row]), int(self.sizes[row]))

    def _odd_record(
        self, row: int, message: StoredMessage, *, queue_offset: int, position: int
    ) -> bytes:
        return redelivered(
            message,
            self.how,
            queue_offset=queue_offset,
            position=position,
            store_ms=self.store_ms,
            suffix=self.suffixes[row],
            prepared_offset=int(self.prepared_offsets[row]) if len(self.prepared_offsets) else 0,
        )

    def append(self) -> Redelivered:
        """Write what was measured: the log first, then the queues."""
        rows = np.arange(len(self.offsets), dtype=np.int64)
        if self.bad:
            rows = self._leave_out_bad_rows()
        if not len(rows):
            return Redelivered(rows, rows, rows, self.bad, {})
        numbers, sizes = self.found[DESTINATION], self.found[NEW_SIZE]
        counts = np.bincount(numbers, minlength=len(self.table))
        wanted = np.flatnonzero(counts)
        names_of = self.table.destinations()
        targets = [names_of[number] for number in wanted.tolist()]
        queues = [self.store.queue(to.topic.decode(), to.queue_id) for to in targets]
        first_offsets = np.zeros(len(counts), np.int64)
        first_offsets[wanted] = [queue.max_offset for queue in queues]
        queue_offsets = np.empty(len(rows), np.int64)
        number_rows(numbers, first_offsets.copy(), queue_offsets)
        positions = self.log.append_rows(sizes, self._filler(queue_offsets))

        ends = np.cumsum(counts)
        units = np.empty(len(rows), QUEUE_UNIT.dtype)
        places = ends - counts - first_offsets
        fill_units(
            numbers, queue_offsets, places, positions, sizes, self.found[TAGS_CODE],
            address_of(units),
        )  # fmt: skip
        for number, to, queue in zip(wanted.tolist(), targets, queues, strict=True):
            queue.append(units[ends[number] - counts[number] : ends[number]])
            self.store.remember_topic(to.topic.decode(), to.queue_id)
        gone = dict(zip(targets, counts[wanted].tolist(), strict=True))
        return Redelivered(positions, sizes, rows, self.bad, gone)

    def _leave_out_bad_rows(self) -> Int64s:
        """Only what can be appended stays; returns which rows of input that is."""
        rows = np.flatnonzero(self.found[NEW_SIZE] > 0)
        self.found = np.ascontiguousarray(self.found[:, rows])
        self.addresses, self.offsets, self.sizes = (
            self.addresses[rows], self.offsets[rows], self.sizes[rows],
        )  # fmt: skip
        self.suffixes = self.suffixes.take(rows)
        if len(self.prepared_offsets):
            self.prepared_offsets = self.prepared_offsets[rows]
        return rows

    def _filler(self, queue_offsets: Int64s) -> Callable[[slice, Int64s, int], None]:
        """The function by which the log lets a piece of the rows be written to an address."""
        odd_rows = np.flatnonzero(self.addresses < 0)
        suffix_block, _, _ = self.suffixes.addresses

        def fill(rows: slice, positions: Int64s, target: int) -> None:
            damaged = fill_records(
                self.addresses, self.sizes, self.found, self.dropped, self.table.rows,
                queue_offsets, positions, self.prepared_offsets, suffix_block, self.suffixes.starts,
                self.suffixes.lengths, self.store_ms, rows.start, rows.stop, target,
            )  # fmt: skip
            if damaged >= 0:
                raise _DamagedBodyError(damaged)
            first, last = np.searchsorted(odd_rows, [rows.start, rows.stop])
            for row in odd_rows[first:last].tolist():
                position = int(positions[row])
                record = self._odd_record(
                    row,
                    self._message(row),
                    queue_offset=int(queue_offsets[row]),
                    position=position,
                )
                ctypes.memmove(target + position - int(positions[rows.start]), record, len(record))

        return fill
