# SPDX-License-Identifier: Apache-2.0
"""What a verification found: counts that account for every message, and the first few differences
by name.
"""

from typing import Any, Literal

import attrs

Kind = Literal["missing", "unexpected", "different"]


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
    differences: tuple[Difference, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing at all was found."""
        return not (self.missing or self.unexpected or self.different or self.problems)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, under the keys that ``verify --json`` prints."""
        return attrs.asdict(self)
