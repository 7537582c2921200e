# SPDX-License-Identifier: Apache-2.0
"""An entry of a queue that leads to the record of another message, or to none: each comes once, at
its time, is listed until then, and can be cancelled.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from delaywheel import open_store
from message_store import AtMs, Cancellation, ManualClock, Message, Receipt
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.reading.engine_choice import EngineName
from tests.faults.damage import flip

START_MS = 1_793_000_000_000
ENGINES: Final[Mapping[EngineName, str]] = {
    "levels": "SCHEDULE_TOPIC_XXXX/2",
    "wheel": "rmq_sys_wheel_timer/0",
    "hierarchy": "rmq_sys_wheel_timer/0",
    "time-index": f"{TIME_INDEX_TOPIC}/0",
}
COUNT = 4
PLACE_BYTES, ENTRY_BYTES = 8, 20


def queue_file(
    root: Path,
    engine: EngineName,
    clock: ManualClock,
    count: int,
    *,
    is_killed: bool,
    receipts: list[Receipt] | None = None,
) -> Path:
    """The queue of a store that was left with so many messages of one time; ``receipts`` gets
    theirs.
    """
    store = open_store(root, engine=engine, clock=clock)
    for number in range(count):
        receipt = store.schedule(Message("orders", b"%d" % number), AtMs(START_MS + 10_000))
        if receipts is not None:
            receipts.append(receipt)
    if is_killed:
        store.abandon()  # type: ignore[attr-defined]
    else:
        store.close()
    return min((root / "consumequeue" / ENGINES[engine]).iterdir())


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_leads_to_the_record_of_another_is_made_anew(
    tmp_path: Path, engine: EngineName, is_killed: bool
) -> None:
    for damaged, other in itertools.permutations(range(COUNT), 2):
        root, clock = tmp_path / f"{damaged}-{other}", ManualClock(START_MS)
        path = queue_file(root, engine, clock, COUNT, is_killed=is_killed)
        with path.open("r+b") as file:
            file.seek(ENTRY_BYTES * other)
            place = file.read(PLACE_BYTES)
            file.seek(ENTRY_BYTES * damaged)
            file.write(place)
        with open_store(root, engine=engine, clock=clock) as store:
            assert not len(store.advance(START_MS + 9_000))
            came = Counter(each.message.body for each in store.advance(START_MS + 11_000))
            told = [each.problem for each in store.check()]
        assert came == Counter(b"%d" % number for number in range(COUNT)), (damaged, other)
        assert told or is_killed or engine != "levels"


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("bits", [(3, 31), pytest.param(range(32), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_entry_with_a_damaged_length_is_listed_cancelled_and_delivered(
    tmp_path: Path, engine: EngineName, bits: Sequence[int], is_killed: bool
) -> None:
    """By its receipt and by its handle."""
    for damaged, bit in itertools.product(range(COUNT), bits):
        root, clock = tmp_path / f"{damaged}-{bit}", ManualClock(START_MS)
        receipts: list[Receipt] = []
        path = queue_file(root, engine, clock, COUNT, is_killed=is_killed, receipts=receipts)
        flip(path, ENTRY_BYTES * damaged + PLACE_BYTES + 3 - bit // 8, bit % 8)
        with open_store(root, engine=engine, clock=clock) as store:
            assert len([*store.pending()]) == COUNT, (damaged, bit)
            which = receipts[damaged].handle if damaged % 2 else receipts[damaged]
            assert store.cancel(which) is Cancellation.CANCELLED, (damaged, bit)
            came = Counter(each.message.body for each in store.advance(START_MS + 11_000))
        others = set(range(COUNT)) - {damaged}
        assert came == Counter(b"%d" % number for number in others), (damaged, bit)


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("engine", ["levels", "wheel"])
@pytest.mark.parametrize(
    ("is_first_twice", "damage"), [(True, None), (False, None), (True, (5, 2)), (False, (5, 2))]
)
def test_a_queue_whose_entries_have_moved_loses_no_more_than_was_damaged(
    tmp_path: Path,
    engine: EngineName,
    is_first_twice: bool,
    damage: tuple[int, int] | None,
    is_killed: bool,
) -> None:
    """Each record names the place before, or behind, that of its entry; it tells nothing then."""
    clock, count = ManualClock(START_MS), 8
    path = queue_file(tmp_path, engine, clock, count, is_killed=is_killed)
    content = path.read_bytes()
    entries = [content[ENTRY_BYTES * row :][:ENTRY_BYTES] for row in range(count)]
    entries = entries[:1] + entries if is_first_twice else entries[1:]
    if damage is not None:
        damaged, other = damage
        entries[damaged] = entries[other][:PLACE_BYTES] + entries[damaged][PLACE_BYTES:]
    with path.open("r+b") as file:
        file.write(b"".join(entries).ljust(ENTRY_BYTES * (count + 1), b"\0"))
    with open_store(tmp_path, engine=engine, clock=clock) as store:
        came = {each.message.body for each in store.advance(START_MS + 11_000)}
    lost = {b"%d" % number for number in range(count)} - came
    assert len(lost) <= (not is_first_twice) + (damage is not None)
