# SPDX-License-Identifier: Apache-2.0
"""Two sides compared like replicas: sums of digests by bucket first, single records only where the
sums differ.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from migrate.verify.digests import DigestResult, FoundRecords, Side
from migrate.verify.entries import (
    BUCKET_COUNT,
    BUCKETS,
    DIGEST_CONTENT,
    DIGEST_IDENTITY,
)
from migrate.verify.jobs import DigestJobs, SideEntries
from migrate.verify.matching import match_exactly, pair_by

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
    """Find what differs, given the digests of both sides; ``kept`` bounds the pairs returned."""
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
        different=sum(len(one) for one, _ in pairs),
        different_source=FoundRecords.joined([one[:kept] for one, _ in pairs])[:kept],
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
