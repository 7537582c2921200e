# SPDX-License-Identifier: Apache-2.0
"""The plan of a conversion: where every record, unit and slot of the target goes, from queue
entries.

All that follows is a pure function of the plan and the source. Parts never overlap, and a repeated
part is written with the same bytes. Sizes are known in advance because a usual record grows by a
fixed number of bytes. Records that do not are found while writing; they become ``Corrections``,
with which the plan is computed anew.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Thread
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError
from message_store.format.layout import Field, Layout
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.kernels.cache import kernel
from migrate.settings import WHEEL, TargetSettings
from migrate.write.rewrite import growth_bytes
from timer_wheel.format.wheel_math import WHEEL_SLOTS, floor_ms
from timer_wheel.placing import Placing, place

PART = Layout(
    "part of a conversion",
    (
        Field("first", "i64", "index of its first message"),
        Field("end", "i64", "index behind its last message"),
        Field("log_offset", "i64", "where its first record begins in the target log"),
        Field("log_end", "i64", "behind its last record"),
        Field(
            "blank_bytes",
            "i64",
            "length of the blank behind it; 0 when the file goes on or ends the log",
        ),
        Field("source", "i64", "which of the sources its messages are from"),
    ),
)
_Row = tuple[int, int, int, int, int]
Int64Array = NDArray[np.int64]
OUT_MS_MIN, OUT_MS_END = 10**12, 10**13
"""TIMER_OUT_MS has 13 digits from 2001 to 2286; a due time outside is damage."""
BACKLOG_MAX_MESSAGES = 2**31 - 1
PLANNED_RECORD_MAX_BYTES = 64 << 20
"""A longer record is planned with size 0; the writer reports its real size, for the next plan."""


@attrs.frozen(eq=False)
class LogPlan:
    """``offsets``: where each record begins, int64; ``parts``: an array of PART's dtype;
    ``end_offset``: the log's.
    """

    offsets: NDArray[np.int64]
    parts: NDArray[Any]
    end_offset: int


def plan_log(
    sizes: NDArray[np.int64], *, file_bytes: int, part_bytes: int, source_ends: Sequence[int] = ()
) -> LogPlan:
    """Lay records of these sizes out one behind the other, and cut the row into parts of about
    ``part_bytes``; a part is a run of records within one file.

    A record fits into a file only if eight bytes stay free behind it. Otherwise the file ends in a
    blank, and the record begins the next file (docs/FORMAT.md, commit log).
    ``source_ends`` are the indexes at which the messages of one source end and those of the next
    begin: there a part ends too. Every size fits a file. A pure function: the same sizes give the
    same places and the same parts.

    >>> plan = plan_log(np.array([400, 400, 400], np.int64), file_bytes=1000, part_bytes=10_000)
    >>> plan.offsets.tolist(), [tuple(part) for part in plan.parts.tolist()]
    ([0, 400, 1000], [(0, 2, 0, 800, 200, 0), (2, 3, 1000, 1400, 0, 0)])
    """
    ends = np.cumsum(sizes)
    files: list[tuple[int, int, int]] = []
    first, file_start = 0, 0
    while first < len(sizes):
        packed_start = int(ends[first] - sizes[first])
        room = file_bytes - END_OF_FILE_MIN_BYTES
        behind = int(np.searchsorted(ends, packed_start + room, side="right"))
        files.append((first, behind, file_start - packed_start))
        first, file_start = behind, file_start + file_bytes
    offsets = np.subtract(ends, sizes, out=ends)  # in its place: fresh memory is dear
    rows: list[_Row] = []
    for number, (first, behind, shift) in enumerate(files):
        offsets[first:behind] += shift
        log_end = int(offsets[behind - 1] + sizes[behind - 1])
        blank = (number + 1) * file_bytes - log_end if behind < len(sizes) else 0
        rows += _cut(offsets, first, behind, log_end, blank, part_bytes, source_ends)
    parts = np.empty(len(rows), PART.dtype)
    for name, column in zip(PART.dtype.names or (), zip(*rows, strict=True), strict=False):
        parts[name] = column
    parts["source"] = np.searchsorted(np.array(source_ends, np.int64), parts["first"], "right")
    return LogPlan(offsets, parts, int(parts["log_end"][-1]) if rows else 0)


def _cut(
    offsets: NDArray[np.int64],
    first: int,
    end: int,
    log_end: int,
    blank: int,
    part_bytes: int,
    source_ends: Sequence[int],
) -> list[_Row]:
    """The parts of one file, the last of them with the file's blank."""
    base = int(offsets[first])
    marks = np.arange(base + part_bytes, log_end, part_bytes)
    cuts = np.searchsorted(offsets[first:end], marks, side="left") + first
    wanted = sorted({*cuts.tolist(), *source_ends})
    bounds = [first, *(cut for cut in wanted if first < cut < end), end]
    rows = []
    for begin, stop in pairwise(bounds):
        is_last = stop == end
        part_end = log_end if is_last else int(offsets[stop])
        rows.append((begin, stop, int(offsets[begin]), part_end, blank if is_last else 0))
    return rows


@kernel("void(int64[::1], int64, int32[::1], int32[::1], int32[::1], int32[::1])")
def link_chains(
    slot_times_ms: Any, precision_ms: int, distances: Any, first: Any, last: Any, counts: Any
) -> None:
    """Walk the slot time of every message in store order.

    ``distances[i]`` becomes how many messages back the previous one of the same slot is, 0 when
    there is none. ``first``, ``last`` (filled with -1) and ``counts`` (zeros) are per slot of the
    wheel.
    """
    for i in range(len(slot_times_ms)):
        slot = slot_times_ms[i] // precision_ms % WHEEL_SLOTS
        before = last[slot]
        if before < 0:
            first[slot] = i
            distances[i] = 0
        else:
            distances[i] = i - before
        last[slot] = i
        counts[slot] += 1


class PlannedEntries(Protocol):
    """What a plan needs to know of every entry, a row each: a backlog, or several."""

    @property
    def level(self) -> NDArray[Any]:
        """Its level."""

    @property
    def due_ms(self) -> Int64Array:
        """When its message is due."""

    @property
    def commit_log_offset(self) -> Int64Array:
        """Where its record begins in the log of its source."""

    @property
    def size_bytes(self) -> NDArray[Any]:
        """How long its record is."""


@attrs.frozen
class Corrections:
    """Records that cannot be converted, with reasons, and sizes of odd records, found by writing.

    Keys are indexes into the backlog.
    """

    bad: dict[int, str] = attrs.field(factory=dict)
    sizes: dict[int, int] = attrs.field(factory=dict)

    def learn(
        self, chosen: NDArray[np.int64], bad: Mapping[int, str], sizes: Mapping[int, int]
    ) -> "Corrections":
        """Add what was found of messages, by their index in the plan that chose ``chosen``."""
        return Corrections(
            bad={**self.bad, **{int(chosen[index]): why for index, why in bad.items()}},
            sizes={**self.sizes, **{int(chosen[index]): size for index, size in sizes.items()}},
        )


@attrs.frozen(eq=False)
class SlotTable:
    """The used slots, an element each: time, index of first and last message, and count."""

    slot_time_ms: Int64Array
    first_index: Int64Array
    last_index: Int64Array
    counts: Int64Array


@attrs.frozen(eq=False)
class Plan:
    """One element a message, in store order, unless said otherwise.

    ``chosen`` are indexes into the backlog; ``distances`` lead to the message before in the same
    slot (0: none). ``engine`` is what the target is for.
    """

    identity: str
    now_ms: int
    write_time_ms: int
    settings: TargetSettings
    chosen: Int64Array
    source_offsets: Int64Array
    source_sizes: NDArray[np.int32]
    levels: NDArray[np.int16]
    due_ms: Int64Array
    outs_ms: Int64Array
    target_sizes: Int64Array
    slot_times_ms: Int64Array
    flags: NDArray[np.int32]
    distances: NDArray[np.int32]
    slots: SlotTable
    log: LogPlan
    engine: str = WHEEL

    def __len__(self) -> int:
        return len(self.chosen)


def make_plan(
    backlog: PlannedEntries,
    chosen: NDArray[np.bool_],
    *,
    now_ms: int,
    settings: TargetSettings,
    part_bytes: int,
    request: dict[str, Any],
    corrections: Corrections,
    source_starts: Sequence[int] = (0,),
) -> Plan:
    """Plan the conversion of the ``chosen`` entries (a mask), less the bad ones.

    ``request`` is what a continued run must have in common; it goes into the plan's identity.
    ``source_starts`` are the first rows of the sources. ``part_bytes`` is the size of a part.
    Raises PlanError for too many messages.
    """
    kept = chosen.copy()
    kept[list(corrections.bad)] = False
    picked = np.flatnonzero(kept)
    if len(picked) > BACKLOG_MAX_MESSAGES:
        raise PlanError(f"{len(picked)} messages are more than one plan holds; convert by level")
    which = slice(None) if len(picked) == len(kept) else picked  # usually all, without a copy
    levels = backlog.level[which].astype(np.int16, copy=False)
    due_ms = backlog.due_ms[which]
    source_offsets = backlog.commit_log_offset[which]
    source_sizes = backlog.size_bytes[which].astype(np.int32, copy=False)
    facts = {**request, "amendments": attrs.asdict(corrections)}
    identity = _Identity(facts, source_offsets, source_sizes, levels, due_ms)
    with ThreadPoolExecutor(1, "plan-log") as beside:
        of_sizes = source_sizes, levels, settings, picked, corrections
        log_planned = beside.submit(_plan_log, *of_sizes, part_bytes, source_starts)
        placing, distances, slots = place_in_slots(due_ms, now_ms, settings)
        sizes, log = log_planned.result()
    return Plan(
        identity=identity.text(),
        now_ms=now_ms,
        write_time_ms=floor_ms(now_ms, settings.precision_ms),
        settings=settings,
        chosen=picked,
        source_offsets=source_offsets,
        source_sizes=source_sizes,
        levels=levels,
        due_ms=due_ms,
        outs_ms=placing.out_ms,
        target_sizes=sizes,
        slot_times_ms=placing.slot_time_ms,
        flags=placing.flags,
        distances=distances,
        slots=slots,
        log=log,
        engine=request.get("to", WHEEL),
    )


def _plan_log(
    source_sizes: NDArray[np.int32],
    levels: NDArray[np.int16],
    settings: TargetSettings,
    picked: Int64Array,
    corrections: Corrections,
    part_bytes: int,
    source_starts: Sequence[int],
) -> tuple[Int64Array, LogPlan]:
    """The length and the offset of each record."""
    sizes = _target_sizes(source_sizes, levels, settings, picked, corrections)
    log = plan_log(
        sizes,
        file_bytes=settings.commit_log_file_bytes,
        part_bytes=part_bytes,
        source_ends=np.searchsorted(picked, source_starts[1:]).tolist(),
    )
    return sizes, log


def _target_sizes(
    source_sizes: NDArray[np.int32],
    levels: NDArray[np.int16],
    settings: TargetSettings,
    picked: Int64Array,
    corrections: Corrections,
) -> Int64Array:
    """The length of each record: as usual, or as writing has found."""
    longest = min(PLANNED_RECORD_MAX_BYTES, settings.commit_log_file_bytes - END_OF_FILE_MIN_BYTES)
    sizes = _growth(levels)
    sizes += source_sizes
    if len(sizes) and (sizes.min() < 0 or sizes.max() > longest):
        sizes[(sizes < 0) | (sizes > longest)] = 0
    _set_odd_sizes(sizes, picked, corrections.sizes)
    return sizes


def implausible_entries(
    backlog: PlannedEntries, chosen: NDArray[np.bool_], precision_ms: int
) -> Corrections:
    """The chosen entries whose due time is damage, as bad ones."""
    bad = np.flatnonzero(chosen & implausible_due(backlog, precision_ms))
    return Corrections(bad={int(row): f"due time {backlog.due_ms[row]} is no time" for row in bad})


def implausible_due(backlog: PlannedEntries, precision_ms: int) -> NDArray[np.bool_]:
    """Entries whose due time is damage: their out time would not have 13 digits."""
    due_ms, earliest_ms = backlog.due_ms, OUT_MS_MIN + precision_ms
    if not len(due_ms) or (due_ms.min() >= earliest_ms and due_ms.max() < OUT_MS_END):
        return np.zeros(len(due_ms), np.bool_)
    return np.asarray((due_ms < earliest_ms) | (due_ms >= OUT_MS_END))


def _growth(levels: NDArray[np.int16]) -> Int64Array:
    highest = int(levels.max()) if len(levels) else 0
    table = np.array([growth_bytes(level, OUT_MS_MIN) for level in range(highest + 1)], np.int64)
    return table[levels]


def _set_odd_sizes(sizes: Int64Array, picked: Int64Array, odd_sizes: dict[int, int]) -> None:
    """Set the sizes that writing has found for some of the ``picked``."""
    if not odd_sizes or not len(picked):
        return
    odd = np.array(sorted(odd_sizes), np.int64)
    at = np.searchsorted(picked, odd)
    there = (at < len(picked)) & (picked[np.minimum(at, len(picked) - 1)] == odd)
    sizes[at[there]] = [odd_sizes[int(index)] for index in odd[there]]


def place_in_slots(
    due_ms: Int64Array, now_ms: int, settings: TargetSettings
) -> tuple[Placing, NDArray[np.int32], SlotTable]:
    """The slot of each message, and the chains that ``slot_chains`` makes of them."""
    placing = place(
        due_ms,
        now_ms=now_ms,
        precision_ms=settings.precision_ms,
        window_slots=settings.roll_window_slots,
    )
    return placing, *slot_chains(placing.slot_time_ms, settings.precision_ms)


def slot_chains(
    slot_times_ms: Int64Array, precision_ms: int
) -> tuple[NDArray[np.int32], SlotTable]:
    """For each message how far back the one before it in its slot is (0: none), and the slots.

    RocketMQ: TimerMessageStore#doEnqueue, one message at a time.
    """
    distances = np.empty(len(slot_times_ms), np.int32)
    first = np.full(WHEEL_SLOTS, -1, np.int32)
    last = np.full(WHEEL_SLOTS, -1, np.int32)
    counts = np.zeros(WHEEL_SLOTS, np.int32)
    link_chains(slot_times_ms, precision_ms, distances, first, last, counts)
    used = np.flatnonzero(counts)
    firsts = first[used].astype(np.int64)
    table = SlotTable(
        slot_time_ms=slot_times_ms[firsts],
        first_index=firsts,
        last_index=last[used].astype(np.int64),
        counts=counts[used].astype(np.int64),
    )
    return distances, table


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
