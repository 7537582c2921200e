# SPDX-License-Identifier: Apache-2.0
"""Whether a change of a store in place was stopped before its end: until somebody finishes it, or
undoes it, messages may stand in the levels and on the wheel.
"""

import json

from message_store.errors import SourceError
from message_store.segment_files import list_directories
from message_store.small_files import read_small_file
from message_store.store_root import StoreRoot

BACKUP_PREFIX = "backup-"
"""How the directory of a change is called, below the project's own."""

NOTE_NAME = "change.json"
DONE, UNDONE = "done", "rolled back"
"""What the note says of a change that is over."""


def told_unfinished_change(root: StoreRoot) -> str | None:
    """What to say of a store of which a change was stopped in its middle."""
    for directory in list_directories(root.own):
        if not directory.name.startswith(BACKUP_PREFIX):
            continue
        content = read_small_file(directory / NOTE_NAME)
        if content is None:  # stopped before anything changed
            continue
        try:
            state = json.loads(content)["state"]
        except (ValueError, KeyError, TypeError):
            return f"{directory / NOTE_NAME}: cannot be read, so nobody knows how far a change came"
        if state not in (DONE, UNDONE):
            return (
                f"{directory}: a change of this store was stopped in its middle; finish it with the"
                " command that began it, or undo it with `delaywheel rollback`"
            )
    return None


def refuse_unfinished_change(root: StoreRoot) -> None:
    """Raise SourceError for a store that ``told_unfinished_change`` has something to say of."""
    if told := told_unfinished_change(root):
        raise SourceError(told)
