# SPDX-License-Identifier: Apache-2.0
"""Opens the index of a hierarchical wheel, with its settings. The queue adds entries that the index
does not have, the log adds what was delivered since.

An index that is missing, unreadable, or ahead of the log is rebuilt from the whole queue and log.
If the store was a wheel's, the rebuild begins with what that had settled. Otherwise the log is read
from the index's end.
"""

from contextlib import suppress
from itertools import islice

import attrs
import numpy as np

from message_store.base.errors import FormatError, SourceError, UnsupportedStoreError
from message_store.base.kinds import whole
from message_store.columns.byte_column import int64s
from message_store.format.java_numbers import INT_MAX
from message_store.format.properties import TIMER_TOPIC
from message_store.interface.promise_rules import BEYOND_MAX, BeyondMax, check_max_delay
from message_store.redelivery.lineage import Names
from message_store.writing.dispatch import mend_astray
from message_store.writing.store import LiveStore
from timer_wheel.format.index_layouts import IndexState, Newest
from timer_wheel.format.timer_due import (
    HIERARCHY_PRECISIONS_MS,
    TO_THE_MILLISECOND,
    was_due_when_stored,
)
from timer_wheel.format.wheel_math import DAY_MS, DEFAULT_PRECISION_MS, PRECISIONS_MS
from timer_wheel.handover.to_hierarchy import clear_wheel, take_over
from timer_wheel.hierarchy.index_db import DamagedIndexError, IndexDb, remove_index
from timer_wheel.hierarchy.recall_marks import HierarchyMarks, wait_for_slot_ends
from timer_wheel.hierarchy.taken_over import (
    TakenOver,
    forget_taken_over,
    keep_taken_over,
    older_slots,
    read_taken_over,
)
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.waiting_rows import together
from timer_wheel.reading.copies import Copies
from timer_wheel.reading.hierarchy_reader import read_index
from timer_wheel.reading.ownership import (
    Active,
    claim,
    guard,
    index_path,
    is_void,
    read_active,
    trust_index,
)
from timer_wheel.timers.copies_in_log import copies_in_log
from timer_wheel.timers.recall import are_of_cancel, without_target

DEFAULT_MAX_DELAY_MS = 40 * DAY_MS
"""The longest delay that the manual of RocketMQ 5.0 lets one ask for."""


@attrs.frozen(kw_only=True)
class HierarchySettings:
    """How a hierarchical wheel behaves.

    ``precision_ms`` is how wide a promise is: to the millisecond, or as a wheel's slot. A delay
    longer than ``max_delay_ms`` (None: none is too long) is refused, or with
    ``beyond_max="deliver"`` delivered at once. ``start_deliver_time_alias`` lets `put` take
    __STARTDELIVERTIME for a due time.
    """

    precision_ms: int = attrs.field(
        default=TO_THE_MILLISECOND,
        validator=[whole(1, INT_MAX), attrs.validators.in_(HIERARCHY_PRECISIONS_MS)],
    )
    max_delay_ms: int | None = attrs.field(default=DEFAULT_MAX_DELAY_MS, validator=check_max_delay)
    beyond_max: BeyondMax = attrs.field(
        default="refuse", validator=attrs.validators.in_(BEYOND_MAX)
    )
    start_deliver_time_alias: bool = False


def open_index(
    store: LiveStore, precision_ms: int | None, wheel: HierarchySettings
) -> tuple[TimerIndex, HierarchySettings]:
    """The index of a store whose log and queues are whole, and its settings.

    Raises SourceError and TargetError.
    """
    try:
        return _open_index(store, precision_ms, wheel)
    except DamagedIndexError:  # it is void by now
        return _open_index(store, precision_ms, wheel)


def _open_index(
    store: LiveStore, precision_ms: int | None, wheel: HierarchySettings
) -> tuple[TimerIndex, HierarchySettings]:
    active = read_active(store.root)
    known_ms = TO_THE_MILLISECOND if active is None else active.precision_ms
    settings = attrs.evolve(wheel, precision_ms=precision_ms or known_ms)
    if active is None:
        return _taken_over(store, settings), settings
    is_other_width = _slot_ms(active, settings) != active.slot_precision_ms
    if is_other_width and surely_waits_for_slot_ends(store):
        raise _other_width(store, active.slot_precision_ms, settings.precision_ms)
    guard(store.root)
    clear_wheel(store.root)
    index = _opened(store, active)
    try:
        if not active.names:  # whoever makes the index anew must not look for copies again
            keep_taken_over(store, TakenOver.of(store, index.pending_offsets(), index.older))
        _set_widths(index, active, settings)
    except BaseException:
        index.db.close()
        raise
    return index, settings


def _slot_ms(active: Active, settings: HierarchySettings) -> int:
    """The width of slots that is asked for; promises to the millisecond keep the one known."""
    asked_ms = settings.precision_ms
    return active.slot_precision_ms if asked_ms == TO_THE_MILLISECOND else asked_ms


def surely_waits_for_slot_ends(store: LiveStore) -> bool:
    """Whether a look at an index that is up to date tells that messages wait for the ends of slots:
    before the database is opened, which writes.
    """
    try:
        content = read_index(store.root)
    except (SourceError, FormatError):
        return False
    if content.state is None or content.state.placed_end != store.queue(TIMER_TOPIC, 0).max_offset:
        return False
    waiting = [content.waiting]
    return not len(content.marks) and wait_for_slot_ends(store.log, waiting, HierarchyMarks())


def _set_widths(index: TimerIndex, active: Active, settings: HierarchySettings) -> None:
    """Let promises be as wide as is asked for. Raises UnsupportedStoreError if pending messages
    were promised for the ends of slots of another width.
    """
    asked_ms, slot_ms = settings.precision_ms, _slot_ms(active, settings)
    if slot_ms != active.slot_precision_ms and index.waits_for_slot_ends():
        raise _other_width(index.store, active.slot_precision_ms, asked_ms)
    if Active(asked_ms, slot_ms) != active:
        claim(index.store.root, Active(asked_ms, slot_ms))
        index.set_widths(asked_ms, slot_ms)


def _other_width(store: LiveStore, known_ms: int, asked_ms: int) -> UnsupportedStoreError:
    return UnsupportedStoreError(
        f"{store.root.path}: messages wait that were promised for slots of {known_ms} ms, not"
        f" {asked_ms}; open it with precision_ms={known_ms}, or {TO_THE_MILLISECOND}"
    )


def _taken_over(store: LiveStore, settings: HierarchySettings) -> TimerIndex:
    """The index of a store that is new, or was that of a wheel in files."""
    asked_ms = settings.precision_ms
    default_ms = DEFAULT_PRECISION_MS if asked_ms == TO_THE_MILLISECOND else asked_ms
    found = take_over(store, default_ms)
    slot_ms = found.slot_precision_ms
    if asked_ms not in (TO_THE_MILLISECOND, slot_ms):
        if found.waits_for_slot_ends:
            raise _other_width(store, slot_ms, asked_ms)
        slot_ms = asked_ms
    remove_index(index_path(store.root))
    db = IndexDb(index_path(store.root))
    try:
        state = _nothing(store, Active(asked_ms, slot_ms))
        index = TimerIndex(store, db, attrs.evolve(state, hand_ms=found.hand_ms), found.older)
        known = TakenOver.of(store, found.commit_log_offsets, found.older)
        index.place_queued(known)
        index.write_now(durably=True, tidies=True)
        trust_index(store.root)
        if found.older.until:
            keep_taken_over(store, known)
        else:
            forget_taken_over(store.root)
        claim(store.root, Active(asked_ms, slot_ms))
        guard(store.root)
        clear_wheel(store.root)
    except BaseException:
        db.close()
        raise
    return index


def _nothing(store: LiveStore, active: Active, known: TakenOver | None = None) -> IndexState:
    """The state of an index that knows nothing; what a wheel had settled is ``known``."""
    begin = store.queue(TIMER_TOPIC, 0).min_offset
    return IndexState(
        precision_ms=active.precision_ms,
        slot_precision_ms=active.slot_precision_ms,
        placed_end=begin,
        log_end=store.log.min_offset if known is None else known.log_end,
        hand_ms=0,
        minute_hand_ms=0,
        hour_hand_ms=0,
        ids_end=begin,
    )


def _opened(store: LiveStore, active: Active) -> TimerIndex:
    """The index as it was left, brought up to date; or a new one where it cannot be believed."""
    try:
        if is_void(store.root):
            raise DamagedIndexError("damaged", path=index_path(store.root))
        db = IndexDb(index_path(store.root))
        try:
            state = db.state()
            if state is not None and _is_of(store, state, db.newest(), active):
                db.move(db.batch())  # this opening has a manifest of its own
                return _brought_up(store, db, state, active)
            db.close()
        except BaseException:
            db.close()
            raise
    except DamagedIndexError:
        pass
    known = read_taken_over(store)
    remove_index(index_path(store.root))
    db = IndexDb(index_path(store.root))
    try:
        index = _brought_up(store, db, _nothing(store, active, known), active, known)
        trust_index(store.root)
    except BaseException:
        db.close()
        raise
    return index


def _is_of(store: LiveStore, state: IndexState, newest: Newest | None, active: Active) -> bool:
    """Whether the index is of this log and queue, or older, and made for the same slots. After a
    loss of power it may know more than the log, which may have grown again since.
    """
    log, queue = store.log, store.queue(TIMER_TOPIC, 0)
    if newest is not None and log.head_checksum(newest.last_start) != newest.last_head:
        return False
    if state.slot_precision_ms != active.slot_precision_ms:
        return False
    return state.log_end <= log.end and state.placed_end <= queue.max_offset


def _brought_up(
    store: LiveStore,
    db: IndexDb,
    state: IndexState,
    active: Active,
    known: TakenOver | None = None,
) -> TimerIndex:
    state = attrs.evolve(state, precision_ms=active.precision_ms)
    index = TimerIndex(store, db, state, older_slots(store))
    damaged = index.marks.load(db, store.log, index.marked_from_ms)
    if damaged:
        index.lost.cancels.add(damaged)
    index.reload_ids()
    names = Names.since(store.log, max(state.log_end, store.log.min_offset))
    mend_astray(store.log, store.queues, store.levels, index.queue, index.placed_end)
    index.place_queued(known, names)
    if len(names):
        _account(index, names)
    if not active.names:
        _account_copies(index, max(state.log_end, store.log.min_offset))
    if not store.was_clean:
        _note_idle_markers(index)
    index.write_now(durably=True)
    return index


def _note_idle_markers(index: TimerIndex) -> None:
    """After a crash: note new delete markers without a pending target. A cancel makes none such."""
    rows = index.marks.new_rows()
    facts = index.facts_of(rows, keys=True)
    asked = ~facts.is_odd_marker & ~was_due_when_stored(facts.out_ms)
    places = int64s(rows["commit_log_offset"]), int64s(rows["size_bytes"])
    asked = are_of_cancel(index.store.log, *places, asked)
    parts = [index.waiting.due_at(each) for each in np.unique(rows["due_ms"][asked]).tolist()]
    near = together(parts)
    waiting = index.facts_of(near, keys=True)
    first_offsets = waiting.first_offsets(int64s(near["commit_log_offset"]))
    offsets = int64s(rows["commit_log_offset"])[asked]
    idle = without_target(offsets, facts.rows(asked), first_offsets, waiting)
    if idle:
        index.lost.cancels.add(idle)


def _account(index: TimerIndex, names: Names) -> None:
    """Take out what the database still has of the messages that were done since."""
    waiting = index.waiting
    waiting.reach(names.newest_ms)  # nothing comes before its time: what came is near
    in_memory = together(list(islice(waiting.parts(), 2)))
    if np.isin(in_memory["commit_log_offset"], names.places).any():  # rolled from anywhere
        waiting.take_out(lambda rows: index.are_done(rows, names))
    else:
        waiting.drop_near(index.are_done(waiting.near(), names))


def _account_copies(index: TimerIndex, copies_from: int) -> None:
    """The same of what an earlier version delivered: its copies name nothing, its rolls do."""
    log, waiting = index.store.log, index.waiting
    copies = Copies(copies_in_log(log, copies_from, log.end))
    # What narrower slots delivered came before its time as slots of today have it.
    waiting.reach(copies.newest_ms + max(PRECISIONS_MS))
    near = waiting.near()
    offsets, is_done = int64s(near["commit_log_offset"]), np.zeros(len(near), bool)
    cancelled_at = index.marks.taken_at(offsets, index.facts_of(near, keys=True)).tolist()
    for row in np.argsort(offsets).tolist() if copies else ():
        with suppress(FormatError):  # a damaged record waits, and is told of when it is due
            message = log.record(int(offsets[row]), int(near["size_bytes"][row]))
            cancelled = cancelled_at[row]
            is_done[row] = copies.take(message, may_have_rolled=False, cancelled_at=cancelled)
    waiting.drop_near(is_done)
