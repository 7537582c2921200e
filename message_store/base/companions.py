# SPDX-License-Identifier: Apache-2.0
"""What is kept beside an open store and ends with it, such as the progress of consumer groups.

A store knows its companions by this interface alone. It tells them when it is flushed and closed.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar, cast


class Companion(Protocol):
    """Something that speaks of a store's records, and so becomes durable behind them."""

    def begin_flush(self) -> None:
        """All records that are stored now will be durable at the next ``flush``."""

    def flush(self, *, is_last: bool) -> None:
        """The records of the last ``begin_flush`` are durable. Raises TargetError."""

    def let_go(self) -> None:
        """Give the files back and write nothing more, as a kill would; twice is fine."""


Kind = TypeVar("Kind", bound=Companion)


class Companions:
    """The companions of one store, one of each class; whoever calls holds the store's lock."""

    def __init__(self) -> None:
        self._kept: dict[type[Companion], Companion] = {}

    def of(self, kind: type[Kind], make: Callable[[], Kind]) -> Kind:
        """The companion of this class, which is made when it is first asked for."""
        if kind not in self._kept:
            self._kept[kind] = make()
        return cast(Kind, self._kept[kind])

    def begin_flush(self) -> None:
        """Tell each of them."""
        for companion in self._kept.values():
            companion.begin_flush()

    def flush(self, *, is_last: bool = False) -> None:
        """Tell each of them. Raises TargetError."""
        for companion in tuple(self._kept.values()):
            companion.flush(is_last=is_last)

    def let_go(self) -> None:
        """Tell each of them."""
        for companion in self._kept.values():
            companion.let_go()
