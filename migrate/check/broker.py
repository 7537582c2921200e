# SPDX-License-Identifier: Apache-2.0
"""What a broker's state, settings, disk and timeline do to pending messages."""

from collections.abc import Iterator

from message_store.base.errors import DelayStoreError, FormatError
from message_store.base.printable import counted
from message_store.files.rocksdb.queues import queue_database
from message_store.files.small_files import read_small_file
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from migrate.check.snapshot import ACTS_AS_MASTER, StoreSnapshot, whole_number
from migrate.source.members import member_state
from migrate.write.room import used_ratio
from timer_wheel.format.metrics import TIMER_METRICS_NAME, decode_timer_metrics
from timer_wheel.reading.timeline import read_timeline, timeline_directory

RUNNING = info(
    "broker-running",
    "whoever has the store open writes: numbers may change while they are read",
    "stop the broker or the program for exact numbers",
)
CRASHED = warning(
    "store-crashed",
    "a broker that starts here repeats what was delivered in the seconds before the end;"
    " `delaywheel run` repeats nothing",
    "a conversion takes --after-crash and leaves out what was delivered",
)
DLEDGER_MEMBER = info(
    "dledger-member",
    "a broker that starts here without enableDLegerCommitLog finds no log: it deletes the consume"
    " queues and serves nothing",
    "start it with its group only, or make an ordinary store of it with `delaywheel plain`",
)
ROCKSDB_QUEUES = info(
    "queues-in-rocksdb",
    "a broker that starts here with another storeType finds no queue",
    "start it with storeType=defaultRocksDB; `delaywheel convert` makes a target with files",
)
CONTROLLED_MEMBER = info(
    "controller-member",
    "only the member of the highest epoch with the longest log has every message; the offsets of"
    " the others are copies that lag behind",
    "stop all members, and let `delaywheel convert --members` choose",
)
ACTING_SLAVE = warning(
    "store-of-acting-slave",
    "what a slave delivered while it acted as master, it gave to logs of other brokers, and its"
    " master's store does not know of it. Only the slave's delayOffset.json does, after a clean"
    " stop",
    "convert the store of the one that delivered last; `delivered-elsewhere` counts what is in no"
    " log here",
)
DISK_CLEANS = info(
    "disk-cleans-early",
    "a broker deletes expired log files at any hour, not only at night",
    "make room",
)
DISK_FORCES = warning(
    "disk-deletes",
    "a broker deletes the oldest log files at once, even if messages in them are pending",
    "make room before it starts",
)
DISK_REFUSES = error(
    "disk-refuses",
    "a broker refuses to store messages, and deletes the oldest log files. Messages of a level wait"
    " until there is room; those of a wheel are dropped after three tries",
    "make room before it starts, or set timerEnableRetryUntilSuccess=true",
)
SLAVE = warning(
    "store-of-slave",
    "a slave's offsets are a copy that lags behind: a broker that starts here as a master repeats"
    " messages",
    "check and convert the master's store",
)
WHEEL_OFF = error(
    "wheel-switched-off",
    "with this setting no message of the wheel is delivered",
    "correct it before the broker starts",
)
DISCARDS = info(
    "discard-after-three",
    "a message of the wheel that cannot be stored when it is due, for a second or two, is thrown"
    " away",
    "set timerEnableRetryUntilSuccess=true (5.3.2 and newer)",
)
RECALL_IGNORED = warning(
    "recall-ignored",
    "their delete markers have the form of another version, so they are delivered although somebody"
    " recalled them. 5.3.2 and 5.3.3 name topic and key, others the key alone",
    "set appendTopicForTimerDeleteKey to what the markers need (5.4 and newer)",
)
METRICS = error(
    "timermetrics-unreadable",
    "a 5.x broker does not start",
    "remove config/timermetrics and its .bak; a broker counts again",
)
METRICS_DAMAGED = warning(
    "timermetrics-damaged",
    "a broker takes the .bak; its counters are wrong for a while, deliveries are not",
    "remove the damaged file",
)


_DISK_LIMITS = (
    ("diskSpaceWarningLevelRatio", 90, DISK_REFUSES),
    ("diskSpaceCleanForciblyRatio", 85, DISK_FORCES),
    ("diskMaxUsedSpaceRatio", 75, DISK_CLEANS),
)
"""Settings in percent, what each is unless set, and what is to be said above it."""


def check_state(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Running, crashed, a member's, a slave's, also of one that acted as master."""
    root = snapshot.root
    if snapshot.is_running:
        yield RUNNING.at(root.lock.name, "a broker or a program has the store open")
    elif snapshot.is_dirty:
        yield CRASHED.at(root.abort.name, "a broker or a program ended without closing the store")
    if (member := member_state(root)) is not None:
        group = "a group with a controller" if member.is_controlled else "a DLedger group"
        problem = f"member {member.member} of {group}, whose log ends at {member}"
        yield (CONTROLLED_MEMBER if member.is_controlled else DLEDGER_MEMBER).at(root.path, problem)
    if (database := queue_database(root.path)) is not None:
        yield ROCKSDB_QUEUES.at(snapshot.relative(database), "the consume queues are in RocksDB")
    if snapshot.is_set(ACTS_AS_MASTER):
        yield ACTING_SLAVE.at("the broker's configuration", f"{ACTS_AS_MASTER}=true")
    elif snapshot.options.conf.get("brokerRole", "").strip().upper() == "SLAVE":
        yield SLAVE.at("the broker's configuration", "brokerRole=SLAVE")


def check_disk(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """How full the disk is, against a broker's ratios.

    RocketMQ: DefaultMessageStore.CleanCommitLogService#isSpaceToDelete.
    """
    stated = snapshot.options.disk_used
    ratio = used_ratio(snapshot.root.path) if stated is None else stated
    for setting, default, rule in _DISK_LIMITS:
        percent = whole_number(snapshot.options.conf.get(setting)) or default
        percent = percent if 0 < percent <= 100 else default
        if ratio * 100 >= percent:
            problem = f"the disk is {ratio:.0%} full; {setting} is {percent} %"
            yield rule.at(snapshot.root.path, problem)
            return


def check_switches(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Settings under which messages of the wheel are not delivered."""
    wheel, conf = snapshot.wheel, snapshot.options.conf
    if wheel is None or not len(wheel.pending):
        return
    waiting = f"{counted(len(wheel.pending), 'message waits', 'messages wait')} on the wheel"
    off = conf.get("timerWheelEnable", "").strip().lower() == "false"
    on = [key for key in ("timerStopEnqueue", "timerStopDequeue") if snapshot.is_set(key)]
    settings = [*(["timerWheelEnable=false"] if off else []), *(f"{key}=true" for key in on)]
    for setting in settings:
        yield WHEEL_OFF.at("the broker's configuration", f"{setting}, and {waiting}")
    if conf and not snapshot.is_set("timerEnableRetryUntilSuccess"):
        yield DISCARDS.at("the broker's configuration", waiting)
    recalled = len(snapshot.read_wheel(any_marker=True).cancelled) - len(wheel.cancelled)
    if recalled > 0 and not snapshot.is_running:  # else the second reading sees later ones
        problem = counted(recalled, "recalled message")
        yield RECALL_IGNORED.at("the wheel", f"{problem} would be delivered")


def check_metrics(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """config/timermetrics: whether a broker can read it."""
    main = snapshot.root.config_file(TIMER_METRICS_NAME)
    states: list[bool | None] = []
    for path in (main, main.with_name(f"{TIMER_METRICS_NAME}.bak")):
        content = read_small_file(path)
        try:
            if content:
                decode_timer_metrics(content)
            states.append(bool(content))
        except FormatError:
            states.append(None)
    if states[0] is None:
        rule = METRICS if states[1] is None else METRICS_DAMAGED
        yield rule.at(snapshot.relative(main), "it cannot be decoded")


TIMELINE = warning(
    "rocksdb-timeline",
    "only a broker of 5.4 or newer with timerRocksDBEnable=true delivers a timeline's messages; a"
    " conversion takes nothing of it",
    "give such a broker the setting. To leave the timeline, set timerRocksDBStopScan=true beside"
    " it and let the broker run until nothing waits there",
)
UNREADABLE_TIMELINE = error(
    "timeline-unreadable",
    "a broker starts all the same: it stores no timed message and delivers only what is overdue",
    "take rocksdbstore/ from a backup; without one remove it: a broker then reads the timer queue"
    " again, and delivers duplicates",
)
TIMELINE_OFF = error(
    "timeline-switched-off",
    "a broker with this setting places all entries of the timer queue on its wheel, and delivers"
    " duplicates of what the timeline has delivered",
    "set timerRocksDBEnable=true; to leave the timeline, set timerRocksDBStopScan=true beside it",
)
TIMELINE_RECALLS = info(
    "timeline-forgets-recalls",
    "the timeline of 5.4.0 and 5.5.0 forgets a recall when the message rolls after it: the message"
    " is delivered",
    "let 5.5.1 or newer serve this store, or take recalled messages for possible",
)


def check_timeline(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Whether a RocksDB timeline is used and readable, and whether its broker goes on using it."""
    where = timeline_directory(snapshot.root).name
    is_on = snapshot.is_set("timerRocksDBEnable")
    if is_on:
        yield TIMELINE.at("the broker's configuration", "timerRocksDBEnable=true")
    try:
        timeline = read_timeline(snapshot.root)
    except DelayStoreError as error:
        yield UNREADABLE_TIMELINE.at(where, str(error))
        return
    if timeline is None or snapshot.wheel is None:
        return
    pending = snapshot.wheel.pending
    waiting = counted(int(pending.is_in_timeline.sum()), "message waits", "messages wait")
    if pending.is_in_timeline.any():
        yield TIMELINE.at(where, f"{waiting} in it")
        yield TIMELINE_RECALLS.at(where, f"{waiting} in it")
    if snapshot.options.conf and not is_on:
        text = f"timerRocksDBEnable is not true; {waiting} in the timeline"
        yield TIMELINE_OFF.at(
            "the broker's configuration", f"{text}, it read {timeline.scan_offset:,}"
        )
