# SPDX-License-Identifier: Apache-2.0
"""Finishes or undoes a change of a store from wherever it was stopped, and rolls back the newest.

Undoing moves the offsets back first, so that a message is pending in its level again before its
record is removed from the log. Stopped anywhere, it is continued by the next call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from message_store.base.clock import SystemClock
from message_store.base.errors import PlanError
from message_store.files.log_row import open_log
from message_store.files.segments import list_segments
from message_store.files.small_files import read_small_file, remove_file, sync_directory
from message_store.files.store_lock import StoreLock
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.properties import TIMER_TOPIC
from message_store.reading.commit_log import NO_TIME, find_log_end
from message_store.reading.unfinished_change import DONE, UNDOING, UNDONE
from message_store.writing.losses import LOG_FILE_NAME, StoreEnds
from message_store.writing.store import LiveStore
from migrate.changes.note import (
    IN_PLACE,
    OFFSETS,
    OFFSETS_BACKUP,
    RETIRE,
    Change,
    all_changes_of,
    changes_of,
    restore_offsets,
)
from migrate.in_place.checks import file_sizes, read_ends
from migrate.quarantine.double_delivery import nothing_restored, refuse_restored
from migrate.write.owner import require_owner
from migrate.write.publishing import signs_of_use
from migrate.write.staging import target_errors

PLANNED, NOTHING = "planned", "nothing to do"
"""States of a report; UNDONE is the third."""


@contextmanager
def opened_store(root: StoreRoot, lock: StoreLock, change: Change) -> Iterator[LiveStore]:
    """The store, open for appending, for a ``with`` block; leaving it writes nothing and gives up
    ``lock``.

    `checkpoint` stays what it was: it is for after a crash, and the older it is, the more a broker
    looks at then. Raises StoreLockedError, SourceError, TargetError.
    """
    store = LiveStore(
        root,
        lock,
        clock=SystemClock(),
        dialect=Dialect(change.asked["dialect"]),
        settings=file_sizes(root),
        levels=DelayLevels.parse(change.asked["level_table"]),
        is_for_a_change=True,
    )
    try:
        change.restore_file(root, "checkpoint")
        yield store
    finally:
        store.abandon()


def moved_since(root: StoreRoot, change: Change) -> str | None:
    """How a broker changed a store since a change of ours, as a sentence; None if it did not."""
    ends = read_ends(root)
    is_over = change.state == DONE
    first = change.after if is_over else change.before
    if not first.log_end <= ends.log_end <= change.after.log_end:
        return f"the log ends at {ends.log_end:,}, not at {change.after.log_end:,}"
    if not first.timer_queue_end <= ends.timer_queue_end <= change.after.timer_queue_end:
        return f"the timer queue ends at {ends.timer_queue_end:,}"
    if ends.wheel != change.before.wheel:
        return "the wheel has taken in messages"
    if ends.log_end > change.before.log_end and _has_others(root, change):
        return "the log holds records that the change did not append"
    for name in (OFFSETS, OFFSETS_BACKUP):
        content = read_small_file(root.path / name)
        is_after = content == change.offsets_after.encode()
        if not is_after and (is_over or not change.is_before(name, content)):
            return f"{name} is not what was written"
    return None


def _has_others(root: StoreRoot, change: Change) -> bool:
    """Whether a record behind the offset where a change began is not its own: those have one store
    time, at which no broker ran.
    """
    with open_log(root) as log:
        found = find_log_end(log, from_offset=change.before.log_end)
    return not {found.oldest_store_ms, found.newest_store_ms} <= {NO_TIME, change.now_ms}


def finish(root: StoreRoot, change: Change) -> Change:
    """Say that a change is done, and that the store is stopped as it was before."""
    change.restore_file(root, "checkpoint")
    change = change.write(DONE)
    _close_as_before(root, change)
    return change


def undo(store: LiveStore, root: StoreRoot, change: Change) -> Change:
    """Undo a change: first the offsets, then entries and records. Raises TargetError."""
    change = change.write(UNDOING)
    restore_offsets(root, change)
    log_end = change.before.log_end
    queue = store.queue(TIMER_TOPIC, 0)
    if queue.segments.starts:
        queue.cut(log_end)
        queue.segments.sync()
    StoreEnds.forget_beyond(root, log_end)
    store.log.segments.zero_from(log_end)
    store.log.segments.sync()
    queue.close()
    _remove_new_queue_files(root, change)
    change.restore_file(root, "checkpoint")
    change = change.write(UNDONE)
    _close_as_before(root, change)
    return change


def drop(root: StoreRoot, change: Change) -> None:
    """Remove all traces of a change that has written nothing yet. Raises TargetError."""
    change.restore_file(root, "checkpoint")
    _close_as_before(root, change.write(UNDONE))
    StoreRoot(change.directory).discard(keeps_directory=False)
    with target_errors(root.own):
        if root.own.is_dir() and {path.name for path in root.own.iterdir()} <= {LOG_FILE_NAME}:
            remove_file(root.own / LOG_FILE_NAME)  # noted when the store was opened for the change
            root.own.rmdir()


def undo_offsets(root: StoreRoot, change: Change) -> Change:
    """Undo a change of the offsets alone. Raises TargetError."""
    change = change.write(UNDOING)
    restore_offsets(root, change)
    return change.write(UNDONE)


def clear_own_abort(root: StoreRoot, changes: list[Change]) -> None:
    """Remove the ``abort`` file that a kill left behind a finished change of ours.

    Only where the newest change is over and nothing has moved since: otherwise the file is a
    broker's. Raises TargetError.
    """
    if root.was_stopped_cleanly or not changes or not changes[-1].was_clean:
        return
    last = changes[-1]
    is_untouched = last.state == DONE and moved_since(root, last) is None
    is_undone = last.state == UNDONE and read_ends(root) == last.before
    if is_untouched or is_undone:
        root.mark_stopped()


def refuse_moved(root: StoreRoot, change: Change) -> None:
    """Raise PlanError when a broker has written to a store since a change was begun or done."""
    if what := moved_since(root, change):
        raise PlanError(
            f"{root.path}: a broker has written to it since ({what}). The change can neither be"
            f" finished nor undone; {change.directory} has the files as they were, and can be"
            " removed to give the change up"
        )


def _close_as_before(root: StoreRoot, change: Change) -> None:
    if change.was_clean:
        root.mark_stopped()
    else:
        change.restore_file(root, "abort")


def _remove_new_queue_files(root: StoreRoot, change: Change) -> None:
    """Remove the timer queue files, now empty, that the change made, and their directories."""
    queue, old_files = root.timer_queue(), change.asked["timer_queue_files"]
    for segment in list_segments(queue):
        if segment.path.name not in old_files:
            remove_file(segment.path)
    with target_errors(queue):
        for directory in (queue, queue.parent):
            if not old_files and directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()
        for directory in (queue, queue.parent, root.consume_queues):
            if directory.is_dir():
                sync_directory(directory)


@attrs.frozen(kw_only=True)
class RollbackReport:
    """The change that is rolled back: its ``kind``, its time ``now_ms``, its state before
    (``was``). The log loses ``log_from`` to ``log_to``; ``offsets`` are those that the change set.
    ``warnings`` name a target that may have delivered some.
    """

    store: str
    state: str
    kind: str | None = None
    was: str | None = None
    now_ms: int | None = None
    backup: str | None = None
    messages: int = 0
    log_from: int = 0
    log_to: int = 0
    offsets: dict[int, int] = attrs.field(factory=dict)
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return attrs.asdict(self)


def roll_back(root: StoreRoot, *, execute: bool = False) -> RollbackReport:
    """Plan, and with ``execute`` do, the rollback of the newest change of a store.

    The next call continues a stopped rollback. Raises SourceError, TargetError, and PlanError if a
    broker has written to the store since or quarantined records were restored.
    """
    root.require_readable()
    if not execute or not all_changes_of(root):  # taking the lock leaves a lock file
        with root.shared_lock():
            return _look(root, PLANNED)
    require_owner(root)
    lock = root.take_lock()
    try:
        clear_own_abort(root, all_changes_of(root))
        report = _look(root, UNDONE)
        if report.state == UNDONE:
            change = changes_of(root)[-1]
            with nothing_restored(root, change):
                _undo(root, change, lock)
        return report
    finally:
        lock.release()


def _look(root: StoreRoot, state: str) -> RollbackReport:
    changes = changes_of(root)
    if not changes:
        return RollbackReport(store=str(root.path), state=NOTHING)
    change = changes[-1]
    refuse_moved(root, change)
    refuse_restored(root, change)
    return RollbackReport(
        store=str(root.path),
        state=state,
        kind=change.kind,
        was=change.state,
        now_ms=change.now_ms,
        backup=str(change.directory),
        messages=int(change.report["converted"]),
        log_from=change.before.log_end,
        log_to=change.after.log_end,
        offsets={int(level): offset for level, offset in change.report["offsets"].items()},
        warnings=_warnings(change),
    )


def _warnings(change: Change) -> tuple[str, ...]:
    """Of a retirement: whether the target may have delivered what is pending here again. Raises
    TargetError.
    """
    if change.kind != RETIRE or "target" not in change.asked:
        return ()
    target = StoreRoot(Path(change.asked["target"]))
    if not target.path.is_dir():
        how = "is not there: where quarantined records were restored from it, or it was started"
    elif signs := signs_of_use(target):
        how = f"a broker or an engine was started there ({', '.join(signs)} left)"
    else:
        return ()
    return (f"{target.path}: {how}, what that has delivered is delivered from here again",)


def _undo(root: StoreRoot, change: Change, lock: StoreLock) -> None:
    if change.kind != IN_PLACE:
        undo_offsets(root, change)
        return
    with opened_store(root, lock, change) as store:
        undo(store, root, change)
