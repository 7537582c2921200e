# SPDX-License-Identifier: Apache-2.0
"""What the notes of a source say of its retirements: for which target its offsets moved, and when.

A retired source no longer shows what waited in it, which without a word would be taken for a store
in which nothing waits, or for a target that holds what nobody sent.
"""

from collections.abc import Collection, Iterator
from typing import Any

from message_store.base.errors import SourceError
from message_store.base.printable import iso_time, shell_word
from message_store.files.store_root import StoreRoot
from message_store.reading.unfinished_change import refuse_unfinished_change
from migrate.changes.note import RETIRE, Change, changes_of


def retired_warnings(root: StoreRoot, only_levels: Collection[int]) -> list[str]:
    """That levels a conversion is about (``only_levels``, all where that is empty) were retired.

    Raises SourceError for a note that cannot be read.
    """
    return [
        f"{_retired(root, change)}: of what it had converted nothing waits here any more;"
        f" {_way_back(root)} brings it back"
        for change in _retirements(root, only_levels)
    ]


def refuse_retired(source: StoreRoot, target: StoreRoot, only_levels: Collection[int]) -> None:
    """Raise SourceError for a source that no longer shows what ``target`` was converted from: its
    levels were retired, or a retirement was stopped in its middle.
    """
    refuse_unfinished_change(source)
    for change in _retirements(source, only_levels):
        alone = f"`delaywheel verify {shell_word(str(target.path))}`"
        raise SourceError(
            f"{_retired(source, change)}, and no longer shows what waited in it: verify before you"
            f" retire; or take that back ({_way_back(source)}), or give the target alone ({alone})"
        )


def _retirements(root: StoreRoot, only_levels: Collection[int]) -> Iterator[Change]:
    """The retirements that moved one of these levels, the newest first."""
    for change in reversed(changes_of(root)):
        moved = _moved_levels(change.report)
        if change.kind == RETIRE and (not only_levels or moved & set(only_levels)):
            yield change


def _moved_levels(report: dict[str, Any]) -> set[int]:
    offsets = report.get("offsets")
    levels = offsets if isinstance(offsets, dict) else {}
    return {int(level) for level in levels if str(level).isdecimal()}


def _retired(root: StoreRoot, change: Change) -> str:
    when = iso_time(change.now_ms)
    return f"{root.path}: was retired for {change.asked.get('target', 'a target')} on {when}"


def _way_back(root: StoreRoot) -> str:
    return f"`delaywheel rollback {shell_word(str(root.path))} --execute`"
