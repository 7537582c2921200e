# SPDX-License-Identifier: Apache-2.0
"""The way back for records that were set aside: into the levels or onto the wheel of a store.

A record goes back as it was; only where it goes and when it is due are said anew. Each is stored
once, however often this is run and wherever it was stopped: before the first is stored it is
written down which ones, in which order, and from which end of the log on; after a stop the log
shows how many of them are there.
"""

from pathlib import Path
from typing import Any

import attrs

from message_store.base.clock import Clock, SystemClock
from message_store.base.errors import FormatError, PlanError, SourceError
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.format.record_layout import BLANK_RECORD
from message_store.reading.engine_choice import EngineName, choose_engine, require_engine
from message_store.writing.store import LiveStore
from migrate.quarantine.insert import Door, opened_door
from migrate.quarantine.kept import PutBackNote, Quarantine, find_quarantine
from migrate.quarantine.returned_record import NO_REPAIR, Repair, Returned, returned
from migrate.quarantine.waits_twice import OwnLevels, told_not_aside
from migrate.report.finished_target import refuse_unfinished
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from migrate.write.owner import require_owner
from migrate.write.rewrite import BadRecordError
from migrate.write.staging import sole_writer

PLANNED, DONE, NOTHING = "planned", "done", "nothing to do"


@attrs.frozen(kw_only=True)
class PutBackOptions:
    """What to put back, and into what. Empty ``only`` means every record that can go.

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
class PutBackRow:
    """One record that goes back; when it will come and where it lies once it is stored."""

    file: str
    level: int
    topic: str
    queue_id: int
    due_ms: int
    promised_ms: int | None = None
    commit_log_offset: int | None = None


@attrs.frozen(kw_only=True)
class PutBackReport:
    """What goes back, what went before, and what cannot, with the reason."""

    state: str
    store: str
    engine: str
    put_back: tuple[PutBackRow, ...]
    before: tuple[str, ...]
    in_the_way: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``put-back --json`` prints; keys are a promise."""
        return attrs.asdict(self)


def put_back(
    options: PutBackOptions, *, execute: bool = False, clock: Clock | None = None
) -> PutBackReport:
    """Plan, and with ``execute`` do, the return of records to ``options.store``.

    Raises SourceError for a quarantine or a store that cannot be read or is in use, PlanError where
    a stopped run has to be finished first, the change that set the records aside was rolled back or
    stopped, or a record is not there; OptionsError where the engine has to be said, TargetError.
    """
    refuse_unfinished(StoreRoot(options.store))
    found = find_quarantine(options.quarantine)
    if found is None:
        raise SourceError(f"{options.quarantine}: nothing was set aside here")
    directory = StoreRoot(found)
    with sole_writer(directory):
        if told := told_not_aside(found):
            raise PlanError(told)
        quarantine = Quarantine(options.quarantine)
        return _PutBack(options, quarantine, clock or SystemClock()).run(execute=execute)


class _PutBack:
    """One run."""

    def __init__(self, options: PutBackOptions, quarantine: Quarantine, clock: Clock) -> None:
        self.options = options
        self.quarantine = quarantine
        self.clock = clock
        self.root = StoreRoot(options.store)
        self.engine = choose_engine(self.root, options.engine)
        require_engine(self.root, self.engine)
        self.cannot: dict[str, str] = {}

    def run(self, *, execute: bool) -> PutBackReport:
        self._refuse_another_store()
        chosen = self._chosen()
        is_begun = self.quarantine.begun is not None
        if not execute or not (chosen or is_begun):
            state = PLANNED if chosen or is_begun else NOTHING
            return self._report(state, [_row(one) for one in chosen])
        require_owner(self.root)
        with opened_door(
            self.root,
            self.engine,
            clock=self.clock,
            levels=self.options.levels,
            max_message_bytes=self.options.max_message_bytes,
        ) as door:
            rows = self._settle(door)
            chosen = [one for one in chosen if one.record.file not in self.quarantine.done]
            rows += self._store(door, chosen)
        return self._report(DONE if rows else NOTHING, rows)

    def _refuse_another_store(self) -> None:
        begun = self.quarantine.begun
        if begun is not None and begun["store"] != self._store_name:
            raise PlanError(
                f"{self.quarantine.directory}: a run that put records back into {begun['store']}"
                " was stopped; repeat that command first"
            )

    @property
    def _store_name(self) -> str:
        return str(self.options.store.resolve())

    def _chosen(self) -> list[Returned]:
        """What can go back of what is asked for."""
        only = set(self.options.only)
        known = {record.file for record in self.quarantine.records}
        if unknown := sorted(only - known):
            raise PlanError(f"{self.quarantine.directory}: has no {', '.join(unknown)}")
        levels, own_levels = self.options.levels or DelayLevels.parse(), OwnLevels(self.root)
        found = []
        for record in self.quarantine.waiting:
            if only and record.file not in only:
                continue
            if told := own_levels.told(record):
                self.cannot[record.file] = told
                continue
            try:
                found.append(returned(record, self.options.repair, levels))
            except BadRecordError as error:
                self.cannot[record.file] = str(error)
        return found

    def _store(self, door: Door, chosen: list[Returned]) -> list[PutBackRow]:
        """Store them all, or those that the store can take; each is noted when all are durable."""
        now_ms = self.clock.now_ms()
        made = []
        for one in chosen:
            try:
                made.append((one, *door.make(one, now_ms)))
            except BadRecordError as error:
                self.cannot[one.record.file] = str(error)
        if not made:
            return []
        rows = [
            attrs.evolve(_row(one), promised_ms=door.promised_ms(one, now_ms))
            for one, _message, _code in made
        ]
        self.quarantine.begun = {
            "store": self._store_name,
            "log_end": door.live.log.end,
            "now_ms": now_ms,
            "rows": [attrs.asdict(row) for row in rows],
        }
        self.quarantine.write_notes()
        stored = []
        for row, (one, message, code) in zip(rows, made, strict=True):
            offset = door.append(message, code, one)
            stored.append(attrs.evolve(row, commit_log_offset=offset))
        self._finish(door, stored, now_ms)
        return stored

    def _finish(self, door: Door, rows: list[PutBackRow], now_ms: int) -> None:
        """Wait for the disk, and then say that they are stored."""
        door.store.flush()
        digests = {record.file: record.digest for record in self.quarantine.records}
        for row in rows:
            self.quarantine.done[row.file] = PutBackNote(
                store=self._store_name,
                commit_log_offset=row.commit_log_offset or 0,
                due_ms=row.due_ms,
                digest=digests[row.file],
                put_back_ms=now_ms,
            )
        self.quarantine.begun = None
        self.quarantine.write_notes()

    def _settle(self, door: Door) -> list[PutBackRow]:
        """Find what a stopped run has stored, from where it began: in its order, without a gap."""
        begun = self.quarantine.begun
        if begun is None:
            return []
        by_file = {record.file: record for record in self.quarantine.records}
        place, rows, now_ms = int(begun["log_end"]), [], int(begun["now_ms"])
        for facts in begun["rows"]:
            row = PutBackRow(**facts)
            found = _stored_from(door.live, place)
            if found is None or row.file not in by_file:
                break
            message, place = found
            if not _is_copy(message, by_file[row.file].message(check_crc=False), now_ms):
                break
            rows.append(attrs.evolve(row, commit_log_offset=message.commit_log_offset))
        self._finish(door, rows, now_ms)
        return rows

    def _report(self, state: str, rows: list[PutBackRow]) -> PutBackReport:
        now = {row.file for row in rows}
        return PutBackReport(
            state=state,
            store=str(self.options.store),
            engine=self.engine,
            put_back=tuple(rows),
            before=tuple(sorted(set(self.quarantine.done) - now)),
            in_the_way=self.cannot,
        )


def _row(one: Returned) -> PutBackRow:
    return PutBackRow(
        file=one.record.file,
        level=one.record.level,
        topic=one.topic,
        queue_id=one.queue_id,
        due_ms=one.due_ms,
    )


def _stored_from(live: LiveStore, place: int) -> tuple[StoredMessage, int] | None:
    """The first record at or behind a place of the log where one ended, and where it ends."""
    log = live.log
    next_file = place - place % log.file_bytes + log.file_bytes
    for start in (place, next_file):
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
    """Whether a record in the log is what that run has made of one that was kept."""
    same = ("body", "born_timestamp_ms", "born_host", "flag", "reconsume_times", "sys_flag")
    return (
        stored.topic in (LEVEL_TOPIC, TIMER_TOPIC)
        and stored.store_timestamp_ms == now_ms
        and stored.unique_key == kept.unique_key
        and all(getattr(stored, name) == getattr(kept, name) for name in same)
    )
