# SPDX-License-Identifier: Apache-2.0
"""Makes one store with a ready wheel of what the tasks of a write have laid aside.

Order: every record gets its place, then log, queue, timer log, slots and small files are written in
the staging place, waited for, and published; the marker that says complete comes last. Whatever
stops it leaves nothing that a broker starts on. Limitation: one process copies all records, once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import TargetError
from message_store.columns.byte_column import Int64s
from message_store.files.segments import SegmentReader, segment_name
from message_store.files.small_files import replace_file
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of
from migrate.plan.log_plan import plan_log
from migrate.plan.plan import Plan, slot_chains
from migrate.report.books import open_before_ms
from migrate.table.fresh_wheel import (
    CONF_NAME,
    begin_anew,
    finish_write,
    prepare_marker,
    require_free,
    withdraw_marker,
)
from migrate.table.wheel_staging import (
    DUE,
    SIZE,
    TAGS_CODE,
    TOPIC_HASH,
    StagedRows,
    WriteRun,
    put_numbers,
)
from migrate.write.disk_room import disk_warnings, free_bytes
from migrate.write.make_room import bytes_needed, create_rows
from migrate.write.row_output import PartStream, RowWriter
from migrate.write.seal import seal
from migrate.write.staging import load_array, no_broker, sole_writer
from migrate.write.target_config import TopicDemand, broker_conf, broker_settings
from migrate.write.unit_kernel import fill_units
from migrate.write.written_part import commit_log_blank
from timer_wheel.format.timer_log import (
    TIMER_UNIT,
    blank_bytes,
    unit_position,
    units_per_file,
)
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.placing import place

PART_BYTES = 64 << 20
COPY_ROWS = 4_096


def commit_rows(run: WriteRun, staged: Sequence[StagedRows], *, overwrite: bool) -> dict[str, Any]:
    """Publish a store of exactly these rows; returns what its marker says.

    Raises TargetError when the target is no longer what it was when the write began, or cannot be
    written.
    """
    staging, parts = run.staging, sorted(staged, key=lambda rows: rows.partition)
    with sole_writer(staging.target) as unlocked, no_broker(staging.target):
        require_free(staging, overwrite=overwrite)
        nothing = np.empty((4, 0), np.int64)
        index = np.concatenate([nothing, *(load_array(part.index(run)) for part in parts)], axis=1)
        plan = _plan(run, index)
        needed, free = bytes_needed(plan), free_bytes(run.target)
        if needed > free:
            raise TargetError(f"{run.target}: {needed:,} bytes are needed, {free:,} are free")
        begin_anew(staging)
        create_rows(plan, staging)
        _write_log(run, plan, parts)
        _write_units(run, plan, index)
        demands = _demands(parts)
        facts = _facts(run, plan, demands)
        facts["warnings"] += [] if unlocked is None else [unlocked]
        prepare_marker(staging, facts)
        withdraw_marker(staging)
        replace_file(staging.target.own / CONF_NAME, broker_conf(facts["broker_conf"]))
        seal(plan, staging, [staging.store], demands)
        finish_write(staging)
    return facts


def _plan(run: WriteRun, index: Int64s) -> Plan:
    """Where everything goes: the plan of a conversion whose source are the staged records."""
    settings, count = run.settings, index.shape[1]
    due_ms, sizes = np.ascontiguousarray(index[DUE]), np.ascontiguousarray(index[SIZE])
    placing = place(
        due_ms,
        now_ms=run.now_ms,
        precision_ms=settings.precision_ms,
        window_slots=settings.roll_window_slots,
    )
    distances, slots = slot_chains(placing.slot_time_ms, settings.precision_ms)
    return Plan(
        identity=run.name,
        now_ms=run.now_ms,
        write_time_ms=floor_ms(run.now_ms, settings.precision_ms),
        settings=settings,
        chosen=np.arange(count),
        source_offsets=np.cumsum(sizes) - sizes,
        source_sizes=sizes.astype(np.int32),
        levels=np.zeros(count, np.int16),
        due_ms=due_ms,
        outs_ms=placing.out_ms,
        target_sizes=sizes,
        slot_times_ms=placing.slot_time_ms,
        flags=placing.flags,
        distances=distances,
        slots=slots,
        log=plan_log(sizes, file_bytes=settings.commit_log_file_bytes, part_bytes=PART_BYTES),
    )


def _write_log(run: WriteRun, plan: Plan, staged: Sequence[StagedRows]) -> None:
    """Copy every record to its place and write the place into it."""
    file_bytes, store = plan.settings.commit_log_file_bytes, run.staging.store
    source = _StagedRecords(run, staged)
    for part in plan.log.parts:
        begin = int(part["log_offset"])
        start = begin // file_bytes * file_bytes
        with PartStream(store.commit_log / segment_name(start), begin - start) as stream:
            for first in range(int(part["first"]), int(part["end"]), COPY_ROWS):
                rows = np.arange(first, min(first + COPY_ROWS, int(part["end"])))
                block = stream.room(int(plan.target_sizes[rows].sum()))
                source.read_into(block)
                offsets = plan.log.offsets[rows]
                starts = offsets - offsets[0]
                put_numbers(block, starts, "queue_offset", rows.astype(">i8"))
                put_numbers(block, starts, "commit_log_offset", offsets.astype(">i8"))
                stream.advance(len(block))
            if blank_size := int(part["blank_bytes"]):
                blank = np.frombuffer(commit_log_blank(blank_size), np.uint8)
                stream.room(len(blank))[:] = blank
                stream.advance(len(blank))
    source.require_end()


class _StagedRecords:
    """The staged records of all tasks, front to back; each file is held to its task's CRC."""

    def __init__(self, run: WriteRun, staged: Sequence[StagedRows]) -> None:
        self._run = run
        self._waiting = [part for part in staged if part.size_bytes][::-1]
        self._done = self._crc = 0

    def read_into(self, block: NDArray[np.uint8]) -> None:
        """Fill ``block`` with the next bytes."""
        filled = 0
        while filled < len(block):
            part = self._waiting[-1]
            count = min(len(block) - filled, part.size_bytes - self._done)
            piece = block[filled : filled + count]
            with SegmentReader(part.records(self._run)) as reader:
                there = reader.read_into(self._done, piece.data)
            self._crc = int(crc32_from(self._crc, address_of(piece), count))
            self._done, filled = self._done + count, filled + count
            if there < count or (self._done == part.size_bytes and self._crc != part.crc):
                raise TargetError(f"{part.records(self._run)}: is not what its task wrote")
            if self._done == part.size_bytes:
                self._waiting.pop()
                self._done = self._crc = 0

    def require_end(self) -> None:
        """Raise TargetError when a task wrote more than its index says."""
        if self._waiting:
            raise TargetError(f"{self._waiting[-1].records(self._run)}: is longer than its index")


def _write_units(run: WriteRun, plan: Plan, index: Int64s) -> None:
    settings, store = plan.settings, run.staging.store
    file_bytes = settings.timer_log_file_bytes
    in_file = units_per_file(file_bytes)
    queue = np.empty(len(plan) * QUEUE_UNIT.size, np.uint8)
    units = np.empty(len(plan) * TIMER_UNIT.size, np.uint8)
    fill_units(
        address_of(queue), address_of(units), 0, in_file, file_bytes, plan.write_time_ms,
        plan.log.offsets, plan.target_sizes, index[TAGS_CODE].astype(np.int32),
        index[TOPIC_HASH].astype(np.int32), plan.distances, plan.flags, plan.slot_times_ms,
    )  # fmt: skip
    with RowWriter(store.timer_queue(), settings.queue_file_bytes) as writer:
        writer.write_at(0, queue.data)
    with RowWriter(store.timer_log, file_bytes) as writer:
        for begin in range(0, len(plan), in_file):
            piece = units[begin * TIMER_UNIT.size : (begin + in_file) * TIMER_UNIT.size]
            position = unit_position(begin, file_bytes)
            writer.write_at(position, piece.data)
            if begin + in_file < len(plan):
                writer.write_at(position + len(piece), blank_bytes(file_bytes))


def _demands(staged: Sequence[StagedRows]) -> dict[str, TopicDemand]:
    """Messages and highest queue of every topic, in order of name."""
    found: dict[str, TopicDemand] = {}
    for topic, count, queue_id in (row for part in staged for row in part.topics):
        before = found.get(topic, TopicDemand(0, 0))
        found[topic] = TopicDemand(before.count + count, max(before.max_queue_id, queue_id))
    return {name: found[name] for name in sorted(found)}


def _facts(run: WriteRun, plan: Plan, demands: Mapping[str, TopicDemand]) -> dict[str, Any]:
    """What the marker says; its keys are a promise."""
    largest = int(plan.target_sizes.max(initial=0))
    return {
        "written": len(plan),
        "now_ms": run.now_ms,
        "settings": attrs.asdict(run.settings),
        "topics": {name: demand.count for name, demand in demands.items()},
        "due_min_ms": int(plan.due_ms.min()) if len(plan) else None,
        "due_max_ms": int(plan.due_ms.max()) if len(plan) else None,
        "open_before_ms": open_before_ms(plan),
        "bytes_written": plan.log.end_offset + len(plan) * (QUEUE_UNIT.size + TIMER_UNIT.size),
        "broker_conf": broker_settings(plan.settings, largest),
        "warnings": list(disk_warnings(run.target)),
    }
