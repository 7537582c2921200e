# SPDX-License-Identifier: Apache-2.0
"""The result of a verification: counts that account for every message, and named differences."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from message_store.base.errors import TargetError
from message_store.files.store_root import require_outside
from migrate.write.staging import new_file, target_errors

Kind = Literal["missing", "unexpected", "different"]

OPENED = "this target was opened since it was made"
"""A problem that begins so is about a target which somebody has delivered from."""


_WITH_THE_SOURCE = ("source", "quarantine")

ALL = 1_000_000
"""A table of all differences has at most so many of a kind."""


@attrs.frozen
class FieldDifference:
    """One field of a message that should have survived: what the source has, what the target has.

    The texts are shortened, and control characters in them are escaped.
    """

    name: str
    expected: str
    found: str


@attrs.frozen
class Difference:
    """One message that is missing, unexpected or different.

    ``level``, ``queue_offset`` and ``source_offset`` say where it waits in the source,
    ``target_offset`` where its record lies in the target's commit log; None where there is none.
    """

    kind: Kind
    topic: str | None
    unique_key: str | None
    level: int | None = None
    queue_offset: int | None = None
    source_offset: int | None = None
    target_offset: int | None = None
    fields: tuple[FieldDifference, ...] = ()


SAMPLE = "sample"
"""Where a problem is that the sampled messages show: differences, said once more."""


@attrs.frozen
class Problem:
    """Something wrong that is not one message's: in the structure of the target, in the
    bookkeeping, or with the source; ``count`` is how often.
    """

    where: str
    what: str
    count: int = 1


@attrs.frozen
class VerifyReport:
    """The account of a conversion.

    Every pending message of the source, quarantined ones aside, is ``converted`` (it waits in the
    target once, unchanged, at its time), ``missing`` or ``different``; ``unexpected`` counts what
    the target would deliver beyond that, second copies too. ``differences`` names the first few of
    them, ``problems`` whatever else is wrong. ``only_levels``, ``only_topics``, ``levels_only`` and
    ``whole_log`` are what the conversion was asked for, and so what the account is about.
    ``only_counted`` are there as far as queue, timer log and wheel tell: a sample of the others was
    read. Without a source (``has_source``) it is the target's own maker whose count is accounted
    for. ``is_part``: of a target of several sources not all were read, so that nobody has looked
    whether its timermetrics counts too many.
    """

    converted: int
    missing: int
    unexpected: int
    different: int
    quarantined: int = 0
    sampled: int = 0
    only_levels: tuple[int, ...] = ()
    only_topics: tuple[str, ...] = ()
    levels_only: bool = False
    whole_log: bool = False
    only_counted: int = 0
    has_source: bool = True
    is_part: bool = False
    differences: tuple[Difference, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def was_opened(self) -> bool:
        """Whether somebody delivers from the target already, or has: then it is too late for this
        account.
        """
        return any(problem.what.startswith(OPENED) for problem in self.problems)

    @property
    def unexplained_problems(self) -> tuple[Problem, ...]:
        """The problems to name: of a target that was opened only those with the source."""
        if not self.was_opened:
            return self.problems
        return tuple(each for each in self.problems if each.where in _WITH_THE_SOURCE)

    @property
    def is_damaged(self) -> bool:
        """Whether more is wrong than messages that are missing or different."""
        return any(each.where != SAMPLE for each in self.problems)

    @property
    def is_clean(self) -> bool:
        """Whether nothing at all was found."""
        return not (self.missing or self.unexpected or self.different or self.problems)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, under the keys that ``verify --json`` prints."""
        return attrs.asdict(self)


def require_table_place(path: Path, *stores: Path) -> None:
    """Raise TargetError where a table of differences cannot be written, before hours of work; or
    where it would lie in one of ``stores``.
    """
    require_outside(path, *stores)
    with target_errors(path):
        if path.exists():
            raise TargetError(f"{path}: is already there")
        if not path.absolute().parent.is_dir():
            raise TargetError(f"{path}: cannot be written: no such directory")


def write_differences(reports: Mapping[str, VerifyReport], path: Path) -> None:
    """Write all differences of these sources as lines of JSON, to a new file.

    A line has the source and the keys of ``verify --json``; ``kind`` is "problem" for a problem.
    Raises TargetError.
    """
    with new_file(path) as file:
        for source, report in reports.items():
            for difference in report.differences:
                file.write(_line({"source": source, **attrs.asdict(difference)}))
            for problem in report.problems:
                facts = {"source": source, "kind": "problem", **attrs.asdict(problem)}
                file.write(_line(facts))


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"
