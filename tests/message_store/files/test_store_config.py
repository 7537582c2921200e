# SPDX-License-Identifier: Apache-2.0
"""Topics, groups and consumer offsets: read leniently, written as brokers write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.files.config_files import (
    GroupConfig,
    TopicConfig,
    encode_consumer_offsets,
    encode_groups,
    encode_topics,
    read_config,
    read_consumer_offsets,
    read_groups,
    read_topics,
)
from message_store.format.broker_json import ConfigDialect, parse

TOPICS_4_9 = (
    b'{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"timestamp":1795268446723\n\t},'
    b'\n\t"topicConfigTable":{\n\t\t"judge":{\n\t\t\t"order":false,\n\t\t\t"perm":7,'
    b'\n\t\t\t"readQueueNums":16,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":'
    b'"judge",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
)
OFFSETS_4_9 = (
    b'{\n\t"offsetTable":{\n\t\t"T_1@group":{0:97,1:101\n\t\t},'
    b'\n\t\t"%RETRY%group@group":{0:157\n\t\t}\n\t}\n}'
)
OFFSETS_5_5 = (
    b'{\n\t"dataVersion":{\n\t\t"counter":4\n\t},\n\t"groupTopicMap":{\n\t\t"group":[\n\t\t\t"T_1"'
    b'\n\t\t]\n\t},\n\t"offsetTable":{\n\t\t"T_1@group":{\n\t\t\t0:93,\n\t\t\t1:82\n\t\t}\n\t}\n}'
)


def write(root: Path, name: str, main: bytes | None, backup: bytes | None = None) -> Path:
    (root / "config").mkdir(parents=True, exist_ok=True)
    for ending, content in (("", main), (".bak", backup)):
        if content is not None:
            (root / "config" / (name + ending)).write_bytes(content)
    return root


def test_a_topic_is_read_with_all_it_has(tmp_path: Path) -> None:
    [topic] = read_topics(write(tmp_path, "topics.json", TOPICS_4_9)).values()
    assert (topic.name, topic.read_queues, topic.write_queues, topic.perm) == ("judge", 16, 8, 7)
    assert (topic.order, topic.filter_type, topic.sys_flag) == (False, "SINGLE_TAG", 0)


def test_a_minimal_topic_takes_the_defaults_of_a_broker(tmp_path: Path) -> None:
    text = b'{"topicConfigTable":{"TopicA":{"topicName":"TopicA"}}}'
    [topic] = read_topics(write(tmp_path, "topics.json", text)).values()
    assert (topic.read_queues, topic.write_queues, topic.perm) == (16, 16, 6)
    assert (topic.order, topic.filter_type, topic.sys_flag) == (False, "SINGLE_TAG", 0)


def test_consumer_offsets_are_read_in_both_handwritings(tmp_path: Path) -> None:
    old = read_consumer_offsets(write(tmp_path, "consumerOffset.json", OFFSETS_4_9))
    assert old == {
        ("T_1", "group"): {0: 97, 1: 101},
        ("%RETRY%group", "group"): {0: 157},
    }
    new = read_consumer_offsets(write(tmp_path, "consumerOffset.json", OFFSETS_5_5))
    assert new == {("T_1", "group"): {0: 93, 1: 82}}


@pytest.mark.parametrize(
    ("main", "backup", "names", "problems"),
    [
        (TOPICS_4_9, None, ["judge"], 0),
        (None, TOPICS_4_9, ["judge"], 0),
        (b"", TOPICS_4_9, ["judge"], 1),
        (bytes(99), TOPICS_4_9, ["judge"], 1),
        (TOPICS_4_9[:90], TOPICS_4_9, ["judge"], 1),
        (TOPICS_4_9 + b"}", None, ["judge"], 1),
        (TOPICS_4_9[:150], b"", ["judge"], 2),
        (TOPICS_4_9[:90], bytes(9), [], 2),
        (None, None, [], 0),
        (b"[]", None, [], 1),
        (b'{"topicConfigTable":{"a":5}}', None, [], 0),
        (b'{"topicConfigTable":5}', None, [], 0),
    ],
)
def test_damage_costs_as_little_as_it_can(
    tmp_path: Path, main: bytes | None, backup: bytes | None, names: list[str], problems: int
) -> None:
    root = write(tmp_path, "topics.json", main, backup)
    assert list(read_topics(root)) == names
    assert len(read_config(root, "topics.json").problems) == problems


def test_odd_members_take_the_defaults(tmp_path: Path) -> None:
    text = (
        b'{"topicConfigTable":{"t":{"perm":"4","readQueueNums":"x","writeQueueNums":null,'
        b'"order":1,"attributes":[]}}}'
    )
    [topic] = read_topics(write(tmp_path, "topics.json", text)).values()
    assert (topic.perm, topic.read_queues, topic.write_queues) == (4, 16, 16)
    assert (topic.order, dict(topic.attributes)) == (False, {})


def test_odd_consumer_offsets_are_passed_over(tmp_path: Path) -> None:
    text = b'{"offsetTable":{"noSeparator":{0:1},"t@g":{0:1,x:2}}}'
    assert read_consumer_offsets(write(tmp_path, "consumerOffset.json", text)) == {
        ("t", "g"): {0: 1}
    }
    text = b'{"offsetTable":{"noSeparator":{0:1},"t@g":{0:1,"x":2,1:-5,"2":"7"}}}'
    assert read_consumer_offsets(write(tmp_path, "consumerOffset.json", text)) == {
        ("t", "g"): {0: 1, 2: 7}
    }


def test_a_topic_is_written_as_4_9_writes_it() -> None:
    text = encode_topics([TopicConfig("judge", write_queues=8, perm=7)], ConfigDialect.ROCKETMQ_4_9)
    stamped = TOPICS_4_9.replace(b'"counter":2', b'"counter":1').replace(b"1795268446723", b"0")
    assert text == stamped


def test_consumer_offsets_are_written_as_4_9_writes_them_in_order() -> None:
    text = encode_consumer_offsets(
        {("%RETRY%group", "group"): {0: 157}, ("T_1", "group"): {1: 101, 0: 97}},
        ConfigDialect.ROCKETMQ_4_9,
    )
    swapped = (
        b'{\n\t"offsetTable":{\n\t\t"%RETRY%group@group":{0:157\n\t\t},'
        b'\n\t\t"T_1@group":{0:97,1:101\n\t\t}\n\t}\n}'
    )
    assert text == swapped


@pytest.mark.parametrize("dialect", ConfigDialect)
def test_what_is_not_known_survives_a_copy(tmp_path: Path, dialect: ConfigDialect) -> None:
    topics = b'{"topicConfigTable":{"t":{"future":[1,2],"perm":4}}}'
    groups = b'{"subscriptionGroupTable":{"g":{"retryQueueNums":3,"future":{"a":"b"}}}}'
    root = write(write(tmp_path, "topics.json", topics), "subscriptionGroup.json", groups)
    copied_topics = encode_topics(read_topics(root).values(), dialect)
    copied_groups = encode_groups(read_groups(root).values(), dialect)
    copy = write(tmp_path / "copy", "topics.json", copied_topics)
    write(copy, "subscriptionGroup.json", copied_groups)
    assert read_topics(copy)["t"].members["future"] == [1, 2]
    assert read_topics(copy)["t"].perm == 4
    assert read_groups(copy)["g"].members["retryQueueNums"] == 3
    assert read_groups(copy)["g"].members["future"] == {"a": "b"}


def test_the_order_of_what_is_given_does_not_show() -> None:
    one, two = TopicConfig("a"), TopicConfig("b", members={"z": 1, "c": 2})
    assert encode_topics([one, two]) == encode_topics([two, one])
    assert encode_groups([GroupConfig("a"), GroupConfig("b")]) == encode_groups(
        [GroupConfig("b"), GroupConfig("a")]
    )
    assert isinstance(parse(encode_topics([one, two])), dict)


@given(st.binary(max_size=60) | st.text('{}[]":,topicConfgTabl1').map(str.encode))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("store")
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        write(root, name, content)
    read_topics(root)
    read_groups(root)
    read_consumer_offsets(root)
