# SPDX-License-Identifier: Apache-2.0
"""The sources of one conversion, one or several, as one: what waits in all of them, one source
behind the other, and what is said of each and of all.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog
from message_store.files.store_root import StoreRoot
from migrate.plan.plan import Amendments, Plan
from migrate.quarantine.keep import keep_bad_records, list_bad_records
from migrate.report.books import bad_records, conversion_report
from migrate.report.report import BadRecord, ConversionReport, Seconds
from migrate.settings import ConvertOptions
from migrate.source.conversion_source import ConversionSource
from migrate.source.merge import merged_report, merged_request, named_records, refuse_same_messages
from migrate.write.part import Receipt


@attrs.frozen(eq=False)
class Entries:
    """What waits in all sources, one source behind the other, a row a message.

    ``starts`` says at which row each source begins, and last where all end. It is what a plan is
    made from; the row of a message is its index.
    """

    level: NDArray[Any]
    due_ms: NDArray[np.int64]
    commit_log_offset: NDArray[np.int64]
    size_bytes: NDArray[Any]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, backlogs: Sequence[LevelBacklog]) -> "Entries":
        """The rows of these backlogs; of one alone they are its own arrays."""
        ends = np.cumsum([len(backlog) for backlog in backlogs]).tolist()

        def joined(name: str) -> NDArray[Any]:
            columns = [getattr(backlog, name) for backlog in backlogs]
            return columns[0] if len(columns) == 1 else np.concatenate(columns)

        return cls(
            level=joined("level"),
            due_ms=joined("due_ms"),
            commit_log_offset=joined("commit_log_offset"),
            size_bytes=joined("size_bytes"),
            starts=(0, *ends),
        )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """From which row to which each source has."""
        return list(pairwise(self.starts))


def own_amendments(amendments: Amendments, span: tuple[int, int]) -> Amendments:
    """What was learned of the rows of one source, counted from its first."""
    first, end = span
    return Amendments(
        bad={at - first: why for at, why in amendments.bad.items() if first <= at < end},
        sizes={at - first: size for at, size in amendments.sizes.items() if first <= at < end},
    )


def own_messages(plan: Plan, span: tuple[int, int]) -> slice:
    """Which messages of the plan are those of one source."""
    first, end = np.searchsorted(plan.chosen, span).tolist()
    return slice(first, end)


class SourceSet:
    """All sources, stage by stage, as ``ConversionSource`` is one.

    ``entries`` and ``chosen`` are there after ``read``, ``request`` after ``ask``.
    """

    entries: Entries
    chosen: NDArray[np.bool_]
    request: dict[str, Any]

    def __init__(self, members: Sequence[ConvertOptions]) -> None:
        self._each = [ConversionSource(options) for options in members]
        self.roots = [source.root for source in self._each]

    @property
    def paths(self) -> list[Path]:
        """Where they lie."""
        return [root.path for root in self.roots]

    def check_places(self, target: Path) -> None:
        """Refuse what is no store, and one of source and target within the other."""
        for source in self._each:
            source.check_places(target)

    def check(self) -> None:
        """Refuse sources that were not stopped, or whose own wheels are not empty."""
        for source in self._each:
            source.check()

    def hold(self, stack: ExitStack) -> None:
        """No broker starts on one of them until the stack is closed."""
        for root in self.roots:
            stack.enter_context(root.shared_lock())

    def read(self) -> None:
        """Find what is pending in all of them. Raises SameMessageError as well."""
        for source in self._each:
            source.read()
        self.entries = Entries.of([source.backlog for source in self._each])
        self.chosen = np.concatenate([source.chosen for source in self._each])
        refuse_same_messages(self._each)

    def ask(self, now_ms: int) -> None:
        """Settle what makes this run this one."""
        self._requests = [source.request(now_ms) for source in self._each]
        self.request = merged_request(self._requests)

    def bad_records(self, amendments: Amendments) -> list[BadRecord]:
        """All of them; where there are several sources, each with its own."""
        return [
            record
            for source, span in zip(self._each, self.entries.spans, strict=True)
            for record in named_records(
                bad_records(source.backlog, own_amendments(amendments, span)),
                source.root.path,
                len(self._each),
            )
        ]

    def set_aside(self, target: StoreRoot, amendments: Amendments) -> None:
        """Keep the bad records beside the target. Raises TargetError."""
        lines: list[str] = []
        spans = enumerate(zip(self._each, self.entries.spans, strict=True), 1)
        for number, (source, span) in spans:
            bad = own_amendments(amendments, span).bad
            prefix = f"source-{number:02d}-" if len(self._each) > 1 else ""
            lines += keep_bad_records(source.root, target, source.backlog, bad, prefix=prefix)
        list_bad_records(target, lines)

    def report(
        self, plan: Plan, amendments: Amendments, receipts: Sequence[Receipt], seconds: Seconds
    ) -> ConversionReport:
        """The report of the one source, or the sum of all with each in it."""
        each = []
        for number, (source, span) in enumerate(zip(self._each, self.entries.spans, strict=True)):
            parts = np.flatnonzero(plan.log.parts["source"] == number).tolist()
            report = conversion_report(
                source.options,
                source.backlog,
                source.chosen,
                plan,
                own_amendments(amendments, span),
                [receipts[part] for part in parts],
                seconds,
                self._requests[number],
                own=own_messages(plan, span),
            )
            each.append(source.with_warnings(report))
        return each[0] if len(each) == 1 else merged_report(each, self.request)
