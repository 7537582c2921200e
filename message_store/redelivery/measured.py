# SPDX-License-Identifier: Apache-2.0
"""The result of the first pass over due records, which can be computed before they are due.

It depends on the record, which does not change, on the rules of rewriting, and on the length of
what is added. The first pass is a quarter to a third of a delivery from a large
log: every record is a cache miss.
"""

from functools import lru_cache

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import ByteColumn, Int64s
from message_store.kernels.raw_memory import address_of
from message_store.redelivery.destinations import DestinationTable
from message_store.redelivery.kernels import FOUND_COLUMNS, measure_records, read_all_lines
from message_store.redelivery.record import Rewrite
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

    ``begins`` is where the log began then: while it does, no memory was given back.
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
