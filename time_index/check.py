# SPDX-License-Identifier: Apache-2.0
"""Every invariant of a time index that does not hold: between index, queues and log."""

from collections.abc import Iterator

import numpy as np

from message_store.columns.byte_column import int64s
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.interface.delay_store import Finding, Severity
from message_store.interface.finding_rules import worst_first
from message_store.writing.findings import floor_findings, undeliverable
from time_index.index import CANCELS, TimeIndex
from time_index.record_kernel import read_facts


def check_time_index(index: TimeIndex) -> list[Finding]:
    """What is wrong, worst first."""
    index.place_queued()
    found = [*_in_buckets(index), *_in_cancels(index), *index.losses, *undelivered(index)]
    return worst_first([*found, *floor_findings(index.store)])


def undelivered(index: TimeIndex) -> list[Finding]:
    """What could not be delivered."""
    lost = [(each.commit_log_offset, each.reason) for each in index.lost.all()]
    return [undeliverable(*each, "a broker does not look at it") for each in lost]


def _in_buckets(index: TimeIndex) -> Iterator[Finding]:
    """Messages whose records are lost, or say another time than the index."""
    for start_ms in index.starts():
        units = index.look(start_ms)
        facts = read_facts(index.store.log, units.offsets, units.sizes)
        for row in np.flatnonzero(facts.due_ms != units.due_ms).tolist():
            why = facts.problems.get(row, f"its record says {facts.due_ms[row]}")
            yield Finding(
                Severity.ERROR,
                f"commit log {units.offsets[row]}",
                f"a message that waits for {units.due_ms[row]}: {why}",
                "a broker does not look at it",
                "look at the record; schedule its message again if it is still wanted",
            )


def _in_cancels(index: TimeIndex) -> Iterator[Finding]:
    """Cancels whose records name no message any more."""
    queue = index.store.queue(TIME_INDEX_TOPIC, CANCELS)
    units = queue.units(queue.min_offset, queue.max_offset)
    offsets, sizes = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
    facts = read_facts(index.store.log, offsets, sizes)
    for row in np.flatnonzero(~facts.is_fine | (facts.firsts == offsets)).tolist():
        yield Finding(
            Severity.ERROR,
            f"commit log {offsets[row]}",
            f"a cancel is damaged: {facts.problems.get(row, 'it names no message')}",
            "a broker does not look at it",
            "cancel that message again, if it still waits; look at the disk",
        )
