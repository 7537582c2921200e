# SPDX-License-Identifier: Apache-2.0
"""What plain reading finds in the stores of real brokers is the truth that came with them."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.independent import raw_files
from tests.independent.config_text import Dialect, to_fastjson
from tests.independent.expected_conversion import (
    expected_of_truth,
    level_units,
    message_of,
    out_ms_of,
    waiting_records,
)
from tests.independent.level_messages import delivered_record, level_delays_ms
from tests.independent.raw_records import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    BadRecordError,
    Pair,
    RawRecord,
    body_sha1,
    decode_record,
    encode_record,
    ends_with_separator,
    join_properties,
    tags_code_of,
)
from tests.independent.real_stores import (
    ALL_STORES,
    LEVEL_STORES,
    LEVELS_49_CRASH,
    LEVELS_49_DEFAULT_SIZES,
    WHEEL_55_CLEAN,
    RealStore,
    unpack,
)
from tests.independent.target_reader import user_properties_of
from tests.independent.variant_b_log import read_commit_log, read_queue, read_timer_log

Unpacked = Callable[[str], RealStore]


@pytest.fixture(scope="module")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    stores: dict[str, RealStore] = {}

    def unpacked(name: str) -> RealStore:
        if name not in stores:
            stores[name] = unpack(name, tmp_path_factory.mktemp(name))
        return stores[name]

    return unpacked


@functools.cache
def records_of(root: Path) -> list[raw_files.PlacedRecord]:
    return list(raw_files.commit_log_records(root / "commitlog"))


def test_a_gigabyte_of_holes_stays_a_hole(real_store: Unpacked) -> None:
    log = real_store(LEVELS_49_DEFAULT_SIZES).root / "commitlog" / raw_files.segment_name(0)
    assert log.stat().st_size == 1 << 30
    assert log.stat().st_blocks * 512 < 2_000_000


@pytest.mark.check
@pytest.mark.parametrize("name", ALL_STORES)
def test_every_record_is_written_back_byte_for_byte(real_store: Unpacked, name: str) -> None:
    store = real_store(name)
    count = 0
    for placed in records_of(store.root):
        record = placed.record
        path = store.root / "commitlog"
        data = raw_files.read_range(
            path, store.commit_log_file_bytes, placed.commit_log_offset, placed.size_bytes
        )
        assert encode_record(record) == data
        ending = ends_with_separator(record.properties)
        assert ending == ("5.5.0" in name)
        assert join_properties(record.pairs, ending=ending) == record.properties
        count += 1
    assert count > len(store.truth)


@pytest.mark.parametrize("name", ALL_STORES)
def test_the_strict_log_reader_has_nothing_to_say(real_store: Unpacked, name: str) -> None:
    store = real_store(name)
    problems: list[str] = []
    records = read_commit_log(store.root / "commitlog", store.commit_log_file_bytes, problems)
    queues = sorted((store.root / "consumequeue").glob("*/*"))
    units = {queue: read_queue(queue, store.queue_file_bytes, problems) for queue in queues}
    read_timer_log(store.root / "timerlog", 102_400, problems)
    if store.is_crashed:
        no_blank, next_file = problems
        assert "no blank of 266574 bytes at 782002" in no_blank
        assert "a log file without records" in next_file
    else:
        assert problems == []
    dispatched = [one for one in records if one.record.transaction_type in (0, 8)]
    assert sum(map(len, units.values())) == len(dispatched)


@pytest.mark.parametrize("name", ALL_STORES)
def test_queues_point_at_their_records(real_store: Unpacked, name: str) -> None:
    store = real_store(name)
    records = {placed.commit_log_offset: placed for placed in records_of(store.root)}
    delays = level_delays_ms()
    for queue in sorted((store.root / "consumequeue").glob("*/*")):
        for index, unit in enumerate(raw_files.queue_units(queue)):
            placed = records[unit.commit_log_offset]
            record = placed.record
            assert unit.size_bytes == placed.size_bytes
            assert (record.topic, str(record.queue_id)) == (queue.parent.name, queue.name)
            assert record.queue_offset == index
            if "DELAY" in record.effective and record.topic == "SCHEDULE_TOPIC_XXXX":
                due_ms = record.store_timestamp_ms + delays[record.queue_id + 1]
                assert unit.tags_code == due_ms
            else:
                assert unit.tags_code == tags_code_of(record.effective.get("TAGS"))


def delivered_keys(store: RealStore) -> collections.Counter[Pair]:
    """(unique key, topic) of every record that a level delivered to its real topic."""
    return collections.Counter(
        (record.effective["UNIQ_KEY"], record.topic)
        for record in (p.record for p in records_of(store.root))
        if "DELAY" in record.effective and record.topic == record.effective["REAL_TOPIC"]
    )


def not_delivered(store: RealStore) -> dict[int, list[int]]:
    """Level to the queue indexes, from the stored offset on, that no delivered copy belongs to."""
    delivered = delivered_keys(store)
    offsets = raw_files.read_config(store.root, "delayOffset.json")["offsetTable"]
    pending: dict[int, list[int]] = {}
    for level in level_delays_ms():
        units = level_units(store.root, level)
        for index in range(int(offsets.get(str(level), 0)), len(units)):
            record = raw_files.record_at(
                store.root / "commitlog",
                store.commit_log_file_bytes,
                units[index].commit_log_offset,
            )
            key = (record.effective["UNIQ_KEY"], record.effective["REAL_TOPIC"])
            if delivered[key] == 0:
                pending.setdefault(level, []).append(index)
    return pending


@pytest.mark.parametrize("name", ALL_STORES)
def test_what_waits_in_the_levels_is_the_truth(real_store: Unpacked, name: str) -> None:
    store = real_store(name)
    pending = not_delivered(store)
    truth = store.pending_in_levels()
    wanted: dict[int, list[int]] = {}
    for line in truth:
        assert line.level is not None
        assert line.delay_queue_offset is not None
        wanted.setdefault(line.level, []).append(line.delay_queue_offset)
    assert pending == wanted
    waiting = waiting_records(store.root, pending, store.commit_log_file_bytes)
    found = [message_of(one.record, out_ms_of(one.due_ms, 1000)) for one in waiting]
    assert collections.Counter(found) == collections.Counter(expected_of_truth(truth))


@pytest.mark.parametrize("name", LEVEL_STORES)
def test_stored_offsets_are_stale_only_after_the_crash(real_store: Unpacked, name: str) -> None:
    store = real_store(name)
    offsets = raw_files.read_config(store.root, "delayOffset.json")["offsetTable"]
    from_offsets = sum(
        len(level_units(store.root, level)) - int(offsets.get(str(level), 0))
        for level in level_delays_ms()
    )
    repeats = from_offsets - len(store.pending_in_levels())
    assert repeats == (206 if name == LEVELS_49_CRASH else 0)
    assert store.is_crashed == (name == LEVELS_49_CRASH)


@pytest.mark.parametrize("name", ALL_STORES)
def test_delivered_messages_lie_in_their_topics_with_their_content(
    real_store: Unpacked, name: str
) -> None:
    store = real_store(name)
    by_key: dict[Pair, list[RawRecord]] = {}
    for placed in records_of(store.root):
        key = (placed.record.effective.get("UNIQ_KEY", ""), placed.record.topic)
        by_key.setdefault(key, []).append(placed.record)
    for line in store.truth:
        if line.state not in ("delivered", "normal"):
            continue
        [record] = by_key[line.unique_key, line.topic]
        assert record.queue_id == line.queue_id
        assert body_sha1(record) == line.body_sha1
        assert user_properties_of(record) == line.user_properties
        assert record.effective.get("TAGS") == line.tags
        assert record.effective.get("KEYS") == line.keys
        assert record.store_timestamp_ms == line.delivered_store_timestamp_ms


@pytest.mark.parametrize("name", ALL_STORES)
def test_hand_made_delivered_copies_are_those_of_a_broker(real_store: Unpacked, name: str) -> None:
    store = real_store(name)
    waiting: dict[Pair, RawRecord] = {}
    count = 0
    for placed in records_of(store.root):
        record = placed.record
        if "DELAY" not in record.effective:
            continue
        key = (record.effective["UNIQ_KEY"], record.effective["REAL_TOPIC"])
        if record.topic == SCHEDULE_TOPIC:
            waiting[key] = record
            continue
        dialect: Dialect = "5.5" if "5.5.0" in name else "4.9"
        copy = delivered_record(waiting[key], record.store_timestamp_ms, dialect)
        offsets = (record.queue_offset, record.commit_log_offset)
        copy = attrs.evolve(copy, queue_offset=offsets[0], commit_log_offset=offsets[1])
        assert decode_record(encode_record(copy)) == record
        count += 1
    assert count == len(
        [line for line in store.truth if line.state == "delivered" and line.level is not None]
    )


def test_the_timer_topic_of_the_wheel_store_is_the_truth(real_store: Unpacked) -> None:
    store = real_store(WHEEL_55_CLEAN)
    outs: dict[Pair, int] = {}
    for placed in records_of(store.root):
        properties = placed.record.effective
        if placed.record.topic == TIMER_TOPIC and "TIMER_DEL_UNIQKEY" not in properties:
            key = (properties["UNIQ_KEY"], properties["REAL_TOPIC"])
            outs[key] = int(properties["TIMER_OUT_MS"])
    wanted = {
        (line.unique_key, line.topic): line.timer_out_ms
        for line in store.truth
        if line.timer_out_ms is not None
    }
    assert outs == wanted


@pytest.mark.parametrize(
    ("name", "dialect"),
    [(name, "5.5" if "5.5.0" in name else "4.9") for name in ALL_STORES],
)
def test_config_files_are_written_back_byte_for_byte(
    real_store: Unpacked, name: str, dialect: Dialect
) -> None:
    config = real_store(name).root / "config"
    for path in sorted(config.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        assert to_fastjson(_with_numbers(raw_files.parse_fastjson(text)), dialect) == text


def _with_numbers(value: object) -> object:
    """Keys of whole numbers as numbers again, as they stood in the file."""
    if isinstance(value, dict):
        return {int(k) if k.isdigit() else k: _with_numbers(v) for k, v in value.items()}
    return value


def test_a_record_is_not_found_between_records(real_store: Unpacked) -> None:
    store = real_store(LEVELS_49_DEFAULT_SIZES)
    with pytest.raises(BadRecordError):
        raw_files.record_at(store.root / "commitlog", store.commit_log_file_bytes, 1)
