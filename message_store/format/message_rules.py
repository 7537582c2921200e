# SPDX-License-Identifier: Apache-2.0
"""The rules for messages that are stored for later: those of brokers, and those of safety.

Every store refuses the same messages, in the same words, before it writes anything. A broker checks
some of these rules only when the message is due. A message that fails then is lost, or blocks all
that are due behind it (docs/FORMAT.md, properties).
"""

from collections.abc import Mapping

import attrs

from message_store.base.errors import BadFieldError, TooLongError
from message_store.format import properties as names
from message_store.format.record_layout import PROPERTIES_MAX_BYTES

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The longest body, as a broker's `maxMessageSize` has it if nobody sets it."""

_TOPIC_DIRECTORY_MAX_BYTES = 255
TOPIC_MAX_BYTES = 127
RETRY_TOPIC_MAX_BYTES = 255
QUEUE_ID_MAX = 65_535

DELIVERY_GROWTH_BYTES = 150
"""Delivery adds two properties and a roll one more. A pending record has this much room left."""

TIMED_RECORD_MARGIN_BYTES = 100
"""A wheel reads records into a buffer of `maxMessageSize` and this much."""

RESERVED_PROPERTIES = frozenset(
    {
        names.TAGS,
        names.KEYS,
        names.UNIQUE_KEY,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.TIMER_OUT_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELAY_LEVEL,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_ROLL_LABEL,
        names.TIMER_DELETE_UNIQUE_KEY,
        names.CRC32,
        names.INNER_MULTI_DISPATCH,
        names.INNER_MULTI_QUEUE_OFFSET,
        names.RESCHEDULED_FROM,
        names.CANCELLED_OFFSET,
    }
)
"""Properties by which brokers and engines steer: a user's own of these names would delay a message
again, send it elsewhere, or delete another one.
"""

TIME_PROPERTIES = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
"""By which a client asks for a time, the one that counts first; wheels keep them in the record."""

UNDELIVERABLE_TOPICS = frozenset(
    {
        names.LEVEL_TOPIC,
        names.TIMER_TOPIC,
        names.TIME_INDEX_TOPIC,
        names.HALF_TOPIC,
        names.OP_HALF_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        ".",
        "..",
    }
)
"""Topics that a broker keeps for itself, where a delivered message would loop or confuse, and names
that lead out of a store's folders.
"""


def is_topic_name(name: str) -> bool:
    """Whether a topic of this name can have a directory of its own under the store."""
    is_plain = "/" not in name and "\0" not in name and name not in ("", ".", "..")
    return is_plain and len(name.encode("utf-8", "surrogatepass")) <= _TOPIC_DIRECTORY_MAX_BYTES


def check_text(what: str, text: str) -> None:
    """Raises BadFieldError for half a character and for what separates properties."""
    if text.isprintable():  # neither is, and nearly all texts are: a third of the time
        return
    if "\x01" in text or "\x02" in text:
        raise BadFieldError(
            f"{what} with a control character 0x01 or 0x02, which separate properties",
            found=repr(text[:64]),
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadFieldError(f"{what} that is not Unicode", found=repr(text[:64])) from error


def is_one_word(data: bytes) -> bool:
    """Whether a name has neither a space nor a control character in it."""
    return bool(data) and all(byte > 0x20 and byte != 0x7F for byte in data)


def check_topic(topic: str, retry_topic_max_bytes: int = RETRY_TOPIC_MAX_BYTES) -> None:
    """Raises BadFieldError for the name of a topic that no message can be delivered to.

    It may have 127 bytes, that of a retry topic ``retry_topic_max_bytes`` (5.x: 255). A long name
    of few characters is refused too: brokers count those when they choose a record version, and
    then write a length that nobody can read.
    """
    check_text("a topic", topic)
    data = topic.encode()
    is_retry = topic.startswith(names.RETRY_PREFIX)
    max_bytes = retry_topic_max_bytes if is_retry else TOPIC_MAX_BYTES
    if len(data) > max_bytes:
        raise BadFieldError(
            "the topic's name is too long", expected=f"at most {max_bytes} bytes", found=len(data)
        )
    if len(data) > TOPIC_MAX_BYTES and not data.isascii():
        raise BadFieldError("the topic's name is long and not plain ASCII", found=repr(topic))
    if topic in UNDELIVERABLE_TOPICS:
        raise BadFieldError("nobody may deliver to this topic", found=repr(topic))
    if "/" in topic or not is_one_word(data):
        problem = "the topic's name has a slash, a space or a control character"
        raise BadFieldError(problem, found=repr(topic))


def check_unique_key(unique_key: str) -> None:
    """Raises BadFieldError for a client's message id that a recall handle cannot hold."""
    if unique_key.isalnum():  # most are
        return
    check_text("a unique key", unique_key)
    if not is_one_word(unique_key.encode()):
        raise BadFieldError(
            "a unique key with a space or a control character", found=repr(unique_key[:64])
        )


def property_text(properties: Mapping[str, str]) -> str:
    """A user's own properties as text, each closed. Raises BadFieldError for a name that steers
    delivery, an empty name or value, and one with a separator.
    """
    if not RESERVED_PROPERTIES.isdisjoint(properties):
        name = next(name for name in properties if name in RESERVED_PROPERTIES)
        raise BadFieldError(
            f"the property {name} is the store's own; tags, keys and due time are said otherwise"
        )
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if (
        text.count("\x01") != count
        or text.count("\x02") != count
        or "" in properties
        or "" in properties.values()
    ):
        _refuse_property(properties)
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse_property(properties)
        raise
    return text


def _refuse_property(properties: Mapping[str, str]) -> None:
    """Say which one it is, and why."""
    for name, value in properties.items():
        if not name or not value:
            raise BadFieldError(
                "a property without name or value, which no reader would find",
                found=f"{name!r}={value!r}",
            )
        check_text("a property name", name)
        check_text("a property value", value)


def check_numbers(queue_id: int, flag: int) -> None:
    """Raises BadFieldError for a queue that no topic has, or a flag that is no 32-bit number."""
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise BadFieldError("no such queue", expected=f"0 to {QUEUE_ID_MAX}", found=queue_id)
    if not -(2**31) <= flag < 2**31:
        raise BadFieldError("a flag beyond 32 bits", found=flag)


@attrs.frozen
class SizeLimits:
    """The most bytes of a body, of properties, and of a whole record for a wheel."""

    body: int
    properties: int
    timed_record: int

    @classmethod
    def of(cls, max_message_bytes: int) -> "SizeLimits":
        """The limits that leave room for what delivery adds."""
        return cls(
            body=max_message_bytes,
            properties=PROPERTIES_MAX_BYTES - DELIVERY_GROWTH_BYTES,
            timed_record=max_message_bytes + TIMED_RECORD_MARGIN_BYTES - DELIVERY_GROWTH_BYTES,
        )

    @property
    def at_once(self) -> "SizeLimits":
        """The limits of what leaves the wheel with its next slot: no roll makes it longer."""
        return attrs.evolve(self, timed_record=self.timed_record + DELIVERY_GROWTH_BYTES)

    def check(self, body_bytes: int, properties_bytes: int, timed_record_bytes: int) -> None:
        """Raises TooLongError for what is too large to be stored now or delivered later.

        ``timed_record_bytes`` is 0 for a level, whose records have no limit of their own.
        """
        if (
            body_bytes <= self.body
            and properties_bytes <= self.properties
            and timed_record_bytes <= self.timed_record
        ):
            return
        sizes = (
            ("a body too long", body_bytes, self.body),
            ("properties too long", properties_bytes, self.properties),
            ("a record longer than a timer wheel reads", timed_record_bytes, self.timed_record),
        )
        for problem, size_bytes, most in sizes:
            if size_bytes > most:
                raise TooLongError(problem, expected=f"at most {most} bytes", found=size_bytes)
