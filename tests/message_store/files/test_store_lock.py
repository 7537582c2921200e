# SPDX-License-Identifier: Apache-2.0
"""The lock of a store: within a process, between processes, and what a fork makes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, Message
from message_store.base.errors import StoreLockedError
from message_store.files.store_lock import StoreLock
from message_store.files.store_root import StoreRoot
from message_store.reading.looking import looking_at
from message_store.reading.topic_listing import list_topic
from tests.faults.engines import ENGINES, abandon
from tests.source_laws import ROOT

PROBE = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    print("free")
except OSError:
    print("held")
"""


def as_a_broker_finds_it(root: StoreRoot) -> str:
    """Whether another process gets the lock as Java takes it."""
    command = [sys.executable, "-c", PROBE, str(root.lock)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> StoreRoot:
    (tmp_path / "lock").write_bytes(b"lock")
    return StoreRoot(tmp_path)


def test_a_writer_keeps_out_writers_and_readers_of_its_own_process(root: StoreRoot) -> None:
    lock = root.take_lock()
    with pytest.raises(StoreLockedError, match="open in this process"):
        root.take_lock()
    with pytest.raises(StoreLockedError, match="open in this process"), root.shared_lock():
        pass
    assert as_a_broker_finds_it(root) == "held"
    lock.release()
    lock.release()
    assert as_a_broker_finds_it(root) == "free"


def test_a_reader_keeps_out_writers_and_no_reader(root: StoreRoot) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(root.shared_lock())
    second.enter_context(root.shared_lock())
    first.close()
    with pytest.raises(StoreLockedError, match="open in this process"):
        root.take_lock()
    assert as_a_broker_finds_it(root) == "held"
    second.close()
    root.take_lock().release()


POSIX = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
"""
WRITER = """
import sys
from message_store.files.store_root import StoreRoot
lock = StoreRoot(sys.argv[1].removesuffix("/lock")).take_lock()
"""
READER = """
import sys
from message_store.files.store_root import StoreRoot
guard = StoreRoot(sys.argv[1].removesuffix("/lock")).shared_lock()
guard.__enter__()
"""
HOLDERS = {
    "broker": (POSIX, "stop the broker first"),
    "writer": (WRITER, "that runs delaywheel; wait until it ends, or stop it"),
    "reader": (READER, "that runs delaywheel; wait until it ends, or stop it"),
}


@contextmanager
def held_elsewhere(root: StoreRoot, program: str) -> Iterator[int]:
    """The lock in the hands of another process; its pid."""
    command = [sys.executable, "-c", program + "print('held', flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        [*command, str(root.lock)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid
        holder.communicate(timeout=60)


@pytest.mark.parametrize("who", HOLDERS)
def test_who_holds_a_store_is_named_with_what_to_do(root: StoreRoot, who: str) -> None:
    program, what_to_do = HOLDERS[who]
    with held_elsewhere(root, program) as pid:
        with pytest.raises(StoreLockedError) as refused:
            root.take_lock()
        if who != "reader":
            with pytest.raises(StoreLockedError, match=f"pid {pid}"), root.shared_lock():
                pass
    assert str(refused.value).startswith(f"{root.lock}: held by another process (pid {pid})")
    assert what_to_do in str(refused.value)
    assert refused.value.pid == pid
    root.take_lock().release()


def test_where_nobody_tells_who_holds_a_store_both_ways_out_are_named(
    root: StoreRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreLock, "holder", lambda _lock: None)
    with held_elsewhere(root, WRITER), pytest.raises(StoreLockedError) as refused:
        root.take_lock()
    assert "open in this process, or held by another process" in str(refused.value)
    assert refused.value.pid is None


def test_this_process_is_named_as_such(root: StoreRoot) -> None:
    lock = root.take_lock()
    with pytest.raises(StoreLockedError, match="is open in this process; close it there") as error:
        root.take_lock()
    assert error.value.pid == os.getpid()
    lock.release()


def test_who_reads_the_lock_file_gives_up_no_lock(root: StoreRoot) -> None:
    lock = root.take_lock()
    assert root.lock.read_bytes() == b"lock"  # as a backup does
    assert as_a_broker_finds_it(root) == "held"
    lock.release()


def test_of_many_threads_one_gets_the_lock(root: StoreRoot) -> None:
    for _ in range(100):
        taken: list[StoreLock] = []
        go = threading.Barrier(3)

        def take(taken: list[StoreLock] = taken, go: threading.Barrier = go) -> None:
            go.wait()
            with suppress(StoreLockedError):
                taken.append(root.take_lock())

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [lock] = taken
        lock.release()


@pytest.mark.parametrize("who", ["writer", "reader"])
def test_a_forked_child_neither_gives_up_nor_keeps_the_lock(root: StoreRoot, who: str) -> None:
    with ExitStack() as held:
        if who == "writer":
            held.callback(root.take_lock().release)
        else:
            held.enter_context(root.shared_lock())
        told, tell = os.pipe()
        wait, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")  # the hook has run
            os.read(wait, 1)
            os._exit(0)
        os.read(told, 1)
        assert as_a_broker_finds_it(root) == "held"
    assert as_a_broker_finds_it(root) == "free"
    os.write(go, b"x")
    os.waitpid(child, 0)
    for descriptor in (told, tell, wait, go):
        os.close(descriptor)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_child_waits_for_no_lock_of_a_topic_or_a_kernel(
    tmp_path: Path, engine: str
) -> None:
    """Which another thread of the parent holds while it forks."""
    from numba.core.compiler_lock import global_compiler_lock

    from message_store import ManualClock
    from message_store.base.errors import StoreClosedError

    store: Any = ENGINES[engine].open(tmp_path, ManualClock(1_793_000_000_000), False)
    topic = store.topic("orders")
    held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        with store.lock:
            with global_compiler_lock:
                held.set()
                goes_on.wait(0.2)
            goes_on.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        with suppress(StoreClosedError):
            signal.alarm(5)
            with global_compiler_lock:
                topic.ranges()
        os._exit(0)
    goes_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_listing_that_is_not_read_to_its_end_keeps_writers_out(
    tmp_path: Path, engine: str
) -> None:
    from message_store import ManualClock

    clock = ManualClock(1_793_000_000_000)
    store = ENGINES[engine].open(tmp_path, clock, False)
    for _ in range(3):
        store.schedule(Message("orders", b"x"), AfterMs(1_000))
    clock.tick(5_000)
    store.advance(clock.now_ms())
    store.close()
    listing = iter(list_topic(tmp_path, "orders"))
    next(listing)
    with pytest.raises(StoreLockedError):
        ENGINES[engine].open(tmp_path, clock, False)
    del listing
    store = ENGINES[engine].open(tmp_path, clock, False)
    assert as_a_broker_finds_it(StoreRoot(tmp_path)) == "held"
    next(iter(list_topic(tmp_path, "orders")))  # beside the open store, whose lock stays
    assert as_a_broker_finds_it(StoreRoot(tmp_path)) == "held"
    abandon(store)


JAVA = ROOT / "tests" / "interop" / "java" / "TryLock.java"


@contextmanager
def java_that_tries(root: StoreRoot) -> Iterator[str]:
    """Java's answer when it tries the lock as a broker does; it holds what it got meanwhile."""
    command = ["java", str(JAVA), str(root.lock)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as java:
        assert java.stdout is not None
        yield java.stdout.readline().strip()
        java.communicate(timeout=60)


@pytest.mark.check
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_java_and_we_keep_each_other_out(root: StoreRoot) -> None:
    lock = root.take_lock()
    with java_that_tries(root) as answer:
        assert answer == "held"
    lock.release()
    with root.shared_lock(), java_that_tries(root) as answer:
        assert answer == "held"
    with java_that_tries(root) as answer:
        assert answer == "got"
        with pytest.raises(StoreLockedError, match="stop the broker first"):
            root.take_lock()
        with pytest.raises(StoreLockedError, match="stop the broker first"), looking_at(root):
            pass
    root.take_lock().release()
