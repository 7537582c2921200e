# SPDX-License-Identifier: Apache-2.0
"""One history of groups, with each fault at changes of the disk: what was acknowledged stays so,
and everything else is received.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from message_store.writing.settings import StoreSettings
from tests.helpers.tiers import POSITIONS, positions
from tests.simulation.draws import ENGINES, FAULTS, INDEX, Strike
from tests.simulation.failed_once import FAILED_ONCE_IN_GROUPS
from tests.simulation.group_account import GroupAccount
from tests.simulation.group_run import GroupRun
from tests.simulation.random_runs import run_seed
from tests.simulation.world import DAY_MS, Owner, World

Action = Callable[[random.Random], None]
_NEVER = 10**9


class History(GroupRun):
    """Always the same steps, from a seed; a fault waits for its change however long that takes."""

    patience = _NEVER

    def __init__(self, engine: str, folder: Path, strike: Strike) -> None:
        super().__init__(7, folder)
        self.world.end()
        settings = StoreSettings(
            commit_log_file_bytes=16 << 10, queue_file_bytes=50 * 20, retention_ms=300 * DAY_MS
        )
        self.world = World(Owner(engine, settings), folder)
        self.accounts = [
            GroupAccount("billing", 1, is_ordered=False),
            GroupAccount("mailing", 16, is_ordered=True),
        ]
        self._script: list[Action] = [
            *(self._batch, self._schedule, self._time, self._receive, self._ack, self._retry),
            *(self._flush, self._receive, self._reject, self._retry, self._ack, self._time),
            *(self._redrive, self._seek, self._receive, self._settle_old_hands, self._flush),
            *(self._retry, self._retry, self._reopen_orderly, self._receive, self._ack),
        ]
        self.count, self._looks = len(self._script), 0.0
        self._strikes = {3: strike}
        self.changes = 0

    def _actions(self) -> list[tuple[Action, float]]:
        return [(self._script[self._number], 1.0)]

    def _step(self, number: int) -> None:
        self._number = number
        super()._step(number)
        if self._failing is not None:
            self.changes = self._failing.done


def assert_survives(engine: str, fault: str, folder: Path, count: int | None) -> None:
    """Let the fault strike so many changes of the history, or all."""
    whole = History(engine, folder, Strike(fault, _NEVER))
    outcome = whole.run()
    assert not outcome.wrong, outcome.trace
    assert whole.changes > 20
    for change in positions(whole.changes, count, 1):
        outcome = History(engine, folder, Strike(fault, change)).run()
        assert not outcome.wrong, (change, outcome.trace)


@pytest.mark.parametrize(
    ("engine", "fault"), [("levels", "kill"), ("wheel", "power"), ("time-index", "full")]
)
def test_a_fault_in_a_history_of_groups(tmp_path: Path, engine: str, fault: str) -> None:
    assert_survives(engine, fault, tmp_path / "run", POSITIONS["test"])


@pytest.mark.check
@pytest.mark.parametrize("engine", [*ENGINES, INDEX])
@pytest.mark.parametrize("fault", FAULTS)
def test_more_faults_in_a_history_of_groups(tmp_path: Path, engine: str, fault: str) -> None:
    assert_survives(engine, fault, tmp_path / "run", POSITIONS["check"])


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [*ENGINES, INDEX])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_at_each_change_of_a_history_of_groups(
    tmp_path: Path, engine: str, fault: str
) -> None:
    assert_survives(engine, fault, tmp_path / "run", POSITIONS["nightly"])


@pytest.mark.check
@pytest.mark.parametrize("seed", FAILED_ONCE_IN_GROUPS.values(), ids=FAILED_ONCE_IN_GROUPS)
def test_a_run_of_groups_that_failed_once_is_sound(tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, tmp_path / "run", focus="groups")
    assert not outcome.wrong, outcome.trace
