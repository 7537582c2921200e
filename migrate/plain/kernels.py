# SPDX-License-Identifier: Apache-2.0
"""Kernels that list the records of a log in memory, and copy them to other offsets."""

from typing import Any

import numpy as np

from message_store.format.record_layout import (
    MAGIC_BLANK,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
)
from message_store.kernels.cache import kernel
from message_store.kernels.log import (
    AT_LOG_OFFSET,
    AT_PREPARED,
    AT_SIZE,
    AT_SYS_FLAG,
    IPV6_EXTRA,
    PARTS,
    RECORD,
    entry_head_bytes,
    prepared_offset_at,
    record_at,
)
from message_store.kernels.raw_memory import copy_bytes, load_i32, store_i32, store_i64

OFFSET, SIZE, PREPARED = range(3)
"""Columns of a listed record: where it begins, its length, its prepared transaction offset."""
COLUMNS = 3
COUNT, STOPPED_AT, WHY = range(3)


@kernel("void(int64, int64, int64, int64, int64[:,::1], int64[::1])")
def list_window(
    buffer: int, length: int, base: int, file_room: int, rows: Any, results: Any
) -> None:
    """List the whole records from the start of a buffer, as ``kernels.log.walk_window`` walks it.

    ``rows`` has a row for each record that the buffer can hold. ``results`` gets how many there
    are, where the walk stopped, and why.
    """
    parts = np.zeros(PARTS, np.int64)
    place, count = 0, 0
    while True:
        at = place + entry_head_bytes(buffer + place, length - place, base + place)
        record = buffer + at
        why = record_at(record, length - at, file_room - at, base + at, parts.ctypes.data)
        if why != RECORD:
            break
        rows[count, OFFSET] = base + at
        rows[count, SIZE] = load_i32(record + AT_SIZE)
        rows[count, PREPARED] = prepared_offset_at(record)
        place = at + rows[count, SIZE]
        count += 1
    results[COUNT], results[STOPPED_AT], results[WHY] = count, place, why


@kernel("void(int64, int64, int64[:,::1], int64[::1], int64[::1], int64, int64)")
def put_records(
    buffer: int, base: int, rows: Any, positions: Any, prepared: Any, start: int, out: int
) -> None:
    """Copy listed records to their ``positions``, in memory at ``out`` for the log from ``start``
    on. Each says where it is then, and has the prepared offset that is given. Where a record begins
    a file, a blank ends the one before.
    """
    end = start
    for row in range(len(rows)):
        position, size = positions[row], rows[row, SIZE]
        if position > end:
            store_i32(out + end - start, position - end)
            store_i32(out + end - start + 4, MAGIC_BLANK)
        record = out + position - start
        copy_bytes(record, buffer + rows[row, OFFSET] - base, size)
        sys_flag = load_i32(record + AT_SYS_FLAG)
        extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
        extra += IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
        store_i64(record + AT_LOG_OFFSET, position)
        store_i64(record + AT_PREPARED + extra, prepared[row])
        end = position + size
