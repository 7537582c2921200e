# SPDX-License-Identifier: Apache-2.0
"""What a change of a store in place answers with: the books of a conversion, and what was, or would
be, written where.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from migrate.report.report import BadRecord, ConversionReport, LevelReport, Seconds

PLANNED, DONE, CONTINUED, UNFINISHED, NOTHING = (
    "planned",
    "done",
    "continued and done",
    "unfinished",
    "nothing to do",
)


@attrs.frozen(kw_only=True)
class InPlaceReport:
    """A conversion in place: ``state`` says whether it was done.

    ``log_from`` to ``log_to`` is what is appended to the log, ``queue_from`` to ``queue_to`` what
    to the timer queue; ``offsets`` maps levels to where they stand then. ``backup`` is where the
    small files are kept as they were.
    """

    conversion: ConversionReport
    state: str
    log_from: int
    log_to: int
    queue_from: int
    queue_to: int
    offsets: Mapping[int, int]
    backup: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object: that of ``convert``, and what is of changes in place alone."""
        own = attrs.asdict(self, recurse=False)
        del own["conversion"]
        return {**self.conversion.as_json(), "in_place": True, **own}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], state: str) -> "InPlaceReport":
        """What an earlier run wrote down."""
        known = {field.name for field in attrs.fields(ConversionReport)}
        told = {name: value for name, value in facts.items() if name in known}
        told["levels"] = tuple(LevelReport(**each) for each in told["levels"])
        told["bad_records"] = tuple(BadRecord(**each) for each in told["bad_records"])
        told["seconds"] = Seconds(**told["seconds"])
        told["warnings"] = tuple(told["warnings"])
        own = ("log_from", "log_to", "queue_from", "queue_to", "backup")
        return cls(
            conversion=ConversionReport(**told),
            state=state,
            offsets={int(level): place for level, place in facts["offsets"].items()},
            **{name: facts[name] for name in own},
        )
