# SPDX-License-Identifier: Apache-2.0
"""The engines against the model for thousands of random steps, kills and reopenings among them, on
files so small that their borders are crossed all the time.
"""

from pathlib import Path

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from message_store import Clock, DelayLevels, DelayStore, MemoryStore
from message_store.interface.promise_rules import PromiseRule, to_level, to_slot_end
from tests.contract.delay_store_machine import DAY_MS, DelayStoreMachine
from tests.contract.naive_store import Model
from tests.contract.test_hierarchical_store import to_the_millisecond
from tests.faults.engines import (
    SMALL,
    abandon,
    open_hierarchy,
    open_levels,
    open_time_index,
    open_wheel,
)
from tests.helpers.tiers import with_examples
from timer_wheel import HierarchicalWheelStore

LEVELS = DelayLevels.parse()
HOUR_MS = 3_600_000

brief = settings(max_examples=3, stateful_step_count=40, deadline=None)
few = settings(max_examples=6, stateful_step_count=60, deadline=None)
many = settings(max_examples=60, stateful_step_count=120, deadline=None)


class EngineMachine(DelayStoreMachine):
    """An engine with its rule, and its ends."""

    durable = True
    clock_leaps = True
    promise_rule: PromiseRule

    def promise(self, due_ms: int, now_ms: int) -> int:
        return self.promise_rule(due_ms, now_ms)

    def make_model(self, clock: Clock) -> Model:
        return MemoryStore(clock, promise=self.promise, levels=LEVELS)

    def abandon(self, store: DelayStore) -> None:
        abandon(store)


class LevelMachine(EngineMachine):
    promise_rule = staticmethod(to_level(LEVELS))

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_levels(folder, clock)


class ForgetfulLevelMachine(LevelMachine):
    """Files are taken away an hour after their last record."""

    forgets = True

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_levels(folder, clock, attrs.evolve(SMALL, retention_ms=HOUR_MS))


class WheelMachine(EngineMachine):
    """Two hours a round, so that what waits for days rolls."""

    promise_rule = staticmethod(to_slot_end(1_000, max_delay_ms=3 * DAY_MS))

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_wheel(folder, clock, roll_window_slots=7_200)


class FineWheelMachine(EngineMachine):
    promise_rule = staticmethod(to_slot_end(100, max_delay_ms=3 * DAY_MS))

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_wheel(folder, clock, precision_ms=100, roll_window_slots=6_000)


class ForgetfulWheelMachine(WheelMachine):
    """What waits for days outlives the files that it came in, by rolling."""

    forgets = True

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        settings = attrs.evolve(SMALL, retention_ms=3 * HOUR_MS)
        return open_wheel(folder, clock, settings, roll_window_slots=7_200)


class HierarchyMachine(EngineMachine):
    """Promises to the millisecond, by the rule of two times of a hundred."""

    promise_rule = staticmethod(to_the_millisecond)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_hierarchy(folder, clock)


class ForgetfulHierarchyMachine(HierarchyMachine):
    """What waits for days is stored again before its file goes."""

    forgets = True

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_hierarchy(folder, clock, attrs.evolve(SMALL, retention_ms=3 * HOUR_MS))


class TimeIndexMachine(EngineMachine):
    """Promises to the millisecond, within the log's retention."""

    promise_rule = staticmethod(to_slot_end(1, max_delay_ms=SMALL.retention_ms))

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_time_index(folder, clock)


class ForgetfulTimeIndexMachine(EngineMachine):
    """Files go three hours after their last record; no message is promised for later."""

    forgets = True
    promise_rule = staticmethod(to_slot_end(1, max_delay_ms=3 * HOUR_MS))

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return open_time_index(folder, clock, attrs.evolve(SMALL, retention_ms=3 * HOUR_MS))


class OwnersInTurnsMachine(EngineMachine):
    """A wheel in files and one in a database have the store in turns, after kills too; a wheel so
    small that most of what waits rolls.
    """

    precision_ms = 1_000
    promise_rule = staticmethod(to_slot_end(1_000, max_delay_ms=3 * DAY_MS))
    retention_ms = SMALL.retention_ms
    is_hierarchical = False

    @rule(is_hierarchical=st.booleans())
    def the_next_owner_is(self, is_hierarchical: bool) -> None:
        self.is_hierarchical = is_hierarchical

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        settings = attrs.evolve(SMALL, retention_ms=self.retention_ms)
        if self.is_hierarchical:
            return HierarchicalWheelStore.open(
                folder,
                clock=clock,
                settings=settings,
                precision_ms=self.precision_ms,
                max_delay_ms=3 * DAY_MS,
            )
        return open_wheel(
            folder, clock, settings, precision_ms=self.precision_ms, roll_window_slots=10
        )


class FineOwnersInTurnsMachine(OwnersInTurnsMachine):
    precision_ms = 100
    promise_rule = staticmethod(to_slot_end(100, max_delay_ms=3 * DAY_MS))


class ForgetfulOwnersInTurnsMachine(OwnersInTurnsMachine):
    """What waits is stored again before its file goes, by whoever has the store."""

    forgets = True
    retention_ms = 3 * HOUR_MS


MACHINES = [
    LevelMachine,
    ForgetfulLevelMachine,
    WheelMachine,
    FineWheelMachine,
    ForgetfulWheelMachine,
    HierarchyMachine,
    ForgetfulHierarchyMachine,
    TimeIndexMachine,
    ForgetfulTimeIndexMachine,
]
QUICK = [LevelMachine, WheelMachine, HierarchyMachine, TimeIndexMachine]
IN_TURNS = [OwnersInTurnsMachine, FineOwnersInTurnsMachine, ForgetfulOwnersInTurnsMachine]


@pytest.mark.parametrize("machine", with_examples(MACHINES, QUICK))
@pytest.mark.parametrize(
    "effort",
    [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.nightly)],
)
def test_an_engine_does_what_the_model_does(machine: type[EngineMachine], effort: settings) -> None:
    run_state_machine_as_test(machine, settings=effort)


def test_engines_that_have_a_store_in_turns_do_what_the_model_does() -> None:
    run_state_machine_as_test(ForgetfulOwnersInTurnsMachine, settings=brief)


@pytest.mark.nightly
@pytest.mark.parametrize("machine", IN_TURNS)
def test_engines_in_turns_do_so_for_long(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(machine, settings=many)
