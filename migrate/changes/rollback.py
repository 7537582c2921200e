# SPDX-License-Identifier: Apache-2.0
"""Taking the newest change of a store back, as long as no broker has written to the store since."""

from typing import Any

import attrs

from message_store.base.errors import PlanError
from message_store.files.store_root import StoreLock, StoreRoot
from migrate.changes.note import IN_PLACE, Change, all_changes_of, changes_of
from migrate.changes.undo import (
    forget_our_abort,
    is_ours,
    opened_store,
    refuse_moved,
    undo,
    undo_offsets,
)
from migrate.quarantine.waits_twice import nothing_put_back, refuse_put_back
from migrate.write.owner import require_owner

PLANNED, DONE, NOTHING = "planned", "rolled back", "nothing to do"


@attrs.frozen(kw_only=True)
class RollbackReport:
    """What is taken back: a change of this ``kind``, made at ``now_ms``, which was ``begun`` or
    ``done``. ``log_from`` to ``log_to`` goes from the log's end; ``offsets`` are the levels whose
    offsets go back.
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

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return attrs.asdict(self)


def roll_back(root: StoreRoot, *, execute: bool = False) -> RollbackReport:
    """Plan, and with ``execute`` do, the way back from the newest change of a store.

    A way back that was stopped is gone on with by the next call. Raises SourceError, PlanError when
    a broker has written to the store since, or what was set aside was put back, and TargetError.
    """
    root.require_readable()
    if not execute or not all_changes_of(root):  # a lock file stays, and says that it was opened
        with root.shared_lock():
            return _look(root, PLANNED)
    require_owner(root)
    lock = root.take_lock()
    try:
        forget_our_abort(root, all_changes_of(root))
        report = _look(root, DONE)
        if report.state == DONE:
            change = changes_of(root)[-1]
            with nothing_put_back(root, change):
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
    refuse_put_back(root, change)
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
        offsets={int(level): place for level, place in change.report["offsets"].items()},
    )


def _undo(root: StoreRoot, change: Change, lock: StoreLock) -> None:
    if change.kind != IN_PLACE:
        undo_offsets(root, change)
        return
    with opened_store(root, lock, change) as store:
        if not is_ours(store, root, change):
            raise PlanError(
                f"{root.path}: its log holds what the change did not put there; it cannot be"
                f" undone; what it was is in {change.directory}"
            )
        undo(store, root, change)
