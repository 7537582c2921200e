# SPDX-License-Identifier: Apache-2.0
"""Damage to a consume queue or to one record never decides where the log ends, and entries that
were hit are made again from the log.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.base.errors import BadFieldError, FormatError, SourceError
from message_store.files.live_segments import LiveSegments
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import LONG_MAX
from message_store.format.queue_unit import PRE_BLANK, PRE_BLANK_SIZE, QUEUE_UNIT
from message_store.reading.consume_queue import QueueEntries
from message_store.writing.findings import queue_findings
from message_store.writing.losses import LOG_FILE_NAME, cut_log, way_out
from message_store.writing.queue_set import ENDS_NAME
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import (
    SMALL,
    append,
    append_rows,
    log_records,
    neutralise,
    require_sound,
    stored,
)

QUEUE = Path("consumequeue/orders/0") / ("0" * 20)
COUNT = 12
UNIT = QUEUE_UNIT.size


def opened(path: Path, dialect: Dialect = Dialect.ROCKETMQ_5_3) -> LiveStore:
    return LiveStore.open(path, settings=SMALL, dialect=dialect)


@pytest.fixture(params=["closed", "killed"])
def whole(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A store of two queues, the newest message in neither always."""
    store = opened(tmp_path / "whole")
    for number in range(COUNT):
        append(store, stored(bytes([number + 1]) * 200))
    for number in range(COUNT):
        append(store, stored(b"later" * 20, topic="later" if number % 3 else "orders"))
    neutralise(store, "orders", 0, 5)
    store.flush()
    store.close() if request.param == "closed" else store.abandon()
    return tmp_path / "whole"


def require_whole(path: Path, log_end: int, bodies: list[bytes]) -> None:
    store = opened(path)
    assert store.log.end == log_end
    assert require_sound(store) == bodies
    append(store, stored(b"one more"))
    store.abandon()
    again = opened(path)  # a gap in the log would end it here
    assert require_sound(again) == [*bodies, b"one more"]
    again.close()


def facts(path: Path) -> tuple[int, list[bytes]]:
    store = opened(path)
    end, bodies = store.log.end, [message.body for message, _ in log_records(store)]
    store.abandon()
    return end, bodies


@pytest.mark.check
def test_a_flipped_bit_in_the_newest_entry_does_not_move_the_log_s_end(
    tmp_path: Path, whole: Path
) -> None:
    shutil.copytree(whole, tmp_path / "other")
    end, bodies = facts(tmp_path / "other")
    data = (whole / QUEUE).read_bytes()
    last = (len(data.rstrip(b"\0")) - 1) // UNIT * UNIT
    for bit in range(8 * QUEUE_UNIT.offset_of("tags_code")):
        copy = tmp_path / f"bit {bit}"
        shutil.copytree(whole, copy)
        harmed = bytearray(data)
        harmed[last + bit // 8] ^= 1 << bit % 8
        (copy / QUEUE).write_bytes(harmed)
        require_whole(copy, end, bodies)
        shutil.rmtree(copy)


def test_zeros_anywhere_in_a_queue_do_not_move_the_log_s_end(
    tmp_path: Path, whole: Path, seed: int
) -> None:
    shutil.copytree(whole, tmp_path / "other")
    end, bodies = facts(tmp_path / "other")
    data, chance = (whole / QUEUE).read_bytes(), random.Random(seed)
    for number in range(30):
        copy = tmp_path / f"zeros {number}"
        shutil.copytree(whole, copy)
        place, size = 7 * UNIT + 2 * number, chance.choice([1, 8, 52, 300])
        harmed = data[:place] + bytes(size) + data[place + size :]
        (copy / QUEUE).write_bytes(harmed[: len(data)])
        store = opened(copy)
        assert store.log.end == end, (place, size)
        assert [message.body for message, _ in log_records(store)] == bodies
        store.abandon()
        shutil.rmtree(copy)


def test_a_record_of_another_length_than_its_entry_says_is_not_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    position = append(store, stored(b"x"))
    size_bytes = store.log.end - position
    append(store, stored(b"y"))
    assert store.log.record(position, size_bytes).body == b"x"
    with pytest.raises(BadFieldError, match="another length"):
        store.log.record(position, size_bytes + 1)
    store.close()


def test_a_queue_whose_beginning_was_being_filled_in_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    for number in range(330):
        append(store, stored(b"%d" % number * 100))
    store.log.segments.delete_before(2 * SMALL.commit_log_file_bytes)
    first = log_records(store)[0][0].queue_offset
    assert first > 20
    store.close()
    write_at = LiveSegments.write_at
    for written in (0, 1, 7, first - 1):
        shutil.rmtree(tmp_path / "consumequeue")

        def killed(row: LiveSegments, offset: int, data: bytes, count: int = written) -> None:
            if data[:UNIT] != PRE_BLANK:
                write_at(row, offset, data)
                return
            write_at(row, offset, data[: count * UNIT])
            raise KeyboardInterrupt

        monkeypatch.setattr(LiveSegments, "write_at", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path)
        monkeypatch.undo()
        again = opened(tmp_path)
        [read] = again.topic("orders").read(0, first, 1)
        assert read.queue_offset == first
        queue = again.queue("orders", 0)
        assert (queue.min_offset, queue.max_offset) == (first, 330)
        again.close()


@pytest.mark.parametrize("offset", [1 << 40, LONG_MAX - 10, LONG_MAX])
def test_an_entry_beyond_what_64_bits_hold_is_cut(tmp_path: Path, offset: int) -> None:
    store = opened(tmp_path)
    for number in range(3):
        append(store, stored(b"%d" % number))
    store.abandon()
    unit = QUEUE_UNIT.encode(commit_log_offset=offset, size_bytes=100, tags_code=0)
    with (tmp_path / QUEUE).open("r+b") as file:
        file.seek(3 * UNIT)
        file.write(unit)
    again = opened(tmp_path)
    assert len(require_sound(again)) == 3
    assert again.recovery.cut == 1
    again.abandon()
    entries = QueueEntries(np.frombuffer(unit, QUEUE_UNIT.dtype), 0, 0)
    assert entries.indexed_end == min(offset + 100, LONG_MAX)


def test_whole_records_behind_a_damaged_one_are_kept_in_a_file_and_told_of(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    places = [append(store, stored(b"%d" % number * 300)) for number in range(60)]
    end = store.log.end
    store.abandon()
    whole_log = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
    with (path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(places[9] + 150)
        file.write(b"\xff")
    again = opened(path)
    saved = again.recovery.saved
    assert again.log.end == places[9]
    assert saved is not None
    kept = saved.read_bytes()
    assert kept[places[10] - places[9] : end - places[9]] == whole_log[places[10] : end]
    assert str(saved) in "".join(map(str, queue_findings(again)))
    again.close()


def test_an_append_that_was_killed_before_it_was_published_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    append(store, stored(b"taken"))
    write_at = store.log.segments.write_at

    def killed(offset: int, data: bytes) -> None:
        if len(data) == 8:
            raise KeyboardInterrupt
        write_at(offset, data)

    monkeypatch.setattr(store.log.segments, "write_at", killed)
    monkeypatch.setattr(store.log.segments, "zero_from", lambda _: 0)
    with pytest.raises(KeyboardInterrupt):
        append_rows(store, [stored(b"never published %d" % number) for number in range(9)])
    store.abandon()
    again = opened(tmp_path)
    assert require_sound(again) == [b"taken"]
    assert again.recovery.zeroed_bytes
    assert (again.recovery.saved, list(queue_findings(again))) == (None, [])
    again.abandon()


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_log_whose_files_are_gone_is_refused(tmp_path: Path, end: str) -> None:
    store = opened(tmp_path)
    append(store, stored(b"x"))
    append(store, stored(b"y"))
    store.flush()
    store.close() if end == "closed" else store.abandon()
    (tmp_path / "commitlog" / ("0" * 20)).unlink()
    with pytest.raises(SourceError, match="no commit log file is there"):
        opened(tmp_path)


def test_a_closed_store_whose_only_log_file_was_cut_in_a_record_is_refused(
    tmp_path: Path, whole: Path
) -> None:
    """Else that length would become the size of log files, and the next get a name that no broker
    takes. Nothing is changed. A killed one may have been written no further than it was synced.
    """
    shutil.copytree(whole, tmp_path / "other")
    end, bodies = facts(tmp_path / "other")
    is_closed = not (whole / "abort").exists()
    for length in [end - 1, end - 5, end - 99, 3_001, *range(512, end, 512)]:
        copy = tmp_path / f"cut at {length}"
        shutil.copytree(whole, copy)
        log = copy / "commitlog" / ("0" * 20)
        os.truncate(log, length)
        if is_closed:
            with pytest.raises(SourceError, match=r"was cut short.*truncate -s"):
                opened(copy)
            assert log.stat().st_size == length
            told = cut_log(StoreRoot(copy))
            assert told is not None
            command = shlex.join(["truncate", "-s", str(SMALL.commit_log_file_bytes), str(log)])
            assert f"`{command}`" in way_out(StoreRoot(copy))
            os.truncate(log, SMALL.commit_log_file_bytes)
            (copy / "delaywheel" / ENDS_NAME).unlink()
            opened(copy).abandon()
            continue
        with pytest.raises(SourceError, match="was synced"):
            opened(copy)
        assert log.stat().st_size == length
        (copy / "delaywheel" / ENDS_NAME).unlink()
        store = opened(copy)
        left = [message.body for message, _ in log_records(store)]
        assert left == bodies[: len(left)]
        assert store.log.file_bytes == SMALL.commit_log_file_bytes
        store.abandon()


@pytest.mark.parametrize("length", [0, 1, 700])
@pytest.mark.parametrize("has_note", [True, False])
def test_the_length_to_which_the_only_log_file_was_cut_is_not_the_size_of_log_files(
    tmp_path: Path, length: int, has_note: bool
) -> None:
    """Nothing was synced, so a shorter log is no damage; a broker of this store would not start on
    files of the shorter length. A store of older versions has no note until it is opened.
    """
    store = opened(tmp_path)
    note = tmp_path / "delaywheel" / LOG_FILE_NAME
    assert note.exists(), "before the first log file"
    append(store, stored(b"x"))
    store.abandon()
    if not has_note:
        note.unlink()
        opened(tmp_path).abandon()
        assert note.exists()
    log = tmp_path / "commitlog" / ("0" * 20)
    os.truncate(log, length)
    store = LiveStore.open(tmp_path, settings=StoreSettings())
    for _ in range(2):
        append(store, stored(b"y" * (SMALL.commit_log_file_bytes // 2)))
    store.close()
    lengths = {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()}
    assert lengths == {SMALL.commit_log_file_bytes}
    assert len(list((tmp_path / "commitlog").iterdir())) == 2


@pytest.mark.parametrize("file_bytes", [5_000, 100_000, 10**8, 1 << 20])
def test_the_only_log_file_keeps_its_length_whatever_the_settings_say(
    tmp_path: Path, file_bytes: int
) -> None:
    """A broker of this store has that size in its configuration."""
    store = LiveStore.open(tmp_path, settings=attrs.evolve(SMALL, commit_log_file_bytes=file_bytes))
    append(store, stored(b"one"))
    store.close()
    for settings in (StoreSettings(), attrs.evolve(SMALL, commit_log_file_bytes=4_096)):
        store = LiveStore.open(tmp_path, settings=settings)
        append(store, stored(b"another"))
        store.close()
    (log,) = (tmp_path / "commitlog").iterdir()
    assert log.stat().st_size == file_bytes


@pytest.mark.parametrize("place", [0, 3, COUNT - 1])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_an_entry_damaged_into_the_size_of_a_filler_is_no_filler(
    tmp_path: Path, end: str, place: int
) -> None:
    """It says something in its tags code. The last one is made again, and the queue still begins
    with the first one: who reads it hears of the damage.
    """
    store = opened(tmp_path)
    for number in range(COUNT):
        append(store, stored(bytes([number + 1]) * 200))
    store.flush()
    store.close() if end == "closed" else store.abandon()
    with (tmp_path / QUEUE).open("r+b") as file:
        file.seek(place * UNIT + QUEUE_UNIT.offset_of("size_bytes"))
        file.write(PRE_BLANK_SIZE.to_bytes(4, "big"))
    again = opened(tmp_path)
    queue = again.queue("orders", 0)
    assert (queue.min_offset, queue.max_offset) == (0, COUNT)
    if place == COUNT - 1:
        assert require_sound(again) == [bytes([number + 1]) * 200 for number in range(COUNT)]
    else:
        with pytest.raises(FormatError, match="not in the log"):
            again.topic("orders").read(0, place)
    again.abandon()
