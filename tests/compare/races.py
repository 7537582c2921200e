# SPDX-License-Identifier: Apache-2.0
"""Small races in this process, and engines with a fault planted in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from compare.report.results import RaceResults
from compare.running.engine_process import run_engine
from compare.running.engine_watch import Progress
from compare.running.engines import ENGINES, Engine
from compare.running.observation import Observation, RaceSettings
from compare.running.race import Race, no_progress, run_race
from compare.running.work_files import read_workload, store_bytes
from compare.workloads.made_up import Recipe, make_workload
from compare.workloads.workload import Workload
from message_store.base.clock import Clock
from message_store.format.message import Message
from message_store.interface.delay_store import AtMs, DelayStore, Due, Receipt

EXACT = RaceSettings(tick_ms=1, commit_log_file_bytes=1 << 20)


@attrs.frozen
class Here:
    """An entrant that needs no process of its own."""

    engine: Engine

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        return None

    def store_bytes(self, workload: Workload) -> int:
        return store_bytes(workload)

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        return run_engine(self.engine, read_workload(workload_file), settings, store, progress)


class Absent(Here):
    """One that this machine cannot run."""

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        return "nobody has built it"


def small(name: str, **recipe: Any) -> Workload:
    return make_workload(name, Recipe(**{"messages": 200, "body_bytes": 64, **recipe}))


def race(
    workload: Workload,
    engines: Mapping[str, Engine | Here],
    directory: Path,
    settings: RaceSettings = EXACT,
    **more: Any,
) -> RaceResults:
    entrants = {
        name: engine if isinstance(engine, Here) else Here(engine)
        for name, engine in engines.items()
    }
    wanted = Race(
        workload=workload, engines=list(engines), settings=settings, directory=directory, **more
    )
    return run_race(wanted, no_progress, entrants)


def engines(*names: str) -> dict[str, Engine]:
    return {name: ENGINES[name] for name in names}


def told(receipt: Receipt, topic: str, due_ms: int, promised_ms: int) -> Receipt:
    """A receipt that says something else than what was done."""
    return Receipt(
        unique_key=receipt.unique_key,
        topic=topic,
        due_ms=due_ms,
        promised_ms=promised_ms,
        commit_log_offset=receipt.commit_log_offset,
        broker_name=receipt.broker_name,
    )


class Twisted:
    """A store whose ``schedule`` does something else than it says to one message in ten."""

    def __init__(self, store: DelayStore, fault: str) -> None:
        self._store, self._fault, self._count = store, fault, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def schedule(self, message: Message, due: Due) -> Receipt:
        self._count += 1
        assert isinstance(due, AtMs)
        if self._count % 10:
            return self._store.schedule(message, due)
        if self._fault == "early":
            receipt = self._store.schedule(message, AtMs(0))
            return told(receipt, message.topic, due.due_ms, due.due_ms + 1_000)
        if self._fault == "repeated":
            self._store.schedule(message, due)
            return self._store.schedule(message, due)
        receipt = self._store.schedule(attrs.evolve(message, topic="elsewhere"), due)
        return told(receipt, message.topic, due.due_ms, receipt.promised_ms)


def twisted(name: str, fault: str) -> Engine:
    """An engine that delivers one message in ten "early", "repeated" or, "missing", elsewhere."""
    honest = ENGINES[name]

    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        return cast(DelayStore, Twisted(honest.open_store(path, clock, settings), fault))

    return attrs.evolve(honest, open_store=open_store)
