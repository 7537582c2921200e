# SPDX-License-Identifier: Apache-2.0
"""The plan of a change in place: which messages, when due, how large, to which offsets.

Nothing is written. The records are made once and thrown away, so that those that cannot be
converted are known beforehand.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from message_store.base.errors import BadRecordsError, OptionsError, PlanError
from message_store.base.printable import iso_time
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.batch import place_records
from message_store.kernels.raw_memory import address_of
from message_store.reading.record_reader import read_chunks
from message_store.reading.unfinished_change import DONE
from migrate.changes.note import IN_PLACE, Ends, changes_of
from migrate.in_place.checks import OwnWheel, check_wheel, file_sizes, read_ends, refuse_damage
from migrate.plan.plan import Corrections, Plan, implausible_entries, make_plan
from migrate.plan.stored_plan import request_of
from migrate.plan.target_rows import Arrangement, TargetRows
from migrate.progress import Progress
from migrate.report.accounting import bad_records, conversion_report
from migrate.report.report import ConversionReport, Seconds
from migrate.settings import WHEEL, ConvertOptions
from migrate.source.condition import require_stopped, retired_warnings, source_warnings
from migrate.source.sources import chosen_by_level
from migrate.write.log_file import SourceShare
from migrate.write.rewriter import RecordRewriter
from migrate.write.room import disk_warnings, require_room
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.placing import OVERDUE_SLOTS

PLANNED, CONTINUED, UNFINISHED, NOTHING = (
    "planned",
    "continued and done",
    "unfinished",
    "nothing to do",
)
"""States of a report; DONE is the fifth."""
_SINCE_ADDED: dict[str, Any] = {
    "left_out_topics": {}, "engine": WHEEL, "target_queue_offset": 0, "target_runs": (),
    "sources": (), "topics": {}, "due": None,
}  # fmt: skip
"""What reports in the notes of earlier versions do not have."""
_BROKER_CONF = (
    "timerWheelEnable",
    "timerRocksDBEnable",
    "timerPrecisionMs",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxMessageSize",
)
"""What a store that was changed in place depends on."""
Int64Array = NDArray[np.int64]


@attrs.frozen(kw_only=True)
class InPlaceReport:
    """A conversion in place: ``state`` says whether it was done.

    ``log_from`` to ``log_to`` is appended to the log, ``queue_from`` to ``queue_to`` to the timer
    queue. ``offsets`` maps levels to new delivery offsets. ``backup`` is the directory with copies
    of the small files.
    """

    conversion: ConversionReport
    state: str
    log_from: int
    log_to: int
    queue_from: int
    queue_to: int
    offsets: Mapping[int, int]
    backup: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object: that of ``convert``, and what is of changes in place alone."""
        own = attrs.asdict(self, recurse=False)
        del own["conversion"]
        return {**self.conversion.as_json(), "in_place": True, **own}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], state: str) -> "InPlaceReport":
        """What an earlier run wrote down."""
        own = ("log_from", "log_to", "queue_from", "queue_to", "backup")
        return cls(
            conversion=ConversionReport.from_json({**_SINCE_ADDED, **facts}),
            state=state,
            offsets={int(level): offset for level, offset in facts["offsets"].items()},
            **{name: facts[name] for name in own},
        )


@attrs.frozen(kw_only=True, eq=False)
class InPlacePlan:
    """Everything about a change before its first byte: ``outs_ms`` has each message's out time,
    ``sizes`` (int64) its record's, ``offsets`` the new delivery offset of each level that moves.
    """

    options: ConvertOptions
    backlog: LevelBacklog
    plan: Plan
    corrections: Corrections
    outs_ms: Int64Array
    sizes: Int64Array
    before: Ends
    after: Ends
    offsets: dict[int, int]
    bytes_read: int
    warnings: tuple[str, ...]
    request: dict[str, Any]

    @property
    def is_empty(self) -> bool:
        """Whether there is no message to convert or quarantine."""
        return not len(self.plan) and not self.corrections.bad

    @property
    def open_before_ms(self) -> int | None:
        """When the first slot leaves the wheel: a broker must open the store before."""
        if not len(self.plan):
            return None
        return self.plan.settings.open_before_ms(
            int(self.outs_ms.min()), self.after.log_end - self.backlog.log_min, self.plan.now_ms
        )

    def report(self, state: str, seconds: Seconds, backup: Path | None = None) -> InPlaceReport:
        """The report, as it is known before and as it stays afterwards."""
        return InPlaceReport(
            conversion=self._conversion(seconds),
            state=state,
            log_from=self.before.log_end,
            log_to=self.after.log_end,
            queue_from=self.before.timer_queue_end,
            queue_to=self.after.timer_queue_end,
            offsets=self.offsets,
            backup=None if backup is None else str(backup),
        )

    def _conversion(self, seconds: Seconds) -> ConversionReport:
        plan, chosen = self.plan, chosen_by_level(self.options, self.backlog)
        share = SourceShare(
            bytes_read=self.bytes_read, largest_record_bytes=int(self.sizes.max(initial=0))
        )
        order = Arrangement(range(len(plan)), np.zeros(len(plan), np.int64), 0)
        sizes, nothing = self.sizes.astype(np.int32), np.zeros(len(plan), np.int32)
        rows = TargetRows.planned(plan, order, sizes, nothing, nothing)
        report = conversion_report(
            self.options, self.backlog, chosen, rows, self.corrections, [share], seconds,
            self.request,
        )  # fmt: skip
        return attrs.evolve(
            report,
            open_before_ms=self.open_before_ms,
            bytes_written=int(self.sizes.sum()) + len(plan) * QUEUE_UNIT.size,
            broker_conf={key: report.broker_conf[key] for key in _BROKER_CONF
                         if key in report.broker_conf},
            warnings=(*self.warnings, *report.warnings),
        )  # fmt: skip


def plan_in_place(
    root: StoreRoot, options: ConvertOptions, *, clock_ms: int, progress: Progress
) -> InPlacePlan:
    """Plan a change of a store that nobody writes to.

    Raises SourceError, OptionsError, BadRecordsError (under ``on_bad_record="fail"``), and
    TargetError for a disk without room.
    """
    require_stopped(root, after_crash=options.after_crash)
    progress("plan", 0, 1)
    refuse_damage(root)
    backlog = read_backlog(
        root.path,
        offsets_choice=options.offsets,
        level_table=options.level_table,
        after_crash=options.after_crash,
    )
    now_ms = clock_ms if options.now_ms is None else options.now_ms
    if now_ms < backlog.newest_store_ms:
        raise OptionsError(
            f"now ({iso_time(now_ms)}) lies before the newest message of the log"
            f" ({iso_time(backlog.newest_store_ms)}): the times of a log must not go back"
        )
    ends = read_ends(root)
    wheel = _check_wheel(root, options, ends)
    warnings = [
        *retired_warnings(root, options.only_levels),
        *source_warnings(root, whole_log=False, is_in_place=True),
        *wheel.warnings,
    ]
    if wheel.read_time_ms > now_ms:
        warnings.append("the store's own wheel stands later than now: due messages wait for it")
    request = request_of(options, now_ms, backlog.level_table)
    plan, corrections, outs_ms, sizes, bytes_read = _plan_records(
        root, options, backlog, request, wheel, ends.timer_queue_end, progress
    )
    require_room(root.path, int(sizes.sum()) + len(sizes) * QUEUE_UNIT.size)
    progress("plan", 1, 1)
    return InPlacePlan(
        options=options,
        backlog=backlog,
        plan=plan,
        corrections=corrections,
        outs_ms=outs_ms,
        sizes=sizes,
        before=ends,
        after=attrs.evolve(
            ends,
            log_end=_log_end(sizes, ends.log_end, plan.settings.commit_log_file_bytes),
            timer_queue_end=ends.timer_queue_end + len(plan),
        ),
        offsets=_moving(options, backlog),
        bytes_read=bytes_read,
        warnings=(*warnings, *disk_warnings(root.path)),
        request=request,
    )


def _check_wheel(root: StoreRoot, options: ConvertOptions, ends: Ends) -> OwnWheel:
    is_ours = any(
        each.kind == IN_PLACE and each.state == DONE
        and (each.after.timer_queue_end, each.after.wheel) == (ends.timer_queue_end, ends.wheel)
        for each in changes_of(root)  # another change may follow, which left the wheel alone
    )  # fmt: skip
    return check_wheel(root, options.settings, ends, is_ours_and_unopened=is_ours)


def _moving(options: ConvertOptions, backlog: LevelBacklog) -> dict[int, int]:
    return {
        counts.level: counts.to_queue_offset
        for counts in backlog.counts
        if counts.queued and (not options.only_levels or counts.level in options.only_levels)
    }


def _log_end(sizes: Int64Array, log_end: int, file_bytes: int) -> int:
    if not len(sizes):
        return log_end
    return int(place_records(sizes, log_end, file_bytes, np.empty(len(sizes), np.int64)))


def _plan_records(
    root: StoreRoot,
    options: ConvertOptions,
    backlog: LevelBacklog,
    request: dict[str, Any],
    wheel: OwnWheel,
    first_queue_offset: int,
    progress: Progress,
) -> tuple[Plan, Corrections, Int64Array, Int64Array, int]:
    """Plan, make the records to find those that cannot be made, and plan again without them.

    Also returns what stays out, each message's out time and record size, and the bytes read.
    """
    sizes, bytes_read = file_sizes(root), 0
    settings = attrs.evolve(
        options.settings,
        commit_log_file_bytes=sizes.commit_log_file_bytes,
        queue_file_bytes=sizes.queue_file_bytes,
    )
    chosen = chosen_by_level(options, backlog)
    corrections = implausible_entries(backlog, chosen, settings.precision_ms)
    while True:
        plan = make_plan(
            backlog,
            chosen,
            now_ms=request["now_ms"],
            settings=settings,
            request=request,
            corrections=corrections,
        )
        outs_ms = safe_outs_ms(plan, wheel.read_time_ms)
        with open_log(root) as log:
            nothing = np.zeros(len(plan), np.int64)
            records = TimerRecords(log, plan, outs_ms, nothing, first_queue_offset)
            bytes_read += records.examine(progress)
        rewriter = records.rewriter
        learned = corrections.learn(plan.chosen, rewriter.bad)
        if learned.bad and options.on_bad_record == "fail":
            raise BadRecordsError(bad_records(backlog, learned))
        if learned == corrections:
            return plan, corrections, outs_ms, rewriter.sizes.astype(np.int64), bytes_read
        corrections = learned


def safe_outs_ms(plan: Plan, read_time_ms: int) -> Int64Array:
    """The TIMER_OUT_MS of each message (epoch ms): none before the hand of the wheel.

    A starting broker places messages before its hand moves. A message whose time lies before the
    hand would stand in a slot that is never read. Overdue messages go, in order of due time, to the
    3,600 slots before now that lie behind the hand.
    """
    precision_ms = plan.settings.precision_ms
    hand_ms = -(-read_time_ms // precision_ms) * precision_ms
    write_time_ms = floor_ms(plan.now_ms, precision_ms)
    lowest = max(hand_ms, write_time_ms - OVERDUE_SLOTS * precision_ms)
    highest = max(lowest, write_time_ms)
    outs_ms = plan.outs_ms.copy()
    late = np.flatnonzero(outs_ms < highest)
    order = late[np.argsort(plan.due_ms[late], kind="stable")]
    slots = (highest - lowest) // precision_ms + 1
    ranks = np.arange(len(late), dtype=np.int64)
    outs_ms[order] = lowest + ranks * slots // max(1, len(late)) * precision_ms
    return outs_ms


@attrs.define(eq=False)
class TimerRecords:
    """The timer records of a plan, to be written to a log in one go.

    They are read twice, so that those that cannot be converted are known before the first byte of
    the store changes; the second time the open log hands out the memory that they are made in.
    After ``examine``, ``rewriter`` has the size of each, and the reasons of bad ones; ``sizes`` are
    those of an earlier look.
    """

    log: SegmentReader
    plan: Plan
    outs_ms: Int64Array
    sizes: Int64Array
    first_queue_offset: int
    rewriter: RecordRewriter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        self.rewriter = RecordRewriter(
            levels=plan.levels,
            source_offsets=plan.source_offsets,
            source_sizes=plan.source_sizes,
            outs_ms=np.ascontiguousarray(self.outs_ms),
            now_ms=plan.now_ms,
            settings=plan.settings,
        )

    def examine(self, progress: Progress) -> int:
        """Make every record and throw it away; returns how many bytes were read. Raises SourceError
        when the disk refuses.
        """
        plan, count, bytes_read = self.plan, len(self.plan), 0
        for chunk in read_chunks(self.log, plan.source_offsets, plan.source_sizes):
            scratch = np.empty(self.rewriter.most_bytes(chunk), np.uint8)
            self.rewriter.rewrite(chunk, address_of(scratch), len(scratch), 0, 0)
            bytes_read += chunk.buffer_bytes
            progress("check", chunk.end, count)
        return bytes_read

    def fill(self, rows: slice, positions: Int64Array, target: int) -> None:
        """Make the records of some rows in memory, as the log's ``append_rows`` asks for them.

        Raises PlanError when they differ from those that ``examine`` saw.
        """
        plan, rewriter = self.plan, self.rewriter
        origin = int(positions[rows.start])
        for chunk in read_chunks(self.log, plan.source_offsets[rows], plan.source_sizes[rows]):
            first, end = rows.start + chunk.first, rows.start + chunk.end
            room = target + int(positions[first]) - origin, int(self.sizes[first:end].sum())
            place = int(positions[first]), self.first_queue_offset + first
            rewriter.rewrite(chunk, *room, *place, rows.start)
        if not np.array_equal(rewriter.sizes[rows], self.sizes[rows]):
            raise PlanError(
                f"{self.log.directory.parent}: its records changed while they were read"
            )

    def units(self, positions: Int64Array) -> NDArray[np.void]:
        """The timer queue entries of records at these offsets."""
        units = np.empty(len(self.plan), QUEUE_UNIT.dtype)
        units["commit_log_offset"] = positions
        units["size_bytes"] = self.sizes
        units["tags_code"] = self.rewriter.tags_hashes
        return units
