# SPDX-License-Identifier: Apache-2.0
"""The files of a wheel against each other: slots, timer log, queue, checkpoint."""

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.base.printable import counted, when
from message_store.files.segments import SegmentReader
from message_store.format.java_numbers import parse_long
from message_store.format.properties import TIMER_OUT_MS
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.consume_queue import QueueEntries, is_filled, read_queue
from migrate.check.snapshot import Picture
from timer_wheel.format.timer_log import NO_POSITION, TimerUnits, read_units
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES, all_slots, read_wheel, snapshots
from timer_wheel.format.wheel_math import MARGIN_SLOTS, SLOTS_TOTAL, WHEEL_SLOTS
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
    "a broker does not start, or knows nothing of what waits on the wheel",
    "see what the sentence names; a wheel file of a wrong length may be removed where the timer log"
    " is whole",
)
WHEEL_STALE = error(
    "wheel-stale",
    "a broker brings its wheel up to date from the last one or two files of the timer log only:"
    " these messages are lost",
    _REBUILD,
)
SLOT_NOWHERE = error(
    "slot-points-nowhere",
    "a broker finds no unit there: what waits in these slots is lost",
    "take timerwheel and timerlog from one backup, or convert the source again",
)
CHAIN_BROKEN = error(
    "chain-broken",
    "a broker walks a slot's units from the last to the first and stops at a break, or goes on in"
    " another slot: messages are lost, or come at another time",
    _CONVERT_AGAIN,
)
CHAINS_SHARED = error(
    "chains-shared",
    "a broker delivers those messages once for each chain that leads to them",
    _CONVERT_AGAIN,
)
UNIT_TWICE = error(
    "unit-twice",
    "a broker delivers the message as often as it is on the wheel",
    "make consumers ready for repetitions; `delaywheel` itself delivers it once",
)
UNIT_EXPIRED = error(
    "timer-expired",
    "a broker drops them without a word: retention has deleted their records",
    "nothing brings them back; keep log files longer than the roll window",
)
QUEUE_BLOCKED = error(
    "timer-queue-blocked",
    "a broker tries that entry for ever: nothing behind it is put on the wheel (unless"
    " timerSkipUnknownError=true)",
    "set timerSkipUnknownError=true, also on a broker that runs: `mqadmin updateBrokerConfig -k"
    " timerSkipUnknownError -v true`; the wheel goes on, that message is lost",
)
QUEUE_LOST = error(
    "timer-queue-lost",
    "a broker goes on behind them: they are never delivered",
    "take timerlog and timerwheel from the backup that config/timercheck is from; without one,"
    " remove all three: the broker then places everything again, also what was delivered before",
)
PLACED_AGAIN = error(
    "timer-placed-again",
    "a broker puts them on the wheel a second time and delivers them twice",
    "take config/timercheck from the backup that the rest is from",
)
CHECK_BEYOND = warning(
    "timercheck-beyond-queue",
    "brokers from 5.3.2 on set it to the queue's end; older ones wait until the queue is as long,"
    " and pass over what comes until then",
    "use 5.3.2 or newer for the first start",
)
READ_AHEAD = error(
    "timercheck-ahead",
    "the wheel's hand is in the future: slots before it are never read, their messages are lost",
    "set the machine's clock right; put the time of now into the first number of config/timercheck",
)
BEYOND_REACH = error(
    "slots-beyond-reach",
    "a wheel is a ring: slots that are older than its length when a broker starts are never read",
    _CONVERT_AGAIN,
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
    "a broker with this precision finds every slot empty: all that waits on the wheel is lost",
    "give the broker the timerPrecisionMs that the wheel was written with",
)
SNAPSHOTS = warning(
    "snapshots-left",
    "a broker with timerWheelSnapshotFlush=true takes the one with the largest number instead of"
    " the wheel, however old it is; one without never looks at them",
    "remove them, unless the broker that wrote them runs with that setting on",
)

RULES = (
    WHEEL_UNREADABLE,
    WHEEL_STALE,
    SLOT_NOWHERE,
    CHAIN_BROKEN,
    CHAINS_SHARED,
    UNIT_TWICE,
    UNIT_EXPIRED,
    QUEUE_BLOCKED,
    QUEUE_LOST,
    PLACED_AGAIN,
    CHECK_BEYOND,
    READ_AHEAD,
    BEYOND_REACH,
    OPEN_SOON,
    OPEN_BEFORE,
    PRECISION,
    SNAPSHOTS,
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


def check_wheel(picture: Picture) -> Iterator[Finding]:
    """Everything about the wheel that its files tell, without the records."""
    state = picture.wheel
    if picture.wheel_problem is not None:
        yield WHEEL_UNREADABLE.at("the wheel", picture.wheel_problem)
    if state is None or picture.is_hierarchical:
        return
    with SegmentReader(picture.root.timer_log) as log:
        units = read_units(log)
        wheel = read_wheel(picture.root, snapshots_on=picture.is_set("timerWheelSnapshotFlush"))
        flushed = wheel.log_position or state.checkpoint.flush_position
        rescanned_from = max(0, flushed - log.file_bytes)
    files = WheelFiles(state, units, read_queue(picture.root.timer_queue()), rescanned_from)
    yield from _precision(picture, files)
    yield from _chains(picture, files)
    yield from _slots(picture, files)
    yield from _time(picture, files)
    yield from _queue(picture, files)
    yield from _snapshots(picture)


def _precision(picture: Picture, files: WheelFiles) -> Iterator[Finding]:
    if "timerPrecisionMs" not in picture.options.conf or not len(files.units):
        return
    hand_ms, stated_ms = files.state.checkpoint.last_read_time_ms, picture.broker.precision_ms
    written_ms = guess_precision(files.units, all_slots(picture.root), hand_ms=hand_ms)
    if written_ms != stated_ms and len(files.state.pending):
        told = f"written with timerPrecisionMs={written_ms}, the broker has {stated_ms}"
        yield PRECISION.at("timerwheel", told)


def _chains(picture: Picture, files: WheelFiles) -> Iterator[Finding]:
    state, units = files.state, files.units
    if len(state.shared_positions):
        first = int(state.shared_positions[0])
        told = counted(len(state.shared_positions), "unit is", "units are")
        yield CHAINS_SHARED.at("timerlog", f"{told} met by two chains, the first at {first}")
    on_wheel = np.concatenate(
        [part.position for part in (state.pending, state.markers, state.cancelled)]
    )
    index = units.index_at(on_wheel[on_wheel >= 0])
    index = index[index >= 0]
    before = units.units["previous_position"][index].astype(np.int64)
    begin = int(units.file_starts[0]) if len(units.file_starts) else 0
    linked = before[before != NO_POSITION]
    at = units.index_at(linked)
    here = index[before != NO_POSITION]
    is_gone = linked < begin  # cleaned away with its file: a broker stops there too
    is_broken = (at < 0) & ~is_gone
    slot_ms = units.slot_time_ms // state.precision_ms
    is_broken |= (at >= 0) & ((slot_ms[at] != slot_ms[here]) | (at >= here))
    if is_broken.any():
        first = int(units.positions[here[is_broken]].min())
        told = counted(int(is_broken.sum()), "unit has", "units have")
        told += f" a link to no unit of the same slot, first {first}"
        yield CHAIN_BROKEN.at("timerlog", told)
    placed = np.concatenate([part.commit_log_offset for part in (state.pending, state.cancelled)])
    is_placed = np.concatenate([part.position for part in (state.pending, state.cancelled)]) >= 0
    offsets, counts = np.unique(placed[is_placed], return_counts=True)
    if (counts > 1).any():
        told = counted(int((counts > 1).sum()), "record is", "records are")
        first = int(offsets[counts > 1][0])
        yield UNIT_TWICE.at("the wheel", f"{told} on it twice, first log offset {first}")
    if state.expired_count:
        told = counted(state.expired_count, "unit leads to a record", "units lead to records")
        yield UNIT_EXPIRED.at("timerlog", f"{told} before the log's beginning")


def _slots(picture: Picture, files: WheelFiles) -> Iterator[Finding]:
    """Slots that the timer log does not bear out, and units that no slot leads to any more."""
    state, units = files.state, files.units
    wheel = read_wheel(picture.root, snapshots_on=picture.is_set("timerWheelSnapshotFlush"))
    slots = wheel.slots
    times = slots["time_units"].astype(np.int64)
    is_ahead = (times >= max(1, state.read_time_ms // state.precision_ms)) & (
        times % WHEEL_SLOTS == wheel.index
    )
    last = slots["last_position"][is_ahead].astype(np.int64)
    dead = units.index_at(last) < 0
    placed = units.slot_time_ms // state.precision_ms
    dead &= ~np.isin(times[is_ahead], placed)  # a unit of that slot brings it right
    if dead.any():
        where = picture.place(wheel.path) if wheel.path is not None else "timerwheel"
        told = counted(int(dead.sum()), "slot leads", "slots lead")
        yield SLOT_NOWHERE.at(where, f"{told} to no unit of the timer log")
    if files.rescanned_from <= (int(units.file_starts[0]) if len(units.file_starts) else 0):
        return
    whole = picture.read_wheel(whole_log=True)
    known = _places(state)
    lost = np.setdiff1d(_places(whole), known)
    if len(lost):
        told = counted(len(lost), "message is", "messages are")
        yield WHEEL_STALE.at("timerwheel", f"{told} in the timer log, and no slot leads there")


def _places(state: WheelState) -> NDArray[np.int64]:
    parts = (state.pending, state.markers, state.cancelled)
    return np.concatenate([part.commit_log_offset for part in parts])


def _time(picture: Picture, files: WheelFiles) -> Iterator[Finding]:
    """The hand, and what it will no longer reach."""
    state, now_ms = files.state, picture.now_ms
    ring_ms = (SLOTS_TOTAL - MARGIN_SLOTS) * state.precision_ms
    hand_ms = state.checkpoint.last_read_time_ms
    slot_ms = files.units.slot_time_ms
    if hand_ms > now_ms + state.precision_ms and not picture.is_running:
        passed = int(((slot_ms < hand_ms) & (slot_ms >= now_ms)).sum())
        if passed:
            told = counted(passed, "unit lies", "units lie")
            told = f"it stands at {when(hand_ms, now_ms)}; {told} before that"
            yield READ_AHEAD.at("config/timercheck", told)
    if state.read_time_ms > hand_ms:
        before = picture.read_wheel(now_ms=min(now_ms, max(hand_ms, 1)))
        is_missed = (before.pending.position >= 0) & (
            before.pending.slot_time_ms < state.read_time_ms
        )
        if is_missed.any():
            gone_ms = now_ms - ring_ms
            told = counted(int(is_missed.sum()), "message was", "messages were")
            yield BEYOND_REACH.at("the wheel", f"{told} due before {when(gone_ms, now_ms)}")
    on_wheel = state.pending.slot_time_ms[state.pending.position >= 0]
    if len(on_wheel) and not picture.is_running:
        before_ms = int(on_wheel.min()) + ring_ms
        rule = OPEN_SOON if before_ms - now_ms < SOON_MS else OPEN_BEFORE
        yield rule.at("the wheel", f"to be opened before {when(before_ms, now_ms)}")


def _queue(picture: Picture, files: WheelFiles) -> Iterator[Finding]:
    """The queue in front of the wheel, and where placing goes on."""
    state, queue = files.state, files.queue
    if picture.is_running:
        return  # they are a second apart
    if state.blocking_queue_offsets:
        first = state.blocking_queue_offsets[0]
        behind = counted(queue.queue_max - first - 1, "entry is", "entries are")
        told = f"the record of queue offset {first} has no due time; {behind} behind"
        yield QUEUE_BLOCKED.at("timer queue", told)
    noted = max(state.checkpoint.last_queue_offset, state.checkpoint.master_queue_offset)
    if noted > queue.queue_max:
        told = f"queue offset {noted:,}, where the queue ends at {queue.queue_max:,}"
        yield CHECK_BEYOND.at("config/timercheck", told)
    placed = files.units.units["commit_log_offset"].astype(np.int64)
    rest = queue.slice(state.resume_queue_offset, queue.queue_max)
    again = np.isin(rest.commit_log_offset, placed)
    if again.any() and not picture.is_dirty:
        told = counted(int(again.sum()), "entry", "entries")
        told = f"on the wheel already: {told} from {state.resume_queue_offset:,} on"
        yield PLACED_AGAIN.at("config/timercheck", told)
    if state.timeline is None:  # which else has taken them
        yield from _lost_entries(picture, files, placed)


def _lost_entries(
    picture: Picture, files: WheelFiles, placed: NDArray[np.int64]
) -> Iterator[Finding]:
    """Entries before the place where placing goes on, without a unit, and still to come."""
    state = files.state
    done = files.queue.slice(files.queue.queue_min, state.resume_queue_offset)
    units = done.units
    is_there = is_filled(units) & ~done.is_pre_blank
    is_there &= done.commit_log_offset >= picture.log.min_offset
    is_there &= ~np.isin(done.commit_log_offset, placed)
    rows = np.flatnonzero(is_there)[-LOOKED_AT:]
    offsets, sizes = done.commit_log_offset[rows].tolist(), done.size_bytes[rows].tolist()
    since_ms = max(state.read_time_ms, picture.now_ms)
    lost = [
        done.first_queue_offset + row
        for row, offset, size in zip(rows.tolist(), offsets, sizes, strict=True)
        if (_out_ms(picture, offset, size) or 0) > since_ms
    ]
    if lost:
        told = f"{counted(len(lost), 'message')} before queue offset {state.resume_queue_offset:,}"
        yield QUEUE_LOST.at("timer queue", f"no unit leads to {told}, first {lost[0]:,}")


def _out_ms(picture: Picture, offset: int, size: int) -> int | None:
    record = record_at(picture.log, offset, size)
    try:
        return None if record is None else parse_long(record.properties.get(TIMER_OUT_MS, ""))
    except BadFieldError:
        return None


def _snapshots(picture: Picture) -> Iterator[Finding]:
    known = snapshots(picture.root)
    if known and not picture.is_set("timerWheelSnapshotFlush"):
        sizes = {path.stat().st_size for _position, path in known}
        odd = "" if sizes == {WHEEL_FILE_BYTES} else ", not all of a wheel's length"
        newest, path = known[-1]
        told = f"{counted(len(known), 'snapshot')}, the newest as of timer log position {newest}"
        yield SNAPSHOTS.at(picture.place(path), f"{told}{odd}")
