# SPDX-License-Identifier: Apache-2.0
"""Writing one part on an executor: records, queue units and timer log units, and a receipt that
says what was done.

A part's bytes depend on the plan and the source alone. A task is a run of parts; whoever retries
it, or continues a stopped conversion, skips the parts that have a receipt of the same plan and
still are what it says.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.segments import SegmentReader, segment_name
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of
from migrate.plan.stored_plan import StoredPlan, load_plan
from migrate.settings import HIERARCHY
from migrate.source.reader import NOT_THERE, Chunk, read_chunks
from migrate.source.topic_table import TopicTable
from migrate.write.index_part import index_rows, key_hashes, write_tables
from migrate.write.rewrite import BadRecordError, Placement, RewriteLimits, rewrite_record
from migrate.write.rewrite_kernel import USUAL, rewrite_records
from migrate.write.row_output import PartStream, stream_to_row
from migrate.write.staging import write_note
from migrate.write.unit_kernel import fill_units
from migrate.write.written_part import commit_log_blank, is_written, timer_pieces
from timer_wheel.format.timer_log import TIMER_UNIT, blank_bytes, unit_position, units_per_file


@attrs.frozen
class Receipt:
    """What the writer of a part found: counts for the books, and what does not fit the plan.

    ``bad`` and ``odd_sizes`` map indexes of the plan to a reason and to a size. ``topics`` is one
    row a real topic: name (UTF-8 read as Latin-1), messages, highest queue id. The CRCs are of what
    was written to log, queue and timer log, and to the tables of a hierarchical wheel's index.
    """

    identity: str
    part: int
    count: int
    bytes_read: int
    log_crc: int
    units_crc: int
    largest_record_bytes: int
    topics: list[tuple[str, int, int]]
    bad: dict[int, str]
    odd_sizes: dict[int, int]
    index_crc: int = 0

    @property
    def counted(self) -> int:
        """How many messages are accounted for: written to a topic, bad, or of another size."""
        in_topics = sum(count for _topic, count, _queue_id in self.topics)
        return in_topics + len(self.bad) + len(self.odd_sizes)

    def to_json(self) -> bytes:
        """The receipt's file."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> "Receipt | None":
        """The receipt in a file, or None where there is none that can be read."""
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
    number of each as it is done.

    ``durably``: a part is on the disk before its receipt is there. On a disk that machines share,
    only the one that wrote can see to that. Raises PlanError where another plan counts by now.
    """
    plan = load_plan(target, identity)
    for number in parts:
        path = plan.staging.receipt(number)
        known = Receipt.read(path)
        if known is None or not _is_done(plan, number, known):
            receipt = PartWriter(plan, number, durably=durably).write()
            write_note(path, receipt.to_json(), durably=durably)
        yield number


def _is_done(plan: StoredPlan, number: int, known: Receipt) -> bool:
    crcs = {name: getattr(known, name) for name in ("log_crc", "units_crc", "index_crc")}
    return known.identity == plan.identity and is_written(plan, number, **crcs)


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
        self.offsets = plan.slice_of("source_offsets", self.first, self.end)
        self.sizes = plan.slice_of("source_sizes", self.first, self.end)
        self.levels = plan.slice_of("levels", self.first, self.end)
        self.outs_ms = plan.slice_of("outs_ms", self.first, self.end)
        self.target_offsets: NDArray[np.int64] = np.array(
            plan.target_offsets[self.first : self.end]
        )
        self.target_sizes = np.diff(self.target_offsets, append=self.log_end)
        count = self.end - self.first
        self.status = np.zeros(count, np.uint8)
        self.tags_hashes = np.zeros(count, np.int32)
        self.topic_hashes = np.zeros(count, np.int32)
        self.key_hashes = np.zeros(count, np.int64)
        self.topics = TopicTable()
        self.bad: dict[int, str] = {}
        self.odd_sizes: dict[int, int] = {}
        self.limits = RewriteLimits(
            record_max_bytes=plan.settings.record_max_bytes,
            commit_log_file_bytes=plan.settings.commit_log_file_bytes,
        )
        self.bytes_read = 0

    def write(self) -> Receipt:
        """Write the part's records, then its units. Raises SourceError or TargetError."""
        log_crc = self._write_records()
        units_crc = self._write_units()
        index_crc = self._write_index() if self.plan.engine == HIERARCHY else 0
        return Receipt(
            identity=self.plan.identity,
            part=self.number,
            count=self.end - self.first,
            bytes_read=self.bytes_read,
            log_crc=log_crc,
            units_crc=units_crc,
            largest_record_bytes=int(self.target_sizes.max()),
            topics=[
                (entry.topic.decode("latin-1"), entry.count, entry.max_queue_id)
                for entry in self.topics.counts()
            ],
            bad=self.bad,
            odd_sizes=self.odd_sizes,
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
            for chunk in read_chunks(log, self.offsets, self.sizes):
                block = stream.room(self._end_of(chunk) - int(self.target_offsets[chunk.first]))
                self._rewrite(chunk, block)
                crc = int(crc32_from(crc, address_of(block), len(block)))
                stream.advance(len(block))
                self.bytes_read += chunk.buffer_bytes
            if self.blank:
                blank = np.frombuffer(commit_log_blank(self.blank), np.uint8)
                stream.room(len(blank))[:] = blank
                stream.advance(len(blank))
        return crc

    def _end_of(self, chunk: Chunk) -> int:
        """Where the chunk's last record ends in the target log."""
        is_last = chunk.end == len(self.offsets)
        return self.log_end if is_last else int(self.target_offsets[chunk.end])

    def _rewrite(self, chunk: Chunk, block: NDArray[np.uint8]) -> None:
        """Fill the block with a chunk's target bytes; records that do not fit the plan leave zeros
        and are noted.
        """
        span = slice(chunk.first, chunk.end)
        origin = int(self.target_offsets[chunk.first])
        limit = min(
            self.limits.record_max_bytes, self.limits.commit_log_file_bytes - END_OF_FILE_MIN_BYTES
        )
        done = 0
        while True:
            done = rewrite_records(
                address_of(chunk.buffer), chunk.buffer_bytes, chunk.places, self.sizes[span],
                self.levels[span], self.offsets[span], self.outs_ms[span],
                address_of(block), origin, self.target_offsets[span], self.target_sizes[span],
                self.first + chunk.first, self.plan.now_ms, limit,
                self.topics.address, self.status[span], self.tags_hashes[span],
                self.topic_hashes[span], done,
            )  # fmt: skip
            if done == chunk.end - chunk.first:
                break
            self.topics.grow()
        for at in np.flatnonzero(self.status[span] != USUAL).tolist():
            self._rewrite_unusual(chunk, at, block, origin)
        if self.plan.engine == HIERARCHY:
            places = self.target_offsets[span], self.target_sizes[span]
            precision_ms = self.plan.settings.precision_ms
            self.key_hashes[span] = key_hashes(block, origin, *places, precision_ms)

    def _rewrite_unusual(
        self, chunk: Chunk, at: int, block: NDArray[np.uint8], origin: int
    ) -> None:
        """Let the scalar code decide about a record that the kernel left out."""
        index = chunk.first + at
        begin = int(self.target_offsets[index]) - origin
        planned = int(self.target_sizes[index])
        block[begin : begin + planned] = 0
        placement = Placement(
            level=int(self.levels[index]),
            source_offset=int(self.offsets[index]),
            source_size_bytes=int(self.sizes[index]),
            out_ms=int(self.outs_ms[index]),
            target_offset=int(self.target_offsets[index]),
            target_queue_offset=self.first + index,
            now_ms=self.plan.now_ms,
        )
        place = int(chunk.places[at])
        try:
            if place == NOT_THERE:
                raise BadRecordError("the log ends before the record does, or has no such place")
            record = chunk.buffer[place : place + placement.source_size_bytes].tobytes()
            rewritten = rewrite_record(record, placement, self.limits)
        except BadRecordError as error:
            self.bad[self.first + index] = str(error)
            return
        if len(rewritten.record) != planned:
            self.odd_sizes[self.first + index] = len(rewritten.record)
            return
        block[begin : begin + planned] = np.frombuffer(rewritten.record, np.uint8)
        self.tags_hashes[index] = rewritten.tags_hash
        self.topic_hashes[index] = rewritten.topic_hash
        self.topics.add(rewritten.real_topic, rewritten.real_queue_id)

    def _write_units(self) -> int:
        settings, store, count = self.plan.settings, self.plan.staging.store, self.end - self.first
        file_bytes = settings.timer_log_file_bytes
        queue = np.empty(count * QUEUE_UNIT.size, np.uint8)
        units = np.empty(count * TIMER_UNIT.size, np.uint8)
        distances, flags, slot_times_ms = (
            self.plan.slice_of(name, self.first, self.end)
            for name in ("distances", "flags", "slot_times_ms")
        )
        fill_units(
            address_of(queue), address_of(units), self.first, units_per_file(file_bytes),
            file_bytes, self.plan.write_time_ms, self.target_offsets, self.target_sizes,
            self.tags_hashes, self.topic_hashes, distances, flags, slot_times_ms,
        )  # fmt: skip
        row = partial(stream_to_row, durably=self.durably)
        row(store.timer_queue(), settings.queue_file_bytes, self.first * QUEUE_UNIT.size, queue)
        crc = crc32_from(0, address_of(queue), len(queue))
        if self.plan.engine == HIERARCHY:
            return int(crc)
        for begin, stop, is_full in timer_pieces(self.plan, self.first, self.end):
            begin_byte, end_byte = (
                (index - self.first) * TIMER_UNIT.size for index in (begin, stop)
            )
            piece = units[begin_byte:end_byte]
            if is_full:
                piece = np.append(piece, np.frombuffer(blank_bytes(file_bytes), np.uint8))
            row(store.timer_log, file_bytes, unit_position(begin, file_bytes), piece)
        return int(crc32_from(crc, address_of(units), len(units)))

    def _write_index(self) -> int:
        rows = index_rows(
            self.first,
            self.outs_ms,
            self.target_offsets,
            self.target_sizes,
            self.topic_hashes,
            now_ms=self.plan.now_ms,
            precision_ms=self.plan.settings.precision_ms,
        )
        hashes = self.key_hashes
        return write_tables(self.plan.staging, self.number, rows, hashes, durably=self.durably)
