# SPDX-License-Identifier: Apache-2.0
"""The small files of a target: routes and offsets for the messages that wait in it."""

import json
from pathlib import Path

import pytest

from message_store.store_root import StoreRoot
from migrate.target_config import TopicDemand, config_files


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
    files = config_files([StoreRoot(tmp_path)], {"Orders": TopicDemand(count=1, max_queue_id=2)})
    topic = json.loads(files["topics.json"])["topicConfigTable"]["Orders"]
    assert (topic["readQueueNums"], topic["writeQueueNums"]) == (queues, queues)
    assert files["consumerOffset.json"].count(b":0") == queues
