# SPDX-License-Identifier: Apache-2.0
"""The conversion in its plainest form: one message after the other, everything in memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tests.independent.expected_conversion import MAY_DIFFER, WaitingRecord, out_ms_of
from tests.independent.raw_records import (
    TIMER_TOPIC,
    RawRecord,
    ends_with_separator,
    join_properties,
)
from tests.independent.target_writer import PlacedMessage, TargetShape

OVERDUE_SLOTS = 3600


def converted_record(waiting: RawRecord, out_ms: int, now_ms: int) -> RawRecord:
    """The timer record of a waiting one, still without its two offsets."""
    pairs = [pair for pair in waiting.pairs if pair[0] not in MAY_DIFFER]
    pairs.append(("TIMER_OUT_MS", str(out_ms)))
    return attrs.evolve(
        waiting,
        topic=TIMER_TOPIC,
        queue_id=0,
        store_timestamp_ms=now_ms,
        prepared_transaction_offset=0,
        properties=join_properties(pairs, ending=ends_with_separator(waiting.properties)),
        magic=None,
        total_size=None,
    )


def placed_messages(
    waiting: Sequence[WaitingRecord], shape: TargetShape, roll_window_slots: int = 172_800
) -> list[PlacedMessage]:
    """Every waiting record converted and given its slot: overdue and rolled ones spread evenly."""
    step = shape.precision_ms
    write_ms = shape.write_time_ms
    outs = [out_ms_of(one.due_ms, step) for one in waiting]
    overdue = [number for number, out_ms in enumerate(outs) if out_ms < write_ms]
    overdue.sort(key=lambda number: waiting[number].due_ms)
    far = write_ms + roll_window_slots * step
    rolled = [number for number, out_ms in enumerate(outs) if out_ms >= far]
    half = roll_window_slots // 2
    slots = dict(enumerate(outs))
    for rank, number in enumerate(overdue):
        slots[number] = write_ms + (rank * OVERDUE_SLOTS // len(overdue) - OVERDUE_SLOTS) * step
    for rank, number in enumerate(rolled):
        slots[number] = write_ms + (half + rank * (roll_window_slots - half) // len(rolled)) * step
    return [
        PlacedMessage(
            converted_record(one.record, outs[number], shape.now_ms),
            slots[number],
            3 if outs[number] >= far else 1,
        )
        for number, one in enumerate(waiting)
    ]
