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
from message_store import AfterMs, ManualClock, Message
from message_store.format.queue_unit import QUEUE_UNIT
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


@pytest.mark.parametrize(
    ("lost", "count"), [*zip(LOST, (21, 71, 11), strict=True), ("the queue", WAITING)]
)
def test_a_first_opening_makes_again_what_a_broker_s_queue_lost(
    tmp_path: Path, lost: str, count: int
) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS + 61_500)
    backlog_of(path, (LOST | {"the queue": shutil.rmtree})[lost])
    with open_levels(path, clock) as store:
        assert len(list(store.pending())) == WAITING
        [told] = [each for each in store.check() if each.where == "consumequeue"]
        assert told.problem.startswith(f"{count} entries were missing or damaged")
    with open_levels(path, clock) as store:
        assert len(list(store.pending())) == WAITING
        assert store.check() == []
