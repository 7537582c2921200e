# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in a unit of a wheel that was another before: it had slots of another width, was
a hierarchical wheel, parked with another window, repeats after a kill, or has begun other files.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, Cancellation, DelayStore, ManualClock, Message, Receipt
from tests.faults.damage import copy_store, flip
from tests.faults.engines import SMALL
from tests.helpers.tiers import by_turns, with_examples
from tests.timer_wheel.wheel.test_flipped_units import BITS, START_MS, WIDTHS
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.timer_log import TIMER_UNIT

BITS_OF_TIMES = [
    (field, bit) for field in ("write_time_ms", "delay_ms") for bit in range(8 * WIDTHS[field])
]
WINDOW_SLOTS = 60


def flip_unit(path: Path, unit: int, field: str, bit: int, file_units: int = 40) -> None:
    """Flip a bit of a unit, counted from the beginning of the first file that is there."""
    file, within = divmod(unit, file_units)
    at = within * TIMER_UNIT.size + TIMER_UNIT.offset_of(field) + WIDTHS[field] - 1 - bit // 8
    flip(sorted((path / "timerlog").iterdir())[file], at, bit % 8)


def wheel(
    path: Path, clock: ManualClock, precision_ms: int = 1_000, window_slots: int = WINDOW_SLOTS
) -> WheelStore:
    return WheelStore.open(
        path,
        clock=clock,
        settings=SMALL,
        precision_ms=precision_ms,
        roll_window_slots=window_slots,
        on_precision_change="rebuild",
    )


def came_until(store: DelayStore, clock: ManualClock, until_ms: int) -> Iterator[tuple[str, int]]:
    """The keys of all that comes until then, and when each came."""
    while clock.now_ms() < until_ms:
        clock.tick(1_000)
        for each in store.advance(clock.now_ms()):
            yield each.message.unique_key or "", clock.now_ms()


Before = Callable[[Path, ManualClock], HierarchicalWheelStore | WheelStore]
BEFORE: dict[str, Before] = {
    "hierarchy": lambda path, clock: HierarchicalWheelStore.open(
        path, clock=clock, settings=SMALL, precision_ms=1_000
    ),
    "500": lambda path, clock: wheel(path, clock, 500),
    "100": lambda path, clock: wheel(path, clock, 100),
}


def after_another(path: Path, before: str) -> dict[str, int]:
    """Four messages of a wheel that was another when they were stored, and what they are promised
    for.
    """
    clock = ManualClock(START_MS)
    with BEFORE[before](path, clock) as store:
        store.advance(START_MS)
        messages = [Message("orders", b"", unique_key=f"K{n}") for n in range(4)]
        receipts = [
            store.schedule(each, AfterMs(20_000 + 1_000 * n)) for n, each in enumerate(messages)
        ]
        store.advance(START_MS)
    with wheel(path, clock) as store:
        store.advance(START_MS)
    return {each.unique_key or "": each.promised_ms for each in receipts}


@pytest.mark.parametrize(
    ("field", "bit", "before"),
    by_turns(BITS_OF_TIMES, BEFORE, [BITS_OF_TIMES[n] for n in (3, 14, 40, 64, 73, 95)]),
)
def test_a_time_of_a_unit_from_before_other_slots_is_not_believed_over_its_record(
    tmp_path: Path, before: str, field: str, bit: int
) -> None:
    promised = after_another(tmp_path, before)
    clock = ManualClock(START_MS)
    flip_unit(tmp_path, 1, field, bit)
    with wheel(tmp_path, clock) as store:
        came = list(came_until(store, clock, START_MS + 60_000))
    assert Counter(key for key, _ in came) == Counter(promised.keys())
    assert [key for key, at_ms in came if at_ms < promised[key]] == []


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("window_slots", [WINDOW_SLOTS, 1_000, 40, 30])
def test_a_unit_that_lost_its_roll_flag_is_not_early_with_another_window(
    tmp_path: Path, window_slots: int, *, is_killed: bool
) -> None:
    clock = ManualClock(START_MS)
    store = wheel(tmp_path, clock)
    store.advance(START_MS)
    store.schedule(Message("orders", b"", unique_key="K"), AfterMs(200_000))
    store.advance(START_MS)
    store.flush()
    store.abandon() if is_killed else store.close()
    flip_unit(tmp_path, 0, "magic", 1)
    with wheel(tmp_path, clock, window_slots=window_slots) as store:
        came = list(came_until(store, clock, START_MS + 210_000))
        assert len(store.check()) == 1
    assert came == [("K", START_MS + 200_000)]


def test_what_has_rolled_long_ago_is_not_remembered_for_ever(tmp_path: Path) -> None:
    """Whatever may roll is read before it is delivered, which takes time."""
    clock = ManualClock(START_MS)
    with wheel(tmp_path, clock) as store:
        store.advance(START_MS)
        store.schedule(Message("orders", b"", unique_key="K"), AfterMs(100_000))
        came = list(came_until(store, clock, START_MS + 110_000))
        assert [key for key, _ in came] == ["K"]
        assert store._timers.parked_until_ms < clock.now_ms()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    with wheel(tmp_path, clock) as store:
        assert not store._timers.has_rolled


@pytest.mark.parametrize("by_receipt", [False, True])
@pytest.mark.parametrize("bit", [0, 2, 30, 31])
def test_a_bit_of_a_topics_hash_hides_no_message_from_a_cancel(
    tmp_path: Path, bit: int, *, by_receipt: bool
) -> None:
    clock = ManualClock(START_MS)
    given = {"near": 20_000, "far": 200_000}
    receipts: dict[str, Receipt] = {}
    with wheel(tmp_path, clock) as store:
        store.advance(START_MS)
        for key, delay_ms in given.items():
            receipts[key] = store.schedule(
                Message("orders", b"", unique_key=key), AfterMs(delay_ms)
            )
    for unit in range(len(given)):
        flip_unit(tmp_path, unit, "topic_hash", bit)
    with wheel(tmp_path, clock) as store:
        for receipt in receipts.values():
            named = receipt if by_receipt else receipt.handle
            assert store.cancel(named) is Cancellation.CANCELLED
            assert store.cancel(named) is Cancellation.CANCELLED
        assert list(came_until(store, clock, START_MS + 210_000)) == []


@pytest.mark.parametrize(
    ("field", "bit"),
    [
        ("commit_log_offset", 8),
        ("commit_log_offset", 20),
        ("size_bytes", 1),
        ("record_size_bytes", 3),
        ("magic", 1),
        ("delay_ms", 12),
    ],
)
@pytest.mark.parametrize("unit", [1, 8, 19])
def test_a_store_that_was_closed_repeats_nothing_after_a_flipped_bit(
    tmp_path: Path, unit: int, field: str, bit: int
) -> None:
    """What ``repeat_after_kill`` repeats is after a kill."""
    clock = ManualClock(START_MS)
    settings = attrs.evolve(SMALL, repeat_after_kill=True)
    with WheelStore.open(tmp_path, clock=clock, settings=settings) as store:
        store.advance(START_MS)
        for number in range(20):
            message = Message("orders", bytes(number % 7), unique_key=f"K{number:02d}")
            store.schedule(message, AfterMs(2_000 + number * 1_000))
        came = list(came_until(store, clock, START_MS + 12_000))
    flip_unit(tmp_path, unit, field, bit)
    with WheelStore.open(tmp_path, clock=clock, settings=settings) as store:
        came += came_until(store, clock, START_MS + 60_000)
    assert Counter(key for key, _ in came) == Counter(f"K{number:02d}" for number in range(20))


@pytest.mark.parametrize(
    ("delivered", "unit"),
    with_examples(
        [(delivered, unit) for delivered in (0, 10) for unit in range(delivered, 20)],
        [(0, 4), (0, 5), (0, 10), (10, 10), (10, 14)],
    ),
)
def test_the_unit_at_a_files_border_may_not_lead_to_another_record(
    tmp_path: Path, delivered: int, unit: int
) -> None:
    """Records of one size, some bits apart: the order of the units tells, from file to file. Slots
    that are over are not looked at.
    """
    clock = ManualClock(START_MS)
    settings = attrs.evolve(SMALL, timer_log_file_bytes=5 * TIMER_UNIT.size + 16)
    with WheelStore.open(tmp_path / "made", clock=clock, settings=settings) as store:
        store.advance(START_MS)
        empty = store.schedule(Message("orders", b"", unique_key="K00"), AfterMs(20_000))
        room = 256 - (store.live.log.end - empty.commit_log_offset)
    for bit in range(8, 14):
        clock, path = ManualClock(START_MS), tmp_path / f"{bit}"
        with WheelStore.open(path, clock=clock, settings=settings) as store:
            store.advance(START_MS)
            for number in range(20):
                message = Message("orders", bytes(room), unique_key=f"K{number:02d}")
                store.schedule(message, AfterMs(20_000 + 1_000 * number))
            came = list(came_until(store, clock, START_MS + 20_000 + 1_000 * delivered))
        flip_unit(path, unit, "commit_log_offset", bit, file_units=5)
        with WheelStore.open(path, clock=clock, settings=settings) as store:
            came += came_until(store, clock, START_MS + 60_000)
        assert Counter(key for key, _ in came) == Counter(f"K{number:02d}" for number in range(20))


@pytest.mark.parametrize("hole", [(0, 8), (0, 12), (8, 12)])
@pytest.mark.parametrize("unit", range(6))
def test_a_unit_that_lost_its_times_is_in_the_slot_that_others_tell(
    tmp_path: Path, unit: int, hole: tuple[int, int]
) -> None:
    """A hole, and not a bit: the links of its neighbours, and the wheel file, say where it was."""
    clock = ManualClock(START_MS)
    delays_ms = [10_000, 10_000, 10_000, 20_000, 200_000, 200_000]
    with wheel(tmp_path, clock) as store:
        store.advance(START_MS)
        for number, delay_ms in enumerate(delays_ms):
            store.schedule(Message("orders", b"", unique_key=f"K{number}"), AfterMs(delay_ms))
    begin = unit * TIMER_UNIT.size + TIMER_UNIT.offset_of("write_time_ms")
    with min((tmp_path / "timerlog").iterdir()).open("r+b") as file:
        file.seek(begin + hole[0])
        file.write(bytes(hole[1] - hole[0]))
    with wheel(tmp_path, clock) as store:
        assert len(store.check()) == 1
        came = list(came_until(store, clock, START_MS + 210_000))
    assert came == [(f"K{number}", START_MS + delays_ms[number]) for number in range(6)]


@pytest.mark.parametrize("unit", range(4))
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.nightly
def test_no_bit_of_a_unit_from_before_other_slots_is_believed_over_its_record(
    tmp_path: Path, before: str, unit: int
) -> None:
    for field, bit in BITS:
        path = tmp_path / f"{field}-{bit}"
        promised = after_another(path, before)
        flip_unit(path, unit, field, bit)
        clock = ManualClock(START_MS)
        with wheel(path, clock) as store:
            came = list(came_until(store, clock, START_MS + 60_000))
        assert Counter(key for key, _ in came) == Counter(promised.keys()), (field, bit)
        assert [key for key, at_ms in came if at_ms < promised[key]] == [], (field, bit)


@pytest.mark.parametrize("next_owner", ["wheel", "hierarchy"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_marker_before_the_hand_takes_back_what_waits_in_the_hands_slot(
    tmp_path: Path, next_owner: str, *, is_killed: bool
) -> None:
    """The clock went back: the hand had passed the slot of what was scheduled then."""
    clock = ManualClock(START_MS)
    store = wheel(tmp_path, clock)
    store.advance(START_MS)
    clock.tick(-3_600_000)
    given = [Message("orders", b"", unique_key=key) for key in ("NO", "YES")]
    no, _ = (store.schedule(each, AfterMs(1_000)) for each in given)
    store.advance(clock.now_ms())
    assert store.cancel(no) is Cancellation.CANCELLED
    store.flush()
    came = list(came_until(store, clock, clock.now_ms() + 3_000))
    store.flush()
    store.abandon() if is_killed else store.close()
    opened = BEFORE["hierarchy"] if next_owner == "hierarchy" else wheel
    with opened(tmp_path, clock) as next_store:
        came += came_until(next_store, clock, START_MS + 3_000)
    assert [key for key, _ in came] == ["YES"]


@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
@pytest.mark.parametrize("is_over", [False, True])
def test_a_cancel_is_answered_about_the_message_of_the_slot_that_is_named(
    tmp_path: Path, engine: str, *, is_over: bool
) -> None:
    """The same key in an earlier slot would be promised for the same time by a wider one."""
    clock = ManualClock(START_MS)
    opened = (
        HierarchicalWheelStore.open(tmp_path, clock=clock, settings=SMALL, precision_ms=200)
        if engine == "hierarchy"
        else wheel(tmp_path, clock, 200)
    )
    with opened as store:
        store.advance(START_MS)
        message = Message("orders", b"", unique_key="G")
        late = store.schedule(message, AfterMs(1_868))
        assert store.cancel(late) is Cancellation.CANCELLED
        early = store.schedule(message, AfterMs(1_154))
        assert early.promised_ms == late.promised_ms - 800
        came = list(came_until(store, clock, START_MS + 5_000 * is_over))
        assert [key for key, _ in came] == ["G"] * is_over
        assert store.cancel(late.handle) is Cancellation.CANCELLED


def overdue_and_delivered(path: Path, clock: ManualClock, snapshots: tuple[bool, bool]) -> None:
    """Two messages that were due when stored get units in the hand's slot, and are delivered and
    put away while that is the hand's slot still.
    """
    for life, writes_snapshots in enumerate(snapshots):
        with WheelStore.open(
            path, clock=clock, settings=SMALL, snapshots=writes_snapshots
        ) as store:
            if not life:
                store.advance(clock.now_ms())
                for key in "XY":
                    store.schedule(Message("orders", b"", unique_key=key), AtMs(START_MS - 1))
            else:
                assert len(store.advance(clock.now_ms())) == 2


@pytest.mark.parametrize("snapshots", [False, True])
def test_an_older_wheel_file_brings_nothing_back(tmp_path: Path, *, snapshots: bool) -> None:
    """The other kind of it was written meanwhile."""
    clock = ManualClock(START_MS)
    overdue_and_delivered(tmp_path, clock, (snapshots, not snapshots))
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL, snapshots=snapshots) as store:
        assert store.check() == []
        assert list(came_until(store, clock, START_MS + 5_000)) == []


@pytest.mark.check
def test_no_bit_of_the_wheel_file_is_believed_over_sound_units(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    overdue_and_delivered(tmp_path / "made", clock, (False, False))
    with WheelStore.open(tmp_path / "made", clock=clock, settings=SMALL) as store:
        for key, delay_ms in (("Z", 3_000), ("Z2", 3_000), ("far", 200_000_000)):
            store.schedule(Message("orders", b"", unique_key=key), AfterMs(delay_ms))
        store.advance(START_MS)
    content = (tmp_path / "made" / "timerwheel").read_bytes()
    used = [at for at in range(0, len(content), 32) if any(content[at : at + 32])]
    assert len(used) >= 2
    for at in used:
        for bit in range(8 * 32):
            path, clock = tmp_path / f"{at}-{bit}", ManualClock(START_MS)
            copy_store(tmp_path / "made", path)
            flip(path / "timerwheel", at + bit // 8, bit % 8)
            with WheelStore.open(path, clock=clock, settings=SMALL) as store:
                came = [key for key, _ in came_until(store, clock, START_MS + 4_000)]
                assert came == ["Z", "Z2"], (at, bit)
                assert [each.unique_key for each in store.pending()] == ["far"], (at, bit)
            shutil.rmtree(path)
