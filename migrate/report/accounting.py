# SPDX-License-Identifier: Apache-2.0
"""The accounts of a conversion: from backlog, choice and plan to counts per level that add up."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog
from message_store.base.printable import counted
from message_store.files.array_room import joined_columns, row_blocks
from message_store.format.java_numbers import LONG_MAX
from message_store.format.queue_unit import QUEUE_UNIT
from migrate.plan.plan import Corrections
from migrate.plan.target_rows import Runs, TargetRows
from migrate.report.report import BadRecord, ConversionReport, DueTimes, LevelReport, Seconds
from migrate.settings import WHEEL, ConvertOptions
from migrate.write.log_file import SourceShare
from migrate.write.seal import topic_demands
from migrate.write.target_config import broker_settings
from timer_wheel.format.index_layouts import ID_ROW, WAITING_ROW
from timer_wheel.format.timer_log import FLAG_ROLL, TIMER_UNIT


def bad_record(backlog: LevelBacklog, at: int, reason: str) -> BadRecord:
    """What is wrong with one entry of the backlog, and where it is."""
    return BadRecord(
        level=int(backlog.level[at]),
        queue_offset=int(backlog.queue_offset[at]),
        commit_log_offset=int(backlog.commit_log_offset[at]),
        reason=reason,
    )


def bad_records(backlog: LevelBacklog, corrections: Corrections) -> tuple[BadRecord, ...]:
    """What cannot be converted, in the order of the source log."""
    return tuple(bad_record(backlog, at, reason) for at, reason in sorted(corrections.bad.items()))


def open_before_ms(rows: TargetRows) -> int | None:
    """Until when a broker must have opened the target; None when it has no message."""
    if len(rows) == 0:
        return None
    first_slot_ms = int(rows.slots.slot_time_ms.min())
    return rows.settings.open_before_ms(first_slot_ms, rows.log_end, rows.now_ms)


def _rows_of(runs: Runs, column: NDArray[Any]) -> NDArray[Any]:
    """These rows of a column."""
    return joined_columns([column[run] for run in runs or (slice(0),)])


def _per_level(
    values: NDArray[Any],
    levels: tuple[int, ...],
    select: Callable[[slice], NDArray[np.bool_]] | None = None,
) -> dict[int, int]:
    """How many of these levels are each of ``levels``, or of those that ``select`` marks."""
    counts = np.zeros(max(levels, default=0) + 1, np.int64)
    for rows in row_blocks(len(values)):
        part = values[rows] if select is None else values[rows][select(rows)]
        counts += np.bincount(part, minlength=len(counts))
    return {level: int(counts[level]) for level in levels}


def _level_reports(
    backlog: LevelBacklog,
    chosen: NDArray[np.bool_],
    rows: TargetRows,
    corrections: Corrections,
    own: Runs,
) -> tuple[LevelReport, ...]:
    levels = tuple(counts.level for counts in backlog.counts)
    own_levels = _rows_of(own, rows.levels)
    converted = _per_level(own_levels, levels)
    skipped = _per_level(backlog.level, levels, lambda rows: ~chosen[rows])
    bad = np.array(sorted(corrections.bad), np.int64)
    quarantined = _per_level(backlog.level[bad], levels)
    due_ms, flags = _rows_of(own, rows.due_ms), _rows_of(own, rows.flags)
    overdue = _per_level(own_levels, levels, lambda part: due_ms[part] <= rows.now_ms)
    rolled = _per_level(own_levels, levels, lambda part: (flags[part] & FLAG_ROLL) != 0)
    return tuple(
        LevelReport(
            level=counts.level,
            delay_ms=counts.delay_ms,
            from_offset=counts.from_queue_offset,
            to_offset=counts.to_queue_offset,
            queued=counts.queued,
            already_delivered=counts.already_delivered,
            expired=counts.expired,
            pending=counts.pending,
            converted=converted[counts.level],
            skipped=skipped[counts.level],
            quarantined=quarantined[counts.level],
            overdue=overdue[counts.level],
            rolled=rolled[counts.level],
            before_queue=counts.before_queue,
            neutral=counts.neutral,
        )
        for counts in backlog.counts
    )


def told_as_gone(count: int) -> str:
    """What is said of pending messages whose records the log no longer has."""
    messages = counted(count, "message is", "messages are")
    return (
        f"{messages} no longer in the log: retention or somebody removed its first files. They are"
        " left out, and lost if they were neither delivered nor cancelled"
    )


def _warnings(backlog: LevelBacklog, *, whole_log: bool) -> tuple[str, ...]:
    """What was odd about the source and how it was taken, as sentences."""
    warnings = [*_offset_warnings(backlog), *_misplaced_offsets(backlog)]
    if not whole_log and any(max(c.stored_offset or 0, 0) < c.queue_min for c in backlog.counts):
        warnings.append(
            "what lay before such a queue may still be in the log: --whole-log looks there"
        )
    repaired = sum(counts.repaired for counts in backlog.counts)
    if repaired:
        singular, plural = "due time was no time", "due times were no times"
        warnings.append(f"{counted(repaired, singular, plural)}; now store time + delay")
    unindexed = sum(counts.not_in_queue for counts in backlog.counts)
    if unindexed:
        messages = counted(unindexed, "message was", "messages were")
        warnings.append(f"{messages} in the log but not yet in a level's queue")
    if gone := backlog.total("expired"):
        warnings.append(told_as_gone(gone))
    if lost := sum(counts.before_queue for counts in backlog.counts):
        warnings.append(f"{counted(lost, 'message')} lay in the log before a level's queue")
    if mended := sum(counts.mended for counts in backlog.counts):
        messages = counted(mended, "entry", "entries")
        warnings.append(
            f"{messages} of a level's queue led nowhere or to another message; what was meant was"
            " found in the log"
        )
    warnings += [f"{path}: a file of the wrong length" for path in backlog.queue_misfits]
    warnings += [f"the log is damaged at {offset}" for offset in backlog.damaged_places]
    if backlog.damaged_places and backlog.recovered_end < LONG_MAX:
        warnings.append(
            "what was delivered behind the damage before the crash is not known: such messages are"
            " taken again"
        )
    return tuple(warnings)


def _offset_warnings(backlog: LevelBacklog) -> Iterator[str]:
    """Nothing, unless a file is damaged or another was chosen than a broker takes."""
    offsets = backlog.offsets
    if not offsets.problems and offsets.source is offsets.broker_choice:
        return
    yield from offsets.problems
    for choice, table in offsets.by_choice().items():
        left = sum(
            counts.queue_max
            - min(max(table.get(counts.level, 0), counts.queue_min), counts.queue_max)
            for counts in backlog.counts
        )
        yield f"--offsets {choice} would find {counted(left, 'message')} queued"
    yield offsets.taken


def _misplaced_offsets(backlog: LevelBacklog) -> Iterator[str]:
    """Levels whose offset points to where their queue has nothing."""
    for counts in backlog.counts:
        stored = counts.stored_offset
        if stored is None and counts.queue_min:
            yield (
                f"level {counts.level}: no offset is known, and its queue begins at"
                f" {counts.queue_min}; taken as that, as a broker does"
            )
        elif stored is not None and not counts.queue_min <= stored <= counts.queue_max:
            yield (
                f"level {counts.level}: offset {stored} lies outside its queue ({counts.queue_min}"
                f" to {counts.queue_max}); taken as {counts.from_queue_offset}, as a broker does"
            )


def conversion_report(
    options: ConvertOptions,
    backlog: LevelBacklog,
    chosen: NDArray[np.bool_],
    rows: TargetRows,
    corrections: Corrections,
    shares: list[SourceShare],
    seconds: Seconds,
    request: dict[str, Any],
    own: Runs = (slice(None),),
) -> ConversionReport:
    """The report of a finished conversion; of one source of several, ``own`` are its rows of the
    target, and all else its own as well.
    """
    largest = max((share.largest_record_bytes for share in shares), default=0)
    due_ms = _rows_of(own, rows.due_ms)
    some = len(due_ms) > 0
    timer_bytes = TIMER_UNIT.size if rows.engine == WHEEL else WAITING_ROW.size + ID_ROW.size
    log_bytes = sum(share.log_bytes for share in shares)
    return ConversionReport(
        source=str(options.source),
        target=str(options.target),
        now_ms=rows.now_ms,
        precision_ms=rows.settings.precision_ms,
        level_table=backlog.level_table.text(),
        offsets_source=str(backlog.offsets.source),
        levels=_level_reports(backlog, chosen, rows, corrections, own),
        due_min_ms=int(due_ms.min()) if some else None,
        due_max_ms=int(due_ms.max()) if some else None,
        open_before_ms=open_before_ms(rows) if rows.engine == WHEEL else None,
        bytes_read=sum(share.bytes_read for share in shares),
        bytes_written=log_bytes + len(due_ms) * (QUEUE_UNIT.size + timer_bytes),
        bad_records=bad_records(backlog, corrections),
        broker_conf=broker_settings(rows.settings, largest),
        warnings=_warnings(backlog, whole_log=options.whole_log),
        seconds=seconds,
        request=request,
        identity=rows.identity,
        engine=rows.engine,
        target_queue_offset=own[0].indices(len(rows))[0] if own else 0,
        target_runs=tuple((run.start, run.stop) for run in own) if len(own) > 1 else (),
        topics={name: demand.count for name, demand in topic_demands(shares).items()},
        due=DueTimes.of(due_ms),
    )
