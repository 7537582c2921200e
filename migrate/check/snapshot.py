# SPDX-License-Identifier: Apache-2.0
"""The store that ``check`` judges: each part is read once, when a family of findings asks for it.

Nothing is locked or written, so a broker may run meanwhile. A part that cannot be read is None, and
the reason is kept.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import attrs
import numpy as np

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from legacy_levels.backlog.lost_queues import GoneQueue, gone_queues
from legacy_levels.backlog.queues import LevelQueue, levels_with_queue, open_level_queue
from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice, read_delay_offsets
from legacy_levels.delivery_marks import FLUSHED_NAME, DeliveryMark, read_mark
from message_store.base.closed_on_exit import ClosedOnExit
from message_store.base.errors import BadFieldError, DelayStoreError, FormatError, SourceError
from message_store.files.log_row import open_log
from message_store.files.rocksdb.queues import QUEUES
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.format.java_numbers import parse_long
from message_store.reading.engine_choice import is_hierarchical
from migrate.settings import TargetSettings
from migrate.source.level_delays import LevelDelays, infer_delays
from migrate.table.pending_table import PendingRows
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.wheel_reader import read_wheel_store

CAPACITY = 20_000
"""Messages that a broker delivers in a second by default: what RocketMQ's maintainers state for a
broker that serves others too. A quiet machine does several times that.
"""
_TRUE = "true"
ACTS_AS_MASTER = "enableSlaveActingMaster"
"""The setting of a broker whose slave delivers while the master is down."""


def whole_number(text: str | None) -> int | None:
    """A number as Java reads it; None for no text, and for text that is none."""
    try:
        return None if text is None else parse_long(text)
    except BadFieldError:
        return None


@attrs.frozen(kw_only=True)
class CheckOptions:
    """The reference time, and the broker that the findings are about.

    ``conf`` is the configuration of this store's broker, as far as it is known; ``target`` are the
    settings of the broker that a conversion is for. ``level_table`` is the table that the broker
    will run with; None takes what the messages show. ``capacity`` is messages a second.
    ``disk_used`` (0 to 1) overrides how full the disk is.
    """

    now_ms: int
    conf: Mapping[str, str] = MappingProxyType({})
    target: TargetSettings | None = None
    level_table: DelayLevels | None = None
    capacity: int = attrs.field(default=CAPACITY, validator=attrs.validators.ge(1))
    disk_used: float | None = None


class StoreSnapshot(ClosedOnExit):
    """A store, part by part, whose log is open. ``is_running``: whether a broker holds it."""

    def __init__(self, root: StoreRoot, options: CheckOptions, *, is_running: bool) -> None:
        self.root = root
        self.options = options
        self.is_running = is_running
        self.broker = TargetSettings.from_conf(options.conf)
        self.levels_problem: str | None = None
        self.wheel_problem: str | None = None
        self.log = open_log(root)

    def close(self) -> None:
        """Give the log back."""
        self.log.close()

    @property
    def now_ms(self) -> int:
        """The reference time."""
        return self.options.now_ms

    def is_set(self, key: str) -> bool:
        """Whether the broker's configuration says true."""
        return self.options.conf.get(key, "").strip().lower() == _TRUE

    def relative(self, path: Path) -> str:
        """A path as people read it: within the store, also of a queue in RocksDB, or else whole."""
        root = self.root
        if path.is_relative_to(root.path):
            return path.relative_to(root.path).as_posix()
        if path.is_relative_to(root.consume_queues):
            return (Path(QUEUES) / path.relative_to(root.consume_queues)).as_posix()
        return str(path)

    @property
    def is_dirty(self) -> bool:
        """Whether the files are those of a broker that runs, or crashed."""
        return not self.root.was_stopped_cleanly

    # --- levels -----------------------------------------------------------------------------------

    @cached_property
    def flushed_mark(self) -> DeliveryMark | None:
        """Where the levels were at their last flush by us; to be read before the queues."""
        return read_mark(self.root.path, FLUSHED_NAME)

    @cached_property
    def offset_files(self) -> DelayOffsets:
        """Both files of delivery offsets, and no choice between them."""
        found = read_delay_offsets(self.root.path, OffsetsChoice.NONE)
        return attrs.evolve(found, offsets={}, moved={})  # a broker knows of no change of ours

    @cached_property
    def offsets(self) -> Mapping[int, int]:
        """The offsets that a broker takes; none where it would not start."""
        choice = self.offset_files.broker_choice or OffsetsChoice.NONE
        return self.offset_files.by_choice().get(choice, {})

    @cached_property
    def level_queues(self) -> Mapping[int, LevelQueue | FormatError]:
        """Every level's queue, or why it cannot be read."""
        _ = self.flushed_mark
        queues: dict[int, LevelQueue | FormatError] = {}
        for level in levels_with_queue(self.root.path):
            try:
                queues[level] = open_level_queue(self.root.path, level, self.offsets.get(level))
            except FormatError as error:
                queues[level] = error
        return queues

    @cached_property
    def gone_queues(self) -> Mapping[int, GoneQueue]:
        """The levels whose queue has no file, though there was one."""
        return {gone.level: gone for gone in gone_queues(self.root)}

    @cached_property
    def queues(self) -> tuple[LevelQueue, ...]:
        """The level queues that can be read."""
        return tuple(each for each in self.level_queues.values() if isinstance(each, LevelQueue))

    @cached_property
    def delays(self) -> LevelDelays:
        """What the messages show of the level table."""
        return infer_delays(self.root.path, self.queues)

    def delay_ms(self, level: int) -> int | None:
        """The delay of a level for the broker that is asked about; None when nobody knows."""
        table = self.options.level_table
        if table is None:
            return self.delays.delay_ms(level)
        return table.delay_ms(level) if level <= table.max_level else None

    def level_name(self, level: int) -> str:
        """A level with its meaning."""
        delay_ms = self.delay_ms(level)
        return f"level {level}" + ("" if delay_ms is None else f" ({format_delay(delay_ms)})")

    @cached_property
    def backlog(self) -> LevelBacklog | None:
        """The backlog of the levels; None, with ``levels_problem``, where it cannot be told."""
        try:
            return read_backlog(
                self.root.path,
                offsets_choice=self.offset_files.broker_choice or OffsetsChoice.NONE,
                level_table=self.delays.table,
                after_crash=self.is_dirty,
            )
        except DelayStoreError as error:
            self.levels_problem = str(error)
            return None

    @cached_property
    def level_rows(self) -> PendingRows:
        """Pending messages of the levels, without those that the log shows as delivered."""
        if self.backlog is not None:
            return PendingRows.of_levels(self.backlog)
        rows = PendingRows.joined([self._rows_of(queue) for queue in self.queues])
        return rows.rows(np.argsort(rows.commit_log_offset, kind="stable"))

    def _rows_of(self, queue: LevelQueue) -> PendingRows:
        waits = ~queue.is_expired(self.log.min_offset)
        return PendingRows(
            level=np.full(int(waits.sum()), queue.level, np.int16),
            commit_log_offset=queue.entries.commit_log_offset[waits],
            size_bytes=queue.entries.size_bytes[waits].astype(np.int32),
            due_ms=queue.due_ms[waits],
            queue_offset=queue.queue_offset[waits],
        )

    # --- wheel ------------------------------------------------------------------------------------

    @cached_property
    def has_wheel(self) -> bool:
        """Whether a wheel was ever used here."""
        root = self.root
        return any(is_present(p) for p in (root.timer_wheel, root.timer_log, root.timer_queue()))

    @cached_property
    def is_hierarchical(self) -> bool:
        """Whether the timers are on a hierarchical wheel, and not in a wheel's files."""
        return is_hierarchical(self.root)

    @cached_property
    def wheel(self) -> WheelState | None:
        """What a broker would deliver now; None without a wheel, or with ``wheel_problem``."""
        if not self.has_wheel:
            return None
        try:
            return self.read_wheel()
        except (FormatError, SourceError) as error:
            self.wheel_problem = str(error)
            return None

    def read_wheel(
        self, *, whole_log: bool = False, now_ms: int | None = None, any_marker: bool = False
    ) -> WheelState:
        """The wheel as such a broker finds it. Raises FormatError and SourceError."""
        by_topic = None if any_marker else self.is_set("appendTopicForTimerDeleteKey")
        return read_wheel_store(
            self.root,
            now_ms=self.now_ms if now_ms is None else now_ms,
            snapshots_on=self.is_set("timerWheelSnapshotFlush"),
            topic_in_delete_key=by_topic,
            whole_log=whole_log,
            after_crash=self.is_dirty,
        )
