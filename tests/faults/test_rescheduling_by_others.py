# SPDX-License-Identifier: Apache-2.0
"""A level store that was killed between the two steps of a reschedule, in the hands of others: one
who reads it, one who converts it, and another engine.
"""

from pathlib import Path

import pytest

from legacy_levels import LevelStore
from legacy_levels.backlog.backlog import read_backlog
from message_store import AtMs, ManualClock, Message, Pending
from message_store.base.errors import OtherEngineWarning, SourceError, TargetError
from message_store.intake import rescheduling
from message_store.writing.settings import StoreSettings
from migrate.look.pending import pending_messages
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.timers import store as timers

START_MS = 1_793_000_000_437
OLD_MS, NEW_MS = START_MS + 60_000, START_MS + 120_000
SMALL = StoreSettings(commit_log_file_bytes=1 << 14, queue_file_bytes=20 * 50)
WANTED = [("B", OLD_MS), ("A", NEW_MS)]


class _Killed(BaseException):
    pass


def _kill(*_: object) -> None:
    raise _Killed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    store = LevelStore.open(root, clock=ManualClock(START_MS), settings=SMALL)
    receipt, _ = (store.schedule(Message("orders", b"", unique_key=k), AtMs(OLD_MS)) for k in "AB")
    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(LevelStore, "_neutralise_waiting", _kill)
        with pytest.raises(_Killed):
            store.reschedule(receipt, AtMs(NEW_MS))
    store.abandon()
    return root


def contents(root: Path) -> dict[str, bytes]:
    files = [each for each in root.rglob("*") if each.is_file() and each.name != "lock"]
    return {str(each.relative_to(root)): each.read_bytes() for each in files}


def test_who_only_reads_it_finds_each_message_once(root: Path) -> None:
    found = [each for each in pending_messages(root, now_ms=START_MS) if isinstance(each, Pending)]
    assert [(each.unique_key, each.due_ms) for each in found] == WANTED
    assert sorted(read_backlog(root, after_crash=True).due_ms.tolist()) == [OLD_MS, NEW_MS]


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore, TimeIndexStore])
def test_another_engine_leaves_it_to_the_one_that_did_it(
    root: Path, engine: type[WheelStore | HierarchicalWheelStore | TimeIndexStore]
) -> None:
    clock = ManualClock(START_MS)
    before = contents(root)
    for _ in range(2):  # the second finds nothing of the first's still open
        with pytest.raises(SourceError, match="SCHEDULE_TOPIC_XXXX was rescheduled"):
            engine.open(root, clock=clock, settings=SMALL)
        assert contents(root) == before
    with LevelStore.open(root, clock=clock, settings=SMALL) as store:
        assert [(each.unique_key, each.due_ms) for each in store.pending()] == WANTED
    with pytest.warns(OtherEngineWarning):
        engine.open(root, clock=clock, settings=SMALL).close()


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore, TimeIndexStore])
def test_what_was_finished_before_another_engine_came_is_no_reason_to_refuse_it_when_it_is_killed(
    root: Path, engine: type[WheelStore | HierarchicalWheelStore | TimeIndexStore]
) -> None:
    clock = ManualClock(START_MS)
    LevelStore.open(root, clock=clock, settings=SMALL).close()
    for _ in range(2):
        with pytest.warns(OtherEngineWarning):
            engine.open(root, clock=clock, settings=SMALL).abandon()
    with LevelStore.open(root, clock=clock, settings=SMALL) as store:
        assert [(each.unique_key, each.due_ms) for each in store.pending()] == WANTED


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
def test_a_wheel_that_cannot_finish_it_lets_go_of_its_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: type[WheelStore | HierarchicalWheelStore],
) -> None:
    def refuse(*_: object) -> None:
        raise TargetError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(timers, rescheduling.finish_rescheduling.__name__, refuse)
        with pytest.raises(TargetError):
            engine.open(tmp_path / "store")
    engine.open(tmp_path / "store").close()
