# SPDX-License-Identifier: Apache-2.0
"""Whether a finished target still holds its converted messages, before a source is retired.

Looks for all files, and reads every entry of the timer queue: 20 bytes a message. Of log and timer
log it reads a few bytes a file. A report outlives the files that it describes. This is no
verification: most records are not read.
"""

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError, SourceError
from message_store.files.log_row import open_log
from message_store.files.segments import Segment, SegmentReader
from message_store.files.small_files import is_directory, is_present
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import HEAD_V4_V4, MAGIC_V1, MAGIC_V2
from migrate.report.marker import ConversionSettings
from migrate.write.publishing import is_stub, signs_of_use
from timer_wheel.format.checkpoint import TIMER_CHECKPOINT_NAME
from timer_wheel.format.timer_log import TIMER_UNIT, unit_position
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES
from timer_wheel.reading.ownership import index_path, read_active

_PIECE_BYTES = QUEUE_UNIT.size << 20
"""Of the queue so much is in memory at a time."""


def require_whole(target: StoreRoot, settings: ConversionSettings, converted: int) -> None:
    """Raise SourceError unless the files of a target hold its ``converted`` messages.

    In a target that was opened since, the oldest files may be gone, and more may follow. The caller
    holds its lock.
    """
    try:
        _require_timers(target)
        if converted:
            is_opened = bool(signs_of_use(target))
            _Files(target, settings, converted, is_opened=is_opened).check()
    except (FormatError, SourceError) as error:
        raise SourceError(
            f"the target {target.path} does not hold what its report says: {error}; nothing was"
            " changed"
        ) from error


def _require_timers(target: StoreRoot) -> None:
    """The wheel is one, or the index of a hierarchical wheel is there."""
    if read_active(target) is not None:
        if not is_present(index_path(target) / "CURRENT"):
            raise SourceError(f"{index_path(target)}: no index is there")
        return
    wheel = target.timer_wheel
    size = wheel.stat().st_size if wheel.is_file() else None
    if is_stub(wheel) or size != WHEEL_FILE_BYTES:
        raise SourceError(f"{wheel}: no wheel is there")
    checkpoint = target.config_file(TIMER_CHECKPOINT_NAME)
    if not is_present(checkpoint):
        raise SourceError(f"{checkpoint}: is not there: a broker would place all messages again")


class _Files:
    """The files of one target, and how many messages a conversion wrote to them."""

    def __init__(
        self, target: StoreRoot, settings: ConversionSettings, converted: int, *, is_opened: bool
    ) -> None:
        self._target = target
        self._settings = settings
        self._converted = converted
        self._is_opened = is_opened

    def check(self) -> None:
        """Queue, log and timer log, up to the last message. Raises SourceError, FormatError."""
        settings, target = self._settings, self._target
        end = self._converted * QUEUE_UNIT.size
        with (
            SegmentReader(target.timer_queue(), settings.queue_file_bytes) as queue,
            open_log(target, settings.commit_log_file_bytes) as log,
        ):
            last = self._last_of_queue(queue, log, end)
            if last is None:
                return  # a broker has been at work for so long that all of it was deleted
            if not self._is_opened and self._is_followed(queue, end):
                raise SourceError(
                    f"{queue.segments[-1].path}: holds more messages than the"
                    f" {self._converted:,} converted"
                )
            log_end = last["commit_log_offset"] + last["size_bytes"]
            for segment in self._whole_row(log, log_end):
                self._record(log, segment.start_offset)
            head = self._record(log, last["commit_log_offset"])
            wanted = last["size_bytes"], self._converted - 1
            if (head["size_bytes"], head["queue_offset"]) != wanted:
                raise SourceError(f"{log.directory}: does not hold the last message")
        # A wheel that took over from a hierarchical one has made its timer log anew.
        was_hierarchical = self._is_opened and is_directory(index_path(target).parent)
        if read_active(target) is None and not was_hierarchical:
            self._check_timer_log(last)

    def _last_of_queue(
        self, queue: SegmentReader, log: SegmentReader, end: int
    ) -> dict[str, int] | None:
        """The last entry, once all have been read; None where a broker has deleted every file."""
        entries = np.empty(0, QUEUE_UNIT.dtype)
        behind = 0
        for segment in self._whole_row(queue, end):
            stop = min(segment.start_offset + segment.length_bytes, end)
            for first in range(segment.start_offset, stop, _PIECE_BYTES):
                data = queue.read_at(first, min(_PIECE_BYTES, stop - first))
                entries = np.frombuffer(data, QUEUE_UNIT.dtype)
                number = first // QUEUE_UNIT.size
                behind = self._require_entries(segment, number, entries, behind, log)
        if not len(entries):
            return None
        return {name: int(entries[name][-1]) for name in ("commit_log_offset", "size_bytes")}

    def _require_entries(
        self,
        segment: Segment,
        first: int,
        entries: NDArray[np.void],
        behind: int,
        log: SegmentReader,
    ) -> int:
        """Each entry leads to bytes of one log file, behind those of the entry before it, the first
        behind a log offset. Returns the log offset behind the last.
        """
        offsets = entries["commit_log_offset"].astype(np.int64)
        sizes = entries["size_bytes"].astype(np.int64)
        ends = offsets + sizes
        lowest = np.concatenate([[behind], ends[:-1]])
        room = log.file_bytes - offsets % log.file_bytes
        is_outside = (offsets < 0) | (offsets > log.end_offset - sizes) | (sizes > room)
        faults = {
            "there is no entry {}": sizes <= 0,
            "entry {} leads out of the commit log's files": is_outside,
            "entry {} does not lead behind the one before it": offsets < lowest,
        }
        for sentence, is_wrong in faults.items():
            if is_wrong.any():
                number = first + int(is_wrong.argmax())
                raise SourceError(f"{segment.path}: {sentence.format(f'{number:,}')}")
        return int(ends[-1])

    def _check_timer_log(self, last: dict[str, int]) -> None:
        file_bytes = self._settings.timer_log_file_bytes
        with SegmentReader(self._target.timer_log, file_bytes) as timer_log:
            position = unit_position(self._converted - 1, file_bytes)
            for segment in self._whole_row(timer_log, position + TIMER_UNIT.size):
                self._unit(timer_log, segment.start_offset)
            if position < timer_log.min_offset:
                return
            unit = self._unit(timer_log, position)
            if unit["commit_log_offset"] != last["commit_log_offset"]:
                raise SourceError(f"{timer_log.directory}: does not lead to the last message")

    def _unit(self, timer_log: SegmentReader, position: int) -> dict[str, int]:
        unit = TIMER_UNIT.decode_at(timer_log.read_at(position, TIMER_UNIT.size), 0)
        if unit["size_bytes"] != TIMER_UNIT.size:
            raise SourceError(f"{timer_log.directory}: has no unit at {position:,}")
        return unit

    def _whole_row(self, row: SegmentReader, end: int) -> list[Segment]:
        """The files up to ``end``. Raises SourceError where one is missing or of another length."""
        needed = [segment for segment in row.segments if segment.start_offset < end]
        first = needed[0].start_offset if needed and self._is_opened else 0
        wanted = list(range(first - first % row.file_bytes, end, row.file_bytes)) if needed else []
        starts = [segment.start_offset for segment in needed]
        all_gone = self._is_opened and not needed and row.min_offset >= end
        if not all_gone and (not needed or starts != wanted):
            raise SourceError(f"{row.directory}: files are missing")
        if any(segment.length_bytes != row.file_bytes for segment in needed):
            raise SourceError(f"{row.directory}: a file is not {row.file_bytes:,} bytes long")
        return needed

    def _is_followed(self, queue: SegmentReader, end: int) -> bool:
        return end < queue.end_offset and any(queue.read_at(end, QUEUE_UNIT.size))

    def _record(self, log: SegmentReader, offset: int) -> dict[str, int]:
        head = HEAD_V4_V4.decode_at(log.read_at(offset, HEAD_V4_V4.size), 0)
        is_record = head["magic"] in (MAGIC_V1, MAGIC_V2)
        if not is_record or head["commit_log_offset"] != offset:
            raise SourceError(f"{log.directory}: no record begins at {offset:,}")
        return head
