# SPDX-License-Identifier: Apache-2.0
"""The delivered or rolled copy of one pending record: the slow path that is obviously right.

``redelivery.batch`` does the same for many records. A property test holds the two equal byte for
byte (docs/FORMAT.md, commit log record). RocketMQ: ScheduleMessageService#messageTimeup and
TimerMessageStore#convert (5.5.0).
"""

from collections.abc import Iterable

import attrs

from message_store.base.errors import BadFieldError
from message_store.format import properties as names
from message_store.format.java_numbers import INT_MAX, parse_long, string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import encode_message
from message_store.format.message_rules import is_topic_name
from message_store.format.record_layout import (
    MAGIC_V2,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    TOPIC_MAX_CHARS_V1,
)

ALWAYS_DROPPED = frozenset(
    {names.CRC32, names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET}
)
"""The checksum of the record as it was, and queue offsets that were true for it alone: a broker
would index the copy at stale places.
"""
NEVER_DROPPED = frozenset({names.REAL_TOPIC, names.REAL_QUEUE_ID, names.TAGS})

_NAME_MAX_BYTES = 63
_NO_DESTINATIONS = {
    names.HALF_TOPIC: "a half message of a transaction, which is never delivered",
    names.LEVEL_TOPIC: "a message whose real topic is the levels' own",
    names.TIMER_TOPIC: "a message whose real topic is the wheel's own",
    names.TIME_INDEX_TOPIC: "a message whose real topic is the time index's own",
}


def _names(values: Iterable[str]) -> frozenset[str]:
    return frozenset(values)


def _only_others(_rewrite: object, _attribute: object, value: frozenset[str]) -> None:
    if forbidden := value & NEVER_DROPPED:
        raise ValueError(f"{sorted(forbidden)} say where a message goes and who reads it")
    if too_long := [name for name in value if not 0 < len(name.encode()) <= _NAME_MAX_BYTES]:
        raise ValueError(f"not names of 1 to {_NAME_MAX_BYTES} bytes: {too_long}")


@attrs.frozen
class Rewrite:
    """How records are rewritten: their destination, and the properties that are dropped.

    ``topic`` None sends each to its own REAL_TOPIC and REAL_QID, else all to queue 0 of this topic.
    ``dropped`` are names of properties to leave out, besides ``ALWAYS_DROPPED``.
    ``takes_long_topics`` False refuses topics that need a record of version 2: a broker of 4.9 ends
    its log there.
    """

    topic: str | None = None
    dropped: frozenset[str] = attrs.field(
        default=frozenset(), converter=_names, validator=_only_others
    )
    takes_long_topics: bool = True

    @property
    def dropped_names(self) -> frozenset[bytes]:
        """All names that stay behind."""
        return frozenset(name.encode() for name in self.dropped | ALWAYS_DROPPED)


FROM_LEVEL = Rewrite()
"""Delivery out of a level: DELAY, REAL_TOPIC and REAL_QID stay, as a broker leaves them."""
FROM_WHEEL = Rewrite(dropped=[names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS])
"""Delivery out of the wheel: it gets two new stamps."""
ROLLED = Rewrite(
    topic=names.TIMER_TOPIC,
    dropped=[
        names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.DELAY,
    ],
)  # fmt: skip
"""Back into the wheel for another round; a DELAY would send it round the levels for ever."""


def destination_of(message: StoredMessage, how: Rewrite) -> tuple[str, int]:
    """Topic and queue that a record goes to. Raises BadFieldError where it can go nowhere.

    The last of equal properties counts and an empty one does not, as in Java.
    """
    where = message.commit_log_offset
    if message.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_COMMIT):
        raise BadFieldError(
            "a prepared or rolled back transaction, which is never delivered", offset=where
        )
    if how.topic is not None:
        return how.topic, 0
    stored = dict(names.split_entries(message.properties_text))
    for name in (names.REAL_TOPIC, names.REAL_QUEUE_ID):
        if name.encode() not in stored:
            raise BadFieldError(f"no {name}: nobody knows where to deliver it", offset=where)
    topic = _text(stored[names.REAL_TOPIC.encode()], names.REAL_TOPIC, where)
    if problem := topic_problem(topic, how):
        raise BadFieldError(problem, offset=where, found=repr(topic[:64]))
    queue_id = parse_long(_text(stored[names.REAL_QUEUE_ID.encode()], names.REAL_QUEUE_ID, where))
    if not 0 <= queue_id <= INT_MAX:
        raise BadFieldError("REAL_QID is no queue", offset=where, found=queue_id)
    return topic, queue_id


def _text(value: bytes, name: str, where: int) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadFieldError(f"{name} is not UTF-8", offset=where, found=repr(value[:64])) from error


def topic_problem(topic: str, how: Rewrite) -> str | None:
    """Why no record can be delivered to this topic; None where it can be.

    Names that would lead a queue's files out of their directory are refused, however they got here.
    """
    size_bytes = len(topic.encode())
    if problem := _NO_DESTINATIONS.get(topic):
        return problem
    if not is_topic_name(topic):
        return "a real topic that can have no directory of its own"
    if size_bytes > TOPIC_MAX_CHARS_V1 and not how.takes_long_topics:
        return f"a real topic of more than {TOPIC_MAX_CHARS_V1} bytes in a store of 4.9"
    return None


def redelivered_properties(text: bytes, how: Rewrite, suffix: bytes = b"") -> bytes:
    """The properties of the copy: what stays, byte for byte and in order, then ``suffix``.

    ``suffix`` is empty or ends in 0x02. The text ends as it did before, with or without its 0x02.

    >>> rewrite = Rewrite(dropped=["B"])
    >>> redelivered_properties(b"A\\x011\\x02B\\x012", rewrite, b"C\\x013\\x02")
    b'A\\x011\\x02C\\x013'
    """
    entries = text.split(names.PROPERTY_SEPARATOR)
    is_closed = not entries[-1]
    if is_closed:
        entries.pop()
    left_out = how.dropped_names
    kept = []
    for entry in entries:
        name, separator, _ = entry.partition(names.NAME_VALUE_SEPARATOR)
        if not separator or name not in left_out:
            kept.append(entry + names.PROPERTY_SEPARATOR)
    joined = b"".join(kept) + suffix
    return joined if is_closed else joined[:-1]


def redelivered(
    message: StoredMessage,
    how: Rewrite,
    *,
    queue_offset: int,
    position: int,
    store_ms: int,
    suffix: bytes = b"",
    prepared_offset: int = 0,
) -> bytes:
    """The record that takes ``message`` on, at ``position`` of the log.

    Body, its checksum, flags, born time and host, store host and reconsume times stay. A topic of
    more than 127 bytes makes it version 2; brokers count Java characters, and so write records of
    version 1 that nobody can read where the two counts differ. Raises BadFieldError for a message
    that can go nowhere or whose properties outgrow their limit.
    """
    topic, queue_id = destination_of(message, how)
    is_long = len(topic.encode()) > TOPIC_MAX_CHARS_V1
    return encode_message(
        attrs.evolve(
            message,
            topic=topic,
            magic=MAGIC_V2 if is_long else message.magic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            commit_log_offset=position,
            store_timestamp_ms=store_ms,
            prepared_transaction_offset=prepared_offset,
            properties_text=redelivered_properties(message.properties_text, how, suffix),
        )
    )


def tags_code_of(message: StoredMessage) -> int:
    """The tags code of a record's queue unit: Java's hash of the tag, 0 without one."""
    return string_hash(message.tags or "")
