# SPDX-License-Identifier: Apache-2.0
"""What a broker that takes a wheel over would deliver, by the reader that follows its rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs

from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from timer_wheel import pending_records, read_wheel_store


@attrs.frozen
class BrokerView:
    """Unique keys of what would come, each with the time of its slot, in order; and what is wrong:
    units that two chains lead to, queue entries that nobody gets past.
    """

    found: list[tuple[str, int]]
    wrong: list[str]

    @property
    def keys(self) -> list[str]:
        """The keys alone."""
        return [key for key, _ in self.found]


def look_as_a_broker(
    path: Path | str,
    now_ms: int,
    *,
    snapshots_on: bool = False,
    precision_ms: int = 1000,
    torn_from: int = LONG_MAX,
    recovers_queues: bool = False,
) -> BrokerView:
    """A broker with slots of a second, or of so many milliseconds, that starts now. A loss of power
    may have torn the records in the log from ``torn_from`` on, and units. One that
    ``recovers_queues`` makes entries that are missing from the log; of what was delivered just
    before it tells nothing then.
    """
    root = StoreRoot(Path(path))
    state = read_wheel_store(
        root,
        now_ms=now_ms,
        precision_ms=precision_ms,
        snapshots_on=snapshots_on,
        after_crash=recovers_queues,
    )
    # A unit that lost its link leads to position 0: whoever lost power opens its store first.
    shared = state.shared_positions.tolist() if torn_from == LONG_MAX else []
    wrong = [f"shared: {each}" for each in shared]
    # A broker checks the lengths and the body of a record, not its properties. Torn there alone, a
    # record of its own stops it too (RocketMQ: CommitLog#checkMessageAndReturnSize); nobody was
    # told that such a record is durable, and none behind it.
    wrong += [f"blocking: {queue_offset}" for queue_offset, at in state.blocking if at < torn_from]
    slots = state.pending.slot_time_ms.tolist()
    with SegmentReader(root.commit_log) as log:
        records = zip(pending_records(log, state.pending), slots, strict=True)
        found = [(each.unique_key or "", slot_ms) for each, slot_ms in records if each is not None]
    return BrokerView(found, wrong)


def found_by_a_broker(path: Path, now_ms: int, *, snapshots_on: bool = False) -> Counter[str]:
    """How often each key would come; nothing is wrong."""
    view = look_as_a_broker(path, now_ms, snapshots_on=snapshots_on)
    assert view.wrong == []
    return Counter(view.keys)
