# SPDX-License-Identifier: Apache-2.0
"""What a conversion set aside: the raw records with their reasons, and which of them were put back.

The notes lie in ``put-back.json`` beside the records. An entry under ``done`` was stored for good;
``begun`` says what a run was about to store, and where in the log, so that one that was stopped is
not repeated.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import BadFieldError, SourceError
from message_store.files.segments import list_directories
from message_store.files.small_files import (
    PRIVATE_MODE,
    is_ordinary_file,
    read_lines,
    read_small_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.reading.unfinished_change import BACKUP_PREFIX, UNDONE
from migrate.changes.note import read_change
from migrate.quarantine.keep import QUARANTINE_NAME, REASONS_NAME
from migrate.report.marker import CONVERSION_NAME

NOTES_NAME = "put-back.json"
_COUNTS = ("pending", "converted", "skipped", "quarantined")


@attrs.frozen(kw_only=True)
class Quarantined:
    """One record that was set aside: where it waited, why it could not go, what is kept of it.

    ``due_ms`` is None where nothing told it. ``source`` is the store that it waited in.
    """

    file: str
    level: int
    queue_offset: int
    commit_log_offset: int
    reason: str
    due_ms: int | None
    raw: bytes
    source: str | None = None

    @property
    def digest(self) -> str:
        """Of the raw bytes: a record that was repaired by hand is another one."""
        return hashlib.sha256(self.raw).hexdigest()

    def message(self, *, check_crc: bool = True) -> StoredMessage:
        """The record. Raises FormatError for bytes that are none."""
        return decode_message_at(self.raw, check_crc=check_crc)

    def when_due_ms(self, levels: DelayLevels) -> int | None:
        """When it is due: as its queue said, else store time and level."""
        if self.due_ms is not None or not 1 <= self.level <= levels.max_level:
            return self.due_ms
        return self.message(check_crc=False).store_timestamp_ms + levels.delay_ms(self.level)


@attrs.frozen(kw_only=True)
class PutBackNote:
    """Where a record went."""

    store: str
    commit_log_offset: int
    due_ms: int
    digest: str
    put_back_ms: int


@attrs.frozen(kw_only=True)
class LevelAccount:
    """One level of the conversion: ``pending = converted + skipped + quarantined``, and how many of
    the last were put back since.
    """

    level: int
    pending: int
    converted: int
    skipped: int
    quarantined: int
    put_back: int = 0

    @property
    def adds_up(self) -> bool:
        """Whether no message is missing from the books."""
        return self.pending == self.converted + self.skipped + self.quarantined


def find_quarantine(path: Path) -> Path | None:
    """The directory of the records: the one given, or the one of a store; None for a store of which
    nothing was set aside.

    Raises SourceError for what is neither, and where a store has several (each conversion in place
    has its own; one that was rolled back has none where there is another).
    """
    store = StoreRoot(path)
    own = list_directories(store.own)
    backups = (StoreRoot(each) for each in own if each.name.startswith(BACKUP_PREFIX))
    places = (path, *(each.own / QUARANTINE_NAME for each in (store, *backups)))
    found = [directory for directory in places if is_ordinary_file(directory / REASONS_NAME)]
    if len(found) > 1:
        found = [directory for directory in found if not _was_rolled_back(directory)] or found[-1:]
    if len(found) > 1:
        named = ", ".join(map(str, found))
        raise SourceError(f"{path}: records were set aside several times, name one of {named}")
    if not found:
        _require_store(store)
    return found[0] if found else None


def directory_of_change(quarantine: Path) -> Path:
    """Where the note lies of the change in place that made a quarantine, if one did."""
    return quarantine.resolve().parent.parent


def _was_rolled_back(quarantine: Path) -> bool:
    change = read_change(directory_of_change(quarantine))
    return change is not None and change.state == UNDONE


def _require_store(store: StoreRoot) -> None:
    try:
        store.require_readable()
    except SourceError as error:
        raise SourceError(
            f"{store.path}: nothing was set aside here; expected a store or its quarantine"
        ) from error


class Quarantine:
    """A directory of records that were set aside, and the notes about them; of a store of which
    nothing was set aside an empty one.

    Raises SourceError for a directory that is none, FormatError for a list that is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.directory = find_quarantine(path) or StoreRoot(path).own / QUARANTINE_NAME
        lines = read_lines(self.directory / REASONS_NAME) or ()
        self.records = tuple(self._record(line.rstrip(b"\r\n")) for line in lines)
        notes = self._read_notes()
        self.done = {file: PutBackNote(**note) for file, note in notes.get("done", {}).items()}
        self.begun: dict[str, Any] | None = notes.get("begun")

    def _record(self, line: bytes) -> Quarantined:
        where = self.directory / REASONS_NAME
        try:
            facts = json.loads(line)
            name = facts["file"]
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{name!r} is no name of a file")
            due_ms = facts.get("due_ms")
            return Quarantined(
                file=name,
                level=int(facts["level"]),
                queue_offset=int(facts["queue_offset"]),
                commit_log_offset=int(facts["commit_log_offset"]),
                reason=str(facts["reason"]),
                due_ms=None if due_ms is None else int(due_ms),
                raw=read_small_file(self.directory / name) or b"",
                source=None if facts.get("source") is None else str(facts["source"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadFieldError(f"a line that is none of ours: {error}", path=where) from error

    def _read_notes(self) -> dict[str, Any]:
        path = self.directory / NOTES_NAME
        content = read_small_file(path)
        try:
            notes = json.loads(content) if content else {}
            done = notes.get("done", {})
            for note in done.values():
                PutBackNote(**note)
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise BadFieldError(f"no notes of ours: {error}", path=path) from error
        return dict(notes)

    def write_notes(self) -> None:
        """Write down, durably, what was done and what is begun. Raises TargetError."""
        done = {file: attrs.asdict(note) for file, note in sorted(self.done.items())}
        text = json.dumps({"done": done, "begun": self.begun}, indent=1)
        replace_file(self.directory / NOTES_NAME, text.encode(), mode=PRIVATE_MODE)

    @property
    def waiting(self) -> tuple[Quarantined, ...]:
        """The records that were not put back."""
        return tuple(record for record in self.records if record.file not in self.done)

    def accounts(self) -> tuple[LevelAccount, ...]:
        """The books of the conversion by level, as its report has them; none where there is no
        report.
        """
        content = read_small_file(self.directory.parent / CONVERSION_NAME)
        try:
            report = json.loads(content or b"{}")
            levels = [
                {name: int(row[name]) for name in ("level", *_COUNTS)}
                for row in report.get("levels", ())
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()
        put_back = [record.level for record in self.records if record.file in self.done]
        return tuple(
            LevelAccount(**counts, put_back=put_back.count(counts["level"]))
            for counts in levels
            if counts["pending"] or counts["quarantined"]
        )

    def as_json(self, in_the_way: Mapping[str, str]) -> dict[str, Any]:
        """The JSON object that ``quarantine --json`` prints; ``in_the_way`` says of each file why
        it cannot go back, or the empty string.
        """
        accounts = self.accounts()
        return {
            "directory": str(self.directory),
            "waiting": len(self.waiting),
            "levels": [{**attrs.asdict(each), "adds_up": each.adds_up} for each in accounts],
            "records": [self._record_json(each, in_the_way) for each in self.records],
        }

    def _record_json(self, record: Quarantined, in_the_way: Mapping[str, str]) -> dict[str, Any]:
        note = self.done.get(record.file)
        facts = attrs.asdict(record)
        size_bytes = len(facts.pop("raw"))
        return {
            **facts,
            "size_bytes": size_bytes,
            "put_back": None if note is None else attrs.asdict(note),
            "in_the_way": in_the_way.get(record.file) or None,
        }
