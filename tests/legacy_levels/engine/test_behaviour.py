# SPDX-License-Identifier: Apache-2.0
"""The rules of the delay levels, one test each, on stores of our own making: what is put, when it
is delivered, what is written down. Where brokers of 4.9 and 5.x differ, both.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import attrs
import numpy as np
import pytest

from legacy_levels import LevelRules, LevelStore
from legacy_levels.engine.rules import BROKER_TIMINGS, LevelTimings
from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    DelayLevels,
    Message,
    MessageBatch,
    Severity,
)
from message_store.base.errors import (
    BadFieldError,
    OptionsError,
    SourceError,
    UnsupportedDelayError,
)
from message_store.format.dialect import Dialect
from message_store.interface.promise_rules import to_level
from message_store.writing.store import LiveStore
from tests.independent.raw_files import queue_units, read_config
from tests.independent.raw_records import ends_with_separator
from tests.legacy_levels.level_stores import BOTH, SMALL, START_MS, Bench, message

LEVELS = DelayLevels.parse()
FAITHFUL = attrs.evolve(SMALL, repeat_after_kill=True)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


# --- putting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", BOTH, ids=str)
@pytest.mark.parametrize("level", [1, 5, 18])
def test_a_put_goes_to_the_queue_of_its_level_with_the_due_time_as_tags_code(
    bench: Bench, dialect: Dialect, level: int
) -> None:
    with bench.open(dialect=dialect) as store:
        store.schedule(message(1, queue_id=3, tags="TagA"), AtLevel(level))
    [record] = bench.records("SCHEDULE_TOPIC_XXXX", level - 1)
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    assert record.effective["REAL_TOPIC"] == "TopicA"
    assert record.effective["REAL_QID"] == "3"
    assert record.effective["DELAY"] == str(level)
    assert ends_with_separator(record.properties) is (dialect is not Dialect.ROCKETMQ_4_9)
    [unit] = queue_units(bench.root / f"consumequeue/SCHEDULE_TOPIC_XXXX/{level - 1}")
    assert unit.tags_code == START_MS + LEVELS.delay_ms(level)


def test_a_level_above_the_last_is_rewritten_to_the_last(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(99))
    [record] = bench.records("SCHEDULE_TOPIC_XXXX", 17)
    assert record.effective["DELAY"] == "18"


def test_a_table_may_have_more_than_18_levels(bench: Bench) -> None:
    levels = DelayLevels.parse(" ".join(f"{number}s" for number in range(1, 71)))
    with bench.open(levels=levels) as store:
        for level in (1, 19, 63, 64, 70):
            store.schedule(message(level), AtLevel(level))
        assert store.advance(START_MS + 18_999).to_batch().body[0] == b"body 1"
        assert bench.advance(store, 63_000) == [b"body 19", b"body 63"]
    assert bench.offsets() == {1: 1, 19: 1, 63: 1}
    text = (bench.root / "config/delayOffset.json").read_text()
    assert "{1:1,19:1,63:1" in text
    with bench.open(levels=levels) as store:
        assert bench.advance(store, 7_000) == [b"body 64", b"body 70"]
    # From level 64 on, in the order of Java's hash table.
    assert "{64:1,1:1,70:1,19:1,63:1" in (bench.root / "config/delayOffset.json").read_text()


@pytest.mark.parametrize("table", ["10s 7d 14d 30d", "2d 1s", "5s 5s 1m", "1s"])
def test_a_table_of_ones_own_is_kept(bench: Bench, table: str) -> None:
    levels = DelayLevels.parse(table)
    with bench.open(levels=levels) as store:
        for level in range(1, levels.max_level + 1):
            receipt = store.schedule(message(level), AtLevel(level))
            assert receipt.promised_ms == START_MS + levels.delay_ms(level)
        for level in range(1, levels.max_level + 1):
            delay_ms = levels.delay_ms(level)
            again = store.schedule(message(100 + level), AfterMs(delay_ms - 1))
            assert again.promised_ms == START_MS + delay_ms
    for level in range(1, levels.max_level + 1):
        for record in bench.records("SCHEDULE_TOPIC_XXXX", level - 1):
            assert record.effective["DELAY"] == str(level)


@pytest.mark.parametrize("delay_ms", [1, 999, 1_001, 7_199_999])
def test_a_delay_that_is_no_level_is_rounded_up_or_refused(bench: Bench, delay_ms: int) -> None:
    with bench.open() as store:
        receipt = store.schedule(message(1), AfterMs(delay_ms))
        assert receipt.promised_ms == to_level(LEVELS)(START_MS + delay_ms, START_MS)
    bench.root = bench.root.with_name("strict")
    with bench.open(rounding="exact") as store:
        for due in (AfterMs(delay_ms), AtMs(START_MS + delay_ms)):
            with pytest.raises(UnsupportedDelayError, match="no level has a delay of"):
                store.schedule(message(1), due)
        batch = MessageBatch.of([message(1), message(2)])
        with pytest.raises(UnsupportedDelayError, match="no level has a delay of"):
            store.schedule_batch(batch, np.array([START_MS + 1_000, START_MS + delay_ms]))
        assert store.schedule(message(1), AfterMs(60_000)).promised_ms == START_MS + 60_000
        assert store.schedule(message(1), AfterMs(0)).promised_ms == START_MS


def test_a_retry_topic_is_a_topic_like_any_other(bench: Bench) -> None:
    with bench.open() as store:
        given = message(1, topic="%RETRY%group_a", properties={"RETRY_TOPIC": "TopicA"})
        store.schedule(given, AtLevel(3))
        assert bench.advance(store, 10_000) == [b"body 1"]
    [record] = bench.records("%RETRY%group_a")
    assert record.effective["RETRY_TOPIC"] == "TopicA"


@pytest.mark.parametrize("dialect", BOTH, ids=str)
def test_a_long_retry_topic_is_for_5_x_only(bench: Bench, dialect: Dialect) -> None:
    topic = "%RETRY%" + "g" * 200
    with bench.open(dialect=dialect) as store:
        if dialect is Dialect.ROCKETMQ_4_9:
            with pytest.raises(BadFieldError):
                store.schedule(message(1, topic=topic), AtLevel(1))
        else:
            store.schedule(message(1, topic=topic), AtLevel(1))
            assert bench.advance(store, 1_000) == [b"body 1"]


def test_topics_that_somebody_waits_for_are_known_before_anything_is_delivered(
    bench: Bench,
) -> None:
    """A broker that takes over then has a route for those who consume them."""
    with bench.open() as store:
        store.schedule(message(1, topic="TopicA", queue_id=2), AtLevel(5))
        batch = MessageBatch.of(
            [message(2, topic="TopicB", queue_id=number % 5) for number in range(9)]
        )
        store.schedule_batch(batch, np.full(9, START_MS + 60_000))
    topics = read_config(bench.root, "topics.json")["topicConfigTable"]
    assert {name: topics[name]["readQueueNums"] for name in ("TopicA", "TopicB")} == {
        "TopicA": 3,
        "TopicB": 5,
    }


# --- the delivered record -------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", BOTH, ids=str)
def test_a_delivered_record_keeps_its_properties_and_changes_only_its_place(
    bench: Bench, dialect: Dialect
) -> None:
    with bench.open(dialect=dialect) as store:
        given = message(1, queue_id=2, tags="TagA", keys=("k",), properties={"a": "b"}, flag=9)
        store.schedule(given, AtLevel(3))
        bench.advance(store, 12_345)
    [waiting] = bench.records("SCHEDULE_TOPIC_XXXX", 2)
    [delivered] = bench.records("TopicA", 2)
    assert delivered == attrs.evolve(
        waiting,
        topic="TopicA",
        queue_id=2,
        queue_offset=0,
        commit_log_offset=delivered.commit_log_offset,
        store_timestamp_ms=START_MS + 12_345,
        prepared_transaction_offset=~waiting.commit_log_offset,
        total_size=delivered.total_size,
    )
    assert {"DELAY", "REAL_TOPIC", "REAL_QID"} <= delivered.effective.keys()
    sizes = waiting.total_size, delivered.total_size
    assert sizes[1] == (sizes[0] or 0) - len("SCHEDULE_TOPIC_XXXX") + len("TopicA")


def test_a_late_copy_is_stamped_with_the_time_of_its_delivery(bench: Bench) -> None:
    """Never earlier than the promise, also where the loop runs ahead of the store's clock."""
    with bench.open() as store:
        store.schedule(message(1), AtLevel(1))
        store.schedule(message(2), AtLevel(4))
        assert len(store.advance(START_MS + 5_000)) == 1
        bench.clock.tick(60_000)
        assert len(store.advance(START_MS + 30_000)) == 1
    stamps = [record.store_timestamp_ms for record in bench.records("TopicA")]
    assert stamps == [START_MS + 5_000, START_MS + 60_000]


# --- delivery -------------------------------------------------------------------------------------


def test_levels_are_delivered_by_due_time_and_then_in_the_order_of_the_log(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(3))  # in 10 s
        store.schedule(message(2), AtLevel(2))  # in 5 s
        bench.clock.tick(5_000)
        store.schedule(message(3), AtLevel(2))  # in 10 s
        store.schedule(message(4), AtLevel(1))  # in 6 s
        found = bench.advance(store, 5_000)
        assert found == [b"body 2", b"body 4", b"body 1", b"body 3"]


def test_a_message_out_of_turn_is_delivered_at_its_time_and_its_unit_neutralised(
    bench: Bench,
) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(1))
        store.schedule(message(2), AtMs(0))
        assert bench.advance(store) == [b"body 2"]
        assert [each for each in store.check() if each.severity is not Severity.INFO] == []
        store.flush()
        first, second = queue_units(bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/0")
        assert (second.size_bytes, second.tags_code) == (2, START_MS)
        assert second.commit_log_offset > first.commit_log_offset + first.size_bytes
        store.abandon()
    with bench.open() as store:
        assert store.next_due_ms() == START_MS + 1_000
        assert [each.unique_key for each in store.pending()] == ["KEY00000001"]
        assert bench.advance(store, 60_000) == [b"body 1"]


def test_a_clock_that_goes_back_makes_nobody_wait_for_another(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(1))
        bench.clock.tick(-3_600_000)
        store.schedule(message(2), AtLevel(1))
        assert bench.advance(store, 1_000) == [b"body 2"]
        assert store.next_due_ms() == START_MS + 1_000


def test_what_is_due_beyond_now_and_its_level_waits_or_comes_at_once_as_in_java(
    bench: Bench,
) -> None:
    """A clock that was set back leaves such due times behind."""
    store = bench.open()
    receipt = store.schedule(message(1), AtLevel(3))
    store.close()
    bench.clock.tick(-3_600_000)
    with bench.open() as store:
        assert bench.advance(store, 10_000) == []
        [finding] = [each for each in store.check() if each.severity is Severity.WARNING]
        assert "later than the level's delay" in finding.problem
        assert next(store.pending()).due_ms == receipt.promised_ms
    with bench.open(rules=LevelRules(beyond_level="deliver")) as store:
        assert bench.advance(store) == [b"body 1"]


def test_the_first_look_comes_a_second_after_the_start_and_then_every_100_ms(bench: Bench) -> None:
    with bench.open(rules=LevelRules(timings=BROKER_TIMINGS)) as store:
        store.schedule(message(1), AtMs(0))
        looks = []
        for _ in range(140):
            if bench.advance(store):
                store.schedule(message(1), AtMs(0))
                looks.append(bench.clock.now_ms() - START_MS)
                assert store.next_due_ms() == bench.clock.now_ms() + 100
            bench.clock.tick(10)
        assert looks == [1_000, 1_100, 1_200, 1_300]


def test_a_store_that_is_told_when_looks_whenever_it_is_told(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AfterMs(1_000))
        assert bench.advance(store, 1_000) == [b"body 1"]


# --- offsets --------------------------------------------------------------------------------------


def test_offsets_are_written_ten_seconds_after_the_start_every_ten_seconds_and_at_close(
    bench: Bench,
) -> None:
    store = bench.open()
    for number in range(40):
        store.schedule(message(number), AtMs(START_MS + 1_000))
    store.advance(START_MS)
    seen = []
    for second in range(1, 31):
        store.schedule(message(second), AtMs(0))
        bench.advance(store, 1_000)
        seen.append(bench.offsets().get(1, 0))
    written = [second for second in range(1, 30) if seen[second] != seen[second - 1]]
    assert written == [9, 19, 29]
    before = bench.offsets()
    store.close()
    assert bench.offsets()[1] > before[1]


def test_the_interval_of_the_offsets_can_be_set(bench: Bench) -> None:
    store = bench.open(rules=LevelRules(timings=LevelTimings(persist_offsets_ms=2_000)))
    for second in range(1, 10):
        store.schedule(message(second), AtMs(0))
        bench.advance(store, 1_000)
    assert bench.offsets() == {1: 8}
    store.abandon()


@pytest.mark.parametrize("settings", [SMALL, FAITHFUL], ids=["safe", "as brokers"])
def test_a_kill_repeats_up_to_ten_seconds_in_java_and_nothing_here(
    bench: Bench, settings: object
) -> None:
    store = bench.open(settings=settings)
    for second in range(25):
        store.schedule(message(second), AfterMs(1_000))
        bench.advance(store, 1_000)
    store.abandon()
    with bench.open(settings=settings) as again:
        repeated = bench.advance(again)
    # Written at 21 s: what had been delivered until then.
    expected = [b"body %d" % second for second in range(20, 25)]
    assert repeated == ([] if settings is SMALL else expected)


def test_what_is_due_at_once_keeps_its_time_over_a_kill_also_when_that_ends_in_zeros(
    bench: Bench,
) -> None:
    """Zeros in an entry may be what a torn write has left; these are none."""
    bench.clock.tick(0x10000 - START_MS % 0x10000)
    store = bench.open()
    receipt = store.schedule(message(1), AtMs(0))
    store.abandon()
    with bench.open() as store:
        assert store.next_due_ms() == receipt.promised_ms == bench.clock.now_ms()


@pytest.mark.parametrize("crashes", [1, 2])
@pytest.mark.parametrize("twins", [0, 1, 2])
def test_what_was_due_at_once_comes_once_also_when_its_entry_was_lost_with_the_power(
    bench: Bench, crashes: int, twins: int
) -> None:
    """An entry that is made anew from its record does not say "at once" any more, and whoever opens
    the store after a second crash does not know that it was made anew.
    """
    twin = message(1)
    store = bench.open()
    for _ in range(twins):
        store.schedule(twin, AfterMs(1_000))
    store.flush()
    receipt = store.schedule(twin, AtMs(0))
    bench.clock.tick(500)
    assert len(store.advance(receipt.promised_ms)) == 1
    store.abandon()
    [path] = (bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/0").iterdir()
    with path.open("r+b") as file:
        file.seek(20 * twins)
        file.write(bytes(20))
    for _ in range(crashes - 1):
        LiveStore.open(bench.root, clock=bench.clock, settings=SMALL).abandon()
    with bench.open() as store:
        assert store.state.already_delivered == 1
        assert bench.advance(store) == []
        assert len(bench.advance(store, 10_000)) == twins
    assert len(bench.bodies("TopicA")) == twins + 1


@pytest.mark.parametrize("is_handle", [False, True])
def test_what_was_due_at_once_is_cancelled_also_when_its_entry_was_rebuilt(
    bench: Bench, is_handle: bool
) -> None:
    """Its record does not say "at once": the entry gets the time of its level. Found by random
    runs.
    """
    store = bench.open()
    receipt = store.schedule(message(1), AtMs(0))
    bench.clock.tick(1)
    store.schedule(message(1), AfterMs(1_000))
    store.schedule(message(1), AtMs(0))
    store.flush()
    store.abandon()
    [path] = (bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/0").iterdir()
    with path.open("r+b") as file:
        file.write(bytes(20))
    with bench.open() as store:
        named = receipt.handle if is_handle else receipt
        assert store.cancel(named) is Cancellation.CANCELLED
        assert store.cancel(named) is Cancellation.CANCELLED
        offsets = {each.commit_log_offset for each in store.pending()}
        assert len(offsets) == 2
        assert receipt.commit_log_offset not in offsets


def test_a_level_that_the_file_does_not_name_begins_at_0(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(1))
        store.schedule(message(2), AtLevel(2))
        bench.advance(store, 5_000)
    shutil.rmtree(bench.root / "delaywheel")  # as a broker leaves it: no marks know better
    (bench.root / "config/delayOffset.json").write_text('{"offsetTable":{2:1}}')
    with bench.open() as store:
        assert bench.advance(store) == [b"body 1"]


@pytest.mark.parametrize(
    ("stored", "corrected"), [(-5, 0), (99, 3)], ids=["below the queue", "above the queue"]
)
def test_an_offset_outside_its_queue_is_moved_into_it(
    bench: Bench, stored: int, corrected: int
) -> None:
    with bench.open() as store:
        for number in range(3):
            store.schedule(message(number), AtLevel(1))
    shutil.rmtree(bench.root / "delaywheel")  # as a broker leaves it: no marks know better
    (bench.root / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{stored}}}}}')
    with bench.open() as store:
        found = bench.advance(store, 1_000)
        assert len(found) == 3 - corrected
        assert any("lay outside its queue" in each.problem for each in store.check())


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b'{"offsetTable":{1:1', None])
def test_a_torn_offsets_file_repeats_nothing(bench: Bench, damage: bytes | None) -> None:
    """A broker takes `.bak`, or nothing, and delivers again; what we know of our own is better."""
    with bench.open() as store:
        for number in range(3):
            store.schedule(message(number), AtLevel(1))
        bench.advance(store, 1_000)
        store.schedule(message(9), AtLevel(1))
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        path = bench.root / "config" / name
        path.unlink(missing_ok=True)
        if damage is not None:
            path.write_bytes(damage)
    with bench.open() as store:
        assert bench.advance(store, 1_000) == [b"body 9"]


def test_the_offsets_of_another_file_can_be_chosen(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(1))
        bench.advance(store, 1_000)
    with bench.open(offsets="none") as store:
        assert bench.advance(store) == [b"body 1"]


# --- another level table --------------------------------------------------------------------------

SHORTER = DelayLevels.parse("1s 5s 7s")


def test_messages_of_another_table_are_refused_and_the_store_left_as_it_was(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(3))
        store.schedule(message(2), AtLevel(9))
    with pytest.raises(OptionsError) as refused:
        bench.open(levels=SHORTER)
    for words in ("level 3 (7s) holds messages that are due after 10s", "level 9"):
        assert words in str(refused.value)
    assert not (bench.root / "abort").exists()
    with bench.open() as store:
        assert len(list(store.pending())) == 2


def test_messages_of_another_table_may_keep_their_due_times(bench: Bench) -> None:
    with bench.open() as store:
        for number, level in enumerate((3, 9)):
            store.schedule(message(number), AtLevel(level))
    with bench.open(levels=SHORTER, rules=LevelRules(on_table_change="keep")) as store:
        store.schedule(message(2), AtLevel(3))
        assert bench.advance(store, 7_000) == [b"body 2"]
        assert bench.advance(store, 3_000) == [b"body 0"]
        assert bench.advance(store, 60_000 * 5) == [b"body 1"]


def test_java_delivers_them_at_once_and_leaves_levels_alone_that_the_table_lacks(
    bench: Bench,
) -> None:
    with bench.open() as store:
        for number, level in enumerate((3, 9)):
            store.schedule(message(number), AtLevel(level))
    java = LevelRules(on_table_change="broker", beyond_level="deliver")
    with bench.open(levels=SHORTER, rules=java) as store:
        assert bench.advance(store) == [b"body 0"]
        assert bench.advance(store, 7_200_000) == []


def test_a_table_may_change_when_nothing_waits(bench: Bench) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(3))
        bench.advance(store, 10_000)
    with bench.open(levels=SHORTER) as store:
        assert store.schedule(message(2), AtLevel(3)).promised_ms == bench.clock.now_ms() + 7_000


# --- taking back ----------------------------------------------------------------------------------


def test_a_cancelled_unit_points_to_the_last_byte_of_its_record(bench: Bench) -> None:
    with bench.open() as store:
        receipts = [store.schedule(message(number), AtLevel(3)) for number in range(3)]
        before = queue_units(bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2")
        store.cancel(receipts[2])
    after = queue_units(bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2")
    assert after[:2] == before[:2]
    end = before[2].commit_log_offset + before[2].size_bytes
    assert (after[2].commit_log_offset, after[2].size_bytes) == (end - 1, 1)
    assert after[2].tags_code == before[2].tags_code


@pytest.mark.parametrize("size_bytes", [1, 2], ids=["taken-back", "delivered"])
@pytest.mark.parametrize("half", [slice(0, 8), slice(8, 12)], ids=["place", "size"])
def test_a_unit_that_lost_power_left_half_neutral_is_neutral(
    bench: Bench, size_bytes: int, half: slice
) -> None:
    """A sector ends between the two halves of the one at 102."""
    store = bench.open(settings=attrs.evolve(SMALL, queue_file_bytes=20_000))
    receipts = [store.schedule(message(number), AtLevel(3)) for number in range(105)]
    store.flush()
    store.abandon()
    [path] = (bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir()
    unit = queue_units(path.parent)[102]
    end = unit.commit_log_offset + unit.size_bytes
    changed = struct.pack(">qi", end - size_bytes, size_bytes)[half]
    with path.open("r+b") as file:
        file.seek(102 * 20 + half.start)
        file.write(changed)
    with bench.open() as store:
        fates = [Cancellation.CANCELLED, Cancellation.ALREADY_DELIVERED]
        assert store.cancel(receipts[102].handle) is fates[size_bytes - 1]
        assert len(bench.advance(store, 10_000)) == 104
    found = queue_units(path.parent)[102]
    assert (found.commit_log_offset, found.size_bytes) == (end - size_bytes, size_bytes)


@pytest.mark.check
def test_a_cancelled_message_is_known_by_its_handle_whatever_lies_around_it(bench: Bench) -> None:
    """Its record is looked for backwards from its end, past bodies that look like records."""
    decoy = bytes.fromhex("000000ffdaa320a7") * 400
    with bench.open() as store:
        receipts = [
            store.schedule(Message("TopicA", decoy, unique_key=f"K{number}"), AtLevel(4))
            for number in range(30)
        ]
        for receipt in receipts[::3]:
            assert store.cancel(receipt.handle) is Cancellation.CANCELLED
        for receipt in receipts[::3]:
            assert store.cancel(receipt.handle) is Cancellation.CANCELLED
            assert store.cancel(receipt) is Cancellation.CANCELLED
        assert len(bench.advance(store, 30_000)) == 20
        answers = {receipts.index(one): store.cancel(one.handle) for one in receipts}
    for number, answer in answers.items():
        assert (answer is Cancellation.CANCELLED) is (number % 3 == 0)


def test_a_receipt_of_another_store_takes_nothing_back(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other")
    with other.open() as store:
        stranger = store.schedule(message(7), AtLevel(3))
    with bench.open() as store:
        store.schedule(message(1), AtLevel(3))
        assert store.cancel(stranger) is Cancellation.NEVER_EXISTED
        beyond = stranger._replace(commit_log_offset=10**12)
        assert store.cancel(beyond) is Cancellation.NEVER_EXISTED
        assert len(bench.advance(store, 10_000)) == 1


# --- retention ------------------------------------------------------------------------------------

HOUR_MS = 3_600_000
FORGETFUL = attrs.evolve(SMALL, retention_ms=HOUR_MS, commit_log_file_bytes=8_192)


def fill(bench: Bench, store: LevelStore, hours: int) -> None:
    for _ in range(hours):
        for _number in range(12):
            store.schedule(Message("TopicB", b"x" * 500), AfterMs(1_000))
        bench.advance(store, HOUR_MS)


def test_retention_takes_old_files_and_spares_those_in_which_a_message_waits(bench: Bench) -> None:
    levels = DelayLevels.parse("1s 10d")
    with bench.open(levels=levels, settings=FORGETFUL) as store:
        fill(bench, store, 10)
        assert store.live.log.min_offset > 0
        before = store.live.log.min_offset
        receipt = store.schedule(message(1), AtLevel(2))
        fill(bench, store, 20)
        assert before < store.live.log.min_offset <= receipt.commit_log_offset
        assert [each.unique_key for each in store.pending()] == ["KEY00000001"]
        assert b"body 1" in bench.advance(store, 240 * HOUR_MS)
        fill(bench, store, 2)
        assert store.live.log.min_offset > receipt.commit_log_offset


def test_retention_of_a_broker_takes_them_too_and_check_says_so(bench: Bench) -> None:
    levels = DelayLevels.parse("1s 10d")
    rules = LevelRules(spare_waiting=False)
    with bench.open(levels=levels, settings=FORGETFUL, rules=rules) as store:
        assert any("before they are due" in each.effect for each in store.check())
        store.schedule(message(1), AtLevel(2))
        fill(bench, store, 20)
        assert b"body 1" not in bench.advance(store, 240 * HOUR_MS)


# --- filters that look into many records ----------------------------------------------------------


def test_pending_is_found_among_many_by_key_and_topic(bench: Bench) -> None:
    count = 30_000
    roomy = attrs.evolve(SMALL, commit_log_file_bytes=1 << 20, queue_file_bytes=20_000)
    messages = [
        Message(f"Topic{number % 3}", b"", unique_key=f"KEY{number:08X}") for number in range(count)
    ]
    with bench.open(settings=roomy) as store:
        due_ms = START_MS + 1_000 * (1 + np.arange(count) % 7_000)
        store.schedule_batch(MessageBatch.of(messages), due_ms)
        [found] = store.pending(unique_key="KEY00001234")
        assert found.topic == f"Topic{0x1234 % 3}"
        assert sum(1 for _ in store.pending(topic="Topic1")) == count // 3
        assert sum(1 for _ in store.pending(topic="Topic")) == 0
        assert len(store.advance(START_MS + 10**8)) == count


# --- files that are gone --------------------------------------------------------------------------


def test_a_queue_whose_files_are_gone_is_made_anew_from_the_log_and_that_is_said(
    bench: Bench,
) -> None:
    with bench.open() as store:
        for number in range(4):
            store.schedule(message(number), AfterMs(5_000 if number == 3 else 1_000))
        receipt = store.schedule(message(4), AtLevel(2))
        bench.advance(store, 1_000)
        store.cancel(receipt)
    shutil.rmtree(bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/1")
    with bench.open() as store:
        [finding] = [each for each in store.check() if each.severity is Severity.ERROR]
        assert "had lost 2 entries" in finding.problem
        # Nobody knows any more that one of them was taken back.
        assert bench.advance(store, 4_000) == [b"body 3", b"body 4"]


def test_a_queue_whose_first_file_is_gone_is_refused(bench: Bench) -> None:
    """Nothing of the level was delivered yet, so that delayOffset.json does not name it."""
    with bench.open() as store:
        for number in range(150):
            store.schedule(message(number), AtLevel(2))
    queue = bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/1"
    sorted(queue.iterdir())[0].unlink()
    with pytest.raises(SourceError, match=r"has lost its first files.*remove this directory"):
        bench.open()
    shutil.rmtree(queue)
    with bench.open() as store:
        assert len(bench.advance(store, 5_000)) == 150


def test_a_log_that_has_lost_its_end_is_noticed(bench: Bench) -> None:
    with bench.open() as store:
        for _number in range(200):
            store.schedule(Message("TopicA", b"x" * 1_000), AtLevel(1))
        assert len(bench.advance(store, 1_000)) == 200
    last = sorted((bench.root / "commitlog").iterdir())[-1]
    last.write_bytes(b"\0" * last.stat().st_size)
    with pytest.raises(SourceError, match=r"was synced.*queue-ends\.json"):
        bench.open()
    (bench.root / "delaywheel/queue-ends.json").unlink()
    with bench.open() as store:
        assert any("gone since the last flush" in each.problem for each in store.check())
