# SPDX-License-Identifier: Apache-2.0
"""Three groups of ours in a process of its own that is killed while one of them gives back.

A program: ``python -m tests.interop.group_process SPEC``, SPEC being JSON. ``killed_at`` is the
method before which the process is killed: ``schedule`` of the retry's record, which was noted, or
``gave_back``, which acknowledges its message.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final, cast

from consumer_groups import GroupStore, consumer_group
from consumer_groups.groups import groups_of
from legacy_levels import LevelStore
from message_store import AtMs, DelayLevels, Message, SystemClock
from message_store.format.dialect import Dialect
from message_store.writing.settings import StoreSettings
from timer_wheel import WheelStore

TOPIC: Final = "orders"
RECEIVED, ACKNOWLEDGED, RETRIED = GROUPS = ("received", "acknowledged", "retried")
COUNT: Final = 20
RETRIED_NUMBERS: Final = (5, 7)
"""The second is on its way when the process is killed."""
REJECTED_NUMBER: Final = 6
_FILES: Final = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=40_000, broker_name="judge-a"
)
_CLOCK: Final = SystemClock()


def body(number: int) -> bytes:
    return b"order %d" % number


def open_store(engine: str, version: str, root: Path, table: str) -> GroupStore:
    levels = DelayLevels.parse(table)
    if engine == "levels":
        dialect = Dialect.ROCKETMQ_4_9 if version.startswith("4.") else Dialect.ROCKETMQ_5_5
        return LevelStore.open(root, levels=levels, dialect=dialect, settings=_FILES)
    return cast(GroupStore, WheelStore.open(root, levels=levels, settings=_FILES))


def work_until_killed(spec: dict[str, Any]) -> None:
    """All groups receive; what they settle before the flush is in consumerOffset.json."""
    store = open_store(spec["engine"], spec["version"], Path(spec["root"]), spec["table"])
    for number in range(COUNT):
        message = Message(TOPIC, body(number), tags="paid", keys=str(number))
        store.schedule(message, AtMs(_CLOCK.now_ms()))
    store.advance(_CLOCK.now_ms() + 1_000)
    groups = {name: consumer_group(store, name) for name in GROUPS}
    received = {name: groups[name].receive(TOPIC, max_messages=COUNT) for name in GROUPS}
    for name in (ACKNOWLEDGED, RETRIED):
        groups[name].ack(*received[name][:5])
    store.flush()
    groups[ACKNOWLEDGED].ack(*received[ACKNOWLEDGED][5:8])
    first, last = RETRIED_NUMBERS
    groups[RETRIED].retry(received[RETRIED][first])
    groups[RETRIED].reject(received[RETRIED][REJECTED_NUMBER])
    store.advance(_CLOCK.now_ms() + 1_000)
    store.flush()  # a broker gives no route to a topic that topics.json does not have

    def kill(*_given: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    killed = store if spec["killed_at"] == "schedule" else groups_of(store).table
    setattr(killed, spec["killed_at"], kill)
    groups[RETRIED].retry(received[RETRIED][last])


if __name__ == "__main__":
    work_until_killed(json.loads(sys.argv[1]))
