# SPDX-License-Identifier: Apache-2.0
"""Convert a hand-made store, and hold the result to everything that a conversion promises."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from migrate.convert import convert
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions, TargetSettings
from tests.independent.expected_conversion import (
    compare_with_records,
    compare_with_truth,
    expected_of_truth,
    waiting_of,
)
from tests.independent.level_messages import Item, LevelMessage
from tests.independent.level_store_builder import T0, BuiltStore, build_level_store
from tests.independent.real_stores import RealStore
from tests.independent.variant_b_checker import check_target, read_target

NOW_MS = T0 + 3_600_500

SMALL = TargetSettings(
    commit_log_file_bytes=4096, queue_file_bytes=20 * 20, timer_log_file_bytes=8 * 52 + 20
)
"""Files so small that a handful of messages fills several of each kind."""

SMALL_FILES = TargetSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=2000 * 20, timer_log_file_bytes=50_000
)
"""As small as those of the stores that real brokers left."""

STORE_ARGUMENTS = frozenset(
    {
        "dialect",
        "level_table",
        "offsets",
        "backup_offsets",
        "commit_log_file_bytes",
        "queue_file_bytes",
        "indexed_items",
        "level_queue_ends",
        "queue_ext",
        "drop_log_files",
        "topics",
        "consumer_offsets",
        "groups",
        "abort",
        "checkpoint",
    }
)


@attrs.frozen(kw_only=True)
class Converted:
    """A hand-made source, its conversion, and what was said about it."""

    built: BuiltStore
    options: ConvertOptions
    report: ConversionReport

    @property
    def target(self) -> Path:
        return self.options.target


def options_for(tmp_path: Path, **changes: Any) -> ConvertOptions:
    """From ``source`` to ``target`` below this directory, small files, a fixed time."""
    facts: dict[str, Any] = {
        "source": tmp_path / "source",
        "target": tmp_path / "target",
        "now_ms": NOW_MS,
        "settings": SMALL,
    }
    return ConvertOptions(**{**facts, **changes})


def build_and_convert(tmp_path: Path, items: Sequence[Item], **arguments: Any) -> Converted:
    """Build a store of these items and convert it; arguments of either are told apart by name."""
    store = {name: arguments.pop(name) for name in list(arguments) if name in STORE_ARGUMENTS}
    built = build_level_store(tmp_path / "source", items, **store)
    options = options_for(tmp_path, **arguments)
    return Converted(built=built, options=options, report=convert(options))


def messages_of(items: Iterable[Item]) -> list[LevelMessage]:
    return [item for item in items if isinstance(item, LevelMessage)]


def assert_right(converted: Converted, pending: Iterable[Item]) -> None:
    """The target is sound in every byte and holds exactly these messages; the books add up."""
    wanted = list(pending)
    found = checked_target(converted.options)
    problems = compare_with_records(
        waiting_of(converted.built, wanted),
        found,
        precision_ms=converted.options.settings.precision_ms,
    )
    assert problems == [], problems
    assert_books_add_up(converted.report)
    assert converted.report.total("converted") == len(wanted), converted.report


def checked_target(options: ConvertOptions) -> list[Any]:
    """Every invariant of a target holds; its messages in the order the wheel reaches them."""
    assert options.now_ms is not None
    settings = options.settings
    limits = (
        {}
        if settings.max_message_bytes is None
        else {"max_message_bytes": settings.max_message_bytes}
    )
    problems = check_target(
        options.target,
        now_ms=options.now_ms,
        precision_ms=settings.precision_ms,
        roll_window_slots=settings.roll_window_slots,
        commit_log_file_bytes=settings.commit_log_file_bytes,
        queue_file_bytes=settings.queue_file_bytes,
        timer_log_file_bytes=settings.timer_log_file_bytes,
        source=options.source,
        **limits,
    )
    assert problems == [], problems
    return list(read_target(options.target, precision_ms=settings.precision_ms))


def assert_books_add_up(report: ConversionReport) -> None:
    for level in report.levels:
        done = level.already_delivered + level.neutral + level.expired
        assert level.queued == level.pending + done, level
        assert level.pending == level.converted + level.skipped + level.quarantined, level
        in_a_row = level.to_offset - level.from_offset
        assert level.queued == in_a_row + level.before_queue, level
    totals = report.as_json()
    assert totals["quarantined"] == len(report.bad_records)
    for name in ("queued", "pending", "converted", "quarantined", "already_delivered"):
        assert totals[name] == sum(getattr(level, name) for level in report.levels)


def assert_is_the_truth(
    store: RealStore, options: ConvertOptions, report: ConversionReport
) -> None:
    """Of a real store: exactly the messages that its producers and its broker say were waiting."""
    pending = store.pending_in_levels()
    assert report.total("converted") == report.total("pending") == len(pending), report
    found = checked_target(options)
    expected = expected_of_truth(pending, precision_ms=options.settings.precision_ms)
    problems = compare_with_truth(expected, found)
    assert problems == [], problems
    assert_books_add_up(report)
    for level in report.levels:
        waiting = sum(line.level == level.level for line in pending)
        assert level.converted == waiting, level


def broker_files(target: Path) -> dict[str, str]:
    """Digest of every file of a target but those under its own directory, by name."""
    digests = {}
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        if path.is_file() and not name.startswith("delaywheel/"):
            with path.open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha1").hexdigest()
    return digests


def disk_bytes(directory: Path) -> int:
    """What a directory's files take on the disk, holes not counted."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
