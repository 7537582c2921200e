# SPDX-License-Identifier: Apache-2.0
"""How wide the slots of a broker's wheel are: reader and engines tell the same, whatever is left to
tell it. Nothing is lost, nothing comes early; where nothing tells, the wheel is not opened.
"""

import random
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path

import pytest

from message_store import AfterMs, AtMs, DelayStore, ManualClock, Message, Severity
from message_store.base.errors import UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from tests.faults.engines import open_wheel
from tests.helpers.tiers import by_turns
from timer_wheel import HierarchicalWheelStore, WheelStore, read_wheel_store
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_file import SLOT, WHEEL_FILE_BYTES
from timer_wheel.format.wheel_math import PRECISIONS_MS, WHEEL_SLOTS

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
OWN_PART_AT = 64


def left_by_a_broker(path: Path, precision_ms: int, step_ms: int, count: int = 40) -> list[int]:
    """Messages on a wheel whose checkpoint has the numbers of a broker only; when each is due."""
    due_ms = [START_MS + 5_000 + number * step_ms for number in range(count)]
    store = open_wheel(
        path, ManualClock(START_MS), precision_ms=precision_ms, roll_window_slots=172_800
    )
    store.advance(START_MS)
    for number, each in enumerate(due_ms):
        store.schedule(Message("orders", b"", unique_key=f"K{number}"), AtMs(each))
    store.close()
    check = path / "config" / "timercheck"
    content = check.read_bytes()
    check.write_bytes(content[:OWN_PART_AT].ljust(len(content), b"\0"))
    return due_ms


def keep_all(path: Path) -> None:
    """The wheel file as a broker without snapshots leaves it."""


def leave_a_snapshot(path: Path) -> None:
    wheel, check = path / "timerwheel", (path / "config" / "timercheck").read_bytes()
    wheel.rename(path / f"timerwheel.{int.from_bytes(check[8:16], 'big')}")
    with wheel.open("wb") as file:
        file.truncate(WHEEL_FILE_BYTES)


def lose_the_wheel(path: Path) -> None:
    (path / "timerwheel").unlink()


def rest_for_more_than_a_ring(path: Path) -> None:
    """Slots are never wiped, and files of the timer log are: the first slots lead nowhere."""
    with (path / "timerwheel").open("r+b") as file:
        for index in range(200):
            file.seek(index * SLOT.size)
            if any(file.read(SLOT.size)):
                continue
            file.seek(index * SLOT.size)
            time_units = START_MS // 500 // WHEEL_SLOTS * WHEEL_SLOTS + index - WHEEL_SLOTS
            gone = 10**9 + TIMER_UNIT.size * index
            slot = SLOT.encode(
                time_units=time_units,
                first_position=gone,
                last_position=gone,
                unit_count=1,
                magic=0,
            )
            file.write(slot)


ENDS = [keep_all, leave_a_snapshot, lose_the_wheel, rest_for_more_than_a_ring]
QUICK_ENDS = [keep_all, *(pytest.param(end, marks=pytest.mark.check) for end in ENDS[1:])]
PAIRS = [
    pytest.param(*pair, marks=() if pair == (1_000, 100) else pytest.mark.check)
    for pair in permutations(PRECISIONS_MS, 2)
]
Ending = Callable[[Path], None]


def deliver_all(store: DelayStore, clock: ManualClock) -> dict[str, int]:
    """When each message came; none may come twice."""
    came: dict[str, int] = {}
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        for each in store.advance(clock.now_ms()):
            assert each.message.unique_key not in came
            came[each.message.unique_key or ""] = clock.now_ms()
    return came


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
def test_reader_and_wheel_find_all_that_waits_and_nothing_comes_early(
    tmp_path: Path, precision_ms: int, end: Ending
) -> None:
    due_ms = left_by_a_broker(tmp_path, precision_ms, 130)
    end(tmp_path)
    found = read_wheel_store(StoreRoot(tmp_path), now_ms=START_MS, whole_log=True)
    assert (found.precision_ms, len(found.pending)) == (precision_ms, len(due_ms))
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        assert store.settings.precision_ms == precision_ms
        assert store.check() == []
        came = deliver_all(store, clock)
    assert len(came) == len(due_ms)
    for number, each in enumerate(due_ms):
        assert 0 <= came[f"K{number}"] - each < precision_ms


@pytest.mark.check
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
def test_the_hierarchical_wheel_takes_over_all_of_it(
    tmp_path: Path, precision_ms: int, end: Ending
) -> None:
    due_ms = left_by_a_broker(tmp_path, precision_ms, 130)
    end(tmp_path)
    clock = ManualClock(START_MS)
    with HierarchicalWheelStore.open(tmp_path, clock=clock) as store:
        came = deliver_all(store, clock)
    assert len(came) == len(due_ms)
    for number, each in enumerate(due_ms):
        assert 0 <= came[f"K{number}"] - each < precision_ms


@pytest.mark.parametrize("end", QUICK_ENDS)
@pytest.mark.parametrize(("precision_ms", "asked_ms"), PAIRS)
def test_another_precision_than_the_brokers_is_refused_and_every_byte_stays(
    tmp_path: Path, precision_ms: int, asked_ms: int, end: Ending
) -> None:
    left_by_a_broker(tmp_path, precision_ms, 1_130, 6)
    end(tmp_path)
    before = content_of(tmp_path)
    with pytest.raises(UnsupportedStoreError, match=f"slots of {precision_ms} ms"):
        WheelStore.open(tmp_path, clock=ManualClock(START_MS), precision_ms=asked_ms)
    assert content_of(tmp_path) == before


def content_of(path: Path) -> dict[str, bytes]:
    """Every file that holds or leads to messages, with its bytes."""
    folders = ("commitlog", "consumequeue", "timerlog", "config")
    files = [each for name in folders for each in (path / name).rglob("*") if each.is_file()]
    files += path.glob("timerwheel*")
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
@pytest.mark.parametrize("how_many", [1, 2, 3, 7])
def test_few_messages_and_no_wheel_file_are_never_early_nor_lost(
    tmp_path: Path, precision_ms: int, how_many: int, seed: int
) -> None:
    step_ms = random.Random(f"{seed}-{how_many}").choice([10, 130, 700, 1_000, 61_000])
    due_ms = left_by_a_broker(tmp_path, precision_ms, step_ms, how_many)
    lose_the_wheel(tmp_path)
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        came = deliver_all(store, clock)
    assert len(came) == len(due_ms)
    for number, each in enumerate(due_ms):
        assert 0 <= came[f"K{number}"] - each < max(PRECISIONS_MS)


@pytest.mark.parametrize(
    ("bit", "number", "precision_ms"),
    by_turns(product(range(0, 27, 3), [0, 7]), PRECISIONS_MS),
)
def test_a_unit_that_is_damaged_does_not_tell_the_precision(
    tmp_path: Path, precision_ms: int, number: int, bit: int
) -> None:
    left_by_a_broker(tmp_path, precision_ms, 330)
    lose_the_wheel(tmp_path)
    with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as file:
        place = number * TIMER_UNIT.size + TIMER_UNIT.offset_of("delay_ms") + 3 - bit // 8
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit % 8]))
    found = read_wheel_store(StoreRoot(tmp_path), now_ms=START_MS, whole_log=True)
    assert found.precision_ms == precision_ms


def test_where_nothing_tells_the_wheel_is_not_opened_and_says_what_to_say(tmp_path: Path) -> None:
    with HierarchicalWheelStore.open(tmp_path, clock=ManualClock(START_MS)) as store:
        for number in range(3):
            due_ms = START_MS + 5_000 + 130 * number + 37
            store.schedule(Message("orders", b"", unique_key=f"K{number}"), AtMs(due_ms))
    with WheelStore.open(tmp_path, clock=ManualClock(START_MS + 137), precision_ms=1_000):
        pass
    check = tmp_path / "config" / "timercheck"
    content = check.read_bytes()
    check.write_bytes(content[:OWN_PART_AT].ljust(len(content), b"\0"))
    lose_the_wheel(tmp_path)
    with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as file:
        for number in range(3):  # placed by no clock that a wheel has
            field = number * TIMER_UNIT.size + TIMER_UNIT.offset_of("write_time_ms")
            file.seek(field)
            write_ms = int.from_bytes(file.read(8), "big")
            delay_ms = int.from_bytes(file.read(4), "big", signed=True)
            file.seek(field)
            file.write((write_ms + 1).to_bytes(8, "big"))
            file.write((delay_ms - 1).to_bytes(4, "big", signed=True))
    before = content_of(tmp_path)
    with pytest.raises(UnsupportedStoreError, match="timerPrecisionMs"):
        WheelStore.open(tmp_path, clock=ManualClock(START_MS))
    assert content_of(tmp_path) == before
    with WheelStore.open(tmp_path, clock=ManualClock(START_MS), precision_ms=1_000) as wheel:
        assert len(wheel.advance(START_MS + HOUR_MS)) == 3


def test_a_message_that_no_link_leads_to_is_an_error_in_check(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_wheel(tmp_path, clock) as store:
        for number in range(3):
            store.schedule(Message("orders", b"", unique_key=f"K{number}"), AfterMs(5_000))
        came = store.schedule(Message("orders", b"", unique_key="CAME"), AfterMs(0))
        assert len(store.advance(came.promised_ms)) == 1
    with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as file:
        file.seek(2 * TIMER_UNIT.size + TIMER_UNIT.offset_of("previous_position"))
        file.write(b"\xff" * 8)
    with open_wheel(tmp_path, clock) as store:
        found = [each for each in store.check() if each.severity is Severity.ERROR]
        assert ["2 messages are in a slot to come" in each.problem for each in found] == [True]
