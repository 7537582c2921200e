# SPDX-License-Identifier: Apache-2.0
"""A week of deliveries in a second: a store takes the time from its clock, which may be simulated.

A hundred thousand reminders are scheduled at once, as columns, due at random quarters of an hour.
The loop jumps from one due time to the next. Prints::

    100,000 messages stored
    Mon: 14,...
    Tue: 14,...
    Wed: 14,...
    Thu: 14,...
    Fri: 14,...
    Sat: 14,...
    Sun: 14,...
    100,000 delivered, none early, the latest 0 ms after its promise
"""

from collections import Counter

import numpy as np

from delaywheel import Deliveries, ManualClock, Message, MessageBatch, WheelStore, run_store

DAY_MS, QUARTER_MS = 86_400_000, 900_000
MONDAY_MS = 1_767_571_200_000  # 2026-01-05T00:00:00Z
MESSAGES = 100_000

clock = ManualClock(MONDAY_MS)
by_day: Counter[int] = Counter()
lateness_ms: list[int] = []


def count(deliveries: Deliveries) -> None:
    """Count the deliveries of a day, without an object for any message."""
    by_day[(clock.now_ms() - MONDAY_MS - 1) // DAY_MS] += len(deliveries)
    lateness_ms.append(deliveries[0].lateness_ms)


with WheelStore.open("week", clock=clock, max_delay_ms=7 * DAY_MS) as store:
    batch = MessageBatch.of(Message("reminders", b"%d" % number) for number in range(MESSAGES))
    quarters = np.random.default_rng(1).integers(1, 7 * 96, MESSAGES, endpoint=True)
    due_ms = MONDAY_MS + QUARTER_MS * quarters
    print(f"{len(store.schedule_batch(batch, due_ms)):,} messages stored")
    delivered = run_store(store, clock, count, until_ms=MONDAY_MS + 7 * DAY_MS, poll_ms=DAY_MS)
for day, name in enumerate(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")):
    print(f"{name}: {by_day[day]:,}")
assert min(lateness_ms) == 0
print(f"{delivered:,} delivered, none early, the latest {max(lateness_ms)} ms after its promise")
