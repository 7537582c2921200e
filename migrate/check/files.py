# SPDX-License-Identifier: Apache-2.0
"""Files that stop a broker, or from which it loses messages: lengths, gaps, damage, topics."""

import json
from collections.abc import Iterator

from message_store.base.printable import counted, printable
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    DELAY,
    GROUPS,
    MESSAGE_TYPES,
    MIXED,
    NORMAL,
    TOPICS,
    read_config,
    read_consumer_offsets,
    read_topics,
)
from message_store.files.rocksdb.queues import queue_database
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from message_store.reading.indexed_end import find_indexed_end
from message_store.writing.losses import cut_log, damaged_places
from migrate.check.record_walk import EXAMPLES
from migrate.check.snapshot import StoreSnapshot, whole_number
from migrate.look.files import ROCKETMQ_4, file_rows, guess_format, row_faults
from migrate.report.finished_target import WRITTEN_NAME
from migrate.report.marker import CONVERSION_NAME
from migrate.write.target_config import takes_messages

FILE_LENGTH = error(
    "file-length",
    "a broker does not start",
    "take the file from a backup. The last file of the log may be filled with zeros to the length"
    " of the others. A queue's would then seem whole: without a backup, `delaywheel convert"
    " --whole-log` finds its messages in the log",
)
FILE_LENGTH_SETTING = error(
    "file-length-setting",
    "a broker with this setting does not start on these files",
    "give the broker the length that the files have",
)
FILE_MISSING = error(
    "file-missing",
    "a broker starts, and finds nothing of what lay there: messages of levels are skipped,"
    " those of a wheel are dropped",
    "take the file from a backup",
)
LOG_CUT = error(
    "log-cut-short",
    "messages are lost, and so is the knowledge of deliveries and cancellations: a broker"
    " continues at the end that is left; `delaywheel` refuses the store",
    "take the log from a backup; or lengthen a file that was cut (`truncate -s`) and remove"
    " `delaywheel/queue-ends.json` and `delaywheel/log-end` to continue without it."
    " What was scheduled there is lost. What was delivered or cancelled there may then be"
    " delivered once more",
)
LOG_DAMAGED = error(
    "log-damaged",
    "a broker may end the log there when it starts, and loses what lies behind; an engine of"
    " `delaywheel` may refuse the store",
    "take the log from a backup; `delaywheel convert --whole-log` finds what lies behind",
)
LOG_MISSING = error(
    "log-missing",
    "a broker deletes all consume queues when it finds no commit log",
    "do not start a broker here; take the commit log from a backup",
)
CONFIG_DAMAGED = warning(
    "config-damaged",
    "a broker takes the .bak",
    "compare the .bak with what you know, and replace the damaged file by it",
)
CONFIG_UNREADABLE = error(
    "config-unreadable",
    "a broker does not start",
    "take the file from a backup, or remove it and its .bak and create topics and groups again",
)
NOT_INDEXED = warning(
    "log-not-indexed",
    "4.9 puts them into their queues when it starts; 5.x loses the first of them, and after a clean"
    " stop it numbers the others wrongly",
    "start and stop the old broker once before it is replaced; a conversion takes them along",
)
NOT_FLUSHED = warning(
    "queues-not-flushed",
    "RocksDB lost them with the broker: one that starts here reads its last ten log files for them"
    " (commitLogRecoverMaxNum)",
    "a conversion reads all of the log, and takes them along",
)
TEN_FILES = error(
    "recovery-ten-files",
    "5.4 and newer read at most ten log files when they start (commitLogRecoverMaxNum): earlier"
    " messages that are in no queue are never delivered",
    "start such a broker once with commitLogRecoverMaxNum above the number of log files, or convert"
    " the store",
)
CHECKPOINT_AHEAD = warning(
    "checkpoint-ahead",
    "after a crash a broker begins to recover behind the last records: they get into no queue",
    "remove the file `checkpoint` before a 5.x broker starts: it then looks at the whole log",
)
UPGRADE = info(
    "upgrade-replay",
    "with a large log, brokers of 5.0.0 to 5.1.1 may write delayOffset.json before they have read"
    " it: everything in the level queues is delivered again",
    "upgrade to a newer 5.x at once, and keep a copy of config/",
)
SYSTEM_TOPIC_READ = warning(
    "system-topic-read",
    "the group receives pending messages before their time, and messages that it gives back wait"
    " once more",
    "find who subscribes to it; delayed messages are delivered to their own topic",
)
SYSTEM_TOPIC_CHANGED = warning(
    "system-topic-changed",
    "somebody made or changed the broker's own topic; messages that are sent to it directly may be"
    " queued again endlessly",
    "find out who did; the number of its queues is that of the levels",
)


RECOVERED_FILES = 10
RECOVERED_FILES_SETTING = "commitLogRecoverMaxNum"
"""RocketMQ: MessageStoreConfig#commitLogRecoverMaxNum (5.4.0)."""
_CLOCK_SLACK_MS = 1_000
SIZE_SETTINGS = {
    "mappedFileSizeCommitLog": "commit_log_file_bytes",
    "mappedFileSizeConsumeQueue": "queue_file_bytes",
    "mappedFileSizeTimerLog": "timer_log_file_bytes",
}


def check_rows(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Rows of files: wrong lengths, gaps, settings that do not fit."""
    root = snapshot.root
    for row in file_rows(root):
        with row:
            for fault in row_faults(row, is_open=snapshot.is_running):
                rule = FILE_MISSING if fault.is_gap else FILE_LENGTH
                yield rule.at(snapshot.relative(fault.path), fault.problem)
            if row.segments and not row.misfits:
                yield from _length_setting(snapshot, row)
    if root.has_lost_log:
        yield LOG_MISSING.at("commitlog", "no commit log file is there, but consume queues are")
    elif (lost := cut_log(root)) is not None:
        yield LOG_CUT.at("commitlog", lost)
    else:
        places = damaged_places(root)
        for place in places[:EXAMPLES]:
            yield LOG_DAMAGED.at("commitlog", f"no whole record begins at log offset {place:,}")
        if (more := len(places) - EXAMPLES) > 0:
            yield LOG_DAMAGED.at("commitlog", f"nor does one at {counted(more, 'more place')}")


def _length_setting(snapshot: StoreSnapshot, row: SegmentReader) -> Iterator[Finding]:
    root, key = snapshot.root, "mappedFileSizeConsumeQueue"
    if row.directory in (root.commit_log, root.timer_log):
        is_log = row.directory == root.commit_log
        key = "mappedFileSizeCommitLog" if is_log else "mappedFileSizeTimerLog"
    stated = getattr(snapshot.broker, SIZE_SETTINGS[key])
    if key in snapshot.options.conf and stated != row.file_bytes:
        text = f"{key} is {stated:,}, the files have {row.file_bytes:,} bytes"
        yield FILE_LENGTH_SETTING.at(snapshot.relative(row.directory), text)


def check_configs(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Configuration files that are damaged, and what they say of the broker's own topics."""
    for name in (TOPICS, GROUPS, CONSUMER_OFFSETS):
        problems = read_config(snapshot.root.path, name).problems
        if problems and queue_database(snapshot.root.path) is not None:
            yield CONFIG_UNREADABLE.at(f"config/{name} in RocksDB", _short(problems))
        elif len(problems) == 2:
            yield CONFIG_UNREADABLE.at(
                f"config/{name}", f"damaged, and its .bak: {_short(problems)}"
            )
        elif problems:
            main = snapshot.root.config_file(name)
            is_main = problems[0].startswith(f"{main}: ")
            backup = read_small_file(main.with_name(f"{name}.bak"))
            if is_main and backup is None:
                # A broker goes on with an empty table where there is no .bak.
                yield CONFIG_DAMAGED.at(
                    f"config/{name}", _short(problems), more="there is none: it begins with nothing"
                )
            elif is_main:
                yield CONFIG_DAMAGED.at(f"config/{name}", _short(problems))
    for topic, group in sorted(read_consumer_offsets(snapshot.root.path)):
        if topic in (LEVEL_TOPIC, TIMER_TOPIC):
            problem = f"consumer group {group!r} reads {topic}"
            yield SYSTEM_TOPIC_READ.at(f"config/{CONSUMER_OFFSETS}", problem)
    yield from _level_topic(snapshot)


def _short(problems: tuple[str, ...]) -> str:
    return "; ".join(problem.split(": ", 1)[-1] for problem in problems)


def _level_topic(snapshot: StoreSnapshot) -> Iterator[Finding]:
    table = read_config(snapshot.root.path, TOPICS).value.get("topicConfigTable")
    entry = table.get(LEVEL_TOPIC) if isinstance(table, dict) else None
    if not isinstance(entry, dict):
        return
    value = entry.get("writeQueueNums")
    queues = value if isinstance(value, int) else whole_number(str(value))
    levels = max([18, *snapshot.level_queues])
    if queues is not None and queues not in (18, levels):
        problem = f"{LEVEL_TOPIC} has {queues} queues"
        yield SYSTEM_TOPIC_CHANGED.at(f"config/{TOPICS}", problem)


def check_recovery(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """What a starting broker does not find: records in no queue, a checkpoint that lies."""
    backlog = snapshot.backlog
    if backlog is not None and (count := backlog.total("not_in_queue")) and not snapshot.is_running:
        problem = counted(count, "delayed message is", "delayed messages are")
        rule = NOT_FLUSHED if snapshot.root.lacks_newest_entries else NOT_INDEXED
        yield rule.at("consumequeue", f"{problem} in the log and in no queue")
    if not snapshot.is_running:
        yield from _beyond_recovery(snapshot)
    content = read_small_file(snapshot.root.checkpoint)
    has_crashed = snapshot.is_dirty and not snapshot.is_running
    if content is not None and has_crashed and backlog is not None:
        said_ms = StoreCheckpoint.decode(content).recover_from_ms
        if 0 <= backlog.newest_store_ms < said_ms - _CLOCK_SLACK_MS:
            problem = f"it says {said_ms}, the last record was stored at {backlog.newest_store_ms}"
            yield CHECKPOINT_AHEAD.at("checkpoint", problem)
    files = snapshot.offset_files
    guess = guess_format(snapshot.root, (files.main, files.backup))
    if guess.format == ROCKETMQ_4 and len(snapshot.level_rows):
        waiting = counted(len(snapshot.level_rows), "message waits", "messages wait")
        yield UPGRADE.at(snapshot.root.path, f"a 4.x store in whose levels {waiting}")


def _beyond_recovery(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Records in no queue that lie before the log files which a starting broker reads."""
    segments, backlog = snapshot.log.segments, snapshot.backlog
    stated = whole_number(snapshot.options.conf.get(RECOVERED_FILES_SETTING)) or 0
    read_files = stated if stated > 0 else RECOVERED_FILES
    if len(segments) <= read_files:
        return
    first_seen = segments[-read_files].start_offset
    indexed_end = find_indexed_end(snapshot.root.path, snapshot.log).log_offset
    if indexed_end >= first_seen:
        return
    problem = f"{len(segments)} log files, and no queue knows the records from {indexed_end} on"
    if backlog is not None:
        offsets = backlog.commit_log_offset
        lost = int(((offsets >= indexed_end) & (offsets < first_seen)).sum())
        problem += f": {lost:,} of {counted(len(backlog), 'pending message')} before {first_seen:,}"
    yield TEN_FILES.at("commitlog", problem)


_UPDATE = (
    "`mqadmin updateTopic -t TOPIC -a +message.type=MIXED` for each, once a broker serves them"
)
REFUSES_DELAYED = warning(
    "topic-refuses-delayed",
    "a 5.x proxy refuses every delayed message that a gRPC client sends to them (40014); pending"
    " messages are delivered all the same",
    _UPDATE,
)
UNKNOWN_TYPE = error(
    "topic-type-unknown",
    "a 5.x proxy fails whenever it looks at the topic: gRPC clients can neither send to it nor"
    " receive from it",
    _UPDATE,
)


def check_topic_types(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Types that no proxy knows, and topics of a target to which nobody could send as before."""
    topics = read_topics(snapshot.root.path)
    where = snapshot.relative(snapshot.root.config_file(TOPICS))
    unknown = [
        f"{printable(name)!r} ({printable(topic.message_type)!r})"
        for name, topic in sorted(topics.items())
        if topic.message_type is not None and topic.message_type not in MESSAGE_TYPES
    ]
    if unknown:
        yield UNKNOWN_TYPE.at(where, f"a type that RocketMQ does not have: {_named(unknown)}")
    refusing = [
        f"{printable(name)!r} ({topics[name].message_type or 'no message.type'})"
        for name in _pending_topics(snapshot)
        if name in topics
        and takes_messages(name)
        and (topics[name].message_type or NORMAL) in MESSAGE_TYPES - {DELAY, MIXED}
    ]
    if refusing:
        who = counted(len(refusing), "topic with pending messages", "topics with pending messages")
        yield REFUSES_DELAYED.at(where, f"{who}: {_named(refusing)}")


def _pending_topics(snapshot: StoreSnapshot) -> list[str]:
    """The topics that a target was made for, as its marker counts them; none for other stores."""
    for name in (CONVERSION_NAME, WRITTEN_NAME):
        content = read_small_file(snapshot.root.own / name)
        try:
            topics = json.loads(content or b"{}")["topics"]
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        if isinstance(topics, dict):
            return sorted(topics)
    return []


def _named(texts: list[str]) -> str:
    left = len(texts) - EXAMPLES
    more = f" and {counted(left, 'other')}" if left > 0 else ""
    return f"{', '.join(texts[:EXAMPLES])}{more}"
