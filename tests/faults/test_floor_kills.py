# SPDX-License-Identifier: Apache-2.0
"""A process that is killed while it appends: nothing that it was told is stored is lost or torn."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from message_store.writing.store import LiveStore
from tests.faults.floor_kill_worker import SETTINGS, message
from tests.message_store.live_workload import require_sound

ROOT = Path(__file__).parent.parent.parent


def killed_after(path: Path, first: int, chance: random.Random) -> int:
    """Let a process append, and kill it at some moment; returns the number it said last."""
    command = [sys.executable, "-m", "tests.faults.floor_kill_worker", str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline()
        time.sleep(chance.random() * 0.2)
        worker.kill()
        last = worker.stdout.read().splitlines()
        assert worker.wait(timeout=60) == -9
    whole = [line for line in last if line.isdecimal()]
    return int(whole[-1]) if whole else first


@pytest.mark.parametrize(
    "rounds",
    [1, pytest.param(4, marks=pytest.mark.check), pytest.param(40, marks=pytest.mark.nightly)],
)
def test_nothing_acknowledged_is_lost_however_often_it_is_killed(
    tmp_path: Path, rounds: int
) -> None:
    chance = random.Random(rounds)
    path, stored = tmp_path / "store", 0
    for _ in range(rounds):
        said = killed_after(path, stored, chance)
        store = LiveStore.open(path, settings=SETTINGS)
        assert not store.was_clean
        bodies = require_sound(store)
        assert len(bodies) >= said
        assert bodies == [message(number).body for number in range(len(bodies))]
        stored = len(bodies)
        store.close() if chance.random() < 0.5 else store.abandon()
