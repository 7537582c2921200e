# SPDX-License-Identifier: Apache-2.0
"""Rows of large files: made sparse, filled in any order, nothing written elsewhere."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import TargetError
from message_store.files.segments import segment_name
from migrate.write.row_output import create_row, stream_to_row, write_sparse

FILE_BYTES = 100


def put(directory: Path, offset: int, data: bytes) -> None:
    stream_to_row(directory, FILE_BYTES, offset, np.frombuffer(data, np.uint8))


def row_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()))


@given(st.permutations(range(12)), st.integers(1, 250))
def test_pieces_written_in_any_order_make_the_same_row(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], piece_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("row")
    content = bytes(range(1, 251)) * 12
    content = content[: 12 * piece_bytes]
    create_row(directory, count=-(-len(content) // FILE_BYTES), file_bytes=FILE_BYTES)
    for number in order:
        begin = number * piece_bytes
        put(directory, begin, content[begin : begin + piece_bytes])
    row = row_bytes(directory)
    assert row[: len(content)] == content
    assert not any(row[len(content) :])
    assert {path.stat().st_size for path in directory.iterdir()} <= {FILE_BYTES}


def test_a_row_that_is_there_keeps_what_was_written(tmp_path: Path) -> None:
    create_row(tmp_path, count=2, file_bytes=FILE_BYTES)
    put(tmp_path, 95, b"0123456789")
    create_row(tmp_path, count=3, file_bytes=FILE_BYTES)
    assert row_bytes(tmp_path) == bytes(95) + b"0123456789" + bytes(195)


def test_a_row_of_large_files_takes_no_room_before_it_is_written(tmp_path: Path) -> None:
    create_row(tmp_path, count=3, file_bytes=1 << 30)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [1 << 30] * 3
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) < 100


def test_writing_beyond_the_row_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    create_row(tmp_path, count=1, file_bytes=FILE_BYTES)
    refusal = f"{segment_name(100)}: cannot be written: No such file"
    with pytest.raises(TargetError, match=refusal):
        put(tmp_path, 95, b"0123456789")


def test_a_link_in_the_row_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    row = tmp_path / "row"
    row.mkdir()
    (row / segment_name(0)).symlink_to(precious)
    with pytest.raises(TargetError, match="Too many levels of symbolic links"):
        create_row(row, count=1, file_bytes=FILE_BYTES)
    with pytest.raises(TargetError):
        put(row, 0, b"x")
    assert precious.read_bytes() == b"precious"


def test_a_sparse_file_holds_its_pieces_and_holes(tmp_path: Path) -> None:
    path = tmp_path / "deep/wheel"
    write_sparse(path, 10_000_000, [(5_000_000, b"abc"), (0, b"x")])
    content = path.read_bytes()
    assert len(content) == 10_000_000
    assert content[0:1] + content[5_000_000:5_000_003] == b"xabc"
    assert content.count(0) == 10_000_000 - 4
    assert path.stat().st_blocks < 100
    write_sparse(path, 10, [])
    assert path.read_bytes() == bytes(10)


def test_a_write_that_takes_only_a_part_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: real(fd, data[:2], place))
    write_sparse(tmp_path / "wheel", 20, [(3, b"abcdefg"), (12, b"x")])
    assert (tmp_path / "wheel").read_bytes() == b"\0\0\0abcdefg\0\0x" + bytes(7)
