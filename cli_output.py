# SPDX-License-Identifier: Apache-2.0
"""What the command line prints: one method a result, as text for people or as JSON for programs.

Results go to stdout, warnings and refusals to stderr. Everything that comes out of a store is
escaped before it reaches a terminal.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli_progress import StageProgress
from message_store.delay_levels import format_delay
from message_store.delay_store import Pending
from message_store.errors import BadRecordsError, DelayStoreError
from message_store.printable import iso_time, printable, when

if TYPE_CHECKING:
    from legacy_levels.generate import GeneratedStore
    from migrate.demo import DemoResult
    from migrate.inspect_store import LevelState, StoreInspection, WheelSummary
    from migrate.report import BadRecord, ConversionReport
    from migrate.verify_report import Difference, VerifyReport

WIDTH_WITHOUT_TERMINAL = 100
LISTED_TOPICS = 20
LISTED_RECORDS = 20
UNKNOWN = "?"


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _bytes(size: int) -> str:
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit_bytes:
            return f"{size / unit_bytes:,.1f} {unit}"
    return f"{size:,} bytes"


def _level(level: int, delay_ms: int | None) -> str:
    """A level with its meaning."""
    return f"level {level} ({UNKNOWN if delay_ms is None else format_delay(delay_ms)})"


class Output:
    """Where a verb hands its result to."""

    def __init__(self, *, as_json: bool, is_quiet: bool) -> None:
        self.as_json = as_json
        self._is_quiet = is_quiet

    def progress(self) -> StageProgress:
        """The progress of this command, for a ``with`` block."""
        return StageProgress(is_quiet=self._is_quiet)

    def warn(self, sentence: str) -> None:
        """Something that is not right, on stderr."""
        click.echo(f"warning: {printable(sentence)}", err=True)

    def failure(self, error: DelayStoreError) -> None:
        """Why a command stopped; bad records are all listed."""
        records = error.records if isinstance(error, BadRecordsError) else ()
        for line in str(error).splitlines():
            click.echo(printable(line), err=True)
        for record in records:
            click.echo(f"  {_bad_record(record)}", err=True)  # type: ignore[arg-type]
        if self.as_json and records:
            listed = [attrs.asdict(record) for record in records]  # type: ignore[arg-type]
            self._print_json({"error": str(error), "bad_records": listed})

    def inspection(self, found: "StoreInspection") -> None:
        """``inspect``."""
        if self.as_json:
            self._print_json(found.as_json())
            return
        state = "stopped cleanly" if found.clean else "NOT stopped cleanly"
        self._say(f"{found.path}: {found.format}, {state} ({', '.join(found.evidence)})")
        next_due = found.next_due_ms
        soon = "" if next_due is None else f", the next due {when(next_due, found.now_ms)}"
        self._say(f"{_count(found.pending)} pending, {_count(found.overdue)} overdue{soon}")
        self._print_table(_level_table(found.levels, found.now_ms))
        if found.wheel is not None:
            self._say_lines(_wheel_lines(found.wheel, found.now_ms))
        names = [topic.name for topic in found.topics]
        self._say(f"{len(names)} topics: {_some(names, LISTED_TOPICS)}")
        for each in found.files:
            sizes = f"{_bytes(each.size_bytes)}, {_bytes(each.disk_bytes)} on disk"
            self._say(f"  {each.name}: {each.files:,} files, {sizes}")
        for problem in found.problems:
            self.warn(problem)

    def pending(self, messages: "Iterable[Pending | BadRecord]", now_ms: int) -> int:
        """``pending``; returns how many could not be read, which go to stderr."""
        unreadable = 0
        as_json = self.as_json or not sys.stdout.isatty()
        for message in messages:
            if not isinstance(message, Pending):
                unreadable += 1
                self.warn(f"cannot be read: {_bad_record(message)}")
            elif as_json:
                click.echo(json.dumps(attrs.asdict(message)))
            else:
                self._say(_pending_line(message, now_ms))
        return unreadable

    def conversion(self, report: "ConversionReport", clock_ms: int) -> None:
        """``convert``."""
        for warning in report.warnings:
            self.warn(warning)
        if report.open_before_ms is not None and report.open_before_ms <= clock_ms:
            self.warn("the target is for looking, not for booting: its wheel has already expired")
        if self.as_json:
            self._print_json(report.as_json())
            return
        self._say_lines(_conversion_head(report))
        self._print_table(_conversion_table(report))
        self._say_lines(_conversion_facts(report))
        self._say("")
        self._say_lines(_what_next(report, clock_ms))

    def verification(self, report: "VerifyReport") -> None:
        """``verify``."""
        if self.as_json:
            self._print_json(report.as_json())
            return
        counts = ("converted", "missing", "unexpected", "different", "quarantined", "sampled")
        self._say(", ".join(f"{getattr(report, name):,} {name}" for name in counts))
        for difference in report.differences:
            self._say_lines(_difference_lines(difference))
        for problem in report.problems:
            self._say(f"{problem.where}: {problem.what} ({problem.count:,} times)")
        clean = "every message is there, once, unchanged and at its time"
        self._say(clean if report.is_clean else "do not start a broker on this target")

    def demo(self, result: "DemoResult") -> None:
        """``demo``."""
        if self.as_json:
            self._print_json(result.as_json())
            return
        self._say(f"A store that a real {result.broker} broker left behind, stopped at")
        self._say(f"{iso_time(result.stopped_ms)}, converted as of that moment:")
        self._say("")
        self._say_lines(_conversion_head(result.report))
        self._print_table(_conversion_table(result.report))
        self._say_lines(_conversion_facts(result.report))
        self._say("")
        self._say("Both sides read again, independently of the writer:")
        self.verification(result.verification)
        self._say("")
        self._say("The target is for looking, not for booting: a broker started today would find")
        self._say("its slots long past and deliver nothing of them. Look at both sides with")
        self._say(f"  delaywheel inspect {result.source} --now {result.stopped_ms}")
        self._say(f"  delaywheel inspect {result.target} --now {result.stopped_ms}")

    def generated(self, path: str, made: "GeneratedStore", now_ms: int) -> None:
        """``generate``."""
        if self.as_json:
            self._print_json({"path": path, **attrs.asdict(made)})
            return
        log = _bytes(made.commit_log_bytes)
        self._say(
            f"{path}: {made.messages:,} messages wait in {len(made.messages_by_level)} levels"
        )
        self._say(f"{log} of commit log{_due_span(made.due_min_ms, made.due_max_ms, now_ms)}")

    # --- printing ---------------------------------------------------------------------------------

    def _print_json(self, value: Any) -> None:
        click.echo(json.dumps(value, indent=1))

    def _say(self, line: str) -> None:
        click.echo(printable(line))

    def _say_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def _print_table(self, table: Table) -> None:
        if table.row_count:
            width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
            Console(file=sys.stdout, width=width, highlight=False, markup=False).print(table)


def _table(names: Sequence[str]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place else "left", no_wrap=place == 0)
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _some(names: Sequence[str], limit: int) -> str:
    more = f", and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _bad_record(record: "BadRecord") -> str:
    place = f"queue offset {record.queue_offset}" if record.queue_offset >= 0 else "on the wheel"
    level = f"level {record.level}, " if record.level else ""
    return f"{level}{place}, log offset {record.commit_log_offset}: {printable(record.reason)}"


def _due_span(due_min_ms: int | None, due_max_ms: int | None, now_ms: int) -> str:
    if due_min_ms is None:
        return ""
    until = "" if due_max_ms is None else f" to {when(due_max_ms, now_ms)}"
    return f", due from {when(due_min_ms, now_ms)}{until}"


def _level_table(levels: "Sequence[LevelState]", now_ms: int) -> Table:
    sometimes = [
        name for name in ("already_delivered", "expired") if any(getattr(e, name) for e in levels)
    ]
    table = _table(
        ["level", "offset", "queue", *map(_title, sometimes), "pending", "overdue", "next due"]
    )
    for level in levels:
        _add(
            table,
            _level(level.level, level.delay_ms),
            "-" if level.offset is None else _count(level.offset),
            f"{_count(level.queue_min)} to {_count(level.queue_max)}",
            *(_count(getattr(level, name)) for name in sometimes),
            _count(level.pending),
            _count(level.overdue),
            "" if level.next_due_ms is None else when(level.next_due_ms, now_ms),
        )
    return table


def _title(name: str) -> str:
    return name.replace("_", " ")


def _wheel_lines(wheel: "WheelSummary", now_ms: int) -> list[str]:
    if wheel.precision_ms is None:
        return ["timer wheel: cannot be read"]
    due = _due_span(wheel.next_due_ms, wheel.last_due_ms, now_ms)
    slots = f"{_count(wheel.slots_used)} slots of {wheel.precision_ms} ms"
    others = f"{_count(wheel.rolled)} will be placed again, {_count(wheel.cancelled)} cancelled"
    return [
        f"timer wheel: {_count(wheel.pending)} pending, {_count(wheel.overdue)} overdue{due}",
        f"  {_count(wheel.units)} units in {slots}; {others}",
    ]


def _pending_line(message: Pending, now_ms: int) -> str:
    level = "wheel" if message.level is None else f"level {message.level}"
    words = [
        when(message.due_ms, now_ms),
        level,
        f"{message.topic}/{message.queue_id}",
        f"tags {message.tags}" if message.tags else "",
        f"keys {' '.join(message.keys)}" if message.keys else "",
        f"{message.size_bytes:,} bytes at {message.commit_log_offset}",
        message.unique_key or "",
    ]
    return "  ".join(word for word in words if word)


# --- conversion -----------------------------------------------------------------------------------


def _conversion_head(report: "ConversionReport") -> list[str]:
    converted, pending = report.total("converted"), report.total("pending")
    return [
        f"{report.source} -> {report.target}",
        f"{converted:,} of {pending:,} pending messages converted, as of {iso_time(report.now_ms)}",
    ]


def _conversion_table(report: "ConversionReport") -> Table:
    always = ["pending", "converted", "overdue"]
    names = [
        "queued",
        "already_delivered",
        "expired",
        "pending",
        "converted",
        "skipped",
        "quarantined",
        "overdue",
        "rolled",
    ]
    shown = [name for name in names if name in always or report.total(name)]
    if report.total("queued") == report.total("pending"):
        shown.remove("queued")
    table = _table(["level", *map(_title, shown)])
    for level in report.levels:
        numbers = [_count(getattr(level, name)) for name in shown]
        _add(table, _level(level.level, level.delay_ms), *numbers)
    table.add_section()
    _add(table, "all levels", *(_count(report.total(name)) for name in shown))
    return table


def _conversion_facts(report: "ConversionReport") -> list[str]:
    seconds = report.seconds
    due = _due_span(report.due_min_ms, report.due_max_ms, report.now_ms).removeprefix(", ")
    bad = [f"  {_bad_record(record)}" for record in report.bad_records[:LISTED_RECORDS]]
    if more := len(report.bad_records) - len(bad):
        bad.append(f"  and {more:,} more")
    stages = (
        f"{seconds.total:.1f} s: Spark's start {seconds.spark_start:.1f}, plan {seconds.plan:.1f},"
        f" write {seconds.write:.1f}, seal {seconds.seal:.1f}"
    )
    return [
        *([due] if due else []),
        f"{_bytes(report.bytes_read)} read, {_bytes(report.bytes_written)} written in {stages}",
        *(["quarantined:", *bad] if bad else []),
    ]


def _what_next(report: "ConversionReport", clock_ms: int) -> list[str]:
    lines = ["What next"]
    lines.append(f"  check it:  delaywheel verify {report.source} {report.target}")
    lines.append(f"  settings that the broker of the target needs ({report.target}/delaywheel):")
    lines += [f"    {key}={value}" for key, value in report.broker_conf.items()]
    if report.open_before_ms is not None:
        lines.append(f"  open before {when(report.open_before_ms, clock_ms)}: later,")
        lines.append("  a broker no longer reads what was due first, or deletes the log by its age")
    if report.total("skipped"):
        lines.append(f"  {report.total('skipped'):,} pending messages were left out on purpose and")
        lines.append("  wait only in the source: do not throw it away")
    lines.append("  restarting the old broker would deliver the converted messages again")
    return lines


def _difference_lines(difference: "Difference") -> Iterable[str]:
    places = [
        ("level", difference.level),
        ("queue offset", difference.queue_offset),
        ("source at", difference.source_offset),
        ("target at", difference.target_offset),
    ]
    where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
    yield f"{difference.kind}: {difference.topic} {difference.unique_key} ({where})"
    for field in difference.fields:
        yield f"  {field.name}: {field.expected} became {field.found}"
