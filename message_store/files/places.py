# SPDX-License-Identifier: Apache-2.0
"""Where those parts of a store lie that its broker keeps outside the root (`storePathCommitLog`).

A table of mounts, as it were: who knows a broker's configuration names the places of a store once.
They are looked up wherever the store is opened, and go along to other processes. A store that is
not named has all of its parts under its root.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
_named: dict[str, Places] = {}


def name_places(root: Path, places: Places) -> None:
    """Say where the parts of the store at ``root`` lie, in place of what was said before."""
    if places == UNDER_THE_ROOT:
        _named.pop(_key(root), None)
    else:
        _named[_key(root)] = places


def places_of(root: Path) -> Places:
    """Where the parts of the store at ``root`` lie."""
    return _named.get(_key(root), UNDER_THE_ROOT) if _named else UNDER_THE_ROOT


def named_places() -> Table:
    """All that was named, for another process."""
    return dict(_named)


def with_places(table: Table, function: Callable[..., Any], *values: Any) -> Any:
    """``function`` of these values in another process, where the same places are named then."""
    _named.clear()
    _named.update(table)
    return function(*values)


def each_directory_once(paths: Sequence[Path]) -> tuple[Path, ...]:
    """These directories, absolute; of those that are one the first."""
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(_key(path), path.absolute())
    return tuple(found.values())


def _key(path: Path) -> str:
    return os.path.realpath(path)
