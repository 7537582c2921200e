# SPDX-License-Identifier: Apache-2.0
"""Steps through RocketMQ's ScheduleMessageService on a store directory, one look at a time.

The service looks at a level a second after its start, then every 100 ms. An entry that is not due
holds back those behind it, and only a stored message moves the level's offset. Prints::

       0 ms: 3 messages wait in levels 1 and 2, nothing was looked at
     900 ms: nobody has looked yet, delivered [], offsets {}
    1000 ms: the first look, delivered ['a'], offsets {1: 1}
    1040 ms: between two looks, delivered [], offsets {1: 1}
    1100 ms: the next look, delivered ['b'], offsets {1: 2}
    5000 ms: level 2, delivered ['c'], offsets {1: 2, 2: 1}
    closed: {"offsetTable":{1:2,2:1}}
"""

from pathlib import Path

from delaywheel import AtLevel, ManualClock, Message
from legacy_levels.engine.rules import BROKER_TIMINGS
from legacy_levels.reference.store import ReferenceLevelStore

START_MS = 1_793_000_000_000
STEPS = [
    (900, "nobody has looked yet"),
    (1_000, "the first look"),
    (1_040, "between two looks"),
    (1_100, "the next look"),
    (5_000, "level 2"),
]

clock = ManualClock(START_MS)
with ReferenceLevelStore.open("levels", clock=clock, timings=BROKER_TIMINGS) as store:
    store.schedule(Message("orders", b"a"), AtLevel(1))  # due after a second
    store.schedule(Message("orders", b"c"), AtLevel(2))  # after five
    clock.tick(30)
    store.schedule(Message("orders", b"b"), AtLevel(1))  # 30 ms later than the first
    waiting = len(list(store.pending()))
    print(f"   0 ms: {waiting} messages wait in levels 1 and 2, nothing was looked at")
    for at_ms, what in STEPS:
        clock.tick(START_MS + at_ms - clock.now_ms())
        bodies = [each.message.body.decode() for each in store.advance(clock.now_ms())]
        offsets = store.service.offset_table  # what delayOffset.json will say
        print(f"{at_ms:4} ms: {what}, delivered {bodies}, offsets {offsets}")
text = Path("levels/config/delayOffset.json").read_text(encoding="utf-8")
print(f"closed: {''.join(text.split())}")
