# SPDX-License-Identifier: Apache-2.0
"""What ``inspect`` says to people; lines are not yet escaped."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from delaywheel.terminal.render.text import (
    LISTED_TOPICS,
    add_row,
    count,
    due_span,
    level_name,
    new_table,
    some,
    title,
)
from message_store.base.printable import counted, size, when

if TYPE_CHECKING:
    from migrate.look.inspection import (
        LevelState,
        StoreInspection,
        TimeIndexSummary,
        TimelineSummary,
        WheelSummary,
    )


def inspection_lines(inspection: "StoreInspection") -> Iterator[str | Table]:
    """``inspect``."""
    state = "stopped cleanly" if inspection.clean else "NOT stopped cleanly"
    yield f"{inspection.path}: {inspection.format}, {state} ({', '.join(inspection.evidence)})"
    if (member := inspection.member) is not None:
        group = "a group with a controller" if member.is_controlled else "a DLedger group"
        yield f"member {member.member} of {group}, whose log ends at {member}"
    next_due = inspection.next_due_ms
    soon = "" if next_due is None else f", the first due {when(next_due, inspection.now_ms)}"
    if inspection.pending is None:
        yield "how many messages are pending cannot be told: the warnings say why"
    else:
        yield f"{count(inspection.pending)} pending, {count(inspection.overdue)} overdue{soon}"
    yield level_table(inspection.levels, inspection.now_ms)
    if inspection.wheel is not None:
        yield from wheel_lines(inspection.wheel, inspection.now_ms)
    if inspection.timeline is not None:
        yield from timeline_lines(inspection.timeline, inspection.now_ms)
    if inspection.time_index is not None:
        yield time_index_line(inspection.time_index, inspection.now_ms)
    names = [topic.name for topic in inspection.topics]
    yield f"{counted(len(names), 'topic')}: {some(names, LISTED_TOPICS)}"
    for each in inspection.files:
        sizes = f"{size(each.size_bytes)}, {size(each.disk_bytes)} on disk"
        yield f"  {each.name}: {counted(each.files, 'file')}, {sizes}"


def level_table(levels: "Sequence[LevelState]", now_ms: int) -> Table:
    """The levels of an inspection."""
    shown_if_any = "already_delivered", "neutral", "expired"
    sometimes = [name for name in shown_if_any if any(getattr(each, name) for each in levels)]
    table = new_table(
        ["level", "offset", "queue", *map(title, sometimes), "pending", "overdue", "next due"]
    )
    for level in levels:
        add_row(
            table,
            level_name(level.level, level.delay_ms),
            "-" if level.offset is None else count(level.offset),
            f"{count(level.queue_min)} to {count(level.queue_max)}",
            *(count(getattr(level, name)) for name in sometimes),
            count(level.pending),
            count(level.overdue),
            "" if level.next_due_ms is None else when(level.next_due_ms, now_ms),
        )
    return table


def wheel_lines(wheel: "WheelSummary", now_ms: int) -> list[str]:
    """The wheel of an inspection."""
    is_hierarchy = wheel.engine == "hierarchy"
    name = "hierarchical wheel" if is_hierarchy else "timer wheel"
    if wheel.precision_ms is None:
        return [f"{name}: cannot be read"]
    due = due_span(wheel.next_due_ms, wheel.last_due_ms, now_ms)
    waiting = f"{name}: {count(wheel.pending)} pending, {count(wheel.overdue)} overdue{due}"
    if is_hierarchy:
        slots = f"{count(wheel.slots_used)} of its hours, minutes and seconds"
        return [
            waiting,
            f"  {count(wheel.units)} in its index, in {slots}; {count(wheel.cancelled)} cancelled",
        ]
    slots = f"{counted(wheel.slots_used, 'slot')} of {wheel.precision_ms} ms"
    others = f"{count(wheel.rolled)} will roll, {count(wheel.cancelled)} cancelled"
    return [waiting, f"  {counted(wheel.units, 'unit')} in {slots}; {others}"]


def time_index_line(index: "TimeIndexSummary", now_ms: int) -> str:
    """The time index of an inspection."""
    if index.pending is None:
        return "time index: cannot be read"
    due = due_span(index.next_due_ms, index.last_due_ms, now_ms)
    return f"time index: {count(index.pending)} pending, {count(index.overdue)} overdue{due}"


def timeline_lines(timeline: "TimelineSummary", now_ms: int) -> list[str]:
    """The RocksDB timeline of an inspection."""
    if timeline.pending is None or timeline.scan_offset is None:
        return ["timeline in RocksDB: cannot be read"]
    due = due_span(timeline.next_due_ms, timeline.last_due_ms, now_ms)
    until = timeline.delivered_until_ms
    delivered = (
        "nothing delivered yet" if until is None else f"delivered up to {when(until, now_ms)}"
    )
    waiting = f"{count(timeline.pending)} pending, {count(timeline.overdue)} overdue"
    read = f"queue read up to {count(timeline.scan_offset)}"
    return [
        f"timeline in RocksDB: {waiting}{due}",
        f"  {counted(timeline.entries, 'entry', 'entries')} left, {delivered}; {read}",
    ]
