# SPDX-License-Identifier: Apache-2.0
"""Damage to a cancelled entry brings nothing back that was cancelled, and takes nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from legacy_levels import LevelStore
from message_store import AtLevel, Cancellation, ManualClock, Message, Severity
from message_store.format.queue_unit import QUEUE_UNIT
from tests.faults.damage import copy_store
from tests.legacy_levels.level_stores import Bench, message

COUNT = 4
SIZE_AT, TAGS_CODE_AT = map(QUEUE_UNIT.offset_of, ("size_bytes", "tags_code"))


@pytest.mark.parametrize("cancelled", [{0}, {1}, {COUNT - 1}, {1, 2}])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_zeros_in_a_cancelled_entry_bring_nothing_back(
    tmp_path: Path, how: str, cancelled: set[int]
) -> None:
    """All of its size, or only the last bytes of that."""
    bench = Bench(tmp_path / "store")
    store = bench.open()
    receipts = [store.schedule(message(number), AtLevel(3)) for number in range(COUNT)]
    for number in cancelled:
        assert store.cancel(receipts[number]) is Cancellation.CANCELLED
    if how == "closed":
        store.close()
    else:
        store.flush()
        store.abandon()
    expected = {
        receipts[number].unique_key: b"body %d" % number
        for number in range(COUNT)
        if number not in cancelled
    }
    first = min(cancelled) * QUEUE_UNIT.size
    for begin in range(SIZE_AT, TAGS_CODE_AT):
        other = Bench(tmp_path / f"zero from {begin}")
        copy_store(bench.root, other.root)
        [path] = (other.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir()
        with path.open("r+b") as file:
            file.seek(first + begin)
            file.write(bytes(TAGS_CODE_AT - begin))
        with other.open() as store:
            assert {each.unique_key for each in store.pending()} == {*expected}, begin
            for number in cancelled:
                assert store.cancel(receipts[number]) is Cancellation.CANCELLED
            assert sorted(other.advance(store, 10_000)) == sorted(expected.values()), begin


@pytest.mark.parametrize("cancelled", [0, COUNT - 1])
@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize(
    "bits",
    [
        pytest.param((1, 7, 30, 31), id="some bits"),
        pytest.param(tuple(range(32)), id="every bit", marks=pytest.mark.check),
    ],
)
def test_a_flipped_bit_in_a_cancelled_entry_s_size_brings_nothing_back(
    tmp_path: Path, bits: tuple[int, ...], how: str, cancelled: int
) -> None:
    """The last one then seems to lead behind the log, and is cut: its offset still tells."""
    expected = [b"body %d" % number for number in range(COUNT) if number != cancelled]
    for bit in bits:
        bench = Bench(tmp_path / f"bit {bit}")
        store = bench.open()
        receipts = [store.schedule(message(number), AtLevel(3)) for number in range(COUNT)]
        assert store.cancel(receipts[cancelled]) is Cancellation.CANCELLED
        if how == "closed":
            store.close()
        else:
            store.flush()
            store.abandon()
        [path] = (bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir()
        with path.open("r+b") as file:
            file.seek(cancelled * QUEUE_UNIT.size + SIZE_AT)
            size_bytes = int.from_bytes(file.read(4), "big")
            file.seek(cancelled * QUEUE_UNIT.size + SIZE_AT)
            file.write((size_bytes ^ 1 << bit).to_bytes(4, "big"))
        with bench.open() as store:
            assert sorted(bench.advance(store, 10_000)) == expected, bit


@pytest.mark.parametrize("damage", ["gone", "zeros"])
@pytest.mark.parametrize("ends", ["close", "kill"])
def test_cancels_that_come_back_are_told_of(tmp_path: Path, ends: str, damage: str) -> None:
    """However the store ended: what a flush had synced can only have been damaged."""
    clock = ManualClock(1_793_000_000_000)
    store = LevelStore.open(tmp_path, clock=clock)
    receipts = [store.schedule(Message("orders", b"x"), AtLevel(3)) for _ in range(4)]
    for receipt in receipts[1:3]:
        assert store.cancel(receipt) is Cancellation.CANCELLED
    store.flush()
    store.close() if ends == "close" else store.abandon()
    [queue] = (tmp_path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2").iterdir()
    if damage == "gone":
        shutil.rmtree(queue.parent)
    else:
        with queue.open("r+b") as file:
            file.seek(20)
            file.write(bytes(60))
    with LevelStore.open(tmp_path, clock=clock) as again:
        told = [each for each in again.found_at_opening() if each.severity is not Severity.INFO]
        assert any("cancelled messages" in each.effect for each in told)
        clock.tick(60_000)
        assert len(again.advance(clock.now_ms())) == 4
    with LevelStore.open(tmp_path, clock=clock) as again:
        assert again.found_at_opening() == []
