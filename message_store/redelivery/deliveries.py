# SPDX-License-Identifier: Apache-2.0
"""The deliveries of an engine, as a sequence over the log: an item is made when it is read."""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.base.errors import TruncatedRecordError
from message_store.columns.byte_column import Int64s, int64s
from message_store.columns.message_batch import StoredBatch, decode_batch
from message_store.interface.delay_store import Delivered, Pending
from message_store.interface.waiting_messages import WaitingFilter, pending_of
from message_store.kernels.batch import gather
from message_store.kernels.raw_memory import address_of
from message_store.writing.store import LiveStore


@attrs.frozen(eq=False)
class LogDeliveries:
    """Deliveries that are places in a store's log, in order of delivery.

    It keeps three numbers a message. Looking into it raises StoreClosedError once the store is
    closed, and FormatError for a record that retention has deleted since; batches that were made
    before stay as they are. ``one + another`` are those of both.
    """

    store: LiveStore
    offsets: Int64s = attrs.field(converter=int64s)
    sizes: Int64s = attrs.field(converter=int64s)
    promised_ms: Int64s = attrs.field(converter=int64s)

    def __attrs_post_init__(self) -> None:
        if not len(self.offsets) == len(self.sizes) == len(self.promised_ms):
            raise ValueError("offsets, sizes and promised times differ in length")

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> Delivered:
        row = range(len(self))[index]
        return self._delivered(
            int(self.offsets[row]), int(self.sizes[row]), int(self.promised_ms[row])
        )

    def __iter__(self) -> Iterator[Delivered]:
        rows = zip(
            self.offsets.tolist(), self.sizes.tolist(), self.promised_ms.tolist(), strict=True
        )
        for offset, size_bytes, promised_ms in rows:
            yield self._delivered(offset, size_bytes, promised_ms)

    def __add__(self, other: "LogDeliveries") -> "LogDeliveries":
        if other.store is not self.store:
            raise ValueError("deliveries of two stores")
        pairs = (
            (self.offsets, other.offsets),
            (self.sizes, other.sizes),
            (self.promised_ms, other.promised_ms),
        )
        return LogDeliveries(self.store, *map(np.concatenate, pairs))

    def to_batch(self) -> StoredBatch:
        """All of them as columns, in memory of their own. Raises TruncatedRecordError, with its
        offset, for a record that retention took meanwhile.
        """
        packed = np.empty(int(self.sizes.sum()), np.uint8)
        with self.store.reading():
            addresses = self.store.log.record_addresses(self.offsets, self.sizes)
            for row in np.flatnonzero(self.offsets < self.store.log.min_offset)[:1].tolist():
                raise _deleted(int(self.offsets[row]))
            for row in np.flatnonzero(addresses < 0)[:1].tolist():
                raise TruncatedRecordError(
                    "the log no longer holds this record", offset=int(self.offsets[row])
                )
            gather(
                0, address_of(addresses), address_of(self.sizes), len(self), address_of(packed),
                packed.size,
            )  # fmt: skip
        return decode_batch(packed, np.cumsum(self.sizes) - self.sizes)

    def _delivered(self, offset: int, size_bytes: int, promised_ms: int) -> Delivered:
        with self.store.reading():
            if offset < self.store.log.min_offset:
                raise _deleted(offset)
            return Delivered(self.store.log.record(offset, size_bytes), promised_ms)


def pending_among(
    store: LiveStore, pieces: Iterator[LogDeliveries], wanted: WaitingFilter
) -> Iterator[Pending]:
    """Those of the messages in these pieces, which wait, that pass and can be read. Raises
    StoreClosedError when the store is closed meanwhile.
    """
    while True:
        with store.reading():
            piece = next(pieces, None)
        if piece is None:
            return
        columns = piece.offsets.tolist(), piece.sizes.tolist(), piece.promised_ms.tolist()
        for offset, size_bytes, due_ms in zip(*columns, strict=True):
            with store.reading():
                # Retention took what is lost meanwhile: it was delivered, or rolled.
                message = store.log.readable_record(offset, size_bytes)
            if message is not None and wanted.passes(message):
                yield pending_of(message, due_ms, size_bytes)


def _deleted(offset: int) -> TruncatedRecordError:
    return TruncatedRecordError(
        "retention has deleted the log file of this delivery; look into deliveries earlier",
        offset=offset,
    )
