# SPDX-License-Identifier: Apache-2.0
"""Root without its powers, for the length of a ``with`` block: what belongs to somebody else and is
closed is closed then, and what belongs to root stays open, Python itself included.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

SOMEBODY_ELSE = 65_534
_VERSION_3 = 0x20080522
_EFFECTIVE = (0, 3)
"""Where the rights in force are, of two times three words: in force, permitted, inherited."""

_Words = ctypes.c_uint32 * 6
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def without_powers() -> Iterator[None]:
    held = _rights()
    bare = _Words(*(0 if at in _EFFECTIVE else word for at, word in enumerate(held)))
    _set_rights(bare)
    try:
        yield
    finally:
        _set_rights(held)


def _rights() -> "ctypes.Array[ctypes.c_uint32]":
    words = _Words()
    _call("capget", words)
    return words


def _set_rights(words: "ctypes.Array[ctypes.c_uint32]") -> None:
    _call("capset", words)


def _call(name: str, words: "ctypes.Array[ctypes.c_uint32]") -> None:
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    if getattr(_libc, name)(head, words):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
