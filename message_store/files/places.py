# SPDX-License-Identifier: Apache-2.0
"""Where those parts of a store lie that its broker keeps outside the root (`storePathCommitLog`).

Who knows a broker's configuration names the places of a store around the call that opens it, by
``placed``. A ``StoreRoot`` that is made there has them as a field. They hold in that thread, in
those of ``parallel_map``, and in tasks of Spark. A store that is not named has all of its parts
under its root.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

Table = Mapping[str, "Places"]


@attrs.frozen
class Places:
    """The directories of one store, absolute; what is empty or None lies under the root.

    ``commit_logs`` have the files of the ordinary log, ``entries`` those of a DLedger log, and
    ``consume_queues`` is the parent of all queues. A link under the root may lead to one of
    ``linked``.
    """

    commit_logs: tuple[Path, ...] = ()
    entries: tuple[Path, ...] = ()
    consume_queues: Path | None = None
    linked: tuple[Path, ...] = ()

    @property
    def elsewhere(self) -> tuple[Path, ...]:
        """The directories that are named in place of one under the root."""
        queues = () if self.consume_queues is None else (self.consume_queues,)
        return (*self.commit_logs, *self.entries, *queues)


UNDER_THE_ROOT = Places()
_named: ContextVar[Table] = ContextVar("named places", default=MappingProxyType({}))


@contextmanager
def placed(root: Path, places: Places) -> Iterator[None]:
    """The parts of the store at ``root`` lie there during the ``with`` block."""
    token = _named.set({**_named.get(), _key(root): places})
    try:
        yield
    finally:
        _named.reset(token)


def places_of(root: Path) -> Places:
    """Where the parts of the store at ``root`` lie."""
    return table.get(_key(root), UNDER_THE_ROOT) if (table := _named.get()) else UNDER_THE_ROOT


def named_places() -> Table:
    """All that is named here, for another process."""
    return dict(_named.get())


def with_places(table: Table, function: Callable[..., Any], *values: Any) -> Any:
    """``function`` of these values in another process, where the same places are named then."""
    token = _named.set(table)
    try:
        return function(*values)
    finally:
        _named.reset(token)


def each_directory_once(paths: Sequence[Path]) -> tuple[Path, ...]:
    """These directories, absolute; of those that are one the first."""
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(_key(path), path.absolute())
    return tuple(found.values())


def _key(path: Path) -> str:
    return os.path.realpath(path)
