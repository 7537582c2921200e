# SPDX-License-Identifier: Apache-2.0
"""Which records of two sides are the same message: multisets of digests, then pairs by content.

Two messages are never taken for one because a key agrees: what is compared first is everything that
must survive, with multiplicity. Only what is left over is paired, by who it is (real topic, unique
key, born time), then by what it carries (real topic and body), to say that one message is different
instead of one missing and one unexpected.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from migrate.verify.digests import FoundRecords
from migrate.verify.entries import DIGEST_A, DIGEST_B

Keys = NDArray[np.uint64] | NDArray[np.int64]


@attrs.frozen(eq=False)
class Pairing:
    """Rows of two sides that belong together, one by one, and the rows left over on each side."""

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
