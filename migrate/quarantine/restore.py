# SPDX-License-Identifier: Apache-2.0
"""Restores quarantined records into the levels or onto the wheel of a store.

A record goes back as it was; only its destination and due time are given anew. It is stored once,
however often this is run and wherever it was stopped. Before the first is stored, a note lists the
records in order and the log's end. After a stop the log shows how many of them it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from legacy_levels.engine.store import LevelStore
from message_store.base.clock import Clock, SystemClock
from message_store.base.errors import (
    DelayStoreError,
    FormatError,
    OptionsError,
    PlanError,
    SourceError,
)
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.format.record_layout import (
    BLANK_RECORD,
    END_OF_FILE_MIN_BYTES,
    MAGIC_V1,
    PROPERTIES_MAX_BYTES,
)
from message_store.format.timer_record_rules import timer_record_faults
from message_store.interface.promise_rules import require_kept
from message_store.reading.engine_choice import EngineName, choose_engine, require_engine
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from migrate.quarantine.double_delivery import RestoredHere, RolledBackSources, SourceLevels
from migrate.quarantine.kept import (
    NO_REPAIR,
    Quarantine,
    Repair,
    RestorableRecord,
    RestoreNote,
    find_quarantine,
    restorable,
    why_not_restorable,
)
from migrate.report.finished_target import refuse_unfinished
from migrate.report.marker import CONVERSION_NAME, read_settings
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from migrate.write.owner import require_owner
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES, RECORD_MARGIN_BYTES, BadRecordError
from migrate.write.staging import sole_writer
from timer_wheel.format.wheel_math import out_ms, promised_ms
from timer_wheel.hierarchy.store import HierarchicalWheelStore
from timer_wheel.wheel.store import WheelStore


@attrs.frozen(eq=False)
class RecordInserter:
    """An open store, and how a record gets into it: with its sender, birth time, retry count and
    compression, which a newly scheduled message would lose.
    """

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
            return self.levels.shortest_level
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
        if not made.body:
            raise BadRecordError("it has no body: no 5.x broker delivers one")
        if len(made.properties_text) + DELIVERY_GROWTH_BYTES > PROPERTIES_MAX_BYTES:
            raise BadRecordError(f"its properties ({len(made.properties_text)} bytes) are too long")
        size = len(encode_message(made))
        if size + END_OF_FILE_MIN_BYTES > self.live.log.file_bytes:
            raise BadRecordError(f"{size:,} bytes, longer than a file of the store's log")
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
    settings, precision_ms, most_bytes = _of_conversion(root)
    max_message_bytes = min(max_message_bytes, most_bytes or max_message_bytes)
    store: Any
    if engine == "levels":
        store = LevelStore.open(root.path, clock=clock, levels=table, settings=settings)
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


def _of_conversion(root: StoreRoot) -> tuple[StoreSettings, int | None, int | None]:
    """File sizes, precision and maxMessageSize of a conversion's target; the files of other stores
    tell theirs.
    """
    if not is_present(root.own / CONVERSION_NAME):
        return StoreSettings(), None, None
    conversion = read_settings(root)
    settings = StoreSettings(
        commit_log_file_bytes=conversion.commit_log_file_bytes,
        queue_file_bytes=conversion.queue_file_bytes,
        timer_log_file_bytes=conversion.timer_log_file_bytes,
    )
    return settings, conversion.precision_ms, conversion.max_message_bytes


PLANNED, DONE, NOTHING = "planned", "done", "nothing to do"


@attrs.frozen(kw_only=True)
class RestoreOptions:
    """Which records to restore into which store. Empty ``only`` means all that can be restored.

    ``levels`` is the level table of the store; ``max_message_bytes`` the broker's maxMessageSize.
    """

    quarantine: Path
    store: Path
    engine: EngineName | None = None
    only: tuple[str, ...] = ()
    repair: Repair = NO_REPAIR
    levels: DelayLevels | None = None
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES


@attrs.frozen(kw_only=True)
class RestoredRow:
    """One record that is restored; its promised time and offset are known once it is stored."""

    file: str
    level: int
    topic: str
    queue_id: int
    due_ms: int
    promised_ms: int | None = None
    commit_log_offset: int | None = None


@attrs.frozen(kw_only=True)
class RestoreReport:
    """What is restored, what was restored before, and what cannot be, with the reason."""

    state: str
    store: str
    engine: str
    put_back: tuple[RestoredRow, ...]
    before: tuple[str, ...]
    in_the_way: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``put-back --json`` prints; keys are a promise."""
        return attrs.asdict(self)


def restore_records(
    options: RestoreOptions, *, execute: bool = False, clock: Clock | None = None
) -> RestoreReport:
    """Plan, and with ``execute`` do, the restoring of records into ``options.store``.

    Raises SourceError for a quarantine or store that cannot be read or is in use; PlanError for a
    stopped run of another store, a quarantine whose change was rolled back or stopped, and a record
    that does not exist; OptionsError where the engine must be given; TargetError.
    """
    refuse_unfinished(StoreRoot(options.store))
    directory = find_quarantine(options.quarantine)
    if directory is None:
        raise SourceError(f"{options.quarantine}: has no quarantined records")
    with sole_writer(StoreRoot(directory)):
        if reason := why_not_restorable(directory):
            raise PlanError(reason)
        quarantine = Quarantine(options.quarantine)
        return _Restore(options, quarantine, clock or SystemClock()).run(execute=execute)


class _Restore:
    """One run."""

    def __init__(self, options: RestoreOptions, quarantine: Quarantine, clock: Clock) -> None:
        self.options = options
        self.quarantine = quarantine
        self.clock = clock
        self.root = StoreRoot(options.store)
        self.engine = choose_engine(self.root, options.engine)
        require_engine(self.root, self.engine)
        if self.engine == "time-index":
            raise OptionsError(
                f"{self.root.path}: a time index takes no quarantined records; restore them into"
                " another store"
            )
        self.restored_here = RestoredHere(self.root, quarantine.directory)
        self.refused: dict[str, str] = {}

    def run(self, *, execute: bool) -> RestoreReport:
        self._refuse_another_store()
        chosen = self._chosen()
        is_begun = self.quarantine.begun is not None
        if not execute or not (chosen or is_begun):
            state = PLANNED if chosen or is_begun else NOTHING
            return self._report(state, [_row(record) for record in chosen])
        require_owner(self.root)
        with open_for_insert(
            self.root,
            self.engine,
            clock=self.clock,
            levels=self.options.levels,
            max_message_bytes=self.options.max_message_bytes,
        ) as inserter:
            rows = self._recover(inserter)
            chosen = [each for each in chosen if each.record.file not in self.quarantine.done]
            rows += self._store(inserter, chosen)
        return self._report(DONE if rows else NOTHING, rows)

    def _refuse_another_store(self) -> None:
        begun = self.quarantine.begun
        if begun is not None and begun["store"] != self._store_name:
            raise PlanError(
                f"{self.quarantine.directory}: a run that restored records into {begun['store']}"
                " was stopped; repeat that command first. Where that store no longer exists, make a"
                " new store at that path before"
            )

    @property
    def _store_name(self) -> str:
        return str(self.options.store.resolve())

    def _chosen(self) -> list[RestorableRecord]:
        """The records that were asked for and can be restored."""
        only = set(self.options.only)
        files = {record.file for record in self.quarantine.records}
        if unknown := sorted(only - files):
            raise PlanError(f"{self.quarantine.directory}: has no {', '.join(unknown)}")
        levels = self.options.levels or DelayLevels.parse()
        sources = RolledBackSources(self.quarantine.directory)
        guards = (SourceLevels(self.root), self.restored_here, sources)
        chosen = []
        for record in self.quarantine.waiting:
            if only and record.file not in only:
                continue
            reasons = (guard.refusal(record) for guard in guards)
            if reason := next(filter(None, reasons), None):
                self.refused[record.file] = reason
                continue
            try:
                chosen.append(restorable(record, self.options.repair, levels))
            except BadRecordError as error:
                self.refused[record.file] = str(error)
        return chosen

    def _store(self, inserter: RecordInserter, chosen: list[RestorableRecord]) -> list[RestoredRow]:
        """Store all that the store can take; they are noted once all are durable."""
        now_ms = self.clock.now_ms()
        made = []
        for source in chosen:
            try:
                made.append((source, *inserter.make(source, now_ms)))
            except BadRecordError as error:
                self.refused[source.record.file] = str(error)
        if not made:
            return []
        rows = [
            attrs.evolve(_row(source), promised_ms=inserter.promised_ms(source, now_ms))
            for source, _message, _code in made
        ]
        run = {
            "store": self._store_name,
            "log_end": inserter.live.log.end,
            "now_ms": now_ms,
            "rows": [attrs.asdict(row) for row in rows],
        }
        self.restored_here.note(source.record for source, _message, _code in made)
        self.quarantine.begin(run)
        stored = []
        for row, (source, message, code) in zip(rows, made, strict=True):
            offset = inserter.append(message, code, source)
            stored.append(attrs.evolve(row, commit_log_offset=offset))
        self._finish(inserter, stored, now_ms)
        return stored

    def _finish(self, inserter: RecordInserter, rows: list[RestoredRow], now_ms: int) -> None:
        """Flush, and then note the records as restored."""
        inserter.store.flush()
        digests = {record.file: record.digest for record in self.quarantine.records}
        notes = {
            row.file: RestoreNote(
                store=self._store_name,
                commit_log_offset=row.commit_log_offset or 0,
                due_ms=row.due_ms,
                digest=digests[row.file],
                put_back_ms=now_ms,
            )
            for row in rows
        }
        self.quarantine.finish(notes)

    def _recover(self, inserter: RecordInserter) -> list[RestoredRow]:
        """Recover a stopped run: note the records that it stored, in order, without a gap."""
        begun = self.quarantine.begun
        if begun is None:
            return []
        by_file = {record.file: record for record in self.quarantine.records}
        offset, rows, now_ms = int(begun["log_end"]), [], int(begun["now_ms"])
        for facts in begun["rows"]:
            row = RestoredRow(**facts)
            stored = _stored_from(inserter.live, offset)
            if stored is None or row.file not in by_file:
                break
            message, offset = stored
            if not _is_copy(message, by_file[row.file].message(check_crc=False), now_ms):
                break
            rows.append(attrs.evolve(row, commit_log_offset=message.commit_log_offset))
        self._finish(inserter, rows, now_ms)
        return rows

    def _report(self, state: str, rows: list[RestoredRow]) -> RestoreReport:
        now = {row.file for row in rows}
        return RestoreReport(
            state=state,
            store=str(self.options.store),
            engine=self.engine,
            put_back=tuple(rows),
            before=tuple(sorted(set(self.quarantine.done) - now)),
            in_the_way=self.refused,
        )


def _row(source: RestorableRecord) -> RestoredRow:
    return RestoredRow(
        file=source.record.file,
        level=source.record.level,
        topic=source.topic,
        queue_id=source.queue_id,
        due_ms=source.due_ms,
    )


def _stored_from(live: LiveStore, offset: int) -> tuple[StoredMessage, int] | None:
    """The record that follows a record's end in the log, and where it ends itself."""
    log = live.log
    next_file = offset - offset % log.file_bytes + log.file_bytes
    for start in (offset, next_file):
        if start + BLANK_RECORD.size > log.end:
            continue
        head = BLANK_RECORD.decode_at(bytes(log.segments.read_at(start, BLANK_RECORD.size)), 0)
        size = head["size_bytes"]
        if not 0 < size <= log.end - start:
            continue
        try:
            record = bytes(log.segments.read_at(start, size))
            return decode_message_at(record, check_crc=False), start + size
        except FormatError:
            continue
    return None


def _is_copy(stored: StoredMessage, kept: StoredMessage, now_ms: int) -> bool:
    """Whether a record in the log was made by that run from this quarantined one."""
    same = ("body", "born_timestamp_ms", "born_host", "flag", "reconsume_times", "sys_flag")
    return (
        stored.topic in (LEVEL_TOPIC, TIMER_TOPIC)
        and stored.store_timestamp_ms == now_ms
        and stored.unique_key == kept.unique_key
        and all(getattr(stored, name) == getattr(kept, name) for name in same)
    )
