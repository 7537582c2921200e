# SPDX-License-Identifier: Apache-2.0
"""What the RocksDB timeline of 5.4 and newer does to the messages that wait for it: it is quicker
to lose some than a wheel.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, DelayStoreError
from message_store.base.printable import counted, when
from message_store.format.java_numbers import parse_long
from message_store.format.properties import (
    TIMER_DELETE_UNIQUE_KEY,
    TIMER_OUT_MS,
    TIMER_ROLL_LABEL,
)
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.consume_queue import QueueEntries, read_queue
from migrate.check.snapshot import Picture
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from timer_wheel.reading.outstanding import newest_store_ms
from timer_wheel.reading.pending_timers import record_at
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.timeline import Timeline, read_timeline, timeline_directory

TIMELINE = warning(
    "rocksdb-timeline",
    "only a broker of 5.4 or newer with timerRocksDBEnable=true delivers what waits in a timeline;"
    " a conversion takes nothing of it",
    "give such a broker the setting; to leave the timeline, set timerRocksDBStopScan=true beside it"
    " and let the broker run until nothing waits there",
)
UNREADABLE = error(
    "timeline-unreadable",
    "a broker starts all the same: it stores no timed message and delivers only what is overdue",
    "take rocksdbstore/ from a backup; without one remove it: a broker then reads the timer queue"
    " again, and repeats what it delivered",
)
OFF = error(
    "timeline-switched-off",
    "a broker with this setting puts them on its wheel again from the timer queue, also what the"
    " timeline has delivered: those come twice",
    "set timerRocksDBEnable=true; to leave the timeline, set timerRocksDBStopScan=true beside it",
)
EARLY = info(
    "timeline-early",
    "a timeline delivers them up to a second before the time that was asked for",
    "use the wheel where that matters",
)
REPEATS = warning(
    "timeline-repeats",
    "a broker with a timeline delivers them again: after a crash what it delivered in up to five"
    " minutes, and at every start what was overdue at the end of its queue",
    "make consumers ready for repetitions; a message due later behind them ends the second kind",
)
FORGETS = error(
    "timeline-forgets",
    "a timeline that never delivered anything begins ten seconds before its start: what is older is"
    " lost",
    "take rocksdbstore/ away, so that the broker reads the timer queue again",
)
NO_KEY = error(
    "timeline-no-key",
    "a timeline stores no message without UNIQ_KEY: they are lost",
    "let the wheel take the queue over (timerRocksDBStopScan=true) before they are read",
)
ONE_OF_MANY = error(
    "timeline-equal-keys",
    "a timeline keeps one message of equal time and key: the others are lost",
    "let the wheel take the queue over (timerRocksDBStopScan=true) before they are read",
)
STOPS = error(
    "timeline-stops",
    "a timeline tries that entry for ever, and stores nothing that is behind it",
    "raise maxMessageSize above the record's length; where there is no record, let the wheel take"
    " the queue over (timerRocksDBStopScan=true)",
)
LOST = error(
    "timeline-lost",
    "a timeline has read them, and holds none of them: they are never delivered",
    "send them again: `delaywheel read` shows them in rmq_sys_wheel_timer",
)

RULES = (TIMELINE, UNREADABLE, OFF, EARLY, REPEATS, FORGETS, NO_KEY, ONE_OF_MANY, STOPS, LOST)

LOOKED_AT = 100_000
"""Records that are read before and behind the timeline's place in its queue."""
_WAIT = "message waits", "messages wait"
_START_MS = 10_000
_EARLY_MS = 1_000


@attrs.frozen
class _Record:
    """What a timeline asks of a record of its queue."""

    queue_offset: int
    commit_log_offset: int
    out_ms: int
    key: str | None
    is_marker: bool
    is_labelled: bool
    deletes: str | None


def check_timeline(picture: Picture) -> Iterator[Finding]:
    """The timeline: used, readable, and what it does with what waits."""
    place = timeline_directory(picture.root).name
    if picture.is_set("timerRocksDBEnable"):
        yield TIMELINE.at("the broker's configuration", "timerRocksDBEnable=true")
    try:
        timeline = read_timeline(picture.root)
    except DelayStoreError as problem:
        yield UNREADABLE.at(place, str(problem))
        return
    state = picture.wheel
    if state is None:
        return
    if timeline is not None:
        yield from _held(picture, place, timeline, state)
    if timeline is not None or picture.is_set("timerRocksDBEnable"):
        yield from _behind(picture, state)


def _held(picture: Picture, place: str, timeline: Timeline, state: WheelState) -> Iterator[Finding]:
    """What the database holds, and what it should hold."""
    waits = state.pending.rows(state.pending.is_in_timeline)
    if len(waits):
        yield TIMELINE.at(place, f"{counted(len(waits), *_WAIT)} in it")
        yield EARLY.at(place, counted(len(waits), "message"))
    conf = picture.options.conf
    if conf and not picture.is_set("timerRocksDBEnable"):
        told = f"timerRocksDBEnable is not true; {counted(len(waits), *_WAIT)} in the timeline"
        yield OFF.at("the broker's configuration", f"{told}, it read {timeline.scan_offset:,}")
    if state.done_already_count:
        told = counted(state.done_already_count, "message was", "messages were")
        yield REPEATS.at(place, f"{told} delivered")
    start_ms = picture.now_ms - _START_MS
    forgotten = int((waits.slot_time_ms < start_ms).sum())
    if timeline.delivered_until_ms is None and forgotten:
        told = counted(forgotten, "message is", "messages are")
        yield FORGETS.at(place, f"{told} due before {when(start_ms, picture.now_ms)}")
    if not picture.is_running:
        yield from _lost(picture, timeline, state)


def _lost(picture: Picture, timeline: Timeline, state: WheelState) -> Iterator[Finding]:
    """Messages that the timeline has read, that are due later, and that nothing holds."""
    queue = read_queue(picture.root.timer_queue())
    end = min(timeline.scan_offset, queue.queue_max)
    records = _records(picture, queue.slice(max(queue.queue_min, end - LOOKED_AT), end))
    held = np.concatenate(
        [part.commit_log_offset for part in (state.pending, state.cancelled, state.markers)]
    )
    known = set(held.tolist())
    recalled = {record.deletes for record in records if record.is_marker}
    rolled = {(record.out_ms, record.key) for record in records if record.is_labelled}
    delivered_ms = picture.now_ms if picture.is_dirty else newest_store_ms(picture.root)
    since_ms = max(delivered_ms, timeline.delivered_until_ms or 0) + _EARLY_MS
    lost = [
        record.queue_offset
        for record in records
        if record.out_ms > since_ms
        and not record.is_marker
        and record.commit_log_offset not in known
        and (record.key is None or not _names(recalled, record.key))
        and (record.out_ms, record.key) not in rolled
    ]
    if lost:
        told = f"in no database: {counted(len(lost), 'message')} before queue offset {end:,}"
        yield LOST.at("timer queue", f"{told}, first {lost[0]:,}")


def _names(markers: set[str | None], key: str) -> bool:
    """Whether one of these markers is of the message with this key, whatever its topic."""
    return key in markers or any(text and text.endswith(f"+{key}") for text in markers)


def _behind(picture: Picture, state: WheelState) -> Iterator[Finding]:
    """What the timeline will read next."""
    queue = read_queue(picture.root.timer_queue(), from_queue_offset=state.resume_queue_offset)
    rest = queue.slice(state.resume_queue_offset, state.resume_queue_offset + LOOKED_AT)
    limit = picture.broker.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES
    places = zip(rest.commit_log_offset.tolist(), rest.size_bytes.tolist(), strict=True)
    for number, (offset, size) in enumerate(places, rest.first_queue_offset):
        if size > limit or record_at(picture.log, offset, size) is None:
            what = f"{size:,} bytes" if size > limit else "no record"
            yield STOPS.at("timer queue", f"queue offset {number:,} leads to {what}")
            break
    waiting = set(state.pending.commit_log_offset.tolist())
    records = [
        record
        for record in _records(picture, rest)
        if record.commit_log_offset in waiting and record.out_ms > picture.now_ms
    ]
    without = [record.queue_offset for record in records if record.key is None]
    if without:
        told = counted(len(without), "message has", "messages have")
        first = f"first queue offset {without[0]:,}"
        yield NO_KEY.at("timer queue", f"{told} no UNIQ_KEY, {first}")
    keys = [(r.out_ms, r.key) for r in records if r.key is not None and not r.is_labelled]
    if more := len(keys) - len(set(keys)):
        told = counted(more, "message has", "messages have")
        yield ONE_OF_MANY.at("timer queue", f"{told} time and key of another")


def _records(picture: Picture, queue: QueueEntries) -> list[_Record]:
    """The records of these entries that have a due time."""
    found = []
    entries = zip(queue.commit_log_offset.tolist(), queue.size_bytes.tolist(), strict=True)
    for queue_offset, (offset, size) in enumerate(entries, queue.first_queue_offset):
        record = record_at(picture.log, offset, size)
        if record is None:
            continue
        properties = record.properties
        try:
            out_ms = parse_long(properties.get(TIMER_OUT_MS, ""))
        except BadFieldError:
            continue
        deletes = properties.get(TIMER_DELETE_UNIQUE_KEY)
        found.append(
            _Record(
                queue_offset=queue_offset,
                commit_log_offset=offset,
                out_ms=out_ms,
                key=record.unique_key,
                is_marker=deletes is not None,
                is_labelled=TIMER_ROLL_LABEL in properties,
                deletes=deletes,
            )
        )
    return found
