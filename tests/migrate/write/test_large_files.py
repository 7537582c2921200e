# SPDX-License-Identifier: Apache-2.0
"""Large files: made sparse, and nothing is written elsewhere."""

import os
from pathlib import Path

import pytest

from message_store.base.errors import TargetError
from migrate.write.large_files import FileStream, create_file, write_sparse


def test_a_large_file_takes_no_room_before_it_is_written(tmp_path: Path) -> None:
    create_file(tmp_path / "log", 1 << 30)
    facts = (tmp_path / "log").stat()
    assert facts.st_size == 1 << 30
    assert facts.st_blocks < 100


def test_a_file_or_a_link_that_is_there_is_left_alone(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_bytes(b"precious")
    link.symlink_to(precious)
    for path in (precious, link):
        with pytest.raises(TargetError, match=f"{path.name}: cannot be written: File exists"):
            create_file(path, 100)
    with pytest.raises(TargetError, match="Too many levels of symbolic links"):
        FileStream(link, 0)
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
