# SPDX-License-Identifier: Apache-2.0
"""Every invariant of a hierarchical wheel that does not hold: between database, queue and log."""

from collections.abc import Iterator

import numpy as np

from message_store.columns.byte_column import int64s
from message_store.interface.delay_store import Finding, Severity
from message_store.interface.finding_rules import worst_first
from message_store.writing.findings import floor_findings
from timer_wheel.format.index_layouts import Rows
from timer_wheel.hierarchy.index_db import DamagedIndexError
from timer_wheel.hierarchy.taken_over import damage_of_taken_over
from timer_wheel.hierarchy.timer_index import TimerIndex


def check_hierarchy(index: TimerIndex) -> list[Finding]:
    """What is wrong, worst first."""
    store = index.store
    found = [*index.losses, *index.lost.findings(), *floor_findings(store)]
    damage = damage_of_taken_over(store.root)
    if damage is not None:
        found.append(
            Finding(
                Severity.WARNING,
                "delaywheel/hierarchy/taken-over",
                damage,
                "a broker does not look at it; an index that is lost cannot be made again, and"
                " some old cancels are reported as delivered",
                "close the store, open it with WheelStore, close that, and open it with"
                " HierarchicalWheelStore again: the file is written anew",
            )
        )
    try:
        index.place_queued()
        found += _in_index(index)
    except DamagedIndexError as error:
        found.append(
            Finding(
                Severity.ERROR,
                str(index.db.path),
                f"the index cannot be read: {error}",
                "a broker does not look at it",
                "close the store and open it again: the index is made anew from the queue",
            )
        )
    return worst_first(found)


def _in_index(index: TimerIndex) -> Iterator[Finding]:
    """Messages that stand in it twice, that the queue does not have, or whose records are lost."""
    seen = [np.empty(0, np.int64)]
    for rows in index.waiting.parts():
        seen.append(int64s(rows["queue_offset"]))
        yield from _unlike_queue(index, rows)
        facts = index.facts_of(rows)
        for row, error in facts.problems.items():
            yield _finding(rows, row, f"a message whose record cannot be delivered: {error}")
    places, counts = np.unique(np.concatenate(seen), return_counts=True)
    for place in places[counts > 1].tolist():
        yield Finding(
            Severity.ERROR,
            f"timer queue {place}",
            "a message that stands in the index twice",
            "it would be delivered twice",
            "remove delaywheel/hierarchy/index while the store is closed: it is made anew",
        )


def _unlike_queue(index: TimerIndex, rows: Rows) -> Iterator[Finding]:
    """Rows that the timer queue says otherwise about."""
    order = np.argsort(rows["queue_offset"], kind="stable")
    rows = rows[order]
    if not len(rows):
        return
    offsets = int64s(rows["queue_offset"])
    first = int(offsets[0])
    units = index.queue.units(first, int(offsets[-1]) + 1)
    # Files before the first were deleted, and their entries with them.
    begin = max(first, min(int(offsets[-1]) + 1, index.queue.max_offset) - len(units))
    places = offsets - begin
    is_there = (places >= 0) & (places < len(units))
    same = np.zeros(len(rows), bool)
    chosen = units[places[is_there]]
    same[is_there] = (chosen["commit_log_offset"] == rows["commit_log_offset"][is_there]) & (
        chosen["size_bytes"] == rows["size_bytes"][is_there]
    )
    for row in np.flatnonzero(~same).tolist():
        yield _finding(rows, row, "a message that the timer queue does not have at its place")


def _finding(rows: Rows, row: int, problem: str) -> Finding:
    return Finding(
        Severity.ERROR,
        f"index, timer queue {int(rows['queue_offset'][row])}",
        problem,
        "it is not delivered, or not as it should be",
        "remove delaywheel/hierarchy/index while the store is closed: it is made anew",
    )
