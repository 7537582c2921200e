# SPDX-License-Identifier: Apache-2.0
"""Rows of files: names, gaps, misfits, reading across files, writing sparse ones."""

import os
from pathlib import Path

import pytest

from message_store.base.errors import BadFieldError, SourceError, TruncatedRecordError
from message_store.files.segments import (
    SegmentReader,
    list_directories,
    list_segments,
    segment_name,
)

LAST_NAME = f"{2**63 - 1:020}"


def row(directory: Path, *contents: bytes, file_bytes: int = 10, start: int = 0) -> Path:
    directory.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (directory / segment_name(start + number * file_bytes)).write_bytes(content)
    return directory


def test_files_are_named_by_twenty_digits_and_listed_in_order(tmp_path: Path) -> None:
    row(tmp_path, b"a" * 10, b"b" * 10)
    (tmp_path / "00000000000000000030.bak").write_bytes(b"x")
    (tmp_path / "lock").write_bytes(b"x")
    (tmp_path / ("٣" * 20)).write_bytes(b"x")
    (tmp_path / segment_name(20)).mkdir()
    (tmp_path / segment_name(30)).symlink_to(tmp_path / "lock")
    found = list_segments(tmp_path)
    assert [(each.start_offset, each.length_bytes) for each in found] == [(0, 10), (10, 10)]
    assert found[0].modified_ns == (tmp_path / segment_name(0)).stat().st_mtime_ns


def test_a_missing_directory_is_an_empty_row(tmp_path: Path) -> None:
    with SegmentReader(tmp_path / "none") as reader:
        assert (reader.segments, reader.min_offset, reader.end_offset) == ((), 0, 0)
        assert reader.segment_at(0) is None
        assert reader.read_into(0, memoryview(bytearray(4))) == 0


@pytest.mark.parametrize(("name", "length"), [("9" * 20, 0), (f"{2**63:020}", 0), (LAST_NAME, 1)])
def test_a_name_beyond_any_offset_is_refused(tmp_path: Path, name: str, length: int) -> None:
    (tmp_path / name).write_bytes(bytes(length))
    with pytest.raises(BadFieldError, match=f"{name}: a file named beyond any offset"):
        SegmentReader(tmp_path)


def test_the_last_name_of_all_may_be_that_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / LAST_NAME).write_bytes(b"")
    assert [segment.path.name for segment in list_segments(tmp_path)] == [LAST_NAME]


def test_directories_are_listed_by_name_without_links(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "d").write_text("a file")
    assert list_directories(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert list_directories(tmp_path / "none") == list_directories(tmp_path / "d") == []


def test_reading_goes_on_in_the_next_file(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789", b"abcdefghij", start=100)
    with SegmentReader(tmp_path) as reader:
        assert (reader.min_offset, reader.end_offset, reader.file_bytes) == (100, 120, 10)
        assert reader.read_at(108, 4) == b"89ab"
        assert reader.read_into(108, memoryview(bytearray(4))) == 2


def test_what_is_not_there_is_an_error_with_its_offset(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789")
    with (
        SegmentReader(tmp_path) as reader,
        pytest.raises(TruncatedRecordError, match=r"files end at offset 8 .*5, found 2"),
    ):
        reader.read_at(8, 5)


def test_a_gap_is_where_no_file_is(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789")
    row(tmp_path, b"x" * 10, start=30)
    with SegmentReader(tmp_path, 10) as reader:
        assert reader.segment_at(15) is None
        assert reader.segment_at(-1) is None
        assert reader.segment_at(40) is None
        assert reader.read_at(35, 2) == b"xx"


def test_files_of_another_length_are_named_and_still_read(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789", b"abc", b"ABCDEFGHIJ")
    with SegmentReader(tmp_path) as reader:
        assert [each.start_offset for each in reader.misfits] == [10]
        assert reader.read_at(10, 3) == b"abc"


def test_a_file_that_shrinks_under_us_is_a_short_read(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789")
    with SegmentReader(tmp_path) as reader:
        assert reader.read_at(0, 1) == b"0"
        os.truncate(tmp_path / segment_name(0), 4)
        assert reader.read_into(0, memoryview(bytearray(10))) == 4


def test_a_file_that_vanishes_is_an_error_that_names_it(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789")
    with SegmentReader(tmp_path) as reader:
        (tmp_path / segment_name(0)).unlink()
        with pytest.raises(SourceError, match=f"{segment_name(0)}: cannot be read at 3"):
            reader.read_at(3, 1)


def test_a_reader_is_closed_twice_without_harm(tmp_path: Path) -> None:
    reader = SegmentReader(row(tmp_path, b"0123456789"))
    reader.read_at(0, 1)
    reader.close()
    reader.close()


def test_a_file_that_is_added_meanwhile_is_read_too(tmp_path: Path) -> None:
    row(tmp_path, b"0123456789", b"abcdefghij")
    with SegmentReader(tmp_path) as reader:
        assert reader.segment_at(20) is None
        row(tmp_path, b"short", start=20)
        assert reader.segment_at(20) is None  # in the making
        row(tmp_path, b"klmnopqrst", b"KLMNOPQRST", start=20)
        assert reader.read_at(18, 14) == b"ijklmnopqrstKL"
        assert reader.end_offset == 40
        assert reader.segment_at(1 << 40) is None
