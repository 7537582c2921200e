# SPDX-License-Identifier: Apache-2.0
"""The checker accepts a right store and reports each of many ways to break it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.independent import config_text, raw_files
from tests.independent.breaking import (
    Break,
    at_blank,
    create,
    delete,
    field,
    last_log_byte,
    messages,
    number,
    patch,
    rename_property,
    replace,
    slot_field,
    truncate,
)
from tests.independent.tiny_target import (
    CHECK_ARGUMENTS,
    MESSAGES,
    NOW_MS,
    WRITE_TIME_MS,
    TinyMessage,
    write_tiny_target,
)
from tests.independent.variant_b_checker import check_target, read_target

LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/rmq_sys_wheel_timer/0/00000000000000000000"
LAST_QUEUE = QUEUE[:-3] + "200"
TIMER_LOG = "timerlog/00000000000000000000"
CHECK = "config/timercheck"


BREAKS: list[tuple[str, Break, str]] = [
    ("an abort file", create("abort"), "abort: must not exist"),
    ("a checkpoint", create("checkpoint", bytes(4096)), "checkpoint: must not exist"),
    ("level offsets", create("config/delayOffset.json", b"{}"), "delayOffset.json: must not"),
    ("a wheel snapshot", create("timerwheel.104"), "snapshot"),
    ("another queue", create("consumequeue/TopicA/0/0"), "a queue of something"),
    ("a short log file", truncate(LOG, 2047), "bytes instead of 2048"),
    ("a stray file", create("commitlog/x"), "not a file of this directory"),
    ("an empty log file too many", create("commitlog/" + f"{2048 * 9:020d}", bytes(2048)), "name"),
    ("a wrong magic", number(LOG, 4, "i", 5), "commit log 0: magic"),
    ("no record at all", patch(LOG, 0, bytes(8)), "no blank of 2048 bytes at 0"),
    ("a wrong body CRC", number(LOG, 8, "i", 5), "body CRC"),
    ("a wrong queue id", field(2, queue_id=1), "queue id 1"),
    ("a wrong queue offset", field(2, queue_offset=1), "QUEUEOFFSET 1"),
    ("a wrong physical offset", field(2, commit_log_offset=1), "PHYSICALOFFSET is 1"),
    ("another store time", field(2, store_timestamp_ms=NOW_MS - 1), "store timestamp"),
    ("a prepared offset", field(2, prepared_transaction_offset=1), "prepared transaction"),
    ("a half message", field(2, sys_flag=4), "never indexed"),
    ("another topic", replace(LOG, b"rmq_sys_wheel_timer", b"SCHEDULE_TOPIC_XXXX"), "topic SCH"),
    ("a DELAY", rename_property(0, b"TAGS\x01TagA", b"DELAY\x01Tag"), "property DELAY"),
    (
        "a roll count",
        rename_property(7, b"UNIQ_KEY\x01K1\x02TAGS\x01", b"TIMER_ROLL_TIMES\x01"),
        "property TIMER_ROLL_TIMES",
    ),
    ("no OUT", rename_property(0, b"TIMER_OUT_MS", b"timer_out_ms"), "TIMER_OUT_MS stands 0"),
    ("no real topic", rename_property(0, b"REAL_TOPIC", b"real_topic"), "REAL_TOPIC is absent"),
    ("a real queue that is no number", rename_property(0, b"QID\x010", b"QID\x01x"), "REAL_QID"),
    ("an OUT off the grid", rename_property(0, b"60000", b"60001"), "no multiple of 1000"),
    ("an OUT of another slot", rename_property(0, b"60000", b"61000"), "but OUT 1700000061000"),
    ("a blank of another size", at_blank(LOG, 0, b"\0\0\0\1"), "no blank of"),
    ("no blank", at_blank(LOG, 4, bytes(4)), "no blank of"),
    ("dirt behind the blank", at_blank(LOG, 8, b"x"), "is not zero, records and blank end at"),
    ("dirt behind the last record", last_log_byte, "byte 2047 is not zero, records end"),
    ("a queue unit of another size", number(QUEUE, 8, "i", 5), "timer queue 0"),
    ("a queue unit of another hash", number(QUEUE, 12, "q", 5), "timer queue 0"),
    ("a sign lost in the hash", number(QUEUE, 20 * 4 + 12, "q", 1), "timer queue 4"),
    ("a queue that ends early", patch(LAST_QUEUE, 20, bytes(20)), "11 units for 12 records"),
    ("a hole in the queue", patch(QUEUE, 40, bytes(20)), "in a file that is not the last"),
    (
        "dirt behind the queue",
        patch(LAST_QUEUE, 99, b"x"),
        "byte 99 is not zero",
    ),
    ("a previous position of 0", number(TIMER_LOG, 4, "q", 0), "timer log 0 (unit 0)"),
    ("a chain that loses one", number("timerlog/00000000000000000228", 4, "q", -1), "unit 4"),
    ("another unit magic", number(TIMER_LOG, 12, "i", 3), "magic 3, OUT is 60000 ms away"),
    ("another write time", number(TIMER_LOG, 16, "q", WRITE_TIME_MS + 123), "timer log 0"),
    ("a slot time off the grid", number(TIMER_LOG, 24, "i", 60_001), "is no multiple of 1000"),
    ("another log offset", number(TIMER_LOG, 28, "q", 1), "timer log 0"),
    ("another record size", number(TIMER_LOG, 36, "i", 1), "timer log 0"),
    ("another topic hash", number(TIMER_LOG, 40, "i", 1), "timer log 0"),
    ("a reserved field", number(TIMER_LOG, 44, "q", 1), "timer log 0"),
    ("no timer log blank", patch(TIMER_LOG, 208, bytes(16)), "no blank of 20 bytes at 208"),
    ("the old blank magic", number(TIMER_LOG, 220, "I", 0xCBD431A4), "no blank of 20 bytes"),
    (
        "a unit missing at the end",
        patch("timerlog/00000000000000000456", 156, bytes(52)),
        "11 units for 12 records",
    ),
    ("no timer log", lambda root: shutil.rmtree(root / "timerlog"), "0 units for 12 records"),
    ("a short wheel", truncate("timerwheel", 4096), "not a file of 38707200 bytes"),
    ("no wheel", delete("timerwheel"), "not a file of 38707200 bytes"),
    ("a slot's wrong time", slot_field(61, 0, "q", 5), "timerwheel"),
    ("a slot's wrong first", slot_field(60, 8, "q", 228), "timerwheel"),
    ("a slot's wrong last", slot_field(60, 16, "q", 0), "timerwheel"),
    ("a slot's wrong count", slot_field(60, 24, "i", 2), "timerwheel"),
    ("a slot's magic", slot_field(60, 28, "i", 1), "timerwheel"),
    ("a slot nobody needs", slot_field(4000, 0, "q", 1), "timerwheel"),
    ("a read time after a slot", number(CHECK, 0, "q", WRITE_TIME_MS - 3_599_000), "after slot"),
    ("a read time too late", number(CHECK, 0, "q", WRITE_TIME_MS - 302_399_000), "half a wheel"),
    ("no read time", number(CHECK, 0, "q", 0), "half a wheel"),
    ("a flush position too low", number(CHECK, 8, "q", 52), "flush position 52"),
    ("a queue offset too low", number(CHECK, 16, "q", 11), "queue offsets 11 and 12"),
    ("a master offset too low", number(CHECK, 24, "q", 0), "queue offsets 12 and 0"),
    ("another data version", number(CHECK, 40, "q", 0), "data version"),
    ("dirt behind the check", patch(CHECK, 56, b"x"), "after the seven fields"),
    ("a short check", truncate(CHECK, 56), "not a file of 4096 bytes"),
    ("torn topics", truncate("config/topics.json", 50), "topics.json: cannot be read"),
    ("torn metrics", truncate("config/timermetrics", 50), "timermetrics: cannot be read"),
    ("no metrics", delete("config/timermetrics"), "timermetrics: absent"),
    ("a wrong count", replace("config/timermetrics", b'"count":2', b'"count":1'), "counts"),
    (
        "a topic without entry",
        replace("config/topics.json", b'"TopicB":{', b'"TopicC":{'),
        "TopicB is absent",
    ),
    (
        "too few queues",
        replace(
            "config/topics.json",
            b'"TopicB",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":4',
            b'"TopicB",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":3',
        ),
        "writeQueueNums 3, 4 are used",
    ),
    ("a consumed offset", replace("config/consumerOffset.json", b"3:0", b"3:1"), "starts at"),
    (
        "an overdue unit too early",
        messages({1: TinyMessage(out_s=-7200, slot_s=-3601)}),
        "outside the last 3600 slots",
    ),
    (
        "an overdue unit in the present",
        messages({2: TinyMessage(out_s=-10, slot_s=0)}),
        "outside the last 3600 slots",
    ),
    (
        "overdue units out of order",
        messages({3: TinyMessage(out_s=-7201, slot_s=-1800)}),
        "overdue OUT",
    ),
    (
        "a roll unit too early",
        messages({6: TinyMessage(out_s=259_200, slot_s=86_399, magic=3)}),
        "outside the window's second half",
    ),
    (
        "a roll unit too late",
        messages({6: TinyMessage(out_s=259_200, slot_s=172_800, magic=3)}),
        "outside the window's second half",
    ),
    ("a roll unit unmarked", messages({6: TinyMessage(out_s=259_200, slot_s=86_400)}), "magic 1"),
    ("a far unit not rolled", messages({7: TinyMessage(out_s=172_800)}), "magic 1"),
    (
        "a near unit rolled",
        messages({8: TinyMessage(out_s=172_799, slot_s=90_000, magic=3)}),
        "magic 3",
    ),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tiny_target(tmp_path / "target")
    return tmp_path / "target"


def test_a_right_store_has_no_problems(root: Path) -> None:
    assert check_target(root, **CHECK_ARGUMENTS) == []
    assert len(raw_files.segments(root / "commitlog")) == 2
    assert len(raw_files.segments(root / "timerlog")) == 3


def test_an_empty_conversion_has_no_problems(tmp_path: Path) -> None:
    write_tiny_target(tmp_path, [])
    assert check_target(tmp_path, **CHECK_ARGUMENTS) == []
    assert read_target(tmp_path) == []


def test_every_message_is_read_in_the_order_of_the_wheel(root: Path) -> None:
    slots = [one.out_s if one.slot_s is None else one.slot_s for one in MESSAGES]
    found = read_target(root)
    places = sorted(range(len(MESSAGES)), key=lambda place: slots[place])
    assert [message.record.queue_offset for message in found] == places
    first = found[0]
    assert (first.topic, first.queue_id, first.tags, first.unique_key) == (
        "TopicA",
        0,
        "TagA",
        "K1",
    )
    assert first.out_ms == WRITE_TIME_MS - 7_200_000
    assert first.slot_time_ms == WRITE_TIME_MS - 3_600_000


@pytest.mark.parametrize(("_name", "break_it", "report"), BREAKS, ids=[row[0] for row in BREAKS])
def test_a_broken_store_is_reported(root: Path, _name: str, break_it: Break, report: str) -> None:
    break_it(root)
    problems = check_target(root, **CHECK_ARGUMENTS)
    assert any(report in problem for problem in problems), problems


def test_another_now_or_precision_does_not_fit(root: Path) -> None:
    assert check_target(root, **CHECK_ARGUMENTS | {"now_ms": NOW_MS + 1000})
    assert check_target(root, **CHECK_ARGUMENTS, precision_ms=100)
    assert check_target(root, **CHECK_ARGUMENTS, roll_window_slots=60)


def test_a_record_longer_than_the_readers_buffer_is_reported(root: Path) -> None:
    problems = check_target(root, **CHECK_ARGUMENTS, max_message_bytes=100)
    assert any("too long for the wheel's reader" in problem for problem in problems)


def test_properties_without_room_for_delivery_are_reported(tmp_path: Path) -> None:
    message = TinyMessage(out_s=60, tags="t" * 32_640)
    write_tiny_target(tmp_path, [message], log_file_bytes=65_536)
    [problem] = check_target(tmp_path, **CHECK_ARGUMENTS | {"commit_log_file_bytes": 65_536})
    assert "no room for what delivery adds" in problem


def test_groups_the_source_knew_must_be_known(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source" / "config"
    source.mkdir(parents=True)
    (source / "subscriptionGroup.json").write_text(
        config_text.subscription_group_text(["g", "other"], "4.9")
    )
    offsets = {"TopicA@g": {0: 5}, "TopicA@other": {0: 7, 3: 9}, "Elsewhere@other": {0: 1}}
    (source / "consumerOffset.json").write_text(config_text.consumer_offset_text(offsets, "4.9"))
    assert check_target(root, **CHECK_ARGUMENTS, source=source.parent) == [
        "consumerOffset.json: TopicA@other has no 0 for queues ['0', '1', '2', '3']",
        "subscriptionGroup.json: ['other'] are absent",
    ]
