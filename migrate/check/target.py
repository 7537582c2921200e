# SPDX-License-Identifier: Apache-2.0
"""A converted store before its first broker: whole, not copied with old times, opened in time."""

from collections.abc import Iterator

from message_store.base.errors import SourceError
from message_store.base.printable import counted, when
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from migrate.changes.note import unfinished_change
from migrate.check.snapshot import Picture
from migrate.quarantine.kept import Quarantine, find_quarantine
from migrate.report.conversion_marker import CONVERSION_NAME
from migrate.report.conversion_parameters import ConversionSettings, read_settings
from migrate.report.finished_target import UNFINISHED, told_unfinished
from migrate.settings import TargetSettings
from migrate.write.publishing import is_stub

TARGET_UNFINISHED = error(
    "target-unfinished",
    "a broker does not start on it",
    "do again what was stopped: the same convert command, or the same write",
)
TARGET_OPENED = info(
    "target-opened",
    "a broker was started on it: what it delivered since is not here any more",
    "nothing; do not start the old broker again",
)
TARGET_COPIED = warning(
    "target-copied",
    "a broker deletes log files by their time of change: a copy that restores old times makes them"
    " go early",
    "give the log files the time of now (`touch`) before a broker starts",
)
TARGET_EXPIRED = error(
    "target-expired",
    "a broker no longer reads the first slots, or deletes the log by its age: messages are lost",
    "convert the source again",
)
TARGET_SETTINGS = error(
    "target-settings",
    "the broker refuses the files, or reads the wheel wrongly: what waits there is lost",
    "merge delaywheel/broker.conf of the target into the broker's configuration",
)
QUARANTINE_LEFT = warning(
    "quarantine-left",
    "a broker knows nothing of them: they are only there",
    "see `delaywheel quarantine`; what can be repaired can be put back",
)
CHANGE_UNFINISHED = error(
    "change-unfinished",
    "messages may wait in the levels and on the wheel at once: they are delivered twice",
    "run the same command again, or `delaywheel rollback`, before a broker starts",
)

RULES = (
    TARGET_UNFINISHED,
    TARGET_OPENED,
    TARGET_COPIED,
    TARGET_EXPIRED,
    TARGET_SETTINGS,
    QUARANTINE_LEFT,
    CHANGE_UNFINISHED,
)

_COPY_SLACK_MS = 60_000
_HOUR_MS = 3_600_000
_DEPENDS_ON = {
    "timerPrecisionMs": "precision_ms",
    "mappedFileSizeCommitLog": "commit_log_file_bytes",
    "mappedFileSizeConsumeQueue": "queue_file_bytes",
    "mappedFileSizeTimerLog": "timer_log_file_bytes",
}


def unfinished_target(root: StoreRoot) -> Finding | None:
    """The one thing to say of the target of a conversion, or of a write, that was stopped."""
    told = told_unfinished(root)
    if told is None and is_stub(root.timer_wheel):
        told = UNFINISHED
    return None if told is None else TARGET_UNFINISHED.at(root.path, told)


def check_change(picture: Picture) -> Iterator[Finding]:
    """A change in place that was stopped in the middle; records that were set aside."""
    change = unfinished_change(picture.root)
    if change is not None:
        where = picture.place(change.directory)
        yield CHANGE_UNFINISHED.at(where, f"a change of this store ({change.kind}) was stopped")
    try:
        find_quarantine(picture.root.path)
    except SourceError:
        return
    quarantine = Quarantine(picture.root.path)
    if quarantine.waiting:
        told = f"still there: {len(quarantine.waiting):,} of"
        told += f" {counted(len(quarantine.records), 'record')}"
        yield QUARANTINE_LEFT.at(picture.place(quarantine.directory), told)


def check_target(picture: Picture) -> Iterator[Finding]:
    """A converted store: its settings, and its files' times as long as no broker has seen it."""
    root = picture.root
    if not is_present(root.own / CONVERSION_NAME):
        return
    made = read_settings(root)
    yield from _settings(picture, made)
    if is_present(root.lock) or is_present(root.abort):
        yield TARGET_OPENED.at(root.path, "there is a broker's lock file")
        return
    old = [
        segment
        for segment in picture.log.segments
        if segment.modified_ns // 1_000_000 < made.now_ms - _COPY_SLACK_MS
    ]
    if old:
        told = counted(len(old), "log file is", "log files are")
        told += " older than the conversion that wrote the log"
        yield TARGET_COPIED.at(picture.place(old[0].path), told)
    yield from _expired(picture)


def _settings(picture: Picture, made: ConversionSettings) -> Iterator[Finding]:
    conf = picture.options.conf
    asked: list[tuple[str, TargetSettings]] = []
    if conf:
        asked.append(("the broker's configuration", picture.broker))
    if picture.options.target is not None:
        asked.append(("the target's configuration", picture.options.target))
    for where, settings in asked:
        for key, name in _DEPENDS_ON.items():
            wanted, found = getattr(made, name), getattr(settings, name)
            if wanted != found:
                told = f"{key} is {found}, the target was written for {wanted}"
                yield TARGET_SETTINGS.at(where, told)


def _expired(picture: Picture) -> Iterator[Finding]:
    """More than one log file, and the first of them older than log files are kept."""
    segments = picture.log.segments
    if len(segments) < 2:
        return
    kept_until_ms = segments[0].modified_ns // 1_000_000
    kept_until_ms += picture.broker.retention_hours * _HOUR_MS
    if kept_until_ms <= picture.now_ms:
        told = f"its first log file is kept until {when(kept_until_ms, picture.now_ms)}"
        yield TARGET_EXPIRED.at(picture.place(segments[0].path), told)
