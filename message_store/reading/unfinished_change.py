# SPDX-License-Identifier: Apache-2.0
"""Whether a change of a store in place was stopped before its end, and what changes have moved.

Until somebody finishes or undoes one, messages may be in the levels and on the wheel.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from message_store.base.errors import SourceError, TargetError
from message_store.base.printable import shell_word
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader, list_directories
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import SMALLEST_RECORD_BYTES

BACKUP_PREFIX = "backup-"
"""How the directory of a change is called, below the project's own."""

NOTE_NAME = "change.json"
DONE, UNDONE = "done", "rolled back"
"""States of a change that is over."""

UNDOING = "rolling back"
"""State of a change that is being rolled back."""


def describe_unfinished_change(root: StoreRoot) -> str | None:
    """A sentence about a change of the store that was stopped in its middle; None without one."""
    for directory, facts in _notes(root):
        if facts is None:
            return f"{directory / NOTE_NAME}: cannot be read, so nobody knows how far a change came"
        if facts["state"] not in (DONE, UNDONE):
            told = f"{directory}: a change of this store was stopped in its middle"
            return f"{told}; {_ways_on(root, facts)}"
    return None


def moved_past(root: StoreRoot) -> dict[int, int]:
    """The queue offset of each level before which a change that is done left nothing to deliver:
    its messages wait elsewhere. A note that nobody can read is ``describe_unfinished_change``'s;
    one of a longer log, which a backup has replaced since, says nothing of this one.
    """
    done = [facts for _, facts in _notes(root) if facts is not None and facts["state"] == DONE]
    moved: dict[int, int] = {}
    if not done:
        return moved
    with open_log(root) as log:
        for facts in done:
            report = facts.get("report")
            offsets = report.get("offsets") if isinstance(report, dict) else None
            if not isinstance(offsets, dict) or not _reaches(log, facts.get("after")):
                continue
            for level, at in offsets.items():
                if level.isdecimal() and isinstance(at, int):
                    moved[int(level)] = max(at, moved.get(int(level), 0))
    return moved


def _reaches(log: SegmentReader, after: Any) -> bool:
    """Whether the log has the records that it had after a change, or had them once."""
    end = after.get("log_end", 0) if isinstance(after, dict) else 0
    if end <= max(log.min_offset, SMALLEST_RECORD_BYTES):
        return True
    # The last bytes of a record hold its topic or properties, and are never all zeros.
    tail = bytearray(SMALLEST_RECORD_BYTES)
    log.read_into(end - len(tail), memoryview(tail))
    return any(tail)


def _notes(root: StoreRoot) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """The directory of each change that began, with its note; None for one nobody can read."""
    for directory in list_directories(root.own):
        is_one = directory.name.startswith(BACKUP_PREFIX)
        content = read_small_file(directory / NOTE_NAME) if is_one else None
        if content is None:  # stopped before anything changed
            continue
        try:
            facts = json.loads(content)
        except ValueError:
            facts = None
        yield directory, facts if isinstance(facts, dict) and "state" in facts else None


@contextmanager
def telling_of_half_a_change(root: StoreRoot) -> Iterator[None]:
    """Add to a TargetError that stops a change half-way how the change is ended, and raise it."""
    try:
        yield
    except TargetError as error:
        if told := describe_unfinished_change(root):
            raise TargetError(f"{error}. {told}. Start no broker before that") from error
        raise


def _ways_on(root: StoreRoot, facts: dict[str, Any]) -> str:
    """The commands that end a change, as its note knows them."""
    store, asked = shell_word(str(root.path)), facts.get("asked")
    back = f"`delaywheel rollback {store} --execute`"
    if facts["state"] == UNDOING:
        return f"it was being undone: go on with {back}"
    asked = asked if isinstance(asked, dict) else {}
    if isinstance(target := asked.get("target"), str):
        command = f"retire {store} --converted-to {shell_word(target)}"
    else:
        flags = asked.get("flags")
        words = flags if isinstance(flags, list) else []
        command = " ".join([f"convert --in-place {store}", *(shell_word(str(w)) for w in words)])
    return f"finish it with `delaywheel {command} --execute`, or undo it with {back}"


def refuse_unfinished_change(root: StoreRoot) -> None:
    """Raise SourceError for a store that ``describe_unfinished_change`` has something to say of."""
    if told := describe_unfinished_change(root):
        raise SourceError(told)
