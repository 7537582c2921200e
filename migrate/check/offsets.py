# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json and its .bak: what is wrong with them, and what a broker would deliver again."""

from collections.abc import Iterator

import numpy as np

from legacy_levels.backlog.queues import HISTORY_ENTRIES, LevelQueue, queued_by_choice
from legacy_levels.copies.matching import have_copies
from legacy_levels.delay_offsets import OffsetsChoice, OffsetsFile
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError
from message_store.base.printable import counted
from message_store.format.broker_json import Damage
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.unfinished_change import DONE
from migrate.changes.note import changes_of
from migrate.check.snapshot import ACTS_AS_MASTER, StoreSnapshot

_CHOOSE = (
    "stop the broker, compare the numbers, and replace both files by the better one. A conversion"
    " takes --offsets main, bak or none"
)
OFFSETS_TORN = warning(
    "offsets-torn",
    "4.x and 5.x take the .bak, which is older: messages delivered since are duplicated. 5.4 and"
    " newer delete the torn file",
    _CHOOSE,
)
OFFSETS_STALE_TAIL = warning(
    "offsets-stale-tail",
    "older text stands behind the end of the file, so a broker refuses it and takes the .bak",
    _CHOOSE,
)
OFFSETS_EMPTY = warning("offsets-empty", "a broker takes the .bak, which is older", _CHOOSE)
OFFSETS_MISSING = warning(
    "offsets-missing",
    "every level starts from its beginning: delivered messages that are still there are duplicated",
    "take the file from a backup; a conversion finds the delivered copies in the log",
)
OFFSETS_BACKUP_DAMAGED = warning(
    "offsets-backup-damaged",
    "nothing while the main file is good; a loss of power that tears that one too costs both",
    "copy the main file over its .bak while the broker is stopped",
)
OFFSETS_UNREADABLE = error(
    "offsets-unreadable",
    "a broker does not start",
    "replace both files by a good one; a conversion takes --offsets main, bak or none",
)
OFFSETS_BEYOND = error(
    "offset-beyond-queue",
    "a broker sets it to the queue's end: the messages before that are not delivered. Older 4.x"
    " brokers deliver nothing of that level ever again",
    "determine the correct offset from the .bak file or the log. `delaywheel convert --offsets"
    " none` leaves out what was delivered",
)
OFFSETS_BELOW = warning(
    "offset-below-queue",
    "a broker continues at the queue's beginning; earlier messages were deleted undelivered",
    "`delaywheel convert --whole-log` finds them in the log where only the queue has lost its first"
    " files. Otherwise keep log files longer than messages wait",
)
OFFSETS_NEGATIVE = warning(
    "offset-negative",
    "a broker continues at the queue's beginning: delivered messages that are still there are"
    " duplicated",
    "no broker writes such a number: write the correct one into delayOffset.json and its .bak while"
    " the broker is stopped. A conversion finds in the log what was delivered",
)
OFFSETS_BEHIND = warning(
    "offsets-behind",
    "a broker delivers duplicates of them",
    "convert the store, which leaves them out, or prepare consumers for duplicates",
)
OFFSETS_AHEAD = error(
    "offsets-ahead",
    "a broker never delivers them",
    "put the right offset into delayOffset.json and its .bak while the broker is stopped",
)
DELIVERED_ELSEWHERE = warning(
    "delivered-elsewhere",
    "delayOffset.json alone knows: without it they are delivered once more, and so they are by the"
    " master's store. Their copies are in the log of another broker, to which a slave that acted as"
    " master gave them",
    "stop the broker cleanly and convert this store with its own offsets, not --offsets none",
)
OFFSETS_MOVED = info(
    "offsets-moved",
    "a broker skips them, as it should when they wait in a converted store",
    "nothing; `delaywheel rollback` undoes it",
)
LEVEL_OFFSET_MISSING = warning(
    "offset-missing",
    "the level starts from its beginning: delivered messages are duplicated",
    "put the level's offset into delayOffset.json and its .bak while the broker is stopped",
)


def check_offset_files(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """The two files, with the number of messages that each choice would deliver.

    RocketMQ: ScheduleMessageService#load, ConfigManager#load.
    """
    files = snapshot.offset_files
    numbers = _numbers(snapshot)
    if not snapshot.level_queues and files.main.is_missing and files.backup.is_missing:
        return
    main, backup = files.main, files.backup
    if files.broker_choice is None:
        problem = f"{_damage(main)}, and its .bak: {_damage(backup)}{numbers}"
        yield OFFSETS_UNREADABLE.at(snapshot.relative(main.path), problem)
        return
    if main.problem is not None:
        if files.broker_choice is OffsetsChoice.NONE:
            if any(map(len, snapshot.queues)):
                problem = f"{_damage(main)}, and no .bak{numbers}"
                yield OFFSETS_MISSING.at(snapshot.relative(main.path), problem)
            return
        rules = {
            Damage.STALE_TAIL: OFFSETS_STALE_TAIL,
            Damage.EMPTY: OFFSETS_EMPTY,
            Damage.NUL_FILLED: OFFSETS_EMPTY,
            None: OFFSETS_EMPTY,
        }
        rule = rules.get(main.damage, OFFSETS_TORN)
        yield rule.at(snapshot.relative(main.path), f"{_damage(main)}{numbers}")
    elif backup.damage not in (None, Damage.EMPTY):
        yield OFFSETS_BACKUP_DAMAGED.at(snapshot.relative(backup.path), _damage(backup))


def _damage(file: OffsetsFile) -> str:
    return (file.problem or "good").removeprefix(f"{file.path}: ")


def _numbers(snapshot: StoreSnapshot) -> str:
    try:
        counts = queued_by_choice(snapshot.root.path, snapshot.offset_files)
    except FormatError:
        return ""  # an unreadable queue is a finding of its own
    problem = ", ".join(f"{choice}: {count:,}" for choice, count in counts.items())
    return f"; messages that each choice would deliver: {problem}"


def check_offsets(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Offsets that do not fit their queue, or what was delivered.

    RocketMQ: ScheduleMessageService#correctDelayOffset (4.9.7).
    """
    for queue in snapshot.queues:
        if queue.level not in snapshot.gone_queues:  # which is a finding of its own
            yield from _of_queue(snapshot, queue)
            if snapshot.is_set(ACTS_AS_MASTER):
                yield from _gone_elsewhere(snapshot, queue)
    backlog = snapshot.backlog
    if backlog is None:
        return
    for counts in backlog.counts:
        if not counts.already_delivered:
            continue
        name = snapshot.level_name(counts.level)
        were = "of its messages was", "of its messages were"
        again = f"{counted(counts.already_delivered, *were)} delivered already"
        if snapshot.is_running:
            continue  # the file is written every ten seconds
        if counts.level not in snapshot.offsets and not snapshot.is_dirty:
            yield LEVEL_OFFSET_MISSING.at(name, f"delayOffset.json does not name it; {again}")
        else:
            yield OFFSETS_BEHIND.at(name, again)


def _of_queue(snapshot: StoreSnapshot, queue: LevelQueue) -> Iterator[Finding]:
    stored, name = queue.stored_offset, snapshot.level_name(queue.level)
    is_behind = snapshot.is_running or snapshot.root.lacks_newest_entries
    if stored is not None and stored > queue.queue_max and not is_behind:
        problem = f"offset {stored:,}, where the queue ends at {queue.queue_max:,}"
        yield OFFSETS_BEYOND.at(name, problem)
    elif stored is not None and stored < queue.queue_min:
        problem = f"offset {stored:,}, where the queue begins at {queue.queue_min:,}"
        yield (OFFSETS_NEGATIVE if stored < 0 else OFFSETS_BELOW).at(name, problem)
    elif stored is None and queue.queue_min:
        yield OFFSETS_BELOW.at(name, f"no offset, and the queue begins at {queue.queue_min:,}")
    seen = queue.history
    is_passed = is_message(seen.units) & (seen.tags_code > _as_of_ms(snapshot))
    passed = seen.units[is_passed]
    if len(passed):
        # Who lets time run ahead delivers before it, and then an offset may say so.
        offsets, sizes = (
            passed[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes")
        )
        passed = passed[~have_copies(snapshot.log, offsets, sizes)]
    if len(passed):
        least = "at least " if len(passed) == len(seen) else ""
        problem = f"not due yet: {least}{counted(len(passed), 'message')} before offset {stored:,}"
        rule = OFFSETS_MOVED if _was_changed_by_us(snapshot) else OFFSETS_AHEAD
        yield rule.at(name, problem)


def _gone_elsewhere(snapshot: StoreSnapshot, queue: LevelQueue) -> Iterator[Finding]:
    """Messages before the offset, due by now, of which this log has no delivered copy."""
    seen = queue.history
    units = seen.units[is_message(seen.units) & (seen.tags_code <= _as_of_ms(snapshot))]
    units = units[units["commit_log_offset"].astype(np.int64) >= snapshot.log.min_offset]
    offsets, sizes = (units[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes"))
    count = len(units) - int(have_copies(snapshot.log, offsets, sizes).sum()) if len(units) else 0
    if count and not _was_changed_by_us(snapshot):
        least = "at least " if len(seen) == HISTORY_ENTRIES else ""
        problem = f"no copy here of {least}{counted(count, 'message')} before its offset"
        yield DELIVERED_ELSEWHERE.at(snapshot.level_name(queue.level), problem)


def _as_of_ms(snapshot: StoreSnapshot) -> int:
    """Now, or when the last record was stored: nothing earlier is still to come."""
    newest_ms = snapshot.backlog.newest_store_ms if snapshot.backlog is not None else 0
    return max(snapshot.now_ms, newest_ms)


def _was_changed_by_us(snapshot: StoreSnapshot) -> bool:
    """Whether `retire` or a conversion in place has moved offsets, without a rollback since."""
    return any(change.state == DONE for change in changes_of(snapshot.root))
