# SPDX-License-Identifier: Apache-2.0
"""Look into the store directory that a RocketMQ broker left behind, and deliver what it did not.

The sample was written by a 4.9.7 broker that was stopped while messages waited in its levels. First
it is only read; then the engine of the levels takes the broker's place on the same files, from the
moment of the stop. Prints::

    366 messages wait, the first is for %RETRY%fixture_group, due 2026-11-21T13:42:26.034Z
    they are for 6 topics, most of them (83) for OrderTimeout, which holds 24 by now
    within an hour 336 are delivered, 30 wait on, the next is due 2026-11-21T15:42:00.609Z
    and OrderTimeout holds 96
"""

from collections import Counter
from pathlib import Path

from legacy_levels import LevelStore
from message_store import ManualClock, Pending, run_store
from message_store.base.printable import iso_time
from message_store.reading.topic_listing import list_topic
from migrate.demo import unpack_sample
from migrate.look.pending import pending_messages

STOPPED_MS = 1_795_268_547_629
HOUR_MS = 3_600_000

path = unpack_sample(Path("."))
found = pending_messages(path, now_ms=STOPPED_MS)
waiting = [message for message in found if isinstance(message, Pending)]  # else it is damaged
first = waiting[0]
print(f"{len(waiting)} messages wait, the first is for {first.topic}, due {iso_time(first.due_ms)}")
topics = Counter(message.topic for message in waiting)
[(topic, most)] = topics.most_common(1)
print(
    f"they are for {len(topics)} topics, most of them ({most}) for {topic}, which holds"
    f" {len(list(list_topic(path, topic)))} by now"
)

clock = ManualClock(STOPPED_MS)
with LevelStore.open(path, clock=clock) as store:
    end_ms = STOPPED_MS + HOUR_MS
    delivered = run_store(store, clock, list, until_ms=end_ms, poll_ms=HOUR_MS)
    left, next_due_ms = len(list(store.pending())), store.next_due_ms() or 0
print(
    f"within an hour {delivered} are delivered, {left} wait on, the next is due"
    f" {iso_time(next_due_ms)}"
)
print(f"and {topic} holds {len(list(list_topic(path, topic)))}")
