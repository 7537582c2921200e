# SPDX-License-Identifier: Apache-2.0
"""A message in the hands of a consumer, and the records that it becomes when it is given back.

RocketMQ: AbstractSendMessageProcessor#consumerSendMsgBack (4.9.7, 5.5.0).
"""

import zlib

import attrs

from message_store.base.errors import BadFieldError
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_rules import MAX_MESSAGE_BYTES, check_topic

FIRST_RETRY_LEVEL = 3
"""The level of the first retry; each later one takes the next level."""

DEFAULT_MAX_RETRIES = 16
"""RocketMQ: SubscriptionGroupConfig#retryMaxTimes."""


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
        what = "no topic can have a group's name in it that is too long, or has such characters"
        raise BadFieldError(what, found=repr(group)) from error


@attrs.frozen(eq=False)
class Received:
    """A message that a group received: to be acknowledged, retried or rejected.

    ``stored`` is its record. ``topic`` is the topic to which it was sent, also for a retry.
    ``visible_ms`` is when the group can receive it again, unless it is acknowledged before.
    """

    stored: StoredMessage
    topic: str
    visible_ms: int

    @property
    def body(self) -> bytes:
        """What was sent; a body that a Java client compressed is decompressed.

        Raises BadFieldError for one that cannot be, or is longer than any message may be.
        """
        if not self.stored.is_compressed:
            return self.stored.body
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
        return self.stored.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return self.stored.keys

    @property
    def unique_key(self) -> str | None:
        """The client's message id."""
        return self.stored.unique_key

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the user's own among them."""
        return self.stored.properties

    @property
    def retries(self) -> int:
        """How often it was given back before."""
        return self.stored.reconsume_times


def origin_topic(message: StoredMessage, default: str) -> str:
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
