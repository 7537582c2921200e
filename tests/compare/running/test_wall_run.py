# SPDX-License-Identifier: Apache-2.0
"""Races on the wall clock: lateness is real, and who makes others wait pays for all of them."""

from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np
import pytest

from compare.report.measure import account, measure
from compare.running.engine_process import run_engine
from compare.running.engines import ENGINES
from compare.running.observation import RaceSettings
from compare.running.race import no_progress
from compare.workloads.workload import Workload
from message_store.base.clock import Clock, SystemClock
from message_store.columns.byte_column import Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message
from message_store.interface.delay_store import BatchReceipt, DelayStore, Due, Receipt
from tests.compare.races import engines, race, small

WALL = RaceSettings(clock="wall", precision_ms=100, commit_log_file_bytes=1 << 20)
STALL_MS = 400


@pytest.mark.parametrize("name", ["wheel", "memory"])
def test_everything_comes_once_and_not_early(tmp_path: Path, name: str) -> None:
    workload = small(
        "uniform", messages=60, rate_per_second=300.0, delay_min_ms=1, delay_max_ms=300
    )
    [result] = race(workload, engines(name), tmp_path, WALL).engines
    assert (result.delivered, result.is_right) == (60, True)
    assert result.lateness_ms is not None
    assert result.lateness_ms.p50 >= 0
    assert result.cpu_percent >= 0  # counted in ticks of 10 ms: a race this small may take none
    assert result.usage.at_ms


def begun_before(workload: Workload, waiting: int, before_ms: int) -> Workload:
    """The first so many of its messages arrive so long before its start."""
    is_waiting = np.arange(len(workload)) < waiting
    return attrs.evolve(workload, arrival_ms=workload.arrival_ms - before_ms * is_waiting)


class Noting:
    """A store that notes when messages come, and how many at once."""

    def __init__(self, store: DelayStore, came: list[tuple[int, int]]) -> None:
        self._store, self._came = store, came

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def schedule(self, message: Message, due: Due) -> Receipt:
        self._came.append((1, SystemClock().now_ms()))
        return self._store.schedule(message, due)

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s) -> BatchReceipt:
        self._came.append((len(batch), SystemClock().now_ms()))
        return self._store.schedule_batch(batch, due_ms)


def test_what_arrives_before_the_start_waits_when_time_begins_to_count(tmp_path: Path) -> None:
    came: list[tuple[int, int]] = []
    honest = ENGINES["wheel"]

    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        return cast(DelayStore, Noting(honest.open_store(path, clock, settings), came))

    made = small("uniform", messages=60, rate_per_second=300.0, delay_min_ms=1, delay_max_ms=300)
    workload = begun_before(made, 40, before_ms=700)
    one_by_one = attrs.evolve(WALL, puts_one_by_one=True)
    engine = attrs.evolve(honest, open_store=open_store)
    seen = run_engine(engine, workload, one_by_one, tmp_path / "store", no_progress)
    assert [count for count, _ms in came] == [40, *[1] * 20]
    assert seen.start_ms <= came[1][1]
    figures = measure("wheel", workload, seen, account(workload, seen))
    assert (figures.delivered, figures.is_right) == (60, True)
    costs = seen.costs
    assert 0 < costs.longest_put_s <= costs.last_put_s <= costs.elapsed_s


def test_a_race_may_end_with_the_last_message_put(tmp_path: Path) -> None:
    hours = {"delay_min_ms": 3_600_000, "delay_max_ms": 7_200_000}
    workload = small("uniform", messages=60, rate_per_second=300.0, **hours)
    settings = attrs.evolve(WALL, leaves_pending=True)
    [result] = race(workload, engines("wheel"), tmp_path, settings).engines
    assert (result.taken, result.delivered, result.missing, result.early) == (60, 0, 60, 0)


class Stalling:
    """A store that stands still once, when the 10th message is put."""

    def __init__(self, store: DelayStore) -> None:
        self._store, self._count = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def schedule(self, message: Message, due: Due) -> Receipt:
        self._count += 1
        if self._count == 10:
            SystemClock().sleep_ms(STALL_MS)
        return self._store.schedule(message, due)


def test_who_makes_the_producer_wait_is_late_with_every_message_that_waited(
    tmp_path: Path,
) -> None:
    honest = ENGINES["memory"]

    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        return cast(DelayStore, Stalling(honest.open_store(path, clock, settings)))

    # One in 20 ms, each due a millisecond later: some twenty should have come while it stood still.
    workload = small("uniform", messages=40, rate_per_second=50.0, delay_min_ms=1, delay_max_ms=1)
    stalling = {"stalling": attrs.evolve(honest, open_store=open_store)}
    [result] = race(workload, stalling, tmp_path, WALL).engines
    assert result.lateness_ms is not None
    curve = result.lateness_curve
    in_time = max(
        (
            share
            for share, late_ms in zip(curve.fractions, curve.late_ms, strict=True)
            if late_ms <= STALL_MS / 4
        ),
        default=0.0,  # on a machine that has other things to do, all may be late
    )
    assert result.lateness_ms.max >= STALL_MS - 1
    assert in_time < 0.8  # not only the one in hand is late
    assert result.is_right


def test_an_error_in_a_thread_ends_the_race(tmp_path: Path) -> None:
    honest = ENGINES["memory"]

    class Broken(Stalling):
        def schedule(self, message: Message, due: Due) -> Receipt:
            raise RuntimeError("broken")

    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        return cast(DelayStore, Broken(honest.open_store(path, clock, settings)))

    broken = {"broken": attrs.evolve(honest, open_store=open_store)}
    with pytest.raises(RuntimeError, match="broken"):
        race(small("burst", messages=2), broken, tmp_path, WALL)
