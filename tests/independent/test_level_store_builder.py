# SPDX-License-Identifier: Apache-2.0
"""The hand-made stores: what was asked for is what plain reading finds."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.independent import raw_files, raw_records
from tests.independent.config_text import Dialect, delay_offset_text
from tests.independent.level_store_builder import (
    T0,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    RawBytes,
    build_level_store,
    retry_message,
)

DIALECTS: list[Dialect] = ["4.9", "5.3", "5.4", "5.5"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_small_store_holds_what_was_asked_for(tmp_path: Path, dialect: Dialect) -> None:
    waiting = [
        LevelMessage(level=3, body=b"one", keys="k1 k2", user_properties={"城市": "上海"}),
        LevelMessage(level=3, body=b"two", tags=None, unique_key=None, born_host=("2001::1", 9)),
        LevelMessage(level=18, body=b"x" * 5000, compress_body=True, queue_id=5),
        retry_message(level=4, body=b"again"),
    ]
    items = [*waiting, OrdinaryMessage(body=b"now"), DeliveredCopy(of=waiting[0])]
    built = build_level_store(tmp_path / "store", items, dialect=dialect, offsets={3: 1})
    found = list(raw_files.commit_log_records(built.root / "commitlog"))
    assert [one.commit_log_offset for one in found] == [p.commit_log_offset for p in built.placed]
    assert [one.record.commit_log_offset for one in found] == [
        one.commit_log_offset for one in found
    ]
    queue = built.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX"
    assert sorted(path.name for path in queue.iterdir()) == ["17", "2", "3"]
    units = raw_files.queue_units(queue / "2")
    assert [unit.tags_code for unit in units] == [T0 + 10_000, T0 + 10_000]
    assert raw_records.plain_body(found[2].record) == b"x" * 5000
    assert found[1].record.sys_flag == raw_records.BORN_HOST_IPV6
    assert found[3].record.effective["REAL_TOPIC"] == "%RETRY%group_a"
    ended = [one.record.properties.endswith(b"\x02") for one in found]
    assert set(ended) == {dialect != "4.9"}
    copy = found[5].record
    assert (copy.topic, copy.queue_offset, copy.store_timestamp_ms) == ("TopicA", 1, T0 + 10_005)
    assert copy.effective == found[0].record.effective
    assert raw_files.read_config(built.root, "delayOffset.json")["offsetTable"] == {"3": 1}
    topics = raw_files.read_config(built.root, "topics.json")["topicConfigTable"]
    counts = {name: entry["readQueueNums"] for name, entry in topics.items()}
    assert counts == {"SCHEDULE_TOPIC_XXXX": 18, "TopicA": 6, "%RETRY%group_a": 1}
    consumed = raw_files.read_config(built.root, "consumerOffset.json")["offsetTable"]
    assert consumed["TopicA@group_a"] == {"0": 2, "5": 0}
    assert consumed["%RETRY%group_a@group_a"] == {"0": 0}


def test_log_files_end_with_the_blank_and_queues_run_over_files(tmp_path: Path) -> None:
    items = [LevelMessage(level=1 + n % 2, body=bytes(900)) for n in range(300)]
    built = build_level_store(tmp_path / "store", items)
    files = raw_files.segments(built.root / "commitlog")
    assert [path.stat().st_size for path in files] == [65536] * len(files)
    assert [int(path.name) for path in files] == [65536 * n for n in range(len(files))]
    for path in files[:-1]:
        inside = [p for p in built.placed if p.commit_log_offset // 65536 * 65536 == int(path.name)]
        end = inside[-1].commit_log_offset + len(inside[-1].data) - int(path.name)
        assert path.read_bytes()[end : end + 8] == struct.pack(">ii", 65536 - end, -875286124)
    assert len(list(raw_files.commit_log_records(built.root / "commitlog"))) == 300
    queue = built.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "0"
    assert len(raw_files.queue_units(queue)) == 150
    assert [path.stat().st_size for path in raw_files.segments(queue)] == [2000, 2000]


def test_a_crash_leaves_records_the_queues_do_not_know(tmp_path: Path) -> None:
    items = [LevelMessage(level=3, body=bytes([n])) for n in range(5)]
    built = build_level_store(
        tmp_path / "store", [*items, RawBytes(b"\0\0\1\0torn")], indexed_items=4, abort=True
    )
    queue = built.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2"
    assert len(raw_files.queue_units(queue)) == 4
    assert len(list(raw_files.commit_log_records(built.root / "commitlog"))) == 5
    assert raw_files.first_nonzero(built.root / "commitlog" / ("0" * 20), built.log_end) is None
    assert (built.root / "abort").read_bytes() == b""


def test_a_level_queue_can_end_early_and_old_log_files_be_gone(tmp_path: Path) -> None:
    items = [LevelMessage(level=3, body=bytes(900)) for _ in range(100)]
    built = build_level_store(tmp_path / "store", items, level_queue_ends={3: 7}, drop_log_files=1)
    queue = built.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2"
    assert len(raw_files.queue_units(queue)) == 7
    assert int(raw_files.segments(built.root / "commitlog")[0].name) == 65536


def test_half_messages_are_in_no_queue(tmp_path: Path) -> None:
    half = OrdinaryMessage(topic="RMQ_SYS_TRANS_HALF_TOPIC", sys_flag=0x4)
    built = build_level_store(tmp_path / "store", [half, LevelMessage()])
    assert built.of(half).unit is None
    assert not (built.root / "consumequeue" / "RMQ_SYS_TRANS_HALF_TOPIC").exists()


def test_wrong_fields_are_written_as_given(tmp_path: Path) -> None:
    items = [
        LevelMessage(record_fields={"body_crc": 1}),
        LevelMessage(extra_pairs=[("TIMER_DEL_UNIQKEY", "x"), ("a", ""), ("TAGS", "second")]),
        LevelMessage(without=["REAL_QID"]),
        LevelMessage(raw_properties=b"\xff", unit_fields={"tags_code": 5}),
        LevelMessage(damage=lambda data: data[:-1] + b"?"),
    ]
    built = build_level_store(tmp_path / "store", items)
    records = [
        one.record
        for one in raw_files.commit_log_records(built.root / "commitlog", check_crc=False)
    ]
    assert records[0].body_crc == 1
    assert records[1].pairs[-3:] == [("TIMER_DEL_UNIQKEY", "x"), ("a", ""), ("TAGS", "second")]
    assert "REAL_QID" not in records[2].effective
    assert records[3].properties == b"\xff"
    assert records[4].properties.endswith(b"?")
    queue = built.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2"
    assert raw_files.queue_units(queue)[3].tags_code == 5


def test_queue_extensions_hold_the_due_times(tmp_path: Path) -> None:
    items = [LevelMessage(level=3, store_timestamp_ms=T0 + n) for n in range(300)]
    built = build_level_store(tmp_path / "store", items, queue_ext=True)
    units = raw_files.queue_units(built.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2")
    ext = built.root / "consumequeue_ext" / "SCHEDULE_TOPIC_XXXX" / "2"
    for number, unit in enumerate(units):
        address = unit.tags_code + (1 << 63)
        data = raw_files.read_range(ext, 4096, address, 20)
        assert struct.unpack(">hqqh", data) == (20, T0 + number + 10_000, T0 + number, 0)
    first = raw_files.segments(ext)[0].read_bytes()
    assert struct.unpack_from(">h", first, 203 * 20) == (20,)
    assert struct.unpack_from(">h", first, 204 * 20) == (-1,)


VERSION_TEXT = (
    '\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t'
    '"timestamp":1700000000123\n\t},'
)
OFFSET_TEXTS: dict[Dialect, str] = {
    "4.9": '{\n\t"offsetTable":{1:10,2:20,3:30\n\t}\n}',
    "5.3": "{" + VERSION_TEXT + '\n\t"offsetTable":{1:10,2:20,3:30\n\t}\n}',
    "5.5": "{" + VERSION_TEXT + '\n\t"offsetTable":{\n\t\t1:10,\n\t\t2:20,\n\t\t3:30\n\t}\n}',
}


@pytest.mark.parametrize(("dialect", "text"), OFFSET_TEXTS.items())
def test_delay_offsets_are_the_text_of_their_version(dialect: Dialect, text: str) -> None:
    assert delay_offset_text({1: 10, 2: 20, 3: 30}, dialect) == text


def test_empty_delay_offsets_differ_by_version() -> None:
    assert delay_offset_text({}, "4.9") == '{\n\t"offsetTable":{}\n}'
    assert delay_offset_text({}, "5.4").endswith('"offsetTable":{\n\t\t\n\t}\n}')
    assert delay_offset_text({}, "5.5").endswith('"offsetTable":{}\n}')
