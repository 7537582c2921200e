# SPDX-License-Identifier: Apache-2.0
"""A store's directory: what is one and what is not, links that lead out, a broker's lock."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import SourceError, StoreLockedError, UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from tests.independent.level_store_builder import (
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)

HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("held", flush=True)
sys.stdin.read()
"""


def store(path: Path) -> StoreRoot:
    for name in ("commitlog", "consumequeue", "config"):
        (path / name).mkdir(parents=True)
    return StoreRoot(path)


def test_everything_lies_where_a_broker_has_it() -> None:
    root = StoreRoot(Path("/s"))
    assert root.level_queue(5) == Path("/s/consumequeue/SCHEDULE_TOPIC_XXXX/4")
    assert root.timer_queue() == Path("/s/consumequeue/rmq_sys_wheel_timer/0")
    assert root.config_file("topics.json") == Path("/s/config/topics.json")
    assert root.consume_queue_ext("t", 1) == Path("/s/consumequeue_ext/t/1")
    assert StoreRoot("/s").checkpoint == Path("/s/checkpoint")


def test_a_store_is_readable(tmp_path: Path) -> None:
    store(tmp_path / "s").require_readable()


def nothing(_path: Path) -> None:
    """The directory is not even there."""


def a_file(path: Path) -> None:
    path.write_text("")


def no_log(path: Path) -> None:
    (path / "config").mkdir(parents=True)


def link_out(path: Path) -> None:
    root = store(path)
    root.commit_log.rmdir()
    (path.parent / "elsewhere").mkdir()
    root.commit_log.symlink_to(path.parent / "elsewhere")


def dledger(path: Path) -> None:
    store(path)
    (path / "dledger-n0").mkdir()


def without_its_rocksdb_queues(path: Path) -> None:
    store(path)
    (path / "consumequeue_rocksdb").mkdir()


def two_databases(path: Path) -> None:
    (store(path).consume_queues / "CURRENT").write_text("")
    (path / "consumequeue_rocksdb").mkdir()
    (path / "consumequeue_rocksdb" / "CURRENT").write_text("")


def link_to_itself(path: Path) -> None:
    root = store(path)
    root.commit_log.rmdir()
    root.commit_log.symlink_to("commitlog")


def a_file_as_log(path: Path) -> None:
    root = store(path)
    root.commit_log.rmdir()
    root.commit_log.write_text("")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (nothing, SourceError, "no such directory"),
        (a_file, SourceError, "not a directory"),
        (no_log, SourceError, "there is no commitlog/"),
        (link_out, SourceError, "leads outside the store"),
        (link_to_itself, SourceError, "commitlog: a link that leads to itself"),
        (a_file_as_log, SourceError, "commitlog: cannot be read: Not a directory"),
        (dledger, UnsupportedStoreError, "DLedger"),
        (without_its_rocksdb_queues, SourceError, "CURRENT: is missing"),
        (two_databases, UnsupportedStoreError, "two databases of consume queues"),
    ],
)
def test_what_is_no_store_is_named(
    tmp_path: Path, make: Callable[[Path], None], error: type[SourceError], words: str
) -> None:
    make(tmp_path / "s")
    with pytest.raises(error, match=words):
        StoreRoot(tmp_path / "s").require_readable()


def test_a_link_that_stays_inside_is_fine(tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    root.commit_log.rename(tmp_path / "s" / "log")
    root.commit_log.symlink_to(tmp_path / "s" / "log")
    root.require_readable()


def test_an_abort_file_says_that_the_store_was_not_stopped(tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    assert root.was_stopped_cleanly
    root.abort.write_text("")
    assert not root.was_stopped_cleanly


def test_a_running_broker_is_noticed(tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    root.lock.write_bytes(b"lock")
    command = [sys.executable, "-c", HOLD_LOCK, str(root.lock)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError, match="stop the broker first"), root.shared_lock():
            pass
        broker.communicate("")
    with root.shared_lock():
        pass


def test_while_we_read_no_broker_starts(tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    root.lock.write_bytes(b"lock")
    command = [sys.executable, "-c", HOLD_LOCK, str(root.lock)]
    with root.shared_lock():
        refused = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert "BlockingIOError" in refused.stderr
    taken = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert taken.stdout == "held\n"


def test_a_backup_without_a_lock_file_is_read_without(tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    with root.shared_lock():
        assert not root.lock.exists()


# --- what may not be looked into ------------------------------------------------------------------


def a_link(lock: Path) -> None:
    lock.symlink_to("elsewhere")


def links_in_a_circle(lock: Path) -> None:
    lock.symlink_to("lock")


@pytest.mark.parametrize("make", [a_link, links_in_a_circle])
def test_a_lock_that_cannot_be_opened_is_no_missing_lock(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    root = store(tmp_path / "s")
    make(root.lock)
    with pytest.raises(SourceError, match="lock: cannot be opened"), root.shared_lock():
        pass


def test_a_pipe_in_the_lock_s_place_makes_nobody_wait(tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    os.mkfifo(root.lock)
    with root.shared_lock():
        assert root.lock.is_fifo()


@contextmanager
def as_nobody() -> Iterator[None]:
    os.setegid(65_534)
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def told_of(root: Path) -> str:
    try:
        read_backlog(root)
        with StoreRoot(root).shared_lock():
            return "read"
    except SourceError as error:
        return str(error)


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can become somebody who may read less")
@pytest.mark.parametrize("mode", [0o000, 0o444])
@pytest.mark.parametrize(
    "place",
    [
        ".",
        "lock",
        "commitlog",
        "commitlog/00000000000000000000",
        "config",
        "consumequeue",
        "consumequeue/TopicA",
        "consumequeue/TopicA/0",
        "consumequeue/SCHEDULE_TOPIC_XXXX",
        "consumequeue/SCHEDULE_TOPIC_XXXX/2",
    ],
)
def test_what_may_not_be_read_is_named(place: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, path = Path(name, "s"), Path(name, "s", place)
        os.chmod(name, 0o755)  # pytest's own directories are closed to everybody else
        build_level_store(root, [LevelMessage(level=3), OrdinaryMessage()])
        assert told_of(root) == "read"
        if path.is_file():
            mode = 0
        path.chmod(mode)
        with as_nobody():
            told = told_of(root)
        assert told.startswith(str(path))
