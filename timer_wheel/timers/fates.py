# SPDX-License-Identifier: Apache-2.0
"""Which messages a handle or a receipt names, and what became of those that are not pending:
markers cancelled them, or they were delivered.
"""

import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import LONG_MAX
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation
from message_store.redelivery.lineage import Names
from message_store.writing.log import LiveLog
from timer_wheel.format.older_slots import MOST_WIDTHS, OlderSlots
from timer_wheel.format.timer_due import FINEST_MS, may_be_promised
from timer_wheel.format.wheel_math import PRECISIONS_MS
from timer_wheel.reading.record_kernel import ID, KEY_ONE, KEY_TWO
from timer_wheel.timers.recall import RecallMarks, marker_offsets
from timer_wheel.timers.rows import Bools, TimerFacts, facts_then


def are_named(
    facts: TimerFacts,
    offsets: Int64s,
    promised_ms: Int64s,
    widths_ms: Int64s,
    handle: RecallHandle,
    first_offset: int | None,
    foreign_until: int,
    is_sure: Bools,
) -> Bools:
    """Which of the records at ``offsets`` a handle may name, by time; a receipt by the first record
    of its message, whatever its slot's width was, and by time alone where none tells it. Topic and
    key are compared by whoever has the records.

    A handle of ours says the promise, as that is now (``promised_ms``) or was for slots of the
    width when it was given (``widths_ms``, 1 where nobody knows). What is known of a width may be a
    multiple of it, unless it ``is_sure``. Only what was stored for a slot has such an end. A handle
    of a broker says the millisecond after the out time, which is a promise to the millisecond too.
    For the end of a slot it counts only before ``foreign_until``, behind which no broker stored:
    another message may be promised for that time.
    """
    out_ms, first_offsets = facts.stored_out_ms, facts.first_offsets(offsets)
    if first_offset is not None:
        is_own = facts.is_fine & ~facts.is_marker & (first_offsets == first_offset)
        # After a loss of power another message may lie in its place, for another time. The time may
        # also be the promise of slots that were neither the first nor are today's.
        latest_ms = np.maximum(promised_ms, out_ms + max(PRECISIONS_MS))
        is_then = (out_ms < handle.due_ms) & (handle.due_ms <= latest_ms)
        is_own &= is_then | (promised_ms == handle.due_ms)
        if is_own.any():
            return np.asarray(is_own)
    is_it: Bools = promised_ms == handle.due_ms
    may_be_foreign = (first_offsets < foreign_until) | (out_ms % FINEST_MS != 0)
    is_it |= (out_ms + 1 == handle.due_ms) & may_be_foreign
    is_its_end = (out_ms + widths_ms == handle.due_ms) & (out_ms % widths_ms == 0)
    is_it |= is_its_end | (~is_sure & may_be_promised(out_ms, handle.due_ms, widths_ms))
    is_it &= facts.is_fine
    if first_offset is not None:
        is_later = marker_offsets(offsets, facts) > first_offset
        is_later &= (facts.cancels < 0) | (facts.cancels == first_offset)
        is_it &= np.where(facts.is_marker, is_later, first_offsets < 0)
    return is_it


def fate(
    log: LiveLog,
    offsets: Int64s,
    sizes: Int64s,
    facts: TimerFacts,
    is_named: Bools,
    older: OlderSlots,
    foreign_until: int,
) -> Cancellation:
    """What became of the named messages, none of which is pending.

    The records of messages and markers are at ``offsets``, with what each says today, recall keys
    included: all that were rolled are among them, and all markers. Of slots of another width the
    records tell what they meant then. From ``foreign_until`` on only engines of ours delivered.
    """
    if not is_named.any():
        return Cancellation.NEVER_EXISTED
    is_taken = facts.is_marker.copy()  # where a marker is all that is left, there was a message
    counts = facts.is_marker & facts.is_fine
    numbers = older.number_of(marker_offsets(offsets, facts))
    for number in np.unique(numbers[counts]).tolist():
        is_of_today = number == len(older.untils)
        then = facts if is_of_today else facts_then(log, offsets, sizes, older, number)
        marks, its = RecallMarks(), counts & (numbers == number)
        marks.add(offsets[its], then.rows(its))
        is_taken |= _were_taken(log, offsets, then, marks, is_named)
    if len(older.untils) == MOST_WIDTHS:
        is_taken |= _never_came(log, offsets, facts, is_named & ~is_taken)
    is_ours = is_named & ~is_taken & (offsets >= foreign_until)
    is_taken |= _outlived_their_markers(log, offsets, facts, is_ours)
    return Cancellation.CANCELLED if is_taken[is_named].all() else Cancellation.ALREADY_DELIVERED


def _were_taken(
    log: LiveLog, offsets: Int64s, facts: TimerFacts, marks: RecallMarks, is_named: Bools
) -> Bools:
    """Which of the named messages these markers cancelled. A marker takes a pending message: it
    was for another message of the same key where this one had been delivered before it.
    """
    lineages, words = facts.lineages(offsets), facts.table[[KEY_ONE, KEY_TWO]]
    taken_at = np.where(facts.is_marker, LONG_MAX, marks.taken_at(offsets, facts))
    is_taken: Bools = is_named & (taken_at < LONG_MAX)
    for row in np.flatnonzero(is_taken).tolist():
        others = ~facts.is_marker & (words == words[:, [row]]).all(axis=0)
        others &= (lineages != lineages[row]) & (lineages < taken_at[row])
        if others.any():  # else the marker was for this one
            is_taken[row] = not _was_delivered(log, offsets, lineages, row, int(taken_at[row]))
    return is_taken


def _never_came(log: LiveLog, offsets: Int64s, facts: TimerFacts, asked: Bools) -> Bools:
    """Which of the messages asked for the log names as delivered nowhere, although a marker behind
    them has their topic and key. Where widths were merged, slots do not tell what it cancelled.
    """
    lineages, table = facts.lineages(offsets), facts.table
    markers, places = facts.is_marker & facts.is_fine, marker_offsets(offsets, facts)
    found = np.zeros(len(facts), bool)
    for row in np.flatnonzero(asked).tolist():
        is_alike = markers & (table[ID] == table[ID, row]) & (places > lineages[row])
        is_alike &= facts.topic_hash == facts.topic_hash[row]
        is_alike &= (facts.cancels < 0) | (facts.cancels == lineages[row])
        found[row] = is_alike.any() and not _was_delivered(log, offsets, lineages, row)
    return found


def _outlived_their_markers(
    log: LiveLog, offsets: Int64s, facts: TimerFacts, asked: Bools
) -> Bools:
    """Which of the copies asked for the log names as delivered nowhere, although retention may have
    taken their markers: a message that rolls comes to lie behind its marker.
    """
    lineages = facts.lineages(offsets)
    found = asked & (lineages < offsets) & (lineages < log.min_offset)
    for row in np.flatnonzero(found).tolist():
        found[row] = not _was_delivered(log, offsets, lineages, row)
    return found


def _was_delivered(
    log: LiveLog, offsets: Int64s, lineages: Int64s, row: int, until: int = LONG_MAX
) -> bool:
    """Whether the log names a message as delivered before a place of it. What was rolled is named
    by a record among those at ``offsets``.
    """
    names = Names.since(log, int(offsets[row]), until)
    is_rolled = np.isin(names.places, offsets)
    return bool((~is_rolled & (names.firsts == lineages[row])).any())
