# SPDX-License-Identifier: Apache-2.0
"""What a broker's state, settings and disk do to the messages that wait."""

from collections.abc import Iterator

import attrs

from message_store.base.errors import BadFieldError, FormatError
from message_store.base.printable import counted
from message_store.files.small_files import read_small_file
from message_store.format.java_numbers import parse_long
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import FindingRule, error, info, warning
from migrate.check.snapshot import Picture
from migrate.write.room import used_ratio
from timer_wheel.format.metrics import TIMER_METRICS_NAME, decode_timer_metrics

RUNNING = info(
    "broker-running",
    "it goes on writing: numbers may move while they are read",
    "stop it for an exact picture",
)
CRASHED = warning(
    "store-crashed",
    "a broker that starts here repeats what it delivered in the seconds before it stopped",
    "a conversion takes --after-crash and leaves out what was delivered",
)
DISK_CLEANS = info(
    "disk-cleans-early",
    "a broker deletes expired log files at any hour, not only at night",
    "make room",
)
DISK_FORCES = warning(
    "disk-deletes",
    "a broker deletes the oldest log files at once, whatever still waits in them",
    "make room before it starts",
)
DISK_REFUSES = error(
    "disk-refuses",
    "a broker refuses to store: messages of a level wait until it can, those of a wheel are thrown"
    " away after three tries; and it deletes the oldest log files",
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
    "with this setting nothing that waits on the wheel is delivered",
    "set it right before the broker starts",
)
DISCARDS = info(
    "discard-after-three",
    "a message of the wheel that cannot be stored when it is due, for a second or two, is thrown"
    " away",
    "set timerEnableRetryUntilSuccess=true (5.3.2 and newer)",
)
RECALL_IGNORED = warning(
    "recall-ignored",
    "their delete markers are in the form of another version (5.3.2 and 5.3.3 name topic and key,"
    " others the key alone): they are delivered although somebody recalled them",
    "set appendTopicForTimerDeleteKey to what the markers need (5.4 and newer)",
)
METRICS = error(
    "timermetrics-unreadable",
    "a 5.x broker does not start",
    "remove config/timermetrics and its .bak; a broker counts anew",
)
METRICS_DAMAGED = warning(
    "timermetrics-damaged",
    "a broker takes the .bak; what it shows of numbers is wrong for a while, deliveries are not",
    "remove the damaged file",
)

RULES = (
    RUNNING,
    CRASHED,
    DISK_CLEANS,
    DISK_FORCES,
    DISK_REFUSES,
    SLAVE,
    WHEEL_OFF,
    DISCARDS,
    RECALL_IGNORED,
    METRICS,
    METRICS_DAMAGED,
)


@attrs.frozen
class _Limit:
    """A setting in percent, what it is unless set, and what is to be said above it."""

    setting: str
    percent: int
    rule: FindingRule


_DISK_LIMITS = (
    _Limit("diskSpaceWarningLevelRatio", 90, DISK_REFUSES),
    _Limit("diskSpaceCleanForciblyRatio", 85, DISK_FORCES),
    _Limit("diskMaxUsedSpaceRatio", 75, DISK_CLEANS),
)


def check_state(picture: Picture) -> Iterator[Finding]:
    """Running, crashed, a slave's."""
    root = picture.root
    if picture.is_running:
        yield RUNNING.at(root.lock.name, "a broker holds the store")
    elif picture.is_dirty:
        yield CRASHED.at(root.abort.name, "the last broker did not stop cleanly")
    if picture.options.conf.get("brokerRole", "").strip().upper() == "SLAVE":
        yield SLAVE.at("the broker's configuration", "brokerRole=SLAVE")


def check_disk(picture: Picture) -> Iterator[Finding]:
    """How full the disk is, against the ratios of a broker."""
    stated = picture.options.disk_used
    ratio = used_ratio(picture.root.path) if stated is None else stated
    for limit in _DISK_LIMITS:
        percent = _percent(picture.options.conf.get(limit.setting), limit.percent)
        if ratio * 100 >= percent:
            told = f"the disk is {ratio:.0%} full; {limit.setting} is {percent} %"
            yield limit.rule.at(picture.root.path, told)
            return


def _percent(text: str | None, default: int) -> int:
    try:
        value = default if text is None else parse_long(text)
    except BadFieldError:
        return default
    return value if 0 < value <= 100 else default


def check_switches(picture: Picture) -> Iterator[Finding]:
    """Settings under which what waits on the wheel is not delivered, or not all of it."""
    wheel, conf = picture.wheel, picture.options.conf
    if wheel is None or not len(wheel.pending):
        return
    waiting = f"{counted(len(wheel.pending), 'message waits', 'messages wait')} on the wheel"
    off = conf.get("timerWheelEnable", "").strip().lower() == "false"
    on = [key for key in ("timerStopEnqueue", "timerStopDequeue") if picture.is_set(key)]
    settings = [*(["timerWheelEnable=false"] if off else []), *(f"{key}=true" for key in on)]
    for setting in settings:
        yield WHEEL_OFF.at("the broker's configuration", f"{setting}, and {waiting}")
    if conf and not picture.is_set("timerEnableRetryUntilSuccess"):
        yield DISCARDS.at("the broker's configuration", waiting)
    recalled = len(picture.read_wheel(any_marker=True).cancelled) - len(wheel.cancelled)
    if recalled > 0:
        told = counted(recalled, "recalled message")
        yield RECALL_IGNORED.at("the wheel", f"{told} would be delivered")


def check_metrics(picture: Picture) -> Iterator[Finding]:
    """config/timermetrics: whether a broker can read it."""
    main = picture.root.config_file(TIMER_METRICS_NAME)
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
        yield rule.at(picture.place(main), "it cannot be decoded")
