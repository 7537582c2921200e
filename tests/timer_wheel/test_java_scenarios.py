# SPDX-License-Identifier: Apache-2.0
"""What RocketMQ's own tests of its timer wheel and of what belongs to it check, asked of ours.

`docs/COMPATIBILITY.md` says which of their scenarios is which test.
"""

import base64
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.base.clock import ManualClock
from message_store.base.errors import BadFieldError, TargetError, UnsupportedDelayError
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect
from message_store.format.message import Message
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import AfterMs, AtMs, Cancellation, Delivered
from message_store.writing.settings import StoreSettings
from timer_wheel.format.checkpoint import (
    TimerCheckpoint,
    decode_timer_checkpoint,
    encode_timer_checkpoint,
)
from timer_wheel.format.metrics import (
    TimerMetrics,
    TopicCount,
    decode_timer_metrics,
    encode_timer_metrics,
)
from timer_wheel.format.timer_log import TIMER_UNIT, read_units
from timer_wheel.format.wheel_file import SLOT, read_wheel
from timer_wheel.format.wheel_math import WHEEL_SLOTS
from timer_wheel.timers.rows import TimerRows
from timer_wheel.timers.unit_kernels import FLAGS, LOG_OFFSET, SIZE, SLOT_TIME, WRITE_TIME
from timer_wheel.wheel.log import LiveTimerLog
from timer_wheel.wheel.slots import LiveWheel
from timer_wheel.wheel.store import WheelStore

P = 500
NOW_MS = 1_700_000_000_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=10_240 // 20 * 20, timer_log_file_bytes=1024
)
Open = Callable[..., WheelStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def open_wheel(tmp_path: Path, clock: ManualClock) -> Open:
    def open_one(**wheel: object) -> WheelStore:
        return WheelStore.open(
            tmp_path, clock=clock, precision_ms=P, settings=SMALL, **wheel  # type: ignore[arg-type]
        )  # fmt: skip

    return open_one


def keys(found: Iterable[Delivered]) -> list[str | None]:
    return [each.message.unique_key for each in found]


# --- the store as a whole -------------------------------------------------------------------------


def test_messages_of_ten_topics_wait_and_then_stand_in_their_topics(
    open_wheel: Open, clock: ManualClock
) -> None:
    due_ms = NOW_MS + 3_000
    with open_wheel() as store:
        for topic in range(10):
            # What a client set: an instant, or a delay in seconds.
            steering = {"TIMER_DELIVER_MS": f"{due_ms}"} if topic % 2 else {"TIMER_DELAY_SEC": "3"}
            for number in range(5):
                message = Message(f"topic{topic}", bytes([number]), properties=steering)
                assert store.put(message).promised_ms == due_ms
        waiting = Counter(each.topic for each in store.pending())
        assert waiting == {f"topic{topic}": 5 for topic in range(10)}
        assert len(store.advance(due_ms - 1)) == 0
        clock.tick(3_000)
        assert len(store.advance(due_ms)) == 50
        for topic in range(10):
            found = store.topic(f"topic{topic}").read(0, 0)
            assert [each.body for each in found] == [bytes([number]) for number in range(5)]
        assert list(store.pending()) == []


def test_a_disk_that_refuses_five_times_loses_nothing(
    open_wheel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_at = LiveSegments.write_at
    refusals = 5

    def refusing(self: LiveSegments, offset: int, data: bytes) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise TargetError("busy")
        write_at(self, offset, data)

    def opened() -> WheelStore:
        while True:
            with suppress(TargetError):
                return open_wheel()

    store = open_wheel()
    receipt = store.schedule(Message("t", b"x"), AtMs(NOW_MS + 3_000))
    monkeypatch.setattr(LiveSegments, "write_at", refusing)
    for _ in range(20):
        try:
            store.advance(NOW_MS + 3_000)
        except TargetError:
            store.abandon()
            store = opened()
    found = store.topic("t").read(0, 0)
    store.close()
    assert refusals == 0
    assert [each.unique_key for each in found] == [receipt.unique_key]


def test_a_slot_that_fills_up_takes_all_then_some_then_none(
    open_wheel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first beyond the limit has odds of one in a hundred: 2 of 100 runs took none of 500.
    dice = random.Random(1)
    monkeypatch.setattr("timer_wheel.wheel.store.random.Random", lambda: dice)
    due_ms, held = NOW_MS + 100_000, 0
    came = Counter[str]()
    with open_wheel(congest_num_each_slot=100) as store:
        for _ in range(500):
            try:
                store.schedule(Message("t", b""), AtMs(due_ms))
            except UnsupportedDelayError:
                assert held > 100
                came["refused"] += 1
            else:
                assert held < 200
                came["free" if held <= 100 else "congested"] += 1
                held += 1
    assert came["free"] == 101
    assert 0 < came["congested"] < 100
    assert came["refused"] == 500 - came["free"] - came["congested"]


def test_what_is_overdue_comes_with_the_next_look(open_wheel: Open) -> None:
    with open_wheel() as store:
        for _ in range(10):
            store.schedule(Message("t", b"x"), AtMs(NOW_MS - 2 * P))
        assert len(store.advance(NOW_MS)) == 10
        assert len(store.topic("t").read(0, 0)) == 10


def test_one_of_five_in_a_slot_is_deleted(open_wheel: Open, clock: ManualClock) -> None:
    with open_wheel() as store:
        receipts = [store.schedule(Message("t", b"x"), AtMs(NOW_MS + 1_000)) for _ in range(5)]
        assert store.cancel(receipts[0]) is Cancellation.CANCELLED
        clock.tick(1_000)
        delivered = store.advance(clock.now_ms())
        assert keys(delivered) == [each.unique_key for each in receipts[1:]]
        assert len(store.topic("t").read(0, 0)) == 4


@pytest.mark.parametrize(
    ("dialect", "form"),
    [(Dialect.ROCKETMQ_5_3, "{topic}+{key}"), (Dialect.ROCKETMQ_5_5, "{key}")],
)
def test_a_delete_marker_that_a_client_sends_deletes_in_the_form_of_its_version(
    open_wheel: Open, clock: ManualClock, dialect: Dialect, form: str
) -> None:
    due_ms = NOW_MS + 1_000
    with open_wheel(dialect=dialect) as store:
        for topic in ("t", "u"):
            store.schedule(Message(topic, b"x", unique_key="AB01"), AtMs(due_ms))
        steering = {
            "TIMER_DELIVER_MS": f"{due_ms}",
            "TIMER_DEL_UNIQKEY": form.format(topic="t", key="AB01"),
        }
        store.put(Message("t", b"0", properties=steering))
        clock.tick(1_000)
        store.advance(due_ms)
        assert [len(store.topic(topic).read(0, 0)) for topic in ("t", "u")] == [0, 1]


def test_a_marker_for_a_key_that_nobody_has_deletes_nothing_and_is_not_delivered(
    open_wheel: Open, clock: ManualClock
) -> None:
    due_ms = NOW_MS + 1_000
    steering = {"TIMER_DELIVER_MS": f"{due_ms}", "TIMER_DEL_UNIQKEY": "XXX"}
    with open_wheel() as store:
        receipts = [store.schedule(Message("t", b"x"), AtMs(due_ms)) for _ in range(5)]
        store.put(Message("t", b"0", properties=steering))
        clock.tick(1_000)
        assert keys(store.advance(due_ms)) == [each.unique_key for each in receipts]
        assert len(store.advance(due_ms + 10_000)) == 0
        past = {**steering, "TIMER_DELIVER_MS": f"{clock.now_ms() - 100}"}
        with pytest.raises(BadFieldError, match="a time that is past"):
            store.put(Message("t", b"0", properties=past))


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_damaged_slot_is_repaired_from_the_log_and_the_state_is_as_it_was(
    tmp_path: Path, open_wheel: Open, clock: ManualClock, clean: bool
) -> None:
    count, due_ms = 250, NOW_MS + 5_000
    store = open_wheel()
    receipts = [
        store.schedule(Message("t", b"x"), AfterMs(5_000) if number % 2 else AtMs(due_ms))
        for number in range(count)
    ]
    store.advance(NOW_MS)
    store.flush()
    before = decode_timer_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert (before.last_queue_offset, before.master_queue_offset) == (count, count)
    assert before.last_read_time_ms <= NOW_MS + P
    if clean:
        store.close()
    else:
        store.abandon()
    assert len(list((tmp_path / "timerlog").iterdir())) == -(-count // 19)  # 19 units a file
    with (tmp_path / "timerwheel").open("r+b") as wheel:
        index = (due_ms - P) // P % WHEEL_SLOTS
        wheel.seek(index * SLOT.size)
        held = SLOT.decode_at(wheel.read(SLOT.size), 0)
        assert held["time_units"] == (due_ms - P) // P
        wheel.seek(index * SLOT.size)
        wheel.write(SLOT.encode(**{**held, "first_position": -1, "last_position": 2**63 - 1}))
    store = open_wheel()
    after = decode_timer_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert attrs.evolve(after, timestamp_ms=0, counter=0) == attrs.evolve(
        before, timestamp_ms=0, counter=0
    )
    clock.tick(5_000)
    assert keys(store.advance(due_ms)) == [each.unique_key for each in receipts]
    store.close()


@pytest.mark.parametrize("beyond_ms", [20_000, 1])
def test_a_delay_beyond_the_longest_is_refused(open_wheel: Open, beyond_ms: int) -> None:
    delay_ms = 3 * 86_400_000 + beyond_ms
    with open_wheel() as store:
        for due in (AtMs(NOW_MS + delay_ms), AfterMs(delay_ms)):
            with pytest.raises(UnsupportedDelayError):
                store.schedule(Message("t", b"x"), due)
        assert list(store.pending()) == []


def test_a_message_two_windows_away_rolls_once(open_wheel: Open, clock: ManualClock) -> None:
    due_ms = NOW_MS + 4 * P
    with open_wheel(roll_window_slots=2) as store:
        store.schedule(Message("t", b"x"), AtMs(due_ms))
        delivered: list[Delivered] = []
        while clock.now_ms() < due_ms:
            delivered += store.advance(clock.now_ms())
            assert delivered == []
            clock.tick(P // 5)
        [each] = store.advance(due_ms)
        assert each.message.properties["TIMER_ROLL_TIMES"] == "1"
        assert each.promised_ms == due_ms


# --- slots ----------------------------------------------------------------------------------------


def slot_at(tmp_path: Path, slot_ms: int) -> tuple[int, ...]:
    held = read_wheel(StoreRoot(tmp_path)).slot(slot_ms // P % WHEEL_SLOTS)[0]
    return tuple(int(number) for number in held)


def test_a_slot_is_empty_and_then_holds_the_two_ends_of_its_chain(
    tmp_path: Path, open_wheel: Open
) -> None:
    slot_ms = NOW_MS + P
    with open_wheel() as store:
        store.flush()
        assert slot_at(tmp_path, slot_ms) == (0, 0, 0, 0, 0)
        store.schedule(Message("t", b"elsewhere"), AtMs(slot_ms + 2 * P))
        for _ in range(3):
            store.schedule(Message("t", b"x"), AtMs(slot_ms + P))
        store.advance(NOW_MS)
        store.live.flush_all_next()
        store.flush()
        assert slot_at(tmp_path, slot_ms) == (slot_ms // P, 52, 3 * 52, 3, 0)
    with open_wheel():  # as it was, after a restart
        assert slot_at(tmp_path, slot_ms) == (slot_ms // P, 52, 3 * 52, 3, 0)


def rows_in(slot_times_ms: list[int], first_offset: int = 0) -> TimerRows:
    rows = TimerRows.empty(len(slot_times_ms))
    rows.table[:] = 0
    rows.table[SLOT_TIME] = slot_times_ms
    rows.table[WRITE_TIME] = NOW_MS
    rows.table[FLAGS] = 1
    rows.table[LOG_OFFSET] = first_offset + np.arange(len(rows)) * 1_000
    rows.table[SIZE] = 1_000
    return rows


def timer_log(folder: Path) -> LiveTimerLog:
    return LiveTimerLog(LiveSegments(folder / "timerlog", 1024, root=folder))


def test_messages_are_counted_slot_by_slot_and_from_the_hand_on(tmp_path: Path) -> None:
    wheel, log = LiveWheel(P, NOW_MS), timer_log(tmp_path)
    log.append(rows_in([NOW_MS + P] * 3 + [NOW_MS + 6 * P] * 7), wheel)
    assert [wheel.unit_count(NOW_MS + slot * P) for slot in (1, 2, 6)] == [3, 0, 7]
    used = wheel.used_slots()
    assert sum(wheel.unit_count(int(slot) * P) for slot in used) == 10
    wheel.move_hand(NOW_MS + 2 * P)
    assert wheel.unit_count(NOW_MS + P) == 0
    assert wheel.used_slots().tolist() == [(NOW_MS + 6 * P) // P]
    log.segments.close()


# --- the timer log --------------------------------------------------------------------------------


def test_units_fill_file_after_file_and_old_files_are_taken_away(tmp_path: Path) -> None:
    wheel, log = LiveWheel(P, NOW_MS), timer_log(tmp_path)
    for number in range(10):
        log.append(rows_in([NOW_MS + P], number * 1_000), wheel)
        assert log.last_position == number * TIMER_UNIT.size
    log.append(rows_in([NOW_MS + P] * 100, 10_000), wheel)
    assert len(log.segments.starts) == 6
    assert log.units(9 * TIMER_UNIT.size, 1).commit_log_offset.tolist() == [9_000]
    assert len(log.delete_expired(commit_log_min=1_000_000)) == 5
    assert len(log.segments.starts) == 1
    log.segments.close()


def test_a_timer_log_is_found_again_as_it_was_left(tmp_path: Path) -> None:
    wheel, log = LiveWheel(P, NOW_MS), timer_log(tmp_path)
    log.append(rows_in([NOW_MS + P] * 25), wheel)
    end = log.end
    log.segments.close()
    again = timer_log(tmp_path)
    assert again.find_end() == 0
    assert (again.end, len(again.segments.starts)) == (end, 2)
    again.segments.close()
    with SegmentReader(tmp_path / "timerlog") as reader:
        units = read_units(reader)
    assert units.units["commit_log_offset"].tolist() == [each * 1_000 for each in range(25)]


# --- checkpoint, metrics, handles, rules ----------------------------------------------------------

NUMBERS = TimerCheckpoint(1000, 1100, 1200, 1300, 1400, 1500, 1600)


@pytest.mark.parametrize("numbers", [TimerCheckpoint(1000, 1100, 1200, 1300), NUMBERS])
def test_a_checkpoint_is_read_back_with_all_its_numbers(numbers: TimerCheckpoint) -> None:
    assert decode_timer_checkpoint(encode_timer_checkpoint(numbers)) == numbers


def test_a_new_checkpoint_is_zeros_and_says_later_how_far_the_wheel_is(
    tmp_path: Path, open_wheel: Open
) -> None:
    assert decode_timer_checkpoint(b"") == TimerCheckpoint()
    with open_wheel() as store:
        store.schedule(Message("t", b"x"), AtMs(NOW_MS + 10 * P))
        store.advance(NOW_MS)
    found = decode_timer_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert (found.last_queue_offset, found.master_queue_offset, found.flush_position) == (1, 1, 52)
    assert found.last_read_time_ms == NOW_MS


def test_counts_by_topic_are_read_back_with_their_times() -> None:
    metrics = TimerMetrics({"AAA": TopicCount(1000, 7), "BBB": TopicCount(2000, 8)}, counter=3)
    assert decode_timer_metrics(encode_timer_metrics(metrics).encode()) == metrics


@pytest.mark.parametrize(
    ("topic", "is_taken"),
    [
        ("T" * 127, True),
        ("T" * 128, False),
        ("%RETRY%" + "G" * 128, True),
        ("%RETRY%" + "G" * (255 - 7), True),
        ("%RETRY%" + "G" * (256 - 7), False),
    ],
    ids=lambda value: f"{len(value)}" if isinstance(value, str) else "",
)
def test_a_topic_is_as_long_as_brokers_take_it(
    open_wheel: Open, topic: str, is_taken: bool
) -> None:
    with open_wheel() as store:
        if is_taken:
            store.schedule(Message(topic, b"x" * 127), AtMs(NOW_MS))
            assert [each.message.topic for each in store.advance(NOW_MS + P)] == [topic]
        else:
            with pytest.raises(BadFieldError):
                store.schedule(Message(topic, b"x" * 127), AtMs(NOW_MS))


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("text", ["", encoded("v1 a b c"), encoded("v2 a b c d"), "v1 a b c d"])
def test_text_that_is_no_handle_of_version_1_is_refused(text: str) -> None:
    with pytest.raises(BadFieldError):
        RecallHandle.parse(text)


def test_a_handle_is_read_back_part_by_part() -> None:
    handle = RecallHandle("topic", "broker-0", NOW_MS, "0A0102030001")
    assert RecallHandle.parse(handle.text()) == handle
    assert base64.urlsafe_b64decode(handle.text()) == (
        b"v1 topic broker-0 1700000000000 0A0102030001"
    )
