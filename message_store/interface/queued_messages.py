# SPDX-License-Identifier: Apache-2.0
"""Messages of a queue that are decoded only as far as somebody looks at them."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, overload

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at

_IDENTITY = "{0.commit_log_offset} {0.store_timestamp_ms} {0.born_timestamp_ms} {0.body_crc}"

_TAGS = names.TAGS.encode() + names.NAME_VALUE_SEPARATOR


COMPRESSED = -1
"""In place of where the body begins: a client compressed it."""


class QueuedRecord(NamedTuple):
    """A message as the bytes of its record, ``data[start:end]``, which was checked as a whole.

    ``queue_offset`` is that of its queue's entry. ``identity`` is what ``identity_of`` says of the
    decoded message. The body is ``data[body_at:body_end]``, and the record ends with its
    properties. ``body_at`` is ``COMPRESSED`` where a client compressed the body.

    A tuple, because one is made for each look at a message: a frozen attrs class takes twice as
    long, and to decode the record thirty times.
    """

    data: bytes
    queue_offset: int
    identity: int
    start: int
    body_at: int
    body_end: int
    properties_at: int
    end: int

    @property
    def is_compressed(self) -> bool:
        """Whether the stored body is the client's compressed form."""
        return self.body_at == COMPRESSED

    @property
    def body(self) -> bytes:
        """The stored body."""
        if self.body_at == COMPRESSED:
            return self.decoded().body
        return self.data[self.body_at : self.body_end]

    @property
    def properties(self) -> dict[str, str]:
        """Name to value; see ``StoredMessage.properties``. Read on each access."""
        return names.decode_properties(self.data[self.properties_at : self.end])

    @property
    def tags(self) -> str | None:
        """The tag, if it has one. Where one entry says it plainly, the others are not read."""
        text = self.data[self.properties_at : self.end]
        before, is_there, rest = text.partition(_TAGS)
        if not is_there:
            return None
        value = rest.partition(names.PROPERTY_SEPARATOR)[0]
        is_plain = (
            before[-1:] in (b"", names.PROPERTY_SEPARATOR) and _TAGS not in rest and value.isascii()
        )
        return value.decode() if is_plain and value else self.properties.get(names.TAGS)

    def decoded(self) -> StoredMessage:
        """All of it. The queue offset is the entry's: a flipped bit of a record misleads nobody."""
        message = decode_message_at(self.data[self.start : self.end], check_crc=False)
        if message.queue_offset == self.queue_offset:
            return message
        return attrs.evolve(message, queue_offset=self.queue_offset)


Queued = QueuedRecord | StoredMessage
"""A message of a queue, decoded or not."""

_record_of: Callable[[tuple[Any, ...]], QueuedRecord] = partial(tuple.__new__, QueuedRecord)
"""A queued record from its fields in their order, in half of the time that naming its class takes.
"""


class QueuedRecords(Sequence[Queued]):
    """Messages whose records lie one behind another in ``data``. Each is made when it is looked at:
    of a thousand objects that wait for a handler, the garbage collector takes longer than the rest.

    ``table`` has a row for each, with the fields of ``QueuedRecord`` behind its data. Whoever keeps
    one message keeps the records of all.
    """

    def __init__(self, data: bytes, table: NDArray[np.int64]) -> None:
        self._data, self._table = data, table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, row: int) -> QueuedRecord: ...

    @overload
    def __getitem__(self, row: slice) -> "QueuedRecords": ...

    def __getitem__(self, row: int | slice) -> "QueuedRecord | QueuedRecords":
        if isinstance(row, slice):
            return QueuedRecords(self._data, self._table[row])
        return _record_of((self._data, *self._table[row].tolist()))

    def __iter__(self) -> Iterator[QueuedRecord]:
        return (_record_of((self._data, *fields)) for fields in self._table.tolist())


class QueuePart(NamedTuple):
    """The messages of a queue up to the queue offset ``end``, in order.

    ``damaged`` says by queue offset why a record cannot be read.
    """

    messages: Sequence[Queued]
    end: int
    damaged: Mapping[int, FormatError]


def identity_of(message: Queued) -> int:
    """CRC-32 of what distinguishes a record from another that takes its queue offset later.

    A loss of power can take a record that was acknowledged. The queue then grows again, and the
    acknowledgement must not count for the next record at this offset.
    """
    if isinstance(message, QueuedRecord):
        return message.identity
    return zlib.crc32(_IDENTITY.format(message).encode(), zlib.crc32(message.properties_text))
