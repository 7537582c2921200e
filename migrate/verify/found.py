# SPDX-License-Identifier: Apache-2.0
"""Records found one by one, and how they are sorted into groups for the tasks that pair them.

A task that finds or pairs records sorts them into groups by one of their digests. Equal digests are
in the same group, whichever task found them. A block is a bounded number of records, in the order
of their groups. Many blocks are files in the scratch directory; few travel with the results.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import SourceError
from message_store.files.small_files import PRIVATE_MODE, read_piece, replace_file
from migrate.verify.digests.entries import DIGEST_COLUMNS

FOUND = np.dtype(
    [("number", np.int64), ("digests", np.uint64, (DIGEST_COLUMNS,)), ("complaint", np.uint8)]
)
"""A record that was found: the number of its entry, its digests, its complaint."""

Found = NDArray[np.void]
"""Rows of :data:`FOUND`."""

_BLOCK_RECORDS = 1 << 18
_CHUNK_RECORDS = 1 << 20
"""So many records of one side are in the memory of a task that pairs them."""

_INLINE_RECORDS = 1 << 16
"""Up to so many are carried in the driver's memory, and are never written to the scratch."""

_LOW_BITS = np.uint64(0xFFFF_FFFF)


def found_records(
    numbers: NDArray[np.int64], digests: NDArray[np.uint64], complaints: NDArray[np.uint8]
) -> Found:
    """The same three arrays as a table, a row a record."""
    rows = np.empty(len(numbers), FOUND)
    rows["number"], rows["digests"], rows["complaint"] = numbers, digests, complaints
    return rows


def joined(parts: Sequence[Found]) -> Found:
    """All records of several finds."""
    return np.concatenate(parts) if parts else np.empty(0, FOUND)


def count_groups(records: int) -> int:
    """How many groups so many records need: an even share of one is at most half a chunk."""
    return 2 * records // _CHUNK_RECORDS + 1


def is_few(records: int) -> bool:
    """Whether so many records need no scratch."""
    return records <= _INLINE_RECORDS


@attrs.frozen
class Grouping:
    """Sort records by the digest in ``column`` into ``groups``, and write them to ``directory``;
    None keeps them in memory.
    """

    column: int
    groups: int
    directory: Path | None

    def of(self, rows: Found) -> NDArray[np.int64]:
        """The group of each record. Its bucket has used up the digest's high bits."""
        low = rows["digests"][:, self.column] & _LOW_BITS
        return (low * np.uint64(self.groups) >> np.uint64(32)).astype(np.int64)


@attrs.frozen(eq=False)
class Piece:
    """``count`` records of one group: in memory, or rows of a block's file from ``first`` on."""

    content: bytes | Path
    first: int
    count: int

    def read(self) -> Found:
        """The records. Raises SourceError where the file does not have them all."""
        position, size_bytes = self.first * FOUND.itemsize, self.count * FOUND.itemsize
        if isinstance(self.content, bytes):
            return np.frombuffer(self.content, FOUND)
        data = read_piece(self.content, position, size_bytes)
        if len(data) < size_bytes:
            raise SourceError(
                f"{self.content}: gone or cut short; every worker must see the scratch directory"
            )
        return np.frombuffer(data, FOUND)


@attrs.frozen(eq=False)
class Block:
    """Records in the order of their groups; group i is rows ``bounds[i]`` to ``bounds[i + 1]``."""

    content: bytes | Path
    bounds: NDArray[np.int64]

    def piece(self, group: int) -> Piece | None:
        """The records of a group; None where it has none."""
        first, last = map(int, self.bounds[group : group + 2])
        if first == last:
            return None
        content = self.content
        if isinstance(content, bytes):
            content = content[first * FOUND.itemsize : last * FOUND.itemsize]
        return Piece(content, first, last - first)


class BlockWriter:
    """Takes records and makes blocks of them.

    The names of files are random, so that a task that is repeated never writes to the file of
    another attempt.
    """

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._waiting: list[Found] = []
        self._count = 0
        self._blocks: list[Block] = []

    def add(self, rows: Found) -> None:
        """Take some records. Raises TargetError when the disk refuses."""
        for first in range(0, len(rows), _BLOCK_RECORDS):
            self._waiting.append(rows[first : first + _BLOCK_RECORDS])
            self._count += len(self._waiting[-1])
            if self._count >= _BLOCK_RECORDS:
                self._write()

    def finish(self) -> tuple[Block, ...]:
        """All blocks, in the order in which their records were taken."""
        if self._count:
            self._write()
        return tuple(self._blocks)

    def _write(self) -> None:
        rows = joined(self._waiting)
        self._waiting, self._count = [], 0
        groups = self._grouping.of(rows)
        content = rows[np.argsort(groups, kind="stable")].tobytes()
        counts = np.bincount(groups, minlength=self._grouping.groups)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        if (directory := self._grouping.directory) is None:
            self._blocks.append(Block(content, bounds))
            return
        path = directory / f"found-{secrets.token_hex(8)}"
        replace_file(path, content, mode=PRIVATE_MODE, is_durable=False)
        self._blocks.append(Block(path, bounds))


def read_pieces(pieces: Iterable[Piece]) -> Iterator[Found]:
    """The records of a group in chunks of bounded size, each in the order of its entries.

    A group that has its even share is one chunk.
    """
    waiting: list[Found] = []
    count = 0
    for piece in pieces:
        if waiting and count + piece.count > _CHUNK_RECORDS:
            yield _ordered(waiting)
            waiting, count = [], 0
        waiting.append(piece.read())
        count += piece.count
    if waiting:
        yield _ordered(waiting)


def _ordered(parts: Sequence[Found]) -> Found:
    rows = joined(parts)
    return rows[np.argsort(rows["number"], kind="stable")]
