# SPDX-License-Identifier: Apache-2.0
"""Read the store directory that a RocketMQ broker left behind, and deliver its pending messages.

The sample was written by a 4.9.7 broker that was stopped with pending messages in its levels. First
the store is only read. Then the engine of the levels replaces the broker on the same files, from
the moment of the stop. Prints::

    366 messages are pending, the first for %RETRY%fixture_group, due 2026-11-21T13:42:26.034Z
    they are for 6 topics, most of them (83) for OrderTimeout, which holds 24 so far
    within an hour 336 are delivered, 30 stay pending, the next is due 2026-11-21T15:42:00.609Z
    OrderTimeout then holds 96
"""

from collections import Counter
from pathlib import Path

from delaywheel import LevelStore, ManualClock, Pending, run_store
from message_store.base.printable import iso_time
from message_store.reading.topic_listing import list_topic
from migrate.demo import unpack_sample
from migrate.look.pending import pending_messages

STOPPED_MS = 1_795_268_547_629
HOUR_MS = 3_600_000

path = unpack_sample(Path("."))
records = pending_messages(path, now_ms=STOPPED_MS)
pending = [record for record in records if isinstance(record, Pending)]  # others are damaged
first = pending[0]
due = iso_time(first.due_ms)
print(f"{len(pending)} messages are pending, the first for {first.topic}, due {due}")
topics = Counter(message.topic for message in pending)
[(topic, most)] = topics.most_common(1)
print(
    f"they are for {len(topics)} topics, most of them ({most}) for {topic}, which holds"
    f" {len(list(list_topic(path, topic)))} so far"
)

clock = ManualClock(STOPPED_MS)
with LevelStore.open(path, clock=clock) as store:
    end_ms = STOPPED_MS + HOUR_MS
    delivered = run_store(store, clock, list, until_ms=end_ms, poll_ms=HOUR_MS)
    left, next_due_ms = len(list(store.pending())), store.next_due_ms() or 0
print(
    f"within an hour {delivered} are delivered, {left} stay pending, the next is due"
    f" {iso_time(next_due_ms)}"
)
print(f"{topic} then holds {len(list(list_topic(path, topic)))}")
