# SPDX-License-Identifier: Apache-2.0
"""A message in the hands of a consumer, and the records that it becomes when it is given back.

RocketMQ: AbstractSendMessageProcessor#consumerSendMsgBack (4.9.7, 5.5.0).
"""

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import attrs
import pyarrow as pa

from consumer_groups.offset_files import Run
from message_store.base.errors import BadFieldError
from message_store.files.group_journal import QueueKey
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_rules import (
    MAX_MESSAGE_BYTES,
    TOPIC_MAX_BYTES,
    UNDELIVERABLE_TOPICS,
    check_topic,
)
from message_store.format.record_layout import (
    SYS_COMPRESSION_LZ4,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZSTD,
)
from message_store.interface.queued_messages import Queued, QueuedRecord, identity_of

FIRST_RETRY_LEVEL = 3
"""The level of the first retry; each later one takes the next level."""

DEFAULT_MAX_RETRIES = 16
"""RocketMQ: SubscriptionGroupConfig#retryMaxTimes."""


@attrs.frozen
class Acknowledgement:
    """What became of the messages that ``ack`` was given, in counts.

    ``acknowledged`` are done by it. ``done_before`` needed no more work: they were acknowledged,
    given back or skipped, retention deleted them, or they were given twice. ``never_received`` were
    not received by the group: it never read their queue, or another message has their place.
    """

    acknowledged: int
    done_before: int
    never_received: int


def retry_topic(group: str) -> str:
    """The topic of a group's retries.

    >>> retry_topic("billing")
    '%RETRY%billing'
    """
    return names.RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return names.DEAD_LETTER_PREFIX + group


def check_group(group: str) -> None:
    """Raises BadFieldError for a name that no group can have: its topics would have none."""
    if not group or "@" in group:
        raise BadFieldError("a group's name is empty or has an @ in it", found=repr(group))
    try:
        check_topic(dead_letter_topic(group))
        check_topic(retry_topic(group), TOPIC_MAX_BYTES)  # as brokers of 4.9 take it
    except BadFieldError as error:
        what = "a group's name that is too long for its topics, or has characters that no topic has"
        raise BadFieldError(what, found=repr(group)) from error


def check_receivable(topic: str) -> None:
    """Raises BadFieldError for a topic of which no group can receive.

    A retry waits in a topic that an engine keeps for itself. A group of such a topic would receive
    that record as one more message, and retry it again.
    """
    if topic in UNDELIVERABLE_TOPICS:
        raise BadFieldError("no group can receive of this topic", found=repr(topic))


class _Place(NamedTuple):
    """The fields of ``Received``."""

    queue: QueueKey
    queue_offset: int
    topic: str
    visible_ms: int
    messages: Sequence[Queued]
    row: int


class Received(_Place):
    """A message that a group received: to be acknowledged, retried or rejected.

    ``queue`` and ``queue_offset`` are where it was received. ``topic`` is the topic that was asked
    for; of a dead letter, the one of which it was received. ``visible_ms`` is when the group can
    receive it again, unless it is acknowledged before. Its record is ``messages[row]``, read as far
    as somebody looks at it.

    A tuple, because one is made for each message: the garbage collector sees one object of it, and
    three of a class whose fields are in a dictionary.
    """

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    @property
    def queued(self) -> Queued:
        """Its record, which is decoded as far as somebody looks at it."""
        return self.messages[self.row]

    @cached_property
    def stored(self) -> StoredMessage:
        """Its record."""
        queued = self.queued
        return queued.decoded() if isinstance(queued, QueuedRecord) else queued

    @property
    def body(self) -> bytes:
        """What was sent; a body that a Java client compressed is decompressed.

        Raises BadFieldError for one that cannot be, or is longer than any message may be.
        """
        queued = self.queued
        if not queued.is_compressed:
            return queued.body
        try:
            body = _unpacked(self.stored.body, self.stored.sys_flag & SYS_COMPRESSION_MASK)
        except (zlib.error, OSError) as error:
            raise BadFieldError(f"a compressed body that is damaged: {error}") from error
        if len(body) > MAX_MESSAGE_BYTES:
            raise BadFieldError("a compressed body that is too long once it is decompressed")
        return body

    @property
    def tags(self) -> str | None:
        """The tag, if it has one."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def unique_key(self) -> str | None:
        """The client's message id."""
        return self.properties.get(names.UNIQUE_KEY)

    @cached_property
    def properties(self) -> dict[str, str]:
        """All properties, the user's own among them."""
        return self.queued.properties

    @property
    def retries(self) -> int:
        """How often it was given back before."""
        return self.stored.reconsume_times


_CODECS = {SYS_COMPRESSION_LZ4: "lz4", SYS_COMPRESSION_ZSTD: "zstd"}
"""RocketMQ: Lz4Compressor, ZstdCompressor (5.0.0): frames of both."""


def _unpacked(data: bytes, kind: int) -> bytes:
    """Up to a byte more than a message may have. Raises zlib.error and OSError for damage."""
    if (codec := _CODECS.get(kind)) is None:
        return zlib.decompressobj().decompress(data, MAX_MESSAGE_BYTES + 1)
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return bytes(stream.read(MAX_MESSAGE_BYTES + 1))


_received_of: Callable[[tuple[Any, ...]], Received] = partial(tuple.__new__, Received)
"""A received message from its fields in their order, without the time that naming its class takes.
"""


def received_of(
    messages: Sequence[Queued],
    queue_offsets: Sequence[int],
    topic: str,
    visible_ms: int,
    queue: QueueKey,
) -> list[Received]:
    """These messages of a queue, received together."""
    return [
        _received_of((queue, queue_offset, topic, visible_ms, messages, row))
        for row, queue_offset in enumerate(queue_offsets)
    ]


def runs_of(messages: Sequence[Received], group: str) -> list[Run]:
    """The runs that these messages are in the queues of a group, each message in one of them."""
    runs = _runs(messages)
    if {run.queue.group for run in runs} - {group}:  # another group received them
        return runs_of([e._replace(queue=e.queue._replace(group=group)) for e in messages], group)
    if len(runs) > 1 and any(
        one.queue == other.queue and one.last >= other.first
        for one, other in pairwise(sorted(runs))
    ):
        once = {(each.queue, each.queue_offset): each for each in messages}
        runs = _runs([once[place] for place in sorted(once)])
    return runs


def _runs(messages: Sequence[Received]) -> list[Run]:
    """Runs of messages that are given one behind another."""
    ends = [
        end
        for end, (one, other) in enumerate(pairwise(messages), 1)
        if other.queue_offset != one.queue_offset + 1 or other.queue != one.queue
    ]
    runs, begin = [], 0
    for end in [*ends, len(messages)] if messages else ():
        queue, last, *_ = messages[end - 1]
        identity = identity_of(messages[end - 1].queued)
        runs.append(Run(queue, messages[begin].queue_offset, last, identity))
        begin = end
    return runs


def origin_topic(message: Queued, default: str) -> str:
    """The topic of which a retry or a dead letter was received first, as a property says."""
    return message.properties.get(names.RETRY_TOPIC, default)


def given_back(
    message: StoredMessage,
    topic: str,
    received_topic: str,
    reconsume_times: int,
    *,
    is_bare: bool = False,
) -> StoredMessage:
    """The record for a group's retry or dead letter topic.

    Body, flags, born time and host, tag, keys and properties stay; where it ``is_bare``, only the
    unique key of these. Two properties are set: ``received_topic``, by which the group receives the
    message again, and the id of the first record.
    """
    first_id = _first_id(message)
    origin = {names.RETRY_TOPIC: received_topic, names.ORIGIN_MESSAGE_ID: first_id}
    known = {name.encode() for name in origin}
    entries = [
        each
        for each in names.split_entries(message.properties_text)
        if each[0] not in known and (not is_bare or each[0] == names.UNIQUE_KEY.encode())
    ]
    return attrs.evolve(
        message,
        topic=topic,
        queue_id=0,
        properties_text=names.join_entries(entries) + names.encode_properties(origin.items()),
        reconsume_times=reconsume_times,
    )


def is_given_back(record: StoredMessage, message: StoredMessage, reconsume_times: int) -> bool:
    """Whether ``record`` is what ``given_back`` made of ``message``, in whatever topic. One without
    a unique key has got one.
    """
    topics = {message.topic}
    if _was_given_back(message):
        topics.add(origin_topic(message, message.topic))
    return (
        record.reconsume_times == reconsume_times
        and message.unique_key in (None, record.unique_key)
        and record.properties.get(names.RETRY_TOPIC) in topics
        and record.properties.get(names.ORIGIN_MESSAGE_ID) == _first_id(message)
    )


def _was_given_back(message: StoredMessage) -> bool:
    return message.topic.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX))


def _first_id(message: StoredMessage) -> str:
    """The id of the first record of a message. Of one that was given back a property says so; any
    other is the first, whatever its producer wrote.
    """
    own = message.offset_message_id
    if not _was_given_back(message):
        return own
    return message.properties.get(names.ORIGIN_MESSAGE_ID, own)
