# SPDX-License-Identifier: Apache-2.0
"""Many threads that wait for the disk share its work, and never one that began before they came."""

from __future__ import annotations

import threading

import pytest

from message_store.files.unsynced import GroupSync


class Work:
    """Work that waits until it is let go, and counts."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.count = 0
        self.fails = 0

    def __call__(self) -> None:
        self.count += 1
        self.began.release()
        assert self.may_end.acquire(timeout=60)
        if self.fails:
            self.fails -= 1
            raise OSError("the disk is gone")


def started(group: GroupSync, count: int) -> list[threading.Thread]:
    def run() -> None:
        try:
            group.run()
        except OSError:
            failed.append(1)

    failed: list[int] = []
    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_who_comes_while_it_runs_waits_for_one_run_more() -> None:
    waits = threading.Semaphore(0)

    class Change(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.release()  # the others wait for the lock, which this thread has until it waits
            return super().wait(timeout)

    work = Work()
    group = GroupSync(work)
    group._change = Change(group._lock)
    [first] = started(group, 1)
    assert work.began.acquire(timeout=60)
    later = started(group, 20)
    for _ in later:
        assert waits.acquire(timeout=60)
    work.may_end.release()
    first.join(60)
    assert not first.is_alive()
    assert work.began.acquire(timeout=60)
    assert any(thread.is_alive() for thread in later)
    work.may_end.release()
    for thread in later:
        thread.join(60)
    assert not any(thread.is_alive() for thread in later)
    assert work.count == 2


def test_a_run_that_failed_was_none_for_those_who_wait() -> None:
    work = Work()
    work.fails = 1
    group = GroupSync(work)
    for _ in range(10):
        work.may_end.release()
    with pytest.raises(OSError, match="disk is gone"):
        group.run()
    group.run()
    group.run()
    assert work.count == 3


def test_an_interrupt_in_front_of_the_work_keeps_nobody_waiting() -> None:
    interrupts = [KeyboardInterrupt]

    class Lock:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *_error: object) -> None:
            self._lock.release()
            if interrupts:
                raise interrupts.pop()

    work = Work()
    work.may_end.release()
    group = GroupSync(work)
    group._lock = Lock()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        group.run()
    [later] = started(group, 1)
    later.join(60)
    assert (later.is_alive(), work.count) == (False, 1)
