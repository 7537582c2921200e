# SPDX-License-Identifier: Apache-2.0
"""Unique keys for messages that bring none: 32 hexadecimal digits, as RocketMQ's clients make them.

Where Java puts address, process and class loader stand ten random bytes, new for every process,
every fork and every column. The six bytes behind them (Java: four of time, two of a counter) count
up from zero. Tools that read the time of a message from its key find the beginning of the month
there, and so look for the message from then on.
"""

import itertools
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from message_store.byte_column import ByteColumn

UNIQUE_KEY_CHARS = 32
_PREFIX_BYTES = 10
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def _series() -> tuple[str, Iterator[int]]:
    """A prefix that nobody else has, and what to count behind it."""
    return secrets.token_hex(_PREFIX_BYTES).upper(), itertools.count()


_own = _series()


def _begin_anew() -> None:
    global _own
    _own = _series()


os.register_at_fork(after_in_child=_begin_anew)


def new_unique_key() -> str:
    """A key that no other call has given, in this process or any other; safe in every thread."""
    prefix, numbers = _own
    return f"{prefix}{next(numbers):012X}"


def new_unique_keys(count: int) -> "ByteColumn":
    """``count`` such keys as a column, in ascending order."""
    from message_store.byte_column import ByteColumn

    prefix, _ = _series()
    block = np.empty((count, UNIQUE_KEY_CHARS), np.uint8)
    block[:, : len(prefix)] = np.frombuffer(prefix.encode(), np.uint8)
    numbers = np.arange(count)
    for place in range(UNIQUE_KEY_CHARS - 1, len(prefix) - 1, -1):
        block[:, place] = _DIGITS[numbers & 15]
        numbers >>= 4
    starts = np.arange(count) * UNIQUE_KEY_CHARS
    return ByteColumn(block.ravel(), starts, np.full(count, UNIQUE_KEY_CHARS))
