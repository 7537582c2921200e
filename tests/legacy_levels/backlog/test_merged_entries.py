# SPDX-License-Identifier: Apache-2.0
"""Merging level queues is sorting their entries; queues that are not in order are not merged."""

import os

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.backlog.entries import Entries, merged_entries, sorted_entries
from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.copies.log_notes import LogNotes
from legacy_levels.neutral_units import CANCELLED_BYTES
from message_store.format.delay_levels import DelayLevels
from message_store.format.queue_unit import PRE_BLANK_SIZE, QUEUE_UNIT
from message_store.reading.consume_queue import QueueEntries

NEWEST_MS = 1_793_000_000_000
LOG_MIN = 5_000
TABLE = DelayLevels.parse()
CORES = st.integers(1, 5)
NOTHING = LogNotes(np.zeros((0, 9), np.int64), 0)

UNIT = st.tuples(
    st.one_of(st.integers(0, 50), st.integers(4_990, 5_050), st.integers(0, 2**62)),
    st.one_of(st.integers(0, 400), st.sampled_from([PRE_BLANK_SIZE, CANCELLED_BYTES])),
    st.one_of(st.integers(0, 10**6), st.integers(NEWEST_MS - 10**6, NEWEST_MS + 10**9)),
    st.booleans(),
)


def queue_of(level: int, rows: list[tuple[int, int, int, bool]]) -> LevelQueue:
    """A queue with these entries: log offset, size, due time, and whether that is unknown."""
    units = np.zeros(len(rows), QUEUE_UNIT.dtype)
    for name, column in zip(QUEUE_UNIT.dtype.names or (), range(3), strict=True):
        units[name] = [row[column] for row in rows]
    entries = QueueEntries(units, 10 * level, 0)
    return LevelQueue(
        level=level,
        queue_min=0,
        queue_max=entries.queue_max,
        stored_offset=10 * level,
        entries=entries,
        history=entries.slice(0, 0),
        due_ms=entries.tags_code,
        due_is_unknown=np.array([row[3] for row in rows], np.bool_),
    )


def merged_by(cores: int, queues: list[LevelQueue]) -> Entries | None:
    """The queues merged in as many pieces as there are cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)))
        return merged_entries(queues, TABLE, NEWEST_MS, LOG_MIN)


def same(one: Entries, other: Entries) -> bool:
    """Whether all columns are equal, and of one type."""
    return all(
        getattr(one, field.name).dtype == getattr(other, field.name).dtype
        and np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in attrs.fields(Entries)
    )


@pytest.mark.check
@given(st.lists(st.lists(UNIT, min_size=1, max_size=12), min_size=1, max_size=18), CORES)
def test_merging_is_sorting(columns: list[list[tuple[int, int, int, bool]]], cores: int) -> None:
    queues = [queue_of(level, sorted(rows)) for level, rows in enumerate(columns, 1)]
    merged = merged_by(cores, queues)
    assert merged is not None
    expected = sorted_entries(tuple(queues), NOTHING, TABLE, newest_ms=NEWEST_MS, log_min=LOG_MIN)
    assert same(merged, expected)


@given(st.lists(UNIT, min_size=2, max_size=12), CORES)
def test_a_queue_that_is_not_in_order_is_not_merged(
    rows: list[tuple[int, int, int, bool]], cores: int
) -> None:
    offsets = [row[0] for row in rows]
    merged = merged_by(cores, [queue_of(3, rows), queue_of(4, sorted(rows))])
    assert (merged is None) == (offsets != sorted(offsets))
