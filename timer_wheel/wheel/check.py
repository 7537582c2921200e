# SPDX-License-Identifier: Apache-2.0
"""Every invariant of a live wheel that does not hold."""

from collections.abc import Sequence

import numpy as np

from message_store.base.printable import counted
from message_store.columns.byte_column import Int64s
from message_store.interface.delay_store import Finding, Severity
from message_store.interface.finding_rules import worst_first
from message_store.redelivery.lineage import Names
from message_store.writing.findings import floor_findings
from timer_wheel.reading.copies import Copies
from timer_wheel.timers.copies_in_log import copies_in_log
from timer_wheel.timers.rows import Bools, TimerRows
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.recall_search import find_markers
from timer_wheel.wheel.recovery import were_dealt_with
from timer_wheel.wheel.unit_repair import are_other_kinds, repair_finding, right_places

_SLOTS_AT_ONCE = 4096


def check_wheel(timers: LiveTimers, known: Sequence[Finding]) -> list[Finding]:
    """What is wrong, worst first; ``known`` was noticed before."""
    found = [*known, *_of_losses(timers), *_in_queue(timers), *_on_wheel(timers)]
    return worst_first(found)


def _of_losses(timers: LiveTimers) -> list[Finding]:
    """What was missing when the store was opened."""
    of_checkpoint = [_checkpoint_finding()] if timers.files.is_damaged else []
    of_units = [repair_finding(timers.mended_units)] if timers.mended_units else []
    return [*of_checkpoint, *of_units, *floor_findings(timers.store)]


def _in_queue(timers: LiveTimers) -> list[Finding]:
    rest = timers.unplaced(EVERYTHING)
    return [
        Finding(
            Severity.ERROR,
            f"timer queue {rest.queue_offset + row}",
            f"an entry that is no timed message: {error}",
            "a broker stops placing at it, or passes over it",
            "advance passes over it; look at the record",
        )
        for row, error in rest.facts.problems.items()
    ]


def _on_wheel(timers: LiveTimers) -> list[Finding]:
    """Links that lead astray, messages with two units, records that are missing or of another kind
    than their units say, and units that no chain reaches.
    """
    found = []
    other_kinds = 0
    slots = timers.wheel.used_slots()
    seen = [np.empty(0, np.int64)]
    for begin in range(0, len(slots), _SLOTS_AT_ONCE):
        rows, astray = timers.log.walk(timers.wheel, slots[begin : begin + _SLOTS_AT_ONCE])
        if astray:
            found.append(_chain_finding(astray))
        facts = timers.facts(rows)
        other_kinds += int(are_other_kinds(rows, facts).sum())
        seen.append(rows.commit_log_offset)
        known = right_places(timers, rows, facts)
        other_kinds += len(known)
        found += [
            _record_finding(int(rows.position[row]), error)
            for row, error in facts.problems.items()
            if row not in known
        ]
    if other_kinds:
        found.append(repair_finding(other_kinds))
    places, counts = np.unique(np.concatenate(seen), return_counts=True)
    found += map(_twice_finding, places[counts > 1].tolist())
    out_of_reach = _out_of_reach(timers, places)
    return [*found, _link_finding(out_of_reach)] if len(out_of_reach) else found


def _out_of_reach(timers: LiveTimers, seen: Int64s) -> TimerRows:
    """Undelivered messages in slots to come that no chain reaches: the log has no copy of them, and
    no marker cancels them.
    """
    hand_ms = timers.wheel.hand_ms
    known = np.sort(np.concatenate([seen, timers.done]))  # once, and not for every file
    parts = [TimerRows.empty()]
    for rows in timers.log.all_units():
        is_it = (rows.slot_time_ms >= hand_ms) & ~rows.is_marker
        is_it &= rows.commit_log_offset >= timers.store.log.min_offset
        is_it &= ~_are_among(rows.commit_log_offset, known)
        parts.append(rows.rows(is_it))
    rows = TimerRows.together(parts)
    if not len(rows):
        return rows
    marks = find_markers(timers, hand_ms)
    is_cancelled = marks.take_away(rows.commit_log_offset, timers.facts(rows, keys=True))
    log, may_have_rolled = timers.store.log, np.ones(len(rows), bool)
    names = Names.since(log, log.min_offset)
    copies = Copies(copies_in_log(log, log.min_offset, timers.foreign_until))
    is_done = were_dealt_with(timers, rows, names, copies, may_have_rolled)
    return rows.rows(~is_done & ~is_cancelled)


def _are_among(values: Int64s, ordered: Int64s) -> Bools:
    """Which of the values are in an array that is in order; ``np.isin`` would sort it again."""
    first = np.searchsorted(ordered, values, "left")
    found: Bools = np.searchsorted(ordered, values, "right") > first
    return found


def _checkpoint_finding() -> Finding:
    return Finding(
        Severity.WARNING,
        "config/timercheck",
        "the wheel's checkpoint was damaged when the store was opened",
        "a broker believes it: it loses messages, or delivers some again",
        "none is needed: what was written is known, or was found out from the log",
    )


def _link_finding(rows: TimerRows) -> Finding:
    count = counted(len(rows), "message is", "messages are")
    return Finding(
        Severity.ERROR,
        f"timerlog {int(rows.position[0])}",
        f"{count} in a slot to come, but no link leads there",
        "what no link leads to is not delivered",
        "close the store, take timerlog away, open the store: all is placed again from the queue",
    )


def _chain_finding(astray: int) -> Finding:
    return Finding(
        Severity.ERROR,
        "timerlog",
        f"{astray} links of slots lead to no unit of the same slot",
        "what lies behind them is not delivered",
        "schedule again what is missing",
    )


def _record_finding(position: int, error: Exception) -> Finding:
    return Finding(
        Severity.ERROR,
        f"timerlog {position}",
        f"a message on the wheel whose record cannot be delivered: {error}",
        "a broker drops it without a word, or stops at it for ever",
        "schedule it again",
    )


def _twice_finding(offset: int) -> Finding:
    return Finding(
        Severity.ERROR,
        f"commit log {offset}",
        "a message that is on the wheel twice",
        "a broker delivers it twice",
        "none is needed for this store: it is delivered once",
    )
