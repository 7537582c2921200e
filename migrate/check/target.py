# SPDX-License-Identifier: Apache-2.0
"""Targets of conversions before their first broker starts, and what engines could not deliver."""

from collections.abc import Iterator, Sequence
from typing import Any

from legacy_levels.engine.state import SkippedMessages
from message_store.base.errors import SourceError
from message_store.base.printable import counted, when
from message_store.files.config_files import read_topics
from message_store.files.notes import NoteFile
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.writing.recovery import SAVED_NAME
from migrate.changes.note import unfinished_change
from migrate.check.files import SIZE_SETTINGS
from migrate.check.snapshot import StoreSnapshot
from migrate.quarantine.kept import Quarantine, find_quarantine
from migrate.report.finished_target import UNFINISHED, unfinished_reason, was_converted_in_place
from migrate.report.marker import CONVERSION_NAME, ConversionSettings, read_marker, read_settings
from migrate.report.whole_target import require_whole
from migrate.settings import TargetSettings
from migrate.write.publishing import is_stub
from time_index.reading import lost_messages_of
from timer_wheel.reading.lost_messages import LostMessages

TARGET_UNFINISHED = error(
    "target-unfinished",
    "a broker does not start on it",
    "repeat what was stopped: the same convert command, or the same write",
)
TARGET_INCOMPLETE = error(
    "target-incomplete",
    "messages of the conversion are lost, or their topics have no route",
    "convert the source again",
)
TARGET_OPENED = info(
    "target-opened",
    "a broker was started on it: messages that it has delivered are no longer pending",
    "nothing; do not start the old broker again",
)
TARGET_COPIED = warning(
    "target-copied",
    "a broker deletes log files by their modification times: a copy that restores old times makes"
    " them go early",
    "update the log files' modification times (`touch`) before a broker starts",
)
TARGET_EXPIRED = error(
    "target-expired",
    "a broker no longer reads the first slots, or deletes the log by its age: messages are lost",
    "convert the source again",
)
TARGET_SETTINGS = error(
    "target-settings",
    "the broker refuses the files, or reads the wheel wrongly: its messages are lost",
    "merge delaywheel/broker.conf of the target into the broker's configuration",
)
QUARANTINE_LEFT = warning(
    "quarantine-left",
    "a broker does not know these records; they are only kept here",
    "see `delaywheel quarantine`; records that can be repaired can be restored",
)
CHANGE_UNFINISHED = error(
    "change-unfinished",
    "messages may be pending in the levels and on the wheel at once: duplicates are delivered",
    "run the same command again, or `delaywheel rollback`, before a broker starts",
)


_COPY_SLACK_MS = 60_000
_DEPENDS_ON = {"timerPrecisionMs": "precision_ms", **SIZE_SETTINGS}


def unfinished_target(root: StoreRoot) -> Finding | None:
    """The one thing to say of the target of a conversion, or of a write, that was stopped."""
    problem = unfinished_reason(root)
    if problem is None and is_stub(root.timer_wheel):
        problem = UNFINISHED
    return None if problem is None else TARGET_UNFINISHED.at(root.path, problem)


def check_change(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """A change in place that was stopped in the middle; records in quarantine."""
    change = unfinished_change(snapshot.root)
    if change is not None:
        where = snapshot.relative(change.directory)
        yield CHANGE_UNFINISHED.at(where, f"a change of this store ({change.kind}) was stopped")
    try:
        find_quarantine(snapshot.root.path)
    except SourceError:
        return
    quarantine = Quarantine(snapshot.root.path)
    if quarantine.waiting:
        problem = f"still there: {len(quarantine.waiting):,} of"
        problem += f" {counted(len(quarantine.records), 'record')}"
        yield QUARANTINE_LEFT.at(snapshot.relative(quarantine.directory), problem)


def check_target(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """A converted store: its settings, and its files' times as long as no broker has seen it."""
    root = snapshot.root
    if not is_present(root.own / CONVERSION_NAME):
        return
    made = read_settings(root)
    yield from _settings(snapshot, made)
    if is_present(root.lock) or is_present(root.abort):
        yield TARGET_OPENED.at(root.path, "there is a broker's lock file")
        return
    old = [
        segment
        for segment in snapshot.log.segments
        if segment.modified_ns // 1_000_000 < made.now_ms - _COPY_SLACK_MS
    ]
    if old:
        problem = counted(len(old), "log file is", "log files are")
        problem += " older than the conversion that wrote the log"
        yield TARGET_COPIED.at(snapshot.relative(old[0].path), problem)
    yield from _expired(snapshot)
    if not was_converted_in_place(root):
        yield from _incomplete(root, made)


def _incomplete(root: StoreRoot, made: ConversionSettings) -> Iterator[Finding]:
    """Files that are not there or not whole, and topics that no client is led to."""
    marker = read_marker(root)
    try:
        require_whole(root, made, int(marker.get("converted", 0)))
    except SourceError as error:
        yield TARGET_INCOMPLETE.at(root.path, str(error.__cause__))
    missing = sorted(set(marker.get("topics", ())) - read_topics(root.path).keys())
    if missing:
        problem = f"{counted(len(missing), 'topic')} with pending messages not there"
        yield TARGET_INCOMPLETE.at("config/topics.json", f"{problem}, first {missing[0]!r}")


def _settings(snapshot: StoreSnapshot, made: ConversionSettings) -> Iterator[Finding]:
    conf = snapshot.options.conf
    asked: list[tuple[str, TargetSettings]] = []
    if conf:
        asked.append(("the broker's configuration", snapshot.broker))
    if snapshot.options.target is not None:
        asked.append(("the target's configuration", snapshot.options.target))
    for where, settings in asked:
        for key, name in _DEPENDS_ON.items():
            wanted, stated = getattr(made, name), getattr(settings, name)
            if wanted != stated:
                problem = f"{key} is {stated}, the target was written for {wanted}"
                yield TARGET_SETTINGS.at(where, problem)


def _expired(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """More than one log file, and the first of them older than log files are kept."""
    segments = snapshot.log.segments
    if len(segments) < 2:
        return
    kept_until_ms = segments[0].modified_ns // 1_000_000 + snapshot.broker.retention_ms
    if kept_until_ms <= snapshot.now_ms:
        problem = f"its first log file is kept until {when(kept_until_ms, snapshot.now_ms)}"
        yield TARGET_EXPIRED.at(snapshot.relative(segments[0].path), problem)


UNDELIVERED = error(
    "undelivered",
    "an engine of delaywheel skipped it when it was due, and nothing delivers it any more",
    "look at the record; schedule its message again if it is still wanted. Then close the store,"
    " and remove the file in delaywheel/ that notes it",
)

RECORDS_CUT_OFF = warning(
    "records-cut-off",
    "an opening ended the log at a damaged record, as a broker does. The file keeps what lay behind"
    " it; nothing delivers what was pending there",
    "none after a loss of power: nobody was told that those messages are durable. Else take the log"
    " from a backup, or send them again. Then remove the file",
)

_MOST_NAMED = 20


def check_undelivered(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """The messages that the notes of the engines name, and files with what openings cut off."""
    for file in sorted(snapshot.root.own.glob(f"{SAVED_NAME}-*")):
        whole = counted(file.stat().st_size, "byte")
        yield RECORDS_CUT_OFF.at(snapshot.relative(file), f"{whole} from behind the log's end")
    skipped = SkippedMessages(snapshot.root.path)
    of_levels = [
        (f"level {message.level}, queue offset {message.queue_offset}", message.reason)
        for message in skipped.all()
    ]
    yield from _findings(snapshot, skipped, of_levels)
    for lost in (LostMessages(snapshot.root), lost_messages_of(snapshot.root)):
        named = [
            (f"commit log {message.commit_log_offset}", message.reason) for message in lost.all()
        ]
        yield from _findings(snapshot, lost, named)


def _findings(
    snapshot: StoreSnapshot, notes: NoteFile[Any], named: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """So many messages of one file by name, and how many more there are."""
    file = snapshot.relative(notes.path)
    if notes.is_damaged:
        yield UNDELIVERED.at(file, "the file is damaged: which messages it named is not known")
    for where, reason in named[:_MOST_NAMED]:
        yield UNDELIVERED.at(where, f"a message could not be delivered: {reason}")
    if len(named) > _MOST_NAMED:
        more = counted(len(named) - _MOST_NAMED, "more message")
        yield UNDELIVERED.at(file, f"{more} could not be delivered")
