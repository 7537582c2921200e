# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in a unit of the timer log: the record knows better, the queue, or the order of
the units. Nothing comes early or twice, or is lost, however the store was left.
"""

import functools
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, Cancellation, ManualClock, Message
from tests.faults.damage import copy_store, flip
from tests.faults.engines import SMALL
from tests.helpers.tiers import by_turns, with_examples
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.timer_log import TIMER_UNIT

START_MS = 1_793_000_000_000
WINDOW_SLOTS = 20
UNITS = 12
WIDTHS = {field.name: TIMER_UNIT.dtype[field.name].itemsize for field in TIMER_UNIT.fields}
BITS = [
    (name, bit) for name, width in WIDTHS.items() if name != "reserved" for bit in range(8 * width)
]


class Left:
    """A store as it was left, with what its messages were promised for; its timer log has one file
    or more.
    """

    def __init__(
        self, path: Path, precision_ms: int, *, is_killed: bool, file_units: int = UNITS
    ) -> None:
        self.path, self.precision_ms, self.file_units = path, precision_ms, file_units
        self.clock = ManualClock(START_MS)
        store = self.open(path)
        store.advance(START_MS)
        slots = [2, 2, 5, 5, 5, 9, 9, 30, 61]
        messages = [Message("orders", b"", unique_key=f"K{n}") for n in range(len(slots))]
        self.receipts = {
            each.unique_key or "": store.schedule(each, AfterMs(slot * precision_ms))
            for each, slot in zip(messages, slots, strict=True)
        }
        self.promised = {key: each.promised_ms for key, each in self.receipts.items()}
        no = store.schedule(Message("orders", b"", unique_key="NO"), AfterMs(9 * precision_ms))
        assert store.cancel(no) is Cancellation.CANCELLED
        store.schedule(Message("orders", b"", unique_key="PAST"), AtMs(START_MS - 1))
        self.promised["PAST"] = START_MS
        self.clock.tick(precision_ms * 4)
        assert len(store.advance(self.clock.now_ms())) == 3
        if is_killed:
            store.flush()
            store.abandon()
        else:
            store.close()
        self.left_ms = self.clock.now_ms()

    def open(self, path: Path) -> WheelStore:
        return WheelStore.open(
            path,
            clock=self.clock,
            settings=attrs.evolve(SMALL, timer_log_file_bytes=self.file_bytes),
            precision_ms=self.precision_ms,
            roll_window_slots=WINDOW_SLOTS,
        )

    @property
    def file_bytes(self) -> int:
        return self.file_units * TIMER_UNIT.size + 16

    def file_of(self, path: Path, unit: int) -> tuple[Path, int]:
        """The file that has a unit, and where in it."""
        file, within = divmod(unit, self.file_units)
        return path / "timerlog" / f"{file * self.file_bytes:020d}", within * TIMER_UNIT.size

    def with_flipped(self, path: Path, unit: int, field: str, bit: int) -> Path:
        copy_store(self.path, path)
        self.clock = ManualClock(self.left_ms)
        place, begin = self.file_of(path, unit)
        at = begin + TIMER_UNIT.offset_of(field) + WIDTHS[field] - 1 - bit // 8
        flip(place, at, bit % 8)
        return path

    def leading_to(self, path: Path, unit: int, other: int) -> Path:
        copy_store(self.path, path)
        self.clock = ManualClock(self.left_ms)
        file = min((path / "timerlog").iterdir())
        units = bytearray(file.read_bytes())
        at = TIMER_UNIT.offset_of("commit_log_offset")
        place = slice(unit * TIMER_UNIT.size + at, unit * TIMER_UNIT.size + at + 12)
        units[place] = units[other * TIMER_UNIT.size + at :][:12]
        file.write_bytes(units)
        return path


Made = Callable[..., Left]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Made:
    @functools.cache
    def made(precision_ms: int, is_killed: bool, file_units: int = UNITS) -> Left:
        path = tmp_path_factory.mktemp("left") / "store"
        return Left(path, precision_ms, is_killed=is_killed, file_units=file_units)

    return made


def keys_of(left: Left, path: Path) -> Counter[str]:
    with left.open(path) as store:
        return Counter(each.unique_key or "" for each in store.topic("orders").read(0, 0, 99))


def require_sound(left: Left, path: Path) -> bool:
    """Every message comes once, at its time; whether anything was told of."""
    with left.open(path) as store:
        findings = store.check()
        while (next_ms := store.next_due_ms()) is not None:
            left.clock.tick(max(0, next_ms - left.clock.now_ms()))
            for each in store.advance(left.clock.now_ms()):
                key = each.message.unique_key or ""
                assert left.clock.now_ms() >= left.promised.get(key, 0), f"{key} is early"
        findings += store.check()
    assert keys_of(left, path) == Counter(left.promised.keys())
    return bool(findings)


FLIPPED = [
    (0, "record_size_bytes", 3),
    (5, "record_size_bytes", 3),
    (2, "delay_ms", 10),
    (3, "delay_ms", 31),
    (5, "delay_ms", 0),
    (6, "write_time_ms", 12),
    (2, "write_time_ms", 40),
    (7, "magic", 1),
    (8, "magic", 1),
    (4, "magic", 2),
    (10, "magic", 2),
    (2, "commit_log_offset", 3),
    (3, "record_size_bytes", 5),
    (3, "record_size_bytes", 31),
    (7, "record_size_bytes", 6),
    (8, "commit_log_offset", 2),
    (10, "record_size_bytes", 0),
    (10, "commit_log_offset", 1),
    (3, "previous_position", 0),
    (5, "previous_position", 63),
]


@pytest.mark.parametrize(
    ("unit", "field", "bit", "precision_ms", "is_killed", "file_units"),
    by_turns(FLIPPED, product([100, 1000], [False, True], [UNITS, 5]), often=()),
)
def test_a_bit_of_a_unit_is_not_believed_over_its_record(
    left: Made,
    tmp_path: Path,
    unit: int,
    field: str,
    bit: int,
    precision_ms: int,
    is_killed: bool,
    file_units: int,
) -> None:
    store = left(precision_ms, is_killed, file_units)
    is_told = require_sound(store, store.with_flipped(tmp_path / "store", unit, field, bit))
    # Of a killed store such units are truncated; in slots that are over nobody looks.
    is_put_right = field in ("commit_log_offset", "record_size_bytes", "previous_position")
    assert is_told or is_killed or unit < 2 or not is_put_right


PLACES = [(name, bit) for name, bit in BITS if name in ("commit_log_offset", "record_size_bytes")]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("unit", with_examples(range(2, 9), (4, 8)))
@pytest.mark.parametrize(
    "places", [PLACES[::17], pytest.param(PLACES, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_what_a_unit_leads_to_with_a_flipped_bit_is_listed_and_cancelled(
    left: Made, tmp_path: Path, places: list[tuple[str, int]], unit: int, is_killed: bool
) -> None:
    """Units 2 to 8 are those of K2 to K8, of which the first two came already."""
    store, key = left(1_000, is_killed), f"K{unit}"
    for name, bit in places:
        path = store.with_flipped(tmp_path / f"{name}-{bit}", unit, name, bit)
        with store.open(path) as wheel:
            listed = {each.unique_key for each in wheel.pending()}
            assert listed == {f"K{number}" for number in range(2, 9)}, (name, bit)
            assert wheel.cancel(store.receipts[key]) is Cancellation.CANCELLED, (name, bit)
            came = [each.message.unique_key for each in wheel.advance(START_MS + 90_000)]
            assert set(came) == listed - {key}, (name, bit)
            assert len(came) == len(set(came))


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("unit", with_examples(range(UNITS), (4, UNITS - 1)))
def test_a_unit_that_leads_to_another_record_is_placed_again(
    left: Made, tmp_path: Path, unit: int, is_killed: bool
) -> None:
    """The record of another would come twice, and its own never."""
    store = left(1_000, is_killed)
    for other in (each for each in range(UNITS) if each != unit):
        path = store.leading_to(tmp_path / f"{other}", unit, other)
        require_sound(store, path)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_last_unit_that_leads_to_what_has_none_hides_nothing(
    tmp_path: Path, is_killed: bool
) -> None:
    """From its record on the queue would be placed, and not what lies between."""
    clock = ManualClock(START_MS)
    store = WheelStore.open(tmp_path, clock=clock, settings=SMALL)
    store.advance(START_MS)
    messages = [Message("orders", b"", unique_key=f"K{n}") for n in range(6)]
    for n, each in enumerate(messages[:3]):
        store.schedule(each, AfterMs(5_000 * (n + 2)))
    store.advance(START_MS)
    last = [store.schedule(each, AfterMs(60_000 + n)) for n, each in enumerate(messages[3:])][-1]
    size_bytes = store.live.log.end - last.commit_log_offset
    store.flush()
    store.abandon() if is_killed else store.close()
    file = min((tmp_path / "timerlog").iterdir())
    units = bytearray(file.read_bytes())
    at = 2 * TIMER_UNIT.size + TIMER_UNIT.offset_of("commit_log_offset")
    units[at : at + 12] = last.commit_log_offset.to_bytes(8, "big") + size_bytes.to_bytes(4, "big")
    units[3 * TIMER_UNIT.size :] = bytes(len(units) - 3 * TIMER_UNIT.size)
    file.write_bytes(units)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        came = [each.message.unique_key for each in store.advance(START_MS + 90_000)]
    assert sorted(map(str, came)) == [f"K{n}" for n in range(6)]


@pytest.mark.nightly
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("precision_ms", [100, 1000])
@pytest.mark.parametrize("file_units", [UNITS, 5])
@pytest.mark.parametrize("unit", range(UNITS))
def test_no_bit_of_a_unit_is_believed_over_its_record(
    left: Made, tmp_path: Path, unit: int, precision_ms: int, is_killed: bool, file_units: int
) -> None:
    store = left(precision_ms, is_killed, file_units)
    for field, bit in BITS:
        path = tmp_path / f"{field}-{bit}"
        require_sound(store, store.with_flipped(path, unit, field, bit))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_delete_marker_without_its_flag_takes_back_where_no_wheel_file_tells(
    left: Made, tmp_path: Path, *, is_killed: bool
) -> None:
    """It is told of until its unit is put right, on the disk, by the turn that reads its record."""
    store = left(1_000, is_killed)
    path = store.with_flipped(tmp_path / "store", 10, "magic", 2)
    (path / "timerwheel").unlink()
    for _ in range(2):
        with store.open(path) as opened:
            (finding,) = opened.check()
            assert "contradicts its record" in finding.problem
    with store.open(path) as opened:
        store.clock.tick(60_000)
        came = [each.message.unique_key or "" for each in opened.advance(store.clock.now_ms())]
        assert sorted(came) == sorted(store.promised.keys() - {"K0", "K1", "PAST"})
        (finding,) = opened.check()
        assert "contradicts its record" in finding.problem
    with store.open(path) as opened:
        assert opened.check() == []


def test_a_delete_marker_without_its_flag_is_known_where_nothing_else_is_to_be_read(
    tmp_path: Path,
) -> None:
    """Nothing rolls, and no other marker is there: a turn believes the units of such a wheel."""
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        store.advance(START_MS)
        gone, _ = (
            store.schedule(Message("orders", b"", unique_key=key), AfterMs(5_000))
            for key in ("NO", "YES")
        )
        assert store.cancel(gone) is Cancellation.CANCELLED
    with min((tmp_path / "timerlog").iterdir()).open("r+b") as file:
        file.seek(2 * TIMER_UNIT.size + TIMER_UNIT.offset_of("magic") + 3)
        file.write(b"\1")
    (tmp_path / "timerwheel").unlink()
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        came = store.advance(START_MS + 60_000)
        assert [each.message.unique_key for each in came] == ["YES"]
        assert len(store.check()) == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("at", ["TIMER_OUT_MS", "REAL_TOPIC", "head"])
def test_a_damaged_record_lets_no_unit_lead_to_another(
    tmp_path: Path, at: str, *, is_cancelled: bool
) -> None:
    """Entries of the queue beside its own have no units: a hierarchical wheel dealt with them."""
    clock = ManualClock(START_MS)
    with HierarchicalWheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        store.advance(START_MS)
        given = [("A", 60_000), ("D", 4_000), ("W", 30_000), ("E", 4_000), ("B", 60_000)]
        receipts = {
            key: store.schedule(Message("orders", b"", unique_key=key), AfterMs(delay_ms))
            for key, delay_ms in given
        }
        if is_cancelled:
            assert store.cancel(receipts["D"]) is Cancellation.CANCELLED
            assert store.cancel(receipts["E"]) is Cancellation.CANCELLED
        clock.tick(5_000)
        store.advance(clock.now_ms())
    WheelStore.open(tmp_path, clock=clock, settings=SMALL).close()
    log, begin = tmp_path / "commitlog" / f"{0:020d}", receipts["W"].commit_log_offset
    flip(log, begin + 3 if at == "head" else log.read_bytes().index(at.encode(), begin), 0)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        clock.tick(60_000)
        came = [each.message.unique_key for each in store.advance(clock.now_ms())]
        assert sorted(map(str, came)) == ["A", "B"]
        assert "cannot be delivered" in str(store.check())


def test_a_record_of_another_size_is_looked_for_where_nothing_else_is_to_be_read(
    tmp_path: Path,
) -> None:
    """Nothing rolls, and nothing was cancelled: a turn believes the units of such a wheel."""
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        store.advance(START_MS)
        for key in "ABC":
            store.schedule(Message("orders", b"", unique_key=key), AfterMs(5_000))
    at = TIMER_UNIT.size + TIMER_UNIT.offset_of("record_size_bytes") + 3
    flip(min((tmp_path / "timerlog").iterdir()), at, 3)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        came = [each.message.unique_key for each in store.advance(START_MS + 60_000)]
        assert came == ["A", "B", "C"]
        assert len(store.check()) == 1
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        assert store.check() == []


@pytest.mark.parametrize("more", [3, 5, 24])
def test_a_size_that_is_a_neighbours_leads_to_no_neighbour(tmp_path: Path, more: int) -> None:
    """Records lie one bit apart, and more than one bit of the size is another: the unit's own entry
    is at its place.
    """
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        store.advance(START_MS)
        empty = store.schedule(Message("orders", b"", unique_key="K00"), AfterMs(5_000))
        record_bytes = store.live.log.end - empty.commit_log_offset
        for number in range(1, 9):
            body = bytes(256 - record_bytes + more * (number == 5))
            store.schedule(Message("orders", body, unique_key=f"K{number:02d}"), AfterMs(5_000))
    with min((tmp_path / "timerlog").iterdir()).open("r+b") as file:
        file.seek(4 * TIMER_UNIT.size + TIMER_UNIT.offset_of("record_size_bytes"))
        file.write((256 + more).to_bytes(4, "big"))
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as store:
        came = [each.message.unique_key for each in store.advance(START_MS + 60_000)]
        assert sorted(map(str, came)) == [f"K{number:02d}" for number in range(9)]
        assert len(store.check()) == 1
