# SPDX-License-Identifier: Apache-2.0
"""The rules of a broker's hooks and of its wheel, one table each, as the store keeps them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    Delivered,
    ManualClock,
    Message,
    MessageBatch,
    Severity,
    StoredMessage,
)
from message_store.base.errors import BadFieldError, TargetError, UnsupportedDelayError
from message_store.files import notes as note_file
from message_store.format.dialect import Dialect
from message_store.format.properties import offset_text
from message_store.writing.settings import StoreSettings
from tests.independent.raw_files import (
    commit_log_records,
    parse_fastjson,
    queue_units,
    read_timer_check,
    timer_units,
    wheel_slots,
)
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.wheel.store import WheelIntake

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=1000, timer_log_file_bytes=20 * 52 + 30
)

Make = Callable[..., WheelStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    opened = []

    def make(**how: object) -> WheelStore:
        settings = {"clock": clock, "settings": SMALL} | how
        opened.append(WheelStore.open(tmp_path / "store", **settings))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make: Make) -> WheelStore:
    return make()


def refuse(*_given: object, **_options: object) -> None:
    raise TargetError("no room")


def asking(**properties: str) -> Message:
    return Message("orders", b"x", properties=properties, unique_key="K")


def timed_records(store: WheelStore) -> list[dict[str, str]]:
    """The properties of all records of the timer topic, in order."""
    log = store.live.root.commit_log
    found = [placed.record for placed in commit_log_records(log)]
    return [each.effective for each in found if each.topic == "rmq_sys_wheel_timer"]


# --- what a message asks for (the hooks) ----------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELIVER_MS": str(START_MS + 9_000)}, START_MS + 9_000),
        ({"TIMER_DELAY_MS": "4321"}, START_MS + 4_321),
        ({"TIMER_DELAY_SEC": "7"}, START_MS + 7_000),
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "1"}, START_MS + 7_000),
        ({"TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": "1"}, START_MS + 5_000),
        (
            {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "5"},
            START_MS + 2_000,
        ),
        ({"TIMER_DELAY_SEC": "+3"}, START_MS + 3_000),
        ({"DELAY": "2", "TIMER_DELAY_SEC": "100"}, START_MS + 5_000),
        ({"DELAY": "0", "TIMER_DELAY_SEC": "100"}, START_MS + 100_000),
        ({"DELAY": "99"}, START_MS + 7_200_000),
    ],
)
def test_precedence_of_the_properties(
    store: WheelStore, properties: dict[str, str], due_ms: int
) -> None:
    assert store.put(asking(**properties)).due_ms == due_ms
    assert len(store.advance(due_ms + 999)) == 1


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"TIMER_OUT_MS": str(START_MS + 50_000)},
        {"TIMER_OUT_MS": str(START_MS), "TIMER_DELAY_SEC": "60"},
        {"TIMER_DELIVER_MS": "0"},
        {"TIMER_DELIVER_MS": str(START_MS)},
        {"TIMER_DELAY_SEC": "-5"},
        {"__STARTDELIVERTIME": str(START_MS + 60_000)},
    ],
)
def test_what_is_not_delayed_comes_at_once(store: WheelStore, properties: dict[str, str]) -> None:
    assert store.put(asking(**properties)).promised_ms == START_MS
    [delivered] = store.advance(START_MS)
    assert delivered.message.body == b"x"


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"])
@pytest.mark.parametrize("value", ["soon", "1.5", "", " 1", "9223372036854775808"])
def test_a_time_that_is_no_number_is_refused(store: WheelStore, name: str, value: str) -> None:
    with pytest.raises(BadFieldError, match=name):
        store.put(asking(**{name: value}))
    assert list(store.pending()) == []


def test_the_alias_counts_only_where_it_is_asked_for_and_last(make: Make) -> None:
    store = make(start_deliver_time_alias=True)
    at = str(START_MS + 60_000)
    assert store.put(asking(__STARTDELIVERTIME=at)).due_ms == START_MS + 60_000
    both = asking(__STARTDELIVERTIME=at, TIMER_DELAY_SEC="5")
    assert store.put(both).due_ms == START_MS + 5_000


@pytest.mark.parametrize(("delay_ms", "fits"), [(3 * DAY_MS, True), (3 * DAY_MS + 1, False)])
def test_the_longest_delay(store: WheelStore, delay_ms: int, fits: bool) -> None:
    if fits:
        assert store.put(asking(TIMER_DELAY_MS=str(delay_ms))).due_ms == START_MS + delay_ms
    else:
        with pytest.raises(UnsupportedDelayError):
            store.put(asking(TIMER_DELAY_MS=str(delay_ms)))


@pytest.mark.parametrize(
    ("precision_ms", "due_ms", "out_ms"),
    [
        (1000, 1_793_000_100_000, 1_793_000_099_000),
        (1000, 1_793_000_100_001, 1_793_000_100_000),
        (1000, 1_793_000_100_999, 1_793_000_100_000),
        (500, 1_793_000_100_500, 1_793_000_100_000),
        (500, 1_793_000_100_501, 1_793_000_100_500),
        (200, 1_793_000_100_301, 1_793_000_100_200),
        (100, 1_793_000_100_300, 1_793_000_100_200),
    ],
)
def test_rounding_to_the_slot_that_ends_at_or_after_the_due_time(
    make: Make, precision_ms: int, due_ms: int, out_ms: int
) -> None:
    store = make(precision_ms=precision_ms)
    receipt = store.schedule(asking(), AtMs(due_ms))
    assert receipt.promised_ms == out_ms + precision_ms
    assert timed_records(store)[0]["TIMER_OUT_MS"] == str(out_ms)


def test_a_record_keeps_what_was_asked_and_names_where_it_goes(store: WheelStore) -> None:
    given = attrs.evolve(asking(TIMER_DELAY_SEC="5", mine="own"), queue_id=3, tags="late")
    store.put(given)
    assert timed_records(store) == [
        {
            "REAL_TOPIC": "orders",
            "REAL_QID": "3",
            "UNIQ_KEY": "K",
            "TAGS": "late",
            "mine": "own",
            "TIMER_DELAY_SEC": "5",
            "TIMER_OUT_MS": str(START_MS + 4_000),
        }
    ]


def test_a_level_leaves_no_trace_of_the_other_properties(store: WheelStore) -> None:
    store.put(asking(DELAY="3", TIMER_DELAY_SEC="100", mine="own"))
    [record] = timed_records(store)
    assert record.keys() == {"REAL_TOPIC", "REAL_QID", "UNIQ_KEY", "mine", "TIMER_OUT_MS"}


def test_a_delete_marker_of_a_client_takes_its_target_away(store: WheelStore) -> None:
    at = str(START_MS + 30_000)
    store.put(asking(TIMER_DELIVER_MS=at))
    store.put(attrs.evolve(asking(TIMER_DELIVER_MS=at), unique_key="L"))
    store.put(asking(TIMER_DELIVER_MS=at, TIMER_DEL_UNIQKEY="K"))
    assert [each.unique_key for each in store.pending()] == ["L"]
    assert [each.message.unique_key for each in store.advance(START_MS + 60_000)] == ["L"]


def test_a_delete_marker_for_a_time_that_is_past_is_refused(store: WheelStore) -> None:
    with pytest.raises(BadFieldError, match="past"):
        store.put(asking(TIMER_DELIVER_MS=str(START_MS), TIMER_DEL_UNIQKEY="K"))


@pytest.mark.parametrize(
    ("dialect", "longest"), [(Dialect.ROCKETMQ_4_9, 127), (Dialect.ROCKETMQ_5_5, 255)]
)
def test_a_retry_topic_is_no_longer_than_its_brokers_read(
    make: Make, dialect: Dialect, longest: int
) -> None:
    store = make(dialect=dialect)
    name = "%RETRY%".ljust(longest, "g")
    store.schedule(Message(name, b""), AtMs(START_MS + 1_000))
    with pytest.raises(BadFieldError, match="too long"):
        store.schedule(Message(f"{name}g", b""), AtMs(START_MS + 1_000))


# --- flow control ---------------------------------------------------------------------------------


def test_a_congested_slot_refuses_some_and_at_twice_its_limit_all(make: Make) -> None:
    store = make(congest_num_each_slot=100)
    intake, due = store._intake, AfterMs(60_000)
    assert isinstance(intake, WheelIntake)

    def fill_to(count: int) -> None:
        store._timers.place_queued(START_MS)
        missing = count - store._timers.wheel.unit_count(START_MS + 59_000)
        intake._limit = 10**6
        for _ in range(missing):
            store.schedule(asking(), due)
        intake._limit = 100
        store._timers.place_queued(START_MS)

    def accepted_of_100() -> int:
        found = 0
        for _ in range(100):
            try:
                store.schedule(asking(), due)
            except UnsupportedDelayError:
                continue
            found += 1
        return found

    assert accepted_of_100() == 100, "up to the limit all are taken"
    fill_to(200)
    assert accepted_of_100() == 0
    store.schedule(asking(), AfterMs(90_000))  # another slot


# --- placing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots_ahead", "parked_ahead"),
    [(29, None), (30, 15), (39, 15), (40, 30), (100, 30)],
)
def test_what_is_beyond_the_window_is_parked_half_a_window_ahead_or_a_whole_one(
    make: Make, slots_ahead: int, parked_ahead: int | None
) -> None:
    store = make(roll_window_slots=30)
    store.schedule(asking(), AtMs(START_MS + 1000 * (slots_ahead + 1)))
    store.advance(START_MS)
    [unit] = timer_units(store.live.root.timer_log)
    assert unit.write_time_ms == START_MS
    expected = slots_ahead if parked_ahead is None else parked_ahead
    assert unit.slot_time_ms == START_MS + 1000 * expected
    assert unit.magic == (1 if parked_ahead is None else 3)


def test_units_are_placed_in_order_of_the_queue_and_chained(store: WheelStore) -> None:
    for delay_ms in (5_000, 9_000, 5_000, 5_000, 9_000):
        store.schedule(asking(), AfterMs(delay_ms))
    store.advance(START_MS)
    units = list(timer_units(store.live.root.timer_log))
    queue = queue_units(store.live.root.timer_queue())
    assert [unit.commit_log_offset for unit in units] == [each.commit_log_offset for each in queue]
    assert [unit.previous_position for unit in units] == [-1, -1, 0, 104, 52]
    store.flush()
    slots = {slot.time_units: slot for slot in wheel_slots(store.live.root.timer_wheel)}
    slot = slots[START_MS // 1000 + 4]
    assert (slot.first_position, slot.last_position, slot.unit_count) == (0, 156, 3)


def test_a_marker_is_a_unit_with_its_flag_and_counts_against_its_slot(store: WheelStore) -> None:
    receipt = store.schedule(asking(), AfterMs(5_000))
    store.cancel(receipt)
    store.advance(START_MS)
    assert [unit.magic for unit in timer_units(store.live.root.timer_log)] == [1, 5]
    assert store._timers.wheel.unit_count(START_MS + 4_000) == 0


@pytest.mark.parametrize("text", ["TIMER_OUT_MX\x011\x02", "TIMER_OUT_MS\x01soon\x02", ""])
def test_a_message_without_a_time_stops_nobody(store: WheelStore, text: str) -> None:
    """A broker stays at it for ever; here it is passed over, and told."""
    store.schedule(asking(), AfterMs(5_000))
    append_raw(store, text)
    store.schedule(asking(), AfterMs(6_000))
    assert [each.severity for each in store.check()] == [Severity.ERROR]
    assert len(store.advance(START_MS + 10_000)) == 2
    store.close()
    assert read_timer_check(store.live.root.config_file("timercheck")).last_queue_offset == 3


def append_raw(
    store: WheelStore, text: str, topic: str = "rmq_sys_wheel_timer", born_ms: int = START_MS
) -> None:
    """A record as somebody else might store it."""
    from message_store.format.message import LOCAL_HOST
    from message_store.format.message_codec import body_crc, encode_message

    live, queue = store.live, store.live.queue(topic, 0)
    message = StoredMessage(
        topic=topic,
        body=b"x",
        body_crc=body_crc(b"x"),
        properties_text=text.encode(),
        queue_id=0,
        queue_offset=queue.max_offset,
        commit_log_offset=0,
        born_timestamp_ms=born_ms,
        born_host=LOCAL_HOST,
        store_timestamp_ms=START_MS,
        store_host=LOCAL_HOST,
    )
    size = len(encode_message(message))

    def make(position: int) -> bytes:
        return encode_message(attrs.evolve(message, commit_log_offset=position))

    queue.append_one(live.log.append(size, make), size, 0)


# --- delivering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision_ms", [1000, 500, 200, 100])
def test_a_slot_is_taken_once_its_time_is_over(
    make: Make, clock: ManualClock, precision_ms: int
) -> None:
    store = make(precision_ms=precision_ms)
    receipt = store.schedule(asking(), AfterMs(2_345))
    for time_ms in range(START_MS, receipt.promised_ms, 33):
        assert len(store.advance(time_ms)) == 0
    assert len(store.advance(receipt.promised_ms)) == 1
    assert receipt.promised_ms - receipt.due_ms < precision_ms


def test_the_slot_decides_and_not_the_out_time(store: WheelStore, clock: ManualClock) -> None:
    """A unit in the slot of another time: a message of an hour in a slot of three seconds."""
    store.schedule(asking(), AfterMs(3_600_000))
    timers = store._timers
    rest = timers.unplaced()
    rest.rows.table[1] = START_MS + 3_000
    rest.rows.table[2] = START_MS
    timers._place(rest)
    assert len(store.advance(START_MS + 3_999)) == 0
    assert len(store.advance(START_MS + 4_000)) == 1


def test_what_is_delivered_says_when_it_was_placed_and_taken(
    store: WheelStore, clock: ManualClock
) -> None:
    receipt = store.schedule(attrs.evolve(asking(mine="own"), queue_id=2), AfterMs(5_000))
    store.advance(START_MS)
    clock.tick(5_750)
    [delivered] = store.advance(clock.now_ms())
    assert delivered.message.properties == {
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
        "UNIQ_KEY": "K",
        "mine": "own",
        "TIMER_OUT_MS": str(START_MS + 4_000),
        "TIMER_ENQUEUE_MS": str(START_MS),
        "TIMER_DEQUEUE_MS": str(START_MS + 5_750),
    }
    assert delivered.message.prepared_transaction_offset == ~receipt.commit_log_offset


def test_what_was_never_placed_says_so(store: WheelStore, clock: ManualClock) -> None:
    store.advance(START_MS)
    clock.tick(437)
    store.schedule(asking(), AtMs(0))
    [delivered] = store.advance(clock.now_ms())
    assert delivered.message.properties["TIMER_ENQUEUE_MS"] == str(2**63 - 1)


@pytest.mark.parametrize("missing", ["REAL_TOPIC", "REAL_QID"])
def test_a_message_that_can_go_nowhere_stops_nobody(store: WheelStore, missing: str) -> None:
    """A broker stops at that slot for ever; here it is left out, and told."""
    entries = {"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": str(START_MS + 4_000)}
    del entries[missing]
    store.schedule(asking(), AfterMs(5_000))
    append_raw(store, "".join(f"{name}\x01{value}\x02" for name, value in entries.items()))
    store.schedule(asking(), AfterMs(5_000))
    assert len(store.advance(START_MS + 10_000)) == 2
    [finding] = store.check()
    assert missing in finding.problem


def test_a_message_rolls_until_its_own_slot_and_counts_its_rounds(
    make: Make, clock: ManualClock
) -> None:
    store = make(roll_window_slots=30)
    receipt = store.schedule(asking(), AfterMs(100_000))
    rounds = []
    while (next_ms := store.next_due_ms()) is not None:
        assert next_ms <= receipt.promised_ms
        clock.tick(next_ms - clock.now_ms())
        found = store.advance(next_ms)
        rounds.append((next_ms - START_MS) // 1000)
    [delivered] = found
    assert delivered.promised_ms == receipt.promised_ms == START_MS + 100_000
    assert rounds == [31, 62, 78, 100]
    properties = delivered.message.properties
    assert (properties["TIMER_ROLL_TIMES"], properties["TIMER_OUT_MS"]) == (
        "3",
        str(START_MS + 99_000),
    )
    assert delivered.message.born_timestamp_ms == START_MS
    assert [record.get("TIMER_ROLL_TIMES") for record in timed_records(store)] == [
        None,
        "1",
        "2",
        "3",
    ]


def test_a_message_that_carries_a_delay_level_does_not_circle(
    make: Make, clock: ManualClock
) -> None:
    """A broker would send its rolled record into the levels, and back, for ever."""
    store = make(roll_window_slots=30)
    append_raw(
        store,
        "REAL_TOPIC\x01orders\x02REAL_QID\x010\x02DELAY\x013\x02"
        f"TIMER_OUT_MS\x01{START_MS + 99_000}\x02",
    )
    store.advance(START_MS)
    clock.tick(31_000)
    store.advance(clock.now_ms())
    assert "DELAY" not in timed_records(store)[-1]
    clock.tick(69_000)
    assert len(store.advance(clock.now_ms())) == 1


def test_equal_promises_keep_their_order_also_where_some_have_rolled(
    make: Make, clock: ManualClock
) -> None:
    store = make(roll_window_slots=30)
    due = AtMs(START_MS + 100_000)
    for number in range(60):
        store.schedule(Message("orders", b"%d" % number), due)
        clock.tick(1_500)
        store.advance(clock.now_ms())
    clock.tick(20_000)
    found = [int(each.message.body) for each in store.advance(clock.now_ms())]
    assert found == list(range(60))


def test_what_was_placed_earlier_comes_earlier_also_when_born_in_the_same_millisecond(
    make: Make, clock: ManualClock
) -> None:
    """The first has rolled once more than the second, which waited in the queue meanwhile."""
    store = make(roll_window_slots=30)
    for number in range(2):
        store.schedule(Message("orders", b"%d" % number), AtMs(START_MS + 100_000))
        if not number:
            store.advance(START_MS)
    for step_ms in (40_000, 80_000):
        clock.tick(step_ms)
        found = store.advance(clock.now_ms())
    assert [each.message.body for each in found] == [b"0", b"1"]


@pytest.mark.parametrize("dues_s", [(100, 100), (40, 100)], ids=["both roll", "the second rolls"])
def test_equal_promises_keep_their_order_when_the_clock_was_set_back(
    make: Make, clock: ManualClock, dues_s: tuple[int, int]
) -> None:
    """The second is born before the first, and may be the only one with farther to go than the
    window: neither says who was scheduled first.
    """
    store = make(roll_window_slots=50)
    due = AtMs(START_MS + 100_000)
    clock.tick(100_000 - dues_s[0] * 1_000)
    store.schedule(Message("orders", b"0"), due)
    assert len(list(store.pending())) == 1  # has its slot
    clock.tick(-30_000)
    store.schedule(Message("orders", b"1"), due)
    found: list[Delivered] = []
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        found += store.advance(clock.now_ms())
        store.close()
        store = make(roll_window_slots=50)
    assert [each.message.body for each in found] == [b"0", b"1"]
    assert any("TIMER_ROLL_TIMES" in record for record in timed_records(store))


def test_what_a_broker_has_rolled_comes_in_order_of_birth(make: Make) -> None:
    """It does not write down where the first record was: where a clock was set back, what was born
    first comes first.
    """
    store = make(roll_window_slots=30)
    store.schedule(asking(), AfterMs(100_000))  # there are messages that roll
    store.advance(START_MS)
    for number, born_ms in enumerate([START_MS, START_MS - 1_000]):
        append_raw(
            store,
            f"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02UNIQ_KEY\x01{number}\x02"
            f"TIMER_OUT_MS\x01{START_MS + 4_000}\x02TIMER_ROLL_TIMES\x011\x02",
            born_ms=born_ms,
        )
    found = store.advance(START_MS + 5_000)
    assert [each.message.unique_key for each in found] == ["1", "0"]


# --- recall ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (Dialect.ROCKETMQ_5_3, "orders+K"),
        (Dialect.ROCKETMQ_5_4, "K"),
        (Dialect.ROCKETMQ_5_5, "K"),
    ],
)
def test_a_delete_marker_has_the_form_that_its_broker_heeds(
    make: Make, dialect: Dialect, text: str
) -> None:
    """One that a receipt asked for names its message besides; brokers pass that over."""
    store = make(dialect=dialect)
    receipt = store.schedule(attrs.evolve(asking(), queue_id=4), AfterMs(60_000))
    store.cancel(receipt.handle)
    later = store.schedule(attrs.evolve(asking(), queue_id=4), AfterMs(60_000))
    store.cancel(later)
    _, marker, _, of_one = timed_records(store)
    assert of_one == {**marker, "DELAYWHEEL_CANCELS": offset_text(later.commit_log_offset)}
    assert marker == {
        "REAL_TOPIC": "orders",
        "REAL_QID": "4",
        "UNIQ_KEY": "K",
        "TAGS": "_RECALL_TAG_",
        "TIMER_DEL_UNIQKEY": text,
        "TIMER_OUT_MS": str(START_MS + 59_000),
    }
    records = [placed.record for placed in commit_log_records(store.live.root.commit_log)]
    assert records[1].body == b"0"


@pytest.mark.parametrize("text", ["K", "orders+K"])
def test_a_marker_of_either_form_counts(store: WheelStore, text: str) -> None:
    """One that waits across an upgrade deletes nothing for a broker."""
    at = str(START_MS + 30_000)
    store.put(asking(TIMER_DELIVER_MS=at))
    store.put(asking(TIMER_DELIVER_MS=at, TIMER_DEL_UNIQKEY=text))
    assert len(store.advance(START_MS + 60_000)) == 0


def test_the_handle_of_one_takes_no_other_that_a_broker_would_name_so(
    store: WheelStore, clock: ManualClock
) -> None:
    """One was promised for the millisecond after the out time of the other, with the same key."""
    other = store.schedule(asking(), AtMs(START_MS + 9_000))
    clock.tick(8_001)
    at_once = store.schedule(asking(), AtMs(START_MS))
    assert at_once.promised_ms == other.promised_ms - 1_000 + 1
    assert store.cancel(at_once) is Cancellation.CANCELLED
    assert store.cancel(at_once.handle) is Cancellation.CANCELLED
    assert [each.commit_log_offset for each in store.pending()] == [other.commit_log_offset]


@pytest.mark.parametrize("late_ms", [10_000, 40_000, 80_000])
def test_a_rolling_message_is_recalled_wherever_it_is(
    make: Make, clock: ManualClock, late_ms: int
) -> None:
    store = make(roll_window_slots=30)
    kept, taken = (
        store.schedule(Message("orders", b"", unique_key=key), AfterMs(100_000)) for key in "KL"
    )
    for _ in range(late_ms // 1000):
        clock.tick(1_000)
        store.advance(clock.now_ms())
    assert store.cancel(taken) is Cancellation.CANCELLED
    assert [each.unique_key for each in store.pending()] == ["K"]
    while clock.now_ms() < kept.promised_ms:
        clock.tick(1_000)
        found = store.advance(clock.now_ms())
    assert [each.message.unique_key for each in found] == ["K"]
    assert store.next_due_ms() is None
    assert store.cancel(kept) is Cancellation.ALREADY_DELIVERED
    assert store.cancel(taken) is not Cancellation.ALREADY_DELIVERED


# --- files ----------------------------------------------------------------------------------------


def test_metrics_count_what_is_on_the_wheel(store: WheelStore, clock: ManualClock) -> None:
    for number in range(5):
        store.schedule(Message(f"topic{number % 2}", b""), AfterMs(10_000 * (number + 1)))
    store.cancel(store.schedule(Message("topic1", b""), AfterMs(90_000)))
    clock.tick(20_000)
    store.advance(clock.now_ms())
    store.close()
    content = store.live.root.config_file("timermetrics").read_text("ascii")
    metrics = parse_fastjson(content)
    counts = {topic: row["count"] for topic, row in metrics["timingCount"].items()}
    assert counts == {"topic0": 2, "topic1": 1}
    assert list(metrics) == ["dataVersion", "timingCount"]


def test_snapshots_are_named_by_the_log_and_two_are_kept(make: Make) -> None:
    store = make(snapshots=True)
    root = store.live.root.path
    for count in range(1, 5):
        store.schedule(asking(), AfterMs(60_000))
        store.advance(START_MS)
        store.live.flush_all_next()
        store.flush()
        names = sorted(path.name for path in root.glob("timerwheel.*"))
        assert names == sorted(f"timerwheel.{52 * n}" for n in range(max(1, count - 1), count + 1))
    assert (root / "timerwheel.208").read_bytes() == store._timers.wheel.image.tobytes()


def test_a_store_with_snapshots_opens_without_them_and_again(
    make: Make, clock: ManualClock
) -> None:
    """A broker that is told to stop taking snapshots loses what its old wheel file lacks."""
    for snapshots in (True, False, True):
        store = make(snapshots=snapshots)
        for _ in range(50):
            store.schedule(asking(), AfterMs(60_000))
        store.close()
    assert len(make().advance(START_MS + 100_000)) == 150


def test_old_timer_log_files_go_with_their_records(make: Make, clock: ManualClock) -> None:
    settings = attrs.evolve(SMALL, commit_log_file_bytes=1 << 14, retention_ms=60_000)
    store = make(settings=settings)
    for _ in range(60):
        for _ in range(10):
            store.schedule(Message("orders", b"x" * 100), AfterMs(3_000))
        clock.tick(5_000)
        assert len(store.advance(clock.now_ms())) == 10
    log_min = store.live.log.min_offset
    assert log_min > 0
    units = list(timer_units(store.live.root.timer_log))
    assert 0 < len(units) < 600
    assert units[0].commit_log_offset >= log_min or units[19].commit_log_offset >= log_min
    assert store.check() == []


def test_long_delays_outlive_retention_by_rolling(make: Make, clock: ManualClock) -> None:
    """Forty days with three days of retention: all come, once, and the log stays small."""
    settings = attrs.evolve(SMALL, commit_log_file_bytes=1 << 15, retention_ms=3 * DAY_MS)
    store = make(settings=settings, max_delay_ms=40 * DAY_MS)
    receipts = {}
    for number in range(200):
        due = AfterMs(DAY_MS // 5 * (number + 1))
        receipt = store.schedule(Message("orders", b"x" * 50, unique_key=f"K{number}"), due)
        receipts[receipt.unique_key] = receipt.promised_ms
    found = {}
    began = START_MS
    while clock.now_ms() < began + 40 * DAY_MS + 1000:
        clock.tick(3_600_000 * 3)
        for each in store.advance(clock.now_ms()):
            assert each.message.unique_key not in found
            assert each.message.unique_key is not None
            found[each.message.unique_key] = each.promised_ms
            assert 0 <= clock.now_ms() - each.promised_ms < 3 * 3_600_000
    assert found == receipts
    assert store.live.log.min_offset > 0
    assert len(store.live.log.segments.starts) <= 6
    assert store.check() == []


def test_a_wheel_far_behind_the_clock_delivers_before_its_ring_comes_round(
    make: Make, clock: ManualClock
) -> None:
    """Fifteen days without an advance: the slot of what is new is that of what is old."""
    store = make(precision_ms=100, max_delay_ms=None)
    store.schedule(Message("orders", b"old"), AfterMs(3_600_000))
    store.advance(START_MS)
    clock.tick(120_960_000)
    store.schedule(Message("orders", b"new"), AfterMs(3_600_000))
    assert store.next_due_ms() == START_MS + 3_600_000
    assert [each.message.body for each in store.advance(clock.now_ms())] == [b"old"]
    clock.tick(3_600_000)
    assert [each.message.body for each in store.advance(clock.now_ms())] == [b"new"]


def test_levels_are_delays_here(store: WheelStore) -> None:
    assert store.schedule(asking(), AtLevel(3)).due_ms == START_MS + 10_000


# --- farther than a round -------------------------------------------------------------------------

ROUND_MS = 1_209_600 * 100


@pytest.mark.parametrize("how", ["closed", "killed", "turned", "asked"])
def test_what_comes_when_nobody_has_turned_the_wheel_for_a_round_waits_and_is_found(
    make: Make, clock: ManualClock, how: str
) -> None:
    store = make(precision_ms=100)
    clock.tick(ROUND_MS + 50_000)
    receipts = [store.schedule(Message("orders", b"%d" % n), AfterMs(5_000)) for n in range(2)]
    assert store.cancel(receipts[0]) is Cancellation.CANCELLED
    if how == "turned":
        assert len(store.advance(START_MS + 1_000)) == 0
    elif how != "asked":
        store.close() if how == "closed" else store.abandon()
        store = make(precision_ms=100)
    assert [each.commit_log_offset for each in store.pending()] == [receipts[1].commit_log_offset]
    next_ms = store.next_due_ms()
    assert next_ms is not None
    assert next_ms <= receipts[1].promised_ms
    assert len(store.advance(receipts[1].promised_ms - 1)) == 0
    [delivered] = store.advance(receipts[1].promised_ms)
    assert delivered.promised_ms == receipts[1].promised_ms
    assert store.next_due_ms() is None
    assert store.cancel(receipts[0]) is Cancellation.CANCELLED


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_hand_that_is_to_go_back_by_more_than_a_round_leaves_nothing_behind(
    make: Make, clock: ManualClock, ends: bool, is_cancelled: bool
) -> None:
    store = make(precision_ms=100)
    far = store.schedule(Message("orders", b"far"), AfterMs(ROUND_MS + 7_200_000))
    assert len(store.advance(START_MS + ROUND_MS)) == 0
    near = store.schedule(Message("orders", b"near"), AfterMs(5_000))
    assert len(store.advance(START_MS + 1_000)) == 0
    if is_cancelled:
        assert store.cancel(near) is Cancellation.CANCELLED
        assert len(store.advance(START_MS + 1_500)) == 0
    if ends:
        store.close()
        store = make(precision_ms=100)
    waiting = [far.commit_log_offset] + [near.commit_log_offset] * (not is_cancelled)
    assert sorted(each.commit_log_offset for each in store.pending()) == sorted(waiting)
    assert len(store.advance(near.promised_ms - 1)) == 0
    assert len(store.advance(near.promised_ms)) == (not is_cancelled)
    assert len(store.advance(far.promised_ms - 1)) == 0
    assert len(store.advance(far.promised_ms)) == 1
    assert store.next_due_ms() is None


@pytest.mark.parametrize("is_full", [False, True])
def test_what_could_not_be_delivered_is_told_also_by_whoever_opens_the_store_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    store = make()
    whole, bad = (store.schedule(asking(), AfterMs(1_000)) for _ in range(2))
    with store.live.log.segments.path_of(0).open("r+b") as log:
        place = log.read().index(b"REAL_TOPIC", bad.commit_log_offset)
        log.seek(place)
        log.write(b"LOST_TOPIC")
    with monkeypatch.context() as patch:
        if is_full:
            patch.setattr(note_file, "replace_file", refuse)
        assert len(store.advance(START_MS + 2_000)) == 1
    [told] = store.check()
    assert f"commit log {bad.commit_log_offset}" in told.where
    assert whole.commit_log_offset != bad.commit_log_offset
    store.close()
    assert make().check() == [told]


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
def test_a_clock_before_1970_is_refused_where_something_is_to_wait(
    tmp_path: Path, engine: type[WheelStore | HierarchicalWheelStore]
) -> None:
    """A slot of such a time counts as empty: what is put there would be lost."""
    with engine.open(tmp_path, clock=ManualClock(-5_000)) as store:
        with pytest.raises(UnsupportedDelayError, match="1970"):
            store.schedule(Message("orders", b""), AfterMs(1_000))
        batch = MessageBatch.of([Message("orders", b"")])
        with pytest.raises(UnsupportedDelayError, match="1970"):
            store.schedule_batch(batch, np.array([-4_000], np.int64))
        assert list(store.pending()) == []
