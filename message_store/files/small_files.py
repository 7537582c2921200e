# SPDX-License-Identifier: Apache-2.0
"""Small whole files: read in one piece with a bound, and replaced so that a stop at any point
leaves old or new.

The order of a replacement: write a temporary file beside it, fsync it, rename it over, fsync the
directory.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from message_store.base.errors import FormatError, SourceError, TargetError, disk_errors, reason_of

SMALL_FILE_MAX_BYTES = 256 << 20
"""A configuration file larger than this is no configuration file."""

PRIVATE_MODE = 0o600

_BLOCK_BYTES = 4096
_PIECE_BYTES = 4 << 20

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def read_small_file(path: Path) -> bytes | None:
    """The whole file, or None when it is not there.

    Links are not followed. A small one that is written over meanwhile is read again: as it was
    before, or as it is then. Raises SourceError when it cannot be read, is no ordinary file, or is
    absurdly large.
    """
    descriptor = _open_for_reading(path)
    if descriptor is None:
        return None
    try:
        if os.fstat(descriptor).st_size > SMALL_FILE_MAX_BYTES:
            raise SourceError(f"{path}: too large for what it should be")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read()
        while len(content) <= _PAGE_BYTES:
            again = os.pread(descriptor, _PAGE_BYTES + 1, 0)
            if again == content or len(again) > _PAGE_BYTES:
                break
            content = again
        return content
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error
    finally:
        os.close(descriptor)


def read_beginning(path: Path, size_bytes: int) -> bytes:
    """The first bytes of a file of any length, fewer where it has no more, none where it is not.

    Links are not followed. Raises SourceError when it cannot be read or is no ordinary file.
    """
    return read_piece(path, 0, size_bytes)


def read_piece(path: Path, position: int, size_bytes: int) -> bytes:
    """As :func:`read_beginning`, from a position on. Raises SourceError."""
    descriptor = _open_for_reading(path)
    if descriptor is None:
        return b""
    try:
        return os.pread(descriptor, size_bytes, position)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error
    finally:
        os.close(descriptor)


def _open_for_reading(path: Path) -> int | None:
    """An ordinary file's descriptor, or None when nothing is there. Raises SourceError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"{path}: cannot be read: no ordinary file")
    return descriptor


def read_extents(path: Path, size_bytes: int, what: str) -> list[tuple[int, bytearray]] | None:
    """The data of a sparse file, as (offset, bytes) in order of offset; all between is zeros.

    Pieces begin and end at multiples of 4,096 bytes, or at the file's end. Where the file system
    knows no holes they are the whole file. None when no file is there, or an empty one. Links are
    not followed. Raises FormatError, which says ``what`` the file should be, for any other length
    than ``size_bytes``; SourceError when it cannot be read or is no ordinary file.
    """
    descriptor = _open_for_reading(path)
    if descriptor is None:
        return None
    try:
        found_bytes = os.fstat(descriptor).st_size
        if found_bytes not in (0, size_bytes):
            raise FormatError(
                f"not the length of {what}", path=path, expected=size_bytes, found=found_bytes
            )
        if not found_bytes:
            return None
        extents = data_extents(descriptor, 0, size_bytes)
        return [
            (at, piece) for begin, end in extents for at, piece in _pieces(descriptor, begin, end)
        ]
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error
    finally:
        os.close(descriptor)


def _pieces(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, bytearray]]:
    for at in range(begin, end, _PIECE_BYTES):
        piece = bytearray(min(_PIECE_BYTES, end - at))
        count = os.preadv(descriptor, [piece], at)
        if count < len(piece):
            raise OSError(errno.EIO, "it was cut short while it was read")
        yield at, piece


def data_extents(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file from ``begin``, a multiple of 4,096, to ``end`` that are no holes, as
    (begin, end): multiples of 4,096, or ``end``. Raises OSError.
    """
    while begin < end:
        try:
            data = os.lseek(descriptor, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from there on
                return
            raise
        hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        begin, hole = data - data % _BLOCK_BYTES, min(hole + -hole % _BLOCK_BYTES, end)
        if begin < hole:
            yield begin, hole
        begin = max(begin, hole)


def is_present(path: Path) -> bool:
    """Whether anything stands at a path; a link counts as what it leads to.

    Raises SourceError where nobody may look: that it cannot be told must not be taken for no.
    """
    return _mode_of(path) is not None


def is_directory(path: Path) -> bool:
    """Whether a directory, or a link to one, stands at a path. Raises SourceError as before."""
    return stat.S_ISDIR(_mode_of(path) or 0)


def is_ordinary_file(path: Path) -> bool:
    """Whether a file, or a link to one, stands at a path. Raises SourceError as before."""
    return stat.S_ISREG(_mode_of(path) or 0)


def _mode_of(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error


def replace_file(
    path: Path, content: bytes | memoryview, *, mode: int = 0o644, is_durable: bool = True
) -> None:
    """Put ``content`` at ``path``, durably and all at once; missing directories are made.

    Not durably, it survives the process but may be lost, or be empty, when power is. Raises
    TargetError when the disk refuses, and leaves nothing beside the file.
    """
    with disk_errors(TargetError, path, "written"):
        make_directories(path.parent, is_durable=is_durable)
        temporary = path.with_name(f".{path.name}.new")
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                if is_durable:
                    os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if is_durable:
            sync_directory(path.parent)


def make_directories(path: Path, *, is_durable: bool = True) -> None:
    """Make a directory and its missing parents; if wanted, durably. Raises OSError."""
    refuse_dangling_link(path)
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing if is_durable else ():
        sync_directory(each.parent)


def refuse_dangling_link(path: Path) -> None:
    """Raise FileNotFoundError for a dangling link, of which ``mkdir`` says "File exists"."""
    if path.is_symlink() and not path.exists():
        reason = f"a symbolic link to {os.readlink(path)}, which does not exist"
        raise FileNotFoundError(errno.ENOENT, reason, str(path))


def identity_of(path: Path | str) -> tuple[int, int] | None:
    """Which file or directory stands at a path, by device and inode; None where nothing does."""
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


def require_same_directory(path: Path | str, identity: tuple[int, int] | None) -> None:
    """Raise OSError where another directory, or none, stands than the one with this identity.

    Renamed or removed while a store in it is open, a new one would get the other half of the store.
    """
    if identity is not None and identity_of(path) != identity:
        raise FileNotFoundError(errno.ENOENT, f"{path} was moved or removed")


class InPlaceFile:
    """A file that is rewritten where it is, as brokers do with their checkpoints and the wheel.

    What lies in one sector is old or new after a loss of power. Raises TargetError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with disk_errors(TargetError, path, "opened"):
            is_new = not path.exists()
            self._descriptor = os.open(path, flags, 0o644)
            if is_new:
                sync_directory(path.parent)

    def write(self, content: bytes | memoryview, *, at: int = 0, durably: bool = False) -> None:
        """Write ``content`` at byte ``at``; ``durably`` returns when it is on disk. Raises
        TargetError when the disk refuses.
        """
        try:  # disk_errors, but for what entering it costs each flush
            if os.pwrite(self._descriptor, content, at) != len(content):
                raise OSError(errno.ENOSPC, "only a part could be written")
            if durably:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise TargetError(f"{self._path}: cannot be written: {reason_of(error)}") from error

    def another_handle(self) -> int:
        """A handle of its own for the file, which the caller closes. Raises TargetError."""
        with disk_errors(TargetError, self._path, "opened"):
            return os.dup(self._descriptor)

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_PAGE_BYTES = 4096


def write_over(path: Path, content: bytes) -> None:
    """Put ``content``, which is not shorter, in the place of what a file holds; not durably.

    Much cheaper than a replacement. What fits a page is there wholly or not at all for whoever
    reads after a kill; what does not is replaced. Raises TargetError.
    """
    if len(content) > _PAGE_BYTES:
        replace_file(path, content, is_durable=False)
        return
    file = InPlaceFile(path)
    try:
        file.write(content)
    finally:
        file.close()


def remove_file(path: Path, *, is_durable: bool = False) -> None:
    """Remove a file if it is there; durably, so no power loss undoes it. Raises TargetError."""
    with disk_errors(TargetError, path, "removed"):
        path.unlink(missing_ok=True)
        if is_durable and path.parent.is_dir():
            sync_directory(path.parent)


def sync_file(path: str | Path) -> None:
    """Wait until a file is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError, but not where the disk syncs no
    directories (EINVAL): it keeps names in its own way.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[bytes] | None:
    """The lines of a file of any length, or None when it is not there; links are not followed.

    Raises SourceError, also later, when it cannot be read or is no ordinary file.
    """
    descriptor = _open_for_reading(path)
    if descriptor is None:
        return None
    return _lines_of(descriptor, path)


def _lines_of(descriptor: int, path: Path) -> Iterator[bytes]:
    with disk_errors(SourceError, path, "read"), os.fdopen(descriptor, "rb") as file:
        yield from file
