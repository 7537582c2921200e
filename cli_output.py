# SPDX-License-Identifier: Apache-2.0
"""What the command line prints: one method a result, as text for people or as JSON for programs.

Results go to stdout, warnings and refusals to stderr. Everything that comes out of a store is
escaped before it reaches a terminal.
"""

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.console import Console
from rich.table import Table

import cli_text as text
from cli_progress import StageProgress
from message_store.delay_store import Pending
from message_store.errors import BadRecordsError, DelayStoreError
from message_store.printable import iso_time, printable, when

if TYPE_CHECKING:
    from legacy_levels.generate import GeneratedStore
    from migrate.demo import DemoResult
    from migrate.report import BadRecord, ConversionReport
    from migrate.store_inspection import StoreInspection
    from migrate.verify_report import VerifyReport

WIDTH_WITHOUT_TERMINAL = 100
LISTED_TOPICS = 20


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
            click.echo(f"  {text.bad_record_line(record)}", err=True)  # type: ignore[arg-type]
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
        self._say(f"{text.count(found.pending)} pending, {text.count(found.overdue)} overdue{soon}")
        self._print_table(text.level_table(found.levels, found.now_ms))
        if found.wheel is not None:
            self._say_lines(text.wheel_lines(found.wheel, found.now_ms))
        names = [topic.name for topic in found.topics]
        self._say(f"{len(names)} topics: {text.some(names, LISTED_TOPICS)}")
        for each in found.files:
            sizes = f"{text.size(each.size_bytes)}, {text.size(each.disk_bytes)} on disk"
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
                self.warn(f"cannot be read: {text.bad_record_line(message)}")
            elif as_json:
                click.echo(json.dumps(attrs.asdict(message)))
            else:
                self._say(text.pending_line(message, now_ms))
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
        self._say_lines(text.conversion_head(report))
        self._print_table(text.conversion_table(report))
        self._say_lines(text.conversion_facts(report))
        self._say("")
        self._say_lines(text.what_next(report, clock_ms))

    def verification(self, report: "VerifyReport", target: str) -> None:
        """``verify``."""
        if self.as_json:
            self._print_json(report.as_json())
            return
        counts = ("converted", "missing", "unexpected", "different", "quarantined", "sampled")
        self._say(", ".join(f"{getattr(report, name):,} {name}" for name in counts))
        for difference in report.differences:
            self._say_lines(text.difference_lines(difference))
        for problem in report.problems:
            self._say(f"{problem.where}: {problem.what} ({problem.count:,} times)")
        self._say_lines(text.verdict(report, target))

    def demo(self, result: "DemoResult") -> None:
        """``demo``."""
        if self.as_json:
            self._print_json(result.as_json())
            return
        self._say(f"A store that a real {result.broker} broker left behind, stopped at")
        self._say(f"{iso_time(result.stopped_ms)}, converted as of that moment:")
        self._say("")
        self._say_lines(text.conversion_head(result.report))
        self._print_table(text.conversion_table(result.report))
        self._say_lines(text.conversion_facts(result.report))
        self._say("")
        self._say("Both sides read again, independently of the writer:")
        self.verification(result.verification, result.target)
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
        log = text.size(made.commit_log_bytes)
        self._say(
            f"{path}: {made.messages:,} messages wait in {len(made.messages_by_level)} levels"
        )
        self._say(f"{log} of commit log{text.due_span(made.due_min_ms, made.due_max_ms, now_ms)}")

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
