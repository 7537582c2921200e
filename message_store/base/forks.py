# SPDX-License-Identifier: Apache-2.0
"""Stores that a process has open stay its own when it forks.

A child that continued writing would write beside its parent, under the parent's lock. It also lacks
the threads that the parent's libraries run.
"""

import os
from typing import Protocol
from weakref import WeakSet


class OpenHere(Protocol):
    """Something that only the process that opened it can use."""

    def leave_to_parent(self) -> None:
        """In a child, right after the fork: be of no use, and touch nothing."""


_open_here: WeakSet[OpenHere] = WeakSet()
_never_freed: list[OpenHere] = []


def belongs_to_this_process(thing: OpenHere) -> None:
    """From now on a forked child has this taken away."""
    _open_here.add(thing)


def _leave_all() -> None:
    _never_freed.extend(_open_here)  # freeing would close, and wait for threads that are not there
    for thing in _never_freed:
        thing.leave_to_parent()
    _open_here.clear()


os.register_at_fork(after_in_child=_leave_all)
