# SPDX-License-Identifier: Apache-2.0
"""Targets that several sources were merged into: which of the messages that a wheel leads to are
those of one source, and whether every message is somebody's.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from message_store.files.store_root import StoreRoot
from migrate.report.conversion_marker import CONVERSION_NAME, read_marker
from migrate.verify.report import Problem


def own_entries(entries: NDArray[np.void], share: tuple[int, int] | None) -> NDArray[np.void]:
    """The rows of TARGET_ENTRY that belong to a source; those that no queue entry leads to, which
    are nobody's, are everybody's, so that they are found unexpected.
    """
    if share is None:
        return entries
    first, end = share
    offsets = entries["queue_offset"]
    return entries[(offsets < 0) | ((offsets >= first) & (offsets < end))]


def are_all_shares(shares: Iterable[tuple[int, int] | None], entries: NDArray[np.void]) -> bool:
    """Whether these shares are all of a target's queue."""
    lengths = [end - first for first, end in set(filter(None, shares))]
    return sum(lengths) == int(entries["queue_offset"].max(initial=-1)) + 1


def share_problems(root: StoreRoot, entries: NDArray[np.void]) -> Iterator[Problem]:
    """Shares that leave out or share messages of the target's queue, so that verifying every source
    would not be verifying every message.
    """
    shares = sorted(
        (int(one["target_queue_offset"]), int(one["converted"]))
        for one in read_marker(root)["sources"]
    )
    expected = 0
    for first, converted in shares:
        if first != expected:
            what = f"the messages of one source begin at {first} and should at {expected}"
            yield Problem(CONVERSION_NAME, what)
        expected = first + converted
    queue_length = int(entries["queue_offset"].max(initial=-1)) + 1
    if expected != queue_length:
        what = f"its sources have {expected} messages and the target's queue {queue_length}"
        yield Problem(CONVERSION_NAME, what, abs(expected - queue_length))
