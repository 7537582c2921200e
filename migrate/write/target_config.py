# SPDX-License-Identifier: Apache-2.0
"""The small files that make a fresh target a store which a broker can serve.

They are routes with enough queues for the real topics, the groups that read these, offsets of the
groups, and the settings of the store.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    MESSAGE_TYPE,
    TOPICS,
    GroupConfig,
    TopicConfig,
    encode_consumer_offsets,
    encode_groups,
    encode_topics,
    read_consumer_offsets,
    read_groups,
    read_topics,
)
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from migrate.settings import (
    DEFAULT_MAX_MESSAGE_BYTES,
    HIERARCHY,
    TOPIC_TYPES,
    WHEEL,
    TargetSettings,
)
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES, QUEUE_ID_MAX, RECORD_MARGIN_BYTES

CONF_NAME = "broker.conf"
"""In a target, beside its marker: what its broker's configuration must say."""

_Config = TypeVar("_Config", TopicConfig, GroupConfig)


@attrs.frozen
class TopicDemand:
    """What the converted messages of a real topic need."""

    count: int
    max_queue_id: int


def sum_demands(rows: Iterable[tuple[str, int, int]]) -> dict[str, TopicDemand]:
    """The demand of each topic, by name; rows are topic, messages, highest queue id."""
    demands: dict[str, TopicDemand] = {}
    for name, count, queue_id in rows:
        before = demands.get(name, TopicDemand(0, 0))
        demands[name] = TopicDemand(before.count + count, max(before.max_queue_id, queue_id))
    return {name: demands[name] for name in sorted(demands) if demands[name].count}


def config_files(
    sources: Sequence[StoreRoot], demands: Mapping[str, TopicDemand], topic_type: str
) -> dict[str, bytes]:
    """The JSON files of a target, by name.

    A topic keeps the source's settings, with more queues where messages need them, up to the
    highest queue id: a damaged number would fill the memory of its readers. A topic without a type
    gets ``topic_type``: a 5.x proxy would refuse its delayed messages. Groups that have read one of
    these topics start at 0: a group without an offset may start at the end and miss earlier
    messages.
    """
    known_topics = merged_topics(sources)
    known_groups = _first_known([read_groups(source.path) for source in sources])
    topics = []
    for name, demand in sorted(demands.items()):
        queues = demand.max_queue_id + 1
        topic = known_topics.get(name, TopicConfig(name, read_queues=queues, write_queues=queues))
        topics.append(
            attrs.evolve(
                with_message_type(topic, topic_type),
                read_queues=_queue_count(topic.read_queues, queues),
                write_queues=_queue_count(topic.write_queues, queues),
            )
        )
    readers = {
        (topic, group)
        for source in sources
        for topic, group in read_consumer_offsets(source.path)
        if topic in demands
    }
    readers |= {
        (name, name.removeprefix(names.RETRY_PREFIX))
        for name in demands
        if name.startswith(names.RETRY_PREFIX)
    }
    queues_of = {topic.name: topic.read_queues for topic in topics}
    offsets = {
        (topic, group): dict.fromkeys(range(queues_of[topic]), 0) for topic, group in readers
    }
    groups = [
        known_groups.get(name, GroupConfig(name))
        for name in sorted(set(known_groups) | {group for _topic, group in readers})
    ]
    return {
        TOPICS: encode_topics(topics),
        GROUPS: encode_groups(groups),
        CONSUMER_OFFSETS: encode_consumer_offsets(offsets),
    }


def with_message_type(topic: TopicConfig, topic_type: str) -> TopicConfig:
    """The topic, with a type where it has none and clients send to it."""
    message_type = TOPIC_TYPES[topic_type]
    if message_type is None or topic.message_type is not None or not takes_messages(topic.name):
        return topic
    return attrs.evolve(topic, attributes={**topic.attributes, MESSAGE_TYPE: message_type})


def takes_messages(topic: str) -> bool:
    """Whether clients send to a topic of this name. Only brokers send to topics of retries, dead
    letters and their own; no proxy asks for the type of those.
    """
    prefixes = names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX, names.SYSTEM_PREFIX
    return not topic.startswith(prefixes)


def merged_topics(sources: Sequence[StoreRoot]) -> dict[str, TopicConfig]:
    """The topics of several sources: the first one's settings, the most queues, the first stated
    type.
    """
    tables = [read_topics(source.path) for source in sources]
    merged = {}
    for name, topic in _first_known(tables).items():
        configs = [table[name] for table in tables if name in table]
        types = [each.message_type for each in configs if each.message_type is not None]
        merged[name] = attrs.evolve(
            topic,
            read_queues=max(each.read_queues for each in configs),
            write_queues=max(each.write_queues for each in configs),
            attributes={**topic.attributes, **({MESSAGE_TYPE: types[0]} if types else {})},
        )
    return merged


def _first_known(tables: Sequence[Mapping[str, _Config]]) -> dict[str, _Config]:
    """The value of the first table that has a name."""
    return {name: value for table in reversed(tables) for name, value in table.items()}


def config_clashes(
    sources: Sequence[StoreRoot], demands: Mapping[str, TopicDemand]
) -> Iterator[str]:
    """Topics and groups with different settings in several sources, as sentences."""
    topics = [read_topics(source.path) for source in sources]
    groups = [read_groups(source.path) for source in sources]
    for name in demands:
        settings = [
            attrs.evolve(table[name], read_queues=0, write_queues=0, members={})
            for table in topics
            if name in table
        ]
        if any(each != settings[0] for each in settings):
            yield f"topic {name}: sources have different settings; those of the first are taken"
    for name in sorted(set().union(*groups)):
        members = [table[name].members for table in groups if name in table]
        if any(each != members[0] for each in members):
            yield f"group {name}: sources have different settings; those of the first are taken"


def _queue_count(stated: int, needed: int) -> int:
    return max(needed, min(stated, QUEUE_ID_MAX + 1))


def advised_max_message_bytes(settings: TargetSettings, largest_record_bytes: int) -> int:
    """The ``maxMessageSize`` with which the wheel reads the largest record, also once it has
    rolled.
    """
    default = settings.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES
    return max(default, largest_record_bytes + DELIVERY_GROWTH_BYTES - RECORD_MARGIN_BYTES)


def broker_settings(settings: TargetSettings, largest_record_bytes: int) -> dict[str, str]:
    """The settings that the target's broker must have: it refuses files of other sizes."""
    wanted = {
        "timerWheelEnable": "true",
        "timerRocksDBEnable": "false",
        "timerWheelSnapshotFlush": "false",
        "timerPrecisionMs": str(settings.precision_ms),
        "timerRollWindowSlot": str(settings.roll_window_slots),
        "mappedFileSizeCommitLog": str(settings.commit_log_file_bytes),
        "mappedFileSizeConsumeQueue": str(settings.queue_file_bytes),
        "mappedFileSizeTimerLog": str(settings.timer_log_file_bytes),
        "fileReservedTime": str(settings.retention_hours),
    }
    advised = advised_max_message_bytes(settings, largest_record_bytes)
    if advised != DEFAULT_MAX_MESSAGE_BYTES:
        wanted["maxMessageSize"] = str(advised)
    return wanted


def broker_conf(wanted: Mapping[str, str], engine: str = WHEEL) -> bytes:
    """The fragment for the configuration file of the target's broker, for this engine."""
    no_broker_yet = (
        "# No broker starts on this store, which is a hierarchical wheel's: WheelStore must take",
        "# it over first, by opening and closing it. After that:",
    )
    lines = [
        *(no_broker_yet if engine == HIERARCHY else ()),
        "# What this store depends on: add these to the configuration of the broker that opens it.",
        *(f"{key}={value}" for key, value in wanted.items()),
        "",
    ]
    return "\n".join(lines).encode()
