# SPDX-License-Identifier: Apache-2.0
"""What a target holds: where each record, entry and unit lies, and in which slot it waits.

All of it follows from how long each record has become. Slots are decided when it is known which
messages there are: what is overdue, or rolls, is spread by its rank among all.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.array_room import new_array, rows_at, running_sums
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.kernels.cache import kernel
from migrate.plan.plan import Cut, Plan, Rows
from migrate.settings import WHEEL, TargetSettings
from timer_wheel.format.wheel_math import WHEEL_SLOTS, floor_ms
from timer_wheel.placing import place

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]


Runs = Sequence[slice]
"""Rows of a target that follow each other: those of one source."""


@attrs.frozen(eq=False)
class Arrangement:
    """The order of a target: for each row of its queue the message of the plan and the log offset;
    and where the log ends. ``messages`` are a range where the order is that of the plan.
    """

    messages: Rows
    offsets: Int64Array
    log_end: int

    def runs(self, cut: Cut, file_bytes: int) -> Sequence[Runs]:
        """Which rows are of each source: in a file they are in order, and those of the reserve
        follow. Nothing for a source without any.
        """
        starts = np.searchsorted(self.offsets, np.arange(cut.file_count + 1) * file_bytes).tolist()
        found: list[list[slice]] = [[] for _ in cut.sources[1:]]
        for rows in pairwise(starts):
            edges = [bisect_left(self.messages, first, *rows) for first in cut.sources]
            for runs, (first, end) in zip(found, pairwise(edges), strict=True):
                if runs and runs[-1].stop == first:
                    first = runs.pop().start
                if first < end:
                    runs.append(slice(first, end))
        return found


def arrange(plan: Plan, sizes: Int32Array) -> Arrangement | None:
    """The order in which messages whose records have these sizes lie in the target; size 0 is a
    record that could not be converted.

    Each log file holds its own messages. As many of the reserve as are bad among them follow, so
    that the next file begins with the number that it was planned with. The last one takes the rest.
    None where the reserve, or a file, has too little room for that, or a file would be empty.
    """
    if len(sizes) and int(sizes.min()) > 0:
        return _as_planned(plan, sizes)
    spare = plan.cut.reserve + np.flatnonzero(sizes[plan.cut.reserve :] > 0)
    file_bytes = plan.settings.commit_log_file_bytes
    messages, offsets = (new_array(len(sizes), np.int64) for _ in range(2))
    count = log_end = 0
    for file in range(plan.cut.file_count):
        rows = plan.cut.rows_of(file)
        own = rows.start + np.flatnonzero(sizes[rows.start : rows.stop] > 0)
        missing = len(rows) - len(own)
        taken = len(spare) if file == plan.cut.file_count - 1 else missing
        if taken > len(spare):
            return None
        held = np.concatenate([own, spare[:taken]])
        spare = spare[taken:]
        ends = np.cumsum(sizes[held], dtype=np.int64)
        size_bytes = int(ends[-1]) if len(held) else 0
        if not len(held) or size_bytes > file_bytes - END_OF_FILE_MIN_BYTES:
            return None
        held_rows = slice(count, count + len(held))
        messages[held_rows] = held
        offsets[held_rows] = file * file_bytes + ends - sizes[held]
        count, log_end = held_rows.stop, file * file_bytes + size_bytes
    return Arrangement(messages[:count], offsets[:count], log_end)


def _as_planned(plan: Plan, sizes: Int32Array) -> Arrangement | None:
    """The same where every record is good: the order of the plan, without a copy of anything."""
    offsets = running_sums(sizes)
    offsets -= sizes
    log_end = 0
    for file, (first, end) in enumerate(pairwise(plan.cut.files)):
        start = file * plan.settings.commit_log_file_bytes
        offsets[first:end] += start - offsets[first]
        log_end = int(offsets[end - 1]) + int(sizes[end - 1])
        if log_end - start > plan.settings.commit_log_file_bytes - END_OF_FILE_MIN_BYTES:
            return None
    return Arrangement(range(len(plan)), offsets, log_end)


@attrs.frozen(eq=False)
class SlotTable:
    """The used slots, an element each: time, index of first and last message, and count."""

    slot_time_ms: Int64Array
    first_index: Int64Array
    last_index: Int64Array
    counts: Int64Array


@attrs.frozen(eq=False, kw_only=True)
class TargetRows:
    """The messages of a target, one element each, in the order of its timer queue.

    ``distances`` lead to the message before in the same slot (0: none). ``engine`` is what the
    target is for.
    """

    identity: str
    now_ms: int
    settings: TargetSettings
    engine: str
    levels: NDArray[np.int16]
    due_ms: Int64Array
    offsets: Int64Array
    sizes: Int32Array
    tags_hashes: Int32Array
    topic_hashes: Int32Array
    log_end: int
    outs_ms: Int64Array
    slot_times_ms: Int64Array
    flags: Int32Array
    distances: Int32Array
    slots: SlotTable

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def write_time_ms(self) -> int:
        """When all of it is written, as a slot time."""
        return floor_ms(self.now_ms, self.settings.precision_ms)

    @classmethod
    def of(
        cls,
        *,
        due_ms: Int64Array,
        now_ms: int,
        settings: TargetSettings,
        engine: str = WHEEL,
        outs_ms: Int64Array | None = None,
        **columns: Any,
    ) -> "TargetRows":
        """Rows with these columns, each in its slot; ``outs_ms`` by who has worked them out."""
        placing = place(
            due_ms,
            now_ms=now_ms,
            precision_ms=settings.precision_ms,
            window_slots=settings.roll_window_slots,
            outs_ms=outs_ms,
        )
        distances, slots = slot_chains(placing.slot_time_ms, settings.precision_ms)
        return cls(
            due_ms=due_ms,
            now_ms=now_ms,
            settings=settings,
            engine=engine,
            outs_ms=placing.out_ms,
            slot_times_ms=placing.slot_time_ms,
            flags=placing.flags,
            distances=distances,
            slots=slots,
            **columns,
        )

    @classmethod
    def planned(
        cls,
        plan: Plan,
        arrangement: Arrangement,
        sizes: Int32Array,
        tags_hashes: Int32Array,
        topic_hashes: Int32Array,
    ) -> "TargetRows":
        """The messages of a plan in this order; the columns have a row a message of the plan."""
        messages = arrangement.messages

        def in_order(column: NDArray[Any]) -> NDArray[Any]:
            return column if isinstance(messages, range) else rows_at(column, messages)

        return cls.of(
            due_ms=in_order(plan.due_ms),
            now_ms=plan.now_ms,
            settings=plan.settings,
            engine=plan.engine,
            outs_ms=in_order(plan.outs_ms),
            identity=plan.identity,
            levels=in_order(plan.levels),
            offsets=arrangement.offsets,
            sizes=in_order(sizes),
            tags_hashes=in_order(tags_hashes),
            topic_hashes=in_order(topic_hashes),
            log_end=arrangement.log_end,
        )

    @classmethod
    def expected(cls, plan: Plan) -> "TargetRows":
        """What a plan leads to where every record is as long as it may become."""
        sizes = np.maximum(plan.most_bytes, 1).astype(np.int32)
        arrangement = arrange(plan, sizes)
        if arrangement is None:  # records of no length, which are bad, made a file too long
            arrangement = Arrangement(range(len(plan)), np.cumsum(sizes) - sizes, 0)
        nothing = np.zeros(len(plan), np.int32)
        return cls.planned(plan, arrangement, sizes, nothing, nothing)


@kernel("void(int64[::1], int64, int32[::1], int32[::1], int32[::1], int32[::1])")
def link_chains(
    slot_times_ms: Any, precision_ms: int, distances: Any, first: Any, last: Any, counts: Any
) -> None:
    """Walk the slot time of every message in store order.

    ``distances[i]`` becomes how many messages back the previous one of the same slot is, 0 when
    there is none. ``first``, ``last`` (filled with -1) and ``counts`` (zeros) are per slot of the
    wheel.
    """
    for i in range(len(slot_times_ms)):
        slot = slot_times_ms[i] // precision_ms % WHEEL_SLOTS
        before = last[slot]
        if before < 0:
            first[slot] = i
            distances[i] = 0
        else:
            distances[i] = i - before
        last[slot] = i
        counts[slot] += 1


def slot_chains(slot_times_ms: Int64Array, precision_ms: int) -> tuple[Int32Array, SlotTable]:
    """For each message how far back the one before it in its slot is (0: none), and the slots.

    RocketMQ: TimerMessageStore#doEnqueue, one message at a time.
    """
    distances = new_array(len(slot_times_ms), np.int32)
    first = np.full(WHEEL_SLOTS, -1, np.int32)
    last = np.full(WHEEL_SLOTS, -1, np.int32)
    counts = np.zeros(WHEEL_SLOTS, np.int32)
    link_chains(slot_times_ms, precision_ms, distances, first, last, counts)
    used = np.flatnonzero(counts)
    firsts = first[used].astype(np.int64)
    table = SlotTable(
        slot_time_ms=slot_times_ms[firsts],
        first_index=firsts,
        last_index=last[used].astype(np.int64),
        counts=counts[used].astype(np.int64),
    )
    return distances, table
