# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json and its .bak: what is wrong with them, and what a broker would deliver again."""

from collections.abc import Iterator

import numpy as np

from legacy_levels.backlog.queues import LevelQueue, queued_by_choice
from legacy_levels.backlog.reconcile import have_copies
from legacy_levels.delay_offsets import OffsetsChoice, OffsetsFile
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError
from message_store.base.printable import counted
from message_store.format.broker_json import Damage
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.unfinished_change import DONE
from migrate.changes.note import changes_of
from migrate.check.snapshot import Picture

_CHOOSE = (
    "stop the broker, compare the numbers, put the file of the better choice in the place of both;"
    " a conversion takes --offsets main, bak or none"
)
OFFSETS_TORN = warning(
    "offsets-torn",
    "4.x and 5.x take the .bak, which is older: what was delivered since is delivered again; 5.4"
    " and newer delete the torn file",
    _CHOOSE,
)
OFFSETS_STALE_TAIL = warning(
    "offsets-stale-tail",
    "a broker refuses the file for the older text behind its end, and takes the .bak",
    _CHOOSE,
)
OFFSETS_EMPTY = warning("offsets-empty", "a broker takes the .bak, which is older", _CHOOSE)
OFFSETS_MISSING = warning(
    "offsets-missing",
    "every level begins at its beginning: what was delivered and is still there is delivered again",
    "take the file from a backup; a conversion finds in the log what was delivered",
)
OFFSETS_BACKUP_DAMAGED = warning(
    "offsets-backup-damaged",
    "nothing as long as the main file is good; a loss of power that tears that one too costs both",
    "copy the main file over its .bak while the broker is stopped",
)
OFFSETS_UNREADABLE = error(
    "offsets-unreadable",
    "a broker does not start",
    "put a good file in the place of both; a conversion takes --offsets main, bak or none",
)
OFFSETS_BEYOND = error(
    "offset-beyond-queue",
    "a broker sets it to the queue's end: what waits there is not delivered; older 4.x brokers"
    " deliver nothing of that level ever again",
    "find the right offset (the .bak, the log); `delaywheel convert --offsets none` leaves out"
    " what was delivered",
)
OFFSETS_BELOW = warning(
    "offset-below-queue",
    "a broker goes on at the queue's beginning; what lay before it was deleted undelivered",
    "`delaywheel convert --whole-log` takes what of it the log still has, where the queue alone has"
    " lost its first files; else keep log files longer than messages wait",
)
OFFSETS_NEGATIVE = warning(
    "offset-negative",
    "a broker goes on at the queue's beginning: what was delivered and is still there is delivered"
    " again",
    "no broker writes such a number: put the right one into delayOffset.json and its .bak while the"
    " broker is stopped; a conversion finds in the log what was delivered",
)
OFFSETS_BEHIND = warning(
    "offsets-behind",
    "a broker delivers them again",
    "convert the store, which leaves them out, or make consumers ready for repetitions",
)
OFFSETS_AHEAD = error(
    "offsets-ahead",
    "a broker never delivers them",
    "put the right offset into delayOffset.json and its .bak while the broker is stopped",
)
OFFSETS_MOVED = info(
    "offsets-moved",
    "a broker passes over them, as it should when they wait in a converted store",
    "nothing; `delaywheel rollback` takes it back",
)
LEVEL_OFFSET_MISSING = warning(
    "offset-missing",
    "the level begins at its beginning: what was delivered is delivered again",
    "put the level's offset into delayOffset.json and its .bak while the broker is stopped",
)

RULES = (
    OFFSETS_TORN,
    OFFSETS_STALE_TAIL,
    OFFSETS_EMPTY,
    OFFSETS_MISSING,
    OFFSETS_BACKUP_DAMAGED,
    OFFSETS_UNREADABLE,
    OFFSETS_BEYOND,
    OFFSETS_BELOW,
    OFFSETS_NEGATIVE,
    OFFSETS_BEHIND,
    OFFSETS_AHEAD,
    OFFSETS_MOVED,
    LEVEL_OFFSET_MISSING,
)


def check_offset_files(picture: Picture) -> Iterator[Finding]:
    """The two files, with the number of messages that each choice would deliver."""
    files = picture.offset_files
    numbers = _numbers(picture)
    if not picture.level_queues and files.main.is_missing and files.backup.is_missing:
        return
    main, backup = files.main, files.backup
    if files.broker_choice is None:
        told = f"{_damage(main)}, and its .bak: {_damage(backup)}{numbers}"
        yield OFFSETS_UNREADABLE.at(picture.place(main.path), told)
        return
    if main.problem is not None:
        if files.broker_choice is OffsetsChoice.NONE:
            if any(map(len, picture.queues)):
                told = f"{_damage(main)}, and no .bak{numbers}"
                yield OFFSETS_MISSING.at(picture.place(main.path), told)
            return
        rules = {
            Damage.STALE_TAIL: OFFSETS_STALE_TAIL,
            Damage.EMPTY: OFFSETS_EMPTY,
            Damage.NUL_FILLED: OFFSETS_EMPTY,
            None: OFFSETS_EMPTY,
        }
        rule = rules.get(main.damage, OFFSETS_TORN)
        yield rule.at(picture.place(main.path), f"{_damage(main)}{numbers}")
    elif backup.damage not in (None, Damage.EMPTY):
        yield OFFSETS_BACKUP_DAMAGED.at(picture.place(backup.path), _damage(backup))


def _damage(file: OffsetsFile) -> str:
    return (file.problem or "good").removeprefix(f"{file.path}: ")


def _numbers(picture: Picture) -> str:
    try:
        counts = queued_by_choice(picture.root.path, picture.offset_files)
    except FormatError:
        return ""  # a queue that cannot be told is a finding of its own
    told = ", ".join(f"{choice}: {count:,}" for choice, count in counts.items())
    return f"; messages that each choice would deliver: {told}"


def check_offsets(picture: Picture) -> Iterator[Finding]:
    """Offsets that do not fit their queue, or what was delivered."""
    for queue in picture.queues:
        if queue.level not in picture.gone_queues:  # which is a finding of its own
            yield from _of_queue(picture, queue)
    backlog = picture.backlog
    if backlog is None:
        return
    for counts in backlog.counts:
        if not counts.already_delivered:
            continue
        name = picture.level_name(counts.level)
        again = counted(
            counts.already_delivered,
            "of its messages was delivered already",
            "of its messages were delivered already",
        )
        if picture.is_running:
            continue  # the file is written every ten seconds
        if counts.level not in picture.offsets and not picture.is_dirty:
            yield LEVEL_OFFSET_MISSING.at(name, f"delayOffset.json does not name it; {again}")
        else:
            yield OFFSETS_BEHIND.at(name, again)


def _of_queue(picture: Picture, queue: LevelQueue) -> Iterator[Finding]:
    stored, name = queue.stored_offset, picture.level_name(queue.level)
    if stored is not None and stored > queue.queue_max and not picture.is_running:
        told = f"offset {stored:,}, where the queue ends at {queue.queue_max:,}"
        yield OFFSETS_BEYOND.at(name, told)
    elif stored is not None and stored < queue.queue_min:
        told = f"offset {stored:,}, where the queue begins at {queue.queue_min:,}"
        yield (OFFSETS_NEGATIVE if stored < 0 else OFFSETS_BELOW).at(name, told)
    seen = queue.history
    is_passed = is_message(seen.units) & (seen.tags_code > _as_of_ms(picture))
    passed = seen.units[is_passed]
    if len(passed):
        # Who lets time run ahead delivers before it, and then an offset may say so.
        offsets, sizes = (
            passed[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes")
        )
        passed = passed[~have_copies(picture.log, offsets, sizes)]
    if len(passed):
        least = "at least " if len(passed) == len(seen) else ""
        told = f"not due yet: {least}{counted(len(passed), 'message')} before offset {stored:,}"
        rule = OFFSETS_MOVED if _was_changed_by_us(picture) else OFFSETS_AHEAD
        yield rule.at(name, told)


def _as_of_ms(picture: Picture) -> int:
    """Now, or when the last record was stored: nothing earlier is still to come."""
    newest_ms = picture.backlog.newest_store_ms if picture.backlog is not None else 0
    return max(picture.now_ms, newest_ms)


def _was_changed_by_us(picture: Picture) -> bool:
    """Whether delaywheel has moved offsets here (`retire`, or a conversion in place), and nobody
    has rolled that back.
    """
    return any(change.state == DONE for change in changes_of(picture.root))
