# SPDX-License-Identifier: Apache-2.0
"""Where records of a log lie in memory, so that a kernel can read whole ones and nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_store.columns.byte_column import Int64s

if TYPE_CHECKING:
    from message_store.writing.log import LiveLog


def record_addresses(log: LiveLog, offsets: Int64s, sizes: Int64s) -> Int64s:
    """The address of each record; -1 for one that does not lie within one file and the log's end.

    Valid while the log's lock is held.
    """
    addresses = log.addresses(offsets)
    addresses[(sizes <= 0) | (sizes > log.rooms(offsets))] = -1
    return addresses
