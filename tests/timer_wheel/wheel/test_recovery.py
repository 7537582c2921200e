# SPDX-License-Identifier: Apache-2.0
"""A wheel after stops, kills and damage: nothing lost, nothing repeated, and what a broker that
takes over would find.
"""

import pkgutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, Cancellation, ManualClock, Message, Severity
from message_store.base.errors import TargetError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import InPlaceFile
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.writing.settings import StoreSettings
from tests.faults.broker_view import found_by_a_broker
from tests.independent.raw_files import read_timer_check, timer_units
from tests.simulation.simulated_disk import Killed
from timer_wheel import WheelStore
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES

START_MS = 1_793_000_000_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=1000, timer_log_file_bytes=20 * 52 + 30
)
FAITHFUL = attrs.evolve(SMALL, repeat_after_kill=True)
HORIZON_MS = START_MS + 3_600_000


def open_store(path: Path, clock: ManualClock, settings: StoreSettings = SMALL) -> WheelStore:
    return WheelStore.open(path, clock=clock, settings=settings, roll_window_slots=60)


def keys(found: object) -> list[str]:
    return [each.message.unique_key for each in found]  # type: ignore[attr-defined]


def fill(store: WheelStore, count: int = 40, step_ms: int = 5_000) -> list[str]:
    """Messages over some minutes, twins among them, most of which roll; their keys."""
    for number in range(count):
        key = f"K{number // 2}" if number % 5 else "TWIN"
        store.schedule(Message("orders", b"body", unique_key=key), AfterMs(step_ms * (number + 1)))
    return [each.unique_key or "" for each in store.pending()]


def rest_of(store: WheelStore) -> list[str]:
    return keys(store.advance(HORIZON_MS))


# --- kills ----------------------------------------------------------------------------------------


def stop_at(patch: pytest.MonkeyPatch, step: str, when: str, count: int) -> None:
    """Kill before or after the n-th call of a function."""
    original = pkgutil.resolve_name(step)
    left = count

    def stopping(*arguments: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            raise Killed
        answer = original(*arguments, **named)
        if left == 0:
            raise Killed
        return answer

    patch.setattr(step, stopping)


def delivered_in(path: Path) -> Counter[str]:
    """What a consumer of the topic would have got, by its queue."""
    root = StoreRoot(path)
    found: Counter[str] = Counter()
    with SegmentReader(root.commit_log) as log:
        for message in records_of_queue(root, log):
            found[message.unique_key or ""] += 1
    return found


def records_of_queue(root: StoreRoot, log: SegmentReader) -> list[StoredMessage]:
    from message_store.reading.consume_queue import read_queue
    from timer_wheel.reading.pending_timers import record_at

    queue = read_queue(root.consume_queue("orders", 0))
    entries = zip(queue.commit_log_offset.tolist(), queue.size_bytes.tolist(), strict=True)
    found = [record_at(log, offset, size) for offset, size in entries]
    return [message for message in found if message is not None]


def test_the_faithful_setting_repeats_the_slots_since_the_checkpoint_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, FAITHFUL)
    for number in range(5):
        store.schedule(Message("orders", b"", unique_key=f"A{number}"), AfterMs(5_000))
        store.schedule(Message("orders", b"", unique_key=f"B{number}"), AfterMs(50_000))
    assert len(store.advance(START_MS + 20_000)) == 5
    with monkeypatch.context() as patch:
        stop_at(patch, "timer_wheel.wheel.files.WheelFiles.save", "before", 1)
        with pytest.raises(Killed):
            store.advance(START_MS + 50_000)
    store.abandon()
    again = open_store(tmp_path, clock, FAITHFUL)
    assert sorted(rest_of(again)) == [f"B{number}" for number in range(5)]
    assert delivered_in(tmp_path).total() == 15
    again.close()


# --- who takes over -------------------------------------------------------------------------------


def test_what_is_placed_while_a_flush_waits_for_the_disk_leaves_no_slot_that_leads_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel file has it, and after a kill other units lie where it lay."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.schedule(Message("orders", b"", unique_key="FIRST"), AfterMs(40_000))
    store.advance(START_MS)
    with monkeypatch.context() as patch:
        sync_queues = pkgutil.resolve_name("message_store.writing.store.LiveStore.sync_queues")

        def place_and_sync(live: object) -> None:
            store.schedule(Message("orders", b"", unique_key="FAR"), AfterMs(100_000))
            assert len(list(store.pending())) == 2
            sync_queues(live)

        patch.setattr("message_store.writing.store.LiveStore.sync_queues", place_and_sync)
        store.flush()
    store.abandon()
    clock.tick(5_000)  # so that it is parked in another slot
    store = open_store(tmp_path, clock)
    assert len(list(store.pending())) == 2
    store.abandon()
    assert found_by_a_broker(tmp_path, clock.now_ms()) == Counter(["FIRST", "FAR"])


def test_overdue_messages_lie_ahead_of_the_hand_where_a_starting_broker_reads(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS + 437)
    store = open_store(tmp_path, clock)
    store.advance(clock.now_ms())
    for _ in range(3):
        store.schedule(Message("orders", b"x"), AtMs(0))
    store.close()
    check = read_timer_check(tmp_path / "config" / "timercheck")
    for unit in timer_units(tmp_path / "timerlog"):
        assert unit.slot_time_ms >= check.last_read_time_ms
    again = open_store(tmp_path, clock)
    assert len(again.advance(clock.now_ms())) == 3
    again.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_came_by_a_clock_that_was_ahead_is_found_by_no_broker_after_a_close(
    tmp_path: Path, is_killed: bool
) -> None:
    """The hand moves back for what is scheduled by the right clock, over slots that are done."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    receipts = [
        store.schedule(Message("orders", b"", unique_key=f"CAME{n}"), AfterMs(10_000 * n))
        for n in range(1, 6)
    ]
    assert store.cancel(receipts[4]) is Cancellation.CANCELLED
    assert len(store.advance(START_MS + 100_000)) == 4
    store.schedule(Message("orders", b"", unique_key="WAITS"), AfterMs(5_000))
    store.schedule(Message("orders", b"", unique_key="BESIDE"), AfterMs(10_000))
    assert list(store.advance(START_MS + 1_000)) == []
    if is_killed:
        store.abandon()
        store = open_store(tmp_path, clock)
    store.close()
    assert found_by_a_broker(tmp_path, START_MS + 2_000) == Counter(["WAITS", "BESIDE"])
    again = open_store(tmp_path, clock)
    answers = [again.cancel(receipt) for receipt in receipts]
    assert answers == [Cancellation.ALREADY_DELIVERED] * 4 + [Cancellation.CANCELLED]
    assert sorted(rest_of(again)) == ["BESIDE", "WAITS"]
    again.close()


def test_what_lay_below_in_a_slot_that_is_emptied_comes_to_light_for_nobody(tmp_path: Path) -> None:
    """The hand passed a slot twice, back and on again, so that no chain leads to what it held
    first.
    """
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    for key in ("FIRST", "SECOND"):
        store.schedule(Message("orders", b"", unique_key=key), AfterMs(50_000))
        store.schedule(Message("orders", b"", unique_key=f"BEFORE{key}"), AfterMs(40_000))
        assert list(store.advance(START_MS)) == []
        came = keys(store.advance(START_MS + 55_000))
        assert came == [f"BEFORE{key}", key]
    store.schedule(Message("orders", b"", unique_key="WAITS"), AfterMs(30_000))
    assert list(store.advance(START_MS)) == []
    store.flush()
    store.abandon()
    store = open_store(tmp_path, clock)
    store.close()
    assert found_by_a_broker(tmp_path, START_MS) == Counter(["WAITS"])
    store = open_store(tmp_path, clock)
    assert rest_of(store) == ["WAITS"]
    store.close()


def test_what_has_rolled_comes_once_after_two_kills(tmp_path: Path) -> None:
    """The first takes its unit away, and what was placed again before the second is no roll."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.schedule(Message("orders", b"", unique_key="ROLLS"), AfterMs(100_000))
    for later_ms in (50_000, 60_000):
        assert list(store.advance(START_MS + later_ms)) == []
    store.abandon()
    clock.tick(60_000)
    for _ in range(2):
        store = open_store(tmp_path, clock)
        assert rest_of_pending(store) == ["ROLLS"]
        clock.tick(10_000)
        store.schedule(Message("orders", b"", unique_key=f"K{clock.now_ms()}"), AfterMs(0))
        assert len(store.advance(clock.now_ms())) == 1
        store.flush()
        store.abandon()
    store = open_store(tmp_path, clock)
    assert rest_of(store) == ["ROLLS"]
    store.close()


def test_equal_messages_that_have_rolled_come_as_often_as_they_were_stored_after_two_kills(
    tmp_path: Path,
) -> None:
    """What the second recovery does not look at any more, the copies of that must count for nothing
    else: the copy of one was given to the other, which had rolled too and still waited.
    """
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    for _ in range(2):
        store.schedule(Message("orders", b"", unique_key="TWIN"), AfterMs(256_000))
    store.advance(START_MS)
    store.flush()
    store.schedule(Message("orders", b"", unique_key="BETWEEN"), AfterMs(5_000))
    assert keys(store.advance(START_MS + 127_500)) == ["BETWEEN"]
    store.abandon()
    clock.tick(127_500)
    for _ in range(2):
        store = open_store(tmp_path, clock)
        store.flush()
        store.abandon()
    store = open_store(tmp_path, clock)
    assert rest_of(store) == ["TWIN", "TWIN"]
    store.close()


def rest_of_pending(store: WheelStore) -> list[str]:
    """The unique keys of what waits."""
    return [str(each.unique_key) for each in store.pending()]


def test_what_waits_for_the_time_of_a_clock_that_was_ahead_comes_once_or_is_recalled(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.advance(START_MS + 50_000)
    overdue = [store.schedule(Message("orders", b"", unique_key=key), AfterMs(0)) for key in "AB"]
    clock.tick(-100_000)
    store.schedule(Message("orders", b"", unique_key="C"), AfterMs(30_000))
    store.advance(clock.now_ms())
    assert store.cancel(overdue[1]) is Cancellation.CANCELLED
    store.close()
    store = open_store(tmp_path, clock)
    assert keys(store.advance(START_MS - 50_000)) == ["C"]
    store.close()
    store = open_store(tmp_path, clock)
    assert rest_of_pending(store) == ["A"]
    assert keys(store.advance(START_MS)) == ["A"]
    store.flush()
    store.abandon()
    store = open_store(tmp_path, clock)
    assert rest_of(store) == []
    store.close()
    store = open_store(tmp_path, clock)
    assert rest_of(store) == []
    store.close()


def test_what_was_done_takes_no_slot_from_what_waits_a_round_later(tmp_path: Path) -> None:
    """Done is put behind the hand, and that slot of the ring is also the last before it."""
    clock = ManualClock(START_MS)
    day_ms = 86_400_000
    store = WheelStore.open(tmp_path, clock=clock, precision_ms=100)
    store.advance(START_MS + 6 * day_ms)
    for key, delay_ms in (("FAR", 2 * day_ms), ("NOW", 0), ("NEAR", 1_000)):
        store.schedule(Message("orders", b"", unique_key=key), AfterMs(delay_ms))
    assert keys(store.advance(START_MS)) == ["NOW"]
    assert sorted(rest_of_pending(store)) == ["FAR", "NEAR"]
    assert keys(store.advance(START_MS + 3 * day_ms)) == ["NEAR", "FAR"]
    store.close()


def test_what_was_put_away_leads_nowhere_when_time_passes_over_it_again(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    for key, due_ms in (("LATER", START_MS + 1_000), ("NOW", START_MS)):
        store.schedule(Message("orders", b"", unique_key=key), AtMs(due_ms))
    store.close()
    store = open_store(tmp_path, clock)
    assert keys(store.advance(START_MS)) == ["NOW"]
    store.close()
    clock.tick(-10_000)
    store = open_store(tmp_path, clock)
    store.schedule(Message("orders", b"", unique_key="BEFORE"), AfterMs(1_000))
    assert keys(store.advance(clock.now_ms())) == []
    store.flush()
    store.abandon()
    store = open_store(tmp_path, clock)
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    assert rest_of(store) == ["BEFORE", "LATER"]
    store.close()


def test_the_checkpoint_announces_units_before_they_are_there_and_counts_those_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a broker neither places again what has a unit nor passes over what has none, also
    where a loss of power took all units: it then goes on where the checkpoint says.
    """
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    fill(store, 2)
    store.flush()
    store.advance(START_MS)
    store.flush()
    fill(store, 1)
    store.advance(START_MS)
    store.schedule(Message("orders", b"x"), AfterMs(5_000))
    path = tmp_path / "config" / "timercheck"
    with monkeypatch.context() as patch:
        stop_at(patch, "timer_wheel.wheel.log.LiveTimerLog.append", "before", 1)
        with pytest.raises(Killed):
            store.advance(START_MS)
    check = read_timer_check(path)
    assert (check.last_queue_offset, check.master_queue_offset) == (2, 4)
    store.abandon()


@pytest.mark.parametrize("is_flushed", [True, False], ids=["some flushed", "none flushed"])
def test_power_that_takes_the_units_and_keeps_the_checkpoint_loses_a_broker_nothing(
    tmp_path: Path, is_flushed: bool
) -> None:
    """The log and its queues are on the disk, as they are while a flush waits for the timer log."""
    store = open_store(tmp_path, ManualClock(START_MS))
    if is_flushed:
        fill(store, 3)
        store.advance(START_MS)
        store.flush()
    flushed = {path: path.read_bytes() for path in (tmp_path / "timerlog").glob("*")}
    expected = fill(store, 30)
    store.advance(START_MS)
    store.abandon()
    for path in (tmp_path / "timerlog").iterdir():
        path.write_bytes(flushed.get(path, bytes(path.stat().st_size)))
    assert found_by_a_broker(tmp_path, START_MS) == Counter(expected)


# --- damage ---------------------------------------------------------------------------------------


def damage_wheel(path: Path) -> None:
    (path / "timerwheel").write_bytes(b"\xff" * 38_707_200)


def cut_wheel(path: Path) -> None:
    (path / "timerwheel").write_bytes(bytes(1000))


def remove(name: str) -> Callable[[Path], None]:
    def remove_it(path: Path) -> None:
        for each in [path / name, *(path / name).glob("*")] if (path / name).exists() else []:
            if each.is_file():
                each.unlink()
        if (path / name).is_dir():
            (path / name).rmdir()

    return remove_it


def zero_last_unit(path: Path) -> None:
    last = list(timer_units(path / "timerlog"))[-1]
    overwrite_timer_log(path, last.position, bytes(52))


def tear_last_unit(path: Path) -> None:
    """Its first half was written, its second half was not."""
    last = list(timer_units(path / "timerlog"))[-1]
    overwrite_timer_log(path, last.position + 26, bytes(26))


def tear_in_the_middle(path: Path) -> None:
    units = list(timer_units(path / "timerlog"))
    overwrite_timer_log(path, units[len(units) // 2].position, bytes(52))


def overwrite_timer_log(path: Path, position: int, data: bytes) -> None:
    size = SMALL.timer_log_file_bytes
    file = path / "timerlog" / f"{position // size * size:020d}"
    content = bytearray(file.read_bytes())
    content[position % size : position % size + len(data)] = data
    file.write_bytes(content)


def zero_timercheck(path: Path) -> None:
    (path / "config" / "timercheck").write_bytes(bytes(4096))


DAMAGES = {
    "wheel damaged": damage_wheel,
    "wheel cut": cut_wheel,
    "wheel lost": remove("timerwheel"),
    "timer log lost": remove("timerlog"),
    "timer checkpoint lost": remove("config/timercheck"),
    "timer checkpoint zeroed": zero_timercheck,
    "last unit zeroed": zero_last_unit,
    "last unit torn": tear_last_unit,
    "unit in the middle zeroed": tear_in_the_middle,
    "metrics lost": remove("config/timermetrics"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_damage_to_the_wheel_loses_and_repeats_nothing(
    tmp_path: Path, damage: Callable[[Path], None], end: str
) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    expected = Counter(fill(store, 60))
    for _ in range(9):
        clock.tick(10_000)
        store.advance(clock.now_ms())
    store.close() if end == "closed" else store.abandon()
    before = delivered_in(tmp_path)
    assert before.total() > 10
    damage(tmp_path)
    again = open_store(tmp_path, clock)
    waiting = Counter(each.unique_key for each in again.pending())
    assert before + waiting == expected
    again.advance(HORIZON_MS)
    assert delivered_in(tmp_path) == expected
    again.close()
    assert found_by_a_broker(tmp_path, clock.now_ms()) == Counter()


def test_a_wheel_file_whose_length_the_disk_refused_gets_it_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does not start on a shorter one."""
    write = InPlaceFile.write
    refused: list[int] = []

    def full_once(
        file: InPlaceFile, content: bytes | memoryview, *, at: int = 0, durably: bool = False
    ) -> None:
        if at == WHEEL_FILE_BYTES - 1 and not refused:
            refused.append(at)
            raise TargetError("no space left on device")
        write(file, content, at=at, durably=durably)

    monkeypatch.setattr(InPlaceFile, "write", full_once)
    store = open_store(tmp_path, ManualClock(START_MS))
    fill(store)
    store.advance(START_MS)
    with pytest.raises(TargetError):
        store.flush()
    store.flush()
    store.close()
    assert refused
    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_FILE_BYTES
