# SPDX-License-Identifier: Apache-2.0
"""A message in the hands of a consumer, and the records that it becomes when it is given back.

RocketMQ: AbstractSendMessageProcessor#consumerSendMsgBack (4.9.7, 5.5.0).
"""

import zlib
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import attrs

from consumer_groups.offset_files import QueueKey, Run
from message_store.base.errors import BadFieldError
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_rules import MAX_MESSAGE_BYTES, check_topic
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
    except BadFieldError as error:
        what = "a group's name that is too long for its topics, or has characters that no topic has"
        raise BadFieldError(what, found=repr(group)) from error


@attrs.frozen(eq=False, slots=False)
class Received:
    """A message that a group received: to be acknowledged, retried or rejected.

    ``queued`` is its record, which is decoded as far as somebody looks at it. ``topic`` is the
    topic to which it was sent, also for a retry. ``visible_ms`` is when the group can receive it
    again, unless it is acknowledged before. ``queue`` is where it was received.
    """

    queued: Queued
    topic: str
    visible_ms: int
    queue: QueueKey

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
        if not self.queued.is_compressed:
            return self.queued.body
        unpacker = zlib.decompressobj()
        try:
            body = unpacker.decompress(self.stored.body, MAX_MESSAGE_BYTES)
        except zlib.error as error:
            raise BadFieldError(f"a compressed body that is damaged: {error}") from error
        if unpacker.unconsumed_tail:
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


def runs_of(messages: Sequence[Received], group: str) -> list[Run]:
    """The runs that these messages are in the queues of a group, each message in one of them."""
    runs = _runs(messages)
    if any(run.queue.group != group for run in runs):  # another group received them
        return runs_of(
            [attrs.evolve(e, queue=e.queue._replace(group=group)) for e in messages], group
        )
    if len(runs) > 1 and any(
        one.queue == other.queue and one.last >= other.first
        for one, other in pairwise(sorted(runs))
    ):
        once = {(each.queue, each.queued.queue_offset): each for each in messages}
        runs = _runs([once[place] for place in sorted(once)])
    return runs


def _runs(messages: Sequence[Received]) -> list[Run]:
    """Runs of messages that are given one behind another."""
    runs: list[Run] = []
    begin = 0
    for end, message in enumerate(messages, 1):
        queue_offset = message.queued.queue_offset + 1
        if end < len(messages):
            following = messages[end]
            if following.queued.queue_offset == queue_offset and following.queue == message.queue:
                continue
        first = messages[begin].queued.queue_offset
        runs.append(Run(message.queue, first, queue_offset - 1, identity_of(message.queued)))
        begin = end
    return runs


def origin_topic(message: Queued, default: str) -> str:
    """The topic to which a message was sent; for a retry a property says so."""
    return message.properties.get(names.RETRY_TOPIC, default)


def given_back(message: StoredMessage, topic: str, reconsume_times: int) -> StoredMessage:
    """The record for a group's retry or dead letter topic.

    Body, flags, born time and host, tag, keys and properties stay. Two properties are added where
    they are missing: the topic, and the id of the first record.
    """
    properties = message.properties
    added = {names.RETRY_TOPIC: message.topic, names.ORIGIN_MESSAGE_ID: _origin_id(message)}
    own = [(name, value) for name, value in added.items() if name not in properties]
    text = message.properties_text
    if text and not text.endswith(names.PROPERTY_SEPARATOR):
        text += names.PROPERTY_SEPARATOR
    return attrs.evolve(
        message,
        topic=topic,
        queue_id=0,
        properties_text=text + names.encode_properties(own),
        reconsume_times=reconsume_times,
    )


def is_given_back(record: StoredMessage, message: StoredMessage, reconsume_times: int) -> bool:
    """Whether ``record`` is what ``given_back`` made of ``message``, in whatever topic."""
    return (
        record.reconsume_times == reconsume_times
        and record.unique_key == message.unique_key
        and record.properties.get(names.ORIGIN_MESSAGE_ID) == _origin_id(message)
    )


def _origin_id(message: StoredMessage) -> str:
    return message.properties.get(names.ORIGIN_MESSAGE_ID, message.offset_message_id)
