# SPDX-License-Identifier: Apache-2.0
"""A time index beside the log: which messages are due when, in files of ten minutes each."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from time_index.store import TimeIndexStore

__all__ = ["TimeIndexStore"]


def __getattr__(name: str) -> Any:
    if name == "TimeIndexStore":  # it brings numba with it, which reading a store needs not
        from time_index.store import TimeIndexStore

        return TimeIndexStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
