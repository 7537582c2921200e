# SPDX-License-Identifier: Apache-2.0
"""One message → its pending record, in the system topic of levels or of the wheel.

The record's first property is its destination, REAL_TOPIC; REAL_QID is near the end. Brokers' and
users' properties lie between. DELAY (levels) follows UNIQ_KEY; TIMER_OUT_MS (wheel) is last. What
messages of one topic, tag and queue share is encoded once and kept. ``intake.batch`` does the same
for columns, byte for byte (docs/FORMAT.md, properties).
"""

import zlib
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache

import attrs

from message_store.base.errors import BadFieldError
from message_store.columns.unique_keys import new_unique_key
from message_store.format import properties as names
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import string_hash
from message_store.format.layout import Layout
from message_store.format.message import LOCAL_HOST, Host, Message, StoredMessage
from message_store.format.message_codec import encode_message
from message_store.format.message_rules import (
    MAX_MESSAGE_BYTES,
    RESERVED_PROPERTIES,
    RETRY_TOPIC_MAX_BYTES,
    TOPIC_MAX_BYTES,
    SizeLimits,
    check_numbers,
    check_text,
    check_topic,
    check_unique_key,
    property_text,
)
from message_store.format.record_layout import (
    BODY_RUN,
    CRC_MASK,
    MAGIC_V1,
    PROPERTIES_RUN,
    SYS_BORN_HOST_IPV6,
    SYS_OF_BODY,
    SYS_STORE_HOST_IPV6,
    TOPIC_RUN_V1,
    head_layout,
)
from message_store.format.timer_record_rules import host_problem
from message_store.writing.settings import StoreSettings

_pack_length = PROPERTIES_RUN.length.packer.pack

MOST_FRAMES = 4096
"""For so many topics, tags, queues and levels a maker keeps what their records share."""


@attrs.frozen(slots=False, cache_hash=True)
class RecordForm:
    """The properties that all records of one store share.

    ``closes_properties`` says whether the last property is followed by its separator (5.2 and
    later); ``retry_topic_max_bytes`` is 127 for a store that a 4.9 broker shall read.
    """

    closes_properties: bool = True
    store_host: Host = LOCAL_HOST
    born_host: Host = LOCAL_HOST
    max_message_bytes: int = MAX_MESSAGE_BYTES
    retry_topic_max_bytes: int = RETRY_TOPIC_MAX_BYTES

    @classmethod
    def of(cls, dialect: Dialect, settings: StoreSettings) -> "RecordForm":
        """The form that a store's brokers read."""
        return cls(
            closes_properties=dialect.closes_properties,
            store_host=settings.store_host,
            retry_topic_max_bytes=(
                RETRY_TOPIC_MAX_BYTES if dialect.knows_long_topics else TOPIC_MAX_BYTES
            ),
        )

    def __attrs_post_init__(self) -> None:
        """Raise BadFieldError for an address that brokers cannot store anew."""
        for host in (self.store_host, self.born_host):
            if problem := host_problem(host):
                raise BadFieldError(problem, found=str(host))

    @cached_property
    def sys_flag(self) -> int:
        """The bits that say which of the two hosts are IPv6."""
        return (
            SYS_BORN_HOST_IPV6 * self.born_host.is_ipv6
            | SYS_STORE_HOST_IPV6 * self.store_host.is_ipv6
        )

    @cached_property
    def limits(self) -> SizeLimits:
        """The largest sizes."""
        return SizeLimits.of(self.max_message_bytes)

    @cached_property
    def small_record_bytes(self) -> int:
        """A record of at most this size breaks no limit."""
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
    def _stamp(self) -> Layout:
        return self._head.part("sys_flag", "prepared_transaction_offset")

    def stamp(self, born_ms: int, now_ms: int) -> bytes:
        """The bytes of a head from the flag bits on, which all records of one moment share."""
        born, store = self.born_host, self.store_host
        return self._stamp.packer.pack(
            self.sys_flag, born_ms, born.ip, born.port, now_ms, store.ip, store.port, 0, 0
        )

    @cached_property
    def pack_head(self) -> Callable[..., bytes]:
        """Takes the fields of a head in their order, the stamp in place of those that it has, and
        the length of the body.
        """
        return self._head.packer_around(self._stamp).pack

    @cached_property
    def end(self) -> str:
        """The text behind the last property."""
        return "\x02" if self.closes_properties else ""


PLAIN_FORM = RecordForm()


def topic_run(system_topic: str) -> bytes:
    """The name of a system topic as a record holds it, its length ahead."""
    name = system_topic.encode()
    return TOPIC_RUN_V1.length.encode(length=len(name)) + name


_Frame = tuple[str, str, str, str, int]
"""The text before the key and behind it; tag and real queue id as properties; the tag's hash. A
plain tuple, because a named one takes several times as long to take apart.
"""


class RecordMaker:
    """Makes the records that wait in one system topic of one store.

    What is the same for many of them is kept: parts of properties by topic, tag, queue and level,
    at most so many, and the stamp of the last moment. Any number of threads may use it.
    """

    def __init__(self, system_topic: str, form: RecordForm) -> None:
        self._form = form
        self._limits = form.limits
        self._topic_run = topic_run(system_topic)
        around_bytes = form.head_bytes + len(self._topic_run) + PROPERTIES_RUN.length.size
        # One tuple: to take it apart costs what one attribute does.
        self._fixed = (
            around_bytes,
            form.small_record_bytes,
            form.end,
            form.pack_head,
            self._topic_run,
        )
        self._frames: dict[tuple[str, str | None, int, int | None], _Frame] = {}
        self._stamp = 0, 0, form.stamp(0, 0)

    def _new_frame(self, topic: str, tags: str | None, queue_id: int, level: int | None) -> _Frame:
        check_numbers(queue_id, 0)
        check_topic(topic, self._form.retry_topic_max_bytes)
        check_text("tags", tags or "")
        delay = "" if level is None else f"{names.DELAY}\x01{level}\x02"
        if len(self._frames) >= MOST_FRAMES:
            self._frames.clear()
        frame = self._frames[topic, tags, queue_id, level] = (
            f"{names.REAL_TOPIC}\x01{topic}\x02{names.UNIQUE_KEY}\x01",
            f"\x02{delay}",
            f"{names.TAGS}\x01{tags}\x02" if tags else "",
            f"{names.REAL_QUEUE_ID}\x01{queue_id}",
            string_hash(tags or ""),
        )
        return frame

    def _new_stamp(self, born_ms: int, now_ms: int) -> bytes:
        stamp = self._form.stamp(born_ms, now_ms)
        self._stamp = born_ms, now_ms, stamp
        return stamp

    def record(
        self,
        message: Message,
        delay_level: int | None,
        out_ms: int | None,
        extra: Iterable[tuple[str, str]],
        queue_id: int,
        queue_offset: int,
        offset_for: Callable[[int], int],
        now_ms: int,
        born_ms: int,
    ) -> tuple[bytes, int, int, str]:
        """The pending record of ``message``, its commit log offset, its tag's hash, its unique key.

        ``offset_for`` gives the offset for a record's size. Raises BadFieldError for a message that
        cannot be delivered.
        """
        shared = message.topic, message.tags, message.queue_id, delay_level
        frame = self._frames.get(shared) or self._new_frame(*shared)
        before_key, after_key, tags, real_queue_id, tags_code = frame
        around_bytes, small_bytes, out, pack_head, topic_run = self._fixed
        key = message.unique_key
        if not key:
            key = new_unique_key()
        elif not key.isalnum():  # most are
            check_unique_key(key)
        keys, flag, body, own = "", message.flag, message.body, ""
        if message.keys:
            keys = " ".join(message.keys)
            if not keys.isprintable():
                check_text("keys", keys)
            keys = f"KEYS\x01{keys}\x02" if keys else ""
        if message.properties:
            own = property_text(message.properties)
        if extra:
            own += names.encode_properties(extra).decode()
        if out_ms is not None:
            if out_ms < 0:
                # It is digits, which no time before 1970 is.
                raise BadFieldError("a time before 1970, which no wheel turns to", found=out_ms)
            out = f"\x02TIMER_OUT_MS\x01{out_ms}{out}"
        text = f"{before_key}{key}{after_key}{keys}{tags}{own}{real_queue_id}{out}".encode()
        body_bytes, text_bytes = len(body), len(text)
        size_bytes = around_bytes + body_bytes + text_bytes
        if flag or size_bytes > small_bytes:
            check_numbers(message.queue_id, flag)
            self._limits.check(body_bytes, text_bytes, 0 if out_ms is None else size_bytes)
        log_offset = offset_for(size_bytes)
        stamp_born_ms, stamp_ms, stamp = self._stamp
        if stamp_ms != now_ms or stamp_born_ms != born_ms:
            stamp = self._new_stamp(born_ms, now_ms)
        crc = zlib.crc32(body) & CRC_MASK
        head = pack_head(
            size_bytes, MAGIC_V1, crc, queue_id, flag, queue_offset, log_offset, stamp, body_bytes
        )
        record = b"".join((head, body, topic_run, _pack_length(text_bytes), text))
        return record, log_offset, tags_code, key


_maker = lru_cache(maxsize=64)(RecordMaker)


def require_storable(
    message: Message,
    *,
    system_topic: str,
    delay_level: int | None = None,
    out_ms: int | None = None,
    form: RecordForm = PLAIN_FORM,
    extra: Iterable[tuple[str, str]] = (),
) -> str:
    """Raise BadFieldError for a message that no record can hold or no broker deliver; returns its
    unique key, or a new one where it has none. ``extra`` are properties that the record gets too.
    """
    maker = _maker(system_topic, form)
    return maker.record(message, delay_level, out_ms, extra, 0, 0, lambda _: 0, 0, 0)[3]


_WIDEST_SLOT_MS = 1_000
"""Of a wheel: what is due now is out by then."""
_KEPT = {names.TAGS, names.KEYS, names.UNIQUE_KEY}
_DROPPED = frozenset(name.encode() for name in RESERVED_PROPERTIES - _KEPT)


def kept_entries(message: StoredMessage) -> list[tuple[bytes, bytes]]:
    """The properties of a delivered message without those that steered its delivery; a unique key
    is made where it has none.
    """
    kept = [
        pair for pair in names.split_entries(message.properties_text) if pair[0] not in _DROPPED
    ]
    if message.unique_key is None:
        kept.append((names.UNIQUE_KEY.encode(), new_unique_key().encode()))
    return kept


class StoredAgainMaker:
    """Makes the records that wait in one system topic of one store once more, such as a retry.

    RocketMQ: AbstractSendMessageProcessor#consumerSendMsgBack keeps body, flags, born time and
    host, reconsume times and properties. What steered the earlier delay is dropped.
    """

    def __init__(self, system_topic: str, form: RecordForm) -> None:
        self._system_topic = system_topic
        self._form = form

    def record(
        self,
        message: StoredMessage,
        delay_level: int | None,
        out_ms: int | None,
        queue_id: int,
        queue_offset: int,
        offset_for: Callable[[int], int],
        now_ms: int,
        extra: Iterable[tuple[str, str]] = (),
    ) -> tuple[bytes, int, int, str]:
        """The pending record, its commit log offset, its tag's hash, its unique key.

        ``message`` says topic and queue of its delivery; ``extra`` are properties that the record
        gets as well. Raises BadFieldError for a message that cannot be delivered, TooLongError for
        one that is too long.
        """
        form = self._form
        check_topic(message.topic, form.retry_topic_max_bytes)
        check_numbers(message.queue_id, message.flag)
        born_host = message.born_host.unmapped
        kept = kept_entries(message)
        key = dict(kept)[names.UNIQUE_KEY.encode()].decode("utf-8", "replace")
        entries = [(names.REAL_TOPIC, message.topic)]
        if delay_level is not None:
            entries.append((names.DELAY, str(delay_level)))
        entries += extra
        entries.append((names.REAL_QUEUE_ID, str(message.queue_id)))
        if out_ms is not None:
            if out_ms < 0:
                raise BadFieldError("a time before 1970, which no wheel turns to", found=out_ms)
            entries.append((names.TIMER_OUT_MS, str(out_ms)))
        hosts = (
            SYS_BORN_HOST_IPV6 * born_host.is_ipv6 | SYS_STORE_HOST_IPV6 * form.store_host.is_ipv6
        )
        pending = attrs.evolve(
            message,
            topic=self._system_topic,
            magic=MAGIC_V1,
            properties_text=names.join_entries(
                [*kept, *((name.encode(), value.encode()) for name, value in entries)],
                closed=form.closes_properties,
            ),
            queue_id=queue_id,
            queue_offset=queue_offset,
            store_timestamp_ms=now_ms,
            born_host=born_host,
            store_host=form.store_host,
            sys_flag=message.sys_flag & SYS_OF_BODY | hosts,
            prepared_transaction_offset=0,
        )
        size_bytes = len(encode_message(pending))
        timed_bytes = 0 if out_ms is None else size_bytes
        is_at_once = out_ms is not None and out_ms <= now_ms + _WIDEST_SLOT_MS
        limits = form.limits.at_once if is_at_once else form.limits
        limits.check(len(pending.body), len(pending.properties_text), timed_bytes)
        offset = offset_for(size_bytes)
        record = encode_message(attrs.evolve(pending, commit_log_offset=offset))
        return record, offset, string_hash(message.tags or ""), key
