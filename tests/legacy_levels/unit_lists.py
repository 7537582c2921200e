# SPDX-License-Identifier: Apache-2.0
"""A level queue in memory, and the plainest account of what is due in it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.consume_queue import UnitArray

RECORD_BYTES = 100


class UnitList:
    """A queue that a test fills: every record has the same length."""

    def __init__(self, due_ms: Iterable[int] = (), min_offset: int = 0) -> None:
        self.first = min_offset
        self.min_offset = min_offset
        self.rows: list[tuple[int, int, int]] = []
        self.extend(due_ms)

    @property
    def max_offset(self) -> int:
        return self.first + len(self.rows)

    def extend(self, due_ms: Iterable[int]) -> None:
        for each in due_ms:
            self.rows.append((self.max_offset * RECORD_BYTES, RECORD_BYTES, each))

    def units(self, from_offset: int, to_offset: int) -> UnitArray:
        rows = self.rows[from_offset - self.first : to_offset - self.first]
        native = QUEUE_UNIT.dtype.newbyteorder("=")
        return np.array(rows, native)

    def neutralise(self, queue_offset: int, size_bytes: int) -> None:
        offset, size, due_ms = self.rows[queue_offset - self.first]
        self.rows[queue_offset - self.first] = (offset + size - size_bytes, size_bytes, due_ms)
