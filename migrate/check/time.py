# SPDX-License-Identifier: Apache-2.0
"""What time does to pending messages: retention deletes logs, and too many are due at once."""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.printable import counted, iso_time, span, when
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.shown_delays import PLAUSIBLE_DUE_MS
from migrate.check.snapshot import StoreSnapshot
from timer_wheel.format.wheel_math import floor_ms

LATE_ENOUGH_MS = 1_000
"""A shorter delay than this is nothing that anybody waits for."""

RETENTION_NOW = error(
    "retention-deletes-now",
    "a broker judges log files by their modification times. At its next cleaning (04h, or at once"
    " on a full disk) it deletes these files with their pending messages",
    "stop the broker, update the files' modification times (`touch`), or raise fileReservedTime"
    " before it starts",
)
RETENTION = error(
    "retention-deletes-waiting",
    "a broker deletes log files when fileReservedTime has passed since they were changed. Pending"
    " messages in them are skipped or dropped when they are due",
    "raise fileReservedTime above the longest wait, and see that the disk has room for it",
)
ROLL_RETENTION = error(
    "roll-window-retention",
    "a message due beyond the roll window is rolled once in a window; its record is deleted before"
    " that",
    "keep fileReservedTime above timerRollWindowSlot × timerPrecisionMs",
)
PEAK = warning(
    "peak-over-capacity",
    "they are delivered one after the other: the last of them late",
    "spread the due times, or measure what the broker delivers in a second and set --capacity",
)
OVERDUE = info(
    "overdue",
    "a broker that starts, or `delaywheel run`, delivers them at once",
    "have consumers ready",
)


@attrs.frozen(eq=False)
class Deliveries:
    """Everything that waits: where its record is, and when a broker needs it at the latest.

    What will roll is needed when its slot is over, and is written anew then.
    """

    commit_log_offset: NDArray[np.int64]
    needed_ms: NDArray[np.int64]
    is_final: NDArray[np.bool_]

    @property
    def due_ms(self) -> NDArray[np.int64]:
        """When messages go to their topics, those that will roll left out."""
        return self.needed_ms[self.is_final]


def deliveries_of(snapshot: StoreSnapshot) -> Deliveries:
    """Pending messages of levels and wheel; entries without a due time are due now."""
    rows = snapshot.level_rows
    due_ms = np.where(rows.due_ms > PLAUSIBLE_DUE_MS, rows.due_ms, snapshot.now_ms)
    offsets, finals = [rows.commit_log_offset], [np.ones(len(rows), np.bool_)]
    times = [due_ms.astype(np.int64)]
    if snapshot.wheel is not None:
        timers = snapshot.wheel.pending
        offsets.append(timers.commit_log_offset)
        times.append(timers.slot_time_ms + snapshot.wheel.precision_ms)
        finals.append(~timers.is_roll)
    columns: list[Any] = [np.concatenate(part) for part in (offsets, times, finals)]
    return Deliveries(*columns)


# --- retention ------------------------------------------------------------------------------------


def check_retention(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Messages whose log file a broker may delete before it needs them.

    RocketMQ: DefaultMessageStore.CleanCommitLogService (4.9.7).
    """
    deliveries, now_ms = deliveries_of(snapshot), snapshot.now_ms
    segments = snapshot.log.segments
    if not segments:
        return
    starts = np.array([segment.start_offset for segment in segments], np.int64)
    # The last file is never deleted; the next record may end it, and then its time is now.
    changed_ms = np.array([segment.modified_ns // 1_000_000 for segment in segments], np.int64)
    changed_ms[-1] = max(int(changed_ms[-1]), now_ms)
    deleted_ms = changed_ms + snapshot.broker.retention_ms
    segment_index = np.searchsorted(starts, deliveries.commit_log_offset, side="right") - 1
    in_log = segment_index >= 0
    in_danger = in_log & (deliveries.needed_ms > np.maximum(deleted_ms[segment_index], now_ms))
    is_now = in_danger & (deleted_ms[segment_index] <= now_ms)
    hours = snapshot.broker.retention_hours
    for rule, chosen in ((RETENTION_NOW, is_now), (RETENTION, in_danger & ~is_now)):
        if chosen.any():
            first = int(segment_index[chosen].min())
            files = len(np.unique(segment_index[chosen]))
            at = when(int(deleted_ms[first]), now_ms)
            waiting = counted(int(chosen.sum()), "message waits", "messages wait")
            problem = (
                f"{waiting} in {counted(files, 'log file')} for longer than those are kept;"
                f" fileReservedTime {hours} h is over for the first of them at {at}"
            )
            yield rule.at(snapshot.relative(segments[first].path), problem)
    yield from _roll_window(snapshot)


def _roll_window(snapshot: StoreSnapshot) -> Iterator[Finding]:
    settings = snapshot.broker
    window_ms, kept_ms = settings.roll_window_slots * settings.precision_ms, settings.retention_ms
    if snapshot.has_wheel and kept_ms <= window_ms:
        problem = f"the roll window is {span(window_ms)}, log files are kept for {span(kept_ms)}"
        yield ROLL_RETENTION.at("the broker's configuration", problem)


# --- load -----------------------------------------------------------------------------------------


@attrs.frozen
class Load:
    """How much is due when, against a capacity: the second with the most messages, and the most
    that a message will be late, with when that is.

    ``rolling`` of the ``waiting`` messages will roll first: only their records tell when they are
    due. They count nowhere else.
    """

    waiting: int
    rolling: int
    overdue: int
    peak_messages: int
    peak_ms: int | None
    lateness_ms: int
    latest_ms: int | None
    capacity: int


def predict_load(
    due_ms: NDArray[np.int64], now_ms: int, capacity: int, *, rolling: int = 0
) -> Load:
    """The load second by second; overdue messages count as due at ``now_ms``.

    ``due_ms`` is int64[n], ``capacity`` messages a second; ``rolling`` more wait that will roll.

    >>> load = predict_load(np.full(50_000, 10_000), now_ms=0, capacity=20_000)
    >>> load.peak_messages, load.lateness_ms
    (50000, 2500)
    """
    if not len(due_ms):
        return Load(rolling, rolling, 0, 0, None, 0, None, capacity)
    seconds, counts = np.unique(np.maximum(due_ms, now_ms) // 1000, return_counts=True)
    # What is left of earlier seconds when a second begins: a queue that empties at its capacity.
    done = np.cumsum(counts)
    idle = seconds * capacity - (done - counts)
    behind = np.maximum.accumulate(idle)
    left = done + behind - seconds * capacity
    worst = int(left.argmax())
    most = int(counts.argmax())
    return Load(
        waiting=len(due_ms) + rolling,
        rolling=rolling,
        overdue=int((due_ms <= now_ms).sum()),
        peak_messages=int(counts[most]),
        peak_ms=int(seconds[most]) * 1000,
        lateness_ms=int(left[worst]) * 1000 // capacity,
        latest_ms=int(seconds[worst]) * 1000,
        capacity=capacity,
    )


def load_of(snapshot: StoreSnapshot) -> Load:
    """The load of everything that waits."""
    deliveries, capacity = deliveries_of(snapshot), snapshot.options.capacity
    rolling = len(deliveries.is_final) - int(np.count_nonzero(deliveries.is_final))
    return predict_load(deliveries.due_ms, snapshot.now_ms, capacity, rolling=rolling)


def check_load(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """More messages in one second than the broker delivers, and those that are overdue."""
    load = load_of(snapshot)
    if load.overdue and not snapshot.is_running:
        took = span(max(1000, load.overdue * 1000 // load.capacity))
        problem = counted(load.overdue, "message is", "messages are")
        yield OVERDUE.at(snapshot.root.path, f"{problem} overdue; that takes about {took}")
    # A capacity is of whole seconds: what fits one is not late.
    late_ms = load.lateness_ms - LATE_ENOUGH_MS
    if late_ms > 0 and load.peak_ms is not None and load.latest_ms is not None:
        peak = iso_time(floor_ms(load.peak_ms, 1000))
        problem = (
            f"{counted(load.peak_messages, 'message is', 'messages are')} due in the second of"
            f" {peak}, and a broker delivers about {load.capacity:,}"
        )
        yield PEAK.at(peak, problem, more=f"about {span(late_ms + LATE_ENOUGH_MS)} late")
