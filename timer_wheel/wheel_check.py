# SPDX-License-Identifier: Apache-2.0
"""Every invariant of a live wheel that does not hold."""

from collections.abc import Sequence

import numpy as np

from message_store.delay_store import Finding, Severity
from message_store.store_losses import kept_findings, log_finding, queue_findings
from timer_wheel.live_timers import LiveTimers
from timer_wheel.unplaced import EVERYTHING

_SLOTS_AT_ONCE = 4096
_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def check_wheel(timers: LiveTimers, known: Sequence[Finding]) -> list[Finding]:
    """What is wrong, worst first; ``known`` was noticed before."""
    found = [*known, *_of_losses(timers), *_in_queue(timers), *_on_wheel(timers)]
    return sorted(found, key=lambda finding: _WORST_FIRST.index(finding.severity))


def _of_losses(timers: LiveTimers) -> list[Finding]:
    """What was gone when the store was opened."""
    store = timers.store
    of_log = [log_finding(store.losses.log_bytes)] if store.losses.log_bytes else []
    return [*of_log, *queue_findings(store), *kept_findings(store)]


def _in_queue(timers: LiveTimers) -> list[Finding]:
    rest = timers.unplaced(EVERYTHING)
    return [
        Finding(
            Severity.ERROR,
            f"timer queue {rest.queue_offset + row}",
            f"an entry that is no timed message: {error}",
            "a broker stops placing at it, or passes over it",
            "advance passes over it; look at the record",
        )
        for row, error in rest.facts.problems.items()
    ]


def _on_wheel(timers: LiveTimers) -> list[Finding]:
    """Chains that lead astray, messages twice on the wheel, records that are not there."""
    found = []
    slots = timers.wheel.used_slots()
    seen = [np.empty(0, np.int64)]
    for begin in range(0, len(slots), _SLOTS_AT_ONCE):
        rows, astray = timers.log.walk(timers.wheel, slots[begin : begin + _SLOTS_AT_ONCE])
        if astray:
            found.append(_chain_finding(astray))
        facts = timers.facts(rows)
        seen.append(rows.commit_log_offset)
        for row, error in facts.problems.items():
            found.append(_record_finding(int(rows.position[row]), error))
    places, counts = np.unique(np.concatenate(seen), return_counts=True)
    return [*found, *map(_twice_finding, places[counts > 1].tolist())]


def _chain_finding(astray: int) -> Finding:
    return Finding(
        Severity.ERROR,
        "timerlog",
        f"{astray} links of slots lead to no unit of the same slot",
        "what lies behind them is not delivered",
        "schedule again what is missing",
    )


def _record_finding(position: int, error: Exception) -> Finding:
    return Finding(
        Severity.ERROR,
        f"timerlog {position}",
        f"a message on the wheel whose record cannot be delivered: {error}",
        "a broker drops it without a word, or stops at it for ever",
        "schedule it again",
    )


def _twice_finding(offset: int) -> Finding:
    return Finding(
        Severity.ERROR,
        f"commit log {offset}",
        "a message that is on the wheel twice",
        "a broker delivers it twice",
        "none is needed for this store: it is delivered once",
    )
