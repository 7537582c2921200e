# SPDX-License-Identifier: Apache-2.0
"""The parameters of the conversion that a target names: all that verification believes it."""

from pathlib import Path
from typing import Any

import attrs

from legacy_levels.delay_offsets import OffsetsChoice
from message_store.base.errors import BadFieldError
from message_store.files.store_root import (
    COMMIT_LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    TIMER_LOG_FILE_BYTES,
    StoreRoot,
)
from message_store.format.queue_unit import QUEUE_UNIT
from migrate.report.bad_record_list import LISTED, SOURCE_NUMBER, read_bad_records
from migrate.report.conversion_marker import CONVERSION_NAME, read_marker, share_of
from migrate.settings import ENGINES, WHEEL
from timer_wheel.format.timer_log import units_per_file
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, DEFAULT_ROLL_WINDOW_SLOTS, floor_ms

_SETTINGS_KEY = "conversion"
"""Under this key the report keeps what the conversion was asked for; the rest are its results."""


@attrs.frozen(order=True)
class QuarantinedEntry:
    """An entry of a level queue that the conversion set aside, and why."""

    level: int
    queue_offset: int
    commit_log_offset: int
    reason: str = attrs.field(default="", eq=False, order=False)


@attrs.frozen(kw_only=True)
class ConversionSettings:
    """How the conversion was asked to run.

    ``share``: of a target that several sources were merged into, where in its timer queue the
    messages of this source begin and end; None where all are of the one source.
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
    quarantined: tuple[QuarantinedEntry, ...] = ()
    commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES
    queue_file_bytes: int = QUEUE_FILE_BYTES
    timer_log_file_bytes: int = TIMER_LOG_FILE_BYTES
    share: tuple[int, int] | None = None

    @property
    def write_time_ms(self) -> int:
        """The beginning of the slot that now lies in: when every unit says that it was placed."""
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
        settings = attrs.evolve(_decode_settings(asked, path), share=_share(table))
        listed, number = int(asked.get(LISTED, 0)), asked.get(SOURCE_NUMBER)
        if not listed:
            return settings
        records = read_bad_records(root, listed, None if number is None else int(number))
        entries = (QuarantinedEntry(*attrs.astuple(record)) for record in records)
        return attrs.evolve(settings, quarantined=tuple(entries))
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, BadFieldError):
            raise
        raise BadFieldError(f"{_SETTINGS_KEY!r} is damaged: {error}", path=path) from error


def _decode_settings(table: dict[str, Any], path: Path) -> ConversionSettings:
    given: dict[str, Any] = {
        name: _positive(table[name], name, path) for name in _NUMBERS if name in table
    }
    if "now_ms" not in given:
        raise BadFieldError("now_ms is missing", path=path)
    level_table = table.get("level_table")
    settings = ConversionSettings(
        **given,
        level_table=level_table if isinstance(level_table, str) else None,
        offsets=_offsets(table.get("offsets"), path),
        after_crash=bool(table.get("after_crash")),
        only_levels=tuple(int(level) for level in table.get("only_levels") or ()),
        only_topics=tuple(str(topic) for topic in table.get("only_topics") or ()),
        levels_only=bool(table.get("levels_only")),
        whole_log=bool(table.get("whole_log")),
        engine=_engine(table.get("to"), path),
        quarantined=tuple(_entry(row, path) for row in table.get("quarantined") or ()),
    )
    _require_sizes(settings, path)
    return settings


def _share(table: dict[str, Any]) -> tuple[int, int] | None:
    """Where the messages of one source of several lie."""
    if not table.get("is_share"):
        return None
    first, converted = int(table["target_queue_offset"]), int(table["converted"])
    if first < 0 or converted < 0:
        raise ValueError(f"{converted} messages from {first} on")
    return first, first + converted


def _positive(value: object, name: str, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**62:
        raise BadFieldError(f"{name} is not a positive number", path=path, found=repr(value)[:64])
    return value


def _offsets(value: object, path: Path) -> str:
    """Which offsets were believed; nothing said means as a broker would."""
    known = [str(choice) for choice in OffsetsChoice]
    if value is not None and value not in known:
        what = f"offsets is none of {', '.join(known)}"
        raise BadFieldError(what, path=path, found=repr(value)[:64])
    return str(value or OffsetsChoice.AUTO)


def _engine(value: object, path: Path) -> str:
    """What the target is for; nothing said means a wheel."""
    if value is not None and value not in ENGINES:
        what = f"the engine is none of {', '.join(ENGINES)}"
        raise BadFieldError(what, path=path, found=repr(value)[:64])
    return str(value or WHEEL)


def _require_sizes(settings: ConversionSettings, path: Path) -> None:
    """Files in which nothing would fit were never written."""
    if units_per_file(settings.timer_log_file_bytes) < 1:
        found = settings.timer_log_file_bytes
        raise BadFieldError("timer_log_file_bytes holds no unit", path=path, found=found)
    if settings.queue_file_bytes % QUEUE_UNIT.size:
        found = settings.queue_file_bytes
        raise BadFieldError("queue_file_bytes holds no whole units", path=path, found=found)


def _entry(row: object, path: Path) -> QuarantinedEntry:
    try:
        table = dict(row)  # type: ignore[call-overload]
        return QuarantinedEntry(
            int(table["level"]),
            int(table["queue_offset"]),
            int(table["commit_log_offset"]),
            str(table.get("reason", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadFieldError("not a quarantined entry", path=path, found=repr(row)[:64]) from error
