# SPDX-License-Identifier: Apache-2.0
"""Rewrites one level record as the timer record that replaces it: the slow path, plainly right.

``rewriter`` does the same for records of the usual shape and leaves all others to this module,
which decides between odd and bad. Section "Converted record" of docs/FORMAT.md lists what changes.
"""

import attrs

from message_store.base.errors import BadFieldError, DelayStoreError, FormatError
from message_store.format import message_rules as rules
from message_store.format import properties as names
from message_store.format.java_numbers import parse_long, string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.format.record_layout import (
    END_OF_FILE_MIN_BYTES,
    MAGIC_V1,
    PROPERTIES_MAX_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    head_layout,
)
from message_store.format.timer_record_rules import timer_record_faults

REMOVED_PROPERTIES = frozenset(
    name.encode()
    for name in (
        names.DELAY,
        names.TIMER_OUT_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_ROLL_LABEL,
        names.TIMER_DELETE_UNIQUE_KEY,
        names.CRC32,
        names.INNER_MULTI_DISPATCH,
        names.INNER_MULTI_QUEUE_OFFSET,
    )
)
"""Properties that a converted record must not carry; each would delay, double, delete or re-index
it.
"""

DELIVERY_GROWTH_BYTES = rules.DELIVERY_GROWTH_BYTES
QUEUE_ID_MAX = rules.QUEUE_ID_MAX
REAL_TOPIC_MAX_BYTES = rules.TOPIC_MAX_BYTES
RECORD_MARGIN_BYTES = rules.TIMED_RECORD_MARGIN_BYTES
"""What a broker takes and delivers: a converted record is held to what every store is."""


class BadRecordError(DelayStoreError):
    """A pending record that cannot become a timer record, and why."""


@attrs.frozen
class RewriteLimits:
    """What the target's broker accepts: total bytes of a record."""

    record_max_bytes: int
    commit_log_file_bytes: int


@attrs.frozen
class Placement:
    """Where one record comes from, and where its successor goes."""

    level: int
    source_offset: int
    source_size_bytes: int
    out_ms: int
    target_offset: int
    target_queue_offset: int
    now_ms: int


@attrs.frozen
class Rewritten:
    """A timer record, and what its queue unit, timer log unit and the counts need to know of it."""

    record: bytes
    real_topic: bytes
    real_queue_id: int
    topic_hash: int
    tags_hash: int


def growth_bytes(level: int, out_ms: int) -> int:
    """By how much a usual record grows: ``DELAY`` and its digits go, ``TIMER_OUT_MS`` and its
    digits come.

    >>> growth_bytes(5, 1_700_000_000_000), growth_bytes(18, 1_700_000_000_000)
    (19, 18)
    """
    gone = len(names.DELAY) + len(str(level))
    return len(names.TIMER_OUT_MS) + len(str(out_ms)) - gone


def rewrite_record(record: bytes, placement: Placement, limits: RewriteLimits) -> Rewritten:
    """The timer record for a level record, with every check that the conversion promises.

    ``record`` are the bytes at the queue entry's offset, as many as the entry says. The result is
    what RocketMQ makes of a timed message: HookUtils#transformTimerMessage (5.3). Raises
    BadRecordError with the reason.
    """
    try:
        message = decode_message_at(record)
    except FormatError as error:
        raise BadRecordError(f"unreadable: {error.problem}") from error
    _check_head(message, record, placement)
    real_topic, real_queue_id = _check_properties(message, placement.level)
    text = rewrite_properties(message.properties_text, placement.out_ms)
    timer = attrs.evolve(
        message,
        topic=names.TIMER_TOPIC,
        magic=MAGIC_V1,
        queue_id=0,
        queue_offset=placement.target_queue_offset,
        commit_log_offset=placement.target_offset,
        store_timestamp_ms=placement.now_ms,
        prepared_transaction_offset=0,
        properties_text=text,
    )
    if len(text) > PROPERTIES_MAX_BYTES:
        raise BadRecordError(f"{len(text):,} bytes of properties would outgrow their limit")
    converted = encode_message(timer)
    for fault, what in timer_record_faults(timer, len(converted), limits.record_max_bytes):
        raise BadRecordError(f"{what}: {fault.value}")
    if len(converted) + END_OF_FILE_MIN_BYTES > limits.commit_log_file_bytes:
        raise BadRecordError(
            f"{len(converted)} bytes, more than a commit log file of the target holds"
        )
    return Rewritten(
        record=converted,
        real_topic=real_topic,
        real_queue_id=real_queue_id,
        topic_hash=string_hash(real_topic.decode("utf-8", "replace")),
        tags_hash=string_hash(message.tags or ""),
    )


def _check_head(message: StoredMessage, record: bytes, placement: Placement) -> None:
    size_bytes = len(record)
    stated = head_layout(message.sys_flag).decode_at(record, 0)["size_bytes"]
    if stated != size_bytes:
        raise BadRecordError(f"the record has {stated} bytes, its queue entry says {size_bytes}")
    if message.topic != names.LEVEL_TOPIC:
        raise BadRecordError(f"a record of topic {message.topic!r}, not of {names.LEVEL_TOPIC}")
    if message.commit_log_offset != placement.source_offset:
        raise BadRecordError(f"the record says that it lies at {message.commit_log_offset}")
    if message.queue_id != placement.level - 1:
        raise BadRecordError(
            f"the record is of queue {message.queue_id}, found in queue {placement.level - 1}"
        )
    if message.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_COMMIT):
        raise BadRecordError("a prepared or rolled back transaction, which is never delivered")


def _check_properties(message: StoredMessage, level: int) -> tuple[bytes, int]:
    """The real topic and real queue id, or BadRecordError."""
    stored = dict(
        names.split_entries(message.properties_text)
    )  # the last of equal names wins, as in Java
    if (delay := stored.get(names.DELAY.encode())) is None:
        raise BadRecordError("no DELAY")
    if _whole_number(delay) != level:
        raise BadRecordError(f"DELAY is {_shown(delay)}, found in the queue of level {level}")
    if (topic := stored.get(names.REAL_TOPIC.encode())) is None:
        raise BadRecordError("no REAL_TOPIC: nobody knows where to deliver it")
    if not is_deliverable_topic(topic):
        raise BadRecordError(f"REAL_TOPIC {_shown(topic)} cannot be delivered to")
    if (queue_id := stored.get(names.REAL_QUEUE_ID.encode())) is None:
        raise BadRecordError("no REAL_QID: nobody knows where to deliver it")
    number = _whole_number(queue_id)
    if number is None or not 0 <= number <= QUEUE_ID_MAX:
        raise BadRecordError(f"REAL_QID {_shown(queue_id)} is no queue")
    return topic, number


def is_deliverable_topic(topic: bytes) -> bool:
    """Whether a broker could deliver to a topic of this name, by the rule for every message.

    One with U+FFFD was not UTF-8: that stands for the byte once a record is decoded.
    """
    try:
        text = topic.decode()
        rules.check_topic(text)
    except (BadFieldError, UnicodeDecodeError):
        return False
    return "\ufffd" not in text


def _whole_number(text: bytes) -> int | None:
    try:
        return parse_long(text.decode())
    except (BadFieldError, UnicodeDecodeError):
        return None


def _shown(text: bytes) -> str:
    return repr(text[:64].decode("utf-8", "replace"))


def rewrite_properties(text: bytes, out_ms: int) -> bytes:
    """The properties of the timer record: ``TIMER_OUT_MS`` where ``DELAY`` stood, what must go
    gone, the rest as is.

    The ending stays as it was, with or without its separator.

    >>> rewrite_properties(b"A\\x01x\\x02DELAY\\x015\\x02", 1_700_000_000_000)
    b'A\\x01x\\x02TIMER_OUT_MS\\x011700000000000\\x02'
    """
    timer = names.TIMER_OUT_MS.encode() + names.NAME_VALUE_SEPARATOR + str(out_ms).encode()
    kept = []
    for entry in text.split(names.PROPERTY_SEPARATOR):
        name, separator, _ = entry.partition(names.NAME_VALUE_SEPARATOR)
        if not separator or name not in REMOVED_PROPERTIES:
            kept.append(entry)
        elif name == names.DELAY.encode() and timer not in kept:
            kept.append(timer)
    return names.PROPERTY_SEPARATOR.join(kept)


def real_topic_of(record: bytes) -> bytes | None:
    """Where a level record is to be delivered, or None when that cannot be read."""
    try:
        message = decode_message_at(record, check_crc=False)  # a bad body has its topic
        stored = dict(names.split_entries(message.properties_text))
    except FormatError:
        return None
    return stored.get(names.REAL_TOPIC.encode())
