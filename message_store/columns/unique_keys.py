# SPDX-License-Identifier: Apache-2.0
"""Unique keys for messages that bring none: 32 hexadecimal digits, as RocketMQ's clients make them.

Where Java puts address, process and class loader stand ten random bytes, new for every process,
every fork and every column. The six bytes behind them (Java: four of time, two of a counter) count
up from zero. Tools that read a message's time from its key find the beginning of the month there.
"""

import itertools
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from message_store.columns.byte_column import ByteColumn

UNIQUE_KEY_CHARS = 32
_PREFIX_BYTES = 10

_ENDS = [f"{number:03X}" for number in range(1 << 12)]


def _prefix() -> str:
    """A prefix that no other keys have."""
    return secrets.token_hex(_PREFIX_BYTES).upper()


def _series() -> tuple[str, Iterator[int]]:
    """A prefix, and what to count behind it."""
    return _prefix(), itertools.count()


_own = _series()
_ready: Iterator[str] = iter(())


def _begin_anew() -> None:
    global _own, _ready
    _own, _ready = _series(), iter(())


os.register_at_fork(after_in_child=_begin_anew)


def new_unique_key() -> str:
    """A key that no other call has given, in this process or any other; safe in every thread."""
    return next(_ready, "") or _first_of_more()


def _first_of_more() -> str:
    """Make the next 4,096 ready: joining two texts costs a third of writing a number out.

    Of two threads that come here at once each has keys of its own; those of one are never given.
    """
    global _ready
    prefix, numbers = _own
    ready = map(f"{prefix}{next(numbers):09X}".__add__, _ENDS)
    first = next(ready)  # before others may take from them
    _ready = ready
    return first


def new_unique_keys(count: int) -> "ByteColumn":
    """``count`` such keys as a column, in ascending order."""
    from message_store.columns.property_column import hex_key_column

    prefix = _prefix()
    return hex_key_column(
        prefix.encode(), np.arange(count, dtype=np.int64), UNIQUE_KEY_CHARS - len(prefix)
    )
