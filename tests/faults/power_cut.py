# SPDX-License-Identifier: Apache-2.0
"""What a disk may hold after the power is cut: everything that somebody waited for, and any part of
the rest.

Of the writes that nobody waited for any choice may be there, in whatever order the disk took them,
and one of them in part. Names and lengths come in their order, as a file system's journal has them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from tests.faults.disk_events import Event, Name, Resize, Sync, SyncNames, Write

SECTOR_BYTES = 512


@attrs.frozen
class Loose:
    """Indexes of events that nobody waited for, up to some moment."""

    data: tuple[int, ...]
    names: tuple[int, ...]


def loose(events: Sequence[Event], moment: int) -> Loose:
    """What may be missing when the power goes before the event at ``moment``."""
    data: list[int] = []
    names: list[int] = []
    for index, event in enumerate(events[:moment]):
        if isinstance(event, Write):
            data.append(index)
        elif isinstance(event, Name | Resize):
            names.append(index)
        elif isinstance(event, Sync):
            until = index if event.until is None else event.until
            data = [each for each in data if each >= until or not _is_of(events[each], event.file)]
            names = [
                each for each in names if each >= until or not _is_of(events[each], event.file)
            ]
        elif isinstance(event, SyncNames):
            until = index if event.until is None else event.until
            before = [each for each in names if each < until]
            gone = _gone(events, before, event.directory)
            kept = {
                each
                for each in before
                if not _lies_in(events[each], event.directory)
                and not _lies_below(events[each], gone)
            }
            names = [each for each in names if each >= until or each in kept]
    return Loose(tuple(data), tuple(names))


def _is_of(event: Event, file: int) -> bool:
    return isinstance(event, Write | Resize) and event.file == file


def _lies_in(event: Event, directory: str) -> bool:
    return isinstance(event, Name) and (os.path.dirname(event.path) or ".") == directory


def _gone(events: Sequence[Event], names: Sequence[int], directory: str) -> tuple[str, ...]:
    """The names that were taken out of a directory: what lay below them is gone with them."""
    found = (events[index] for index in names)
    return tuple(
        f"{event.path}{os.sep}"
        for event in found
        if isinstance(event, Name)
        and event.file is None
        and not event.is_directory
        and _lies_in(event, directory)
    )


def _lies_below(event: Event, places: tuple[str, ...]) -> bool:
    return isinstance(event, Name) and event.path.startswith(places)


@attrs.frozen
class Cut:
    """One way in which the power may go: before ``moment``, without the events in ``missing``, and
    only the first bytes of the one at ``torn``.
    """

    moment: int
    missing: frozenset[int]
    torn: int | None = None
    torn_bytes: int = 0


def every_choice(events: Sequence[Event], moment: int, last: int) -> Iterator[Cut]:
    """Each choice among the last so many writes that nobody waited for; all else is there."""
    candidates = loose(events, moment).data[-last:]
    for choice in range(1 << len(candidates)):
        missing = (index for bit, index in enumerate(candidates) if choice >> bit & 1)
        yield Cut(moment, frozenset(missing))


def any_choice(events: Sequence[Event], moment: int, rng: random.Random) -> Cut:
    """Some choice among all writes that nobody waited for, and the names up to somewhere."""
    found = loose(events, moment)
    share = rng.choice([0.02, 0.2, 0.5, 0.9])
    missing = {index for index in found.data if rng.random() < share}
    if found.names and rng.random() < 0.5:
        missing |= set(found.names[rng.randrange(len(found.names)) :])
        missing |= _beyond_the_length(events, found, missing)
    writes = [index for index in found.data if index not in missing]
    if writes and rng.random() < 0.5:
        torn = rng.choice(writes[-10:])
        event = events[torn]
        assert isinstance(event, Write)
        sectors = len(event.data) // SECTOR_BYTES
        size_bytes = SECTOR_BYTES * rng.randint(0, sectors) - event.offset % SECTOR_BYTES
        return Cut(moment, frozenset(missing), torn, max(0, size_bytes))
    return Cut(moment, frozenset(missing))


def _beyond_the_length(events: Sequence[Event], found: Loose, missing: set[int]) -> set[int]:
    """Writes to files whose length is not there: what lies behind a file's end is not its."""
    short = {event.file for index in missing if isinstance(event := events[index], Resize)}
    return {
        index
        for index in found.data
        if isinstance(event := events[index], Write) and event.file in short
    }


def make_disk(events: Sequence[Event], cut: Cut, root: Path) -> None:
    """Put there what the disk holds after this cut."""
    names = _names_after(events, cut)
    root.mkdir(parents=True)
    descriptors: dict[int, int] = {}
    for path, file in sorted(names.items()):
        if file is None:
            (root / path).mkdir(parents=True, exist_ok=True)
    for path, file in names.items():
        if file is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT
            descriptors[file] = os.open(root / path, flags, 0o644)
    try:
        _write_contents(events, cut, descriptors)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _names_after(events: Sequence[Event], cut: Cut) -> dict[str, int | None]:
    names: dict[str, int | None] = {}
    for index, event in enumerate(events[: cut.moment]):
        if not isinstance(event, Name) or index in cut.missing:
            continue
        if event.moved_from is not None:
            names.pop(event.moved_from, None)
        if event.file is None and not event.is_directory:
            names.pop(event.path, None)
        else:
            names[event.path] = event.file
    return {path: file for path, file in names.items() if path != "."}


def _write_contents(events: Sequence[Event], cut: Cut, descriptors: dict[int, int]) -> None:
    for index, event in enumerate(events[: cut.moment]):
        if index in cut.missing or not isinstance(event, Write | Resize):
            continue
        descriptor = descriptors.get(event.file)
        if descriptor is None:
            continue
        if isinstance(event, Resize):
            os.ftruncate(descriptor, event.size_bytes)
        else:
            data = event.data[: cut.torn_bytes] if index == cut.torn else event.data
            os.pwrite(descriptor, data, event.offset)
