# SPDX-License-Identifier: Apache-2.0
"""The entries of all level queues in log order, in one pass: each queue is in order by itself."""

from typing import Any

from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import load_i32, load_i64, load_native, load_u8

UNITS, DUE, UNKNOWN, EXPIRED, COUNT, LEVEL, FIRST_OFFSET, LATEST_DUE = range(8)
QUEUE_FACTS = 8
"""A row a queue: addresses of its units, due times, and of a byte each for those that are unknown
and expired; how many there are, the level, the first one's queue offset, the latest due time that
is believed.
"""

_UNIT_BYTES = QUEUE_UNIT.size
_AT_OFFSET = QUEUE_UNIT.offset_of("commit_log_offset")
_AT_SIZE = QUEUE_UNIT.offset_of("size_bytes")
_END = 2**63 - 1


@kernel(
    "boolean(int64[:, ::1], int64, int64[::1], int64[::1], int64[::1], int32[::1], int16[::1],"
    " int64[::1], int64[::1], uint8[::1], uint8[::1])"
)
def merge_queues(
    queues: Any, plausible_ms: int, heads: Any, done: Any, offsets: Any, sizes: Any, levels: Any,
    queue_offsets: Any, due_ms: Any, is_known: Any, is_expired: Any,
) -> bool:  # fmt: skip
    """Fill the columns, from ``offsets`` on, with the entries of all queues by log offset; of equal
    ones that of the first queue comes first.

    False when a queue is not in order, or has an offset that no log reaches; the columns then hold
    nothing of use. A due time is known when it is above ``plausible_ms``, not beyond the latest,
    and not marked unknown. ``heads`` and ``done`` are scratch, an element a queue.
    """
    for queue in range(len(queues)):
        done[queue] = 0
        heads[queue] = load_i64(queues[queue, UNITS] + _AT_OFFSET) if queues[queue, COUNT] else _END
    for row in range(len(offsets)):
        lowest, head = 0, heads[0]
        for queue in range(1, len(queues)):
            if heads[queue] < head:
                lowest, head = queue, heads[queue]
        at = done[lowest]
        if at == queues[lowest, COUNT]:
            return False
        unit = queues[lowest, UNITS] + at * _UNIT_BYTES
        due = load_native(queues[lowest, DUE] + 8 * at)
        offsets[row] = head
        sizes[row] = load_i32(unit + _AT_SIZE)
        levels[row] = queues[lowest, LEVEL]
        queue_offsets[row] = queues[lowest, FIRST_OFFSET] + at
        due_ms[row] = due
        is_known[row] = (
            due > plausible_ms
            and due <= queues[lowest, LATEST_DUE]
            and load_u8(queues[lowest, UNKNOWN] + at) == 0
        )
        is_expired[row] = load_u8(queues[lowest, EXPIRED] + at)
        done[lowest] = at + 1
        heads[lowest] = _END
        if at + 1 < queues[lowest, COUNT]:
            heads[lowest] = load_i64(unit + _UNIT_BYTES + _AT_OFFSET)
            if heads[lowest] < head:
                return False
    return True
