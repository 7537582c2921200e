# SPDX-License-Identifier: Apache-2.0
"""topics.json knows where waiting messages will go, before any of them is delivered."""

import json
from pathlib import Path

import numpy as np

from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message
from message_store.interface.delay_store import AfterMs
from message_store.writing.settings import StoreSettings
from timer_wheel.wheel.store import WheelStore

SMALL = StoreSettings(commit_log_file_bytes=1 << 16, queue_file_bytes=2_000)


def test_queues_that_messages_wait_for_are_in_topics_json(tmp_path: Path) -> None:
    with WheelStore.open(tmp_path, settings=SMALL) as store:
        store.schedule(Message("one", b"x", queue_id=2), AfterMs(60_000))
        store.schedule(Message("one", b"x", queue_id=1), AfterMs(60_000))
        batch = [Message("one", b"x", queue_id=3), Message("many", b"x"), Message("many", b"x")]
        due_ms = np.full(3, store.clock.now_ms() + 60_000, np.int64)
        store.schedule_batch(MessageBatch.of(batch), due_ms)
    text = (tmp_path / "config" / "topics.json").read_text(encoding="utf-8")
    known = json.loads(text)["topicConfigTable"]
    assert {name: topic["readQueueNums"] for name, topic in known.items()} == {"one": 4, "many": 1}
