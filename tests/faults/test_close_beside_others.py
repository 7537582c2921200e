# SPDX-License-Identifier: Apache-2.0
"""A close beside threads that flush, schedule, cancel and deliver, on a disk whose syncs take their
time: whoever opens the store then finds each message once.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message
from message_store.base.errors import StoreClosedError
from message_store.writing.store import LiveStore
from tests.faults.engines import ENGINES, Engine, open_hierarchy
from timer_wheel.hierarchy.timer_index import Batch, TimerIndex

START_MS = 1_793_000_000_000


def test_a_flush_that_is_overtaken_by_a_close_writes_no_older_index_over_a_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush is held right before its write until the close has written."""
    clock = ManualClock(START_MS)
    store = open_hierarchy(tmp_path, clock)
    for number in range(5):
        store.schedule(Message("orders", b"%d" % number), AfterMs(10_100 + 100 * number))
    is_at_write, is_closed = threading.Event(), threading.Event()
    write, sync_queues, closer = TimerIndex.write, LiveStore.sync_queues, threading.current_thread()

    def held(live: LiveStore) -> None:
        sync_queues(live)
        if threading.current_thread() is not closer:
            is_at_write.set()
            assert is_closed.wait(30)

    def noted(index: TimerIndex, batch: Batch, *, durably: bool) -> None:
        write(index, batch, durably=durably)
        is_closed.set()

    def flush() -> None:
        with pytest.raises(StoreClosedError):
            store.flush()

    flusher = threading.Thread(target=flush)
    with monkeypatch.context() as patch:
        patch.setattr(LiveStore, "sync_queues", held)
        patch.setattr(TimerIndex, "write", noted)
        flusher.start()
        assert is_at_write.wait(30)
        clock.tick(10_250)
        bodies = [each.message.body for each in store.advance(clock.now_ms())]
        store.schedule(Message("orders", b"new"), AfterMs(5_000))
        patch.setattr(LiveStore, "write_topics", lambda live: flusher.join(0.2))  # it writes now
        store.close()
        flusher.join()
    with open_hierarchy(tmp_path, clock) as store:
        assert store.check() == []
        assert len(list(store.pending())) == 4
        clock.tick(60_000)
        bodies += [each.message.body for each in store.advance(clock.now_ms())]
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"new"]


class Others:
    """Threads that use a store until it is closed, and what they were answered."""

    def __init__(self, engine: Engine, path: Path, clock: ManualClock, rng: random.Random) -> None:
        self.store = engine.open(path, clock, False)
        self.clock = clock
        self.rng = rng
        self.scheduled: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.problems: list[BaseException] = []
        works = (self.store.flush, self.schedule, self.advance)
        self.threads = [threading.Thread(target=self.run, args=(work,)) for work in works]

    def run(self, work: Callable[[], None]) -> None:
        try:
            while True:
                work()
        except StoreClosedError:
            pass
        except BaseException as error:  # told by the test
            self.problems.append(error)

    def schedule(self) -> None:
        body = b"%d" % len(self.scheduled)
        due = AfterMs(self.rng.randrange(3_000))
        receipt = self.store.schedule(Message("orders", body, unique_key=f"K{body!r}"), due)
        self.scheduled.append(body)
        is_chosen = self.rng.random() < 0.2
        if is_chosen and self.store.cancel(receipt) is Cancellation.CANCELLED:
            self.cancelled.append(body)
        time.sleep(0.0005)

    def advance(self) -> None:
        self.clock.tick(50)
        self.store.advance(self.clock.now_ms())
        time.sleep(0.001)


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_each_message_is_delivered_once_though_the_store_is_closed_beside_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, rounds: int, seed: int
) -> None:
    rng, sync = random.Random(seed), os.fdatasync

    def slow(descriptor: int) -> None:
        sync(descriptor)
        time.sleep(rng.choice([0.0005, 0.01]))

    for number in range(rounds):
        path, clock = tmp_path / f"{number}", ManualClock(START_MS)
        others = Others(engine, path, clock, rng)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", slow)
            for thread in others.threads:
                thread.start()
            time.sleep(0.02 + rng.random() * 0.08)
            others.store.close()
            for thread in others.threads:
                thread.join()
        assert others.problems == []
        clock.tick(86_400_000)
        with engine.open(path, clock, False) as store:
            store.advance(clock.now_ms())
            assert list(store.pending()) == []
            assert store.check() == []
            topic = store.topic("orders")
            queue = Counter(each.body for each in topic.read(0, 0, len(others.scheduled) + 10))
        # The last schedule may have been stored, or its cancel, and the answer come too late.
        wanted = set(others.scheduled) - set(others.cancelled)
        assert set(queue.values()) <= {1}
        assert wanted - queue.keys() <= set(others.scheduled[-1:])
        assert queue.keys() - wanted <= {b"%d" % len(others.scheduled)}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_nobody_waits_while_a_flush_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    """Each sync of the flush ends when another message was stored beside it."""
    store = engine.open(tmp_path / "store", ManualClock(START_MS), False)
    store.schedule(Message("orders", b"first"), AfterMs(10_100))
    store.flush()  # files that are made once have their names synced at once
    store.schedule(Message("orders", b"second"), AfterMs(10_100))
    store.live.flush_all_next()  # type: ignore[attr-defined]
    stored = threading.Semaphore(0)
    synced: list[str] = []
    problems: list[BaseException] = []

    def beside(sync: Callable[[int], None]) -> Callable[[int], None]:
        def held(descriptor: int) -> None:
            if threading.current_thread() is flusher:
                synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
                while stored.acquire(blocking=False):
                    pass  # what was stored before counts for nothing
                assert stored.acquire(timeout=20), synced[-1]
            sync(descriptor)

        return held

    def flush() -> None:
        try:
            store.flush()
        except BaseException as error:  # told by the test
            problems.append(error)

    flusher = threading.Thread(target=flush)
    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, beside(getattr(os, name)))
        flusher.start()
        count = 0
        while flusher.is_alive():
            store.schedule(Message("orders", b"%d" % count), AfterMs(10_100))
            stored.release()
            count += 1
            time.sleep(0.001)
    store.close()
    assert problems == []
    assert any("commitlog" in name for name in synced)
    assert any(name.endswith(".log") for name in synced) == (engine is ENGINES["hierarchy"])
