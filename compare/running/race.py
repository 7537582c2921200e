# SPDX-License-Identifier: Apache-2.0
"""The race: entrants run the same workload, one after the other, and all are measured alike."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from compare.report.measure import Account, account, first_difference, measure, of_rounds
from compare.report.results import EngineResult, RaceResults
from compare.rocketmq.java_engines import JAVA_ENTRANTS
from compare.running.engine_process import run_in_process
from compare.running.engine_watch import Progress
from compare.running.engines import ENGINES
from compare.running.observation import Observation, RaceSettings
from compare.running.work_files import (
    WORKLOAD_FILE,
    free_bytes,
    prewarm,
    processor_name,
    remove,
    store_bytes,
    write_workload,
)
from compare.workloads.workload import Workload
from message_store.base.clock import SystemClock
from message_store.base.errors import DelayStoreError, SourceError, TargetError
from message_store.base.printable import iso_time


class Entrant(Protocol):
    """Something that takes a workload and leaves a store behind."""

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        """Why it cannot run so on this machine, or None. Fetches what it needs, such as jars."""

    def store_bytes(self, workload: Workload) -> int:
        """How many bytes its store takes on the disk at most."""

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        """Run in a process of its own, with its files at ``store``, where nothing is yet.

        Raises DelayStoreError for what stops the whole race.
        """


@attrs.frozen
class PythonEntrant:
    """One of the engines in Python."""

    name: str

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        """Nothing: it is here."""
        return None

    def store_bytes(self, workload: Workload) -> int:
        """Room for the messages as they wait and as they are delivered."""
        return store_bytes(workload)

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        """In a fresh Python process."""
        return run_in_process(self.name, workload_file, settings, store, progress)


ENTRANTS: dict[str, Entrant] = {**{name: PythonEntrant(name) for name in ENGINES}, **JAVA_ENTRANTS}


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """For whoever does not want to hear how far it is."""


@attrs.frozen(kw_only=True)
class Race:
    """What to run. With ``keeps_stores`` the stores stay in ``directory``.

    ``repeat`` rounds are judged; ``warming`` rounds before them are kept, but not judged. Where
    there are such, memory is warmed before each run of an engine, too.
    """

    workload: Workload
    engines: Sequence[str]
    settings: RaceSettings
    directory: Path
    repeat: int = 1
    warming: int = 0
    keeps_stores: bool = False
    command: str = ""

    @property
    def rounds(self) -> int:
        """How often each engine runs."""
        return self.warming + self.repeat

    @property
    def puts_one_by_one(self) -> bool:
        """RocketMQ's store has no batches of delayed messages: beside it nobody has any."""
        return any(name in JAVA_ENTRANTS for name in self.engines)

    def order(self, number: int) -> Sequence[str]:
        """The engines of a round: each is first once if there are as many rounds."""
        first = number % len(self.engines)
        return (*self.engines[first:], *self.engines[:first])


def run_race(
    race: Race, progress: Progress = no_progress, entrants: Mapping[str, Entrant] = ENTRANTS
) -> RaceResults:
    """Run a race. With several rounds the engines take turns, and turns at going first.

    An entrant that fails is out, and the others go on.

    Raises TargetError where the disk has no room or refuses, SourceError where it cannot be read.
    """
    require_room(race, entrants)
    workload_file, machine = race.directory / WORKLOAD_FILE, machine_facts()
    running = _RunningRace(race, entrants, progress)
    try:
        write_workload(workload_file, race.workload)
        for number in range(race.rounds):
            for name in race.order(number):
                if name not in running.absent:
                    store = race.directory / (name if race.rounds == 1 else f"{name}-{number + 1}")
                    if race.warming:  # each message is stored, and then delivered
                        prewarm(2 * int(race.workload.body_bytes.sum()))
                    running.run(name, workload_file, store)
    finally:
        remove(workload_file)
    return RaceResults(
        workload=race.workload.facts(),
        clock=race.settings.clock,
        engines=running.results_of_all(),
        first_difference=first_difference(
            race.workload,
            running.accounts,
            running.seen,
            with_times=race.settings.clock == "virtual",
        ),
        precision_ms=race.settings.precision_ms,
        machine=machine,
        command=race.command,
        puts_one_by_one=race.puts_one_by_one,
    )


class _RunningRace:
    """All entrants of a race, and what is known of each so far."""

    def __init__(self, race: Race, entrants: Mapping[str, Entrant], progress: Progress) -> None:
        self._race, self._entrants, self._progress = race, entrants, progress
        self._settings = attrs.evolve(
            race.settings,
            level_table=race.workload.level_table(),
            puts_one_by_one=race.puts_one_by_one,
        )
        self.results: dict[str, list[EngineResult]] = {name: [] for name in race.engines}
        self.accounts: dict[str, Account] = {}
        self.seen: dict[str, Observation] = {}
        lacking = {name: entrants[name].lacks(race.settings, progress) for name in race.engines}
        self.absent = {
            name: EngineResult(name=name, unavailable=why) for name, why in lacking.items() if why
        }

    def results_of_all(self) -> tuple[EngineResult, ...]:
        """A result for each entrant."""
        names = self._race.engines
        warming = self._race.warming
        return tuple(
            self.absent.get(name) or of_rounds(self.results[name], warming) for name in names
        )

    def run(self, name: str, workload_file: Path, store: Path) -> None:
        """One round of one entrant. One that fails is out; the others go on without it."""
        race = self._race
        try:
            seen = self._entrants[name].run(workload_file, self._settings, store, self._progress)
        except (TargetError, SourceError):
            raise  # the place is at fault, and would be for the others
        except DelayStoreError as error:
            self.absent[name] = EngineResult(
                name=name, unavailable=f"failed: {error}", has_failed=True
            )
            self.accounts.pop(name, None)
            return
        finally:
            if not race.keeps_stores:
                remove(store)
        self.accounts[name], self.seen[name] = account(race.workload, seen), seen
        self.results[name].append(measure(name, race.workload, seen, self.accounts[name]))


def needed_bytes(race: Race, entrants: Mapping[str, Entrant] = ENTRANTS) -> int:
    """What the stores take on the disk at most: the largest of them, or all where they stay."""
    stores = [entrants[name].store_bytes(race.workload) for name in race.engines]
    return sum(stores) * race.rounds if race.keeps_stores else max(stores, default=0)


def require_room(race: Race, entrants: Mapping[str, Entrant] = ENTRANTS) -> None:
    """Raise TargetError where the stores of a race would not fit."""
    needed, free = needed_bytes(race, entrants), free_bytes(race.directory)
    if needed > free:
        raise TargetError(
            f"{race.directory}: {_mib(needed)} are needed and {_mib(free)} are free; choose another"
            " place with --directory, or fewer messages"
        )


def _mib(length: int) -> str:
    return f"{-(-length >> 20):,} MiB"


def machine_facts() -> dict[str, str]:
    """Where and when the race was run."""
    return {
        "date": iso_time(SystemClock().now_ms()),
        "system": platform.platform(),
        "processor": processor_name() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
