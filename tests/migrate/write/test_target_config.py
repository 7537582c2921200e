# SPDX-License-Identifier: Apache-2.0
"""The small files of a target: routes and offsets for the messages that wait in it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from cli import USAGE, main
from message_store.base.errors import OptionsError
from message_store.files.config_files import MESSAGE_TYPE, TopicConfig, encode_topics, read_topics
from message_store.files.store_root import StoreRoot
from migrate.settings import ENGINES, TOPIC_TYPES
from migrate.spark.options import write_options
from migrate.write.target_config import TopicDemand, config_files
from tests.independent.level_messages import LevelMessage
from tests.migrate.conversions import SMALL, build_and_convert
from tests.migrate.written_wheels import messages, write


@pytest.mark.parametrize(
    ("said", "queues"), [(300_000_000, 65_536), (8, 8), (1, 3), (-5, 3), ("400000000", 65_536)]
)
def test_a_topic_keeps_its_queues_as_far_as_queue_ids_can_count(
    tmp_path: Path, said: int | str, queues: int
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    entry = {"topicName": "Orders", "readQueueNums": said, "writeQueueNums": said}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"Orders": entry}}))
    offsets = {"offsetTable": {"Orders@readers": {"0": 7}}}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))
    files = config_files(
        [StoreRoot(tmp_path)], {"Orders": TopicDemand(count=1, max_queue_id=2)}, "mixed"
    )
    topic = json.loads(files["topics.json"])["topicConfigTable"]["Orders"]
    assert (topic["readQueueNums"], topic["writeQueueNums"]) == (queues, queues)
    assert files["consumerOffset.json"].count(b":0") == queues


def topics_of(files: Mapping[str, bytes]) -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(files["topics.json"])["topicConfigTable"]
    return table


def put_topics(root: Path, topics: Mapping[str, Mapping[str, str] | None]) -> StoreRoot:
    """A store whose topics.json has these topics and their attributes; None has none at all."""
    store = StoreRoot(root)
    entries = [TopicConfig(name, attributes=said or {}) for name, said in topics.items()]
    text = json.loads(encode_topics(entries))
    for name, said in topics.items():
        if said is None:
            del text["topicConfigTable"][name]["attributes"]
    store.config_file("topics.json").parent.mkdir(parents=True)
    store.config_file("topics.json").write_text(json.dumps(text))
    return store


@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
def test_a_topic_says_its_type_unless_the_source_does(tmp_path: Path, topic_type: str) -> None:
    """A 5.x proxy takes a topic without a type for NORMAL and refuses its delayed messages."""
    said = {"Ordered": {MESSAGE_TYPE: "FIFO"}, "Old": None, "Empty": {}, "Other": {"a": "b"}}
    source = put_topics(tmp_path, said)
    system = ("%RETRY%readers", "%DLQ%readers", "rmq_sys_REVIVE_LOG_judge")
    demands = dict.fromkeys([*said, "Unknown", *system], TopicDemand(count=1, max_queue_id=0))
    topics = topics_of(config_files([source], demands, topic_type))
    found = {name: entry["attributes"] for name, entry in topics.items()}
    wanted = TOPIC_TYPES[topic_type]
    ours = {} if wanted is None else {MESSAGE_TYPE: wanted}
    assert found == {
        "Ordered": {MESSAGE_TYPE: "FIFO"},
        "Old": ours,
        "Empty": ours,
        "Other": {"a": "b", **ours},
        "Unknown": ours,
        **{name: {} for name in system},
    }


def test_the_attributes_are_written_as_a_broker_reads_them(tmp_path: Path) -> None:
    """Neither the sign with which an operator adds an attribute nor another case is understood."""
    demands = {"Orders": TopicDemand(count=1, max_queue_id=0)}
    text = config_files([StoreRoot(tmp_path)], demands, "mixed")["topics.json"]
    assert b'"attributes":{"message.type":"MIXED"}' in re.sub(rb"\s", b"", text)


def test_of_several_sources_the_first_that_says_a_type_is_believed(tmp_path: Path) -> None:
    sources = [
        put_topics(tmp_path / "one", {"Orders": None}),
        put_topics(tmp_path / "two", {"Orders": {MESSAGE_TYPE: "DELAY"}}),
        put_topics(tmp_path / "three", {"Orders": {MESSAGE_TYPE: "FIFO"}}),
    ]
    demands = {"Orders": TopicDemand(count=1, max_queue_id=0)}
    topics = topics_of(config_files(sources, demands, "mixed"))
    assert topics["Orders"]["attributes"] == {MESSAGE_TYPE: "DELAY"}


@pytest.mark.parametrize("to", ENGINES)
@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
def test_a_target_has_the_types_that_were_asked_for(
    tmp_path: Path, topic_type: str, to: str
) -> None:
    settings = attrs.evolve(SMALL, topic_type=topic_type)
    done = build_and_convert(tmp_path, [LevelMessage(level=18)], settings=settings, to=to)
    [topic] = read_topics(done.target).values()
    assert topic.message_type == TOPIC_TYPES[topic_type]


@pytest.mark.parametrize("topic_type", [None, *TOPIC_TYPES])
def test_a_written_wheel_has_the_types_that_were_asked_for(
    tmp_path: Path, topic_type: str | None
) -> None:
    _now_ms, settings = write_options({} if topic_type is None else {"topicType": topic_type})
    write(tmp_path / "target", [messages(4, first=1)], settings=settings)
    types = {topic.message_type for topic in read_topics(tmp_path / "target").values()}
    assert types == {TOPIC_TYPES[topic_type or "mixed"]}


def test_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(OptionsError, match="topicType is mixed, delay, keep, not 'normal'"):
        write_options({"topicType": "normal"})
    in_place = CliRunner().invoke(main, ["convert", "--in-place", "--topic-type", "delay", "x"])
    assert in_place.exit_code == USAGE
    assert "--topic-type is for a fresh TARGET" in in_place.stderr
