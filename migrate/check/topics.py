# SPDX-License-Identifier: Apache-2.0
"""The types of topics: which messages a 5.x proxy takes from gRPC clients."""

import json
from collections.abc import Iterator

from message_store.base.printable import counted, printable
from message_store.files.config_files import (
    DELAY,
    MESSAGE_TYPES,
    MIXED,
    NORMAL,
    TOPICS,
    read_topics,
)
from message_store.files.small_files import read_small_file
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, warning
from migrate.check.record_facts import NAMED
from migrate.check.snapshot import Picture
from migrate.report.conversion_marker import CONVERSION_NAME
from migrate.report.finished_target import WRITTEN_NAME
from migrate.write.target_config import takes_messages

_UPDATE = (
    "`mqadmin updateTopic -t TOPIC -a +message.type=MIXED` for each, once a broker serves them"
)
REFUSES_DELAYED = warning(
    "topic-refuses-delayed",
    "a 5.x proxy refuses every delayed message that a gRPC client sends to them (40014); what is"
    " pending is delivered all the same",
    _UPDATE,
)
UNKNOWN_TYPE = error(
    "topic-type-unknown",
    "a 5.x proxy fails at every look at the topic: gRPC clients can neither send to it nor receive"
    " from it",
    _UPDATE,
)

RULES = (REFUSES_DELAYED, UNKNOWN_TYPE)


def check_topic_types(picture: Picture) -> Iterator[Finding]:
    """Types that no proxy knows, and topics of a target to which nobody could send as before."""
    topics = read_topics(picture.root.path)
    place = picture.place(picture.root.config_file(TOPICS))
    unknown = [
        f"{printable(name)!r} ({printable(topic.message_type)!r})"
        for name, topic in sorted(topics.items())
        if topic.message_type is not None and topic.message_type not in MESSAGE_TYPES
    ]
    if unknown:
        yield UNKNOWN_TYPE.at(place, f"a type that RocketMQ does not have: {_named(unknown)}")
    refusing = [
        f"{printable(name)!r} ({topics[name].message_type or 'no message.type'})"
        for name in _pending_topics(picture)
        if name in topics
        and takes_messages(name)
        and (topics[name].message_type or NORMAL) in MESSAGE_TYPES - {DELAY, MIXED}
    ]
    if refusing:
        who = counted(len(refusing), "topic with pending messages", "topics with pending messages")
        yield REFUSES_DELAYED.at(place, f"{who}: {_named(refusing)}")


def _pending_topics(picture: Picture) -> list[str]:
    """The topics that a target was made for, as its marker counts them; none for other stores."""
    for name in (CONVERSION_NAME, WRITTEN_NAME):
        content = read_small_file(picture.root.own / name)
        try:
            topics = json.loads(content or b"{}")["topics"]
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        if isinstance(topics, dict):
            return sorted(topics)
    return []


def _named(texts: list[str]) -> str:
    left = len(texts) - NAMED
    more = f" and {counted(left, 'other')}" if left > 0 else ""
    return f"{', '.join(texts[:NAMED])}{more}"
