# SPDX-License-Identifier: Apache-2.0
"""A consume queue open for writing: files, ends, neutralised entries, what is cut and deleted."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store.base.errors import SourceError, TargetError
from message_store.files.live_segments import LiveSegments
from message_store.format.queue_unit import PRE_BLANK, QUEUE_UNIT
from message_store.reading.consume_queue import read_queue
from message_store.writing import queue_set
from message_store.writing.queue import NATIVE_UNIT, LiveQueue
from message_store.writing.store import LiveStore
from tests.helpers.descriptors import open_below
from tests.message_store.live_workload import SMALL, append, neutralise, stored

FILE_BYTES = 20 * 250


def queue_at(directory: Path, log_min: int = 0, *, file_bytes: int = FILE_BYTES) -> LiveQueue:
    queue = LiveQueue("orders", 0, LiveSegments(directory, file_bytes))
    queue.load(log_min)
    return queue


def entries(first: int, count: int) -> Any:
    """Entries of records of 100 bytes one behind another."""
    units = np.zeros(count, NATIVE_UNIT)
    units["commit_log_offset"] = np.arange(first, first + count) * 100
    units["size_bytes"] = 100
    units["tags_code"] = np.arange(first, first + count) - 5
    return units


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LiveQueue]:
    opened = queue_at(tmp_path / "queue")
    yield opened
    opened.close()


def test_a_queue_has_no_files_before_its_first_entry(tmp_path: Path, queue: LiveQueue) -> None:
    assert not (tmp_path / "queue").exists()
    assert (queue.min_offset, queue.max_offset, queue.end_position) == (0, 0, 0)
    assert len(queue.units(0, 10)) == 0
    assert queue.append_one(0, 100, -7) == 0
    [path] = (tmp_path / "queue").iterdir()
    assert (path.name, path.stat().st_size) == ("0" * 20, FILE_BYTES)


def test_a_broker_s_files_have_room_for_300000_entries(tmp_path: Path) -> None:
    store = LiveStore.open(tmp_path / "store")
    append(store, stored(b"x"))
    store.close()
    path = tmp_path / "store/consumequeue/orders/0/00000000000000000000"
    assert path.stat().st_size == 6_000_000
    assert (tmp_path / "store/commitlog/00000000000000000000").stat().st_size == 1 << 30


@pytest.mark.parametrize("counts", [[1], [249, 2], [250, 1], [600], [3, 700, 1, 250]])
def test_what_was_appended_is_what_is_read_one_by_one_or_in_rows(
    tmp_path: Path, counts: list[int]
) -> None:
    rows, single = queue_at(tmp_path / "rows"), queue_at(tmp_path / "single")
    total = 0
    for count in counts:
        assert rows.append(entries(total, count)) == total
        for unit in entries(total, count).tolist():
            single.append_one(*unit)
        total += count
    for queue in (rows, single):
        assert (queue.max_offset, queue.end_position) == (total, total * 100)
        assert np.array_equal(queue.units(0, total), entries(0, total))
        assert np.array_equal(queue.units(total - 1, total + 50), entries(total - 1, 1))
        queue.close()
        read = read_queue(queue.segments.directory, file_bytes=FILE_BYTES)
        assert np.array_equal(read.units.astype(NATIVE_UNIT), entries(0, total))
        again = queue_at(queue.segments.directory)
        assert (again.max_offset, again.end_position) == (total, total * 100)
        assert not again.needs_repair
        again.close()


def test_appending_takes_either_byte_order(queue: LiveQueue) -> None:
    queue.append(entries(0, 3).astype(QUEUE_UNIT.dtype))
    queue.append(entries(3, 3))
    queue.append(entries(6, 0))
    assert np.array_equal(queue.units(0, 6), entries(0, 6))


def test_an_entry_that_crosses_a_page_is_written_from_its_end(
    queue: LiveQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[tuple[int, int]] = []
    real = os.pwrite

    def watch(descriptor: int, data: Any, place: int) -> int:
        places.append((place, len(data)))
        return real(descriptor, data, place)

    queue.append(entries(0, 204))
    monkeypatch.setattr(os, "pwrite", watch)
    queue.append_one(*entries(204, 1).tolist()[0])
    queue.append_one(*entries(205, 1).tolist()[0])
    assert places == [(4096, 4), (4080, 16), (4100, 20)]
    assert np.array_equal(queue.units(200, 206), entries(200, 6))


@pytest.mark.parametrize(
    "places", [[], [0], [100], [204], [249], [299], [0, 299], [203, 204, 205], [*range(300)]]
)
def test_a_neutralised_entry_keeps_its_end_and_its_tags_code(
    queue: LiveQueue, places: list[int]
) -> None:
    queue.append(entries(0, 300))
    queue.neutralise(np.array([*places, 300, 10**6], np.int64), 1)
    wanted = entries(0, 300)
    wanted["commit_log_offset"][places] += 99
    wanted["size_bytes"][places] = 1
    assert np.array_equal(queue.units(0, 300), wanted)
    assert (queue.max_offset, queue.end_position) == (300, 30_000)
    queue.append_one(30_000, 100, 9)
    assert queue.units(300, 301).tolist() == [(30_000, 100, 9)]


@pytest.mark.parametrize("places", [[613, 614, 615], [102], [819]])
def test_whatever_is_refused_an_entry_is_as_it_was_or_nobody_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    """The one at 614 crosses a page behind its place in the log, that at 819 within it."""
    real = os.pwrite
    left = 0

    def write(descriptor: int, data: bytes, place: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "no room")
        return real(descriptor, data, place)

    queue = queue_at(tmp_path / "queue", file_bytes=20 * 1_000)
    queue.append(entries(0, 1_000))
    before = queue.units(0, 1_000)
    monkeypatch.setattr(os, "pwrite", write)
    for allowed in itertools.count():
        left = allowed
        try:
            queue.neutralise(np.array(places, np.int64), 2)
            break
        except TargetError:
            changed = queue.units(0, 1_000)
        is_short = changed["size_bytes"] == 2
        assert set(np.flatnonzero(is_short).tolist()) <= set(places)
        assert np.array_equal(changed[~is_short], before[~is_short])
    assert queue.units(0, 1_000)["size_bytes"][places].tolist() == [2] * len(places)


@pytest.mark.parametrize("queue_offset", [-1, 3, 10**6])
def test_only_what_is_there_can_be_replaced(queue: LiveQueue, queue_offset: int) -> None:
    queue.append(entries(0, 3))
    with pytest.raises(ValueError, match="queue offset"):
        queue.overwrite(queue_offset, 0, 1, 0)


@pytest.mark.parametrize(("log_end", "left"), [(10**9, 600), (59_900, 599), (100, 1), (99, 0)])
def test_entries_of_records_that_the_log_has_not_are_cut(
    queue: LiveQueue, log_end: int, left: int
) -> None:
    queue.append(entries(0, 600))
    assert queue.cut(log_end) == 600 - left
    assert (queue.max_offset, queue.end_position) == (left, left * 100)
    assert not queue.segments.has_data_from(left * 20)
    queue.append(entries(left, 700 - left))
    assert np.array_equal(queue.units(0, 700), entries(0, 700))


def test_a_queue_that_begins_late_says_nothing_before(tmp_path: Path, queue: LiveQueue) -> None:
    queue.begin_at(603)
    assert (queue.min_offset, queue.max_offset) == (603, 603)
    queue.append(entries(700, 2))
    queue.close()
    [path] = (tmp_path / "queue").iterdir()
    assert path.name == f"{10_000:020d}"
    assert path.read_bytes()[: 103 * 20] == PRE_BLANK * 103
    again = queue_at(tmp_path / "queue", log_min=70_000)
    assert (again.min_offset, again.max_offset, again.end_position) == (603, 605, 70_200)
    again.close()


def test_files_whose_records_are_gone_go_and_the_last_one_never(queue: LiveQueue) -> None:
    queue.append(entries(0, 750))
    assert queue.delete_before(25_000 - 1) == []
    assert queue.min_offset == 250
    assert [path.name for path in queue.delete_before(25_000)] == ["0" * 20]
    assert queue.min_offset == 250
    assert queue.delete_before(26_000) == []
    assert queue.min_offset == 260
    assert len(queue.delete_before(10**9)) == 1
    assert (queue.min_offset, queue.max_offset) == (750, 750)
    assert len(queue.units(0, 750)) == 250


@pytest.mark.parametrize("has_a_file_behind", [False, True])
def test_a_stale_rest_behind_the_end_is_noticed(
    tmp_path: Path, queue: LiveQueue, has_a_file_behind: bool
) -> None:
    queue.append(entries(0, 300))
    queue.close()
    if has_a_file_behind:  # of which nothing but the name came to the disk
        (tmp_path / "queue" / f"{2 * FILE_BYTES:020d}").touch()
    path = tmp_path / "queue" / f"{FILE_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[20 * 20 : 21 * 20] = bytes(20)
    path.write_bytes(data)
    again = queue_at(tmp_path / "queue")
    assert again.needs_repair
    assert again.max_offset == 270
    assert again.cut(10**9) == 0
    assert not again.segments.has_data_from(270 * 20)
    again.close()


@pytest.mark.parametrize("count", [500, 501, 1_250, 1_500])
def test_only_the_last_files_are_read_to_find_the_end(tmp_path: Path, count: int) -> None:
    """A broker looks for it in the last three, all of which may be empty."""
    before = queue_at(tmp_path / "queue")
    before.append(entries(0, count))
    before.segments.make_file(FILE_BYTES * max(4, count // 250 - 1))
    before.close()
    after = queue_at(tmp_path / "queue")
    whole = read_queue(tmp_path / "queue")
    assert (after.max_offset, after.end_position) == (whole.queue_max, count * 100)
    assert (after.min_offset, after.needs_repair) == (0, False)
    assert np.array_equal(after.units(0, count), entries(0, count))
    after.close()


@pytest.mark.parametrize("log_min", [0, 10_000, 100_000])
def test_a_queue_that_ends_in_a_damaged_file_has_files_behind_its_end(
    tmp_path: Path, queue: LiveQueue, log_min: int
) -> None:
    queue.append(entries(0, 700))
    damaged = tmp_path / "queue" / f"{FILE_BYTES:020d}"
    damaged.write_bytes(damaged.read_bytes()[:1000] + bytes(FILE_BYTES - 1000))
    opened = queue_at(tmp_path / "queue", log_min)
    assert opened.needs_repair
    assert opened.max_offset == 300
    assert opened.min_offset == min(log_min // 100, 300)
    opened.close()


@pytest.mark.parametrize(
    ("log_min", "min_offset", "first_file"),
    [(0, 0, 0), (12_300, 123, 0), (30_000, 500, 1), (60_000, 600, 1), (80_000, 800, 3)],
)
def test_what_a_loss_of_power_left_of_a_file_is_needed_as_long_as_the_file_behind(
    tmp_path: Path, queue: LiveQueue, log_min: int, min_offset: int, first_file: int
) -> None:
    queue.append(entries(0, 1_250))
    for number, kept in ((0, 170), (1, 0)):
        path = tmp_path / "queue" / f"{number * FILE_BYTES:020d}"
        path.write_bytes(path.read_bytes()[: kept * 20].ljust(FILE_BYTES, b"\0"))
    opened = queue_at(tmp_path / "queue", log_min)
    assert opened.max_offset == 1_250
    assert opened.min_offset == min_offset
    opened.delete_before(log_min)
    assert opened.segments.starts[0] == first_file * FILE_BYTES
    opened.close()


def test_a_missing_file_in_the_row_is_no_queue_to_append_to(tmp_path: Path) -> None:
    queue = queue_at(tmp_path / "queue")
    queue.append(entries(0, 900))
    queue.close()
    (tmp_path / "queue" / f"{FILE_BYTES:020d}").unlink()
    with pytest.raises(SourceError, match=r"missing|fit files"):
        queue_at(tmp_path / "queue")


def test_a_refused_write_is_an_error_with_its_place(
    queue: LiveQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.append(entries(0, 1))

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(TargetError, match="No space left"):
        queue.append_one(100, 100, 0)
    monkeypatch.undo()
    assert (queue.max_offset, queue.end_position) == (1, 100)
    queue.append(entries(1, 1))
    assert np.array_equal(queue.units(0, 2), entries(0, 2))


def test_a_store_may_have_more_queues_than_a_process_has_handles(tmp_path: Path) -> None:
    store = LiveStore.open(tmp_path / "store", settings=SMALL)
    for number in range(450):
        append(store, stored(b"x", queue_id=number))
    for number in range(450):
        append(store, stored(b"y", queue_id=number))
    assert 0 < len(open_below(tmp_path)) < 420
    neutralise(store, "orders", 17, 0)
    store.close()
    again = LiveStore.open(tmp_path / "store", settings=SMALL)
    assert all(queue.max_offset == 2 for queue in again.queues)
    assert len(again.queues) == 450
    assert [message.body for message in again.topic("orders").read(17, 0)] == [b"y"]
    again.abandon()


def test_every_file_is_synced_where_opening_one_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_set, "_MAX_QUEUE_HANDLES", 2)
    store = LiveStore.open(tmp_path / "store", settings=SMALL)
    for number in (0, 1, 2):
        queue = store.queue("orders", number)
        queue.append(entries(0, 3 * queue.segments.file_bytes // QUEUE_UNIT.size))
    synced = []

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fdatasync", note)
    store.sync_queues()
    written = (tmp_path / "store" / "consumequeue" / "orders").glob("*/*")
    assert sorted(synced) == sorted(written)
    monkeypatch.undo()
    store.abandon()


def test_room_for_a_file_is_made_by_closing_what_is_open_and_not_by_asking_every_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred thousand queues nearly all are closed, and files are opened all the time."""
    monkeypatch.setattr(queue_set, "_MAX_QUEUE_HANDLES", 10)
    closed, real = [], LiveQueue.close

    def close(queue: LiveQueue) -> None:
        closed.append(queue.queue_id)
        real(queue)

    store = LiveStore.open(tmp_path / "store", settings=SMALL)
    monkeypatch.setattr(LiveQueue, "close", close)
    for number in range(200):
        append(store, stored(b"x", queue_id=number))
    assert 100 < len(closed) <= 200
    store.abandon()
