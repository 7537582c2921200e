# SPDX-License-Identifier: Apache-2.0
"""An entry of a queue that leads to the record of another message: each comes once, at its time."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from legacy_levels import LevelStore
from message_store import AtMs, ManualClock, Message
from message_store.format.properties import TIME_INDEX_TOPIC
from tests.faults.engines import abandon
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore, WheelStore

START_MS = 1_793_000_000_000
ENGINES = {
    "levels": (LevelStore, "SCHEDULE_TOPIC_XXXX/2"),
    "wheel": (WheelStore, "rmq_sys_wheel_timer/0"),
    "hierarchy": (HierarchicalWheelStore, "rmq_sys_wheel_timer/0"),
    "time index": (TimeIndexStore, f"{TIME_INDEX_TOPIC}/0"),
}
COUNT = 4
PLACE_BYTES, ENTRY_BYTES = 8, 20


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_leads_to_the_record_of_another_is_made_anew(
    tmp_path: Path, engine: str, is_killed: bool
) -> None:
    kind, queue = ENGINES[engine]
    for damaged, other in itertools.permutations(range(COUNT), 2):
        root, clock = tmp_path / f"{damaged}-{other}", ManualClock(START_MS)
        store = kind.open(root, clock=clock)
        for number in range(COUNT):
            store.schedule(Message("orders", b"%d" % number), AtMs(START_MS + 10_000))
        if is_killed:
            abandon(store)
        else:
            store.close()
        path = min((root / "consumequeue" / queue).iterdir())
        with path.open("r+b") as file:
            file.seek(ENTRY_BYTES * other)
            place = file.read(PLACE_BYTES)
            file.seek(ENTRY_BYTES * damaged)
            file.write(place)
        with kind.open(root, clock=clock) as store:
            assert not len(store.advance(START_MS + 9_000))
            came = Counter(each.message.body for each in store.advance(START_MS + 11_000))
            told = [each.problem for each in store.check()]
        assert came == Counter(b"%d" % number for number in range(COUNT)), (damaged, other)
        assert told or is_killed or engine != "levels"
