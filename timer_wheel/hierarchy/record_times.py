# SPDX-License-Identifier: Apache-2.0
"""When many records were stored, and nothing else of them: one word of memory for each."""

from typing import Any

import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.kernels.cache import kernel
from message_store.kernels.log import store_time_at
from message_store.writing.log import LiveLog
from message_store.writing.record_addresses import record_addresses


@kernel("void(int64[::1], int64[::1])")
def _read_store_times(addresses: Any, times_ms: Any) -> None:
    for row in range(len(addresses)):
        times_ms[row] = store_time_at(addresses[row]) if addresses[row] >= 0 else 0


def store_times_ms(log: LiveLog, offsets: Int64s, sizes: Int64s) -> Int64s:
    """The store time of the record at each of these places; 0 where the log has none."""
    addresses = record_addresses(log, offsets, sizes)
    times_ms = np.empty(len(addresses), np.int64)
    _read_store_times(addresses, times_ms)
    return times_ms
