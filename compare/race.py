# SPDX-License-Identifier: Apache-2.0
"""The race: entrants run the same workload, one after the other, and all are measured alike."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from compare.delivered_topics import read_delivered
from compare.differences import first_difference
from compare.engine_watch import Progress
from compare.entrants import ENTRANTS, Entrant
from compare.measure import Account, account, measure, of_rounds
from compare.observation import Observation, RaceSettings
from compare.results import EngineResult, RaceResults
from compare.work_files import WORKLOAD_FILE, free_bytes, remove, write_workload
from compare.workload import Workload
from message_store.errors import TargetError

_RECORD_BESIDES_BODY_BYTES = 350
_BESIDES_BYTES = 20 + 20 + 53
_STORE_BYTES = 256 << 20


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """For whoever does not want to hear how far it is."""


@attrs.frozen(kw_only=True)
class Race:
    """What to run. With ``keeps_stores`` the stores stay in ``directory``."""

    workload: Workload
    engines: Sequence[str]
    settings: RaceSettings
    directory: Path
    repeat: int = 1
    keeps_stores: bool = False
    command: str = ""


def run_race(
    race: Race,
    progress: Progress = no_progress,
    entrants: Mapping[str, Entrant] = ENTRANTS,
) -> RaceResults:
    """Run it. With several rounds the engines take turns.

    Raises TargetError where the disk has no room, and what an entrant raises.
    """
    require_room(race)
    workload_file = race.directory / WORKLOAD_FILE
    write_workload(workload_file, race.workload)
    lacking = {name: entrants[name].lacks(race.settings) for name in race.engines}
    results: dict[str, list[EngineResult]] = {name: [] for name in race.engines}
    accounts: dict[str, Account] = {}
    observations: dict[str, Observation] = {}
    for number in range(race.repeat):
        for name in race.engines:
            if lacking[name] is not None:
                continue
            store = race.directory / (name if race.repeat == 1 else f"{name}-{number + 1}")
            seen = entrants[name].run(workload_file, race.settings, store, progress)
            progress(f"{name}: reading what was delivered", 0, 0)
            seen = _with_deliveries(seen, store, race.workload)
            accounts[name], observations[name] = account(race.workload, seen), seen
            results[name].append(measure(name, race.workload, seen, accounts[name]))
            if not race.keeps_stores:
                remove(store)
    return RaceResults(
        workload=race.workload.facts(),
        clock=race.settings.clock,
        engines=tuple(
            EngineResult(name=name, unavailable=why) if why else of_rounds(results[name])
            for name, why in lacking.items()
        ),
        first_difference=first_difference(race.workload, accounts, observations),
        precision_ms=race.settings.precision_ms,
        machine=machine_facts(),
        command=race.command,
    )


def _with_deliveries(seen: Observation, store: Path, workload: Workload) -> Observation:
    if seen.delivered is not None:
        return seen
    return attrs.evolve(seen, delivered=read_delivered(store, workload.topics))


def needed_bytes(race: Race) -> int:
    """What the stores take on the disk at most: each message twice, and what belongs to it."""
    sizes = race.workload.body_bytes
    each = 2 * (int(sizes.sum()) + len(sizes) * _RECORD_BESIDES_BODY_BYTES)
    # A log file is allocated as a whole, and the next one ahead.
    one = (
        each + len(sizes) * _BESIDES_BYTES + _STORE_BYTES + 2 * race.settings.commit_log_file_bytes
    )
    return one * (len(race.engines) * race.repeat if race.keeps_stores else 1)


def require_room(race: Race) -> None:
    """Raise TargetError where the stores of a race would not fit."""
    needed, free = needed_bytes(race), free_bytes(race.directory)
    if needed > free:
        raise TargetError(
            f"{race.directory}: {needed / 2**30:,.1f} GiB are needed and {free / 2**30:,.1f} GiB"
            " are free; choose another place with --directory, or fewer messages"
        )


def machine_facts() -> dict[str, str]:
    """Where the race was run."""
    return {
        "system": platform.platform(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
