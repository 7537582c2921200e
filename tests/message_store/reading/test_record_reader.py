# SPDX-License-Identifier: Apache-2.0
"""Records are read in place, many at once; what a queue entry claims is never trusted."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from message_store.files.segments import SegmentReader, segment_name
from message_store.reading.record_reader import BUFFER_BYTES, GAP_BYTES, NOT_THERE, read_chunks

FILE_BYTES = 200_000


@pytest.fixture(scope="module")
def log_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files in which each byte tells where it is."""
    directory = tmp_path_factory.mktemp("commitlog")
    content = pattern(0, 2 * FILE_BYTES)
    for start in (0, FILE_BYTES):
        (directory / segment_name(start)).write_bytes(content[start : start + FILE_BYTES])
    return directory


def pattern(start: int, size: int) -> bytes:
    at = np.arange(start, start + size, dtype=np.int64)
    return ((at * 7 + at // 251) % 256).astype(np.uint8).tobytes()


def read_all(directory: Path, offsets: list[int], sizes: list[int]) -> list[bytes | None]:
    """What the reader gives for every entry."""
    found: list[bytes | None] = []
    with SegmentReader(directory) as log:
        wanted: NDArray[np.int64] = np.array(offsets, np.int64)
        for chunk in read_chunks(log, wanted, np.array(sizes, np.int32)):
            assert chunk.first == len(found) < chunk.end
            for index, place in zip(
                range(chunk.first, chunk.end), chunk.buffer_offsets, strict=True
            ):
                if place == NOT_THERE:
                    found.append(None)
                    continue
                assert place + sizes[index] <= chunk.buffer_bytes
                found.append(chunk.buffer[place : place + sizes[index]].tobytes())
    assert len(found) == len(offsets)
    return found


def expected(offset: int, size: int, end: int = 2 * FILE_BYTES) -> bytes | None:
    """What lies there within one file."""
    in_one_file = offset >= 0 and offset // FILE_BYTES == (offset + size - 1) // FILE_BYTES
    return pattern(offset, size) if in_one_file and offset + size <= end else None


@given(
    st.lists(st.tuples(st.integers(0, 2 * GAP_BYTES), st.integers(1, 9000)), max_size=40),
)
def test_every_record_of_a_sound_log_is_read_as_it_lies(
    log_directory: Path, steps: list[tuple[int, int]]
) -> None:
    offsets, sizes, position = [], [], 0
    for gap, size in steps:
        position += gap
        if position + size > 2 * FILE_BYTES:
            break
        offsets.append(position)
        sizes.append(size)
        position += size
    found = read_all(log_directory, offsets, sizes)
    assert found == [expected(*entry) for entry in zip(offsets, sizes, strict=True)]


HOSTILE_OFFSETS = st.one_of(
    st.integers(0, 2 * FILE_BYTES + 10),
    st.sampled_from([2**31, 2**40, 2**63 - 2**32, 2**63 - 1]),
)
HOSTILE_SIZES = st.one_of(st.integers(1, 3000), st.sampled_from([2**31 - 1, FILE_BYTES]))


@given(st.lists(st.tuples(HOSTILE_OFFSETS, HOSTILE_SIZES), max_size=30))
def test_hostile_entries_are_not_there_and_spoil_no_other(
    log_directory: Path, entries: list[tuple[int, int]]
) -> None:
    entries.sort()
    offsets, sizes = [offset for offset, _ in entries], [size for _, size in entries]
    assert read_all(log_directory, offsets, sizes) == [expected(*entry) for entry in entries]


@pytest.mark.parametrize("size", [BUFFER_BYTES + 1, 2**31 - 1])
def test_no_room_is_made_for_a_record_that_does_not_say_itself_how_long_it_is(
    tmp_path: Path, size: int
) -> None:
    with (tmp_path / segment_name(0)).open("wb") as file:
        file.write((77).to_bytes(4, "big"))
        file.truncate(2**31)
    with SegmentReader(tmp_path) as log:
        [chunk] = read_chunks(log, np.array([0], np.int64), np.array([size], np.int32))
        assert chunk.buffer_offsets.tolist() == [NOT_THERE]
        assert chunk.buffer.nbytes < 2 * BUFFER_BYTES


def test_a_record_longer_than_the_buffer_is_read_when_it_says_so(tmp_path: Path) -> None:
    size = BUFFER_BYTES + 12_345
    record = size.to_bytes(4, "big") + bytes(4) + pattern(0, size - 8)
    (tmp_path / segment_name(0)).write_bytes(b"before" + record + b"after")
    assert read_all(tmp_path, [0, 6, 6 + size], [6, size, 5]) == [b"before", record, b"after"]


def test_a_file_cut_short_hides_only_what_lay_behind_the_cut(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(pattern(0, 250))
    (tmp_path / segment_name(1000)).write_bytes(pattern(1000, 1000))
    found = read_all(tmp_path, [0, 100, 200, 1000], [100, 100, 100, 100])
    assert found == [pattern(0, 100), pattern(100, 100), None, pattern(1000, 100)]


def test_an_empty_directory_holds_nothing(tmp_path: Path) -> None:
    assert read_all(tmp_path, [0, 5], [100, 100]) == [None, None]
