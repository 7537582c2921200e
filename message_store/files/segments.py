# SPDX-License-Identifier: Apache-2.0
"""Files of fixed size in a row, each named by the offset of its first byte: logs and queues.

Reading is by ``pread`` and never by mapping. If another process truncates a file, that is a short
read and an error with an offset; a mapping would kill the process with SIGBUS.
"""

import bisect
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import attrs

from message_store.base.closed_on_exit import ClosedOnExit
from message_store.base.errors import (
    BadFieldError,
    SourceError,
    TruncatedRecordError,
    reason_of,
)
from message_store.base.printable import listed, shell_word
from message_store.format.java_numbers import LONG_MAX

NAME_DIGITS = 20
_PAGE_BYTES = 4096
_PAGES = memoryview(bytes(16 * _PAGE_BYTES))


def next_places(offset: int, file_bytes: int) -> tuple[int, int]:
    """Where a record may begin that was appended when a row of files ended at ``offset``: there, or
    at the beginning of the next file, if it had no room.

    >>> next_places(1_000, 4_096)
    (1000, 4096)
    """
    return offset, offset - offset % file_bytes + file_bytes


def segment_name(start_offset: int) -> str:
    """The name of the file that begins at ``start_offset``.

    >>> segment_name(1073741824)
    '00000000001073741824'
    """
    return f"{start_offset:0{NAME_DIGITS}d}"


@attrs.frozen
class Segment:
    """One file: where it begins in the row, how many bytes are there, when it was changed."""

    start_offset: int
    length_bytes: int
    path: Path
    modified_ns: int


def list_segments(directory: Path) -> tuple[Segment, ...]:
    """The files of a row in order; links, and names that are not 20 digits, are skipped.

    A missing directory is an empty row. Raises SourceError when it cannot be read, and
    BadFieldError for a name that is beyond any offset: no broker starts on one.
    """
    segments = []
    for entry in _entries(directory):
        is_named = len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()
        if is_named and entry.is_file(follow_symlinks=False):
            path = Path(entry.path)
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError as error:
                raise _unreadable(path, error) from error
            if int(entry.name) > LONG_MAX - facts.st_size:
                raise BadFieldError("a file named beyond any offset", path=path)
            segments.append(Segment(int(entry.name), facts.st_size, path, facts.st_mtime_ns))
    return tuple(sorted(segments, key=lambda segment: segment.start_offset))


def require_appendable(
    segments: Sequence[Segment], file_bytes: int, noted_bytes: int | None = None
) -> int:
    """The size of the files of a row that something can be appended to.

    It is ``file_bytes`` for a row without files, and at least ``noted_bytes`` for a row with one
    file, which may have been cut short. The last file may be too short: its maker was stopped.
    Raises SourceError for a row with gaps, with files of several sizes, or with names that are no
    multiples of the size.
    """
    longest = max((segment.length_bytes for segment in segments), default=0)
    if len(segments) > 1:
        steps = [two.start_offset - one.start_offset for one, two in pairwise(segments)]
        sizes = (each for each in (noted_bytes, longest) if each)
        fits = (each for each in sizes if not any(step % each for step in steps))
        file_bytes = next(fits, min(steps))
    elif segments:
        file_bytes = max(longest, noted_bytes or 0) or file_bytes
    for index, segment in enumerate(segments):
        expected = segments[0].start_offset + index * file_bytes
        is_last = index == len(segments) - 1
        if segment.start_offset % file_bytes:
            raise SourceError(f"{segment.path}: its name does not fit files of its size")
        if segment.start_offset > expected:
            raise _lost(segment.path.with_name(segment_name(expected)), "missing", file_bytes)
        if segment.length_bytes < file_bytes and not is_last:
            raise _lost(segment.path, f"{segment.length_bytes} bytes long", file_bytes)
        if segment.length_bytes > file_bytes:
            raise SourceError(
                f"{segment.path}: {segment.length_bytes} bytes, where the row has files of"
                f" {file_bytes}"
            )
    return file_bytes


def _lost(path: Path, what: str, file_bytes: int) -> SourceError:
    return SourceError(
        f"{path}: this file is {what}, and files of {file_bytes} bytes follow it; take it from a"
        f" backup, or `truncate -s {file_bytes} {shell_word(str(path))}` to go on without its bytes"
    )


def write_head_last(descriptor: int, data: bytes, position: int, head_bytes: int) -> None:
    """Write ``data`` into a file so that a process that is killed leaves its head out or all in.

    A head that crosses a page may be cut off there, its end missing. Raises OSError.
    """
    rest = os.pwrite(descriptor, data[head_bytes:], position + head_bytes)
    if (
        rest + head_bytes != len(data)
        or os.pwrite(descriptor, data[:head_bytes], position) < head_bytes
    ):
        raise OSError(errno.ENOSPC, "only a part could be written")


def write_whole(descriptor: int, data: memoryview, position: int) -> None:
    """Write all of ``data`` into a file, in as many calls as it takes. Raises OSError."""
    while data.nbytes:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count


def write_small(descriptor: int, data: bytes, position: int, head_bytes: int = 1) -> None:
    """Write into a file; where that crosses a page, what is on the first page last.

    A kernel copies a page in one piece, and lets a kill in only between two pages: it leaves the
    front of ``data``, ``head_bytes`` at the least, out or all in. (A head that itself crosses a
    page may be cut off there, its end missing.) Most of what is written one by one lies within a
    page, so that one call in place of two does. Raises OSError.
    """
    size_bytes = len(data)
    if position % _PAGE_BYTES + size_bytes > _PAGE_BYTES:
        here = _PAGE_BYTES - position % _PAGE_BYTES
        write_head_last(descriptor, data, position, max(here, head_bytes))
    elif os.pwrite(descriptor, data, position) < size_bytes:
        raise OSError(errno.ENOSPC, "only a part could be written")


def prefault_by_zeroing(descriptor: int, begin: int, wanted: int, file_bytes: int) -> int:
    """Let the kernel find the pages of a file from ``begin`` to ``wanted`` and some behind them, by
    writing the zeros that are there already; returns where they end, at most at the file's end.

    To find the page is the half of what writing a record into a new one takes. Sixteen found at
    once cost a third of that; many more would push out of the cache what is about to be written.
    """
    end = min(-(-wanted // len(_PAGES)) * len(_PAGES), file_bytes)
    with suppress(OSError):  # a disk that refuses this will refuse the record, and say so
        os.pwrite(descriptor, _PAGES[: end - begin], begin)
    return end


def list_directories(directory: Path) -> list[Path]:
    """The directories in a directory, in order of their names; links are skipped.

    A missing directory has none. Raises SourceError when it cannot be read.
    """
    entries = _entries(directory)
    return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def holds_queues(directory: Path) -> bool:
    """Whether any queue of any topic below a directory has a file. Raises SourceError."""
    return any(
        list_segments(queue)
        for topic in list_directories(directory)
        for queue in list_directories(topic)
    )


def _entries(directory: Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(path: Path, error: OSError) -> SourceError:
    return SourceError(f"{path}: cannot be read: {reason_of(error)}")


def list_row(directories: Iterable[Path]) -> tuple[Segment, ...]:
    """The files of a row in order, whichever of these directories each lies in.

    Raises as ``list_segments``, and SourceError where two directories have a file of one name.
    """
    every = (segment for directory in directories for segment in list_segments(directory))
    segments = sorted(every, key=lambda segment: segment.start_offset)
    for one, two in pairwise(segments):
        if one.start_offset == two.start_offset:
            raise SourceError(
                f"{two.path}: {one.path} has the same name; one of them is a copy: move it away, or"
                " name only the directories of this log"
            )
    return tuple(segments)


def require_whole_row(directories: Sequence[Path]) -> None:
    """Raise SourceError where a file is missing between those that these directories of a log have,
    or may be missing in front of them. A broker starts all the same, and skips what lay there.
    """
    files = list_row(directories)
    file_bytes = max((each.length_bytes for each in files), default=0)
    for one, two in pairwise(files):
        if two.start_offset - one.start_offset > file_bytes:
            missing = segment_name(one.start_offset + file_bytes)
            raise SourceError(
                f"{listed(map(str, directories))}: there is no {missing}; name the directory that"
                " has this file of the log, too"
            )
    empty = [each for each in directories if not list_segments(each)]
    if files and files[0].start_offset > 0 and empty:
        raise SourceError(
            f"{empty[0]}: has no file of the log, which begins at offset"
            f" {files[0].start_offset:,} in {files[0].path.parent}; is its disk mounted? If it"
            " never had any, name only the other directories (--commit-log)"
        )


def _joined(directories: Sequence[Path], entries: Sequence[Path]) -> tuple[Segment, ...]:
    """The files of a log, those of a DLedger log behind the ordinary ones in front of it."""
    behind = list_row(entries)
    first = behind[0].start_offset if behind else LONG_MAX
    return (*(each for each in list_row(directories) if each.start_offset < first), *behind)


class SegmentReader(ClosedOnExit):
    """A row of segment files opened for reading.

    ``file_bytes`` is the size that each file should have: given, or else the distance between the
    first two names, or the length of the only file. Files of another length are kept and readable
    as far as they go; ``misfits`` names them. A row that grows meanwhile is read on: a file that is
    added behind the last one is found when somebody asks for a byte of it. One that is deleted
    meanwhile is an error: a row without it would say that it never was. Use as a context manager,
    or call :meth:`close`.

    The files of one row may lie in several directories, ``more`` beside the first. ``entries`` are
    those of a DLedger log, whose files go on where the ordinary ones end. From ``entries_from`` on
    each record has the head of an entry in front of it. ``segments`` are the files, if they are
    known.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int | None = None,
        segments: tuple[Segment, ...] | None = None,
        *,
        more: tuple[Path, ...] = (),
        entries: tuple[Path, ...] = (),
    ) -> None:
        self.directory = directory
        self._more, self._entries = more, entries
        self.segments = _joined((directory, *more), entries) if segments is None else segments
        self.entries_from = next(
            (each.start_offset for each in self.segments if each.path.parent in entries), LONG_MAX
        )
        self._starts = [segment.start_offset for segment in self.segments]
        self.file_bytes = file_bytes or self._guess_file_bytes()
        self._descriptors: dict[int, int] = {}

    def again(self) -> "SegmentReader":
        """A reader of its own for a thread, of the files that this one has."""
        return SegmentReader(
            self.directory, self.file_bytes, self.segments, more=self._more, entries=self._entries
        )

    def _guess_file_bytes(self) -> int:
        if len(self.segments) > 1:
            return min(
                after - before
                for before, after in zip(self._starts, self._starts[1:], strict=False)
            )
        return self.segments[0].length_bytes if self.segments else 0

    @property
    def misfits(self) -> tuple[Segment, ...]:
        """Files whose length is not ``file_bytes``: a broker would refuse to start on them."""
        return tuple(
            segment for segment in self.segments if segment.length_bytes != self.file_bytes
        )

    @property
    def min_offset(self) -> int:
        """Where the row begins; 0 when it is empty."""
        return self._starts[0] if self._starts else 0

    @property
    def end_offset(self) -> int:
        """One past the last byte that any file has room for."""
        return self._starts[-1] + self.segments[-1].length_bytes if self.segments else 0

    def segment_at(self, offset: int) -> Segment | None:
        """The file that holds the byte at ``offset``, or None in a gap and outside the row."""
        if offset >= self.end_offset:
            self.grow()
        index = bisect.bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        segment = self.segments[index]
        return segment if offset < segment.start_offset + segment.length_bytes else None

    def grow(self) -> None:
        """Take up the whole files that were added behind the last one meanwhile."""
        while self.segments and self.end_offset == self._starts[-1] + self.file_bytes:
            added = self._next_file()
            if added is None:
                return
            self.segments += (added,)
            self._starts.append(added.start_offset)

    def _next_file(self) -> Segment | None:
        """The whole file that follows the last one, in whichever directory it was made."""
        last = self.segments[-1].path.parent
        row = self._entries if last in self._entries else (last, self.directory, *self._more)
        for directory in dict.fromkeys(row):
            path = directory / segment_name(self.end_offset)
            try:
                facts = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and facts.st_size == self.file_bytes > 0:
                return Segment(self.end_offset, facts.st_size, path, facts.st_mtime_ns)
        return None

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset`` on, within one file; returns how many bytes were there.

        Fewer than asked for means that the file ends. Raises SourceError when the disk refuses.
        """
        segment = self.segment_at(offset)
        if segment is None:
            return 0
        done = 0
        try:
            descriptor = self._descriptor(segment)
            while done < buffer.nbytes:
                count = os.preadv(descriptor, [buffer[done:]], offset - segment.start_offset + done)
                if count == 0:
                    break
                done += count
        except FileNotFoundError as error:
            raise SourceError(
                f"{segment.path}: cannot be read at {offset}: it was deleted meanwhile, as"
                " retention does; read again"
            ) from error
        except OSError as error:
            raise SourceError(
                f"{segment.path}: cannot be read at {offset}: {reason_of(error)}"
            ) from error
        return done

    def is_cached(self, offset: int) -> bool:
        """Whether the system has this byte in memory, or does not say."""
        segment = self.segment_at(offset)
        if segment is None:
            return True
        try:
            place = offset - segment.start_offset
            os.preadv(self._descriptor(segment), [bytearray(1)], place, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the disk cannot say
        return True

    def forget(self, start: int, end: int) -> None:
        """Let the system forget these bytes of one file, where it wants to."""
        segment = self.segment_at(start)
        if segment is not None:
            place = start - segment.start_offset
            with suppress(OSError):
                descriptor = self._descriptor(segment)
                os.posix_fadvise(descriptor, place, end - start, os.POSIX_FADV_DONTNEED)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Exactly these bytes, across files where need be.

        Raises TruncatedRecordError when they are not all there.
        """
        data = bytearray(size_bytes)
        view = memoryview(data)
        done = 0
        while done < size_bytes:
            count = self.read_into(offset + done, view[done:])
            if count == 0:
                raise TruncatedRecordError(
                    "the files end",
                    path=self.directory,
                    offset=offset,
                    expected=size_bytes,
                    found=done,
                )
            done += count
        return bytes(data)

    def has_data_at(self, offset: int) -> bool:
        """Whether one of the eight bytes from there on, as far as they are there, is not zero."""
        head = bytearray(8)
        return self.read_into(offset, memoryview(head)) > 0 and any(head)

    def describe_deleted(self, offset: int) -> str | None:
        """What to say of an offset in front of the row, where there was a file; else None."""
        if not self.file_bytes or not 0 <= offset < self.min_offset:
            return None
        return f"its file {segment_name(offset - offset % self.file_bytes)} was deleted meanwhile"

    def _descriptor(self, segment: Segment) -> int:
        if segment.start_offset not in self._descriptors:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptors[segment.start_offset] = os.open(segment.path, flags)
        return self._descriptors[segment.start_offset]

    def close(self) -> None:
        """Give the files back; closing twice is fine."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
