# SPDX-License-Identifier: Apache-2.0
"""The report that a finished target keeps in ``delaywheel/conversion.json``: its only reader.

Beside it ``delaywheel/bad-records.jsonl`` lists the bad records, one a line. They are not in the
report: a lost log file makes millions of them.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs

from legacy_levels.delay_offsets import OffsetsChoice
from message_store.base.errors import BadFieldError, SourceError
from message_store.files.log_row import open_log
from message_store.files.segments import Segment, SegmentReader
from message_store.files.small_files import read_lines, read_small_file, replace_file
from message_store.files.store_root import (
    COMMIT_LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    TIMER_LOG_FILE_BYTES,
    StoreRoot,
)
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import HEAD_V4_V4
from migrate.report.report import BadRecord, ConversionReport
from migrate.settings import ENGINES, WHEEL
from timer_wheel.format.timer_log import units_per_file
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, DEFAULT_ROLL_WINDOW_SLOTS, floor_ms

CONVERSION_NAME = "conversion.json"


def read_marker(root: StoreRoot) -> dict[str, Any]:
    """The whole report. Raises SourceError where there is none, FormatError for a damaged one."""
    path = root.own / CONVERSION_NAME
    content = read_small_file(path)
    if content is None:
        raise SourceError(f"{path}: missing; this is not the target of a finished conversion")
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadFieldError("not JSON", path=path) from error
    if not isinstance(table, dict):
        raise BadFieldError("no table 'conversion' in it", path=path)
    return table


def log_fingerprint(source: StoreRoot) -> list[list[Any]]:
    """Name, length, modification time and CRC-32 of the first head of each log file.

    They tell whether a store is still the same. The head identifies the store even where copies
    changed the times; 0 stands for a file without a record.
    """
    with open_log(source) as log:
        return [
            [each.path.name, each.length_bytes, each.modified_ns, _first_head(log, each)]
            for each in log.segments
        ]


def _first_head(log: SegmentReader, segment: Segment) -> int:
    head = bytearray(HEAD_V4_V4.size)
    log.read_into(segment.start_offset, memoryview(head))
    return crc32(head) if any(head) else 0


def first_offsets(root: StoreRoot, source: StoreRoot) -> dict[int, int]:
    """The queue offset from which each level of ``source`` was converted to ``root``. Raises
    SourceError as ``share_of``, FormatError for a damaged report.
    """
    path = root.own / CONVERSION_NAME
    levels = share_of(read_marker(root), source, path).get("levels", ())
    try:
        return {int(each["level"]): int(each["from_offset"]) for each in levels}
    except (KeyError, TypeError, ValueError) as error:
        raise BadFieldError(f"'levels' is damaged: {error!r}", path=path) from error


def share_of(marker: dict[str, Any], source: StoreRoot, path: Path) -> dict[str, Any]:
    """The report of ``source`` alone; of a merged target its part, with ``is_share`` set.

    A source is recognised by its log files. Where these have other times now, or are alike in
    several sources, its path decides. Raises SourceError for a store that is none of the sources,
    FormatError for a damaged report.
    """
    listed = marker.get("sources")
    if not listed:
        return marker
    try:
        fingerprint = log_fingerprint(source)
        same = [part for part in listed if part["request"]["source_log"] == fingerprint]
        if len(same) != 1:  # stores without a log are all alike
            source_path = str(source.path.absolute())
            same = [part for part in same or listed if part["request"]["source"] == source_path]
        if len(same) == 1:
            return {**same[0], "is_share": True}
        names = ", ".join(str(part["request"]["source"]) for part in listed)
    except (KeyError, TypeError) as error:
        raise BadFieldError(f"'sources' is damaged: {error!r}", path=path) from error
    raise SourceError(f"{source.path}: {path.parent.parent} was made from {names}, and not from it")


LIST_NAME = "bad-records.jsonl"
LISTED = "bad_records_listed"
"""A key under ``conversion``: how many lines there are."""

SOURCE_NUMBER = "source_number"
"""A key under ``conversion``: of one source of several, which of the lines are its own."""


def write_bad_records(target: StoreRoot, report: ConversionReport) -> None:
    """Write the list of bad records durably, where there are any. Raises TargetError."""
    lines = [
        json.dumps([number, *attrs.astuple(record)])
        for number, source in enumerate(report.sources or (report,))
        for record in source.bad_records
    ]
    if lines:
        replace_file(target.own / LIST_NAME, "\n".join([*lines, ""]).encode())


def read_bad_records(target: StoreRoot, count: int, number: int | None) -> tuple[BadRecord, ...]:
    """The ``count`` bad records of one source, or of all where ``number`` is None.

    Raises SourceError for a list that cannot be read, FormatError for one that is damaged.
    """
    if not count:
        return ()
    path = target.own / LIST_NAME
    records = tuple(
        record for source, record in _lines(target) if number is None or source == number
    )
    if len(records) != count:
        raise BadFieldError("lines are missing", path=path, expected=count, found=len(records))
    return records


def _lines(target: StoreRoot) -> Iterator[tuple[int, BadRecord]]:
    path = target.own / LIST_NAME
    there = read_lines(path)
    if there is None:
        raise SourceError(f"{path}: is missing; it lists what was not converted")
    for line in there:
        try:
            number, level, queue_offset, commit_log_offset, reason = json.loads(line)
            record = BadRecord(int(level), int(queue_offset), int(commit_log_offset), str(reason))
        except (ValueError, TypeError, RecursionError) as error:
            raise BadFieldError("not a quarantined entry", path=path) from error
        yield int(number), record


_SETTINGS_KEY = "conversion"
"""Under this key the report keeps what the conversion was asked for; the rest are its results."""


Share = tuple[tuple[int, int], ...]
"""Ranges of timer queue offsets: first and end of each."""


@attrs.frozen(kw_only=True)
class ConversionSettings:
    """The parameters of a conversion: all that verification believes of its report.

    ``share`` has the ranges of timer queue offsets of this source's messages in a merged target;
    None for a target with one source.
    """

    now_ms: int
    precision_ms: int = DEFAULT_PRECISION_MS
    roll_window_slots: int = DEFAULT_ROLL_WINDOW_SLOTS
    level_table: str | None = None
    offsets: str = "auto"
    after_crash: bool = False
    only_levels: tuple[int, ...] = ()
    only_topics: tuple[str, ...] = ()
    levels_only: bool = False
    whole_log: bool = False
    engine: str = WHEEL
    quarantined: tuple[BadRecord, ...] = ()
    commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES
    queue_file_bytes: int = QUEUE_FILE_BYTES
    timer_log_file_bytes: int = TIMER_LOG_FILE_BYTES
    max_message_bytes: int | None = None
    share: Share | None = None

    @property
    def write_time_ms(self) -> int:
        """The beginning of the slot of ``now_ms``: the write time of every unit."""
        return floor_ms(self.now_ms, self.precision_ms)


_NUMBERS = (
    "now_ms",
    "precision_ms",
    "roll_window_slots",
    "commit_log_file_bytes",
    "queue_file_bytes",
    "timer_log_file_bytes",
)


def read_settings(root: StoreRoot, source: StoreRoot | None = None) -> ConversionSettings:
    """The settings of the conversion that made ``root``; with ``source`` given, of that source.

    Raises SourceError when there are none (no target of a finished conversion, or not of this
    source), and FormatError when they cannot be read.
    """
    path = root.own / CONVERSION_NAME
    table = read_marker(root)
    if source is not None:
        table = share_of(table, source, path)
    asked = table.get(_SETTINGS_KEY)
    if not isinstance(asked, dict):
        raise BadFieldError(f"no table {_SETTINGS_KEY!r} in it", path=path)
    try:
        share = share_in(table) if table.get("is_share") else None
        settings = attrs.evolve(_decode_settings(asked, path), share=share)
        listed, number = int(asked.get(LISTED, 0)), asked.get(SOURCE_NUMBER)
        if not listed:
            return settings
        records = read_bad_records(root, listed, None if number is None else int(number))
        return attrs.evolve(settings, quarantined=records)
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, BadFieldError):
            raise
        raise BadFieldError(f"{_SETTINGS_KEY!r} is damaged: {error}", path=path) from error


def _decode_settings(table: dict[str, Any], path: Path) -> ConversionSettings:
    numbers: dict[str, Any] = {
        name: _positive(table[name], name, path) for name in _NUMBERS if name in table
    }
    if "now_ms" not in numbers:
        raise BadFieldError("now_ms is missing", path=path)
    if table.get("max_message_bytes") is not None:
        numbers["max_message_bytes"] = _positive(table["max_message_bytes"], "maxMessageSize", path)
    level_table = table.get("level_table")
    settings = ConversionSettings(
        **numbers,
        level_table=level_table if isinstance(level_table, str) else None,
        offsets=_one_of(OffsetsChoice, table.get("offsets"), "offsets", path),
        after_crash=bool(table.get("after_crash")),
        only_levels=tuple(int(level) for level in table.get("only_levels") or ()),
        only_topics=tuple(str(topic) for topic in table.get("only_topics") or ()),
        levels_only=bool(table.get("levels_only")),
        whole_log=bool(table.get("whole_log")),
        engine=_one_of(ENGINES, table.get("to"), "the engine", path),
    )
    _require_sizes(settings, path)
    return settings


def share_in(table: dict[str, Any]) -> Share:
    """Where the messages of one source of several lie. Raises ValueError, TypeError, KeyError."""
    first = int(table["target_queue_offset"])
    runs = table.get("target_runs") or [(first, first + int(table["converted"]))]
    share = tuple((int(first), int(end)) for first, end in runs)
    for first, end in share:
        if not 0 <= first <= end:
            raise ValueError(f"messages from {first} to {end}")
    return share


def _positive(value: object, name: str, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**62:
        raise BadFieldError(f"{name} is not a positive number", path=path, found=repr(value)[:64])
    return value


def _one_of(choices: Iterable[str], value: object, what: str, path: Path) -> str:
    """A choice; the first where none was stored."""
    names = [str(choice) for choice in choices]
    if value is not None and value not in names:
        problem = f"{what} is none of {', '.join(names)}"
        raise BadFieldError(problem, path=path, found=repr(value)[:64])
    return str(value or names[0])


def _require_sizes(settings: ConversionSettings, path: Path) -> None:
    """Files in which nothing would fit were never written."""
    if units_per_file(settings.timer_log_file_bytes) < 1:
        found = settings.timer_log_file_bytes
        raise BadFieldError("timer_log_file_bytes holds no unit", path=path, found=found)
    if settings.queue_file_bytes % QUEUE_UNIT.size:
        found = settings.queue_file_bytes
        raise BadFieldError("queue_file_bytes holds no whole units", path=path, found=found)


def marker_of(report: ConversionReport, number: int | None = None) -> dict[str, Any]:
    """What a finished target says of its conversion: the report, and under ``conversion`` all that
    an independent verification needs; of several sources under ``sources`` for each, by number. Of
    the bad records it has only the count: ``write_bad_records`` lists them.
    """
    facts = attrs.evolve(report, bad_records=(), sources=()).as_json()
    facts["sources"] = [marker_of(source, index) for index, source in enumerate(report.sources)]
    request = report.sources[0].request if report.sources else report.request
    listed = {LISTED: len(report.bad_records), SOURCE_NUMBER: number}
    return {**facts, "conversion": {**request, **request["settings"], **listed}}
