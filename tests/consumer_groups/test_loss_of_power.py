# SPDX-License-Identifier: Apache-2.0
"""What a loss of power leaves of what a group settled, on a disk that keeps or loses each file's
writes that nobody waited for, in every combination.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from consumer_groups import ConsumerGroup, Received
from message_store import ManualClock
from tests.consumer_groups.group_bench import START_MS, GroupBench
from tests.faults.engines import abandon
from tests.simulation.simulated_disk import (
    Cut,
    Event,
    Resize,
    SimulatedDisk,
    Write,
    loose,
    make_disk,
    recording,
)

ENGINES = pytest.mark.parametrize("engine", ["levels", "wheel", "time-index"])
CALLS = pytest.mark.parametrize("call", ["ack", "retry", "reject"])

ITSELF, AGAIN, GONE = (1, 0), (0, 1), (0, 0)
"""How often the message is there as itself, and as what the group stored for it."""


def cuts(events: Sequence[Event], moment: int) -> Iterator[Cut]:
    """Each choice of files to lose."""
    files: dict[int, set[int]] = {}
    for index in loose(events, moment).data:
        event = events[index]
        assert isinstance(event, Write | Resize)
        files.setdefault(event.file, set()).add(index)
    for count in range(len(files) + 1):
        for gone in combinations(files.values(), count):
            yield Cut(moment, frozenset[int]().union(*gone))


def settled(engine: str, root: Path, call: str, *, sync: bool) -> tuple[SimulatedDisk, int]:
    """A disk on which one message was settled, and how many changes it had before."""
    with recording(root) as disk:
        bench = GroupBench(engine, root)
        bench.deliver("a")
        group = bench.group(sync=sync)
        [message] = group.receive("orders")
        bench.store.flush()
        before = len(disk.events)
        settle(group, message, call)
        disk.pause()
        abandon(bench.store)
    return disk, before


def settle(group: ConsumerGroup, message: Received, call: str) -> None:
    getattr(group, call)(message)


def left(engine: str, root: Path, events: Sequence[Event], cut: Cut) -> tuple[int, int]:
    """Where the message is after the loss of power."""
    shutil.rmtree(root, ignore_errors=True)
    make_disk(events, cut, root)
    bench = GroupBench(engine, root, ManualClock(START_MS))
    group = bench.group()
    itself = len(group.receive("orders"))
    bench.wait(20_000)
    again = len(group.receive("orders")) + len(list(group.dead_letters()))
    bench.store.close()
    return itself, again


@ENGINES
@CALLS
def test_without_sync_a_message_is_never_lost_and_may_come_twice(
    tmp_path: Path, engine: str, call: str
) -> None:
    disk, _ = settled(engine, tmp_path / "store", call, sync=False)
    moment = len(disk.events)
    found = {left(engine, tmp_path / "left", disk.events, c) for c in cuts(disk.events, moment)}
    if call == "ack":
        assert found == {ITSELF, GONE}
    else:
        assert found == {ITSELF, AGAIN, (1, 1)}


@ENGINES
@CALLS
def test_with_sync_a_message_that_was_settled_stays_so(
    tmp_path: Path, engine: str, call: str
) -> None:
    disk, _ = settled(engine, tmp_path / "store", call, sync=True)
    moment = len(disk.events)
    found = {left(engine, tmp_path / "left", disk.events, c) for c in cuts(disk.events, moment)}
    assert found == {GONE if call == "ack" else AGAIN}


@pytest.mark.check
@ENGINES
@CALLS
def test_with_sync_a_message_is_there_once_while_the_call_waits_for_the_disk(
    tmp_path: Path, engine: str, call: str
) -> None:
    disk, before = settled(engine, tmp_path / "store", call, sync=True)
    for moment in range(before, len(disk.events)):
        found = {left(engine, tmp_path / "left", disk.events, c) for c in cuts(disk.events, moment)}
        assert found <= {ITSELF, GONE if call == "ack" else AGAIN}, moment
