# SPDX-License-Identifier: Apache-2.0
"""Two sides compared like replicas: sums of digests by bucket first, then single records.

Single records are only looked at in buckets whose sums differ. Both logs are read once more for
them, however many they are, and their digests are sorted into groups. A task pairs the records of
one group: equal digests first, then one identity, then one content. What a task leaves over is in
the groups of the next pairing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import attrs
import numpy as np
from numpy.typing import NDArray

from migrate.verify.digests.entries import (
    BUCKET_COUNT,
    DIGEST_A,
    DIGEST_B,
    DIGEST_CONTENT,
    DIGEST_IDENTITY,
)
from migrate.verify.found import (
    Block,
    BlockWriter,
    Found,
    Grouping,
    Piece,
    count_groups,
    is_few,
    read_pieces,
)
from migrate.verify.jobs import DigestJobs, SideEntries
from migrate.verify.tasks import DigestResult, Side

PAIR = np.dtype([("source", np.int64), ("target", np.int64), ("complaint", np.uint8)])
"""Two records that are one message: the numbers of their entries, the complaint of the target's."""

_Numbers = NDArray[np.int64]

_SAME = (DIGEST_A, DIGEST_B)
_PAIRINGS = (_SAME, (DIGEST_IDENTITY,), (DIGEST_CONTENT,))
"""The columns that agree in a pair, pairing after pairing; the first makes the groups."""


@attrs.frozen(eq=False)
class PairTask:
    """One group of both sides. ``kept`` pairs, and ``kept`` records that are left over, are named.

    What is left over goes on to blocks of ``onward``; None only counts it.
    """

    source: tuple[Piece, ...]
    target: tuple[Piece, ...]
    columns: tuple[int, ...]
    kept: int
    onward: Grouping | None


@attrs.frozen(eq=False)
class Rest:
    """Records of one side that have no pair: all of them in blocks or as a count, the first few by
    the numbers of their entries.
    """

    count: int
    numbers: _Numbers
    blocks: tuple[Block, ...]

    @classmethod
    def joined(cls, parts: Sequence["Rest"], kept: int) -> "Rest":
        """Those of several groups."""
        numbers = [np.empty(0, np.int64), *(part.numbers for part in parts)]
        return cls(
            sum(part.count for part in parts),
            np.sort(np.concatenate(numbers))[:kept],
            tuple(block for part in parts for block in part.blocks),
        )


@attrs.frozen(eq=False)
class Pairs:
    """What the pairing of a group found: how many pairs, the first few (rows of ``PAIR``, in the
    order of the source), and the rest of each side.
    """

    count: int
    first: NDArray[np.void]
    source: Rest
    target: Rest

    @classmethod
    def joined(cls, parts: Sequence["Pairs"], kept: int) -> "Pairs":
        """Those of several groups."""
        first = np.concatenate([np.empty(0, PAIR), *(part.first for part in parts)])
        return cls(
            sum(part.count for part in parts),
            first[np.argsort(first["source"], kind="stable")][:kept],
            Rest.joined([part.source for part in parts], kept),
            Rest.joined([part.target for part in parts], kept),
        )


class _Keys:
    """The distinct keys of a group, in order, and how many pairs each of them makes."""

    def __init__(self, task: PairTask) -> None:
        self.columns = task.columns
        table, counts = np.empty((0, len(self.columns)), np.uint64), np.empty((0, 2), np.int64)
        for side, pieces in enumerate((task.source, task.target)):
            for rows in read_pieces(pieces):
                more = np.zeros((len(rows), 2), np.int64)
                more[:, side] = 1
                keys = rows["digests"][:, self.columns]
                table, counts = _distinct(
                    np.concatenate([table, keys]), np.concatenate([counts, more])
                )
        self._table = table
        self._first_column = np.ascontiguousarray(table[:, 0])
        self.pairs: _Numbers = counts.min(axis=1)
        self.first_pairs: _Numbers = np.cumsum(self.pairs) - self.pairs

    def index_of(self, keys: NDArray[np.uint64]) -> _Numbers:
        """Where in the table each key is; all of them are there."""
        index = np.searchsorted(self._first_column, keys[:, 0])
        while (others := (self._table[index] != keys).any(axis=1)).any():
            index[others] += 1  # equal first digests of different records: hardly ever
        return index


def _distinct(keys: NDArray[np.uint64], counts: _Numbers) -> tuple[NDArray[np.uint64], _Numbers]:
    """Each key once, in order, with the sum of its counts."""
    order = np.lexsort(keys.T[::-1])
    ordered = keys[order]
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(is_first)
    return ordered[starts], np.add.reduceat(counts[order], starts)


@attrs.frozen(eq=False)
class _Ranked:
    """Some records of one side: which of them have a pair, and the number of each one's pair."""

    rows: Found
    has_pair: NDArray[np.bool_]
    pair_numbers: _Numbers


def _ranked(pieces: Iterable[Piece], keys: _Keys) -> Iterator[_Ranked]:
    seen = np.zeros(len(keys.pairs), np.int64)
    for rows in read_pieces(pieces):
        index = keys.index_of(rows["digests"][:, keys.columns])
        rank = seen[index] + _rank(index)
        yield _Ranked(rows, rank < keys.pairs[index], keys.first_pairs[index] + rank)
        np.add.at(seen, index, 1)


def _rank(numbers: _Numbers) -> _Numbers:
    """How many equal numbers stand before each."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    rank = np.empty(len(numbers), np.int64)
    rank[order] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return rank


class _Side:
    """One side while its group is paired: the rest, and the pairs that are named."""

    def __init__(self, task: PairTask) -> None:
        self._task = task
        self._writer = None if task.onward is None else BlockWriter(task.onward)
        self._count = 0
        self._numbers = np.empty(0, np.int64)

    def leave_over(self, rows: Found) -> None:
        self._count += len(rows)
        if self._writer is not None:
            self._writer.add(rows)
        else:
            numbers = np.concatenate([self._numbers, rows["number"]])
            self._numbers = np.sort(numbers)[: self._task.kept]

    def rest(self) -> Rest:
        blocks = () if self._writer is None else self._writer.finish()
        return Rest(self._count, self._numbers, blocks)


def pair_group(task: PairTask) -> Pairs:
    """Pair the records of one group that agree in the task's columns, each used once.

    Of equal keys the first is paired with the first, the second with the second. Records are read
    in chunks, so memory is that of one chunk and of the distinct keys. Raises SourceError and
    TargetError for the scratch.
    """
    keys = _Keys(task)
    source, target = _Side(task), _Side(task)
    wanted, numbers = np.empty(0, np.int64), np.empty(0, np.int64)
    for part in _ranked(task.source, keys):
        source.leave_over(part.rows[~part.has_pair])
        wanted = np.concatenate([wanted, part.pair_numbers[part.has_pair]])
        numbers = np.concatenate([numbers, part.rows["number"][part.has_pair]])
        first = np.argsort(numbers, kind="stable")[: task.kept]
        wanted, numbers = wanted[first], numbers[first]
    named = np.zeros(len(wanted), PAIR)
    named["source"] = numbers
    for part in _ranked(task.target, keys):
        target.leave_over(part.rows[~part.has_pair])
        ones = part.rows[part.has_pair]
        _, here, there = np.intersect1d(
            wanted, part.pair_numbers[part.has_pair], assume_unique=True, return_indices=True
        )
        named["target"][here] = ones["number"][there]
        named["complaint"][here] = ones["complaint"][there]
    return Pairs(int(keys.pairs.sum()), named, source.rest(), target.rest())


@attrs.frozen(eq=False)
class Comparison:
    """What the sides do not share: all of it counted, and the first of each kind named.

    ``different_pairs`` are rows of ``PAIR``; the others are numbers of entries.
    """

    different: int
    missing: int
    unexpected: int
    different_pairs: NDArray[np.void]
    missing_numbers: _Numbers
    unexpected_numbers: _Numbers

    @classmethod
    def nothing(cls) -> Self:
        """The result where both sides hold the same."""
        none = np.empty(0, np.int64)
        return cls(0, 0, 0, np.empty(0, PAIR), none, none)


def compare_sides(
    jobs: DigestJobs,
    source: SideEntries,
    target: SideEntries,
    totals: dict[Side, DigestResult],
    *,
    kept: int,
) -> Comparison:
    """Find what differs between two sides.

    ``totals`` are the digests of both. Of each kind the first ``kept`` are named, in the order of
    their log; a task returns no more than that. Where sums differ, both logs are read once more.
    """
    ours, theirs = totals["source"].buckets, totals["target"].buckets
    differing = (ours != theirs).any(axis=1)
    if not differing.any():
        return Comparison.nothing()
    records = int((ours[differing, BUCKET_COUNT] + theirs[differing, BUCKET_COUNT]).sum())
    groups = count_groups(records)
    with jobs.scratch_directory(is_needed=not is_few(records)) as directory:
        groupings = [Grouping(columns[0], groups, directory) for columns in _PAIRINGS]
        found = jobs.run("compare", [source, target], buckets=differing, grouping=groupings[0])
        sides = (found["source"].blocks, found["target"].blocks)
        paired: list[Pairs] = []
        for columns, onward in zip(_PAIRINGS, [*groupings[1:], None], strict=True):
            shown = 0 if columns == _SAME else kept
            tasks = [
                PairTask(*pieces, columns, shown, onward) for pieces in _by_group(*sides, groups)
            ]
            stage = f"pair {len(paired) + 1}/{len(_PAIRINGS)}"
            results = jobs.map(stage, tasks, pair_group, is_here=directory is None)
            paired.append(Pairs.joined(results, kept))
            sides = (paired[-1].source.blocks, paired[-1].target.blocks)
    _same, alike, rest = paired
    first = np.concatenate([alike.first, rest.first])
    return Comparison(
        different=alike.count + rest.count,
        missing=rest.source.count,
        unexpected=rest.target.count,
        different_pairs=first[np.argsort(first["source"], kind="stable")][:kept],
        missing_numbers=rest.source.numbers,
        unexpected_numbers=rest.target.numbers,
    )


def _by_group(
    source: Sequence[Block], target: Sequence[Block], groups: int
) -> Iterator[tuple[tuple[Piece, ...], tuple[Piece, ...]]]:
    """The pieces of both sides of each group that has any."""
    for group in range(groups):
        ours = tuple(piece for block in source if (piece := block.piece(group)))
        theirs = tuple(piece for block in target if (piece := block.piece(group)))
        if ours or theirs:
            yield ours, theirs
