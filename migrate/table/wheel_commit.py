# SPDX-License-Identifier: Apache-2.0
"""Makes one store with a ready wheel of the records that the tasks of a write have staged.

Each record gets its offset first. Log, queue, timer log, slots and small files are then written in
the staging directory, synced, and published. The marker that says complete comes last. A stop at
any point leaves nothing on which a broker starts. One process copies all records, once.

A write makes a store and never adds to one. It replaces only a store that a write made and that no
broker has opened since.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import TargetError
from message_store.columns.byte_column import Int64s
from message_store.files.segments import SegmentReader, segment_name
from message_store.files.small_files import read_small_file, remove_file, replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.batch import place_records
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of
from migrate.plan.target_rows import TargetRows
from migrate.report.accounting import open_before_ms
from migrate.report.finished_target import WRITTEN_NAME
from migrate.report.marker import CONVERSION_NAME
from migrate.spark.tasks import write_index
from migrate.table.wheel_staging import (
    DUE,
    SIZE,
    TAGS_CODE,
    TOPIC_HASH,
    StagedRows,
    WriteRun,
    put_numbers,
)
from migrate.write.large_files import FileStream, create_file
from migrate.write.log_file import write_blank
from migrate.write.publishing import (
    PublishingNote,
    begin_publishing,
    forbid_start,
    is_published,
    is_publishing,
    publish,
    refuse_links,
    remove_unfinished,
    require_unused,
    signs_of_use,
)
from migrate.write.room import bytes_needed, create_directories, disk_warnings, require_room
from migrate.write.seal import seal
from migrate.write.staging import (
    Staging,
    clear,
    clear_staging,
    load_array,
    make_directory,
    no_broker,
    sole_writer,
    target_errors,
    write_note,
)
from migrate.write.target_config import (
    CONF_NAME,
    TopicDemand,
    broker_conf,
    broker_settings,
    sum_demands,
)
from timer_wheel.format.timer_log import TIMER_UNIT

COPY_ROWS = 4_096


def begin_write(run: WriteRun, *, overwrite: bool) -> None:
    """Refuse a target that must not be written to; then keep brokers from starting on it.

    Raises TargetError.
    """
    make_directory(run.target)
    with sole_writer(run.staging.target), no_broker(run.staging.target):
        require_free(run.staging, overwrite=overwrite)
        with target_errors(run.directory):
            run.directory.mkdir(parents=True, exist_ok=True)
        if not _marker_exists(run.staging.target):
            forbid_start(run.staging)


def require_free(staging: Staging, *, overwrite: bool) -> None:
    """Raise TargetError unless a store may be made here, or the present one replaced."""
    target = staging.target
    refuse_links(staging)
    if (target.own / CONVERSION_NAME).exists() or staging.plan_file.exists():
        raise TargetError(f"{target.path}: belongs to a conversion; choose another directory")
    if not _marker_exists(target):
        require_unused(staging)
        _finish_stopped(staging)
    if not _marker_exists(target):
        return
    if not overwrite:
        raise TargetError(
            f"{target.path}: already holds a written wheel; mode overwrite replaces it as long as"
            " no broker has opened it"
        )
    if used := signs_of_use(target):
        raise TargetError(
            f"{target.path}: was opened since it was written ({', '.join(used)} is there);"
            " its pending messages would be lost, so it is not overwritten"
        )


def prepare_marker(staging: Staging, facts: dict[str, Any]) -> None:
    """Stage the marker, for a run that continues a publishing that was stopped."""
    write_note(staging.path / WRITTEN_NAME, json.dumps(facts, indent=1).encode())


def withdraw_marker(staging: Staging) -> None:
    """Remove the marker of the store that is replaced, which then counts as unfinished. The note
    that its files may be replaced comes first. Raises TargetError.
    """
    note = PublishingNote.read(staging)
    is_there = _marker_exists(staging.target) or (note is not None and note.replaces)
    begin_publishing(staging, replaces=is_there)
    remove_file(staging.target.own / WRITTEN_NAME, is_durable=True)


def finish_write(staging: Staging) -> None:
    """Write the marker that says complete, and tidy up. Raises TargetError."""
    content = read_small_file(staging.path / WRITTEN_NAME)
    if content is None:
        raise TargetError(f"{staging.path / WRITTEN_NAME}: is missing; write again")
    replace_file(staging.target.own / WRITTEN_NAME, content)
    clear_staging(staging)


def give_up(run: WriteRun) -> None:
    """Remove what this write staged; and everything, if no other write was begun."""
    staging = run.staging
    clear(run.directory)
    others = staging.path / "writes"
    if others.is_dir() and any(others.iterdir()):
        return
    if _marker_exists(staging.target):
        clear_staging(staging)
    elif not is_publishing(staging):
        remove_unfinished(staging)


def _finish_stopped(staging: Staging) -> None:
    """Finish a write that was stopped after its last rename: it only lacks its marker."""
    is_moved = not staging.store.commit_log.exists() and is_published(staging)
    if is_moved and (staging.path / WRITTEN_NAME).exists():
        publish(staging)
        finish_write(staging)


def _marker_exists(target: StoreRoot) -> bool:
    return (target.own / WRITTEN_NAME).exists()


def commit_rows(run: WriteRun, staged: Sequence[StagedRows], *, overwrite: bool) -> dict[str, Any]:
    """Publish a store of exactly these rows; returns the contents of its marker.

    Raises TargetError when the target is not what it was when the write began, or cannot be
    written.
    """
    staging, parts = run.staging, sorted(staged, key=lambda rows: rows.partition)
    with sole_writer(staging.target) as unlocked, no_broker(staging.target):
        require_free(staging, overwrite=overwrite)
        nothing = np.empty((4, 0), np.int64)
        index = np.concatenate([nothing, *(load_array(part.index(run)) for part in parts)], axis=1)
        rows = _rows(run, index)
        require_room(run.target, bytes_needed(rows.log_end, len(rows)))
        remove_file(staging.path / WRITTEN_NAME, is_durable=True)  # of a commit that was stopped
        clear(staging.store.path)
        create_directories(rows, staging)
        _write_log(run, rows, parts)
        with target_errors(staging.attempts):
            staging.attempts.mkdir(parents=True, exist_ok=True)
        write_index(rows, staging, None)
        demands = sum_demands(row for part in parts for row in part.topics)
        facts = _facts(run, rows, demands)
        facts["warnings"] += [] if unlocked is None else [unlocked]
        prepare_marker(staging, facts)
        withdraw_marker(staging)
        replace_file(staging.target.own / CONF_NAME, broker_conf(facts["broker_conf"]))
        seal(rows, staging, [staging.store], demands)
        finish_write(staging)
    return facts


def _rows(run: WriteRun, index: Int64s) -> TargetRows:
    """The rows of a target that holds the staged records, one behind the other."""
    sizes = np.ascontiguousarray(index[SIZE])
    offsets = np.empty(len(sizes), np.int64)
    log_end = int(place_records(sizes, 0, run.settings.commit_log_file_bytes, offsets))
    return TargetRows.of(
        due_ms=np.ascontiguousarray(index[DUE]),
        now_ms=run.now_ms,
        settings=run.settings,
        identity=run.name,
        levels=np.zeros(len(sizes), np.int16),
        offsets=offsets,
        sizes=sizes.astype(np.int32),
        tags_hashes=index[TAGS_CODE].astype(np.int32),
        topic_hashes=index[TOPIC_HASH].astype(np.int32),
        log_end=log_end,
    )


def _write_log(run: WriteRun, rows: TargetRows, staged: Sequence[StagedRows]) -> None:
    """Copy every record to its offset, and write queue and log offset into it."""
    file_bytes, source = run.settings.commit_log_file_bytes, _StagedRecords(run, staged)
    for start in range(0, rows.log_end, file_bytes):
        begin, end = np.searchsorted(rows.offsets, [start, start + file_bytes]).tolist()
        path = run.staging.store.commit_log / segment_name(start)
        create_file(path, file_bytes)
        with FileStream(path, 0) as stream:
            for first in range(begin, end, COPY_ROWS):
                numbers = np.arange(first, min(first + COPY_ROWS, end))
                block = stream.room(int(rows.sizes[numbers].sum()))
                source.read_into(block)
                offsets = rows.offsets[numbers]
                starts = offsets - offsets[0]
                put_numbers(block, starts, "queue_offset", numbers.astype(">i8"))
                put_numbers(block, starts, "commit_log_offset", offsets.astype(">i8"))
                stream.advance(len(block))
            if end < len(rows):
                write_blank(
                    stream, start + file_bytes - int(rows.offsets[end - 1] + rows.sizes[end - 1])
                )
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


def _facts(run: WriteRun, rows: TargetRows, demands: Mapping[str, TopicDemand]) -> dict[str, Any]:
    """The contents of the marker; its keys are a promise."""
    largest = int(rows.sizes.max(initial=0))
    return {
        "written": len(rows),
        "now_ms": run.now_ms,
        "settings": attrs.asdict(run.settings),
        "topics": {name: demand.count for name, demand in demands.items()},
        "due_min_ms": int(rows.due_ms.min()) if len(rows) else None,
        "due_max_ms": int(rows.due_ms.max()) if len(rows) else None,
        "open_before_ms": open_before_ms(rows),
        "bytes_written": rows.log_end + len(rows) * (QUEUE_UNIT.size + TIMER_UNIT.size),
        "broker_conf": broker_settings(rows.settings, largest),
        "warnings": list(disk_warnings(run.target)),
    }
