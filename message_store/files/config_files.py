# SPDX-License-Identifier: Apache-2.0
"""topics.json, subscriptionGroup.json and consumerOffset.json: read leniently, written as a broker
would.

Reading takes the main file, else its `.bak`, else the readable part of the main one, else nothing.
Brokers with queues in RocksDB keep the same there (``rocksdb_config``). A store with a damaged
configuration still has its messages. Every member of an entry is kept, known or not, so that a copy
loses nothing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from message_store.base.errors import BadFieldError
from message_store.files.rocksdb.config import config_in_rocksdb
from message_store.files.small_files import read_small_file, replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import ConfigDialect, JsonObject, JsonValue, examine, write
from message_store.format.java_numbers import parse_long

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
CONSUMER_OFFSETS = "consumerOffset.json"

PERM_READ_WRITE = 6

MESSAGE_TYPE = "message.type"
"""The attribute of a topic that says which kinds of messages gRPC clients may send to it."""
NORMAL, DELAY, MIXED = "NORMAL", "DELAY", "MIXED"
MESSAGE_TYPES = frozenset(
    {"UNSPECIFIED", NORMAL, "FIFO", DELAY, "TRANSACTION", "PRIORITY", "LITE", MIXED}
)
"""RocketMQ: TopicMessageType (5.5.0). A proxy fails at any other text, whatever is asked."""

DEFAULT_QUEUES = 16
DEFAULT_MAX_RETRIES = 16

_NEW_GROUP: JsonObject = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": DEFAULT_MAX_RETRIES,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
"""RocketMQ: SubscriptionGroupConfig (4.9.7). What newer brokers add has defaults in them."""
_SEPARATOR = "@"

ConsumerOffsets = dict[tuple[str, str], dict[int, int]]
"""(topic, group) to queue id to the next queue offset that the group will read."""


@attrs.frozen
class ConfigText:
    """One configuration file: its value, an empty object when there is none, and what was wrong."""

    value: JsonObject
    problems: tuple[str, ...] = ()


@attrs.frozen
class TopicConfig:
    """A topic as topics.json has it; ``members`` are all its members, as they stand there."""

    name: str
    read_queues: int = DEFAULT_QUEUES
    write_queues: int = DEFAULT_QUEUES
    perm: int = PERM_READ_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = attrs.field(factory=dict)
    members: JsonObject = attrs.field(factory=dict, repr=False)

    @classmethod
    def of_members(cls, name: str, members: JsonObject) -> "TopicConfig":
        """A topic from its entry; a member that is missing or odd takes a broker's default."""
        attributes = members.get("attributes")
        filter_type = members.get("topicFilterType")
        return cls(
            name=name,
            read_queues=_number(members.get("readQueueNums"), DEFAULT_QUEUES),
            write_queues=_number(members.get("writeQueueNums"), DEFAULT_QUEUES),
            perm=_number(members.get("perm"), PERM_READ_WRITE),
            order=members.get("order") is True,
            filter_type=filter_type if isinstance(filter_type, str) else "SINGLE_TAG",
            sys_flag=_number(members.get("topicSysFlag"), 0),
            attributes={str(key): str(text) for key, text in attributes.items()}
            if isinstance(attributes, dict)
            else {},
            members=dict(members),
        )

    @property
    def message_type(self) -> str | None:
        """What the topic says of the messages that it takes; None, where it says nothing, means
        NORMAL to a 5.x proxy (RocketMQ: TopicConfig#getTopicMessageType).
        """
        return self.attributes.get(MESSAGE_TYPE)

    def as_members(self) -> JsonObject:
        """Every member, by name; what the fields say goes before what ``members`` held."""
        attributes: JsonObject = dict(sorted(self.attributes.items()))
        return {
            **self.members,
            "attributes": attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@attrs.frozen
class GroupConfig:
    """A consumer group as subscriptionGroup.json has it; ``members`` as they stand there."""

    name: str
    members: JsonObject = attrs.field(factory=dict, repr=False)

    @classmethod
    def default(cls, name: str) -> "GroupConfig":
        """A group as a broker makes one for a consumer that it does not know."""
        return cls(name, dict(_NEW_GROUP))

    @property
    def max_retries(self) -> int:
        """After so many retries a message becomes a dead letter."""
        return _number(self.members.get("retryMaxTimes"), DEFAULT_MAX_RETRIES)


def _number(value: JsonValue, default: int) -> int:
    if isinstance(value, str):
        try:
            return parse_long(value)
        except BadFieldError:
            return default
    return value if isinstance(value, int) and not isinstance(value, bool) else default


# --- reading --------------------------------------------------------------------------------------


def read_config(root: Path, name: str) -> ConfigText:
    """A file under ``config/`` by the lenient order, or its like in RocksDB; never raises."""
    if (in_rocksdb := config_in_rocksdb(root, name)) is not None:
        return ConfigText(*in_rocksdb)
    main = StoreRoot(root).config_file(name)
    problems: list[str] = []
    saved: JsonObject = {}
    for path in (main, main.with_name(name + ".bak")):
        content = read_small_file(path)
        if content is None:
            continue
        reading = examine(content, path=path)
        if reading.damage is None and isinstance(reading.value, dict):
            return ConfigText(reading.value, tuple(problems))
        problems.append(f"{path}: {reading.damage or 'not an object'}")
        if isinstance(reading.value, dict) and not saved:
            saved = reading.value
    return ConfigText(saved, tuple(problems))


def read_topics(root: Path) -> dict[str, TopicConfig]:
    """The topics that the store knows, by name."""
    table = _table(read_config(root, TOPICS).value, "topicConfigTable")
    return {name: TopicConfig.of_members(name, members) for name, members in table.items()}


def read_groups(root: Path) -> dict[str, GroupConfig]:
    """The consumer groups that the store knows, by name."""
    table = _table(read_config(root, GROUPS).value, "subscriptionGroupTable")
    return {name: GroupConfig(name, members) for name, members in table.items()}


def read_consumer_offsets(root: Path) -> ConsumerOffsets:
    """How far each group has read each queue of each topic."""
    offsets: ConsumerOffsets = {}
    table = _table(read_config(root, CONSUMER_OFFSETS).value, "offsetTable")
    for key, queues in table.items():
        topic, separator, group = key.rpartition(_SEPARATOR)  # no group has one in its name
        if separator:
            numbers = {_number(queue, -1): _number(at, -1) for queue, at in queues.items()}
            offsets[topic, group] = {q: at for q, at in numbers.items() if q >= 0 and at >= 0}
    return offsets


def is_offset_file(root: Path) -> bool:
    """Whether consumerOffset.json itself has the offsets, and neither its copy nor a database."""
    if config_in_rocksdb(root, CONSUMER_OFFSETS) is not None:
        return False
    content = read_small_file(StoreRoot(root).config_file(CONSUMER_OFFSETS))
    value = None if content is None else examine(content).value
    return isinstance(value, dict) and isinstance(value.get("offsetTable"), dict)


def _table(value: JsonObject, name: str) -> dict[str, JsonObject]:
    table = value.get(name)
    if not isinstance(table, dict):
        return {}
    return {str(key): entry for key, entry in table.items() if isinstance(entry, dict)}


# --- writing --------------------------------------------------------------------------------------


def replace_config(
    root: Path, name: str, value: JsonObject, dialect: ConfigDialect, before: ConfigText
) -> None:
    """Put a value into a file under ``config/``. The old file becomes `.bak`, as with a broker,
    unless ``before``, what was read of it, had damage. Raises SourceError and TargetError.
    """
    path = StoreRoot(root).config_file(name)
    old = read_small_file(path)
    if old and not before.problems:
        replace_file(path.with_name(path.name + ".bak"), old)
    replace_file(path, write(value, dialect))


def encode_topics(
    topics: Iterable[TopicConfig], dialect: ConfigDialect = ConfigDialect.ROCKETMQ_5_3
) -> bytes:
    """topics.json for these topics, by name. The 5.3 way of writing is read by all brokers."""
    return write(topics_value(topics, dialect), dialect)


def topics_value(topics: Iterable[TopicConfig], dialect: ConfigDialect) -> JsonObject:
    """The value of a topics.json for these topics."""
    entries = {topic.name: topic.as_members() for topic in topics}
    return _table_value("topicConfigTable", entries, dialect)


def encode_groups(
    groups: Iterable[GroupConfig], dialect: ConfigDialect = ConfigDialect.ROCKETMQ_5_3
) -> bytes:
    """subscriptionGroup.json for these groups, by name."""
    return write(groups_value(groups, dialect), dialect)


def groups_value(groups: Iterable[GroupConfig], dialect: ConfigDialect) -> JsonObject:
    """The value of a subscriptionGroup.json for these groups."""
    entries: dict[str, JsonObject] = {
        group.name: {**group.members, "groupName": group.name} for group in groups
    }
    return _table_value("subscriptionGroupTable", entries, dialect)


def encode_consumer_offsets(
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
    dialect: ConfigDialect = ConfigDialect.ROCKETMQ_5_3,
) -> bytes:
    """consumerOffset.json for these offsets, by topic and group."""
    table: JsonObject = {
        f"{topic}{_SEPARATOR}{group}": dict(offsets[topic, group].items())
        for topic, group in sorted(offsets)
    }
    return write({"offsetTable": table}, dialect)


def with_consumer_offsets(value: JsonObject, offsets: ConsumerOffsets) -> JsonObject:
    """The value of a consumerOffset.json with these offsets in it; entries of others stay."""
    table = value.get("offsetTable")
    entries: JsonObject = dict(table) if isinstance(table, dict) else {}
    for (topic, group), changed in sorted(offsets.items()):
        name = f"{topic}{_SEPARATOR}{group}"
        known = entries.get(name)
        queues: JsonObject = dict(known) if isinstance(known, dict) else {}
        for queue_id, offset in changed.items():
            queues.pop(str(queue_id), None)
            queues[queue_id] = offset
        entries[name] = queues
    return {**value, "offsetTable": entries}


def _table_value(
    name: str, entries: Mapping[str, JsonObject], dialect: ConfigDialect
) -> JsonObject:
    version: JsonObject = {"counter": 1, "timestamp": 0}
    if dialect.has_state_version:
        version = {"counter": 1, "stateVersion": 0, "timestamp": 0}
    table: JsonObject = {key: _sorted_members(entries[key], dialect) for key in sorted(entries)}
    return {"dataVersion": version, name: table}


def _sorted_members(members: JsonObject, dialect: ConfigDialect) -> JsonObject:
    """Members by name; 4.9 knows no attributes."""
    names = sorted(str(key) for key in members)
    if not dialect.has_state_version:
        names = [name for name in names if name != "attributes"]
    return {name: members[name] for name in names}
