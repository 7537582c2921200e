# SPDX-License-Identifier: Apache-2.0
"""A file of lines that only grows, until it is replaced: each line ends with its own CRC-32.

A kill or a loss of power leaves a beginning of it. Reading ends at the first line that is not
whole.
"""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from message_store.base.errors import TargetError, reason_of
from message_store.files.small_files import (
    make_directories,
    read_small_file,
    replace_file,
    sync_directory,
)

_CRC_CHARS = 8


def encode_line(text: str) -> bytes:
    """A line of the file. The text must not contain a line feed.

    >>> encode_line("A 1 17")
    b'A 1 17 ba3d2cf7\\n'
    """
    data = text.encode()
    return b"%s %08x\n" % (data, zlib.crc32(data))


def whole_lines(content: bytes) -> tuple[list[str], int]:
    """The lines up to the first that is damaged or torn, and where that one begins."""
    lines, end = [], 0
    while (stop := content.find(b"\n", end)) >= 0:
        data, _, crc = content[end:stop].rpartition(b" ")
        try:
            is_whole = len(crc) == _CRC_CHARS and int(crc, 16) == zlib.crc32(data)
            text = data.decode()
        except ValueError:
            break
        if not is_whole:
            break
        lines.append(text)
        end = stop + 1
    return lines, end


class LineJournal:
    """The file at ``path``, open for appending; it is made with its first line.

    ``lines`` are those that were there when it was opened, ``has_damage`` says that others followed
    which could not be read. With ``is_only_read`` nothing is written, whatever is appended.
    Raises SourceError and TargetError.
    """

    def __init__(self, path: Path, *, is_only_read: bool = False) -> None:
        self._path = path
        self._is_only_read = is_only_read
        self._descriptor: int | None = None
        self._is_dirty = False
        self._name_is_dirty = self._is_in_doubt = False
        content = read_small_file(path)
        self.lines, self._end = whole_lines(content or b"")
        self.has_damage = content is not None and self._end < len(content)
        if content is not None and not is_only_read:
            self._open()

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return self._end

    def append(self, lines: Iterable[bytes]) -> None:
        """Add these lines, all or none. They outlive the process, and after ``sync`` the power.

        Raises TargetError, and SourceError after a replacement that failed.
        """
        data = b"".join(lines)
        if self._is_only_read:
            return
        try:
            self._settle()
            if self._descriptor is None:
                make_directories(self._path.parent)
                self._open()
            assert self._descriptor is not None
            if os.pwrite(self._descriptor, data, self._end) != len(data):
                os.ftruncate(self._descriptor, self._end)  # no line may be there by half
                raise TargetError(f"{self._path}: cannot be written: only a part could be")
        except OSError as error:
            raise self._refusal(error) from error
        self._end += len(data)
        self._is_dirty = True

    def begin_sync(self) -> int | None:
        """A handle whose sync makes all lines durable, to be closed; None where all are."""
        self._settle()
        if self._descriptor is None or not (self._is_dirty or self._name_is_dirty):
            return None
        self._is_dirty = False
        return os.dup(self._descriptor)

    def sync(self, handle: int | None) -> None:
        """Come back when the lines of ``begin_sync`` are on disk. Raises TargetError."""
        if handle is None:
            return
        try:
            os.fdatasync(handle)
            if self._name_is_dirty:
                sync_directory(self._path.parent)
                self._name_is_dirty = False
        except OSError as error:
            self._is_dirty = True
            raise self._refusal(error) from error
        finally:
            os.close(handle)

    def replace(self, lines: Iterable[bytes]) -> None:
        """Let the file hold these lines alone, durably and all at once. Raises TargetError."""
        data = b"".join(lines)
        try:
            replace_file(self._path, data)
        except BaseException:  # the file of that name may be either, and its name not on disk
            self.close()
            self._is_in_doubt = self._is_dirty = self._name_is_dirty = True
            raise
        self.close()
        self._end = len(data)
        self._is_in_doubt = self._is_dirty = self._name_is_dirty = False
        self._open()

    def _settle(self) -> None:
        """Go on with the file that has the name, after a replacement that failed."""
        if self._is_in_doubt:
            self._end = whole_lines(read_small_file(self._path) or b"")[1]
            self._open()
            self._is_in_doubt = False

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        """Raises TargetError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            is_new = not self._path.exists()
            self._descriptor = os.open(self._path, flags, 0o644)
            os.ftruncate(self._descriptor, self._end)
            if is_new:
                sync_directory(self._path.parent)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> TargetError:
        return TargetError(f"{self._path}: cannot be written: {reason_of(error)}")
