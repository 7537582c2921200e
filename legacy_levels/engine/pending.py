# SPDX-License-Identifier: Apache-2.0
"""What waits in the levels and passes the filters asked for, read from queues and log in bulk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import numpy as np

from legacy_levels.engine.waiting_records import equals, read_waiting
from message_store.base.errors import FormatError
from message_store.interface.delay_store import Pending

if TYPE_CHECKING:
    from legacy_levels.engine.cursor import LevelScanner
    from legacy_levels.engine.state import LevelState


@attrs.frozen
class PendingFilter:
    """The filters of ``DelayStore.pending``."""

    topic: str | None = None
    level: int | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    unique_key: str | None = None


def iterate_pending(state: LevelState, wanted: PendingFilter) -> Iterator[Pending]:
    """Level after level in the order of its queue. Records that are none are left out."""
    for level, scanner in state.scanners.items():
        if wanted.level in (None, level):
            pieces = _of_level(state, scanner, wanted)
            while True:
                with state.live.reading():
                    piece = next(pieces, None)
                if piece is None:
                    break
                yield from piece


def _of_level(
    state: LevelState, scanner: LevelScanner, wanted: PendingFilter
) -> Iterator[list[Pending]]:
    for _, units, waits in scanner.waiting():
        due_ms = units["tags_code"].astype(np.int64)
        if wanted.due_after_ms is not None:
            waits &= due_ms >= wanted.due_after_ms
        if wanted.due_before_ms is not None:
            waits &= due_ms < wanted.due_before_ms
        rows = np.flatnonzero(waits)
        offsets = units["commit_log_offset"][rows].astype(np.int64)
        sizes = units["size_bytes"][rows].astype(np.int64)
        due_ms = due_ms[rows]
        for part in read_waiting(state.live.log, offsets, sizes):
            passes = np.ones(len(part.rows), np.bool_)
            if wanted.topic is not None:
                passes &= equals(part.real_topic, wanted.topic.encode(errors="surrogatepass"))
            if wanted.unique_key is not None:
                passes &= equals(part.unique_key, wanted.unique_key.encode(errors="surrogatepass"))
            found = []
            for row in np.flatnonzero(passes).tolist():
                place = int(part.rows[row])
                with contextlib.suppress(FormatError):
                    found.append(
                        part.pending(row, scanner.level, int(due_ms[place]), int(sizes[place]))
                    )
            yield found
