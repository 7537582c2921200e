# SPDX-License-Identifier: Apache-2.0
"""Options of a conversion, and the settings of the broker that will open its target.

A broker's configuration is read as ``java.util.Properties`` reads it: ``timerPrecisionMs: 100`` and
``timerPrecisionMs 100`` count as much as ``timerPrecisionMs=100``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import attrs

from message_store.base.errors import BadFieldError, OptionsError, SourceError
from message_store.files.config_files import DELAY, MIXED
from message_store.files.small_files import read_small_file
from message_store.files.store_root import (
    COMMIT_LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    TIMER_LOG_FILE_BYTES,
)
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import parse_long
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES, SMALLEST_RECORD_BYTES
from migrate.write.owner import Access
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES, RECORD_MARGIN_BYTES
from timer_wheel.format.timer_log import units_per_file
from timer_wheel.format.wheel_math import (
    DEFAULT_PRECISION_MS,
    DEFAULT_ROLL_WINDOW_SLOTS,
    MARGIN_SLOTS,
    PRECISIONS_MS,
    SLOTS_TOTAL,
    effective_roll_window,
    snap_precision,
)

WHEEL, HIERARCHY = ENGINES = ("wheel", "hierarchy")
"""The engines of a target: a broker or ``WheelStore``, and ``HierarchicalWheelStore``."""

KEEP = "keep"
TOPIC_TYPES = {"mixed": MIXED, "delay": DELAY, KEEP: None}
"""The message type of a target's topics, where the source does not say one."""

DEFAULT_MAX_MESSAGE_BYTES = 4 << 20
DEFAULT_RETENTION_HOURS = 72
_SETTING = re.compile(r"[a-z]+[A-Z]\w*")
"""Two words at least: all settings of brokers but a few are, and few lines of other files begin so.
"""
_BLANKS = " \t\f"
_NEWLINE = re.compile(r"\r\n|\r|\n")
_LAST_NEWLINE = re.compile(r"(\r\n|\r|\n)\Z")
_ENTRY = re.compile(r"(?P<key>(?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<char>.?))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_broker_conf(path: Path) -> dict[str, str]:
    """A broker's configuration file, as ``java.util.Properties`` reads it.

    Raises SourceError when it is missing, FormatError when no broker would start with it, or when
    it has lines and none sets what could be a broker's setting: it is another kind of file, and the
    defaults would silently be taken.
    """
    content = read_small_file(path)
    if content is None:
        raise SourceError(f"{path}: no such file; expected a broker's configuration")
    try:
        conf = parse_properties(content)
    except BadFieldError as error:
        raise BadFieldError(error.problem, path=path, found=error.found) from error
    if conf and not any(value and _SETTING.fullmatch(key) for key, value in conf.items()):
        raise BadFieldError(
            "not a broker's configuration: no line sets anything like brokerName", path=path
        )
    return conf


def positive_number(conf: Mapping[str, str], key: str, default: int) -> int:
    """A number of a broker's configuration. Raises SourceError for text, and for 0 or less."""
    if key not in conf:
        return default
    try:
        value = parse_long(conf[key])
    except BadFieldError as error:
        raise SourceError(
            f"{key} of the broker configuration is not a number: {conf[key]!r}"
        ) from error
    if value <= 0:
        raise SourceError(f"{key} of the broker configuration is not positive: {value}")
    return value


@attrs.frozen
class TargetSettings:
    """Settings on which the target's files depend; its broker must have the same.

    ``topic_type`` is no setting of a broker: it goes into the target's topics.
    """

    precision_ms: int = attrs.field(
        default=DEFAULT_PRECISION_MS, validator=attrs.validators.in_(PRECISIONS_MS)
    )
    roll_window_slots: int = attrs.field(
        default=DEFAULT_ROLL_WINDOW_SLOTS, converter=effective_roll_window
    )
    commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES
    queue_file_bytes: int = QUEUE_FILE_BYTES
    timer_log_file_bytes: int = TIMER_LOG_FILE_BYTES
    max_message_bytes: int | None = None
    retention_hours: int = DEFAULT_RETENTION_HOURS
    topic_type: str = attrs.field(default="mixed", validator=attrs.validators.in_(TOPIC_TYPES))

    def __attrs_post_init__(self) -> None:
        """Raise OptionsError for files in which nothing would fit."""
        smallest = SMALLEST_RECORD_BYTES + END_OF_FILE_MIN_BYTES
        if self.commit_log_file_bytes < smallest:
            raise OptionsError(f"a commit log file needs at least {smallest} bytes")
        if self.queue_file_bytes <= 0 or self.queue_file_bytes % QUEUE_UNIT.size:
            raise OptionsError(f"a queue file is a multiple of {QUEUE_UNIT.size} bytes")
        if units_per_file(self.timer_log_file_bytes) < 1:
            raise OptionsError("a timer log file needs room for a unit and a blank")

    @classmethod
    def from_conf(
        cls, conf: Mapping[str, str], precision_ms: int | None = None
    ) -> "TargetSettings":
        """The settings that a broker reads from its configuration, with its defaults.

        ``precision_ms`` must agree with the configuration. Raises SourceError otherwise.
        """

        def number(key: str, default: int) -> int:
            return positive_number(conf, key, default)

        precision = snap_precision(number("timerPrecisionMs", precision_ms or DEFAULT_PRECISION_MS))
        if precision_ms is not None and "timerPrecisionMs" in conf and precision != precision_ms:
            raise SourceError(
                f"--precision-ms {precision_ms} and timerPrecisionMs={precision} of the target's"
                " configuration disagree: a broker with another precision would lose every message"
            )
        queue_bytes = number("mappedFileSizeConsumeQueue", QUEUE_FILE_BYTES)
        return cls(
            precision_ms=precision,
            roll_window_slots=number("timerRollWindowSlot", DEFAULT_ROLL_WINDOW_SLOTS),
            commit_log_file_bytes=number("mappedFileSizeCommitLog", COMMIT_LOG_FILE_BYTES),
            queue_file_bytes=-(-queue_bytes // QUEUE_UNIT.size) * QUEUE_UNIT.size,
            timer_log_file_bytes=number("mappedFileSizeTimerLog", TIMER_LOG_FILE_BYTES),
            max_message_bytes=number("maxMessageSize", 0) or None,
            retention_hours=number("fileReservedTime", DEFAULT_RETENTION_HOURS),
        )

    @property
    def retention_ms(self) -> int:
        """So long a broker keeps a log file after its last change."""
        return self.retention_hours * 3_600_000

    def open_before_ms(self, first_slot_ms: int, log_bytes: int, now_ms: int) -> int:
        """Until when a broker must have opened a wheel, or messages are lost.

        Slots older than the wheel's length are never read, and log files but the last are deleted
        once their last change is older than the retention.
        """
        wheel_ms = first_slot_ms + (SLOTS_TOTAL - MARGIN_SLOTS) * self.precision_ms
        if log_bytes <= self.commit_log_file_bytes:
            return wheel_ms
        return min(wheel_ms, now_ms + self.retention_ms)

    @property
    def record_max_bytes(self) -> int:
        """The largest record that a wheel still reads after it has rolled, and so grown. Without a
        stated limit there is none: one will be advised.
        """
        if self.max_message_bytes is None:
            return 2**31 - 1
        return self.max_message_bytes + RECORD_MARGIN_BYTES - DELIVERY_GROWTH_BYTES


_Value = TypeVar("_Value")


def _each_once(values: Iterable[_Value]) -> tuple[_Value, ...]:
    return tuple(dict.fromkeys(values))


@attrs.frozen(kw_only=True)
class ConvertOptions:
    """One conversion: source, target, reference time, and what to do with odd records.

    ``now_ms`` None means the clock at the first try; a continued run keeps it. ``level_table`` None
    means that of the store itself. Empty ``only_levels`` and ``only_topics`` mean all. ``to`` is
    the engine of the target.
    """

    source: Path = attrs.field(converter=Path)
    target: Path = attrs.field(converter=Path)
    now_ms: int | None = None
    settings: TargetSettings = TargetSettings()
    level_table: DelayLevels | None = None
    on_bad_record: str = attrs.field(
        default="fail", validator=attrs.validators.in_(("fail", "quarantine"))
    )
    after_crash: bool = False
    offsets: str = attrs.field(
        default="auto", validator=attrs.validators.in_(("auto", "main", "bak", "none"))
    )
    only_levels: tuple[int, ...] = attrs.field(default=(), converter=_each_once)
    only_topics: tuple[str, ...] = attrs.field(default=(), converter=_each_once)
    levels_only: bool = False
    whole_log: bool = False
    access: Access = attrs.field(factory=Access)
    to: str = attrs.field(default=WHEEL, validator=attrs.validators.in_(ENGINES))


def parse_properties(content: bytes) -> dict[str, str]:
    r"""The entries of a file, which is Latin-1 to Java; of two with one key the last.

    Raises BadFieldError for a ``\u`` without four hexadecimal digits, on which a broker does not
    start.

    >>> parse_properties(b"# note\n a : 1\nb=2 \\\n   3\nc\\u0041 4 = 5\n")
    {'a': '1', 'b': '2 3', 'cA': '4 = 5'}
    """
    entries = {}
    for line in _logical_lines(content.decode("latin-1")):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None
        entries[_unescaped(entry["key"])] = _unescaped(entry["value"])
    return entries


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, each joined with its continuations."""
    whole = ""
    is_continued = False
    for natural in _NEWLINE.split(_LAST_NEWLINE.sub("", text)):
        line = natural.lstrip(_BLANKS)
        if not whole and line.startswith(("#", "!")):
            is_continued = False
            continue
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        whole += line[:-1] if is_continued else line
        if whole and not is_continued:
            yield whole
            whole = ""
    if whole or is_continued:
        yield whole


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    if escape["code"] is not None:
        return chr(int(escape["code"], 16))
    if escape["char"] == "u":
        raise BadFieldError("a \\u without four hexadecimal digits", found=escape.string[:64])
    return _CONTROLS.get(escape["char"], escape["char"])
