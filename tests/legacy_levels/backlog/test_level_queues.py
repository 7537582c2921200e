# SPDX-License-Identifier: Apache-2.0
"""Level queues from their offsets on: which there are, corrected offsets, what is expired."""

from pathlib import Path

import pytest

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.backlog.queues import LevelQueue, levels_with_queue, open_level_queues
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import TruncatedRecordError
from message_store.files.segments import segment_name
from message_store.format.queue_unit import PRE_BLANK, QUEUE_UNIT
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store

FILE_BYTES = 10 * QUEUE_UNIT.size


def unit(number: int) -> bytes:
    return QUEUE_UNIT.encode(commit_log_offset=number * 100, size_bytes=100, tags_code=T0 + number)


def write_queue(root: Path, level: int, data: bytes, *, start: int = 0) -> Path:
    directory = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / str(level - 1)
    directory.mkdir(parents=True)
    for place in range(0, len(data), FILE_BYTES):
        content = data[place : place + FILE_BYTES].ljust(FILE_BYTES, b"\0")
        (directory / segment_name(start + place)).write_bytes(content)
    return directory


def opened(root: Path, offsets: bytes = b"{}") -> tuple[LevelQueue, ...]:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "delayOffset.json").write_bytes(offsets)
    return open_level_queues(root, read_delay_offsets(root), queue_file_bytes=FILE_BYTES)


def test_levels_are_the_numbered_directories_and_no_links(tmp_path: Path) -> None:
    queue = write_queue(tmp_path, 3, unit(0))
    for name in ("17", "x", "-1", "9999999999", "٣"):
        (queue.parent / name).mkdir()
    (queue.parent / "4").symlink_to(queue)
    (queue.parent / "5").write_bytes(b"")
    assert levels_with_queue(tmp_path) == [3, 18]
    assert levels_with_queue(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("stored", "corrected"),
    [(0, 20), (19, 20), (20, 20), (27, 27), (33, 33), (34, 33), (10**18, 33)],
)
def test_offsets_are_moved_into_the_queue_as_a_broker_moves_them(
    tmp_path: Path, stored: int, corrected: int
) -> None:
    data = b"".join(map(unit, range(20, 33)))
    write_queue(tmp_path, 3, data, start=2 * FILE_BYTES)
    [queue] = opened(tmp_path, b'{"offsetTable":{3:%d}}' % stored)
    assert (queue.queue_min, queue.queue_max, queue.stored_offset) == (20, 33, stored)
    assert queue.from_queue_offset == corrected
    assert queue.queue_offset.tolist() == list(range(corrected, 33))
    assert queue.due_ms.tolist() == [T0 + number for number in range(corrected, 33)]
    assert len(queue.history) == corrected - 20


def test_entries_before_the_log_and_blanks_before_the_queue_are_expired(tmp_path: Path) -> None:
    write_queue(tmp_path, 3, PRE_BLANK * 2 + b"".join(map(unit, range(2, 8))))
    [queue] = opened(tmp_path)
    assert queue.is_expired(0).tolist() == [True] * 2 + [False] * 6
    assert queue.is_expired(500).tolist() == [True] * 5 + [False] * 3


def test_an_entry_without_content_is_not_expired_but_bad(tmp_path: Path) -> None:
    units = [unit(number) for number in range(45)]
    units[4] = bytes(20)
    write_queue(tmp_path, 3, b"".join(units))
    [queue] = opened(tmp_path)
    assert queue.is_damaged
    assert queue.is_expired(10_000).tolist() == [number != 4 for number in range(45)]


def test_misfits_are_reported(tmp_path: Path) -> None:
    directory = write_queue(tmp_path, 3, b"".join(map(unit, range(15))))
    (directory / segment_name(FILE_BYTES)).write_bytes(unit(10) + unit(11)[:5])
    [queue] = opened(tmp_path)
    assert queue.queue_max == 11
    assert [misfit.path.name for misfit in queue.misfits] == [segment_name(FILE_BYTES)]


def test_a_missing_file_behind_the_offset_is_an_error(tmp_path: Path) -> None:
    directory = write_queue(tmp_path, 3, b"".join(map(unit, range(45))))
    (directory / segment_name(FILE_BYTES)).unlink()
    with pytest.raises(TruncatedRecordError, match="a file of the queue is missing"):
        opened(tmp_path)


def test_an_entry_without_content_has_no_due_time(tmp_path: Path) -> None:
    items = [LevelMessage(store_timestamp_ms=T0 + number) for number in range(450)]
    store = build_level_store(tmp_path / "store", items)
    path = store.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / segment_name(0)
    content = bytearray(path.read_bytes())
    content[100:120] = bytes(20)
    path.write_bytes(content)
    backlog = read_backlog(store.root)
    assert len(backlog) == 450
    bad = backlog.size_bytes == 0
    assert (backlog.queue_offset[bad].tolist(), backlog.due_ms[bad].tolist()) == ([5], [-1])
