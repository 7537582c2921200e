# SPDX-License-Identifier: Apache-2.0
"""Single rules of the reference wheel, over a protocol in memory: what waits, and what is lost."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, Cancellation, ManualClock, Message
from message_store.base.errors import BadFieldError, TargetError, UnsupportedStoreError
from message_store.format import properties as names
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import LOCAL_HOST, StoredMessage
from message_store.format.message_rules import MAX_MESSAGE_BYTES
from message_store.format.properties import TIMER_TOPIC, encode_properties
from message_store.writing.settings import StoreSettings
from timer_wheel import WheelStore
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_math import effective_roll_window
from timer_wheel.reference.files import LogOfUnits, RecordsOfStore
from timer_wheel.reference.protocol import (
    MessageExtBrokerInner,
    PutMessageStatus,
    Slot,
    StoreFiles,
    TimerConfig,
)
from timer_wheel.reference.store import ReferenceWheelStore, run_until_idle
from timer_wheel.timer_message_store import HOLD_MOMENT_MS, TimerMessageStore
from timer_wheel.wheel.settings import WheelSettings

NOW_MS = 1_700_000_000_000
SIZE = 200


@attrs.define(eq=False)
class Memory:
    """All that ``TimerMessageStore`` stands on, in lists: one object plays every part."""

    messages: list[StoredMessage] = attrs.field(factory=list)
    units: list[bytes] = attrs.field(factory=list)
    slots: dict[int, Slot] = attrs.field(factory=dict)
    answers: list[PutMessageStatus] = attrs.field(factory=list)
    put: list[MessageExtBrokerInner] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)
    checkpoint: TimerCheckpoint = attrs.field(
        factory=lambda: TimerCheckpoint(last_read_time_ms=NOW_MS)
    )
    dialect: Dialect = Dialect.ROCKETMQ_5_5
    sizes: dict[int, int] = attrs.field(factory=dict)
    min_offset: int = 0
    file_size: int = 1 << 20

    @property
    def max_offset(self) -> int:
        return len(self.messages)

    def unit(self, queue_offset: int) -> tuple[int, int] | None:
        if not 0 <= queue_offset < self.max_offset:
            return None
        return queue_offset, self.sizes.get(queue_offset, SIZE)

    def get_message(self, offset_py: int, size_py: int) -> StoredMessage | None:
        if size_py > MAX_MESSAGE_BYTES + 100:
            if self.dialect is Dialect.ROCKETMQ_5_3:
                raise BadFieldError("too large")
            return None
        return self.messages[offset_py]

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageStatus:
        status = self.answers.pop(0) if self.answers else PutMessageStatus.PUT_OK
        if status is PutMessageStatus.PUT_OK:
            self.put.append(message)
        return status

    @property
    def flushed_where(self) -> int:
        return len(self.units) * TIMER_UNIT.size

    def files(self) -> tuple[int, ...]:
        return (0,) if self.units else ()

    def append(self, unit: bytes) -> int:
        self.units.append(unit)
        return (len(self.units) - 1) * TIMER_UNIT.size

    def read_raw(self, position: int) -> dict[str, int] | None:
        index = position // TIMER_UNIT.size
        if not 0 <= index < len(self.units):
            return None
        return TIMER_UNIT.decode_at(self.units[index], 0)

    get_timer_message = read_raw

    def truncate_dirty_files(self, position: int) -> None:
        del self.units[position // TIMER_UNIT.size :]

    def flush(self) -> None:
        pass

    def get_slot(self, time_ms: int) -> Slot:
        return self.slots.get(time_ms // 1000, Slot())

    def put_slot(self, time_ms: int, first_pos: int, last_pos: int, num: int, magic: int) -> None:
        self.slots[time_ms // 1000] = Slot(time_ms // 1000 * 1000, first_pos, last_pos, num, magic)

    def revise_slot(self, time_ms: int, last_pos: int) -> None:
        first = self.get_slot(time_ms).first_pos
        self.put_slot(time_ms, last_pos if first == -1 else first, last_pos, 0, 0)

    def check_phy_pos(self, time_start_ms: int, max_offset: int) -> int:
        return LONG_MAX

    def read(self) -> TimerCheckpoint:
        return self.checkpoint

    def write(self, checkpoint: TimerCheckpoint) -> None:
        self.checkpoint = checkpoint

    def add_and_get(self, message: StoredMessage, value: int) -> None:
        self.counts[message.real_topic] += value

    def wait(self, out_ms: int | None, **properties: str) -> None:
        """One more entry of the timer queue."""
        number = len(self.messages)
        text = {"REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": f"K{number}"} | properties
        if out_ms is not None:
            text["TIMER_OUT_MS"] = str(out_ms)
        self.messages.append(
            StoredMessage(
                topic=TIMER_TOPIC,
                body=b"",
                body_crc=0,
                properties_text=encode_properties((n, v) for n, v in text.items() if v),
                queue_id=0,
                queue_offset=number,
                commit_log_offset=number,
                born_timestamp_ms=0,
                born_host=LOCAL_HOST,
                store_timestamp_ms=0,
                store_host=LOCAL_HOST,
            )
        )

    @property
    def keys(self) -> list[str | None]:
        """What was put, in order."""
        return [each.source.unique_key for each in self.put]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def started(memory: Memory, clock: ManualClock, **config: object) -> TimerMessageStore:
    made = TimerConfig(dialect=memory.dialect, **config)  # type: ignore[arg-type]
    files = StoreFiles(memory, memory, memory, memory, memory, memory)
    timers = TimerMessageStore(made, clock, files)
    timers.load()
    timers.start()
    return timers


def run(timers: TimerMessageStore, clock: ManualClock, until_ms: int) -> None:
    clock.tick(until_ms - clock.now_ms())
    run_until_idle(timers.services)


def test_a_slot_goes_in_order_of_placing_less_what_is_deleted(
    memory: Memory, clock: ManualClock
) -> None:
    for _ in range(3):
        memory.wait(NOW_MS + 2_000)
    memory.wait(NOW_MS + 2_000, TIMER_DEL_UNIQKEY="K1")
    timers = started(memory, clock)
    run(timers, clock, NOW_MS)
    assert memory.counts["orders"] == 2
    run(timers, clock, NOW_MS + 2_999)
    assert memory.keys == []
    run(timers, clock, NOW_MS + 3_000)
    assert memory.keys == ["K0", "K2"]


def test_a_marker_of_5_3_names_the_topic_too(memory: Memory, clock: ManualClock) -> None:
    memory.dialect = Dialect.ROCKETMQ_5_3
    memory.wait(NOW_MS + 2_000)
    memory.wait(NOW_MS + 2_000)
    memory.wait(NOW_MS + 2_000, TIMER_DEL_UNIQKEY="K0")
    memory.wait(NOW_MS + 2_000, TIMER_DEL_UNIQKEY="orders+K1")
    timers = started(memory, clock)
    run(timers, clock, NOW_MS)
    run(timers, clock, NOW_MS + 3_000)
    assert memory.keys == ["K0"]


def test_what_is_found_too_late_gets_no_unit(memory: Memory, clock: ManualClock) -> None:
    timers = started(memory, clock)
    run(timers, clock, NOW_MS + 5_000)
    memory.wait(NOW_MS + 4_999)
    run(timers, clock, NOW_MS + 5_000)
    assert memory.units == []
    [put] = memory.put
    assert dict(put.properties)["TIMER_ENQUEUE_MS"] == str(LONG_MAX)


@pytest.mark.parametrize("lacks", ["REAL_TOPIC", "REAL_QID"])
def test_the_wheel_stands_still_at_a_message_that_can_go_nowhere(
    memory: Memory, clock: ManualClock, lacks: str
) -> None:
    memory.wait(NOW_MS + 1_000, **{lacks: ""})
    memory.wait(NOW_MS + 2_000)
    timers = started(memory, clock)
    run(timers, clock, NOW_MS)
    for later_ms in (2_000, 5_000, 60_000):
        run(timers, clock, NOW_MS + later_ms)
        assert timers.curr_read_time_ms == NOW_MS + 1_000
    assert timers.services[-1].step() == HOLD_MOMENT_MS
    assert memory.keys == []


def test_the_queue_stands_still_at_a_message_without_its_time(
    memory: Memory, clock: ManualClock
) -> None:
    memory.wait(None)
    memory.wait(NOW_MS + 1_000)
    timers = started(memory, clock)
    run(timers, clock, NOW_MS)
    assert (timers.curr_queue_offset, memory.units) == (0, [])
    skipping = started(memory, clock, skip_unknown_error=True)
    run(skipping, clock, NOW_MS)
    assert (skipping.curr_queue_offset, len(memory.units)) == (2, 1)


@pytest.mark.parametrize(
    ("dialect", "read"), [(Dialect.ROCKETMQ_5_3, 0), (Dialect.ROCKETMQ_5_4, 2)]
)
def test_a_record_larger_than_the_buffer(
    memory: Memory, clock: ManualClock, dialect: Dialect, read: int
) -> None:
    memory.dialect = dialect
    memory.wait(NOW_MS + 1_000)
    memory.wait(NOW_MS + 1_000)
    memory.sizes[0] = MAX_MESSAGE_BYTES + 101
    timers = started(memory, clock)
    run(timers, clock, NOW_MS)
    assert (timers.curr_queue_offset, len(memory.units)) == (read, read // 2)


@pytest.mark.parametrize("keeps_trying", [False, True])
def test_a_put_that_is_refused_three_times_is_in_vain(
    memory: Memory, clock: ManualClock, keeps_trying: bool
) -> None:
    memory.wait(NOW_MS + 1_000)
    memory.wait(NOW_MS + 1_000)
    memory.answers = [PutMessageStatus.SERVICE_NOT_AVAILABLE] * 3
    timers = started(memory, clock, retry_until_success=keeps_trying)
    run(timers, clock, NOW_MS)
    for _ in range(3):
        run(timers, clock, NOW_MS + 2_000)
    assert memory.keys == (["K0", "K1"] if keeps_trying else ["K1"])


def test_the_checkpoint_names_no_group_that_is_not_wholly_done(
    memory: Memory, clock: ManualClock
) -> None:
    timers = started(memory, clock)
    run(timers, clock, NOW_MS + 5_000)
    for _ in range(11):
        memory.wait(NOW_MS + 9_000)
    memory.wait(NOW_MS)  # overdue: it waits for the last service
    memory.wait(NOW_MS + 9_000)
    enqueue = timers.services[:2]
    run_until_idle(enqueue)
    assert (timers.commit_queue_offset, len(timers.dequeue_put_queue)) == (11, 1)
    run_until_idle(timers.services)
    assert (timers.commit_queue_offset, len(memory.units)) == (13, 12)


def test_more_than_a_queue_holds_is_placed_in_turns(memory: Memory, clock: ManualClock) -> None:
    for _ in range(3_000):
        memory.wait(NOW_MS + 9_000)
    timers = started(memory, clock)
    enqueue_get = timers.services[1]
    assert enqueue_get.step() == 3_000
    assert len(timers.enqueue_put_queue) == 1_024
    run(timers, clock, NOW_MS)
    assert memory.get_slot(NOW_MS + 9_000).num == 3_000


def test_a_far_message_is_parked_and_rolls(memory: Memory, clock: ManualClock) -> None:
    memory.wait(NOW_MS + 8_000)
    timers = started(memory, clock, roll_window_slots=6)
    run(timers, clock, NOW_MS)
    assert [*memory.slots] == [(NOW_MS + 6_000) // 1000]
    memory.wait(NOW_MS + 7_999)
    run(timers, clock, NOW_MS)
    assert (NOW_MS + 3_000) // 1000 in memory.slots
    run(timers, clock, NOW_MS + 4_000)
    [put] = memory.put
    assert (put.is_roll, put.topic, dict(put.properties)["TIMER_ROLL_TIMES"]) == (
        True,
        TIMER_TOPIC,
        "1",
    )


# --- on a real directory --------------------------------------------------------------------------


def test_a_kill_repeats_what_was_delivered_since_the_last_flush(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = ReferenceWheelStore.open(tmp_path, clock=clock)
    for number in range(3):
        message = Message("orders", b"", unique_key=f"K{number}")
        store.schedule(message, AtMs(NOW_MS + 1_000 * (number + 1)))
    store.flush()
    came: list[str | None] = []
    for _ in range(2):
        clock.tick(1_000)
        came += [each.message.unique_key for each in store.advance(clock.now_ms())]
        if len(came) == 1:
            store.flush()
    store.abandon()
    with ReferenceWheelStore.open(tmp_path, clock=clock) as store:
        clock.tick(5_000)
        came += [each.message.unique_key for each in store.advance(clock.now_ms())]
    assert came == ["K0", "K1", "K1", "K2"]


def test_the_settings_of_a_broker_have_one_name() -> None:
    rules = WheelSettings.of_broker("5.5.0")
    assert (rules.precision_ms, rules.roll_window_slots) == (1000, effective_roll_window(172_800))
    assert WheelSettings.of_broker("5.3.3", roll_window_slots=60).roll_window_slots == 60
    with pytest.raises(UnsupportedStoreError, match=r"5\.3\.3, 5\.4\.0, 5\.5\.0"):
        WheelSettings.of_broker("4.9.7")


@pytest.mark.parametrize("first", [ReferenceWheelStore, WheelStore])
def test_each_goes_on_where_the_other_stopped(
    tmp_path: Path, clock: ManualClock, first: type[ReferenceWheelStore] | type[WheelStore]
) -> None:
    second = WheelStore if first is ReferenceWheelStore else ReferenceWheelStore
    came: list[str | None] = []
    rules = WheelSettings.of_broker("5.5.0", roll_window_slots=12)
    with first.open(tmp_path, clock=clock, rules=rules) as store:
        for number in range(40):
            message = Message("orders", b"", unique_key=f"K{number}")
            store.schedule(message, AtMs(NOW_MS + 1_000 * number + 500))
        for _ in range(20):
            clock.tick(1_000)
            came += [each.message.unique_key for each in store.advance(clock.now_ms())]
        waits = {each.unique_key for each in store.pending()}
    with second.open(tmp_path, clock=clock, rules=rules) as other:
        assert {each.unique_key for each in other.pending()} == waits
        for _ in range(25):
            clock.tick(1_000)
            came += [each.message.unique_key for each in other.advance(clock.now_ms())]
    assert came == [f"K{number}" for number in range(40)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TargetError("no room")])
@pytest.mark.parametrize("stopped", [RecordsOfStore.put_message, LogOfUnits.append])
def test_a_store_whose_services_were_stopped_goes_on_when_it_is_opened_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    stopped: Callable[..., object],
) -> None:
    def stop(*_given: object) -> None:
        raise error

    clock = ManualClock(NOW_MS)
    with ReferenceWheelStore.open(tmp_path / "store", clock=clock) as store:
        store.advance(NOW_MS)
        for delay_ms in (0, 1_000, 60_000):
            store.schedule(Message("orders", b"x"), AtMs(NOW_MS + delay_ms))
        clock.tick(2_000)
        with monkeypatch.context() as patch:
            kind = RecordsOfStore if stopped is RecordsOfStore.put_message else LogOfUnits
            patch.setattr(kind, stopped.__name__, stop)
            with pytest.raises(type(error)):
                store.advance(clock.now_ms())
        for ask in (store.next_due_ms, store.pending, store.flush, lambda: store.advance(NOW_MS)):
            with pytest.raises(TargetError, match="open it again"):
                ask()
    with ReferenceWheelStore.open(tmp_path / "store", clock=clock) as store:
        assert len(store.advance(clock.now_ms())) == 2
        assert store.next_due_ms() == NOW_MS + 60_000


def test_a_delete_marker_that_comes_too_late_for_a_unit_is_not_due(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with ReferenceWheelStore.open(tmp_path / "store", clock=clock) as store:
        store.advance(NOW_MS)
        asked = {names.TIMER_DELETE_UNIQUE_KEY: "K", names.TIMER_DELIVER_MS: str(NOW_MS + 1)}
        store.put(Message("orders", b"x", properties=asked))
        clock.tick(5_000)
        assert store.next_due_ms() is None


class HastyClock(ManualClock):
    """A clock that goes on whenever somebody looks at it."""

    step_ms = 0

    def now_ms(self) -> int:
        self.tick(self.step_ms)
        return super().now_ms()


@pytest.mark.parametrize("made_by", [ReferenceWheelStore, WheelStore])
@pytest.mark.parametrize("ahead_ms", [1, 300, 900, 1_500])
def test_a_slot_that_ends_while_its_message_is_cancelled_keeps_what_was_told(
    made_by: type[ReferenceWheelStore | WheelStore], ahead_ms: int, tmp_path: Path
) -> None:
    clock = HastyClock(NOW_MS)
    with made_by.open(tmp_path / "store", clock=clock) as store:
        receipt = store.schedule(Message("orders", b"x"), AfterMs(5_000))
        store.advance(clock.now_ms())
        clock.tick(receipt.promised_ms - NOW_MS - ahead_ms)
        clock.step_ms = 400
        told = store.cancel(receipt)
        clock.tick(60_000)
        came = len(store.advance(clock.now_ms()))
    assert came == (0 if told is Cancellation.CANCELLED else 1)


def test_what_a_marker_takes_does_not_outlive_its_record(tmp_path: Path) -> None:
    """Retention may have a log file that nothing pending is in; the marker in it takes a message of
    a later file.
    """
    clock = ManualClock(NOW_MS)
    settings = StoreSettings(commit_log_file_bytes=16_384, retention_ms=60_000)
    rules = WheelSettings.of_broker("5.5.0", roll_window_slots=60)
    due, small = AtMs(NOW_MS + 900_000), Message("orders", b"x", unique_key="K")
    with ReferenceWheelStore.open(tmp_path, clock=clock, settings=settings, rules=rules) as store:
        receipt = store.schedule(small, due)
        assert store.cancel(receipt) is Cancellation.CANCELLED
        for _ in range(2):
            later = store.schedule(attrs.evolve(small, body=bytes(9_000)), due)
        assert later.commit_log_offset >= settings.commit_log_file_bytes
        while clock.now_ms() < NOW_MS + 1_000_000:
            clock.tick(61_000)
            assert len(store.advance(clock.now_ms())) == 0
            assert not list(store.pending())


def test_a_link_that_leads_upwards_ends_its_slot(tmp_path: Path) -> None:
    """A broker never gets to the end of it."""
    clock = ManualClock(NOW_MS)
    with ReferenceWheelStore.open(tmp_path, clock=clock) as store:
        for number in range(3):
            store.schedule(Message("orders", b"x", unique_key=f"K{number}"), AtMs(NOW_MS + 50_000))
    with (tmp_path / "timerlog" / ("0" * 20)).open("r+b") as file:
        file.seek(TIMER_UNIT.size + TIMER_UNIT.offset_of("previous_position"))
        file.write(TIMER_UNIT.size.to_bytes(8, "big"))  # the second unit leads to itself
    with ReferenceWheelStore.open(tmp_path, clock=clock) as store:
        clock.tick(60_000)
        assert len(store.advance(clock.now_ms())) == 2


@pytest.mark.parametrize("made_by", [ReferenceWheelStore, WheelStore])
def test_a_checkpoint_that_is_newer_than_the_timer_log_hides_no_entry(
    made_by: type[ReferenceWheelStore | WheelStore], tmp_path: Path
) -> None:
    """The timer log and the wheel are of an older backup."""
    clock, path, names_kept = ManualClock(NOW_MS), tmp_path / "store", ("timerlog", "timerwheel")
    for letter, count in (("A", 3), ("B", 5)):
        with made_by.open(path, clock=clock) as store:
            for number in range(count):
                message = Message("orders", b"x", unique_key=f"{letter}{number}")
                store.schedule(message, AtMs(NOW_MS + 50_000 + 1_000 * number))
        if letter == "A":
            for name in names_kept:
                (shutil.copytree if (path / name).is_dir() else shutil.copy)(
                    path / name, tmp_path / name
                )
    for name in names_kept:
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
        shutil.move(tmp_path / name, path / name)
    with ReferenceWheelStore.open(path, clock=clock) as store:
        clock.tick(120_000)
        assert len(store.advance(clock.now_ms())) == 8
