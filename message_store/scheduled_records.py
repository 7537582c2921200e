# SPDX-License-Identifier: Apache-2.0
"""One message → the record that waits for its time, in the system topic of levels or of the wheel.

A record that waits names where it goes: REAL_TOPIC first and REAL_QID near the end, between them
what brokers and users put there, DELAY (levels) behind UNIQ_KEY or TIMER_OUT_MS (wheel) last. All
that is the same for the messages of one topic, tag and queue is encoded once and remembered.
``scheduled_batch`` does the same for columns, byte for byte (docs/FORMAT.md, properties).
"""

import zlib
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import attrs

from message_store import properties as names
from message_store.java_numbers import string_hash
from message_store.layout import Layout
from message_store.message import LOCAL_HOST, Host, Message
from message_store.message_rules import (
    MAX_MESSAGE_BYTES,
    RETRY_TOPIC_MAX_BYTES,
    TOPIC_MAX_BYTES,
    SizeLimits,
    check_numbers,
    encoded,
    encoded_properties,
    encoded_topic,
    encoded_unique_key,
)
from message_store.record_layout import (
    BODY_RUN,
    CRC_MASK,
    MAGIC_V1,
    PROPERTIES_RUN,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
    TOPIC_RUN_V1,
    head_layout,
)
from message_store.unique_keys import new_unique_key

if TYPE_CHECKING:
    from message_store.dialect import Dialect
    from message_store.store_settings import StoreSettings

_LENGTH_BYTES = PROPERTIES_RUN.length.size
_pack_length = PROPERTIES_RUN.length.packer.pack


@attrs.frozen(slots=False)
class RecordForm:
    """What all records of one store have in common.

    ``closes_properties`` says whether the last property is followed by its separator (5.2 and
    later); ``retry_topic_max_bytes`` is 127 for a store that a 4.9 broker shall read.
    """

    closes_properties: bool = True
    store_host: Host = LOCAL_HOST
    born_host: Host = LOCAL_HOST
    max_message_bytes: int = MAX_MESSAGE_BYTES
    retry_topic_max_bytes: int = RETRY_TOPIC_MAX_BYTES

    @classmethod
    def of(cls, dialect: "Dialect", settings: "StoreSettings") -> "RecordForm":
        """The form that a store's brokers read."""
        return cls(
            closes_properties=dialect.closes_properties,
            store_host=settings.store_host,
            retry_topic_max_bytes=(
                RETRY_TOPIC_MAX_BYTES if dialect.knows_long_topics else TOPIC_MAX_BYTES
            ),
        )

    @cached_property
    def sys_flag(self) -> int:
        """The bits that say which of the two hosts are IPv6."""
        return (
            SYS_BORN_HOST_IPV6 * self.born_host.is_ipv6
            | SYS_STORE_HOST_IPV6 * self.store_host.is_ipv6
        )

    @cached_property
    def limits(self) -> SizeLimits:
        """What is too large."""
        return SizeLimits.of(self.max_message_bytes)

    @cached_property
    def small_record_bytes(self) -> int:
        """What is no larger than this, as a whole record, breaks no limit."""
        return min(self.limits.body, self.limits.properties, self.limits.timed_record)

    @cached_property
    def _head(self) -> Layout:
        fields = head_layout(self.sys_flag).fields + BODY_RUN.length.fields
        return Layout("commit log record up to its body", fields)

    @cached_property
    def head_bytes(self) -> int:
        """How many bytes of a record are ahead of its body."""
        return self._head.size

    @cached_property
    def pack_head(self) -> Callable[..., bytes]:
        """Takes the fields of a head in their order, and the length of the body."""
        return self._head.packer.pack

    @cached_property
    def hosts(self) -> tuple[bytes, int, bytes, int]:
        """Address and port of client and store, as a head takes them."""
        born, store = self.born_host, self.store_host
        return born.ip, born.port, store.ip, store.port


PLAIN_FORM = RecordForm()


def topic_run(system_topic: str) -> bytes:
    """The name of a system topic as a record holds it, its length ahead."""
    name = system_topic.encode()
    return TOPIC_RUN_V1.length.encode(length=len(name)) + name


class _Frame(NamedTuple):
    """The parts of a record that all messages of one topic, tag and queue share."""

    topic_run: bytes
    before_key: bytes
    after_key: bytes
    tags: bytes
    real_queue_id: bytes
    tags_code: int


@lru_cache(maxsize=4096)
def _frame(
    system_topic: str,
    topic: str,
    tags: str | None,
    queue_id: int,
    delay_level: int | None,
    retry_topic_max_bytes: int,
) -> _Frame:
    check_numbers(queue_id, 0)
    real_topic = encoded_topic(topic, retry_topic_max_bytes)
    delay = "" if delay_level is None else f"{names.DELAY}\x01{delay_level}\x02"
    return _Frame(
        topic_run=topic_run(system_topic),
        before_key=b"%b\x01%b\x02%b\x01"
        % (names.REAL_TOPIC.encode(), real_topic, names.UNIQUE_KEY.encode()),
        after_key=b"\x02" + delay.encode(),
        tags=b"%b\x01%b\x02" % (names.TAGS.encode(), encoded("tags", tags)) if tags else b"",
        real_queue_id=f"{names.REAL_QUEUE_ID}\x01{queue_id}".encode(),
        tags_code=string_hash(tags or ""),
    )


@attrs.frozen(eq=False)
class Draft:
    """A record that lacks only what is known when it gets its place.

    ``tags_code`` is the hash of the message's tag; 0 where there is none.
    """

    size_bytes: int
    tags_code: int
    unique_key: str
    _tail: bytes
    _message: Message
    _form: RecordForm

    def record(
        self,
        queue_id: int,
        queue_offset: int,
        commit_log_offset: int,
        now_ms: int,
        born_ms: int | None = None,
    ) -> bytes:
        """The record for this place in the system topic's queue and in the log, stored now.

        It is born now too, if not told otherwise.
        """
        place = queue_id, queue_offset, commit_log_offset
        born_ms = now_ms if born_ms is None else born_ms
        return waiting_record(
            self._message, self.size_bytes, self._tail, self._form, *place, now_ms, born_ms
        )


def draft(
    message: Message,
    *,
    system_topic: str,
    unique_key: str | None = None,
    delay_level: int | None = None,
    out_ms: int | None = None,
    extra: Iterable[tuple[str, str]] = (),
    form: RecordForm = PLAIN_FORM,
) -> Draft:
    """The record in which ``message`` waits: with DELAY for a level, with TIMER_OUT_MS for a wheel.

    The unique key is the message's own, or a new one, if none is given. ``extra`` are properties
    that the engine itself adds behind the user's. Raises BadFieldError for a message that cannot be
    stored, or that no broker could deliver.
    """
    parts = waiting_parts(message, system_topic, delay_level, out_ms, extra, form, unique_key)
    return Draft(*parts, message, form)


def waiting_parts(
    message: Message,
    system_topic: str,
    delay_level: int | None,
    out_ms: int | None,
    extra: Iterable[tuple[str, str]],
    form: RecordForm,
    unique_key: str | None = None,
) -> tuple[int, int, str, bytes]:
    """The same without an object for it, for those who make a hundred thousand a second: the size
    of the record, the hash of its tag, its unique key, and all that stands behind its body.
    """
    frame = _frame(
        system_topic,
        message.topic,
        message.tags,
        message.queue_id,
        delay_level,
        form.retry_topic_max_bytes,
    )
    unique_key = unique_key or message.unique_key
    if unique_key:
        key = encoded_unique_key(unique_key)
    else:
        unique_key = new_unique_key()
        key = unique_key.encode()
    keys = " ".join(message.keys)
    text = b"".join(
        (
            frame.before_key,
            key,
            frame.after_key,
            b"KEYS\x01%b\x02" % encoded("keys", keys) if keys else b"",
            frame.tags,
            encoded_properties(message.properties) if message.properties else b"",
            names.encode_properties(extra) if extra else b"",
            frame.real_queue_id,
            b"" if out_ms is None else b"\x02TIMER_OUT_MS\x01%d" % out_ms,
            b"\x02" if form.closes_properties else b"",
        )
    )
    body_bytes, text_bytes = len(message.body), len(text)
    size_bytes = form.head_bytes + body_bytes + len(frame.topic_run) + _LENGTH_BYTES + text_bytes
    if message.flag:
        check_numbers(message.queue_id, message.flag)
    if size_bytes > form.small_record_bytes:
        form.limits.check(body_bytes, text_bytes, 0 if out_ms is None else size_bytes)
    tail = frame.topic_run + _pack_length(text_bytes) + text
    return size_bytes, frame.tags_code, unique_key, tail


def waiting_record(
    message: Message,
    size_bytes: int,
    tail: bytes,
    form: RecordForm,
    queue_id: int,
    queue_offset: int,
    commit_log_offset: int,
    now_ms: int,
    born_ms: int,
) -> bytes:
    """The record of these parts at its place in the system topic's queue and in the log."""
    body = message.body
    born_ip, born_port, store_ip, store_port = form.hosts
    head = form.pack_head(
        size_bytes,
        MAGIC_V1,
        zlib.crc32(body) & CRC_MASK,
        queue_id,
        message.flag,
        queue_offset,
        commit_log_offset,
        form.sys_flag,
        born_ms,
        born_ip,
        born_port,
        now_ms,
        store_ip,
        store_port,
        0,
        0,
        len(body),
    )
    return b"".join((head, body, tail))
