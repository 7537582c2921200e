# SPDX-License-Identifier: Apache-2.0
"""The writer of a target's large files: sparse, in any order, whole or not there at all."""

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store.errors import PlanError, TargetError
from message_store.segment_files import segment_name
from message_store.store_root import StoreRoot
from migrate.disk_room import free_bytes
from migrate.row_output import PartStream, RowWriter, create_row, write_sparse
from migrate.staged_output import (
    UNFINISHED_WHEEL,
    Staging,
    clear_staging,
    count_receipts,
    forbid_start,
    is_published,
    load_array,
    names_in_the_way,
    publish,
    remove_unfinished,
    save_array,
    write_note,
)
from timer_wheel.wheel_file import WHEEL_FILE_BYTES

FILE_BYTES = 100


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
    with RowWriter(directory, FILE_BYTES) as writer:
        for number in order:
            begin = number * piece_bytes
            writer.write_at(begin, content[begin : begin + piece_bytes])
    row = row_bytes(directory)
    assert row[: len(content)] == content
    assert not any(row[len(content) :])
    assert {path.stat().st_size for path in directory.iterdir()} <= {FILE_BYTES}


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 700_000), min_size=1, max_size=12),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
)
def test_streams_of_neighbouring_parts_fill_a_file_without_a_seam(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], before: int, behind: int
) -> None:
    """The parts before and behind are written first, and share the pages at both ends."""
    path = tmp_path_factory.mktemp("file") / segment_name(0)
    middle = sum(pieces)
    content = (np.arange(before + middle + behind) % 251 + 1).astype(np.uint8)
    create_row(path.parent, count=1, file_bytes=16 << 20)

    def write(begin: int, sizes: list[int]) -> None:
        with PartStream(path, begin) as stream:
            for size in sizes:
                stream.room(size)[:] = content[begin : begin + size]
                stream.advance(size)
                begin += size

    write(before + middle, [behind])
    write(0, [before])
    write(before, pieces)
    with path.open("rb") as file:
        assert file.read(len(content)) == content.tobytes()
        assert not any(file.read(100_000))
    assert path.stat().st_size == 16 << 20


def test_a_disk_without_direct_writing_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.pwrite
    refused: list[int] = []

    def refuse_direct(descriptor: int, data: bytes, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return known(descriptor, data, offset)

    create_row(tmp_path, count=1, file_bytes=4 << 20)
    monkeypatch.setattr(os, "pwrite", refuse_direct)
    content = np.arange(3 << 20, dtype=np.int64).astype(np.uint8)
    with PartStream(tmp_path / segment_name(0), 100) as stream:
        for begin in range(0, len(content), 1 << 18):
            stream.room(1 << 18)[:] = content[begin : begin + (1 << 18)]
            stream.advance(1 << 18)
    assert (tmp_path / segment_name(0)).read_bytes()[100 : 100 + len(content)] == content.tobytes()
    assert len(refused) <= 1


def test_a_row_that_is_there_keeps_what_was_written(tmp_path: Path) -> None:
    create_row(tmp_path, count=2, file_bytes=FILE_BYTES)
    with RowWriter(tmp_path, FILE_BYTES) as writer:
        writer.write_at(95, b"0123456789")
    create_row(tmp_path, count=3, file_bytes=FILE_BYTES)
    assert row_bytes(tmp_path) == bytes(95) + b"0123456789" + bytes(195)


def test_a_row_of_large_files_takes_no_room_before_it_is_written(tmp_path: Path) -> None:
    create_row(tmp_path, count=3, file_bytes=1 << 30)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [1 << 30] * 3
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) < 100


def test_writing_beyond_the_row_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    create_row(tmp_path, count=1, file_bytes=FILE_BYTES)
    with (
        RowWriter(tmp_path, FILE_BYTES) as writer,
        pytest.raises(TargetError, match=f"{segment_name(100)}: cannot be written: No such file"),
    ):
        writer.write_at(95, b"0123456789")


def test_a_link_in_the_row_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    row = tmp_path / "row"
    row.mkdir()
    (row / segment_name(0)).symlink_to(precious)
    with pytest.raises(TargetError, match="Too many levels of symbolic links"):
        create_row(row, count=1, file_bytes=FILE_BYTES)
    with RowWriter(row, FILE_BYTES) as writer, pytest.raises(TargetError):
        writer.write_at(0, b"x")
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


def test_arrays_come_back_and_torn_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plan/x.npy"
    save_array(path, np.arange(1000))
    assert load_array(path).tolist() == list(range(1000))
    content = path.read_bytes()
    for size in (0, 5, 200):
        path.write_bytes(content[:size])
        with pytest.raises(PlanError, match="torn array"):
            load_array(path)
    path.unlink()
    with pytest.raises(TargetError):
        load_array(path)


def test_notes_appear_whole_and_are_counted(tmp_path: Path) -> None:
    staging = Staging(StoreRoot(tmp_path))
    assert count_receipts(staging) == 0
    for number in range(3):
        write_note(staging.receipt(number), b"%d" % number)
    write_note(staging.receipt(1), b"again")
    assert count_receipts(staging) == 3
    assert staging.receipt(1).read_bytes() == b"again"
    assert not list(staging.path.rglob("*.new"))


# --- publishing ----------------------------------------------------------------------------------


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """An unfinished target whose store is ready to be published."""
    staging = Staging(StoreRoot(tmp_path / "target"))
    for name in ("config", "consumequeue", "timerlog", "commitlog"):
        write_note(staging.store.path / name / "file", name.encode())
    forbid_start(staging.target)
    write_note(staging.plan_file, b"{}")
    write_sparse(staging.store.timer_wheel, WHEEL_FILE_BYTES, [(32, b"slot")])
    return staging


def test_publishing_moves_everything_and_can_be_done_again(staging: Staging) -> None:
    target = staging.target.path
    assert not is_published(staging)
    for _ in range(2):
        publish(staging)
        assert is_published(staging)
        assert {path.name for path in target.iterdir()} == {
            "config", "consumequeue", "timerlog", "commitlog", "timerwheel", "delaywheel",
        }  # fmt: skip
        assert (target / "commitlog/file").read_bytes() == b"commitlog"
        assert (target / "timerwheel").stat().st_size == WHEEL_FILE_BYTES


@pytest.mark.parametrize("content", [b"", UNFINISHED_WHEEL, b"x" * 100])
def test_a_wheel_of_another_length_is_not_a_published_one(staging: Staging, content: bytes) -> None:
    staging.store.timer_wheel.unlink()
    staging.target.timer_wheel.write_bytes(content)
    assert not is_published(staging)


def test_a_full_wheel_is_not_published_while_another_is_staged(staging: Staging) -> None:
    write_sparse(staging.target.timer_wheel, WHEEL_FILE_BYTES, [])
    assert not is_published(staging)


def test_what_a_stopped_call_moved_is_replaced_by_what_is_staged_again(staging: Staging) -> None:
    write_note(staging.target.path / "config/file", b"old")
    write_note(staging.target.path / "config/older", b"old")
    publish(staging)
    assert [path.name for path in (staging.target.path / "config").iterdir()] == ["file"]


# --- what may be there ---------------------------------------------------------------------------


def test_only_what_is_ours_may_be_in_a_target(tmp_path: Path) -> None:
    staging = Staging(StoreRoot(tmp_path))
    assert names_in_the_way(staging) == []
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "delaywheel").mkdir()
    forbid_start(staging.target)
    assert names_in_the_way(staging) == []
    (tmp_path / "timerwheel").write_bytes(UNFINISHED_WHEEL[:-1] + b"?")
    (tmp_path / "commitlog").mkdir()
    assert names_in_the_way(staging) == ["commitlog", "timerwheel"]


def test_giving_up_leaves_an_empty_directory_and_nothing_else(staging: Staging) -> None:
    remove_unfinished(staging)
    assert list(staging.target.path.iterdir()) == []
    remove_unfinished(staging)


def test_giving_up_leaves_what_is_not_ours(staging: Staging) -> None:
    (staging.target.own / "notes").touch()
    staging.target.timer_wheel.write_bytes(b"a wheel of someone else")
    remove_unfinished(staging)
    assert not staging.path.exists()
    assert (staging.target.own / "notes").exists()
    assert staging.target.timer_wheel.exists()


def test_clearing_takes_the_plan_first(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("migrate.staged_output.shutil.rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        clear_staging(staging)
    assert not staging.plan_file.exists()
    assert staging.store.timer_wheel.exists()


def test_the_room_of_a_disk_is_told(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    with pytest.raises(TargetError, match="cannot be written: No such file"):
        free_bytes(tmp_path / "missing")
