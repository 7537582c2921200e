# SPDX-License-Identifier: Apache-2.0
"""Who can take part in a race, by name, and how each is run. One table; one line an entrant."""

from pathlib import Path
from typing import Protocol

import attrs

from compare.rocketmq.java_engines import JAVA_ENTRANTS
from compare.running.engine_process import run_in_process
from compare.running.engine_watch import Progress
from compare.running.engines import ENGINES
from compare.running.observation import Observation, RaceSettings
from compare.running.work_files import store_bytes
from compare.workloads.workload import Workload


class Entrant(Protocol):
    """Something that takes a workload and leaves a store behind."""

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        """In one sentence why it cannot run like this, here; None where it can. What has to be
        fetched is fetched now.
        """

    def store_bytes(self, workload: Workload) -> int:
        """What its store takes on the disk at most."""

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        """Run in a process of its own, with its files at ``store``, where nothing is yet.

        ``delivered`` None: it is read from the topics at ``store`` afterwards. Raises
        DelayStoreError for what stops the whole race.
        """


@attrs.frozen
class PythonEntrant:
    """One of the engines in Python."""

    name: str

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        """What the engine needs and is not there."""
        return ENGINES[self.name].lacks()

    def store_bytes(self, workload: Workload) -> int:
        """Room for the messages as they wait and as they are delivered."""
        return store_bytes(workload)

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        """In a fresh Python process."""
        return run_in_process(self.name, workload_file, settings, store, progress)


ENTRANTS: dict[str, Entrant] = {
    **{name: PythonEntrant(name) for name in ENGINES},
    **JAVA_ENTRANTS,
}
