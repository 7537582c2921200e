# SPDX-License-Identifier: Apache-2.0
"""Makes an ordinary store into that of a DLedger member, in the plainest way: a head in front of
each record, and all that names a record's place moved along.
"""

from __future__ import annotations

import struct
from pathlib import Path

import attrs

from tests.independent.raw_files import commit_log_records, read_range, segment_name, segments

HEAD_BYTES = 48
_HEAD = struct.Struct(">iiqqqiiii")
_BLANK = struct.Struct(">ii")
_UNIT = struct.Struct(">qiq")
_NAME_AT = 76
"""The prepared transaction offset of a record whose hosts have IPv4 addresses."""
_TIMER_UNIT_BYTES = 52
_OFFSET_AT = 28
"""Where a record has its own offset."""


@attrs.frozen(kw_only=True)
class Entry:
    """An entry of the log that was written; ``offset`` is that of its head."""

    index: int
    term: int
    offset: int
    record_bytes: int

    @property
    def record_offset(self) -> int:
        return self.offset + HEAD_BYTES

    @property
    def end(self) -> int:
        return self.record_offset + self.record_bytes


@attrs.frozen(kw_only=True)
class Member:
    root: Path
    data: Path
    file_bytes: int
    entries: list[Entry]

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes at an offset of the log, within one file."""
        path = self.data / segment_name(offset - offset % self.file_bytes)
        with path.open("r+b") as file:
            file.seek(offset % self.file_bytes)
            file.write(data)

    def read(self, offset: int, count: int) -> bytes:
        return read_range(self.data, self.file_bytes, offset, count)

    def flip(self, offset: int) -> None:
        """Flip one bit of the log."""
        self.write(offset, bytes([self.read(offset, 1)[0] ^ 1]))

    def append(self, like: Entry, *, index: int, term: int, at: int | None = None) -> Entry:
        """Write another entry with the record of one that is there, behind the last one."""
        offset = self.entries[-1].end if at is None else at
        data = self.read(like.record_offset, like.record_bytes)
        entry = Entry(index=index, term=term, offset=offset, record_bytes=len(data))
        self.write(offset, encode_entry(entry, data))
        return entry


def encode_entry(entry: Entry, record: bytes) -> bytes:
    """The head, and the record with its own new offset in it."""
    size = HEAD_BYTES + entry.record_bytes
    own = struct.pack(">q", entry.record_offset)
    head = _HEAD.pack(1, size, entry.index, entry.term, entry.offset, 0, 0, 0, entry.record_bytes)
    return head + record[:_OFFSET_AT] + own + record[_OFFSET_AT + 8 :]


def make_member(root: Path, *, from_offset: int = 0, term: int = 1, name: str = "n0") -> Member:
    """Make the store at ``root`` into that of a member. The files of its log before ``from_offset``
    stay as they are: those of a broker that was an ordinary one before.
    """
    log = root / "commitlog"
    file_bytes = segments(log)[0].stat().st_size
    data = root / f"dledger-{name}" / "data"
    data.mkdir(parents=True)
    entries: list[Entry] = []
    files, moved = {from_offset: b""}, dict[int, int]()
    offset = from_offset
    for placed in list(commit_log_records(log)):
        if placed.commit_log_offset < from_offset:
            continue
        left = file_bytes - offset % file_bytes
        size = HEAD_BYTES + placed.size_bytes
        if size + _BLANK.size > left:
            files[offset - offset % file_bytes] += _BLANK.pack(-1, left)
            offset += left
        entry = Entry(index=len(entries), term=term, offset=offset, record_bytes=placed.size_bytes)
        record = read_range(log, file_bytes, placed.commit_log_offset, placed.size_bytes)
        record = _with_moved_name(record, moved)
        start = offset - offset % file_bytes
        files[start] = files.get(start, b"") + encode_entry(entry, record)
        moved[placed.commit_log_offset] = entry.record_offset
        entries.append(entry)
        offset += size
    for start, content in files.items():
        (data / segment_name(start)).write_bytes(content.ljust(file_bytes, b"\0"))
    for path in segments(log):
        if int(path.name) >= from_offset:
            path.unlink()
    if not segments(log):
        log.rmdir()
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        path.write_bytes(_moved_units(path.read_bytes(), moved))
    for path in sorted((root / "timerlog").glob("*")):
        path.write_bytes(_moved_timers(path.read_bytes(), moved))
    return Member(root=root, data=data, file_bytes=file_bytes, entries=entries)


def _with_moved_name(record: bytes, moved: dict[int, int]) -> bytes:
    """A copy that names the record it is of (by the complement of its offset) names it still."""
    name = struct.unpack_from(">q", record, _NAME_AT)[0]
    if name >= 0:
        return record
    return record[:_NAME_AT] + struct.pack(">q", ~moved[~name]) + record[_NAME_AT + 8 :]


def _moved_timers(data: bytes, moved: dict[int, int]) -> bytes:
    """The units of a timer log: 52 bytes, with the offset of the record at 28."""
    units = bytearray(data)
    for at in range(0, len(data) - _TIMER_UNIT_BYTES, _TIMER_UNIT_BYTES):
        size, offset = (
            struct.unpack_from(">i", data, at)[0],
            struct.unpack_from(">q", data, at + 28),
        )
        if size == _TIMER_UNIT_BYTES:
            struct.pack_into(">q", units, at + 28, moved[offset[0]])
    return bytes(units)


def _moved_units(data: bytes, moved: dict[int, int]) -> bytes:
    units = (_UNIT.unpack_from(data, at) for at in range(0, len(data), _UNIT.size))
    return b"".join(
        _UNIT.pack(moved.get(offset, offset) if size else offset, size, code)
        for offset, size, code in units
    )
