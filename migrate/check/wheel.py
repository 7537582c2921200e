# SPDX-License-Identifier: Apache-2.0
"""A wheel's files against each other: slots, timer log, queue, checkpoint; and a time index."""

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.printable import counted, when
from message_store.files.segments import SegmentReader
from message_store.format.properties import REAL_TOPIC
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.consume_queue import QueueEntries, is_filled, read_queue
from message_store.reading.record_reader import read_chunks
from migrate.check.delete_markers import needless_entries, out_ms_of
from migrate.check.record_walk import undeliverable
from migrate.check.snapshot import StoreSnapshot
from migrate.look.pending import unreadable_among
from migrate.table.pending_batches import decode_chunk
from migrate.table.pending_table import TIME_INDEX as IN_INDEX
from migrate.table.pending_table import PendingRows, TableOptions, rows_of
from time_index.reading import has_time_index
from timer_wheel.format.checkpoint import read_last_flush
from timer_wheel.format.timer_log import TimerUnits, read_units
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES, all_slots, read_wheel, snapshots
from timer_wheel.format.wheel_math import MARGIN_SLOTS, SLOTS_TOTAL, WHEEL_SLOTS
from timer_wheel.hierarchy.taken_over import damage_of_taken_over
from timer_wheel.reading.ownership import is_guarded
from timer_wheel.reading.pending_timers import record_at
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.wheel_reader import guess_precision

_REBUILD = (
    "before a broker starts, put 0 into the second number of config/timercheck (flush position):"
    " it then reads the whole timer log again"
)
_CONVERT_AGAIN = "convert the source again, or take the store from a backup"
WHEEL_UNREADABLE = error(
    "wheel-unreadable",
    "a broker does not start, or knows nothing of the messages on the wheel",
    "see what the sentence names; a wheel file of a wrong length may be removed if the timer log"
    " is whole. HierarchicalWheelStore rebuilds its index when it opens the store",
)
WHEEL_STALE = error(
    "wheel-stale",
    "a broker brings its wheel up to date from the last one or two files of the timer log only:"
    " these messages are lost",
    _REBUILD,
)
SLOT_NOWHERE = error(
    "slot-points-nowhere",
    "a broker finds no unit there: the messages of these slots are lost",
    "take timerwheel and timerlog from one backup, or convert the source again",
)
LINK_BROKEN = error(
    "timer-link-broken",
    "a broker finds a slot's messages by the links between their units: these are lost",
    "open the store with WheelStore, which puts most links right, and close it. If that does not"
    " help, move timerlog/ away before: everything is then placed from the queue",
)
UNIT_EXPIRED = error(
    "timer-expired",
    "a broker drops them silently: retention has deleted their records",
    "nothing restores them; keep log files longer than the roll window",
)
QUEUE_BLOCKED = error(
    "timer-queue-blocked",
    "a broker tries that entry for ever: nothing behind it is put on the wheel (unless"
    " timerSkipUnknownError=true)",
    "set timerSkipUnknownError=true, also on a running broker: `mqadmin updateBrokerConfig -k"
    " timerSkipUnknownError -v true`; the wheel continues, that message is lost",
)
QUEUE_LOST = error(
    "timer-queue-lost",
    "a broker continues behind them: they are never delivered",
    "open the store with its own engine (`delaywheel run`), which makes the queue again from the"
    " commit log, and close it",
)
QUEUE_ASTRAY = error(
    "timer-queue-astray",
    "who reads the queue skips them: a broker never delivers their messages",
    "open the store with its own engine (`delaywheel run`), which looks for them in the log, and"
    " close it",
)
PLACED_AGAIN = error(
    "timer-placed-again",
    "a broker puts them on the wheel a second time and delivers duplicates",
    "take config/timercheck from the backup that the rest is from",
)
CHECK_BEYOND = warning(
    "timercheck-beyond-queue",
    "brokers from 5.3.2 on set it to the queue's end; older ones wait until the queue is as long,"
    " and skip the entries until then",
    "use 5.3.2 or newer for the first start",
)
CHECK_DAMAGED = error(
    "timercheck-damaged",
    "a broker believes it: messages of the wheel are lost or duplicated",
    "open the store with WheelStore, which knows what was written, and close it",
)
READ_AHEAD = error(
    "timercheck-ahead",
    "the wheel's hand is in the future: slots before it are never read, their messages are lost",
    "correct the machine's clock; put the current time into the first number of config/timercheck",
)
BEYOND_REACH = error(
    "slots-beyond-reach",
    "a broker never reads slots that the hand has passed, or that are older than the ring is long",
    "let `delaywheel run` deliver them, convert the source again, or take the store from a backup",
)
OPEN_SOON = warning(
    "open-soon",
    "from then on a starting broker no longer reads the first of the slots, and loses their"
    " messages",
    "start the broker before that, or convert again",
)
OPEN_BEFORE = info(
    "open-before",
    "a broker that starts later no longer reads the first of the slots",
    "start the broker before that",
)
PRECISION = error(
    "precision-changed",
    "a broker with this precision finds every slot empty: all messages of the wheel are lost",
    "give the broker the timerPrecisionMs that the wheel was written with",
)
SNAPSHOTS = warning(
    "snapshots-left",
    "a broker with timerWheelSnapshotFlush=true takes the one with the largest number instead of"
    " the wheel, however old it is; one without never looks at them",
    "remove them, unless the broker that wrote them runs with that setting on",
)


SOON_MS = 24 * 3_600_000
LOOKED_AT = 100_000
"""Records that are read, newest first, to see whether entries without a unit are lost."""


@attrs.frozen(eq=False)
class WheelFiles:
    """The raw files behind the wheel's state."""

    state: WheelState
    units: TimerUnits
    queue: QueueEntries
    rescanned_from: int


def check_wheel(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Everything about the wheel that its files tell, without the records.

    RocketMQ: TimerMessageStore#recoverAndRevise reads the last files of the timer log only.
    """
    state = snapshot.wheel
    if snapshot.wheel_problem is not None:
        yield WHEEL_UNREADABLE.at("the wheel", snapshot.wheel_problem)
    if state is not None and state.astray_count and not snapshot.is_running:
        entries = counted(state.astray_count, "entry that is to be placed leads", "entries lead")
        yield QUEUE_ASTRAY.at("timer queue", f"{entries} to no record")
    if state is None or snapshot.is_hierarchical:
        return
    with SegmentReader(snapshot.root.timer_log) as log:
        units = read_units(log)
        wheel = read_wheel(snapshot.root, snapshots_on=snapshot.is_set("timerWheelSnapshotFlush"))
        flushed = wheel.log_position or state.checkpoint.flush_position
        rescanned_from = max(0, flushed - log.file_bytes)
    files = WheelFiles(state, units, read_queue(snapshot.root.timer_queue()), rescanned_from)
    yield from _precision(snapshot, files)
    if state.expired_count:
        text = counted(state.expired_count, "unit leads to a record", "units lead to records")
        yield UNIT_EXPIRED.at("timerlog", f"{text} before the log's beginning")
    yield from _slots(snapshot, files)
    yield from _time(snapshot, files)
    yield from _queue(snapshot, files)
    yield from _snapshots(snapshot)


def _precision(snapshot: StoreSnapshot, files: WheelFiles) -> Iterator[Finding]:
    if "timerPrecisionMs" not in snapshot.options.conf or not len(files.units):
        return
    hand_ms, stated_ms = files.state.checkpoint.last_read_time_ms, snapshot.broker.precision_ms
    guessed_ms = guess_precision(files.units, all_slots(snapshot.root), hand_ms=hand_ms)
    written_ms = read_last_flush(snapshot.root).precision_ms or guessed_ms
    if written_ms != stated_ms and len(files.state.pending):
        problem = f"written with timerPrecisionMs={written_ms}, the broker has {stated_ms}"
        yield PRECISION.at("timerwheel", problem)


def _slots(snapshot: StoreSnapshot, files: WheelFiles) -> Iterator[Finding]:
    """Slots that the timer log does not bear out, and units that no slot leads to any more."""
    state, units = files.state, files.units
    wheel = read_wheel(snapshot.root, snapshots_on=snapshot.is_set("timerWheelSnapshotFlush"))
    slots = wheel.slots
    times = slots["time_units"].astype(np.int64)
    is_ahead = (times >= max(1, state.read_time_ms // state.precision_ms)) & (
        times % WHEEL_SLOTS == wheel.index
    )
    last = slots["last_position"][is_ahead].astype(np.int64)
    dead = units.index_at(last) < 0
    placed = units.slot_time_ms // state.precision_ms
    dead &= ~np.isin(times[is_ahead], placed)  # a unit of that slot brings it right
    if dead.any() and not snapshot.is_running:
        where = snapshot.relative(wheel.path) if wheel.path is not None else "timerwheel"
        problem = counted(int(dead.sum()), "slot leads", "slots lead")
        yield SLOT_NOWHERE.at(where, f"{problem} to no unit of the timer log")
    if state.cut_slot_count and not snapshot.is_running:
        problem = counted(state.cut_slot_count, "slot to come begins", "slots to come begin")
        yield SLOT_NOWHERE.at("timerlog", f"{problem} where no unit is any more")
    is_read_whole = files.rescanned_from <= min(units.file_starts.tolist(), default=0)
    if snapshot.is_running:  # a second reading sees a later moment
        return
    whole = state if is_read_whole else snapshot.read_wheel(whole_log=True)
    if whole.unlinked_count:
        problem = counted(whole.unlinked_count, "unit is", "units are")
        yield LINK_BROKEN.at("timerlog", f"{problem} in slots to come, and no link leads there")
    lost = np.setdiff1d(_places(whole), _places(state))
    if len(lost):
        problem = counted(len(lost), "message is", "messages are")
        yield WHEEL_STALE.at("timerwheel", f"{problem} in the timer log, and no slot leads there")


def _places(state: WheelState) -> NDArray[np.int64]:
    parts = (state.pending, state.markers, state.cancelled)
    return np.concatenate([part.commit_log_offset for part in parts])


def _time(snapshot: StoreSnapshot, files: WheelFiles) -> Iterator[Finding]:
    """The hand, and what it will no longer reach."""
    state, now_ms = files.state, snapshot.now_ms
    if state.checkpoint_damage is not None:
        yield CHECK_DAMAGED.at("config/timercheck", "its numbers are not those that were written")
    ring_ms = (SLOTS_TOTAL - MARGIN_SLOTS) * state.precision_ms
    hand_ms = state.checkpoint.last_read_time_ms
    slot_ms = files.units.slot_time_ms
    if hand_ms > now_ms + state.precision_ms and not snapshot.is_running:
        passed = int(((slot_ms < hand_ms) & (slot_ms >= now_ms)).sum())
        if passed:
            problem = counted(passed, "unit lies", "units lie")
            problem = f"it stands at {when(hand_ms, now_ms)}; {problem} before that"
            yield READ_AHEAD.at("config/timercheck", problem)
    if state.read_time_ms > hand_ms:
        before = snapshot.read_wheel(now_ms=min(now_ms, max(hand_ms, 1)))
        is_missed = (before.pending.position >= 0) & (
            before.pending.slot_time_ms < state.read_time_ms
        )
        if is_missed.any():
            gone_ms = now_ms - ring_ms
            problem = counted(int(is_missed.sum()), "message was", "messages were")
            yield BEYOND_REACH.at("the wheel", f"{problem} due before {when(gone_ms, now_ms)}")
    elif state.unreachable_count and not snapshot.is_running:
        problem = counted(state.unreachable_count, "message is", "messages are")
        yield BEYOND_REACH.at("the wheel", f"{problem} in slots that the hand has passed")
    on_wheel = state.pending.slot_time_ms[state.pending.position >= 0]
    if len(on_wheel) and not snapshot.is_running:
        before_ms = int(on_wheel.min()) + ring_ms
        rule = OPEN_SOON if before_ms - now_ms < SOON_MS else OPEN_BEFORE
        yield rule.at("the wheel", f"to be opened before {when(before_ms, now_ms)}")


def _queue(snapshot: StoreSnapshot, files: WheelFiles) -> Iterator[Finding]:
    """The queue in front of the wheel, and where placing goes on."""
    state, queue = files.state, files.queue
    if snapshot.is_running:
        return  # they are a second apart
    if state.blocking:
        first, _ = state.blocking[0]  # what no queue has yet counts as well
        last = int(state.pending.queue_offset.max(initial=max(first, queue.queue_max - 1)))
        behind = counted(last - first, "entry is", "entries are")
        problem = f"the record of queue offset {first} has no due time; {behind} behind"
        yield QUEUE_BLOCKED.at("timer queue", problem)
    noted = max(state.checkpoint.last_queue_offset, state.checkpoint.master_queue_offset)
    if noted > queue.queue_max:
        problem = f"queue offset {noted:,}, where the queue ends at {queue.queue_max:,}"
        yield CHECK_BEYOND.at("config/timercheck", problem)
    if state.placed_again_count:
        problem = counted(state.placed_again_count, "entry", "entries")
        problem = f"on the wheel already: {problem} from {state.resume_queue_offset:,} on"
        yield PLACED_AGAIN.at("config/timercheck", problem)
    if state.timeline is None:  # which else has taken them
        yield from _lost_entries(snapshot, files)


def _lost_entries(snapshot: StoreSnapshot, files: WheelFiles) -> Iterator[Finding]:
    """Pending entries without a unit before the place where placing resumes. Cancelled messages and
    their delete markers need none: a wheel of another width or engine has no units of either.
    """
    state = files.state
    done = files.queue.slice(files.queue.queue_min, state.resume_queue_offset)
    units = done.units
    is_there = is_filled(units) & ~done.is_pre_blank
    is_there &= done.commit_log_offset >= snapshot.log.min_offset
    is_there &= ~np.isin(done.commit_log_offset, files.units.units["commit_log_offset"])
    rows = np.flatnonzero(is_there)[-LOOKED_AT:]
    offsets, sizes = done.commit_log_offset[rows].tolist(), done.size_bytes[rows].tolist()
    since_ms = max(state.read_time_ms, snapshot.now_ms)
    left = {
        done.first_queue_offset + row: record
        for row, offset, size in zip(rows.tolist(), offsets, sizes, strict=True)
        if (record := record_at(snapshot.log, offset, size)) is not None
        and (out_ms_of(record) or 0) > since_ms
    }
    needless = needless_entries(snapshot, state, files.units, [*left.values()]) if left else set()
    lost = [place for place, record in left.items() if record.commit_log_offset not in needless]
    if lost:
        problem = (
            f"{counted(len(lost), 'message')} before queue offset {state.resume_queue_offset:,}"
        )
        yield QUEUE_LOST.at("timer queue", f"no unit leads to {problem}, first {lost[0]:,}")


def _snapshots(snapshot: StoreSnapshot) -> Iterator[Finding]:
    present = snapshots(snapshot.root)
    if present and not snapshot.is_set("timerWheelSnapshotFlush"):
        sizes = {path.stat().st_size for _position, path in present}
        odd = "" if sizes == {WHEEL_FILE_BYTES} else ", not all of a wheel's length"
        newest, path = present[-1]
        problem = (
            f"{counted(len(present), 'snapshot')}, the newest as of timer log position {newest}"
        )
        yield SNAPSHOTS.at(snapshot.relative(path), f"{problem}{odd}")


UNGUARDED = error(
    "hierarchy-unguarded",
    "a broker starts without knowing the hierarchical wheel, and uses the queue and its own wheel:"
    " messages are duplicated or lost",
    "before a broker starts, open the store with WheelStore, which makes its wheel, and close it",
)
TAKEN_OVER_DAMAGED = warning(
    "taken-over-damaged",
    "no broker reads it. A lost index of the hierarchical wheel cannot be rebuilt, and some old"
    " cancels are reported as delivered",
    "open the store with WheelStore, close it, and open it with HierarchicalWheelStore again: that"
    " rewrites the file",
)
HIERARCHICAL = info(
    "hierarchical-wheel",
    "no broker starts on it: a sentence stands in the place of its wheel",
    "open it with HierarchicalWheelStore; to give it to a broker, open it with WheelStore first",
)


def check_hierarchy(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Whose the store is, and that brokers stay away from it."""
    state = snapshot.wheel
    if state is None or not snapshot.is_hierarchical:
        return
    where = "delaywheel/hierarchy"
    if not is_guarded(snapshot.root):
        problem = "nothing keeps a broker from starting on this store"
        yield UNGUARDED.at(where, problem)
    damage = damage_of_taken_over(snapshot.root)
    if damage is not None:
        yield TAKEN_OVER_DAMAGED.at(f"{where}/taken-over", damage)
    waiting = counted(len(state.pending), "message waits", "messages wait")
    yield HIERARCHICAL.at(where, f"{waiting} there")


TIME_INDEX = info(
    "time-index",
    "a broker delivers none of them, and its retention deletes their log files",
    "open the store with TimeIndexStore, or --engine time-index, which delivers them",
)


TIME_INDEX_UNREAD = error(
    "time-index-unread",
    "the engine skips them when they are due: they are lost",
    "take the commit log from a backup",
)


def check_time_index(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Pending messages where no broker looks. Raises FormatError and SourceError."""
    if not has_time_index(snapshot.root):
        return
    rows = rows_of(IN_INDEX, snapshot.root, TableOptions(now_ms=snapshot.now_ms))
    unread = [each.commit_log_offset for each in unreadable_among(snapshot.log, rows)]
    lost = np.union1d(unread, [*_going_nowhere(snapshot, rows)])
    if rows.gone_count:
        problem = counted(rows.gone_count, "message waits", "messages wait")
        problem += " whose records lay before the log's beginning"
        yield TIME_INDEX_UNREAD.at("delaywheel/time-index", problem)
    if len(lost):
        problem = counted(len(lost), "message cannot be read", "messages cannot be read")
        yield TIME_INDEX_UNREAD.at("delaywheel/time-index", f"{problem}, or not delivered")
    due_ms = rows.due_ms[~np.isin(rows.commit_log_offset, lost)]
    problem = counted(len(due_ms), "message waits", "messages wait") + " there"
    if len(due_ms):
        problem += f", the next due {when(int(due_ms.min()), snapshot.now_ms)}"
    yield TIME_INDEX.at("delaywheel/time-index", problem)


def _going_nowhere(snapshot: StoreSnapshot, rows: PendingRows) -> Iterator[int]:
    """Where the records lie, of rows in the order of the log, whose topics nobody delivers to."""
    for chunk in read_chunks(snapshot.log, rows.commit_log_offset, rows.size_bytes):
        decoded = decode_chunk(chunk, rows.size_bytes[chunk.first : chunk.end])
        is_bad = undeliverable(decoded.batch.property(REAL_TOPIC))
        yield from rows.commit_log_offset[chunk.first + decoded.rows[is_bad]].tolist()
