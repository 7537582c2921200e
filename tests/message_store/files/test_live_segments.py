# SPDX-License-Identifier: Apache-2.0
"""A row of files open for writing: sizes, gaps, zeroing, mappings, what is dirty."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.base.errors import SourceError, TargetError, TruncatedRecordError
from message_store.files.live_segments import LiveSegments
from tests.helpers.descriptors import open_below

FILE_BYTES = 8_192


@pytest.fixture
def row(tmp_path: Path) -> Iterator[LiveSegments]:
    segments = LiveSegments(tmp_path / "row", FILE_BYTES)
    yield segments
    segments.close()


def names(row: LiveSegments) -> list[str]:
    return sorted(path.name for path in row.directory.iterdir())


def test_writing_makes_the_files_that_it_needs_at_full_length(row: LiveSegments) -> None:
    row.write_at(FILE_BYTES - 3, b"abcdefgh")
    assert names(row) == [f"{0:020d}", f"{FILE_BYTES:020d}"][1:] or len(names(row)) == 2
    assert row.read_at(FILE_BYTES - 3, 3) + row.read_at(FILE_BYTES, 5) == b"abcdefgh"
    assert {path.stat().st_size for path in row.directory.iterdir()} == {FILE_BYTES}
    row.write_at(5 * FILE_BYTES, b"far")
    assert row.starts == [number * FILE_BYTES for number in range(6)]
    assert row.end_offset == 6 * FILE_BYTES


def test_a_row_may_begin_late(row: LiveSegments) -> None:
    row.write_at(3 * FILE_BYTES + 5, b"x")
    assert (row.min_offset, row.end_offset) == (3 * FILE_BYTES, 4 * FILE_BYTES)
    with pytest.raises(TruncatedRecordError):
        row.read_at(0, 1)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({0: 100, 200: 100}, "its size|files of"),
        ({0: 100, 100: 100, 300: 100}, "missing"),
        ({0: 100, 100: 90, 200: 100}, "90 bytes"),
        ({50: 100}, "does not fit"),
        ({0: 100, 100: 150}, "150 bytes"),
    ],
)
def test_a_row_that_nobody_can_append_to_is_refused(
    tmp_path: Path, files: dict[int, int], problem: str
) -> None:
    for start, length in files.items():
        (tmp_path / f"{start:020d}").write_bytes(bytes(length))
    with pytest.raises(SourceError, match=problem):
        LiveSegments(tmp_path, 100)


def test_the_way_out_of_a_cut_row_is_of_the_size_that_was_noted(tmp_path: Path) -> None:
    for start, length in ((0, 25), (100, 50)):  # which look like files of 50
        (tmp_path / f"{start:020d}").write_bytes(bytes(length))
    with pytest.raises(SourceError, match=rf"{0:020d}: this file is 25 .*truncate -s 100 "):
        LiveSegments(tmp_path, 4_000, noted_bytes=100)


@pytest.mark.parametrize("length", [0, 1, 99])
def test_a_last_file_that_is_too_short_gets_its_length(tmp_path: Path, length: int) -> None:
    (tmp_path / f"{0:020d}").write_bytes(b"x" * 100)
    (tmp_path / f"{100:020d}").write_bytes(b"y" * length)
    row = LiveSegments(tmp_path, 4_000)
    assert row.file_bytes == 100
    assert row.read_at(100, 100) == b"y" * length + bytes(100 - length)
    assert row.is_dirty
    row.close()


def test_zeroing_goes_from_the_back_to_the_front(
    row: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for place in (0, 10, 4_000, 8_100, FILE_BYTES, 2 * FILE_BYTES + 9):
        row.write_at(place, b"data")
    pwrite, unlink = os.pwrite, os.unlink

    def watch_write(descriptor: int, data: bytes, place: int) -> int:
        done.append(f"{place}")
        return pwrite(descriptor, data, place)

    def watch_unlink(path: Path) -> None:
        done.append(path.name.lstrip("0"))
        unlink(path)

    monkeypatch.setattr(os, "pwrite", watch_write)
    monkeypatch.setattr(os, "unlink", watch_unlink)
    assert row.has_data_from(5) is True
    found = row.zero_from(12)
    assert found == 2 + 4 + 4
    assert done == [f"{2 * FILE_BYTES}", f"{FILE_BYTES}", "12"]
    assert row.read_at(0, 12) == b"data" + bytes(6) + b"da"
    assert not row.has_data_from(12)
    assert row.zero_from(12) == 0
    assert row.starts == [0]


def test_a_large_rest_is_zeroed_in_pieces_from_its_back(tmp_path: Path) -> None:
    row = LiveSegments(tmp_path, 4 << 20)
    row.write_at(0, b"\1" * (4 << 20))
    assert row.zero_from(77) == (4 << 20) - 77
    assert not row.has_data_from(77)
    assert row.read_at(0, 78) == b"\1" * 77 + b"\0"
    row.close()


def test_only_whole_files_before_an_offset_go_and_never_the_last(row: LiveSegments) -> None:
    row.write_at(0, b"x")
    row.write_at(3 * FILE_BYTES, b"y")
    assert row.delete_before(FILE_BYTES - 1) == []
    assert [path.name for path in row.delete_before(2 * FILE_BYTES)] == [
        f"{0:020d}",
        f"{FILE_BYTES:020d}",
    ]
    assert len(row.delete_before(10**9)) == 1
    assert row.starts == [3 * FILE_BYTES]


def test_views_and_addresses_show_what_is_written_later(row: LiveSegments) -> None:
    row.make_file(FILE_BYTES)
    row.make_file(2 * FILE_BYTES)
    view = row.view(FILE_BYTES + 10, 4)
    assert view.readonly
    offsets = np.array([FILE_BYTES + 10, 0, 3 * FILE_BYTES, 2 * FILE_BYTES, -5])
    addresses = row.addresses(offsets)
    assert addresses[[1, 2, 4]].tolist() == [-1, -1, -1]
    row.write_at(FILE_BYTES + 10, b"late")
    row.write_at(2 * FILE_BYTES, b"more")
    assert bytes(view) == b"late"
    assert ctypes.string_at(int(addresses[0]), 4) == b"late"
    assert ctypes.string_at(int(addresses[3]), 4) == b"more"
    row.close()
    assert bytes(view) == b"late"


@pytest.mark.parametrize(
    ("offset", "size_bytes"), [(-1, 1), (0, FILE_BYTES + 1), (10, FILE_BYTES), (FILE_BYTES, 1)]
)
def test_bytes_that_are_not_in_one_file_are_not_given(
    row: LiveSegments, offset: int, size_bytes: int
) -> None:
    row.make_file(0)
    for read in (row.read_at, row.view):
        with pytest.raises(TruncatedRecordError):
            read(offset, size_bytes)


def test_what_was_written_is_synced_once(
    row: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def watch(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    row.write_at(FILE_BYTES - 1, b"ab")
    row.write_at(3, b"x")
    monkeypatch.setattr(os, "fdatasync", watch)
    monkeypatch.setattr(os, "fsync", watch)
    handles = open_below(row.directory)
    unsynced = row.begin_sync()
    row.write_at(5, b"later")
    unsynced.finish()
    assert sorted(synced)[:2] == names(row)
    assert "row" in synced
    synced.clear()
    row.sync()
    assert synced == [names(row)[0]]
    row.sync()
    assert synced == [names(row)[0]]
    assert open_below(row.directory) == handles


def test_what_somebody_is_still_waiting_for_counts_as_not_synced(
    row: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    row.write_at(0, b"x")
    first = row.begin_sync()
    states = [row.is_dirty]
    row.begin_sync().finish()
    assert len(synced) == 1
    states.append(row.is_dirty)
    first.finish()
    assert len(synced) == 2
    states.append(row.is_dirty)
    assert states == [True, True, False]
    row.sync()
    assert len(synced) == 2


def test_who_begins_to_sync_while_another_is_done_forgets_nobody(
    row: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    row.write_at(0, b"x")
    first = row.begin_sync()
    row.write_at(FILE_BYTES, b"y")
    second = row.begin_sync()

    def looked_at() -> Iterator[int]:
        first.finish()  # without any lock
        yield 0

    first = attrs.evolve(first, on_done=lambda: row._being_synced.pop(0))  # type: ignore[arg-type]
    row._being_synced[0] = (looked_at(), set())  # type: ignore[assignment]
    synced.clear()
    third = row.begin_sync()
    assert len(third.descriptors) == 2
    third.finish()
    second.finish()


def test_a_refused_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    directory = tmp_path / "row"
    directory.write_text("no directory")
    with pytest.raises(TargetError, match=f"{0:020d}"):
        LiveSegments(directory, FILE_BYTES).make_file(0)


@pytest.mark.parametrize("there", [True, False])
def test_a_search_finds_what_crosses_pieces_and_makes_no_pages_of_holes(
    tmp_path: Path, there: bool
) -> None:
    row = LiveSegments(tmp_path / "row", 64 << 20)
    row.make_file(0)
    row.write_at(0, b"x" * 5000)
    at = (8 << 20) + (1 << 20) - 2  # across the edge of two pieces that are searched one by one
    row.write_at(8 << 20, b"x" * (2 << 20))
    if there:
        row.write_at(at, b"WANTED")
    before = row.path_of(0).stat().st_blocks
    assert row.find(b"WANTED", 1) == (at if there else -1)
    assert row.path_of(0).stat().st_blocks == before
    row.close()
