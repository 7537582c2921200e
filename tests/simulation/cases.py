# SPDX-License-Identifier: Apache-2.0
"""One table: scenario, engine, fault, step, seed. What runs a case, and where faults may strike."""

from __future__ import annotations

import itertools
import random
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from message_store.base import parallel as parallel_map
from message_store.base.errors import DelayStoreError
from message_store.files.rocksdb import manifest
from migrate.write import staging
from tests.simulation.bench import Bench
from tests.simulation.migrations import MIGRATIONS, Migration
from tests.simulation.scenarios import ENGINE_SCENARIOS, Step
from tests.simulation.simulated_disk import (
    Cut,
    Event,
    Failing,
    Killed,
    Note,
    SimulatedDisk,
    any_choice,
    make_disk,
    nothing_unsynced,
    simulated,
)

#: How a change fails, and whether a write of it is torn.
IN_PROCESS: Final = {
    "kill": ("kill", False),
    "torn": ("kill", True),
    "full": ("full", False),
    "torn-full": ("full", True),
    "io-error": ("error", False),
    "interrupt": ("interrupt", False),
}
POWER: Final = ("power", "reordered")
"""What was not synced is gone; any part of it is."""

LATER_POWER: Final = "kill-power"
"""The process dies; the store is opened again, works and is flushed, and then the power goes."""

FAULTS: Final = (*IN_PROCESS, *POWER, LATER_POWER)
_NEVER: Final = 10**9

World = Bench | Migration


@attrs.frozen
class Case:
    """A fault that strikes a scenario of an engine at one step of its writing."""

    scenario: str
    engine: str
    fault: str
    step: int
    seed: int

    @property
    def command(self) -> str:
        """What repeats it."""
        words = f"{self.scenario} {self.engine} {self.fault} --step {self.step} --seed {self.seed}"
        return f".venv/bin/python -m tests.simulation {words}"

    def rng(self, what: str) -> random.Random:
        """Chance of its own for one part of the case."""
        return random.Random(f"{what} {attrs.astuple(self)}")


@attrs.frozen
class Outcome:
    """What is wrong after a case, and everything that happened."""

    case: Case
    wrong: list[str]
    events: list[Event] = attrs.field(repr=False)
    struck: str
    """The step of the scenario that the fault struck."""

    @property
    def message(self) -> str:
        """What is said of a failure."""
        lines = [f"{self.case.command}  # in: {self.struck}", *self.wrong]
        return "\n  ".join(lines)


def table() -> list[tuple[str, str]]:
    """Every scenario with every engine that takes it."""
    engines = {name: each.engines for name, each in (ENGINE_SCENARIOS | MIGRATIONS).items()}
    return [(name, engine) for name, each in engines.items() for engine in each]


def faults_of(scenario: str) -> tuple[str, ...]:
    """What can happen to it: after a kill of a migration nobody works with the store."""
    return tuple(each for each in FAULTS if each != LATER_POWER or scenario not in MIGRATIONS)


class Simulation:
    """A scenario of an engine by one seed, in a folder of its own: run once without a fault, which
    tells where faults may strike, and then as often as wanted with one.
    """

    def __init__(
        self,
        scenario: str,
        engine: str,
        seed: int,
        folder: Path,
        migrations: Mapping[str, type[Migration]] = MIGRATIONS,
    ) -> None:
        self.scenario, self.engine, self.seed = scenario, engine, seed
        self.folder = folder
        self._migration: Migration | None = None
        if scenario in migrations:
            self._migration = migrations[scenario](engine, folder)
        world, steps = self._begin()
        failing = Failing(_NEVER, "kill")
        self.wrong: list[str] = []
        with watched(world.disk):
            for step in steps:
                self._do(world, step, failing)
                self.wrong += [f"after {step.name}: {each}" for each in world.wrong()]
            world.let_go_at_the_end()
        self.events = world.disk.events
        self._changes = failing.changes
        self._world = world
        notes = [
            number
            for number, event in enumerate(self.events)
            if isinstance(event, Note) and event.facts.get("is_struck")
        ]
        self._struck_from, self._struck_to = notes[0], _end_of_step(self.events, notes[-1])

    def _begin(self) -> tuple[World, list[Step]]:
        rng = random.Random(f"{self.scenario} {self.engine} {self.seed}")
        if self._migration is not None:
            self._migration.reset()
            return self._migration, self._migration.steps(rng)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        scenario = ENGINE_SCENARIOS[self.scenario]
        root = self.folder / "store"
        return Bench(scenario.setup(self.engine), root, SimulatedDisk(root)), scenario.steps(rng)

    def _do(self, world: World, step: Step, failing: Failing) -> None:
        world.at(step.name, is_struck=step.is_struck)
        world.disk.failing = failing if step.is_struck else None
        try:
            step.do(world)  # type: ignore[arg-type]
        finally:
            world.disk.failing = None

    def steps_of(self, fault: str) -> Sequence[int]:
        """Where a fault may strike."""
        if fault in POWER:
            return range(self._struck_to - self._struck_from)
        if fault == "torn":
            return [number for number, (_, part) in enumerate(self._changes) if part is not None]
        if fault in ("kill", "interrupt", LATER_POWER):
            return range(len(self._changes))
        return range(sum(name not in ("unlink", "rmdir") for name, _ in self._changes))

    def run(self, fault: str, step: int) -> Outcome:
        """One case."""
        case = Case(self.scenario, self.engine, fault, step, self.seed)
        try:
            if fault == LATER_POWER:
                return self._run_later_power(case)
            return self._run_power(case) if fault in POWER else self._run_failing(case)
        except Exception as error:
            error.add_note(f"in {case.command}")
            raise

    # --- a change that fails ----------------------------------------------------------------------

    def _run_failing(self, case: Case) -> Outcome:
        how, is_torn = IN_PROCESS[case.fault]
        rng = case.rng("fault")
        # With the third refusal in a row nobody can take back what a torn write left.
        times = {"kill": _NEVER, "interrupt": 1, "error": 1, "full": rng.choice([1, 2])}[how]
        failing = Failing(case.step, how, times, is_torn)
        world, steps = self._begin()
        wrong: list[str] = []
        name, is_dead = "", False
        with watched(world.disk):
            for step in steps:
                failed = failing.failed
                try:
                    self._do(world, step, failing)
                except Killed:
                    is_dead = True
                except KeyboardInterrupt:
                    wrong += world.interrupted(rng)
                except DelayStoreError:
                    if not failing.failed:
                        raise
                    wrong += world.refused(rng, is_new=failing.failed > failed)
                if failing.failed > failed:
                    name = name or step.name
                    failing.times = failing.failed if not failing.is_death else _NEVER
                if is_dead:
                    break
            world.kill()
        wrong += world.wrong_after_a_kill(rng)
        return Outcome(case, wrong, world.disk.events, name)

    # --- a loss of power --------------------------------------------------------------------------

    def _run_power(self, case: Case) -> Outcome:
        rng, moment = case.rng("fault"), self._struck_from + 1 + case.step
        return self._cut_power(case, rng, self._world, self.events, moment)

    def _cut_power(
        self, case: Case, rng: random.Random, world: World, events: list[Event], moment: int
    ) -> Outcome:
        if case.fault == "power" or (case.fault == LATER_POWER and rng.random() < 0.7):
            cut = nothing_unsynced(events, moment, names_too=rng.random() < 0.5)
        else:
            cut = any_choice(events, moment, rng)
        shutil.rmtree(world.root, ignore_errors=True)
        make_disk(events, cut, world.root)
        left = world.after_power(events, moment)
        with _no_waiting():
            wrong = left.wrong_after_power(rng)
        return Outcome(case, wrong, _kept(events, cut), _step_at(events, moment))

    # --- a kill, another life, and then a loss of power -------------------------------------------

    def _run_later_power(self, case: Case) -> Outcome:
        """What the second life flushes was written by the first, in part, and by nobody synced."""
        rng = case.rng("life")
        failing = Failing(case.step, "kill", is_torn=rng.random() < 0.5)
        world, steps = self._begin()
        assert isinstance(world, Bench)
        with watched(world.disk):
            with suppress(Killed):
                for step in steps:
                    self._do(world, step, failing)
            world.kill()
            reopened = len(world.disk.events)
            wrong = world.live_again(rng)
            flushed = world.flushed_at
            wrong += world.left_in_memory(flushed)
            wrong += world.work_on()
            world.kill()
        events = world.disk.events
        later = rng.choice([range(reopened, flushed), range(flushed, len(events) + 1)])
        moment = flushed if rng.random() < 0.5 else rng.choice(later)
        outcome = self._cut_power(case, rng, world, events, moment)
        return attrs.evolve(outcome, wrong=wrong + outcome.wrong)


def _kept(events: Sequence[Event], cut: Cut) -> list[Event]:
    return [event for index, event in enumerate(events[: cut.moment]) if index not in cut.missing]


def _end_of_step(events: Sequence[Event], begin: int) -> int:
    """Where the step ends that begins with this note."""
    for number in range(begin + 1, len(events)):
        event = events[number]
        if isinstance(event, Note) and "is_struck" in event.facts:
            return number
    return len(events)


def _step_at(events: Sequence[Event], moment: int) -> str:
    names = [each.facts["name"] for each in events[:moment]
             if isinstance(each, Note) and "is_struck" in each.facts]  # fmt: skip
    return str(names[-1]) if names else ""


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Syncs are left out: nobody cuts the power again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("os.fsync", "os.fdatasync"):
            patch.setattr(name, lambda _descriptor: None)
        yield


@contextmanager
def watched(disk: SimulatedDisk) -> Iterator[None]:
    """The disk under this process, whose threads work one behind another; and the database of a
    hierarchical wheel, which waits for the disk by itself.
    """
    from timer_wheel.hierarchy.index_db import IndexDb

    def seen(name: str) -> Callable[..., Any]:
        real = getattr(IndexDb, name)

        def call(database: IndexDb, *given: Any, **named: Any) -> Any:
            answer = real(database, *given, **named)
            is_waited_for = name != "write" or len(given) < 3 or given[2] is None
            if is_waited_for and named.get("newest") is None and not named.get("read_only"):
                disk.foreign(database.path)
            return answer

        return call

    with pytest.MonkeyPatch.context() as patch, _no_waiting(), simulated(disk):
        patch.setattr(parallel_map, "core_count", lambda: 1)
        patch.setattr(staging, "_SYNCED_AT_ONCE", 1)
        patch.setattr(time, "perf_counter", lambda: 0.0)  # how long it took is in reports
        numbers = itertools.count()
        patch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
        # RocksDB writes a number of chance into it, of a length that is always the same.
        patch.setattr(manifest, "checksum", lambda _content, _before=0: 0)
        for name in ("__init__", "write"):
            patch.setattr(IndexDb, name, seen(name))
        yield
