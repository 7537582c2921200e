# SPDX-License-Identifier: Apache-2.0
"""Two sides compared like replicas: sums of digests by bucket first, then single records.

Single records are read only in buckets whose sums differ.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from migrate.verify.entries import (
    BUCKET_COUNT,
    BUCKETS,
    DIGEST_A,
    DIGEST_B,
    DIGEST_CONTENT,
    DIGEST_IDENTITY,
)
from migrate.verify.jobs import DigestJobs, SideEntries
from migrate.verify.tasks import DigestResult, FoundRecords, Side

Keys = NDArray[np.uint64] | NDArray[np.int64]


@attrs.frozen(eq=False)
class Pairing:
    """Records of both sides in pairs (row i with row i), and the rest of each side."""

    source: FoundRecords
    target: FoundRecords
    source_rest: FoundRecords
    target_rest: FoundRecords


def match_exactly(source: FoundRecords, target: FoundRecords) -> Pairing:
    """Pair records with the same digest."""
    both = np.concatenate([source.digests, target.digests])
    _, a = np.unique(both[:, DIGEST_A], return_inverse=True)
    _, b = np.unique(both[:, DIGEST_B], return_inverse=True)
    whole = a.astype(np.int64) * (len(both) + 1) + b
    return _pair(source, target, whole[: len(source)], whole[len(source) :])


def pair_by(column: int, source: FoundRecords, target: FoundRecords) -> Pairing:
    """Pair records that agree in one column of their digests (identity, or content)."""
    return _pair(source, target, source.digests[:, column], target.digests[:, column])


def _pair(
    source: FoundRecords, target: FoundRecords, source_keys: Keys, target_keys: Keys
) -> Pairing:
    """Equal keys, each used once: the first with the first, the second with the second."""
    _, numbers = np.unique(np.concatenate([source_keys, target_keys]), return_inverse=True)
    ones, others = numbers[: len(source)], numbers[len(source) :]
    stride = len(numbers) + 1
    _, left, right = np.intersect1d(
        ones * stride + _rank(ones),
        others * stride + _rank(others),
        assume_unique=True,
        return_indices=True,
    )
    source_rest, target_rest = np.ones(len(source), bool), np.ones(len(target), bool)
    source_rest[left] = False
    target_rest[right] = False
    return Pairing(source[left], target[right], source[source_rest], target[target_rest])


def _rank(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal numbers stand before each."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    rank = np.empty(len(numbers), np.int64)
    rank[order] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return rank


_ROUND_RECORDS = 4 << 20
"""So many records are looked at one by one at a time."""


@attrs.frozen(eq=False)
class Comparison:
    """What the sides do not share. ``different_source[i]`` and ``different_target[i]`` are one
    message; of these the first few are kept, ``different`` counts all.
    """

    different: int
    different_source: FoundRecords
    different_target: FoundRecords
    missing: FoundRecords
    unexpected: FoundRecords


def compare_sides(
    jobs: DigestJobs,
    source: SideEntries,
    target: SideEntries,
    totals: dict[Side, DigestResult],
    *,
    kept: int,
) -> Comparison:
    """Find what differs between two sides.

    ``totals`` are the digests of both, ``kept`` bounds the pairs of different messages that are
    returned. Reads both logs once more for each 4 million records in differing buckets.
    """
    ours, theirs = totals["source"].buckets, totals["target"].buckets
    counts = (ours[:, BUCKET_COUNT] + theirs[:, BUCKET_COUNT]).astype(np.int64)
    differing = (ours != theirs).any(axis=1)
    pairs: list[tuple[FoundRecords, FoundRecords]] = []
    source_rest, target_rest = [], []
    rounds = _rounds(differing, counts)
    for number, buckets in enumerate(rounds, start=1):
        stage = "compare" if len(rounds) == 1 else f"compare {number}/{len(rounds)}"
        found = jobs.run(stage, [source, target], buckets=buckets)
        exact = match_exactly(found["source"].found, found["target"].found)
        same = pair_by(DIGEST_IDENTITY, exact.source_rest, exact.target_rest)
        pairs.append((same.source, same.target))
        source_rest.append(same.source_rest)
        target_rest.append(same.target_rest)
    rest = pair_by(
        DIGEST_CONTENT, FoundRecords.joined(source_rest), FoundRecords.joined(target_rest)
    )
    pairs.append((rest.source, rest.target))
    return Comparison(
        different=sum(len(ours_only) for ours_only, _ in pairs),
        different_source=FoundRecords.joined([ours_only[:kept] for ours_only, _ in pairs])[:kept],
        different_target=FoundRecords.joined([other[:kept] for _, other in pairs])[:kept],
        missing=rest.source_rest,
        unexpected=rest.target_rest,
    )


def _rounds(differing: NDArray[np.bool_], counts: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """The differing buckets in groups that fit into memory; most often none, or one."""
    chosen = np.flatnonzero(differing)
    groups = np.cumsum(counts[chosen]) // _ROUND_RECORDS
    rounds = []
    for group in np.unique(groups):
        buckets = np.zeros(BUCKETS, np.bool_)
        buckets[chosen[groups == group]] = True
        rounds.append(buckets)
    return rounds
