# SPDX-License-Identifier: Apache-2.0
"""The properties text of a record: names and values between two control characters, and the names
that matter.

``name 0x01 value 0x02 name 0x01 value 0x02``; brokers of 4.9.1 to 5.1.4 leave the last 0x02 out.
Nothing is escaped, so names and values cannot hold the two separators (docs/FORMAT.md, properties).
"""

import re
from collections.abc import Iterable

from message_store.base.errors import BadFieldError

NAME_VALUE_SEPARATOR = b"\x01"
PROPERTY_SEPARATOR = b"\x02"

TAGS = "TAGS"
KEYS = "KEYS"
UNIQUE_KEY = "UNIQ_KEY"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_ROLL_LABEL = "TIMER_ROLL_LABEL"
TIMER_DELETE_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
CANCELLED_OFFSET = "DELAYWHEEL_CANCELS"
"""Of a delete marker that a receipt asked for: where in the log the first record of its message is
(``offset_text``). Brokers pass it over, and take all messages of the slot and the key.
"""
OFFSET_CHECK = 97
"""The rest of a named offset by this prime tells of any one wrong digit."""
OFFSET_DIGITS = 18
START_DELIVER_TIME = "__STARTDELIVERTIME"
CRC32 = "__CRC32#"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"

LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIME_INDEX_TOPIC = "rmq_sys_time_index"
"""Of delaywheel's own time index; brokers take it for a system topic, by its beginning."""
WAITING_TOPICS = (LEVEL_TOPIC, TIMER_TOPIC, TIME_INDEX_TOPIC)
"""Where messages wait: each engine works its own."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RETRY_TOPIC = "RETRY_TOPIC"
"""Of a retry: the topic to which the message was sent."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Of a retry: the offset message id of the record that was received first."""
RESCHEDULED_FROM = "RESCHEDULED_FROM"
REPLACEMENT_DIGITS = 20
_REPLACEMENT = re.compile(" ".join([rf"(\d{{{REPLACEMENT_DIGITS}}})"] * 3), re.ASCII)
"""delaywheel's own, of a message that was rescheduled: three numbers, see docs/FORMAT.md."""
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
"""Of queues that multi-dispatch fills with entries of other queues' records."""
SYSTEM_PREFIX = "rmq_sys_"


def split_entries(text: bytes) -> list[tuple[bytes, bytes]]:
    """Every (name, value) that a broker's reader keeps, in order, duplicates too.

    An entry is kept only when it has at least three characters, a name and a value. Counting bytes
    instead of Java's characters is the same thing here: an entry of two characters has no room for
    name, separator and value.

    >>> split_entries(b"a\\x01b\\x02empty\\x01\\x02c\\x01d")
    [(b'a', b'b'), (b'c', b'd')]
    """
    entries = []
    for entry in text.split(PROPERTY_SEPARATOR):
        name, separator, value = entry.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            entries.append((name, value))
    return entries


def decode_properties(text: bytes) -> dict[str, str]:
    """The map that a broker sees: the last of equal names wins, bad UTF-8 is replaced."""
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in split_entries(text)
    }


def encode_properties(entries: Iterable[tuple[str, str]], *, closed: bool = True) -> bytes:
    """The text of these properties, in the order given; ``closed`` writes the last separator (5.2
    and later do).

    Raises BadFieldError for a name or value that holds a separator, or is empty: it would not be
    read back.
    """
    pairs = []
    for name, value in entries:
        pair = (name.encode(), value.encode())
        if not all(pair) or any(mark in part for part in pair for mark in (b"\x01", b"\x02")):
            raise BadFieldError("a property that cannot be stored", found=f"{name!r}={value!r}")
        pairs.append(pair)
    return join_entries(pairs, closed=closed)


def join_entries(entries: Iterable[tuple[bytes, bytes]], *, closed: bool = True) -> bytes:
    """The same of bytes as ``split_entries`` gives them: they are read back as they are, no UTF-8
    too, and a value that holds the separator of names.
    """
    parts = [NAME_VALUE_SEPARATOR.join(pair) for pair in entries]
    return PROPERTY_SEPARATOR.join(parts) + (PROPERTY_SEPARATOR if closed and parts else b"")


def offset_text(offset: int) -> str:
    """An offset as CANCELLED_OFFSET says it, with two digits that tell of damage.

    >>> offset_text(1_049), offset_text(0)
    ('1049-79', '0-00')
    """
    return f"{offset}-{offset % OFFSET_CHECK:02d}"


def offset_of_text(text: str) -> int | None:
    """The same read: None where it is damaged. Earlier versions wrote the number alone.

    >>> offset_of_text("1049-79"), offset_of_text("1049"), offset_of_text("1059-79")
    (1049, 1049, None)
    """
    number, dash, _ = text.partition("-")
    if not (number.isascii() and number.isdecimal()):
        return None
    if len(number) > OFFSET_DIGITS:
        return None
    return int(number) if not dash or text == offset_text(int(number)) else None


def replacement_text(older: int, own: int, promised_ms: int) -> str:
    """What RESCHEDULED_FROM says: where the older message's first record lies, where this one
    lies, and for when the older was promised. Always equally long.
    """
    return " ".join(str(number).zfill(REPLACEMENT_DIGITS) for number in (older, own, promised_ms))


def replacement_of_text(text: str) -> tuple[int, int, int] | None:
    """The same read; None for any other text.

    >>> replacement_of_text(replacement_text(7, 99, 1_000)), replacement_of_text("7 99 1000")
    ((7, 99, 1000), None)
    """
    found = _REPLACEMENT.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))
