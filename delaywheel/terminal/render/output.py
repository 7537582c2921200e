# SPDX-License-Identifier: Apache-2.0
"""How a verb hands its result over: as lines and tables for people, or as JSON for programs.

Results go to stdout, warnings and refusals to stderr. Everything that comes out of a store is
escaped before it reaches a terminal.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from rich.table import Table

from delaywheel.terminal.options.message_lines import delivered_json, message_json
from delaywheel.terminal.render import engine as engine_text
from delaywheel.terminal.render import text as text
from delaywheel.terminal.render.printer import OutputError, Printer
from delaywheel.terminal.render.progress import StageProgress, say_on_stderr
from message_store.base.errors import BadRecordsError, DelayStoreError
from message_store.base.printable import counted, printable
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation, Deliveries, Pending, Receipt
from message_store.interface.message_life import TraceStep
from message_store.reading.looking import open_elsewhere
from message_store.reading.topic_listing import UnreadableMessage

if TYPE_CHECKING:
    from consumer_groups import Received
    from migrate.report.report import BadRecord
    from migrate.verify.report import VerifyReport


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
            say_on_stderr("--on-bad-record quarantine converts the others and quarantines these")
        if self.as_json and records:
            listed = [attrs.asdict(record) for record in records]
            try:
                self._print_json({"error": str(error), "bad_records": listed})
            except OutputError as refused:
                say_on_stderr(str(refused))

    def result(self, facts: Callable[[], Any], shown: Iterable[str | Table]) -> None:
        """A result: with ``--json`` one document of its facts, else lines and tables."""
        if self.as_json:
            self._print_json(facts())
            return
        for item in shown:
            if isinstance(item, Table):
                self._print_table(item)
            else:
                self._say(item)

    def warnings(self, sentences: Iterable[str]) -> None:
        """Sentences about what is not right, on stderr."""
        for sentence in sentences:
            self.warn(sentence)

    def tell_of_writer(self, store: Path) -> None:
        """Say on stderr which process of ours has a store open that is only looked at."""
        with suppress(DelayStoreError):  # of a broker the reader says more
            if told := open_elsewhere(StoreRoot(store)):
                self.warn(told)

    def pending(self, messages: "Iterable[Pending | BadRecord]", now_ms: int) -> tuple[int, int]:
        """``pending``; returns how many were listed, and how many were unreadable (on stderr)."""
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

    def verification(self, report: "VerifyReport", target: str) -> None:
        """``verify`` of one source, or of a target alone."""
        self.result(report.as_json, text.verification_lines(report, target))

    def verifications(self, reports: "Mapping[str, VerifyReport]", target: str) -> None:
        """``verify`` of each of several sources; of one it is ``verification``."""
        if len(reports) == 1:
            [report] = reports.values()
            self.verification(report, target)
            return
        self.result(
            lambda: [{"source": name, **report.as_json()} for name, report in reports.items()],
            (
                line
                for name, report in reports.items()
                for line in (f"{name}:", *text.verification_lines(report, target))
            ),
        )

    # --- engines ----------------------------------------------------------------------------------

    def scheduled(self, receipts: Sequence[Receipt], now_ms: int) -> None:
        """``schedule``."""
        if self.as_json:
            self._print_lines(
                self._json({**receipt._asdict(), "handle": receipt.handle}) for receipt in receipts
            )
        else:
            self._say_lines(engine_text.receipt_lines(receipts, now_ms))

    def scheduled_before(self, unique_key: str) -> None:
        """``schedule --once`` of a message that is there."""
        if self.as_json:
            self._print_lines([self._json({"unique_key": unique_key, "stored": False})])

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

    def serving(self, url: str) -> None:
        """Where ``run`` and ``consume`` serve their figures."""
        if not self._is_quiet:
            say_on_stderr(f"figures for Prometheus: {url}")

    def received(self, message: "Received") -> None:
        """``consume`` and ``dead-letters``, of one message: always as JSON."""
        facts = {"topic": message.topic, "retries": message.retries}
        self._print(self._json({**message_json(message.stored), **facts}))

    def consumed(self, handled: int, retried: int) -> None:
        """``consume``, at its end."""
        if not self._is_quiet:
            retries = f", {retried:,} retried" if retried else ""
            say_on_stderr(f"{counted(handled, 'message')} acknowledged{retries}")

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

    def trace(self, steps: Iterable[TraceStep], now_ms: int, *, is_full: bool) -> None:
        """``trace``."""
        as_json = self.as_json or not sys.stdout.isatty()
        for step in steps:
            if as_json:
                self._print(self._json(engine_text.step_json(step, is_full=is_full)))
                continue
            self._say(engine_text.step_line(step, now_ms))
            if is_full:
                self._say(f"  {engine_text.message_line(step.record, now_ms)}")

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
