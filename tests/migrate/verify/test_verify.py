# SPDX-License-Identifier: Apache-2.0
"""Verification accepts a right target, and finds and names each of many ways to spoil one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store.base.errors import FormatError, SourceError, StoreLockedError
from message_store.files.store_root import StoreRoot
from migrate.report.marker import read_settings
from migrate.verify.report import VerifyReport
from migrate.verify.verify import verify
from tests.independent import raw_files
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.independent.raw_records import (
    MAGIC_V1,
    MAGIC_V2,
    RawRecord,
    encode_record,
    join_properties,
)
from tests.migrate import verify_targets as stores_by_hand
from tests.migrate.verify_targets import (
    LOG_FILE_BYTES,
    MESSAGES,
    NOW_MS,
    Converted,
    Stores,
    change_settings,
    convert,
    list_bad_records,
    make_stores,
    pending_of,
    write_target,
    write_time_ms,
)

N = len(MESSAGES)
LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/rmq_sys_wheel_timer/0/00000000000000000000"
TIMER_LOG = "timerlog/00000000000000000000"


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return make_stores(tmp_path)


def counts(report: VerifyReport) -> tuple[int, int, int, int]:
    return report.converted, report.missing, report.unexpected, report.different


def problem_texts(report: VerifyReport) -> str:
    return "\n".join(f"{one.where}: {one.what}" for one in report.problems)


def test_a_right_target_is_accepted(stores: Stores) -> None:
    report = stores.verify()
    assert report == VerifyReport(N, 0, 0, 0, sampled=N)
    assert report.is_clean


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_any_seed_accepts_a_right_target(stores: Stores, seed: int) -> None:
    assert stores.verify(seed=seed, sample=5) == VerifyReport(N, 0, 0, 0, sampled=5)


def test_what_is_pending_is_read_from_the_source_itself(stores: Stores) -> None:
    seen = []
    report = verify(
        stores.source.root,
        stores.target,
        spark=None,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
    )
    assert report == VerifyReport(N, 0, 0, 0, sampled=N)
    assert ("digest", 2, 2) in seen


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
def test_every_precision_has_its_own_slots(stores: Stores, precision_ms: int) -> None:
    waiting = [one for one in stores.source.placed if isinstance(one.item, LevelMessage)]
    shutil.rmtree(stores.target)
    write_target(stores.target, convert(waiting, precision_ms), precision_ms)
    assert counts(stores.verify()) == (N, 0, 0, 0)
    change_settings(stores.target, precision_ms=300)
    assert not stores.verify().is_clean


def test_nothing_pending_is_a_target_without_messages(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [])
    shutil.rmtree(stores.target / "timerlog")
    assert stores.verify() == VerifyReport(0, 0, 0, 0)


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "wb")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_store_that_a_broker_runs_on_is_not_verified(stores: Stores, side: str) -> None:
    roots = {"source": stores.source.root, "target": stores.target}
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(roots[side] / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match="stop the broker first"):
            verify(stores.source.root, stores.target, spark=None)
        assert broker.stdin is not None
        broker.stdin.close()


def test_a_source_s_record_of_v2_becomes_one_of_v1(tmp_path: Path) -> None:
    messages = [LevelMessage(level=16, record_fields={"magic": MAGIC_V2}), *MESSAGES]
    stores = make_stores(tmp_path, messages)
    waiting = [one for one in stores.source.placed if isinstance(one.item, LevelMessage)]
    converted = convert(waiting)
    converted[0].record = attrs.evolve(converted[0].record, magic=MAGIC_V1)
    shutil.rmtree(stores.target)
    write_target(stores.target, converted)
    assert stores.verify() == VerifyReport(N + 1, 0, 0, 0, sampled=N + 1)


# --- one message is not what it was ---------------------------------------------------------------

Change = Callable[[RawRecord], RawRecord]


def with_pairs(change: Callable[[list[tuple[str, str]]], list[tuple[str, str]]]) -> Change:
    def apply(record: RawRecord) -> RawRecord:
        ending = record.properties.endswith(b"\x02")
        text = join_properties(change(record.pairs), ending=ending)
        return attrs.evolve(record, properties=text)

    return apply


def renamed(name: str, value: str) -> Change:
    return with_pairs(lambda pairs: [(n, value if n == name else v) for n, v in pairs])


def fields(**changes: object) -> Change:
    return lambda record: attrs.evolve(record, **changes)  # type: ignore[arg-type]


CHANGES: list[tuple[str, Change, str]] = [
    ("body", fields(body=b"ten minutez"), "body"),
    ("body cut", fields(body=b"ten minute"), "body"),
    ("flag", fields(flag=5), "flag"),
    ("compressed bit", fields(sys_flag=1), "sys_flag"),
    ("born time", fields(born_timestamp_ms=1), "born_timestamp_ms"),
    ("born host", fields(born_ip=bytes(4)), "born_host"),
    ("born port", fields(born_port=1), "born_host"),
    ("store host", fields(store_ip=bytes(4)), "store_host"),
    ("reconsume times", fields(reconsume_times=1), "reconsume_times"),
    ("magic of V2", fields(magic=MAGIC_V2), "record"),
    ("real queue", renamed("REAL_QID", "3"), "property REAL_QID"),
    ("unique key", renamed("UNIQ_KEY", "other"), "property UNIQ_KEY"),
    ("tags", renamed("TAGS", "TagZ"), "property TAGS"),
    ("a property lost", with_pairs(lambda p: [x for x in p if x[0] != "WAIT"]), "property WAIT"),
    ("a property added", with_pairs(lambda p: [*p, ("more", "1")]), "property more"),
    ("order", with_pairs(lambda p: [p[1], p[0], *p[2:]]), "properties"),
    (
        "ending",
        lambda r: attrs.evolve(r, properties=r.properties + b"\x02"),
        "properties end with 0x02",
    ),
    ("out time", renamed("TIMER_OUT_MS", str(write_time_ms() + 7_000)), "TIMER_OUT_MS"),
    ("DELAY kept", with_pairs(lambda p: [*p, ("DELAY", "14")]), "record"),
    ("roll count kept", with_pairs(lambda p: [*p, ("TIMER_ROLL_TIMES", "1")]), "record"),
    ("delete key kept", with_pairs(lambda p: [*p, ("TIMER_DEL_UNIQKEY", "1")]), "record"),
    ("dispatch kept", with_pairs(lambda p: [*p, ("INNER_MULTI_DISPATCH", "1")]), "record"),
    ("a wrong record CRC", with_pairs(lambda p: [*p, ("__CRC32#", "0123456789")]), "record"),
    ("two out times", with_pairs(lambda p: [*p, p[-1]]), "record"),
    ("no out time", with_pairs(lambda p: p[:-1]), "TIMER_OUT_MS"),
    ("store time", fields(store_timestamp_ms=NOW_MS - 1), "record"),
    ("prepared offset", fields(prepared_transaction_offset=1), "record"),
    ("queue id", fields(queue_id=1), "record"),
    ("topic", fields(topic="SCHEDULE_TOPIC_XXXX"), "record"),
    ("body CRC", fields(body_crc=1), "record"),
    ("half message", fields(sys_flag=4), "sys_flag"),
]


@pytest.mark.parametrize(
    ("change", "field"), [one[1:] for one in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_a_message_that_changed_is_different_and_the_field_is_named(
    tmp_path: Path, change: Change, field: str
) -> None:
    stores = changed_target(tmp_path, 2, lambda one: change_record(one, change))
    report = stores.verify()
    assert counts(report) == (N - 1, 0, 0, 1)
    [difference] = report.differences
    placed = stores.source.of(MESSAGES[2])
    assert difference.kind == "different"
    assert (difference.level, difference.queue_offset) == (14, placed.queue_offset)
    assert difference.source_offset == placed.commit_log_offset
    assert field in [one.name for one in difference.fields]


def change_record(one: Converted, change: Change) -> None:
    one.record = change(one.record)


def changed_target(tmp_path: Path, number: int, change: Callable[[Converted], object]) -> Stores:
    """A target that is right in itself, but for what was done to one message before writing."""
    built = build_level_store(tmp_path / "source", MESSAGES)
    waiting = list(built.placed)
    converted = convert(waiting)
    change(converted[number])
    write_target(tmp_path / "target", converted)
    return Stores(built, tmp_path / "target", pending_of(waiting))


def test_a_message_for_another_topic_is_another_message(tmp_path: Path) -> None:
    """Who it is, is its real topic, unique key and born time; what it carries, topic and body."""
    change = renamed("REAL_TOPIC", "TopicX")
    report = changed_target(tmp_path, 2, lambda one: change_record(one, change)).verify()
    assert counts(report) == (N - 1, 1, 1, 0)
    assert [one.topic for one in report.differences] == ["TopicA", "TopicX"]


def test_a_right_record_checksum_is_accepted(stores: Stores) -> None:
    """Brokers of 5.2 and later can add one; a conversion may compute it anew."""
    waiting = list(stores.source.placed)
    converted = convert(waiting)
    change_record(converted[-1], with_record_crc(converted, len(converted) - 1))
    shutil.rmtree(stores.target)
    write_target(stores.target, converted)
    report = stores.verify()
    # The added checksum closes the text, which this source's text did not.
    assert [one.name for one in report.differences[0].fields] == ["properties end with 0x02"]


def with_record_crc(converted: list[Converted], number: int) -> Change:
    """The checksum of the last record, whose place does not depend on its own length."""
    import zlib

    def apply(record: RawRecord) -> RawRecord:
        sizes = [len(encode_record(one.record)) for one in converted]
        offset = 0
        for size in sizes[:number]:
            left = LOG_FILE_BYTES - offset % LOG_FILE_BYTES
            offset += left if size + 8 > left else 0
            offset += size
        left = LOG_FILE_BYTES - offset % LOG_FILE_BYTES
        offset += left if sizes[number] + 21 + 8 > left else 0
        text = record.properties + b"\x02__CRC32#\x01" + bytes(10) + b"\x02"
        final = attrs.evolve(record, properties=text, queue_offset=number, commit_log_offset=offset)
        crc = zlib.crc32(encode_record(final)[:-20]) & 0x7FFFFFFF
        digits = str(crc).rjust(10, "0")[::-1].encode()
        return attrs.evolve(record, properties=text.replace(bytes(10), digits))

    return apply


SLOTS = [
    ("early", 2, {"slot_ms": write_time_ms() + 5_000}, "its time"),
    ("late", 3, {"slot_ms": write_time_ms() + 3_590_000}, "its time"),
    ("overdue too long ago", 0, {"slot_ms": write_time_ms() - 3_601_000}, "its time"),
    ("overdue after now", 0, {"slot_ms": write_time_ms()}, "its time"),
    ("a roll flag too many", 2, {"flags": 3}, "flags"),
    ("a delete flag", 2, {"flags": 5}, "flags"),
    ("a roll flag lost", 4, {"flags": 1}, "flags"),
    ("a roll in the first half", 4, {"slot_ms": write_time_ms() + 1_000_000}, "its time"),
    ("a roll beyond the window", 4, {"slot_ms": write_time_ms() + 3_601_000}, "its time"),
]


@pytest.mark.parametrize(
    ("number", "change", "words"), [one[1:] for one in SLOTS], ids=[one[0] for one in SLOTS]
)
def test_a_message_in_a_slot_that_is_not_its_time_is_different(
    tmp_path: Path, number: int, change: dict[str, int], words: str
) -> None:
    def apply(one: Converted) -> None:
        for name, value in change.items():
            setattr(one, name, value)

    report = changed_target(tmp_path, number, apply).verify()
    assert counts(report) == (N - 1, 0, 0, 1)
    [difference] = report.differences
    [field] = difference.fields
    assert words in field.found


def test_overdue_messages_out_of_order_are_a_problem(tmp_path: Path) -> None:
    built = build_level_store(tmp_path / "source", MESSAGES)
    converted = convert(list(built.placed))
    first, second = converted[0], converted[1]
    assert first.out_ms < second.out_ms
    first.slot_ms, second.slot_ms = second.slot_ms, first.slot_ms
    write_target(tmp_path / "target", converted)
    report = Stores(built, tmp_path / "target", pending_of(list(built.placed))).verify()
    assert "overdue messages are out of order" in problem_texts(report)


# --- messages too few and too many ----------------------------------------------------------------


def test_a_message_left_out_is_missing(tmp_path: Path) -> None:
    built = build_level_store(tmp_path / "source", MESSAGES)
    write_target(
        tmp_path / "target", convert([one for one in built.placed if one is not built.placed[7]])
    )
    report = Stores(built, tmp_path / "target", pending_of(list(built.placed))).verify()
    assert counts(report) == (N - 1, 1, 0, 0)
    [difference] = report.differences
    assert (difference.kind, difference.unique_key, difference.topic) == (
        "missing",
        "SAME",
        "%RETRY%group_a",
    )
    assert difference.source_offset == built.placed[7].commit_log_offset


def test_a_message_written_twice_is_unexpected(tmp_path: Path) -> None:
    built = build_level_store(tmp_path / "source", MESSAGES)
    write_target(tmp_path / "target", convert([*built.placed, built.placed[5]]))
    report = Stores(built, tmp_path / "target", pending_of(list(built.placed))).verify()
    assert counts(report) == (N, 0, 1, 0)
    assert [one.kind for one in report.differences] == ["unexpected"]


def test_twins_are_counted_and_not_taken_for_one(tmp_path: Path) -> None:
    """Two messages with every field the same: both must be there."""
    built = build_level_store(tmp_path / "source", MESSAGES)
    twins = [one for one in built.placed if one.item in (MESSAGES[9], MESSAGES[10])]
    rest = [one for one in built.placed if one is not twins[0]]
    write_target(tmp_path / "target", convert(rest))
    report = Stores(built, tmp_path / "target", pending_of(list(built.placed))).verify()
    assert counts(report) == (N - 1, 1, 0, 0)


def test_one_for_another_is_one_missing_and_one_unexpected(tmp_path: Path) -> None:
    """Neither key nor body agree, so it is not the same message in another state."""
    stranger = LevelMessage(level=16, body=b"stranger", unique_key="stranger")
    built = build_level_store(tmp_path / "source", [*MESSAGES, stranger])
    pending = pending_of(built.placed[:-1])
    write_target(tmp_path / "target", convert(built.placed[1:]))
    report = Stores(built, tmp_path / "target", pending).verify()
    assert counts(report) == (N - 1, 1, 1, 0)


def test_another_store_altogether_differs_in_everything_and_the_list_stays_short(
    tmp_path: Path,
) -> None:
    messages = [LevelMessage(level=16, body=b"%d" % n, unique_key=f"a{n}") for n in range(300)]
    others = [LevelMessage(level=16, body=b"-%d" % n, unique_key=f"b{n}") for n in range(300)]
    built = build_level_store(tmp_path / "source", messages)
    other = build_level_store(tmp_path / "other", others)
    write_target(tmp_path / "target", convert(other.placed))
    report = Stores(built, tmp_path / "target", pending_of(built.placed)).verify(listed=7)
    assert counts(report) == (0, 300, 300, 0)
    assert len(report.differences) == 14
    assert json.loads(json.dumps(report.as_json()))["missing"] == 300


# --- damage in the files --------------------------------------------------------------------------


def patch(name: str, position: int, data: bytes) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        with (root / name).open("r+b") as file:
            file.seek(position)
            file.write(data)

    return apply


def swap_slots(root: Path) -> None:
    one, other = list(raw_files.wheel_slots(root / "timerwheel"))[1:3]
    for slot, content in ((one, other), (other, one)):
        patch("timerwheel", slot.index * 32, raw_files.encode_slot(content))(root)


def slot_of_largest_chain(root: Path) -> raw_files.Slot:
    return max(raw_files.wheel_slots(root / "timerwheel"), key=lambda slot: slot.unit_count)


def clear_slot(root: Path) -> None:
    patch("timerwheel", slot_of_largest_chain(root).index * 32, bytes(32))(root)


def end_chain_early(root: Path) -> None:
    patch_unit(root, slot_of_largest_chain(root).last_position, 4, b"\xff" * 8)


def loop_chain(root: Path) -> None:
    slot = slot_of_largest_chain(root)
    patch_unit(root, slot.first_position, 4, slot.last_position.to_bytes(8, "big"))


def chain_to_unit_zero(root: Path) -> None:
    """The classic fault: 0 where -1 should end a chain delivers unit 0 again."""
    patch_unit(root, slot_of_largest_chain(root).first_position, 4, bytes(8))


def patch_unit(root: Path, position: int, at: int, data: bytes) -> None:
    file_bytes = stores_by_hand.TIMER_FILE_BYTES
    name = raw_files.segment_name(position - position % file_bytes)
    patch(f"timerlog/{name}", position % file_bytes + at, data)(root)


def drop_last_unit(root: Path) -> None:
    last = raw_files.segments(root / "timerlog")[-1]
    units = [u for u in raw_files.timer_units(root / "timerlog") if u.position >= int(last.name)]
    patch(f"timerlog/{last.name}", units[-1].position - int(last.name), bytes(52))(root)


def drop_last_queue_entry(root: Path) -> None:
    directory = root / "consumequeue/rmq_sys_wheel_timer/0"
    count = len(raw_files.queue_units(directory)) - 1
    at = count * 20 % stores_by_hand.QUEUE_FILE_BYTES
    name = raw_files.segment_name(count * 20 - at)
    patch(f"{QUEUE[:-20]}{name}", at, bytes(20))(root)


def cut_log(root: Path) -> None:
    last = raw_files.segments(root / "commitlog")[-1]
    last.write_bytes(last.read_bytes()[:100])


def delete(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def create(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(b"{}")


def late_hand(root: Path) -> None:
    patch("config/timercheck", 0, (write_time_ms() + 4_000_000).to_bytes(8, "big"))(root)


def drop_topic(root: Path) -> None:
    path = root / "config/topics.json"
    path.write_text(path.read_text().replace('"TopicB"', '"TopicC"'))


def too_few_queues(root: Path) -> None:
    path = root / "config/topics.json"
    path.write_text(path.read_text().replace('"readQueueNums":4', '"readQueueNums":3'))


def wrong_count(root: Path) -> None:
    path = root / "config/timermetrics"
    path.write_text(path.read_text().replace('"count":1,', '"count":2,'))


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("a body byte", patch(LOG, 300, b"\xff\xfe\xfd"), ""),
    ("a record head", patch(LOG, 0, bytes(8)), "target"),
    ("the first record's size", patch(LOG, 3, b"\x01"), "size"),
    ("a queue entry's offset", patch(QUEUE, 7, b"\x01"), "queue"),
    ("a queue entry's size", patch(QUEUE, 11, b"\x01"), "size"),
    ("a queue entry's hash", patch(QUEUE, 12, b"\x01"), "hash of its tag"),
    ("a queue entry dropped", drop_last_queue_entry, "units for"),
    ("a unit's flags", patch(TIMER_LOG, 15, b"\x00"), "flags"),
    ("a unit's write time", patch(TIMER_LOG, 23, b"\x01"), "not written at"),
    ("a unit's slot", patch(TIMER_LOG, 26, b"\x01"), "slot of another time"),
    ("a unit's record", patch(TIMER_LOG, 35, b"\x01"), "not the record of"),
    ("a unit's record size", patch(TIMER_LOG, 39, b"\x01"), "another record size"),
    ("a unit's topic hash", patch(TIMER_LOG, 40, b"\x01"), "hash of its topic"),
    ("a unit's reserved field", patch(TIMER_LOG, 51, b"\x01"), "reserved"),
    ("a unit dropped", drop_last_unit, "units for"),
    ("the timer log's blank", patch(TIMER_LOG, 8 * 52 + 12, bytes(4)), "blank"),
    ("slots swapped", swap_slots, "another slot"),
    ("a slot cleared", clear_slot, "no slot leads to it"),
    ("a chain ended early", end_chain_early, "no slot leads to it"),
    ("a chain in a loop", loop_chain, "not backwards"),
    ("a chain to unit 0", chain_to_unit_zero, "more than once"),
    ("the log cut", cut_log, "bytes, not 4096"),
    ("a log file gone", delete(LOG), "commit log"),
    ("the second log file gone", delete(f"commitlog/{LOG_FILE_BYTES:020d}"), "commit log"),
    ("the queue gone", delete(QUEUE), "queue"),
    ("the timer log gone", delete(TIMER_LOG), "timer log"),
    ("the wheel gone", delete("timerwheel"), "no slot leads to it"),
    ("the wheel cut", lambda root: (root / "timerwheel").write_bytes(b"x"), "length"),
    ("an empty log file too many", lambda root: extra_file(root, "commitlog", 4096), "behind"),
    ("dirt behind the log", lambda root: dirt_behind(root), "behind the last record"),
    ("no timercheck", delete("config/timercheck"), "timercheck"),
    ("a hand that is too late", late_hand, "never reads it"),
    ("a master offset of 0", patch("config/timercheck", 24, bytes(8)), "master_queue_offset"),
    ("a flush position", patch("config/timercheck", 15, b"\x01"), "flush_position"),
    ("an abort file", create("abort"), "abort must not be there"),
    ("a checkpoint", create("checkpoint"), "checkpoint must not be there"),
    ("level offsets", create("config/delayOffset.json"), "delayOffset.json must not"),
    ("a broker's lock file", create("lock"), "this target was opened since it was made (lock)"),
    ("a wheel snapshot", create("timerwheel.104"), "timerwheel.104 must not"),
    ("no topics", delete("config/topics.json"), "no route"),
    ("a topic gone", drop_topic, "'TopicB' is not there"),
    ("too few queues", too_few_queues, "queue 3 is used"),
    ("no metrics", delete("config/timermetrics"), "below zero"),
    ("a wrong count", wrong_count, "2 and should be 1"),
    ("metrics that are none", create("config/timermetrics"), "should be"),
]


def extra_file(root: Path, directory: str, size: int) -> None:
    last = raw_files.segments(root / directory)[-1]
    (root / directory / raw_files.segment_name(int(last.name) + size)).write_bytes(bytes(size))


def dirt_behind(root: Path) -> None:
    *_, last = raw_files.commit_log_records(root / "commitlog")
    end = last.commit_log_offset + last.size_bytes
    name = raw_files.segment_name(end - end % LOG_FILE_BYTES)
    patch(f"commitlog/{name}", end % LOG_FILE_BYTES + 9, b"x")(root)


@pytest.mark.parametrize(
    ("damage", "words"), [one[1:] for one in DAMAGE], ids=[one[0] for one in DAMAGE]
)
def test_damage_in_a_file_is_found_and_every_message_still_accounted_for(
    stores: Stores, damage: Callable[[Path], object], words: str
) -> None:
    damage(stores.target)
    report = stores.verify()
    assert not report.is_clean
    assert words in problem_texts(report)
    assert report.converted + report.missing + report.different == N


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (drop_last_unit, (N - 24, 24, 0, 0)),
        (end_chain_early, (N - 23, 23, 0, 0)),
        (chain_to_unit_zero, (N, 0, 1, 0)),
        (swap_slots, (N - 2, 2, 0, 0)),
        (late_hand, (0, N, 0, 0)),
        (delete("timerwheel"), (0, N, 0, 0)),
        (patch(LOG, 0, bytes(8)), (N - 1, 1, 0, 0)),
        (patch(QUEUE, 12, b"\x01"), (N - 1, 0, 0, 1)),
    ],
)
def test_damage_costs_the_messages_that_a_broker_would_lose(
    stores: Stores, damage: Callable[[Path], None], expected: tuple[int, int, int, int]
) -> None:
    damage(stores.target)
    assert counts(stores.verify()) == expected


def test_a_flipped_bit_anywhere_in_a_record_is_found(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [LevelMessage(level=16, body=b"hello")])
    [placed] = raw_files.commit_log_records(stores.target / "commitlog")
    path = stores.target / LOG
    whole = path.read_bytes()
    for position in range(0, placed.size_bytes, 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert not stores.verify().is_clean, position


# --- what the conversion was told to leave out ----------------------------------------------------


def bad_source(tmp_path: Path) -> tuple[Stores, dict[str, object]]:
    """One message whose body is damaged; the target holds the others, and lists that one."""
    spoilt = LevelMessage(level=16, body=b"spoilt", record_fields={"body_crc": 1})
    built = build_level_store(tmp_path / "source", [*MESSAGES, spoilt])
    placed = built.of(spoilt)
    write_target(tmp_path / "target", convert(built.placed[:-1]))
    listed: dict[str, object] = {
        "level": 16,
        "queue_offset": placed.queue_offset,
        "commit_log_offset": placed.commit_log_offset,
        "reason": "body CRC",
    }
    return Stores(built, tmp_path / "target", pending_of(built.placed)), listed


def test_a_quarantined_entry_is_left_out(tmp_path: Path) -> None:
    stores, listed = bad_source(tmp_path)
    list_bad_records(stores.target, listed)
    assert stores.verify() == VerifyReport(N, 0, 0, 0, quarantined=1, sampled=N)


def test_a_bad_entry_that_is_not_listed_is_missing(tmp_path: Path) -> None:
    stores, _ = bad_source(tmp_path)
    report = stores.verify()
    assert counts(report) == (N, 1, 0, 0)
    assert "the body is not what its CRC says" in problem_texts(report)


def test_a_sound_message_set_aside_is_a_problem(tmp_path: Path) -> None:
    stores, listed = bad_source(tmp_path)
    sound = stores.source.of(MESSAGES[3])
    write = {"level": 17, "queue_offset": 0, "commit_log_offset": sound.commit_log_offset}
    list_bad_records(stores.target, listed, write)
    report = stores.verify()
    assert "nothing is wrong with it" in problem_texts(report)
    assert counts(report) == (N - 1, 0, 1, 0)


@pytest.mark.parametrize("change", [{"queue_offset": 999}, {"commit_log_offset": 5}, {"level": 2}])
def test_a_listed_entry_that_is_not_pending_is_a_problem(
    tmp_path: Path, change: dict[str, object]
) -> None:
    stores, listed = bad_source(tmp_path)
    list_bad_records(stores.target, {**listed, **change})
    assert "not a pending message" in problem_texts(stores.verify())


def test_topics_and_levels_that_were_not_asked_for_are_left_out(tmp_path: Path) -> None:
    stores = make_stores(tmp_path)
    shutil.rmtree(stores.target)
    chosen = [one for one in stores.source.placed if one.item in (MESSAGES[12],)]
    write_target(stores.target, convert(chosen))
    change_settings(stores.target, only_topics=["TopicB"])
    assert counts(stores.verify()) == (1, 0, 0, 0)
    change_settings(stores.target, only_topics=[], only_levels=[17])
    report = verify(stores.source.root, stores.target, spark=None)
    assert counts(report) == (1, 2, 0, 0)


# --- what is no target ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, SourceError, "not the target of a finished conversion"),
        ("", FormatError, "not JSON"),
        ("[]", FormatError, "no table 'conversion'"),
        ('{"conversion": 5}', FormatError, "no table 'conversion'"),
        ('{"conversion": {}}', FormatError, "now_ms is missing"),
        ('{"conversion": {"now_ms": "1"}}', FormatError, "now_ms is not a positive number"),
        ('{"conversion": {"now_ms": 1, "precision_ms": 0}}', FormatError, "precision_ms is not"),
        ('{"conversion": {"now_ms": 1, "only_levels": ["x"]}}', FormatError, "is damaged"),
        ('{"conversion": {"now_ms": 1, "offsets": "foo"}}', FormatError, "offsets is none of auto"),
        ('{"conversion": {"now_ms": 1, "offsets": {}}}', FormatError, "offsets is none of auto"),
        ('{"conversion": {"now_ms": 1, "timer_log_file_bytes": 10}}', FormatError, "no unit"),
        ('{"conversion": {"now_ms": 1, "queue_file_bytes": 30}}', FormatError, "no whole units"),
    ],
)
def test_a_store_that_no_conversion_made_is_refused(
    stores: Stores, content: str | None, error: type[Exception], words: str
) -> None:
    path = stores.target / "delaywheel" / "conversion.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=words):
        read_settings(StoreRoot(stores.target))
