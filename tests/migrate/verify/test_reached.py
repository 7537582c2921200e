# SPDX-License-Identifier: Apache-2.0
"""A timer log read from its front gives the entries that a walk over its chains gives, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.reading.consume_queue import QueueEntries
from migrate.report.marker import ConversionSettings, read_settings
from migrate.verify import structure
from migrate.verify.reached import Slots, entries_in_order, reached_entries
from tests.migrate.verify_targets import make_stores
from timer_wheel.format.checkpoint import read_timer_checkpoint
from timer_wheel.format.timer_log import TimerUnits, read_units


@attrs.frozen(eq=False)
class Files:
    """What a target's files say."""

    slots: Slots
    units: TimerUnits
    queue: QueueEntries
    settings: ConversionSettings

    def in_order(self) -> np.ndarray[Any, Any] | None:
        return entries_in_order(self.slots, self.units, self.queue, self.settings.precision_ms)

    def walked(self) -> tuple[list[Any], np.ndarray[Any, Any]]:
        walk = structure._walk(self.slots, self.units)
        problems = [*structure._walk_problems(walk, self.slots, self.units)]
        problems += structure._unit_problems(self.units, self.queue, self.settings)
        return problems, reached_entries(walk, self.slots.times_ms, self.units, self.queue)

    def changed(self, table: str, row: int, field: str, by: int) -> Files:
        """The same with one number of one unit, slot or queue entry moved."""
        if table == "slots":
            column = getattr(self.slots, field).copy()
            column[row] += by
            return attrs.evolve(self, slots=attrs.evolve(self.slots, **{field: column}))
        side = getattr(self, table)
        rows = side.units.copy()
        rows[field][row] = rows[field][row] + by
        return attrs.evolve(self, **{table: attrs.evolve(side, units=rows)})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    target: Path = make_stores(tmp_path_factory.mktemp("stores")).target
    root = StoreRoot(target)
    settings = read_settings(root)
    problems: list[Any] = []
    queue = structure.read_target_queue(root, settings, problems)
    slots = structure._read_slots(root, settings, read_timer_checkpoint(root), problems)
    with SegmentReader(root.timer_log, settings.timer_log_file_bytes) as reader:
        units = read_units(reader)
    assert not problems
    return Files(slots, units, queue, settings)


def test_a_sound_log_is_read_from_its_front(files: Files) -> None:
    problems, entries = files.walked()
    in_order = files.in_order()
    assert not problems
    assert len(files.units.run_starts) > 2
    assert in_order is not None
    assert in_order.tolist() == entries.tolist()


FIELDS = {
    "units": ("previous_position", "write_time_ms", "delay_ms", "commit_log_offset"),
    "slots": ("first", "last", "counts"),
    "queue": ("commit_log_offset",),
}


@given(st.data())
def test_what_the_walk_finds_wrong_is_left_to_it(files: Files, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from([*FIELDS]))
    count = len(files.slots.first) if table == "slots" else len(files.units)
    changed = files.changed(
        table,
        data.draw(st.integers(0, count - 1)),
        data.draw(st.sampled_from(FIELDS[table])),
        data.draw(st.sampled_from([-52, -1, 1, 52, 1000, -1000])),
    )
    assert changed.walked()[0]
    assert changed.in_order() is None


@pytest.mark.parametrize("table", ["units", "queue"])
def test_a_log_and_a_queue_of_different_lengths_are_walked(files: Files, table: str) -> None:
    side = getattr(files, table)
    shorter = attrs.evolve(files, **{table: attrs.evolve(side, units=side.units[:-1])})
    assert shorter.in_order() is None


def test_a_slot_that_no_unit_is_placed_in_is_walked(files: Files) -> None:
    slots = files.slots
    more = Slots(
        times_ms=np.append(slots.times_ms, slots.times_ms[-1] + files.settings.precision_ms),
        first=np.append(slots.first, -1),
        last=np.append(slots.last, -1),
        counts=np.append(slots.counts, 0),
    )
    changed = attrs.evolve(files, slots=more)
    assert changed.walked()[0]
    assert changed.in_order() is None
