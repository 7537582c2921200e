# SPDX-License-Identifier: Apache-2.0
"""Writes one part on an executor: records, queue entries, timer log units, and a receipt.

A part's bytes depend on the plan and the source alone. A task is a run of parts. When it is
repeated or continued it skips each part whose bytes still have the checksums of a receipt of this
plan.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError, SourceError
from message_store.files.segments import SegmentReader, segment_name
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of
from migrate.plan.stored_plan import StoredPlan, load_plan
from migrate.settings import HIERARCHY
from migrate.source.record_reader import Chunk, read_chunks
from migrate.write.hierarchy_index import index_rows, key_hashes, tables_crc, write_tables
from migrate.write.rewriter import RecordRewriter
from migrate.write.row_output import PartStream
from migrate.write.staging import Staging, write_note
from migrate.write.units import Units, encode_blank, timer_pieces, write_blank, write_units
from timer_wheel.format.timer_log import (
    TIMER_UNIT,
    blank_bytes,
    unit_position,
)

_READ_BYTES = 4 << 20


@attrs.frozen(kw_only=True)
class Receipt:
    """The result of a part: counts for the accounting, and what does not fit the plan.

    ``bad`` and ``odd_sizes`` map indexes of the plan to a reason and to a size. ``topics`` has a
    row for each real topic: name (UTF-8 read as Latin-1), messages, highest queue id. ``log_crc``
    is of the part's records, ``units_crc`` of its queue entries and timer log units, ``index_crc``
    of its tables for a hierarchical wheel's index.
    """

    identity: str
    bytes_read: int
    largest_record_bytes: int
    log_crc: int = 0
    units_crc: int = 0
    index_crc: int = 0
    topics: list[tuple[str, int, int]] = attrs.field(factory=list)
    bad: dict[int, str] = attrs.field(factory=dict)
    odd_sizes: dict[int, int] = attrs.field(factory=dict)

    @property
    def counted(self) -> int:
        """How many messages are accounted for: written to a topic, or bad."""
        return sum(count for _topic, count, _queue_id in self.topics) + len(self.bad)

    def to_json(self) -> bytes:
        """The receipt's file."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> "Receipt | None":
        """The receipt in a file, or None where none can be read."""
        content = read_small_file(path)
        try:
            facts = json.loads(content or b"")
            for name in ("bad", "odd_sizes"):
                facts[name] = {int(index): value for index, value in facts[name].items()}
            facts["topics"] = [tuple(row) for row in facts["topics"]]
            return cls(**facts)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def write_parts(
    target: Path, parts: range, identity: str | None = None, *, durably: bool = False
) -> Iterator[int]:
    """Write these parts of the plan with this identity unless they have a receipt; yields the
    number of each when it is done.

    ``durably``: sync a part before its receipt appears. On a disk that machines share only the
    machine that wrote can. Raises PlanError where another plan counts by now.
    """
    plan = load_plan(target, identity)
    for number in parts:
        path = plan.staging.receipt(number)
        receipt = Receipt.read(path)
        if receipt is None or not _is_written(plan, number, receipt):
            receipt = PartWriter(plan, number, durably=durably).write()
            write_note(path, receipt.to_json(), durably=durably)
        yield number


class PartWriter:
    """The work on one part."""

    def __init__(self, plan: StoredPlan, number: int, *, durably: bool = False) -> None:
        part = plan.parts[number]
        self.durably = durably
        self.plan = plan
        self.number = number
        self.first, self.end = int(part["first"]), int(part["end"])
        self.log_end, self.blank = int(part["log_end"]), int(part["blank_bytes"])
        self.source = int(part["source"])
        self.target_offsets: NDArray[np.int64] = np.array(
            plan.target_offsets[self.first : self.end]
        )
        self.target_sizes = np.diff(self.target_offsets, append=self.log_end)
        self.key_hashes = np.zeros(self.end - self.first, np.int64)
        self.bytes_read = 0
        self.records = RecordRewriter(
            levels=self._slice("levels"),
            source_offsets=self._slice("source_offsets"),
            source_sizes=self._slice("source_sizes"),
            outs_ms=self._slice("outs_ms"),
            now_ms=plan.now_ms,
            settings=plan.settings,
        )

    def _slice(self, name: str) -> NDArray[Any]:
        return self.plan.slice_of(name, self.first, self.end)

    def write(self) -> Receipt:
        """Write the part's records, then its units. Raises SourceError or TargetError."""
        log_crc = self._write_records()
        units_crc = self._write_units()
        index_crc = self._write_index() if self.plan.engine == HIERARCHY else 0
        records = self.records
        return Receipt(
            identity=self.plan.identity,
            bytes_read=self.bytes_read,
            log_crc=log_crc,
            units_crc=units_crc,
            largest_record_bytes=int(self.target_sizes.max()),
            topics=[
                (entry.topic.decode("latin-1"), entry.count, entry.max_queue_id)
                for entry in records.topics.counts()
            ],
            bad={self.first + row: reason for row, reason in records.bad.items()},
            odd_sizes={
                self.first + row: size for row, size in records.odd_sizes(self.target_sizes).items()
            },
            index_crc=index_crc,
        )

    def _write_records(self) -> int:
        settings, store = self.plan.settings, self.plan.staging.store
        source = StoreRoot(self.plan.sources[self.source])
        begin = int(self.target_offsets[0])
        file_start = begin // settings.commit_log_file_bytes * settings.commit_log_file_bytes
        crc = 0
        path = store.commit_log / segment_name(file_start)
        with (
            SegmentReader(source.commit_log) as log,
            PartStream(path, begin - file_start, durably=self.durably) as stream,
        ):
            columns = self.records.source_offsets, self.records.source_sizes
            for chunk in read_chunks(log, *columns):
                origin = int(self.target_offsets[chunk.first])
                planned_bytes = self._end_of(chunk) - origin
                block = stream.room(max(planned_bytes, self.records.most_bytes(chunk, 0)))
                room = address_of(block), len(block)
                self.records.rewrite(chunk, 0, *room, origin, self.first + chunk.first)
                block = block[:planned_bytes]
                if self.plan.engine == HIERARCHY:
                    self._hash_keys(slice(chunk.first, chunk.end), block, origin)
                crc = int(crc32_from(crc, address_of(block), len(block)))
                stream.advance(len(block))
                self.bytes_read += chunk.buffer_bytes
            write_blank(stream, self.blank)
        return crc

    def _end_of(self, chunk: Chunk) -> int:
        """Where the chunk's last record ends in the target log."""
        is_last = chunk.end == len(self.target_offsets)
        return self.log_end if is_last else int(self.target_offsets[chunk.end])

    def _hash_keys(self, span: slice, block: NDArray[np.uint8], origin: int) -> None:
        offsets, sizes = self.target_offsets[span], self.target_sizes[span]
        if not np.array_equal(self.records.sizes[span], sizes):
            return  # the records lie elsewhere, and a new plan is made
        precision_ms = self.plan.settings.precision_ms
        self.key_hashes[span] = key_hashes(block, origin, offsets, sizes, precision_ms)

    def _write_units(self) -> int:
        return write_units(
            self.plan.staging.store,
            self.plan.settings,
            Units(
                first=self.first,
                total=self.plan.count,
                write_time_ms=self.plan.write_time_ms,
                offsets=self.target_offsets,
                sizes=self.target_sizes,
                tags_hashes=self.records.tags_hashes,
                topic_hashes=self.records.topic_hashes,
                distances=self._slice("distances"),
                flags=self._slice("flags"),
                slot_times_ms=self._slice("slot_times_ms"),
            ),
            has_timer_log=self.plan.engine != HIERARCHY,
            durably=self.durably,
        )

    def _write_index(self) -> int:
        rows = index_rows(
            self.first,
            self.records.outs_ms,
            self.target_offsets,
            self.target_sizes,
            self.records.topic_hashes,
            now_ms=self.plan.now_ms,
            precision_ms=self.plan.settings.precision_ms,
        )
        hashes = self.key_hashes
        return write_tables(self.plan.staging, self.number, rows, hashes, durably=self.durably)


def _is_written(plan: StoredPlan, number: int, receipt: Receipt) -> bool:
    """Whether a part's bytes have the checksums of its receipt.

    After a power loss a receipt may survive while pages of its part did not.
    """
    if receipt.identity != plan.identity:
        return False
    part, settings, staging = plan.parts[number], plan.settings, plan.staging
    first, end = int(part["first"]), int(part["end"])
    log_begin, log_end = int(part["log_offset"]), int(part["log_end"])
    store = staging.store
    try:
        with _row(staging, store.commit_log, settings.commit_log_file_bytes) as log:
            is_whole = _crc(log, log_begin, log_end, 0) == receipt.log_crc
            if blank := int(part["blank_bytes"]):
                is_whole &= _holds(log, log_end, encode_blank(blank))
        with _row(staging, store.timer_queue(), settings.queue_file_bytes) as queue:
            crc = _crc(queue, first * QUEUE_UNIT.size, end * QUEUE_UNIT.size, 0)
        if plan.engine == HIERARCHY:
            is_whole &= tables_crc(staging, number) == receipt.index_crc
            return is_whole and crc == receipt.units_crc
        file_bytes = settings.timer_log_file_bytes
        with _row(staging, store.timer_log, file_bytes) as timer_log:
            for begin, stop, is_full in timer_pieces(file_bytes, first, end, plan.count):
                position = unit_position(begin, file_bytes)
                piece_end = position + (stop - begin) * TIMER_UNIT.size
                crc = _crc(timer_log, position, piece_end, crc)
                is_whole &= not is_full or _holds(timer_log, piece_end, blank_bytes(file_bytes))
    except (FormatError, SourceError):
        return False
    return is_whole and crc == receipt.units_crc


def _row(staging: Staging, staged: Path, file_bytes: int) -> SegmentReader:
    published = staging.target.path / staged.relative_to(staging.store.path)
    return SegmentReader(staged if staged.is_dir() else published, file_bytes)


def _crc(row: SegmentReader, begin: int, end: int, crc: int) -> int:
    for offset in range(begin, end, _READ_BYTES):
        crc = zlib.crc32(row.read_at(offset, min(_READ_BYTES, end - offset)), crc)
    return crc


def _holds(row: SegmentReader, offset: int, content: bytes) -> bool:
    return row.read_at(offset, len(content)) == content
