# SPDX-License-Identifier: Apache-2.0
"""The plan of a conversion: which messages go to which log file of the target, from queue entries.

All that follows is a pure function of the plan and the source, so that a file that is written twice
has the same bytes. How long a record becomes is known when it is written; what is planned is how
long it becomes at most. Where each record lies, and in which slot it waits, follows from that:
``plan.target_rows``.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from threading import Thread
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError
from message_store.files.array_room import (
    marked_rows,
    new_array,
    row_blocks,
    rows_where,
    running_sums,
)
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES, PROPERTIES_MAX_BYTES
from migrate.settings import WHEEL, TargetSettings
from migrate.write.rewrite import growth_bytes
from timer_wheel.placing import out_times

Int64Array = NDArray[np.int64]
Rows = Int64Array | range
"""Indexes into a backlog: a range where they are all."""
OUT_MS_MIN, OUT_MS_END = 10**12, 10**13
"""TIMER_OUT_MS has 13 digits from 2001 to 2286; a due time outside is damage."""
BACKLOG_MAX_MESSAGES = 2**31 - 1
RESERVE_MAX = 4096
"""So many messages are written last, at most: they take the places of records that turn out bad."""


_ALONE_BYTES = 64 << 20
"""Up to so much is one file; a choice, of which only 0.4 GB was measured: it gains by two."""


class PlannedEntries(Protocol):
    """What a plan needs to know of every entry, a row each: a backlog, or several."""

    @property
    def level(self) -> NDArray[Any]:
        """The level of each entry."""

    @property
    def due_ms(self) -> Int64Array:
        """The due time of each entry."""

    @property
    def commit_log_offset(self) -> Int64Array:
        """Where its record begins in the log of its source."""

    @property
    def size_bytes(self) -> NDArray[Any]:
        """The size of each entry's record."""


@attrs.frozen
class Corrections:
    """Records that cannot be converted, and why; keys are indexes into the backlog."""

    bad: dict[int, str] = attrs.field(factory=dict)

    def learn(self, chosen: Rows, bad: Mapping[int, str]) -> "Corrections":
        """Add what was found of messages, by their index in the plan that chose ``chosen``."""
        found = {int(chosen[index]): why for index, why in bad.items()}
        return Corrections({**self.bad, **found})


@attrs.frozen
class Cut:
    """Which messages go to which log file: the first of each file, and last the number of messages;
    the same of each source.
    """

    files: Sequence[int]
    sources: Sequence[int]

    @property
    def file_count(self) -> int:
        """How many log files the target gets."""
        return len(self.files) - 1

    @property
    def reserve(self) -> int:
        """The first message of the reserve: from there on they are written last, so that no place
        of the others depends on how many of them are bad. With one file nothing follows: there is
        none.
        """
        count = self.files[-1]
        if self.file_count < 2:
            return count
        return count - min(RESERVE_MAX, (count - self.files[-2]) // 2)

    def rows_of(self, file: int) -> range:
        """The messages that a log file is planned to hold, but for the reserve."""
        return range(self.files[file], min(self.files[file + 1], self.reserve))

    def runs(self, rows: range) -> Iterator[tuple[int, int, int]]:
        """These messages by source: its number, and its first and end among them."""
        for source, bounds in enumerate(pairwise(self.sources)):
            first, end = max(rows.start, bounds[0]), min(rows.stop, bounds[1])
            if first < end:
                yield source, first, end


@attrs.frozen(eq=False)
class Plan:
    """One element a message, in store order.

    ``chosen`` are indexes into the backlog; ``most_bytes`` is how long each record becomes at most.
    ``engine`` is what the target is for.
    """

    identity: str
    now_ms: int
    settings: TargetSettings
    chosen: Rows
    source_offsets: Int64Array
    source_sizes: NDArray[np.int32]
    levels: NDArray[np.int16]
    due_ms: Int64Array
    outs_ms: Int64Array
    most_bytes: Int64Array
    cut: Cut
    engine: str = WHEEL

    def __len__(self) -> int:
        return len(self.chosen)


def make_plan(
    backlog: PlannedEntries,
    chosen: NDArray[np.bool_],
    *,
    now_ms: int,
    settings: TargetSettings,
    request: dict[str, Any],
    corrections: Corrections,
    source_starts: Sequence[int] = (0,),
) -> Plan:
    """Plan the conversion of the ``chosen`` entries (a mask), less the bad ones.

    ``request`` is what a continued run must have in common; it goes into the plan's identity.
    ``source_starts`` are the first rows of the sources. Raises PlanError for too many messages.
    """
    kept = chosen
    if corrections.bad:
        kept = new_array(len(chosen), np.bool_)
        kept[:] = chosen
        kept[list(corrections.bad)] = False
    is_all = bool(kept.all())
    picked: Rows = range(len(kept)) if is_all else rows_where(len(kept), lambda rows: kept[rows])
    if len(picked) > BACKLOG_MAX_MESSAGES:
        raise PlanError(f"{len(picked)} messages are more than one plan holds; convert by level")

    def of_picked(column: NDArray[Any]) -> NDArray[Any]:
        return column if is_all else marked_rows(column, kept)

    levels = of_picked(backlog.level).astype(np.int16, copy=False)
    due_ms = of_picked(backlog.due_ms)
    source_offsets = of_picked(backlog.commit_log_offset)
    source_sizes = of_picked(backlog.size_bytes).astype(np.int32, copy=False)
    facts = {**request, "amendments": attrs.asdict(corrections)}
    identity = _Identity(facts, source_offsets, source_sizes, levels, due_ms)
    file_bytes = settings.commit_log_file_bytes
    most_bytes = _most_bytes(levels, source_sizes, file_bytes - END_OF_FILE_MIN_BYTES)
    firsts = [*source_starts, len(kept)]
    return Plan(
        identity=identity.text(),
        now_ms=now_ms,
        settings=settings,
        chosen=picked,
        source_offsets=source_offsets,
        source_sizes=source_sizes,
        levels=levels,
        due_ms=due_ms,
        outs_ms=out_times(due_ms, settings.precision_ms),
        most_bytes=most_bytes,
        cut=Cut(
            cut_files(most_bytes, file_bytes), [bisect_left(picked, first) for first in firsts]
        ),
        engine=request.get("to", WHEEL),
    )


def cut_files(most_bytes: Int64Array, file_bytes: int) -> list[int]:
    """Cut records of at most these lengths into as few log files as hold them, about equally long,
    so that no task waits for a longer one; but more than a few are two, which two cores write.
    Returns the first record of each, and their number.

    Each is shorter than a file. A file ends in at least eight free bytes (docs/FORMAT.md, commit
    log).

    >>> cut_files(np.full(10, 300), 1000), cut_files(np.full(0, 1), 1000)
    ([0, 2, 5, 7, 10], [0])
    """
    if not len(most_bytes):
        return [0]
    ends = running_sums(most_bytes)
    total = int(ends[-1])
    room = file_bytes - END_OF_FILE_MIN_BYTES
    count = max(2 if total > _ALONE_BYTES else 1, -(-total // room))
    while True:
        marks = [total * number // count for number in range(1, count)]
        cuts = np.searchsorted(ends, marks, side="right").tolist()
        bounds = sorted({0, *cuts, len(ends)})
        if int(np.diff([0, *ends[np.array(bounds[1:]) - 1]]).max()) <= room:
            return bounds
        count += 1


def implausible_entries(
    backlog: PlannedEntries, chosen: NDArray[np.bool_], precision_ms: int
) -> Corrections:
    """The chosen entries whose due time is damage, as bad ones."""
    due_ms = backlog.due_ms
    bad = rows_where(
        len(due_ms), lambda rows: chosen[rows] & implausible_due(due_ms[rows], precision_ms)
    )
    return Corrections(bad={int(row): f"due time {due_ms[row]} is no time" for row in bad})


def implausible_due(due_ms: Int64Array, precision_ms: int) -> NDArray[np.bool_]:
    """Due times that are damage: their out time would not have 13 digits."""
    return np.asarray((due_ms < OUT_MS_MIN + precision_ms) | (due_ms >= OUT_MS_END))


def _most_bytes(
    levels: NDArray[np.int16], source_sizes: NDArray[np.int32], room: int
) -> Int64Array:
    """How long each record becomes at most, of those that ``room`` may take; else 0."""
    highest = int(levels.max()) if len(levels) else 0
    growth = np.array([growth_bytes(level, OUT_MS_MIN) for level in range(highest + 1)], np.int64)
    most_bytes = new_array(len(levels), np.int64)
    for rows in row_blocks(len(levels)):
        most = growth[levels[rows]]
        most += source_sizes[rows]
        # Properties may go: then a record fits that looks too long for a file.
        most[(most < 0) | (most > room + PROPERTIES_MAX_BYTES)] = 0
        np.minimum(most, room, out=most_bytes[rows])
    return most_bytes


class _Identity:
    """A digest of all that a plan is made from, worked out while the plan is."""

    def __init__(self, request: dict[str, Any], *arrays: NDArray[Any]) -> None:
        self._digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode())
        self._thread = Thread(target=self._take, args=arrays, name="plan-identity", daemon=True)
        self._thread.start()

    def _take(self, *arrays: NDArray[Any]) -> None:
        for array in arrays:
            self._digest.update(np.ascontiguousarray(array).data)

    def text(self) -> str:
        """The digest, once it is there."""
        self._thread.join()
        return self._digest.hexdigest()
