# SPDX-License-Identifier: Apache-2.0
"""The quarantine of a conversion: its records, the reasons, and which of them can be, or were,
restored.

The file ``put-back.json`` beside the records has an entry under ``done`` for each restored record.
``begun`` says which records a run was about to store, and from which log offset on, so that a
stopped run is not repeated.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import BadFieldError, DelayStoreError, FormatError, SourceError
from message_store.base.printable import shell_word
from message_store.files.segments import list_directories
from message_store.files.small_files import (
    PRIVATE_MODE,
    is_ordinary_file,
    read_lines,
    read_small_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import parse_long
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.format.record_layout import SYS_COMMIT, SYS_TRANSACTION_MASK
from message_store.format.timer_record_rules import host_problem
from message_store.reading.unfinished_change import BACKUP_PREFIX, DONE, UNDONE
from migrate.changes.note import read_change
from migrate.plan.plan import OUT_MS_END, OUT_MS_MIN
from migrate.quarantine.keep import QUARANTINE_NAME, REASONS_NAME
from migrate.report.marker import read_marker
from migrate.write.rewrite import (
    QUEUE_ID_MAX,
    REMOVED_PROPERTIES,
    BadRecordError,
    is_deliverable_topic,
)

NOTES_NAME = "put-back.json"
_COUNTS = ("pending", "converted", "skipped", "quarantined")


@attrs.frozen(kw_only=True)
class QuarantinedRecord:
    """One quarantined record: where it was pending, why it was not converted, and its raw bytes.

    ``due_ms`` is None where it is unknown, ``delay_ms`` the delay of its level there. ``source`` is
    the store in which it was pending.
    """

    file: str
    level: int
    queue_offset: int
    commit_log_offset: int
    reason: str
    due_ms: int | None
    raw: bytes
    source: str | None = None
    delay_ms: int | None = None

    @property
    def digest(self) -> str:
        """Of the raw bytes: a record that was repaired by hand is another one."""
        return hashlib.sha256(self.raw).hexdigest()

    def message(self, *, check_crc: bool = True) -> StoredMessage:
        """The record. Raises FormatError for bytes that are none."""
        return decode_message_at(self.raw, check_crc=check_crc)

    def when_due_ms(self, levels: DelayLevels) -> int | None:
        """When it is due: as its queue said, else by store time and delay; None where neither is a
        time. ``levels`` tell the delay where the list, an older one, does not.
        """
        if self.due_ms is not None and _is_time(self.due_ms):
            return self.due_ms
        delay_ms = self.delay_ms
        if delay_ms is None and 1 <= self.level <= levels.max_level:
            delay_ms = levels.delay_ms(self.level)
        stored_ms = self.message(check_crc=False).store_timestamp_ms
        return stored_ms + delay_ms if delay_ms is not None and _is_time(stored_ms) else None


def _is_time(time_ms: int) -> bool:
    """Whether a conversion would take it for a time: it has 13 digits."""
    return OUT_MS_MIN < time_ms < OUT_MS_END


@attrs.frozen(kw_only=True)
class RestoreNote:
    """Where a record was restored to."""

    store: str
    commit_log_offset: int
    due_ms: int
    digest: str
    put_back_ms: int


@attrs.frozen(kw_only=True)
class LevelAccount:
    """One level of the conversion: ``pending = converted + skipped + quarantined``. Of the
    quarantined messages ``put_back`` were restored since.
    """

    level: int
    pending: int
    converted: int
    skipped: int
    quarantined: int
    put_back: int = 0

    @property
    def adds_up(self) -> bool:
        """Whether every pending message is accounted for."""
        return self.pending == self.converted + self.skipped + self.quarantined


def find_quarantine(path: Path) -> Path | None:
    """The quarantine directory: ``path`` itself, or that of the store at ``path``; None for a store
    without one.

    Each conversion in place has a quarantine of its own; that of one that was rolled back counts
    only where there is no other. Raises SourceError for a path that is neither, and for several.
    """
    store = StoreRoot(path)
    own = list_directories(store.own)
    backups = (StoreRoot(each) for each in own if each.name.startswith(BACKUP_PREFIX))
    candidates = (path, *(each.own / QUARANTINE_NAME for each in (store, *backups)))
    listed = [path for path in candidates if is_ordinary_file(path / REASONS_NAME)]
    directories = [path for path in listed if not _is_of_no_change(path)]
    if len(directories) > 1:
        kept = [directory for directory in directories if not _was_rolled_back(directory)]
        directories = kept or directories[-1:]
    if len(directories) > 1:
        named = ", ".join(map(str, directories))
        raise SourceError(f"{path}: several conversions quarantined records; name one of {named}")
    if not directories:
        _require_store(store)
    return directories[0] if directories else None


def directory_of_change(quarantine: Path) -> Path:
    """The directory of the change in place that made a quarantine, if one did."""
    return quarantine.resolve().parent.parent


def _is_of_no_change(quarantine: Path) -> bool:
    """Whether a change in place was stopped before it began: its messages are where they were."""
    home = directory_of_change(quarantine)
    return home.name.startswith(BACKUP_PREFIX) and read_change(home) is None


def _was_rolled_back(quarantine: Path) -> bool:
    change = read_change(directory_of_change(quarantine))
    return change is not None and change.state == UNDONE


def _require_store(store: StoreRoot) -> None:
    try:
        store.require_readable()
    except SourceError as error:
        raise SourceError(
            f"{store.path}: has no quarantined records; expected a store or its quarantine"
        ) from error


class Quarantine:
    """A directory of quarantined records with the notes about them; empty for a store without one.

    Raises SourceError for a directory that is no quarantine, FormatError for a damaged list.
    """

    def __init__(self, path: Path) -> None:
        self.directory = find_quarantine(path) or StoreRoot(path).own / QUARANTINE_NAME
        lines = read_lines(self.directory / REASONS_NAME) or ()
        self.records = tuple(self._record(line.rstrip(b"\r\n")) for line in lines)
        notes = self._read_notes()
        self.done = {file: RestoreNote(**note) for file, note in notes.get("done", {}).items()}
        self.begun: dict[str, Any] | None = notes.get("begun")

    def _record(self, line: bytes) -> QuarantinedRecord:
        where = self.directory / REASONS_NAME
        try:
            facts = json.loads(line)
            name = facts["file"]
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{name!r} is no name of a file")
            due_ms = facts.get("due_ms")
            return QuarantinedRecord(
                file=name,
                level=int(facts["level"]),
                queue_offset=int(facts["queue_offset"]),
                commit_log_offset=int(facts["commit_log_offset"]),
                reason=str(facts["reason"]),
                due_ms=None if due_ms is None else int(due_ms),
                raw=read_small_file(self.directory / name) or b"",
                delay_ms=None if facts.get("delay_ms") is None else int(facts["delay_ms"]),
                source=None if facts.get("source") is None else str(facts["source"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadFieldError(f"no line of a quarantine: {error}", path=where) from error

    def _read_notes(self) -> dict[str, Any]:
        path = self.directory / NOTES_NAME
        content = read_small_file(path)
        try:
            notes = json.loads(content) if content else {}
            done = notes.get("done", {})
            for note in done.values():
                RestoreNote(**note)
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise BadFieldError(f"no notes of ours: {error}", path=path) from error
        return dict(notes)

    def begin(self, run: dict[str, Any]) -> None:
        """Note durably what a run is about to restore. Raises TargetError."""
        self.begun = run
        self._write_notes()

    def finish(self, done: Mapping[str, RestoreNote]) -> None:
        """Note durably, by file, what was restored; the run is over. Raises TargetError."""
        self.done |= done
        self.begun = None
        self._write_notes()

    def _write_notes(self) -> None:
        done = {file: attrs.asdict(note) for file, note in sorted(self.done.items())}
        text = json.dumps({"done": done, "begun": self.begun}, indent=1)
        replace_file(self.directory / NOTES_NAME, text.encode(), mode=PRIVATE_MODE)

    @property
    def waiting(self) -> tuple[QuarantinedRecord, ...]:
        """The records that were not restored."""
        return tuple(record for record in self.records if record.file not in self.done)

    def accounts(self) -> tuple[LevelAccount, ...]:
        """The accounting of the conversion by level; empty where it left no report."""
        try:
            levels = [
                ({name: int(row[name]) for name in ("level", *_COUNTS)}, int(row["delay_ms"]))
                for row in read_marker(StoreRoot(self.directory.parent.parent)).get("levels", ())
            ]
        except (DelayStoreError, ValueError, KeyError, TypeError):
            return ()
        restored = Counter(
            (record.level, record.delay_ms) for record in self.records if record.file in self.done
        )
        accounts = []
        for counts, delay_ms in levels:  # of sources with two tables a level stands twice
            own = [restored.pop((counts["level"], each), 0) for each in (delay_ms, None)]
            if counts["pending"] or counts["quarantined"]:
                accounts.append(LevelAccount(**counts, put_back=sum(own)))
        return tuple(accounts)

    def as_json(self, in_the_way: Mapping[str, str]) -> dict[str, Any]:
        """The JSON object that ``quarantine --json`` prints; ``in_the_way`` says of each file why
        it cannot go back, or the empty string.
        """
        accounts = self.accounts()
        return {
            "directory": str(self.directory),
            "waiting": len(self.waiting),
            "levels": [{**attrs.asdict(each), "adds_up": each.adds_up} for each in accounts],
            "records": [
                self._record_json(each, in_the_way.get(each.file)) for each in self.records
            ],
        }

    def _record_json(self, record: QuarantinedRecord, obstacle: str | None) -> dict[str, Any]:
        note = self.done.get(record.file)
        facts = attrs.asdict(record)
        size_bytes = len(facts.pop("raw"))
        return {
            **facts,
            "size_bytes": size_bytes,
            "put_back": None if note is None else attrs.asdict(note),
            "in_the_way": obstacle or None,
        }


def why_not_restorable(quarantine: Path) -> str | None:
    """Why no record of a quarantine can be restored: its change was rolled back, or was stopped."""
    change = read_change(directory_of_change(quarantine))
    if change is None or change.state == DONE:
        return None
    if change.state == UNDONE:
        return (
            f"{change.directory}: this change was rolled back. Its quarantined records wait in"
            " their levels again; a restored one would be a duplicate"
        )
    store = shell_word(str(change.directory.parent.parent))
    return (
        f"{change.directory}: this change was stopped while it was {change.state}. Its quarantined"
        " records may still wait in their levels; finish it, or undo it with `delaywheel rollback"
        f" {store} --execute`"
    )


@attrs.frozen(kw_only=True)
class Repair:
    """Values that replace those of the record; None keeps the record's own.

    ``despite_damage`` accepts a body that does not match its checksum.
    """

    topic: str | None = None
    queue_id: int | None = None
    due_ms: int | None = None
    despite_damage: bool = False


NO_REPAIR = Repair()


@attrs.frozen(eq=False)
class RestorableRecord:
    """A record that can be restored: the message, its destination, and its due time."""

    record: QuarantinedRecord
    message: StoredMessage
    topic: str
    queue_id: int
    due_ms: int

    def text(self, more: tuple[str, str], *, closed: bool) -> bytes:
        """Its properties, with the one that delays it."""
        kept = [
            (name, value)
            for name, value in names.split_entries(self.message.properties_text)
            if name not in REMOVED_PROPERTIES
            and name not in (names.REAL_TOPIC.encode(), names.REAL_QUEUE_ID.encode())
        ]
        entries = [
            (names.REAL_TOPIC.encode(), self.topic.encode()),
            *kept,
            (more[0].encode(), more[1].encode()),
            (names.REAL_QUEUE_ID.encode(), str(self.queue_id).encode()),
        ]
        text = b"\x02".join(name + b"\x01" + value for name, value in entries)
        return text + (b"\x02" if closed else b"")


def restorable(record: QuarantinedRecord, repair: Repair, levels: DelayLevels) -> RestorableRecord:
    """The record as it can be restored. Raises BadRecordError with the obstacle."""
    try:
        message = record.message(check_crc=not repair.despite_damage)
    except FormatError as error:
        raise BadRecordError(f"unreadable: {error.problem}") from error
    if message.topic not in (LEVEL_TOPIC, TIMER_TOPIC):
        raise BadRecordError(f"a record of topic {message.topic!r}, which did not wait")
    if message.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_COMMIT):
        raise BadRecordError("a prepared or rolled back transaction, which is never delivered")
    for host in (message.born_host, message.store_host):
        if problem := host_problem(host):
            raise BadRecordError(f"{problem}: {host}")
    topic = repair.topic or message.properties.get(names.REAL_TOPIC)
    if topic is None:
        raise BadRecordError("no REAL_TOPIC: say where it goes with --topic")
    if not is_deliverable_topic(topic.encode("utf-8", "surrogatepass")):
        raise BadRecordError(f"REAL_TOPIC {topic[:64]!r} cannot be delivered to; see --topic")
    due_ms = record.when_due_ms(levels) if repair.due_ms is None else repair.due_ms
    if due_ms is None:
        raise BadRecordError("nothing tells when it is due: say it with --at")
    return RestorableRecord(record, message, topic, _queue_id(message, repair), due_ms)


def _queue_id(message: StoredMessage, repair: Repair) -> int:
    if repair.queue_id is not None:
        return repair.queue_id
    text = message.properties.get(names.REAL_QUEUE_ID)
    try:
        number = parse_long(text or "")
    except FormatError:
        number = -1
    if not 0 <= number <= QUEUE_ID_MAX:
        raise BadRecordError(f"REAL_QID is {text!r}: say it with --queue-id")
    return number


def obstacles(quarantine: Quarantine) -> dict[str, str]:
    """Why each record that is left cannot be restored unchanged; empty where it can."""
    if reason := why_not_restorable(quarantine.directory):
        return {record.file: reason for record in quarantine.waiting}
    reasons = {}
    for record in quarantine.waiting:
        try:
            restorable(record, NO_REPAIR, DelayLevels.parse())
            reasons[record.file] = ""
        except BadRecordError as error:
            reasons[record.file] = str(error)
    return reasons
