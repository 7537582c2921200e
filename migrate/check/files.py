# SPDX-License-Identifier: Apache-2.0
"""Files of a store that stop a broker, or from which it loses messages: lengths, gaps, damage."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from legacy_levels.backlog.reconcile import find_indexed_end
from message_store.base.errors import BadFieldError
from message_store.base.printable import counted
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    TOPICS,
    read_config,
    read_consumer_offsets,
)
from message_store.files.segments import SegmentReader, list_directories, list_segments
from message_store.files.small_files import read_small_file
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import parse_long
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.writing.cut_log import cut_log
from migrate.check.snapshot import Picture
from migrate.look.files import ROCKETMQ_4, guess_format, usual_length

FILE_LENGTH = error(
    "file-length",
    "a broker does not start",
    "take the file from a backup; where it is the last one, it may be filled up with zeros to the"
    " length of the others",
)
FILE_LENGTH_SETTING = error(
    "file-length-setting",
    "a broker with this setting does not start on these files",
    "give the broker the length that the files have",
)
FILE_MISSING = error(
    "file-missing",
    "a broker starts, and finds nothing of what lay there: messages of levels are passed over,"
    " those of a wheel are dropped",
    "take the file from a backup",
)
LOG_CUT = error(
    "log-cut-short",
    "messages are lost, and deliveries and cancellations of which nobody knows: a broker goes on at"
    " the end that is left, `delaywheel` refuses the store",
    "take the log from a backup; or remove `delaywheel/queue-ends.json` to go on without it: what"
    " was delivered or cancelled there is then delivered again",
)
LOG_MISSING = error(
    "log-missing",
    "a broker deletes all consume queues when it finds no commit log",
    "do not start a broker here; take the commit log from a backup",
)
CONFIG_DAMAGED = warning(
    "config-damaged",
    "a broker takes the .bak",
    "compare the .bak with what you know, and put it in the place of the damaged file",
)
CONFIG_UNREADABLE = error(
    "config-unreadable",
    "a broker does not start",
    "take the file from a backup, or remove it and its .bak and make topics and groups anew",
)
NOT_INDEXED = warning(
    "log-not-indexed",
    "4.9 puts them into their queues when it starts; 5.x loses the first of them, and after a clean"
    " stop it numbers the others wrongly",
    "start and stop the old broker once before it is replaced; a conversion takes them along",
)
TEN_FILES = error(
    "recovery-ten-files",
    "5.4 and newer look at no more than ten log files when they start: what lies before those, and"
    " in no queue, is never delivered",
    "start such a broker once with commitLogRecoverMaxNum above the number of log files",
)
CHECKPOINT_AHEAD = warning(
    "checkpoint-ahead",
    "after a crash a broker begins to recover behind the last records: they get into no queue",
    "remove the file `checkpoint` before a 5.x broker starts: it then looks at the whole log",
)
UPGRADE = info(
    "upgrade-replay",
    "brokers of 5.0.0 to 5.1.1 may write delayOffset.json before they have read it, when the log is"
    " large: everything in the level queues is delivered again",
    "upgrade to a newer 5.x at once, and keep a copy of config/",
)
SYSTEM_TOPIC_READ = warning(
    "system-topic-read",
    "the group is given messages that wait, before their time, and what it gives back waits again",
    "find who subscribes to it; delayed messages come in their own topic",
)
SYSTEM_TOPIC_CHANGED = warning(
    "system-topic-changed",
    "somebody made or changed the broker's own topic; what is sent to it directly may go round for"
    " ever",
    "find out who did; the number of its queues is that of the levels",
)

RULES = (
    FILE_LENGTH,
    FILE_LENGTH_SETTING,
    FILE_MISSING,
    LOG_MISSING,
    LOG_CUT,
    CONFIG_DAMAGED,
    CONFIG_UNREADABLE,
    NOT_INDEXED,
    TEN_FILES,
    CHECKPOINT_AHEAD,
    UPGRADE,
    SYSTEM_TOPIC_READ,
    SYSTEM_TOPIC_CHANGED,
)

RECOVERED_FILES = 10
_CLOCK_SLACK_MS = 1_000
_SIZE_SETTINGS = {
    "mappedFileSizeCommitLog": "commit_log_file_bytes",
    "mappedFileSizeConsumeQueue": "queue_file_bytes",
    "mappedFileSizeTimerLog": "timer_log_file_bytes",
}


def check_rows(picture: Picture) -> Iterator[Finding]:
    """Rows of files: wrong lengths, gaps, settings that do not fit."""
    root = picture.root
    queues = [
        queue
        for topic in list_directories(root.consume_queues)
        for queue in list_directories(topic)
    ]
    queue_bytes = usual_length(segment for queue in queues for segment in list_segments(queue))
    yield from _row(picture, root.commit_log, "mappedFileSizeCommitLog")
    yield from _row(picture, root.timer_log, "mappedFileSizeTimerLog")
    for queue in queues:
        yield from _row(picture, queue, "mappedFileSizeConsumeQueue", queue_bytes)
    if root.has_lost_log:
        yield LOG_MISSING.at("commitlog", "no commit log file is there, but consume queues are")
    elif (lost := cut_log(root)) is not None:
        yield LOG_CUT.at("commitlog", lost)


def _row(
    picture: Picture, directory: Path, setting: str, usual_bytes: int | None = None
) -> Iterator[Finding]:
    usual_bytes = usual_bytes or usual_length(list_segments(directory))
    with SegmentReader(directory, usual_bytes) as row:
        if not row.segments:
            return
        file_bytes = row.file_bytes
        for segment in row.misfits:
            told = f"{segment.length_bytes:,} bytes long, not {file_bytes:,}"
            yield FILE_LENGTH.at(picture.place(segment.path), told)
        for before, after in pairwise(row.segments):
            end = before.start_offset + max(before.length_bytes, file_bytes)
            if end < after.start_offset:
                told = f"a file is missing between {before.path.name} and {after.path.name}"
                yield FILE_MISSING.at(picture.place(directory), told)
        stated = getattr(picture.broker, _SIZE_SETTINGS[setting])
        if setting in picture.options.conf and stated != file_bytes and not row.misfits:
            told = f"{setting} is {stated:,}, the files have {file_bytes:,} bytes"
            yield FILE_LENGTH_SETTING.at(picture.place(directory), told)


def check_configs(picture: Picture) -> Iterator[Finding]:
    """Configuration files that are damaged, and what they say of the broker's own topics."""
    for name in (TOPICS, GROUPS, CONSUMER_OFFSETS):
        problems = read_config(picture.root.path, name).problems
        if len(problems) == 2:
            yield CONFIG_UNREADABLE.at(
                f"config/{name}", f"damaged, and its .bak: {_short(problems)}"
            )
        elif problems:
            main = picture.root.config_file(name)
            is_main = problems[0].startswith(f"{main}: ")
            backup = read_small_file(main.with_name(f"{name}.bak"))
            if is_main and backup is None:
                # A broker goes on with an empty table where there is no .bak.
                yield CONFIG_DAMAGED.at(
                    f"config/{name}", _short(problems), more="there is none: it begins with nothing"
                )
            elif is_main:
                yield CONFIG_DAMAGED.at(f"config/{name}", _short(problems))
    for topic, group in sorted(read_consumer_offsets(picture.root.path)):
        if topic in (LEVEL_TOPIC, TIMER_TOPIC):
            told = f"consumer group {group!r} reads {topic}"
            yield SYSTEM_TOPIC_READ.at(f"config/{CONSUMER_OFFSETS}", told)
    yield from _level_topic(picture)


def _short(problems: tuple[str, ...]) -> str:
    return "; ".join(problem.split(": ", 1)[-1] for problem in problems)


def _level_topic(picture: Picture) -> Iterator[Finding]:
    table = read_config(picture.root.path, TOPICS).value.get("topicConfigTable")
    entry = table.get(LEVEL_TOPIC) if isinstance(table, dict) else None
    if not isinstance(entry, dict):
        return
    queues = _queue_count(entry)
    levels = max([18, *picture.level_queues])
    if queues is not None and queues not in (18, levels):
        told = f"{LEVEL_TOPIC} has {queues} queues"
        yield SYSTEM_TOPIC_CHANGED.at(f"config/{TOPICS}", told)


def _queue_count(entry: Mapping[str | int, object]) -> int | None:
    value = entry.get("writeQueueNums")
    try:
        return value if isinstance(value, int) else parse_long(str(value))
    except BadFieldError:
        return None


def check_recovery(picture: Picture) -> Iterator[Finding]:
    """What a starting broker does not find: records in no queue, a checkpoint that lies."""
    backlog = picture.backlog
    segments = picture.log.segments
    if backlog is not None and (count := backlog.total("not_in_queue")) and not picture.is_running:
        told = counted(count, "delayed message is", "delayed messages are")
        yield NOT_INDEXED.at("consumequeue", f"{told} in the log and in no queue")
    if len(segments) > RECOVERED_FILES:
        first_seen = segments[-RECOVERED_FILES].start_offset
        indexed_end = find_indexed_end(picture.root.path, picture.log).log_offset
        if indexed_end < first_seen and not picture.is_running:
            told = f"{len(segments)} log files, of which queues know nothing from {indexed_end} on"
            yield TEN_FILES.at("commitlog", told)
    content = read_small_file(picture.root.checkpoint)
    if content is not None and picture.is_dirty and not picture.is_running and backlog is not None:
        said_ms = StoreCheckpoint.decode(content).recover_from_ms
        if 0 <= backlog.newest_store_ms < said_ms - _CLOCK_SLACK_MS:
            told = f"it says {said_ms}, the last record was stored at {backlog.newest_store_ms}"
            yield CHECKPOINT_AHEAD.at("checkpoint", told)
    files = picture.offset_files
    guess = guess_format(picture.root, (files.main, files.backup))
    if guess.format == ROCKETMQ_4 and len(picture.level_rows):
        waiting = counted(len(picture.level_rows), "message waits", "messages wait")
        yield UPGRADE.at(picture.root.path, f"a 4.x store in whose levels {waiting}")
