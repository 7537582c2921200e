# SPDX-License-Identifier: Apache-2.0
"""The hands of a hierarchical wheel: what comes nearer, is written meanwhile, and is found."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store import AtMs, DelayStore, ManualClock, Message
from tests.faults.engines import SMALL, open_hierarchy
from timer_wheel.format.index_layouts import NATIVE_ROW, IndexState, Newest, Rows
from timer_wheel.format.timer_due import due_times, fine_promise_ms
from timer_wheel.hierarchy import hands as hands_module
from timer_wheel.hierarchy import timer_index
from timer_wheel.hierarchy.hands import Hands, WaitingMessages
from timer_wheel.hierarchy.id_index import IdIndex, id_of
from timer_wheel.hierarchy.index_db import IndexDb

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
NO_STATE = IndexState(1, 1_000, 0, 0, 0, 0, 0, 0)
NO_NEWEST = Newest(0, 0)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[IndexDb]:
    made = IndexDb(tmp_path / "index")
    yield made
    made.close()


def rows(due_ms: list[int], first: int = 0) -> Rows:
    made = np.zeros(len(due_ms), NATIVE_ROW)
    made["due_ms"] = due_ms
    made["queue_offset"] = first + np.arange(len(due_ms))
    return made


def known(waiting: WaitingMessages) -> list[int]:
    """The queue offsets of all that waits; a message that is there twice is there twice."""
    return sorted(int(each) for part in waiting.parts() for each in part["queue_offset"])


def write(db: IndexDb, waiting: WaitingMessages, queue_end: int) -> None:
    batch = db.batch()
    writing = waiting.put_all(batch, queue_end)
    db.write(batch, NO_STATE, NO_NEWEST)
    waiting.written(writing)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_hands_do_every_message_is_somewhere_once(db: IndexDb, seed: int) -> None:
    """Beside the truth, with a batch often on its way while the hands move; and what the database
    holds when a batch was written is what waited when it was made.
    """
    dice, truth, now_ms, count = random.Random(seed), dict[int, int](), START_MS, 0
    waiting = WaitingMessages(db, Hands())
    for _ in range(120):
        step = dice.randrange(6)
        if step <= 1:
            spread = dice.choice([2_000, 120_000, 3 * HOUR_MS])
            due = [now_ms + 1 + dice.randrange(spread) for _ in range(dice.randrange(1, 40))]
            waiting.add(rows(due, count))
            truth |= {count + number: ms for number, ms in enumerate(due)}
            count += len(due)
        elif step == 2:
            now_ms += dice.choice([1, 700, 45_000, HOUR_MS])
            waiting.reach(now_ms)
            came = waiting.take_due(now_ms)["queue_offset"].tolist()
            assert came == sorted(
                (n for n in truth if truth[n] <= now_ms), key=lambda n: (truth[n], n)
            )
            truth = {number: ms for number, ms in truth.items() if ms > now_ms}
        elif step == 3:
            waiting.feed_ahead()
        elif step == 4:
            batch = db.batch()
            writing, then = waiting.put_all(batch, count), sorted(truth)
            hands, is_early = waiting.hands, dice.random() < 0.5
            if is_early:
                db.write(batch, NO_STATE, NO_NEWEST)
            if dice.random() < 0.5:
                now_ms += dice.choice([1, 700, 45_000, HOUR_MS])
                waiting.reach(now_ms)
                for number in waiting.take_due(now_ms)["queue_offset"].tolist():
                    del truth[number]
                waiting.add(rows([now_ms + 5, now_ms + HOUR_MS], count))
                truth |= {count: now_ms + 5, count + 1: now_ms + HOUR_MS}
                count += 2
            if not is_early:
                db.write(batch, NO_STATE, NO_NEWEST)
            assert known(waiting) == sorted(truth)
            assert known(WaitingMessages(db, attrs.evolve(hands, second_ms=0))) == then
            waiting.written(writing)
        elif truth:
            number = dice.choice(sorted(truth))
            assert number in waiting.due_at(truth[number])["queue_offset"]
        assert known(waiting) == sorted(truth)
        first_ms = waiting.first_ms()
        assert (first_ms is None) == (not truth)
        assert first_ms is None or first_ms <= min(truth.values())


def test_what_is_taken_out_leaves_its_neighbours(db: IndexDb) -> None:
    waiting = WaitingMessages(db, Hands())
    waiting.add(rows([START_MS + 10 * HOUR_MS] * 10))
    write(db, waiting, 10)
    waiting.add(rows([START_MS + 10 * HOUR_MS] * 4, first=10))
    gone = waiting.take_out(lambda some: np.asarray(some["queue_offset"] % 2 == 0))
    assert sorted(gone["queue_offset"].tolist()) == [0, 2, 4, 6, 8, 10, 12]
    assert known(waiting) == [1, 3, 5, 7, 9, 11, 13]
    write(db, waiting, 14)
    assert known(waiting) == known(WaitingMessages(db, Hands())) == [1, 3, 5, 7, 9, 11, 13]


def test_a_slot_is_fed_ahead_piece_by_piece(db: IndexDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands_module, "FED_AT_ONCE", 20)
    waiting = WaitingMessages(db, Hands())
    now_ms = START_MS // HOUR_MS * HOUR_MS + 30_500
    waiting.reach(now_ms)
    for first in range(0, 100, 20):
        waiting.add(rows([now_ms + 60_000 + 100 * n for n in range(20)], first))
        write(db, waiting, first + 20)
    assert sum(len(block.rows) for block in db.blocks("seconds")) == 0
    for fed in (20, 40, 60, 80, 100, 100):
        waiting.feed_ahead()
        assert sum(len(block.rows) for block in db.blocks("seconds")) == fed
    assert known(waiting) == list(range(100))


def test_ids_are_found_in_memory_and_in_the_database(db: IndexDb) -> None:
    ids = IdIndex(db, 0)
    hashes = np.array([id_of(f"KEY{number}") for number in range(5_000)], np.int64)
    for begin in range(0, 5_000, 1_000):
        ids.add(hashes[begin : begin + 1_000], np.arange(begin, begin + 1_000))
        if begin in (1_000, 3_000):
            batch = db.batch()
            ids.put_all(batch)
            assert ids.find("KEY42").tolist() == [42]
            db.write(batch, NO_STATE, NO_NEWEST)
            ids.written(begin + 1_000)
    ids.add(np.array([0, id_of("KEY7")]), np.array([1 << 25, (1 << 25) + 1]))
    assert [ids.find(f"KEY{n}").tolist() for n in (0, 1_500, 3_999, 4_999)] == [
        [0], [1_500], [3_999], [4_999],
    ]  # fmt: skip
    assert ids.find("KEY7").tolist() == [7, (1 << 25) + 1]
    assert ids.find("NOBODY").tolist() == []


def test_a_fine_promise_never_looks_like_a_slots() -> None:
    due_ms = np.arange(START_MS, START_MS + 2_000)
    promised_ms = fine_promise_ms(due_ms)
    assert ((promised_ms - due_ms) <= 2).all()
    assert (promised_ms >= due_ms).all()
    assert (promised_ms == due_ms).mean() == 0.98
    stored_ms = np.zeros(len(due_ms), np.int64)
    assert (due_times(promised_ms - 1, stored_ms, 1_000) == promised_ms).all()


@contextmanager
def flushed_all_the_time(store: DelayStore) -> Iterator[None]:
    over, errors = threading.Event(), list[BaseException]()

    def flush() -> None:
        try:
            while not over.is_set():
                store.flush()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert errors == []


def test_a_thread_that_flushes_all_the_time_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_index, "_MANY", 50)
    clock, dice, count = ManualClock(START_MS), random.Random(1), 0
    settings = attrs.evolve(SMALL, retention_ms=2 * HOUR_MS)
    with open_hierarchy(tmp_path / "store", clock, settings) as store:
        came = Counter[bytes]()
        with flushed_all_the_time(store):
            for _ in range(150):
                for _ in range(dice.randrange(12)):
                    due_ms = clock.now_ms() + dice.choice([500, 70_000, 5 * HOUR_MS, 30 * HOUR_MS])
                    store.schedule(Message("orders", b"body %d" % count), AtMs(due_ms))
                    count += 1
                clock.tick(dice.choice([10, 900, 61_000, HOUR_MS]))
                came.update(each.message.body for each in store.advance(clock.now_ms()))
            clock.tick(40 * HOUR_MS)
            came.update(each.message.body for each in store.advance(clock.now_ms()))
        assert came == Counter(b"body %d" % number for number in range(count))
