# SPDX-License-Identifier: Apache-2.0
"""The pending messages of a store as a table: its columns, its conditions, and its rows.

The rows are found once, from queues and timer log, and cut into ranges. A range holds the log
offsets of its rows, so its reader needs nothing else and all readers see the same rows.
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.columns.byte_column import Int64s
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.reading.looking import looking_at
from message_store.writing.losses import require_whole_log
from migrate.report.finished_target import refuse_unfinished
from migrate.source.condition import require_stopped
from migrate.source.level_delays import level_table_of
from time_index.reading import gone_from_time_index, pending_in_time_index
from timer_wheel.format.timer_due import FINEST_MS, promised_times, was_due_when_stored
from timer_wheel.reading.ownership import has_timers
from timer_wheel.reading.wheel_reader import read_wheel_store

LEVELS, WHEEL, TIME_INDEX = KINDS = ("levels", "wheel", "time-index")

SCHEMA = pa.schema(
    [
        ("unique_key", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.field("element", pa.string()))),
        ("level", pa.int32()),
        ("due_ms", pa.int64()),
        ("born_ms", pa.int64()),
        ("store_ms", pa.int64()),
        ("size_bytes", pa.int32()),
        ("commit_log_offset", pa.int64()),
        ("retry", pa.bool_()),
        ("reconsume_times", pa.int32()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("problem", pa.string()),
    ]
)
"""One row for each pending message. ``level`` is null on a wheel. ``properties`` are the user's
own. ``problem`` says why a record cannot be read; such a row has only offset, size and due time.
"""

ASKABLE = frozenset(
    {"unique_key", "topic", "queue_id", "tags", "level", "due_ms", "size_bytes"}
    | {"commit_log_offset", "born_ms", "store_ms"}
)
"""The columns that conditions can be about."""

_TELLABLE = {LEVELS: ("level", "due_ms"), WHEEL: ("level",), TIME_INDEX: ("level", "due_ms")}
"""Columns that are known without the record, besides offset and size. A slot's time is not a due
time: rolled and overdue messages are in other slots.
"""

RANGE_ROWS = 65_536
RANGE_BYTES = 64 << 20
ON_WHEEL, IN_TIME_INDEX = 0, -1
"""In the place of a level. The due time of a time index's rows is exact, as that of a level's."""
NOT_IN_A_LEVEL_QUEUE = -1

_COMPARE = {
    "==": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}


@attrs.frozen(kw_only=True)
class TableOptions:
    """How a store is read. ``now_ms`` is the time at which a broker would start on its wheel.

    ``precision_ms`` None is taken from the wheel, ``level_table`` None from the messages.
    """

    now_ms: int
    offsets: str = "auto"
    after_crash: bool = False
    precision_ms: int | None = None
    level_table: DelayLevels | None = None
    include_body: bool = False
    include_properties: bool = True

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table: bodies and properties only on request."""
        optional = {"body": self.include_body, "properties": self.include_properties}
        return pa.schema([field for field in SCHEMA if optional.get(field.name, True)])


@attrs.frozen
class Condition:
    """``column operator value``; operators are those of ``_COMPARE``, ``in``, ``is not null``.

    As in SQL, null meets no condition.
    """

    column: str
    operator: str
    value: Any = None

    def holds(self, values: pa.Array) -> NDArray[np.bool_]:
        """The values of its column that meet it, as a mask."""
        if self.operator == "is not null":
            mask = pc.is_valid(values)
        elif self.operator == "in":
            wanted = pa.array([value for value in self.value if value is not None], values.type)
            mask = pc.and_(pc.is_in(values, wanted), pc.is_valid(values))
        else:
            compared = _COMPARE[self.operator](values, pa.scalar(self.value))
            mask = pc.fill_null(compared, False)
        result: NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False)
        return result


@attrs.frozen(eq=False)
class PendingRows:
    """One row a pending message, in log order. On a wheel ``due_ms`` is the end of the slot, and
    ``precision_ms`` that of the wheel; a message that rolls is due later.

    ``queue_offset`` is that in a level's queue. It and ``is_roll`` are for who lists messages: they
    are not packed. Nor is ``gone_count``: so many entries more lead to what the log no longer has.
    """

    level: NDArray[np.int16]
    commit_log_offset: NDArray[np.int64]
    size_bytes: NDArray[np.int32]
    due_ms: NDArray[np.int64]
    precision_ms: int = 0
    gone_count: int = 0
    queue_offset: NDArray[np.int64] = attrs.field()
    is_roll: NDArray[np.bool_] = attrs.field()

    @queue_offset.default
    def _in_no_queue(self) -> NDArray[np.int64]:
        return np.full(len(self.level), NOT_IN_A_LEVEL_QUEUE, np.int64)

    @is_roll.default
    def _none_rolls(self) -> NDArray[np.bool_]:
        return np.zeros(len(self.level), np.bool_)

    def __len__(self) -> int:
        return len(self.level)

    def rows(self, chosen: NDArray[Any] | slice) -> "PendingRows":
        """Some of the rows, by index or mask."""
        return attrs.evolve(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    @classmethod
    def joined(cls, parts: Sequence["PendingRows"]) -> "PendingRows":
        """The rows of several queues or engines, of which at most one is a wheel."""
        parts = [NO_ROWS, *parts]
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS
        }
        return cls(
            **columns,
            precision_ms=max(part.precision_ms for part in parts),
            gone_count=sum(part.gone_count for part in parts),
        )

    @classmethod
    def of_levels(cls, backlog: LevelBacklog) -> "PendingRows":
        """The pending messages of all levels."""
        return cls(
            level=backlog.level.astype(np.int16, copy=False),
            commit_log_offset=backlog.commit_log_offset.astype(np.int64, copy=False),
            size_bytes=backlog.size_bytes.astype(np.int32, copy=False),
            due_ms=backlog.due_ms.astype(np.int64, copy=False),
            gone_count=backlog.total("expired"),
            queue_offset=backlog.queue_offset.astype(np.int64, copy=False),
        )

    def ranges(self) -> Iterator["PendingRows"]:
        """The rows cut into runs that one task reads."""
        ends = np.cumsum(np.maximum(self.size_bytes, 0), dtype=np.int64)
        first = 0
        while first < len(self):
            before = int(ends[first - 1]) if first else 0
            reach = int(np.searchsorted(ends, before + RANGE_BYTES, side="right"))
            stop = max(first + 1, min(first + RANGE_ROWS, reach))
            yield self.rows(slice(first, stop))
            first = stop

    def packed(self) -> tuple[int, int, bytes]:
        """Count, precision, and the columns compressed: neighbours differ by little."""
        columns = (self.commit_log_offset, self.due_ms, self.size_bytes, self.level)
        steps = [
            np.diff(column.astype(np.int64, copy=False), prepend=0).tobytes() for column in columns
        ]
        return len(self), self.precision_ms, zlib.compress(b"".join(steps), 1)

    @classmethod
    def unpacked(cls, packed: tuple[int, int, bytes]) -> "PendingRows":
        """The rows that ``packed`` compressed."""
        count, precision_ms, data = packed
        steps = np.frombuffer(zlib.decompress(data), np.int64).reshape(4, count)
        offsets, due_ms, sizes, levels = np.cumsum(steps, axis=1)
        return cls(
            levels.astype(np.int16, copy=False),
            offsets.copy(),
            sizes.astype(np.int32),
            due_ms,
            precision_ms,
        )


_NUMBERS = ("precision_ms", "gone_count")
_COLUMNS = [field.name for field in attrs.fields(PendingRows) if field.name not in _NUMBERS]
NO_ROWS = PendingRows(
    np.empty(0, np.int16), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)
)


def pending_rows(
    path: Path, kind: str, options: TableOptions, conditions: Sequence[Condition] = ()
) -> PendingRows:
    """The pending messages of the levels (``LEVELS``), the wheel (``WHEEL``) or the time index
    (``TIME_INDEX``) of a stopped store, less those that the conditions exclude without a look at
    the records.

    Raises UncleanStoreError for a store that crashed, unless ``after_crash``; SourceError,
    OptionsError and FormatError as ``read_backlog`` and ``read_wheel_store``.
    """
    store = StoreRoot(path)
    refuse_unfinished(store)
    store.require_readable()
    require_whole_log(store)
    with looking_at(store) as is_beside:
        options = attrs.evolve(options, after_crash=options.after_crash or is_beside)
        require_stopped(store, after_crash=options.after_crash)
        rows = rows_of(kind, store, options)
    columns = {name: getattr(rows, name) for name in ("commit_log_offset", "size_bytes")}
    columns |= {name: getattr(rows, name) for name in _TELLABLE[kind]}
    wanted = np.ones(len(rows), np.bool_)
    for condition in conditions:
        if condition.column in columns:
            values = pa.array(columns[condition.column])
            if condition.column == "level":
                values = level_column(rows.level)
            wanted &= condition.holds(values)
    return rows if wanted.all() else rows.rows(wanted)


def level_column(levels: NDArray[np.int16]) -> pa.Array:
    """The column ``level``: null on a wheel, and in a time index."""
    return pa.array(levels.astype(np.int32, copy=False), mask=levels <= ON_WHEEL)


def rows_of(kind: str, store: StoreRoot, options: TableOptions) -> PendingRows:
    """The pending messages of one engine. Raises SourceError, OptionsError, FormatError."""
    if kind == TIME_INDEX:
        return _time_index_rows(store)
    return _level_rows(store, options) if kind == LEVELS else _wheel_rows(store, options)


def _time_index_rows(store: StoreRoot) -> PendingRows:
    units = pending_in_time_index(store)
    units = units.rows(np.argsort(units.offsets, kind="stable"))
    return PendingRows(
        level=np.full(len(units), IN_TIME_INDEX, np.int16),
        commit_log_offset=units.offsets,
        size_bytes=units.sizes.astype(np.int32, copy=False),
        due_ms=units.due_ms,
        gone_count=gone_from_time_index(store),
    )


def _level_rows(store: StoreRoot, options: TableOptions) -> PendingRows:
    table = options.level_table
    if table is None:
        table = level_table_of(store.path, read_delay_offsets(store.path, options.offsets))
    backlog = read_backlog(
        store.path,
        offsets_choice=options.offsets,
        level_table=table,
        after_crash=options.after_crash,
    )
    return PendingRows.of_levels(backlog)


def _wheel_rows(store: StoreRoot, options: TableOptions) -> PendingRows:
    if not has_timers(store):
        return NO_ROWS
    wheel = read_wheel_store(
        store,
        now_ms=options.now_ms,
        precision_ms=options.precision_ms,
        snapshots_on=None,
        topic_in_delete_key=None,
        after_crash=not store.was_stopped_cleanly,
    )
    timers = wheel.require_sound(store.path).pending
    timers = timers.rows(np.argsort(timers.commit_log_offset, kind="stable"))
    return PendingRows(
        level=np.full(len(timers), ON_WHEEL, np.int16),
        commit_log_offset=timers.commit_log_offset,
        size_bytes=timers.size_bytes.astype(np.int32, copy=False),
        due_ms=timers.slot_time_ms + wheel.precision_ms,
        precision_ms=wheel.precision_ms,
        gone_count=wheel.expired_count,
        is_roll=timers.is_roll,
    )


def timer_due_times(
    out_ms: Int64s, store_ms: Int64s, row_due_ms: Int64s, precision_ms: int
) -> Int64s:
    """When messages of a wheel are due (int64, epoch ms), also after they rolled. ``out_ms`` and
    ``store_ms`` are from the records, ``row_due_ms`` and ``precision_ms`` from the wheel's reader.

    A slot is delivered once it is over, so one precision after its time. A message that our engine
    got when it was overdue is due at its store time. A hierarchical wheel's reader knows the due
    time itself: its precision is finer than any wheel's.
    """
    if precision_ms < FINEST_MS:
        return np.where(was_due_when_stored(out_ms), store_ms, row_due_ms)
    return promised_times(out_ms, store_ms, precision_ms)
