# SPDX-License-Identifier: Apache-2.0
"""Inserts a quarantined record into an open store, into its levels or onto its wheel.

The record keeps what a newly scheduled message would lose: its sender, its birth time, its retry
count and its compression.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from legacy_levels.engine.store import LevelStore
from message_store.base.clock import Clock
from message_store.base.errors import DelayStoreError
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import body_crc, encode_message
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.format.record_layout import MAGIC_V1, PROPERTIES_MAX_BYTES
from message_store.format.timer_record_rules import timer_record_faults
from message_store.reading.engine_choice import EngineName
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from migrate.quarantine.kept import RestorableRecord
from migrate.report.marker import CONVERSION_NAME, read_settings
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES, RECORD_MARGIN_BYTES, BadRecordError
from timer_wheel.format.wheel_math import out_ms, promised_ms
from timer_wheel.hierarchy.store import HierarchicalWheelStore
from timer_wheel.timers.timer_properties import require_kept
from timer_wheel.wheel.store import WheelStore


@attrs.frozen(eq=False)
class RecordInserter:
    """An open store, and how a record gets into it."""

    live: LiveStore
    engine: EngineName
    levels: DelayLevels
    precision_ms: int
    max_message_bytes: int
    store: Any

    def promised_ms(self, source: RestorableRecord, now_ms: int) -> int:
        """When the engine will deliver it."""
        if self.engine == "levels":
            level = self._level(source, now_ms)
            return now_ms if source.due_ms <= now_ms else now_ms + self.levels.delay_ms(level)
        return promised_ms(self._out_ms(source, now_ms), self.precision_ms)

    def _level(self, source: RestorableRecord, now_ms: int) -> int:
        if source.due_ms <= now_ms:
            return 1
        level = self.levels.smallest_not_shorter(source.due_ms - now_ms)
        if level is None:
            raise BadRecordError("it is due later than the longest level; put it onto a wheel")
        return level

    def _out_ms(self, source: RestorableRecord, now_ms: int) -> int:
        return out_ms(max(source.due_ms, now_ms + 1), self.precision_ms)

    def make(self, source: RestorableRecord, now_ms: int) -> tuple[StoredMessage, int]:
        """The record that is to be stored, and its tags code (level: due time).

        Raises BadRecordError for a record that the store cannot take.
        """
        closed = self.live.dialect.closes_properties
        if self.engine == "levels":
            level = self._level(source, now_ms)
            text = source.text((names.DELAY, str(level)), closed=closed)
            topic, queue_id, code = LEVEL_TOPIC, level - 1, self.promised_ms(source, now_ms)
        else:
            out = self._out_ms(source, now_ms)
            text = source.text((names.TIMER_OUT_MS, str(out)), closed=closed)
            topic, queue_id, code = TIMER_TOPIC, 0, string_hash(source.message.tags or "")
        made = attrs.evolve(
            source.message,
            topic=topic,
            magic=MAGIC_V1,
            body_crc=body_crc(source.message.body),
            queue_id=queue_id,
            queue_offset=0,
            commit_log_offset=0,
            store_timestamp_ms=now_ms,
            prepared_transaction_offset=0,
            properties_text=text,
        )
        self._check(made, source)
        return made, code

    def _check(self, made: StoredMessage, source: RestorableRecord) -> None:
        if len(made.properties_text) + DELIVERY_GROWTH_BYTES > PROPERTIES_MAX_BYTES:
            raise BadRecordError(f"its properties ({len(made.properties_text)} bytes) are too long")
        size = len(encode_message(made))
        most = self.max_message_bytes + RECORD_MARGIN_BYTES - DELIVERY_GROWTH_BYTES
        if size > most:
            raise BadRecordError(
                f"{size:,} bytes, more than a broker delivers with maxMessageSize"
                f" {self.max_message_bytes:,}; --broker-conf says what yours is"
            )
        if self.engine != "levels":
            for fault, what in timer_record_faults(made, size, most):
                raise BadRecordError(f"{what}: {fault.value}")
            try:
                require_kept(source.due_ms, made.store_timestamp_ms)
            except DelayStoreError as error:
                raise BadRecordError(str(error)) from error

    def append(self, made: StoredMessage, code: int, source: RestorableRecord) -> int:
        """Store it; returns its offset in the log. Raises TargetError."""
        queue = self.live.queue(made.topic, made.queue_id)
        queue_offset = queue.max_offset

        def place(position: int) -> bytes:
            placed = attrs.evolve(made, queue_offset=queue_offset, commit_log_offset=position)
            return encode_message(placed)

        size = len(encode_message(made))
        offset = self.live.log.append(size, place)
        queue.append_one(offset, size, code)
        if self.engine == "levels":
            self.store.state.cursors[made.queue_id + 1].appended(queue_offset, code)
        self.live.remember_topic(source.topic, source.queue_id)
        return offset


@contextmanager
def open_for_insert(
    root: StoreRoot,
    engine: EngineName,
    *,
    clock: Clock,
    levels: DelayLevels | None,
    max_message_bytes: int,
) -> Iterator[RecordInserter]:
    """The store open for writing, as its engine opens it, with that engine's errors."""
    table = levels or DelayLevels.parse()
    settings, precision_ms = _of_conversion(root)
    store: Any
    if engine == "levels":
        dialect = Dialect.ROCKETMQ_5_5 if is_present(root.timer_wheel) else Dialect.ROCKETMQ_4_9
        store = LevelStore.open(
            root.path, clock=clock, levels=table, dialect=dialect, settings=settings
        )
    elif engine == "hierarchy":
        store = HierarchicalWheelStore.open(
            root.path, clock=clock, levels=levels, settings=settings
        )
        precision_ms = store.slot_precision_ms
    else:
        store = WheelStore.open(
            root.path, clock=clock, levels=levels, settings=settings, precision_ms=precision_ms
        )
        precision_ms = store.settings.precision_ms
    with store:
        yield RecordInserter(store.live, engine, table, precision_ms or 1, max_message_bytes, store)


def _of_conversion(root: StoreRoot) -> tuple[StoreSettings, int | None]:
    """File sizes and precision of a conversion's target; the files of other stores tell theirs."""
    if not is_present(root.own / CONVERSION_NAME):
        return StoreSettings(), None
    conversion = read_settings(root)
    settings = StoreSettings(
        commit_log_file_bytes=conversion.commit_log_file_bytes,
        queue_file_bytes=conversion.queue_file_bytes,
        timer_log_file_bytes=conversion.timer_log_file_bytes,
    )
    return settings, conversion.precision_ms
