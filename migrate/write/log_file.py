# SPDX-License-Identifier: Apache-2.0
"""Writes one commit log file of the target, alone and front to back: a task of the write stage.

What a task writes lies in a directory of its own attempt, and its note comes last. So an attempt
that is repeated, too late, or of an earlier plan reaches nobody else. A file's bytes depend on the
plan and the source alone. Records that cannot be converted are left out. Beside the records lie the
numbers of each message, of which queue and timer log are made.
"""

import json
import secrets
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import DelayStoreError, TargetError
from message_store.files.log_row import open_log
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import BLANK_RECORD, MAGIC_BLANK
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of
from message_store.reading.record_reader import read_chunks
from migrate.plan.stored_plan import StoredPlan, load_plan
from migrate.write.large_files import FileStream, create_file
from migrate.write.rewriter import RecordRewriter
from migrate.write.staging import (
    Attempt,
    clear,
    load_array,
    look_at_file,
    read_whole,
    save_array,
    target_errors,
    write_note,
)

SIZES, TAGS_HASHES, TOPIC_HASHES = range(3)
"""The rows of an attempt's numbers, int32, a column a message; size 0 is a bad record."""


@attrs.frozen(kw_only=True)
class SourceShare:
    """What was written of one source into one file.

    ``topics`` has a row for each real topic: name (UTF-8 read as Latin-1), messages, highest queue.
    """

    source: int = 0
    log_bytes: int = 0
    bytes_read: int
    largest_record_bytes: int
    topics: list[tuple[str, int, int]] = attrs.field(factory=list)

    @classmethod
    def of(cls, records: RecordRewriter, source: int, bytes_read: int) -> "SourceShare":
        """What a rewriter has written."""
        return cls(
            source=source,
            log_bytes=int(records.sizes.sum(dtype=np.int64)),
            bytes_read=bytes_read,
            largest_record_bytes=int(records.sizes.max(initial=0)),
            topics=[
                (entry.topic.decode("latin-1"), entry.count, entry.max_queue_id)
                for entry in records.topics.counts()
            ],
        )


@attrs.frozen(kw_only=True)
class FileNote:
    """What a task answers, and what its attempt is known by: a share a source, how many records
    are bad, and the CRCs of records and numbers.
    """

    identity: str
    number: int
    attempt: str
    log_bytes: int
    bad_count: int
    log_crc: int
    numbers_crc: int
    shares: list[SourceShare]

    @classmethod
    def read(cls, path: Path) -> "FileNote | None":
        """The note in a file, or None where none can be read."""
        content = read_small_file(path)
        try:
            facts = json.loads(content or b"")
            shares = [
                SourceShare(**{**each, "topics": [tuple(row) for row in each["topics"]]})
                for each in facts.pop("shares")
            ]
            return cls(shares=shares, **facts)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def write_file(target: Path, identity: str, durably: bool, number: int) -> FileNote:
    """Write this log file of the plan with this identity, under a name that nobody else has.

    ``durably``: all of it is on the disk before its note is. Raises PlanError where another plan
    counts by now, SourceError or TargetError.
    """
    writer = FileWriter(load_plan(target, identity), number, durably=durably)
    try:
        return writer.write()
    except DelayStoreError:
        writer.give_up()  # it may have been for want of room
        raise


class FileWriter:
    """One attempt at one file."""

    def __init__(self, plan: StoredPlan, number: int, *, durably: bool) -> None:
        self._plan, self._number, self._durably = plan, number, durably
        self._rows = plan.cut.rows_of(number)
        self._attempt = plan.staging.attempt(f"{number:06d}-{secrets.token_hex(6)}")
        self._numbers = np.zeros((3, len(self._rows)), np.int32)
        self._bad: dict[int, str] = {}
        self._filled = self._crc = self._good = 0

    def write(self) -> FileNote:
        """Write the file and its note. Raises SourceError, TargetError."""
        plan, attempt = self._plan, self._attempt
        with target_errors(attempt.path):
            attempt.path.mkdir()
        create_file(attempt.log, plan.settings.commit_log_file_bytes)
        with FileStream(attempt.log, 0, durably=self._durably) as stream:
            shares = [self._write_records(stream, *run) for run in plan.cut.runs(self._rows)]
            if not self._bad and self._number < plan.cut.file_count - 1:
                write_blank(stream, plan.settings.commit_log_file_bytes - self._filled)
        save = partial(save_array, durably=self._durably)
        save(attempt.numbers, self._numbers)
        write_bad(attempt, self._bad, durably=self._durably)
        note = FileNote(
            identity=plan.identity,
            number=self._number,
            attempt=attempt.name,
            log_bytes=self._filled,
            bad_count=len(self._bad),
            log_crc=self._crc,
            numbers_crc=numbers_crc(attempt),
            shares=shares,
        )
        write_note(attempt.note, json.dumps(attrs.asdict(note)).encode(), durably=self._durably)
        return note

    def give_up(self) -> None:
        """Remove what was written so far."""
        with suppress(TargetError):
            clear(self._attempt.path)

    def _write_records(self, stream: FileStream, source: int, first: int, end: int) -> SourceShare:
        plan, begin = self._plan, self._rows.start
        records = plan.rewriter(first, end)
        origin = self._number * plan.settings.commit_log_file_bytes
        bytes_read = 0
        with open_log(StoreRoot(plan.sources[source])) as log:
            for chunk in read_chunks(log, records.source_offsets, records.source_sizes):
                room = stream.room(records.most_bytes(chunk))
                position, queue_offset = origin + self._filled, self._rows.start + self._good
                written = records.rewrite(
                    chunk, address_of(room), len(room), position, queue_offset
                )
                self._good += int(np.count_nonzero(records.sizes[chunk.first : chunk.end]))
                self._crc = int(crc32_from(self._crc, address_of(room), written))
                stream.advance(written)
                self._filled += written
                bytes_read += chunk.buffer_bytes
        rows = slice(first - begin, end - begin)
        self._numbers[:, rows] = records.sizes, records.tags_hashes, records.topic_hashes
        self._bad |= {first + row: reason for row, reason in records.bad.items()}
        return SourceShare.of(records, source, bytes_read)


def write_bad(attempt: Attempt, bad: dict[int, str], *, durably: bool) -> None:
    """Note which messages of the plan cannot be converted, a line each. Raises TargetError."""
    lines = "".join(f"{json.dumps([row, bad[row]])}\n" for row in sorted(bad))
    write_note(attempt.bad, lines.encode(), durably=durably)


def read_bad(attempt: Attempt) -> dict[int, str]:
    """Which messages of the plan an attempt could not convert, and why. Raises TargetError."""
    return dict(json.loads(line) for line in read_whole(attempt.bad).splitlines())


def read_numbers(attempt: Attempt) -> NDArray[np.int32]:
    """Sizes and hashes of an attempt's messages. Raises TargetError."""
    numbers: NDArray[np.int32] = load_array(attempt.numbers)
    return numbers


def numbers_crc(attempt: Attempt) -> int:
    """The CRC of all that lies beside an attempt's records. Raises TargetError."""
    crc = 0
    for path in (attempt.numbers, attempt.bad):
        crc = zlib.crc32(read_whole(path), crc)
    return crc


def is_written(plan: StoredPlan, note: FileNote, log: Path) -> bool:
    """Whether an attempt's bytes have the checksums of its note: after a power loss a note may
    survive while pages of what it speaks of did not.
    """
    if note.identity != plan.identity or not 0 <= note.number < plan.cut.file_count:
        return False
    file_bytes = plan.settings.commit_log_file_bytes
    is_blanked = not note.bad_count and note.number < plan.cut.file_count - 1
    try:
        if numbers_crc(plan.staging.attempt(note.attempt)) != note.numbers_crc:
            return False
        blank = encode_blank(file_bytes - note.log_bytes) if is_blanked else b""
        found = look_at_file(log, note.log_bytes, len(blank))
    except DelayStoreError:
        return False
    return found == (file_bytes, note.log_crc, blank)


def encode_blank(size_bytes: int) -> bytes:
    """What stands behind the last record of a log file that others follow."""
    return BLANK_RECORD.encode(size_bytes=size_bytes, magic=MAGIC_BLANK)


def write_blank(stream: FileStream, size_bytes: int) -> None:
    """End a log file with the head of a blank of this length. Raises TargetError."""
    blank = np.frombuffer(encode_blank(size_bytes), np.uint8)
    stream.room(len(blank))[:] = blank
    stream.advance(len(blank))
