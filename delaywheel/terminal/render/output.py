# SPDX-License-Identifier: Apache-2.0
"""What the command line prints: one method a result, as text for people or as JSON for programs.

Results go to stdout, warnings and refusals to stderr. Everything that comes out of a store is
escaped before it reaches a terminal.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from delaywheel.terminal.options.message_lines import delivered_json, message_json
from delaywheel.terminal.render import changes as migrate_text
from delaywheel.terminal.render import check as check_text
from delaywheel.terminal.render import engine as engine_text
from delaywheel.terminal.render import fleet as fleet_text
from delaywheel.terminal.render import text as text
from delaywheel.terminal.render.printer import OutputError, Printer
from delaywheel.terminal.render.progress import StageProgress, say_on_stderr
from message_store.base.errors import BadRecordsError, DelayStoreError
from message_store.base.printable import counted, iso_time, printable, shell_word, size, when
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import StoredMessage
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation, Deliveries, Pending, Receipt
from message_store.reading.topic_listing import UnreadableMessage

if TYPE_CHECKING:
    from compare.report.results import RaceResults
    from legacy_levels.generate.store import GeneratedStore
    from migrate.changes.retire import RetireReport
    from migrate.changes.undo import RollbackReport
    from migrate.check.store import CheckReport
    from migrate.demo import DemoResult
    from migrate.fleet import FleetEntry
    from migrate.in_place.plan import InPlaceReport
    from migrate.look.inspection import StoreInspection
    from migrate.quarantine.kept import Quarantine
    from migrate.quarantine.put_back import PutBackReport
    from migrate.report.report import BadRecord, ConversionReport
    from migrate.table.export import ExportReport
    from migrate.verify.report import VerifyReport

LISTED_TOPICS = 20
LISTED_DIFFERENCES = 100


class Output(Printer):
    """Where a verb hands its result to."""

    has_said_loading = False
    """Whether people were told why this command takes so long to begin."""

    def progress(self) -> StageProgress:
        """The progress of this command, for a ``with`` block."""
        return StageProgress(is_quiet=self._is_quiet)

    def failure(self, error: DelayStoreError) -> None:
        """Why a command stopped. Of bad records the reasons are counted and the first listed; all
        of them with ``--json``.
        """
        records: Sequence[Any] = error.records if isinstance(error, BadRecordsError) else ()
        for line in (*text.refused_lines(records), *str(error).splitlines()):
            say_on_stderr(printable(line))
        if records:
            say_on_stderr("--on-bad-record quarantine converts the others and keeps these aside")
        if self.as_json and records:
            listed = [attrs.asdict(record) for record in records]
            try:
                self._print_json({"error": str(error), "bad_records": listed})
            except OutputError as refused:
                say_on_stderr(str(refused))

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
        if found.timeline is not None:
            self._say_lines(text.timeline_lines(found.timeline, found.now_ms))
        names = [topic.name for topic in found.topics]
        self._say(f"{counted(len(names), 'topic')}: {text.some(names, LISTED_TOPICS)}")
        for each in found.files:
            sizes = f"{size(each.size_bytes)}, {size(each.disk_bytes)} on disk"
            self._say(f"  {each.name}: {counted(each.files, 'file')}, {sizes}")
        for problem in found.problems:
            self.warn(problem)

    def pending(self, messages: "Iterable[Pending | BadRecord]", now_ms: int) -> tuple[int, int]:
        """``pending``; returns how many were listed, and how many could not be read, which go to
        stderr.
        """
        listed = unreadable = 0
        as_json = self.as_json or not sys.stdout.isatty()
        for message in messages:
            if not self.has_reader:
                break
            if not isinstance(message, Pending):
                unreadable += 1
                self.warn(f"cannot be read: {text.bad_record_line(message)}")
                continue
            listed += 1
            if as_json:
                self._print(self._json(attrs.asdict(message)))
            else:
                self._say(text.pending_line(message, now_ms))
        return listed, unreadable

    def conversion(
        self, report: "ConversionReport", clock_ms: int, *, was_done: bool = False
    ) -> None:
        """``convert``; ``was_done`` by an earlier run of the same command."""
        for warning in report.warnings:
            self.warn(warning)
        if report.open_before_ms is not None and report.open_before_ms <= clock_ms:
            self.warn("the target is for looking, not for booting: its wheel has already expired")
        if self.as_json:
            self._print_json(report.as_json())
            return
        if was_done:
            self._say(f"{report.target}: this conversion was finished before; nothing was done now")
        self._say_lines(text.conversion_head(report))
        self._print_table(text.conversion_table(report))
        self._print_table(fleet_text.sources_table(report))
        self._say_lines(text.conversion_facts(report))
        self._say("")
        self._say_lines(text.what_next(report, clock_ms))

    def in_place(self, report: "InPlaceReport", clock_ms: int) -> None:
        """``convert --in-place``."""
        for warning in report.conversion.warnings:
            self.warn(warning)
        if self.as_json:
            self._print_json(report.as_json())
            return
        self._say_lines(migrate_text.in_place_head(report))
        self._print_table(text.conversion_table(report.conversion))
        self._say_lines(migrate_text.in_place_facts(report))
        self._say("")
        self._say_lines(migrate_text.in_place_next(report, clock_ms))

    def fleet(self, entries: "Sequence[FleetEntry]", clock_ms: int) -> None:
        """``convert`` of many stores."""
        for warning in fleet_text.fleet_warnings(entries, clock_ms):
            self.warn(warning)
        if self.as_json:
            self._print_json([entry.as_json() for entry in entries])
        else:
            self._print_table(fleet_text.fleet_table(entries, clock_ms))
            self._say("")
            self._say_lines(fleet_text.fleet_next(entries))
        for line in fleet_text.fleet_failures(entries):
            say_on_stderr(line)

    def retirement(self, report: "RetireReport") -> None:
        """``retire``."""
        if self.as_json:
            self._print_json(report.as_json())
        else:
            self._say_lines(migrate_text.retirement_lines(report))

    def rolled_back(self, report: "RollbackReport") -> None:
        """``rollback``."""
        if self.as_json:
            self._print_json(report.as_json())
        else:
            self._say_lines(migrate_text.rollback_lines(report))

    def checked(self, report: "CheckReport") -> None:
        """``check``."""
        if self.as_json:
            self._print_json(report.as_json())
        else:
            self._say_lines(check_text.check_lines(report))

    def quarantine(self, found: "Quarantine", in_the_way: Mapping[str, str]) -> None:
        """``quarantine``."""
        if self.as_json:
            self._print_json(found.as_json(in_the_way))
            return
        self._say_lines(check_text.quarantine_lines(found, in_the_way))
        self._print_table(check_text.account_table(found))

    def put_back(self, report: "PutBackReport") -> None:
        """``put-back``."""
        if self.as_json:
            self._print_json(report.as_json())
        else:
            self._say_lines(check_text.put_back_lines(report))

    def verification(self, report: "VerifyReport", target: str) -> None:
        """``verify``."""
        if self.as_json:
            self._print_json(report.as_json())
            return
        self._say(", ".join(text.account(report)))
        for difference in report.differences[:LISTED_DIFFERENCES]:
            self._say_lines(text.difference_lines(difference))
        if (more := len(report.differences) - LISTED_DIFFERENCES) > 0:
            self._say(f"... and {more:,} more; --json and --differences FILE have them")
        for problem in report.problems:
            often = f" ({problem.count:,} times)" if problem.count > 1 else ""
            self._say(f"{problem.where}: {problem.what}{often}")
        self._say_lines(text.verdict(report, target))

    def verifications(self, reports: "Mapping[str, VerifyReport]", target: str) -> None:
        """``verify`` of each of several sources; of one it is ``verification``."""
        is_one = len(reports) == 1
        if self.as_json and not is_one:
            self._print_json([{"source": name, **one.as_json()} for name, one in reports.items()])
            return
        for name, report in reports.items():
            if not is_one:
                self._say(f"{name}:")
            self.verification(report, target)

    def demo(self, result: "DemoResult", made_directory: str | None = None) -> None:
        """``demo``; ``made_directory`` is one that was made for it, which stays."""
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
        self._say(f"  delaywheel inspect {shell_word(result.source)} --now {result.stopped_ms}")
        self._say(f"  delaywheel inspect {shell_word(result.target)} --now {result.stopped_ms}")
        if made_directory is not None:
            self._say("They stay until you remove them:")
            self._say(f"  rm -r {shell_word(made_directory)}")

    def generated(self, path: str, made: "GeneratedStore", now_ms: int) -> None:
        """``generate``."""
        if self.as_json:
            self._print_json({"path": path, **attrs.asdict(made)})
            return
        log = size(made.commit_log_bytes)
        delivered = sum(made.delivered_by_level.values())
        waiting = counted(made.messages - delivered, "message waits", "messages wait")
        levels = sum(
            n > made.delivered_by_level.get(at, 0) for at, n in made.messages_by_level.items()
        )
        self._say(f"{path}: {waiting} in {counted(levels, 'level')}")
        if delivered:
            self._say(counted(delivered, "more was delivered before", "more were delivered before"))
        self._say(f"{log} of commit log{text.due_span(made.due_min_ms, made.due_max_ms, now_ms)}")

    def exported(self, report: "ExportReport") -> None:
        """``export``."""
        for warning in report.warnings:
            self.warn(warning)
        if report.unreadable:
            self.warn(f"{text.count(report.unreadable)} cannot be read: see the column problem")
        if self.as_json:
            self._print_json(report.as_json())
        else:
            self._say(f"{report.out}: {counted(report.exported, 'message')}")

    def compared(self, results: "RaceResults") -> None:
        """``compare``."""
        from delaywheel.terminal.render import race as compare_text

        if self.as_json:
            self._print_json(results.as_json())
            return
        self._say_lines(compare_text.head_lines(results))
        self._print_table(compare_text.race_table(results))
        self._say_lines(compare_text.tail_lines(results))

    # --- engines ----------------------------------------------------------------------------------

    def level_lowered(self, level: int, levels: DelayLevels) -> None:
        """``schedule``, with a level that the table does not have."""
        self.warn(engine_text.level_lowered_line(level, levels))

    def scheduled(self, receipts: Sequence[Receipt], now_ms: int) -> None:
        """``schedule``."""
        if self.as_json:
            self._print_lines(
                self._json({**receipt._asdict(), "handle": receipt.handle}) for receipt in receipts
            )
        else:
            self._say_lines(engine_text.receipt_lines(receipts, now_ms))

    @contextmanager
    def deliveries(self) -> Iterator[Callable[[Deliveries], None]]:
        """What ``run`` hands its deliveries to: lines with ``--json``, a count otherwise."""
        count = 0
        with self.progress() as progress:
            progress("delivering", 0, 0)

            def take(delivered: Deliveries) -> None:
                nonlocal count
                count += len(delivered)
                try:
                    if self.as_json:
                        self._print_lines(self._json(delivered_json(each)) for each in delivered)
                except OutputError as error:  # no other run prints them again
                    what = counted(count, "message was delivered", "messages were delivered")
                    raise OutputError(
                        f"{error}; {what} all the same, see delaywheel read"
                    ) from error
                progress("delivering", count, 0)

            yield take

    def ran(self, delivered: int, next_due_ms: int | None, now_ms: int, signal: str | None) -> None:
        """``run``, at its end."""
        line = engine_text.ran_line(delivered, next_due_ms, now_ms, signal)
        if not self.as_json:
            self._say(line)
        elif not self._is_quiet:
            say_on_stderr(line)

    def cancellation(
        self, handle: str, answer: Cancellation, now_ms: int, *, is_new: bool = True
    ) -> None:
        """``cancel``, of one handle; ``is_new`` where it may have been cancelled only now."""
        parts = RecallHandle.parse(handle)
        if self.as_json:
            facts = {"handle": handle, **attrs.asdict(parts), "cancellation": answer.value}
            self._print(self._json(facts))
        else:
            self._say(engine_text.cancellation_line(parts, answer, now_ms, is_new))

    def messages(self, messages: Iterable[StoredMessage | UnreadableMessage], now_ms: int) -> int:
        """``read``; returns how many could not be read, which go to stderr."""
        unreadable = 0
        as_json = self.as_json or not sys.stdout.isatty()
        for message in messages:
            if not self.has_reader:
                break
            if isinstance(message, UnreadableMessage):
                unreadable += 1
                self.warn(f"cannot be read: {engine_text.unreadable_line(message)}")
            elif as_json:
                self._print(self._json(message_json(message)))
            else:
                self._say(engine_text.message_line(message, now_ms))
        return unreadable
