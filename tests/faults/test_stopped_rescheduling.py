# SPDX-License-Identifier: Apache-2.0
"""A message that is rescheduled while the process dies, the disk refuses or the power goes, at each
change of the disk: it waits for its old time or for its new one, and comes once.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from message_store import AtMs, DelayStore, ManualClock, Message, Receipt, Severity
from message_store.base.errors import DelayStoreError
from message_store.writing.settings import StoreSettings
from tests.faults.broker_view import look_as_a_broker
from tests.helpers.tiers import with_examples
from tests.simulation.bench import START_MS, Bench, Setup
from tests.simulation.cases import watched
from tests.simulation.simulated_disk import (
    Failing,
    Killed,
    SimulatedDisk,
    any_choice,
    make_disk,
    nothing_unsynced,
)

ENGINES = ("levels", "wheel", "hierarchy", "time-index")
OLD_MS, NEW_MS = START_MS + 60_000, START_MS + 120_000
FAR_MS = START_MS + 86_400_000
SETTINGS = StoreSettings(
    commit_log_file_bytes=16 << 10, queue_file_bytes=50 * 20, timer_log_file_bytes=6 * 52 + 30
)
BODIES = {"within a page": 10, "across pages": 4_000}


def message(name: str, body_bytes: int) -> Message:
    return Message("orders", b"x" * body_bytes, unique_key=name)


def open_with_messages(engine: str, disk: SimulatedDisk, body_bytes: int) -> tuple[Bench, Receipt]:
    """A store with the message that will move and one that will not, flushed."""
    bench = Bench(Setup(engine, SETTINGS), Path(disk.root), disk)
    bench.open()
    receipt = bench.store.schedule(message("A", body_bytes), AtMs(OLD_MS))
    bench.store.schedule(message("B", body_bytes), AtMs(OLD_MS))
    bench.store.flush()
    return bench, receipt


def assert_comes_once(engine: str, root: Path, *, may_be_old: bool = True) -> None:
    clock = ManualClock(START_MS)
    store: DelayStore = Setup(engine, SETTINGS).open(root, clock)
    found = sorted((each.unique_key or "", each.due_ms) for each in store.pending())
    times = [due_ms for key, due_ms in found if key == "A"]
    assert len(times) == 1, found
    assert times[0] == NEW_MS or (may_be_old and times[0] == OLD_MS), found
    assert ("B", OLD_MS) in found
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    store.close()
    store = Setup(engine, SETTINGS).open(root, clock)
    came = [
        (each.message.unique_key, now_ms)
        for now_ms in (OLD_MS - 1, OLD_MS, NEW_MS - 1, NEW_MS, FAR_MS)
        for each in store.advance(now_ms)
        if each.message.unique_key != "C"
    ]
    assert sorted(came) == sorted([("A", times[0]), ("B", OLD_MS)])
    store.close()


def cases() -> Iterator[tuple[str, str, str, bool]]:
    for engine in ENGINES:
        for body in BODIES:
            yield engine, body, "kill", False
        yield engine, "across pages", "kill", True
        yield engine, "across pages", "full", True
        yield engine, "within a page", "error", False


@pytest.mark.parametrize(
    ("engine", "body", "how", "is_torn"),
    with_examples([*cases()], [(engine, "within a page", "kill", False) for engine in ENGINES]),
)
def test_a_stop_at_each_change_of_the_disk(
    tmp_path: Path, engine: str, body: str, how: str, is_torn: bool
) -> None:
    at, did_fail = 0, True
    while did_fail:
        root = tmp_path / "case" / "store"
        shutil.rmtree(root.parent, ignore_errors=True)
        root.parent.mkdir()
        disk_is_dead = False
        disk = SimulatedDisk(root)
        with watched(disk):
            bench, receipt = open_with_messages(engine, disk, BODIES[body])
            failing = disk.failing = Failing(at, how, is_torn=is_torn)
            try:
                bench.store.reschedule(receipt, AtMs(NEW_MS))
            except Killed:
                disk_is_dead = True
            except DelayStoreError:
                assert how != "kill"
            if not disk_is_dead:
                disk.failing = None
            bench.kill()
            disk.failing = None
        did_fail = failing.failed > 0
        if engine == "wheel" and disk_is_dead:
            view = look_as_a_broker(root, START_MS, recovers_queues=True)
            assert (Counter(view.keys), view.wrong) == (Counter("AB"), [])
        assert_comes_once(engine, root, may_be_old=did_fail)
        at += 1
    assert at > 1


@pytest.mark.check
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("body", BODIES)
def test_a_loss_of_power_at_each_change_of_the_disk(tmp_path: Path, engine: str, body: str) -> None:
    root = tmp_path / "case" / "store"
    root.parent.mkdir()
    disk = SimulatedDisk(root)
    with watched(disk):
        bench, receipt = open_with_messages(engine, disk, BODIES[body])
        begin = len(disk.events)
        bench.store.reschedule(receipt, AtMs(NEW_MS))
        bench.store.schedule(message("C", 10), AtMs(NEW_MS + 60_000))
        bench.store.flush()
        bench.kill()
    rng = random.Random(1)
    for moment in range(begin + 1, len(disk.events) + 1):
        cuts = [nothing_unsynced(disk.events, moment, names_too=each) for each in (False, True)]
        cuts += [any_choice(disk.events, moment, rng) for _ in range(6)]
        for cut in cuts:
            left = tmp_path / "left"
            shutil.rmtree(left, ignore_errors=True)
            make_disk(disk.events, cut, left)
            assert_comes_once(engine, left)
