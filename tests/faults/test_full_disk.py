# SPDX-License-Identifier: Apache-2.0
"""On a full disk a store says so, by the project's own error, loses nothing, and goes on once there
is room.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from message_store.errors import DelayStoreError, StoreClosedError
from tests.faults.engines import ENGINES, Engine
from tests.faults.kill_rounds import settle
from tests.faults.kill_worker import Task, Worker, warm_up
from tests.simulation.simulated_disk import SimulatedDisk, full_disk

STEPS = 40
REFUSALS = 3
EVERY = [
    pytest.param(31, id="some"),
    pytest.param(3, id="many", marks=pytest.mark.nightly),
]


def work_on(task: Task, engine: Engine, disk: SimulatedDisk) -> list[DelayStoreError]:
    """So many steps, whatever is refused; a store that refuses though there is room was left in
    doubt by a failed write, and is opened again.
    """
    refused = []
    worker: Worker | None = None
    done = 0
    while done < STEPS or disk.is_full:
        is_full = disk.is_full
        try:
            worker = worker or Worker(task, engine)
            worker.work(steps=1)
        except StoreClosedError:
            worker = None
        except DelayStoreError as error:
            refused.append(error)
            if worker and not is_full and not disk.is_full:
                worker.store.close()
                worker = None
        done += 1
    if worker:
        try:
            worker.store.close()
        except DelayStoreError as error:
            refused.append(error)
    return refused


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize("every", EVERY)
def test_nothing_is_lost_on_a_disk_that_is_full_at_any_change(
    tmp_path: Path, engine: str, is_torn: bool, every: int
) -> None:
    warm_up(ENGINES[engine])
    for full_at in itertools.count(0, every):
        folder = tmp_path / str(full_at)
        folder.mkdir()
        task = Task(engine, str(folder), seed=full_at % 7)
        with full_disk(task.store, full_at, REFUSALS, is_torn=is_torn) as disk:
            refused = work_on(task, ENGINES[engine], disk)
        assert settle(task) == [], task
        if not disk.refused:
            break
        assert len(refused) >= (0 if is_torn else 1)
    assert full_at > 50
