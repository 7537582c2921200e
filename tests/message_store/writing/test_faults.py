# SPDX-License-Identifier: Apache-2.0
"""What may go wrong between two calls of a store: interrupts, threads, holes, odd files."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest

import message_store.files.config_files as config_files
from message_store.base.errors import SourceError, TargetError
from message_store.files.config_files import TOPICS, read_config
from message_store.files.live_segments import LiveSegments
from message_store.files.small_files import replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.properties import LEVEL_TOPIC, encode_properties
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import (
    SMALL,
    append,
    append_rows,
    require_sound,
    stored,
)

SECTOR_BYTES = 512


def opened(path: Path) -> LiveStore:
    return LiveStore.open(path, settings=SMALL)


def routes(path: Path) -> set[str]:
    table = read_config(path, TOPICS).value["topicConfigTable"]
    assert isinstance(table, dict)
    return {str(name) for name in table}


def test_a_close_beside_a_flush_writes_all_topics_and_the_flush_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    is_inside, goes_on = threading.Event(), threading.Event()

    def slow(path: Path, content: bytes, **how: bool) -> None:
        if path.name == TOPICS and threading.current_thread().name == "flusher":
            is_inside.set()
            goes_on.wait(0.3)
        replace_file(path, content, **how)

    monkeypatch.setattr(config_files, "replace_file", slow)
    store.remember_topic("first", 0)
    flusher = threading.Thread(target=store.write_topics, name="flusher")
    flusher.start()
    assert is_inside.wait(20)
    store.remember_topic("second", 3)
    store.close()
    closed = (tmp_path / "config" / TOPICS).stat().st_mtime_ns
    flusher.join()
    assert (tmp_path / "config" / TOPICS).stat().st_mtime_ns == closed
    assert {"first", "second"} <= routes(tmp_path)


def test_of_a_topic_that_could_not_be_written_the_most_queues_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.remember_topic("orders", 7)

    def refused(*_: object) -> None:
        store.remember_topic("orders", 1)  # as another thread does meanwhile
        raise TargetError("the disk is full")

    monkeypatch.setattr("message_store.writing.store.merge_topics", refused)
    with pytest.raises(TargetError):
        store.write_topics()
    monkeypatch.undo()
    store.close()
    assert '"readQueueNums":8' in (tmp_path / "config" / TOPICS).read_text()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_undo_that_is_interrupted_leaves_no_store_that_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    store = opened(tmp_path)
    append(store, stored(b"taken"))
    segments, write_at = store.log.segments, store.log.segments.write_at

    def without_head(offset: int, data: bytes) -> None:
        if len(data) == 8:
            raise KeyboardInterrupt
        write_at(offset, data)

    def interrupted(_: int) -> int:
        raise interrupt

    monkeypatch.setattr(segments, "write_at", without_head)
    monkeypatch.setattr(segments, "zero_from", interrupted)
    with pytest.raises((KeyboardInterrupt, interrupt)):
        append_rows(store, [stored(b"never taken %d" % number) for number in range(3)])
    monkeypatch.undo()
    with pytest.raises(TargetError):
        append_rows(store, [stored(b"taken later 0")])
    store.abandon()
    again = opened(tmp_path)
    assert require_sound(again) == [b"taken"]
    again.abandon()


def test_a_record_that_lost_any_of_its_sectors_is_none(tmp_path: Path) -> None:
    """Nothing but the checksum of the body tells, and it covers neither topic nor properties."""
    store = opened(tmp_path)
    append(store, stored(b"synced"))
    store.flush()
    long = encode_properties([(f"p{number}", "v" * 300) for number in range(12)])
    at = append(store, attrs.evolve(stored(b"body"), properties_text=long))
    end = store.log.end
    store.abandon()
    file = tmp_path / "commitlog" / ("0" * 20)
    whole = file.read_bytes()
    for sector in range(at - at % SECTOR_BYTES, end, SECTOR_BYTES):
        harmed = bytearray(whole)
        harmed[max(sector, at) : min(sector + SECTOR_BYTES, end)] = bytes(
            min(sector + SECTOR_BYTES, end) - max(sector, at)
        )
        copy = tmp_path / f"copy {sector}"
        _copy(tmp_path, copy)
        (copy / "commitlog" / ("0" * 20)).write_bytes(harmed)
        again = opened(copy)
        assert again.log.end == at, sector
        assert require_sound(again) == [b"synced"]
        again.abandon()
    again = opened(tmp_path)
    assert require_sound(again) == [b"synced", b"body"]
    again.abandon()


@pytest.mark.parametrize("properties", [b"", b"a\x01b\x02"], ids=["none", "one"])
def test_a_record_is_whole_wherever_its_sectors_end(tmp_path: Path, properties: bytes) -> None:
    """Also where the last of them begins with the zeros that say that it has no properties."""
    large = attrs.evolve(SMALL, commit_log_file_bytes=1 << 20)
    store = LiveStore.open(tmp_path, settings=large)
    append(store, stored(b"synced"))
    store.flush()
    one = attrs.evolve(stored(b""), properties_text=properties)
    empty_bytes = -append(store, one) + store.log.end
    for wanted in range(SECTOR_BYTES):
        body = bytes((wanted - store.log.end - empty_bytes) % SECTOR_BYTES)
        append(store, attrs.evolve(stored(body), properties_text=properties))
        assert store.log.end % SECTOR_BYTES == wanted
    end = store.log.end
    store.abandon()
    again = LiveStore.open(tmp_path, settings=large)
    assert again.log.end == end
    again.abandon()


def _copy(store: Path, target: Path) -> None:
    target.mkdir()
    for name in ("commitlog", "consumequeue", "config", "delaywheel"):
        if (store / name).exists():
            shutil.copytree(store / name, target / name)
    for name in ("abort", "checkpoint", "lock"):
        shutil.copy(store / name, target / name)


@pytest.mark.parametrize("size_bytes", [1, 2])
def test_a_topic_is_read_past_every_neutral_entry(tmp_path: Path, size_bytes: int) -> None:
    store = opened(tmp_path)
    for number in range(3):
        append(store, stored(b"%d" % number, topic=LEVEL_TOPIC, level=1))
    store.queue(LEVEL_TOPIC, 0).neutralise(np.array([1]), size_bytes)
    assert [one.body for one in store.topic(LEVEL_TOPIC).read(0, 0)] == [b"0", b"2"]
    store.close()


def test_two_topics_whose_hashes_agree_are_two_topics(tmp_path: Path) -> None:
    """Clients choose the names; a hash of 64 bits once told them apart."""
    names = ("2cyii_sA_xLKeWrC", "d_BRv0ZbHDGA17GH")
    store = opened(tmp_path)
    for name in names:
        append(store, stored(name.encode(), topic=name))
    store.abandon()
    for name in names:
        (tmp_path / "consumequeue" / name / "0" / ("0" * 20)).unlink()
    again = opened(tmp_path)
    for name in names:
        assert [one.body for one in again.topic(name).read(0, 0)] == [name.encode()]
    again.abandon()


def test_a_queue_file_that_was_cut_short_does_not_decide_how_long_queue_files_are(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    append(store, stored(b"x"))
    store.close()
    file = tmp_path / "consumequeue" / "orders" / "0" / ("0" * 20)
    os.truncate(file, 110)
    with pytest.raises(SourceError, match="files of 110 bytes, where queues"):
        opened(tmp_path)
    assert file.stat().st_size == 110


def test_a_last_file_is_lengthened_only_if_the_store_is_opened(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(40):
        append(store, stored(bytes(1_000)))
    store.close()
    files = sorted((tmp_path / "commitlog").iterdir())
    os.truncate(files[-1], 9_000)
    with files[0].open("r+b") as file:  # and the log is refused
        file.truncate(0)
        file.truncate(SMALL.commit_log_file_bytes)
    for queue in (tmp_path / "consumequeue").rglob("0" * 20):
        queue.unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SourceError, match="nothing was changed"):
        opened(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_place_that_cannot_be_read_is_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = LiveSegments(tmp_path, 16_384)
    row.write_at(0, b"x" * 100)

    def refused(descriptor: int, place: int, how: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "lseek", refused)
    with pytest.raises(SourceError, match="Input/output error"):
        row.zero_from(50)
    monkeypatch.undo()
    row.close()


def test_an_application_s_own_kernels_are_cached_where_it_says() -> None:
    program = (
        "import numba; numba.config.CACHE_DIR = '/nowhere'\n"
        "import message_store.kernels.crc, message_store.kernels.dispatch\n"
        "print(numba.config.CACHE_DIR)"
    )
    command = [sys.executable, "-c", program]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == "/nowhere\n"
    )


def test_what_can_be_removed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"")
    unlink: Callable[[str], None] = os.unlink

    def refusing(path: str) -> None:
        if path.endswith("a"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refusing)
    StoreRoot(tmp_path).discard(keeps_directory=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_name_of_a_new_directory_is_synced_with_the_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    replace_file(tmp_path / "config" / "topics.json", b"{}")
    assert str(tmp_path) in synced
