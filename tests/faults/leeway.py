# SPDX-License-Identifier: Apache-2.0
"""What the promise of an engine leaves open: the reference engines do as brokers do.

Of all others nothing is open. That time goes on is all that brokers are good for: one whose clock
was set back hurries messages of levels, and a hand that is ahead of it hides those of a wheel.
"""

from __future__ import annotations

import attrs

LEVELS, WHEEL = "reference-levels", "reference-wheel"


@attrs.frozen
class Leeway:
    """What an engine may do that others may not."""

    cancels: bool = True
    """Whether it can cancel at all."""

    works_like_a_broker: bool = False
    """Whether a kill, or a disk that refuses, repeats what was done since the last flush. Messages
    that were due when they were stored wait for those of the shortest level in front of them.
    Nothing is in order, and nobody sets the clock back.
    """


NONE = Leeway()
_OPEN = {
    LEVELS: Leeway(cancels=False, works_like_a_broker=True),
    WHEEL: Leeway(works_like_a_broker=True),
}


def leeway_of(engine: str) -> Leeway:
    """What is left open to an engine."""
    return _OPEN.get(engine, NONE)
