# SPDX-License-Identifier: Apache-2.0
"""What a target holds while it is made, and how it becomes a store: whole or not at all."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from message_store.base.errors import PlanError, TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.write.large_files import write_sparse
from migrate.write.publishing import (
    UNFINISHED_WHEEL,
    begin_publishing,
    forbid_start,
    is_published,
    names_in_the_way,
    publish,
    refuse_links,
    remove_unfinished,
    require_unused,
)
from migrate.write.room import free_bytes
from migrate.write.staging import (
    Staging,
    clear_staging,
    load_array,
    new_file,
    save_array,
    sole_writer,
    write_note,
)
from tests.migrate.stopped_conversions import made
from tests.migrate.written_wheels import messages, write
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES


def test_arrays_come_back_and_torn_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
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


def test_notes_appear_whole(tmp_path: Path) -> None:
    staging = Staging(StoreRoot(tmp_path))
    attempt = staging.attempt("one")
    attempt.path.mkdir(parents=True)
    write_note(attempt.note, b"first")
    write_note(attempt.note, b"again")
    assert attempt.note.read_bytes() == b"again"
    assert not list(staging.path.rglob("*.new"))


# --- publishing ----------------------------------------------------------------------------------


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """An unfinished target whose store is ready to be published."""
    staging = Staging(StoreRoot(tmp_path / "target"))
    for name in ("config", "consumequeue", "timerlog", "commitlog"):
        (staging.store.path / name).mkdir(parents=True)
        write_note(staging.store.path / name / "file", name.encode())
    forbid_start(staging)
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
    begin_publishing(staging)
    staging.store.timer_wheel.unlink()
    staging.target.timer_wheel.write_bytes(content)
    assert not is_published(staging)


def test_a_full_wheel_is_not_published_while_another_is_staged(staging: Staging) -> None:
    begin_publishing(staging)
    write_sparse(staging.target.timer_wheel, WHEEL_FILE_BYTES, [])
    assert not is_published(staging)
    with pytest.raises(TargetError, match="not empty: timerwheel"):
        publish(staging)


def test_a_wheel_that_was_published_is_known_by_its_length(staging: Staging) -> None:
    publish(staging)
    with staging.target.timer_wheel.open("r+b") as file:
        file.truncate(WHEEL_FILE_BYTES // 2)
    assert not is_published(staging)
    with pytest.raises(TargetError, match="not empty: timerwheel"):
        require_unused(staging)


def test_a_full_wheel_counts_for_nothing_before_publishing_has_begun(staging: Staging) -> None:
    staging.store.timer_wheel.unlink()
    write_sparse(staging.target.timer_wheel, WHEEL_FILE_BYTES, [])
    assert not is_published(staging)


def test_a_store_that_may_be_replaced_is_replaced_as_a_whole(staging: Staging) -> None:
    (staging.target.path / "config").mkdir()
    for name in ("config/file", "config/older"):
        write_note(staging.target.path / name, b"old")
    begin_publishing(staging, replaces=True)
    publish(staging)
    assert [path.name for path in (staging.target.path / "config").iterdir()] == ["file"]


# --- what may be there ---------------------------------------------------------------------------


def test_only_what_is_ours_may_be_in_a_target(tmp_path: Path) -> None:
    staging = Staging(StoreRoot(tmp_path))
    assert names_in_the_way(staging) == []
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "delaywheel").mkdir()
    forbid_start(staging)
    assert names_in_the_way(staging) == []
    (tmp_path / "timerwheel").write_bytes(UNFINISHED_WHEEL[:-1] + b"?")
    (tmp_path / "commitlog").mkdir()
    assert names_in_the_way(staging) == ["commitlog", "timerwheel"]


def started(target: Path) -> None:
    (target / "lock").write_bytes(b"lock")


def running(target: Path) -> None:
    (target / "abort").touch()


def stopped(target: Path) -> None:
    (target / "checkpoint").touch()


def at_work_without_a_trace(target: Path) -> None:
    (target / "timerwheel").unlink()
    write_sparse(target / "timerwheel", WHEEL_FILE_BYTES, [])


def with_records(target: Path) -> None:
    (target / "commitlog").mkdir(exist_ok=True)
    (target / "commitlog" / f"{0:020d}").touch()


def with_a_queue(target: Path) -> None:
    (target / "consumequeue/orders/0").mkdir(parents=True)
    (target / "consumequeue/orders/0" / f"{0:020d}").touch()


def with_an_index(target: Path) -> None:
    (target / "delaywheel/hierarchy").mkdir(parents=True)
    (target / "delaywheel/hierarchy/CURRENT").touch()


def as_they_are(root: Path) -> dict[Path, tuple[int, ...]]:
    """Files and directories, with everything but when they were read: looking changes that."""
    found = {path: path.stat() for path in root.rglob("*")}
    return {
        path: (each.st_ino, each.st_mode, each.st_nlink, each.st_size, each.st_mtime_ns)
        for path, each in found.items()
    }


TRACES = (started, running, stopped, at_work_without_a_trace, with_records, with_a_queue,
          with_an_index)  # fmt: skip


@pytest.mark.parametrize("use", TRACES)
def test_an_unfinished_target_that_somebody_works_with_is_not_published(
    staging: Staging, use: Callable[[Path], None]
) -> None:
    use(staging.target.path)
    before = as_they_are(staging.target.path)
    for step in (publish, forbid_start, begin_publishing, require_unused):
        with pytest.raises(TargetError, match=r"was started here|is not empty"):
            step(staging)
        assert as_they_are(staging.target.path) == before


def test_what_a_broker_leaves_that_refused_to_start_is_in_nobodys_way(staging: Staging) -> None:
    target = staging.target.path
    for name in ("commitlog", "consumequeue", "config", "rocksdbstore", "compaction"):
        (target / name).mkdir()
    for name in ("lock", "config/topics.json", "config/timercheck", "rocksdbstore/CURRENT"):
        (target / name).touch()
    require_unused(staging)
    publish(staging)
    assert is_published(staging)
    assert [path.name for path in (target / "config").iterdir()] == ["file"]


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
    def stop(_directory: Path, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("migrate.write.staging.shutil.rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        clear_staging(staging)
    assert not staging.plan_file.exists()
    assert staging.store.timer_wheel.exists()


def test_the_room_of_a_disk_is_told(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    with pytest.raises(TargetError, match="cannot be written: No such file"):
        free_bytes(tmp_path / "missing")


def test_two_attempts_may_write_one_note_at_a_time(tmp_path: Path) -> None:
    path, content = tmp_path / "parts/000001.json", b"x" * 5000
    path.parent.mkdir()
    write_note(path, content)
    failures: list[BaseException] = []

    def write_often() -> None:
        try:
            for _ in range(300):
                write_note(path, content)
                assert path.read_bytes() == content
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write_often) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["delaywheel", "timerwheel", "commitlog", "config"])
def test_a_target_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "target"
    elsewhere.mkdir()
    target.mkdir()
    (target / name).symlink_to(elsewhere)
    with pytest.raises(TargetError, match=f"{name}: a link"):
        refuse_links(Staging(StoreRoot(target)))


# --- who may write --------------------------------------------------------------------------------


@pytest.fixture
def no_directory_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS: a lock needs a file that is open for writing."""
    known = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        known(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("no_directory_locks")
def test_where_directories_are_not_locked_a_file_is(tmp_path: Path) -> None:
    target = StoreRoot(tmp_path)
    for _ in range(2):
        with sole_writer(target) as warning:
            assert warning is None
            with pytest.raises(TargetError, match="another conversion"), sole_writer(target):
                pass
            assert names_in_the_way(Staging(target)) == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_directory_locks")
def test_one_writer_at_a_time_also_by_a_file_that_comes_and_goes(tmp_path: Path) -> None:
    target, inside, most = StoreRoot(tmp_path), list[int](), list[int]()
    failures: list[BaseException] = []

    def write_often() -> None:
        try:
            for _ in range(100):
                with suppress(TargetError), sole_writer(target):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(most) == {1}


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    options = made(tmp_path)
    report = convert(options)
    assert any("this disk knows no locks" in warning for warning in report.warnings)
    facts = write(tmp_path / "reminders", [messages(3)])
    assert any("this disk knows no locks" in warning for warning in facts["warnings"])
    assert not list(tmp_path.rglob(".delaywheel.lock"))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_appears_whole_and_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(source: Path, _target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))

    if not has_links:  # exFAT, gcsfuse, s3fs
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "x.parquet"
    with new_file(path) as file:
        file.write(b"all the bytes")
        assert not path.exists()
    assert path.read_bytes() == b"all the bytes"
    with pytest.raises(TargetError, match="already there"), new_file(path):
        pass
    path.unlink()
    with pytest.raises(TargetError, match="File exists"), new_file(path):
        path.write_bytes(b"of somebody else")
    assert path.read_bytes() == b"of somebody else"
    assert list(tmp_path.iterdir()) == [path]
