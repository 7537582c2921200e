# SPDX-License-Identifier: Apache-2.0
"""A level's queue that lost entries, of a store without notes of ours: what waits is found in the
log, or told, and never counted as delivered.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from legacy_levels.backlog.lost_queues import gone_queues
from message_store import AfterMs, ManualClock, Message
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.writing.losses import StoreEnds
from tests.faults.engines import open_levels

START_MS = 1_793_000_000_000
WAITING = 321
QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX/17"


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def backlog_of(path: Path, harm: Callable[[Path], None]) -> LevelBacklog:
    """What waits in a store whose first record, at 0, was delivered, after this was done to its
    longest level's queue.
    """
    clock = ManualClock(START_MS)
    with open_levels(path, clock) as store:
        store.schedule(Message("orders", b"first"), AfterMs(60_000))
        for number in range(WAITING):
            store.schedule(Message("orders", b"%d" % number), AfterMs(7_200_000))
        clock.tick(61_500)
        assert len(store.advance(clock.now_ms())) == 1
    shutil.rmtree(path / "delaywheel")
    harm(path / QUEUE)
    return read_backlog(path)


def last_of(queue: Path) -> Path:
    return max(queue.iterdir())


@pytest.mark.parametrize("first", [60, 70])
def test_entries_that_hold_nothing_were_not_delivered(tmp_path: Path, first: int) -> None:
    """They look as if they led to the record at 0, which was."""

    def harm(queue: Path) -> None:
        middle = sorted(queue.iterdir())[1]
        overwrite(middle, (first - 50) * QUEUE_UNIT.size, bytes(5 * QUEUE_UNIT.size))

    backlog = backlog_of(tmp_path / "store", harm)
    assert (backlog.total("already_delivered"), backlog.total("pending")) == (0, WAITING)


def lose_two_files(queue: Path) -> None:
    for each in sorted(queue.iterdir())[-2:]:
        each.unlink()


LOST: dict[str, Callable[[Path], None]] = {
    "the last file": lambda queue: last_of(queue).unlink(),
    "two files": lose_two_files,
    "the last entries": lambda queue: overwrite(
        last_of(queue), 10 * QUEUE_UNIT.size, bytes(11 * QUEUE_UNIT.size)
    ),
}


@pytest.mark.parametrize("lost", LOST)
def test_what_a_queue_lost_at_its_end_comes_from_the_log(tmp_path: Path, lost: str) -> None:
    backlog = backlog_of(tmp_path / "store", LOST[lost])
    assert backlog.total("pending") == WAITING
    assert backlog.total("not_in_queue") == {"the last file": 21, "two files": 71}.get(lost, 11)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("lost", "count"), [*zip(LOST, (21, 71, 11), strict=True), ("the queue", WAITING)]
)
def test_an_opening_makes_again_what_a_broker_s_queue_lost(
    tmp_path: Path, lost: str, count: int, is_first: bool
) -> None:
    """Also where the broker was not the first: our note is of a shorter log."""
    path, clock = tmp_path / "store", ManualClock(START_MS + 61_500)
    backlog_of(path, (LOST | {"the queue": shutil.rmtree})[lost])
    if not is_first:
        StoreEnds(1_000, {}, {}).write(StoreRoot(path))
    with open_levels(path, clock) as store:
        assert len(list(store.pending())) == WAITING
        [told] = [each for each in store.check() if each.where == "consumequeue"]
        assert told.problem.startswith(f"{count} entries were missing or damaged")
    with open_levels(path, clock) as store:
        assert len(list(store.pending())) == WAITING
        assert store.check() == []


def test_a_queue_that_holds_nothing_is_told_as_one_that_is_gone(tmp_path: Path) -> None:
    def harm(queue: Path) -> None:
        for each in queue.iterdir():
            each.write_bytes(bytes(each.stat().st_size))

    backlog_of(tmp_path / "store", harm)
    [gone] = gone_queues(StoreRoot(tmp_path / "store"))
    assert str(gone).endswith("level 18 has no entry, where the log has records of it")


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_queue_that_is_gone_comes_back_only_where_it_is_known_to_have_been_there(
    tmp_path: Path, is_noted: bool
) -> None:
    """Else its topic may have been deleted: its records stay in the log."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    with open_levels(path, clock) as store:
        for name in ("orders", "others", "orders"):
            store.schedule(Message(name, b"x"), AfterMs(1_000))
        clock.tick(2_500)
        assert len(store.advance(clock.now_ms())) == 3
    if not is_noted:
        shutil.rmtree(path / "delaywheel")
    shutil.rmtree(path / "consumequeue" / "others")
    with open_levels(path, clock) as store:
        assert store.topic("others").ranges() == ({0: (0, 1)} if is_noted else {})
        assert store.topic("orders").ranges() == {0: (0, 2)}
        assert (store.check() == []) is not is_noted
