# SPDX-License-Identifier: Apache-2.0
"""The condition of a source: what refuses it, and what an operator should know beforehand."""

from collections.abc import Collection, Iterator
from typing import Any

from legacy_levels.backlog.lost_queues import cut_queues_of, gone_queues
from message_store.base.errors import SourceError, UncleanStoreError
from message_store.base.printable import iso_time, shell_word
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.unfinished_change import refuse_unfinished_change
from message_store.writing.losses import cut_log, way_out
from migrate.changes.note import RETIRE, Change, changes_of
from migrate.look.files import log_gaps, row_problems
from migrate.report.marker import first_offsets

_TAKEN_FROM_LOG = (
    "their messages are taken from the log as far as it has them, also those that were cancelled"
)
_READ_IN_LOG = (
    "what such a queue has lost is taken from the part of the log that is read, also messages that"
    " were cancelled"
)
_READS_ALL = f"{_READ_IN_LOG}: `delaywheel convert --whole-log` reads all of it"


def require_stopped(store: StoreRoot, *, after_crash: bool) -> None:
    """Raise UncleanStoreError for a store that is open or has crashed, unless ``after_crash``."""
    if not store.was_stopped_cleanly and not after_crash:
        raise UncleanStoreError(
            f"{store.abort}: the broker is running or has crashed; stop it cleanly, or use"
            " --after-crash (afterCrash of a data source) to leave out what was delivered"
        )


def source_warnings(source: StoreRoot, *, whole_log: bool, is_in_place: bool = False) -> list[str]:
    """What a source lacks, as sentences with the remedy: files, lengths of files, queues."""
    cut = [f"{queue}; {_TAKEN_FROM_LOG}" for queue in cut_queues_of(source)]
    problems = [*row_problems(source), *map(str, gone_queues(source, is_held=True))]
    if not any(str(source.consume_queues) in sentence for sentence in problems) or whole_log:
        return [*cut, *problems]
    finds = "convert into a fresh store with --whole-log instead"
    return [
        *cut,
        *problems,
        f"{_READ_IN_LOG}: {finds if is_in_place else '--whole-log reads all of it'}",
    ]


def log_losses(store: StoreRoot) -> list[str]:
    """How the commit log shows that it has lost records, as sentences: it ends before its synced
    end; or a file in front of its last one with records is missing, too short, or begins with
    zeros.

    A first file that was removed looks as if retention had taken it. Reads the head of each file.
    Raises SourceError.
    """
    cut = cut_log(store)
    lost = [f"{cut}; {way_out(store)}"] if cut else []
    lost += log_gaps(store)
    with open_log(store) as log:
        used = [segment for segment in log.segments if log.has_data_at(segment.start_offset)]
        last = used[-1].start_offset if used else 0
        lost += [
            f"{segment.path}: its records are lost; later files have some"
            for segment in log.segments
            if segment.start_offset < last
            and (segment.length_bytes < log.file_bytes or segment not in used)
        ]
    return lost


def loss_warnings(store: StoreRoot, *, is_open: bool | None = None) -> list[str]:
    """What log and level queues have lost, as sentences, for readers of a store. One that is open,
    or was not stopped cleanly, may have a last file of any length.
    """
    is_open = not store.was_stopped_cleanly if is_open is None else is_open
    lengths = list(row_problems(store, is_open=is_open))
    queues = [*map(str, gone_queues(store))]
    is_in_log = queues or any(str(store.consume_queues / LEVEL_TOPIC) in each for each in lengths)
    losses = log_losses(store)
    return [
        *losses,
        *(f"{cut}; {_TAKEN_FROM_LOG}" for cut in cut_queues_of(store)),
        *(each for each in lengths if each not in losses),
        *queues,
        *([_READS_ALL] if is_in_log else []),
    ]


def gone_queue_warnings(store: StoreRoot) -> list[str]:
    """Lost level queues, as sentences."""
    lost = [str(gone) for gone in gone_queues(store)]
    return [*lost, _READS_ALL] if lost else []


def retired_warnings(root: StoreRoot, only_levels: Collection[int]) -> list[str]:
    """Which of the levels to convert (``only_levels``; empty: all) were retired, as sentences.

    Raises SourceError for a note that cannot be read.
    """
    return [
        f"{_retired(root, change)}: its converted messages are no longer pending here;"
        f" {_way_back(root)} undoes that"
        for change in _retirements(root, only_levels)
    ]


def refuse_retired(source: StoreRoot, target: StoreRoot, only_levels: Collection[int]) -> None:
    """Raise SourceError for a source whose converted levels were retired since, or half retired: it
    looks empty, so ``target`` would seem to hold messages that nobody sent.
    """
    refuse_unfinished_change(source)
    for change in _retirements(source, only_levels):
        begun = first_offsets(target, source)
        moved = {int(level): int(at) for level, at in change.report["offsets"].items()}
        if all(at <= begun.get(level, at) for level, at in moved.items()):
            continue  # it was before this conversion
        alone = f"`delaywheel verify {shell_word(str(target.path))}`"
        raise SourceError(
            f"{_retired(source, change)}, and no longer shows its converted messages. Verify before"
            f" you retire, undo that ({_way_back(source)}), or verify the target alone ({alone})"
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
