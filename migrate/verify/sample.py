# SPDX-License-Identifier: Apache-2.0
"""A sample instead of the whole: some messages of the source, and those of the target that have the
same ranks.

That the two sides have the same order is a guess, not a belief: only where the sampled records are
found alike, one for one, is anything concluded. Where they are not, everything is read.
"""

from typing import TYPE_CHECKING

import attrs
import numpy as np

from migrate.verify.digests import DigestResult, Side
from migrate.verify.jobs import SideEntries

if TYPE_CHECKING:
    from migrate.verify.verify import VerifyOptions


def some_entries(
    source: SideEntries, target: SideEntries, options: "VerifyOptions"
) -> tuple[SideEntries, SideEntries] | None:
    """The same few of both sides; None where all are to be read: nobody asked for a sample, there
    are no more than that, or the sides do not even count the same.
    """
    count = len(source.entries)
    if options.read_only is None or source.topics or len(target.entries) != count:
        return None
    if options.read_only >= count:
        return None
    chosen = np.random.default_rng(options.seed).permutation(count)[: options.read_only]
    chosen.sort()
    return (
        attrs.evolve(source, entries=source.entries[chosen]),
        attrs.evolve(target, entries=target.entries[chosen]),
    )


def is_alike(totals: dict[Side, DigestResult]) -> bool:
    """Whether both sides have the same messages, and nobody complains of one."""
    source, target = totals["source"], totals["target"]
    return bool((source.buckets == target.buckets).all()) and not target.complaints
