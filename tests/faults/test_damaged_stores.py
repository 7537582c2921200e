# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with a file, a store is no danger: it raises the project's own errors or works,
``check`` raises nothing, and nobody's process ends. What was removed does not go unnoticed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message
from tests.faults.damage import Damage, copy_store
from tests.faults.engines import ENGINES, abandon
from tests.faults.fuzz_worker import HALF_MS, Outcome, build, exercise
from tests.faults.harm_rounds import harm_rounds

DUE = AfterMs(60_000)
REMOVING = ("cut", "empty", "gone")

SEEDS = [
    pytest.param("damages", range(1), id="1 damage"),
    pytest.param("damages", range(15), id="15 damages", marks=pytest.mark.check),
    pytest.param("lies", range(15), id="15 lies", marks=pytest.mark.check),
    pytest.param("damages", range(1_000, 1_100), id="100 damages", marks=pytest.mark.nightly),
    pytest.param("lies", range(1_000, 1_100), id="100 lies", marks=pytest.mark.nightly),
]


def damaged(
    harm: str, engine: str, pristine: Path, seeds: range
) -> list[tuple[int, Damage, Outcome]]:
    """What came of a copy of the store for each seed."""
    rounds = harm_rounds(harm, engine, pristine, seeds, module="tests.faults.fuzz_worker")
    return [(seed, damage, Outcome(**came)) for seed, damage, came in rounds]


@pytest.mark.parametrize("end", [pytest.param("closed", marks=pytest.mark.check), "killed"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("harm", "seeds"), SEEDS)
def test_a_damaged_file_brings_nothing_down(
    tmp_path: Path, engine: str, end: str, harm: str, seeds: range
) -> None:
    pristine = tmp_path / "store"
    build(ENGINES[engine], pristine, end)
    copy_store(pristine, tmp_path / "right")
    right = exercise(ENGINES[engine], tmp_path / "right")
    assert attrs.evolve(right, delivered={}) == Outcome({}, [], [], [])
    assert sum(right.delivered.values()) == 60 - 5 + 60 + 30 + 2
    for seed, damage, outcome in damaged(harm, engine, pristine, seeds):
        assert outcome.crashes == [], (seed, damage)
        lost = Counter(right.delivered) - Counter(outcome.delivered)
        if damage.kind in REMOVING:
            assert not lost or outcome.errors or outcome.findings, (seed, damage, lost)


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_without_its_first_file_is_noticed(tmp_path: Path, engine: str, end: str) -> None:
    build(ENGINES[engine], tmp_path / "store", "closed")
    if end == "killed":
        abandon(ENGINES[engine].open(tmp_path / "store", ManualClock(HALF_MS), False))
    min((tmp_path / "store" / "commitlog").iterdir()).unlink()
    outcome = exercise(ENGINES[engine], tmp_path / "store")
    assert outcome.crashes == []
    assert outcome.errors or outcome.findings


@pytest.mark.parametrize("asked", ["receipt", "handle"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_message_is_not_pending_and_in_no_other_s_way(
    tmp_path: Path, engine: str, asked: str
) -> None:
    clock = ManualClock(HALF_MS)
    store = ENGINES[engine].open(tmp_path, clock, False)
    receipts = [
        store.schedule(Message("orders", b"body %d" % number, unique_key=f"KEY{number}"), DUE)
        for number in range(3)
    ]
    store.flush()
    [file] = (tmp_path / "commitlog").iterdir()
    with file.open("r+b") as log:
        log.seek(file.read_bytes().index(b"body 1"))
        log.write(b"x")
    named = [receipt if asked == "receipt" else receipt.handle for receipt in receipts]
    assert [each.unique_key for each in store.pending()] == ["KEY0", "KEY2"]
    assert list(store.pending(unique_key="KEY1")) == []
    assert store.cancel(named[1]) is Cancellation.NEVER_EXISTED
    assert store.reschedule(named[1], DUE) is Cancellation.NEVER_EXISTED
    assert store.cancel(named[0]) is Cancellation.CANCELLED
    clock.tick(DUE.delay_ms + 1_000)
    assert [each.message.body for each in store.advance(clock.now_ms())] == [b"body 2"]
    assert len(store.undelivered()) == 1  # type: ignore[attr-defined]
    abandon(store)
