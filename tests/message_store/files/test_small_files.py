# SPDX-License-Identifier: Apache-2.0
"""Small files: read whole with a bound, replaced all at once."""

import os
import stat
from pathlib import Path

import pytest

from message_store.base.errors import SourceError, TargetError
from message_store.files import small_files
from message_store.files.small_files import PRIVATE_MODE, read_small_file, replace_file


def test_a_file_that_is_not_there_reads_as_none(tmp_path: Path) -> None:
    assert read_small_file(tmp_path / "none") is None
    (tmp_path / "file").write_bytes(b"x")
    assert read_small_file(tmp_path / "file" / "below") is None


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0content")
    assert read_small_file(tmp_path / "file") == b"\0content"


def test_links_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "directory").mkdir()
    for name in ("link", "directory"):
        with pytest.raises(SourceError, match=f"{name}: cannot be read"):
            read_small_file(tmp_path / name)


def test_a_pipe_does_not_make_us_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="no ordinary file"):
        read_small_file(tmp_path / "pipe")


def test_an_absurdly_large_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(small_files.SMALL_FILE_MAX_BYTES + 1)
    with pytest.raises(SourceError, match="too large"):
        read_small_file(tmp_path / "large")


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    replace_file(path, b"one")
    replace_file(path, b"two", mode=PRIVATE_MODE)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]


def test_a_stop_before_the_rename_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(_source: object, _target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(TargetError, match="file: cannot be written: No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_the_content_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append(f"sync {kind}")
        real_sync(descriptor)

    def replace(source: Path, target: Path) -> None:
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    replace_file(tmp_path / "file", b"content")
    assert steps == ["sync file", "rename", "sync directory"]


def test_a_place_that_is_no_directory_is_a_target_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TargetError):
        replace_file(tmp_path / "file" / "below", b"x")
