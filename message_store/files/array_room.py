# SPDX-License-Identifier: Apache-2.0
"""Room for columns of many rows: in memory, or in files without a name.

Conversions and verifications have columns with a row a message. A process keeps its own memory
until it lets go of it. The kernel may write a mapped page out and read it again. So memory does not
grow with messages. A file without a name ends with its last user, also when that is killed. Its
pages are large ones where the system has them: 256 MB took 112 page faults, not 37,000.
"""

import errno
import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from message_store.base.errors import TargetError

_LARGE_BYTES = 1 << 20
"""A smaller array stays in memory: a file and its mapping would cost more."""
_BLOCK_ROWS = 1 << 16
"""So many rows are worked on at once: they stay in a core's cache."""
_NAMELESS = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_directory: ContextVar[Path | None] = ContextVar("array_room", default=None)


@contextmanager
def arrays_on_disk(directory: Path) -> Iterator[None]:
    """Give large arrays room on the disk of this directory during the ``with`` block.

    Where its file system has no files without a name, as NFS, they stay in memory.
    """
    token = _directory.set(directory)
    try:
        yield
    finally:
        _directory.reset(token)


def has_room(directory: Path) -> bool:
    """Whether the disk of a directory has files without a name, in which large arrays lie."""
    try:
        os.close(os.open(directory, _NAMELESS, 0o600))
    except OSError:
        return False
    return True


def new_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array to be filled. Raises TargetError where the disk is full."""
    mapped = _mapped(shape, dtype)
    return np.empty(shape, dtype) if mapped is None else mapped


def zero_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros. Raises TargetError where the disk is full."""
    mapped = _mapped(shape, dtype)
    return np.zeros(shape, dtype) if mapped is None else mapped


def _mapped(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any] | None:
    """An array of zeros in a file without a name, or None where it is to be in memory."""
    directory = _directory.get()
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    size_bytes = count * np.dtype(dtype).itemsize
    if directory is None or size_bytes < _LARGE_BYTES:
        return None
    try:
        descriptor = os.open(directory, _NAMELESS, 0o600)
    except OSError:
        return None
    try:
        # Blocks are taken before a page is touched: a full disk would end the process there.
        os.posix_fallocate(descriptor, 0, size_bytes)
        room = mmap.mmap(descriptor, size_bytes)
        with suppress(OSError):  # a system without large pages has small ones
            room.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise TargetError(
                f"{directory}: no room for {size_bytes:,} bytes more, for columns of"
                f" messages, for a while: {error.strerror}"
            ) from error
        return None
    finally:
        os.close(descriptor)
    return np.frombuffer(room, dtype, count).reshape(shape)


def row_blocks(count: int, block_rows: int | None = None) -> Iterator[slice]:
    """The rows of a column, a block behind the other.

    >>> list(row_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = block_rows or _BLOCK_ROWS
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def rows_where(count: int, select: Callable[[slice], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """The rows that ``select`` marks, asked block by block and, where it marks some, twice.

    >>> rows_where(5, lambda rows: np.arange(5)[rows] % 2 == 1).tolist()
    [1, 3]
    """
    blocks = [(rows, int(np.count_nonzero(select(rows)))) for rows in row_blocks(count)]
    found = new_array(sum(marked for _, marked in blocks), np.int64)
    filled = 0
    for rows, marked in blocks:
        if marked:
            found[filled : filled + marked] = rows.start + np.flatnonzero(select(rows))
            filled += marked
    return found


def marked_rows(column: NDArray[Any], is_marked: NDArray[np.bool_]) -> NDArray[Any]:
    """The rows of a column that are marked, in a new one.

    >>> marked_rows(np.array([7, 8, 9]), np.array([True, False, True])).tolist()
    [7, 9]
    """
    found = new_array(int(np.count_nonzero(is_marked)), column.dtype)
    filled = 0
    for rows in row_blocks(len(column)):
        part = column[rows][is_marked[rows]]
        found[filled : filled + len(part)] = part
        filled += len(part)
    return found


def joined_columns(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns of one kind, one behind the other; a single one itself."""
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns, out=new_array(sum(map(len, columns)), columns[0].dtype))


def running_sums(column: NDArray[Any]) -> NDArray[np.int64]:
    """For each row the sum of the column up to and with it.

    >>> running_sums(np.array([7, 8, 9], np.int32)).tolist()
    [7, 15, 24]
    """
    sums, before = new_array(len(column), np.int64), 0
    for rows in row_blocks(len(column)):  # NumPy would widen a whole column first
        np.cumsum(column[rows], dtype=np.int64, out=sums[rows])
        sums[rows] += before
        before = int(sums[rows.stop - 1])
    return sums


def as_type(column: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """The column in another type, in a new one.

    >>> as_type(np.array([7, 8], ">i4"), np.int64).tolist()
    [7, 8]
    """
    found = new_array(len(column), dtype)
    for rows in row_blocks(len(column)):
        found[rows] = column[rows]
    return found


def rows_at(column: NDArray[Any], indexes: NDArray[np.int64]) -> NDArray[Any]:
    """The rows of a column at these indexes, in their order, in a new one."""
    found = new_array(len(indexes), column.dtype)
    for rows in row_blocks(len(indexes)):
        found[rows] = column[indexes[rows]]
    return found
