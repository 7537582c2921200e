# SPDX-License-Identifier: Apache-2.0
"""Messages of a queue that are decoded only as far as somebody looks at them."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import attrs

from message_store.base.errors import FormatError
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at

_IDENTITY = "{0.commit_log_offset} {0.store_timestamp_ms} {0.born_timestamp_ms} {0.body_crc}"

_TAGS = names.TAGS.encode() + names.NAME_VALUE_SEPARATOR

COMPRESSED = -1
"""In place of where the body begins: a client compressed it."""


class QueuedRecord(NamedTuple):
    """A message as the bytes of its record, which was checked as a whole.

    ``queue_offset`` is that of its queue's entry. ``identity`` is what ``identity_of`` says of the
    decoded message. The body is ``record[body_at:body_end]``, and the record ends with its
    properties. ``body_at`` is ``COMPRESSED`` where a client compressed the body.

    A tuple, because one is made for each message received: a frozen attrs class takes twice as
    long, and to decode the record thirty times.
    """

    queue_offset: int
    identity: int
    record: bytes
    body_at: int
    body_end: int
    properties_at: int

    @property
    def is_compressed(self) -> bool:
        """Whether the stored body is the client's compressed form."""
        return self.body_at == COMPRESSED

    @property
    def body(self) -> bytes:
        """The stored body."""
        if self.body_at == COMPRESSED:
            return self.decoded().body
        return self.record[self.body_at : self.body_end]

    @property
    def properties(self) -> dict[str, str]:
        """Name to value; see ``StoredMessage.properties``. Read on each access."""
        return names.decode_properties(self.record[self.properties_at :])

    @property
    def tags(self) -> str | None:
        """The tag, if it has one. Where one entry says it plainly, the others are not read."""
        text = self.record[self.properties_at :]
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
        message = decode_message_at(self.record, check_crc=False)
        if message.queue_offset == self.queue_offset:
            return message
        return attrs.evolve(message, queue_offset=self.queue_offset)


queued_record_of: Callable[[tuple[Any, ...]], QueuedRecord] = partial(tuple.__new__, QueuedRecord)
"""A queued record from its fields in their order, in half of the time that naming its class takes.
"""

Queued = QueuedRecord | StoredMessage
"""A message of a queue, decoded or not."""


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
