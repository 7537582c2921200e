# SPDX-License-Identifier: Apache-2.0
"""What a race asks of the system: files out of the page cache, and what is read from disks."""

import os
import subprocess
from pathlib import Path

import pytest

from compare.running.work_files import (
    forget_pages,
    left_behind,
    race_directory,
    read_from_disk_bytes,
)
from message_store.base.errors import TargetError

LENGTH = 4 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that was just written, in a directory of a store."""
    path = tmp_path / "commitlog" / "0"
    path.parent.mkdir()
    path.write_bytes(os.urandom(LENGTH))
    return path


def test_what_was_forgotten_is_read_from_the_disk_again(tmp_path: Path, file: Path) -> None:
    command = ["stat", "--file-system", "--format=%T", str(tmp_path)]
    kind = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"the files of the tests are in memory only: {kind}")
    if not os.access("/proc/self/io", os.R_OK):
        pytest.skip("the system keeps no account of what a process reads")
    before = read_from_disk_bytes()
    content = file.read_bytes()
    assert read_from_disk_bytes() - before < LENGTH // 2
    forget_pages(tmp_path)
    before = read_from_disk_bytes()
    assert file.read_bytes() == content
    assert read_from_disk_bytes() - before >= LENGTH // 2


def test_a_disk_that_refuses_to_sync_is_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(TargetError, match="commitlog/0: cannot be synced: Input/output error"):
        forget_pages(tmp_path)


def test_a_system_without_an_account_of_reads_has_read_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_given: object, **_named: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert read_from_disk_bytes() == 0


def test_only_what_nobody_works_in_was_left_behind(tmp_path: Path) -> None:
    left = tmp_path / "delaywheel-race-killed"
    left.mkdir()
    (tmp_path / "of-somebody-else").mkdir()
    with race_directory(tmp_path, None) as place:
        assert place.is_dir()
        assert left_behind(tmp_path) == [left]
    assert not place.exists()
    assert left_behind(tmp_path / "nowhere") == []


@pytest.mark.parametrize("keeps", [False, True])
def test_what_goes_wrong_in_a_race_is_not_blamed_on_its_directory(
    tmp_path: Path, keeps: bool
) -> None:
    keep = tmp_path / "kept" if keeps else None
    with pytest.raises(BrokenPipeError), race_directory(tmp_path, keep) as place:
        raise BrokenPipeError(32, "Broken pipe")
    assert place.exists() == keeps
