# SPDX-License-Identifier: Apache-2.0
"""The loop delivers on time, stops when told, and never spins, whatever the clock does."""

import threading

import attrs
import pytest

from message_store import (
    AfterMs,
    AtMs,
    Deliveries,
    ManualClock,
    MemoryStore,
    Message,
    SystemClock,
    run_store,
)
from message_store.base.errors import StoreClosedError

WEEK_MS = 604_800_000


@attrs.define
class Notebook:
    """Writes down what was delivered, and when."""

    clock: ManualClock
    lines: list[tuple[int, bytes]] = attrs.field(factory=list)

    def __call__(self, deliveries: Deliveries) -> None:
        assert len(deliveries)
        self.lines += [(self.clock.now_ms(), each.message.body) for each in deliveries]


@attrs.define
class SleepCounter(ManualClock):
    """A clock by hand that remembers how long it was asked to sleep."""

    sleeps_ms: list[float] = attrs.field(factory=list)

    def sleep_ms(self, duration_ms: float) -> None:
        self.sleeps_ms.append(duration_ms)
        super().sleep_ms(duration_ms)


def test_a_week_of_deliveries_passes_at_once_and_each_is_on_time() -> None:
    clock = SleepCounter(0)
    notebook = Notebook(clock)
    store = MemoryStore(clock)
    due_ms = [number * 601_337 % WEEK_MS for number in range(5_000)]
    for number, ms in enumerate(due_ms):
        store.schedule(Message("orders", str(number).encode()), AtMs(ms))
    delivered = run_store(store, clock, notebook, until_ms=WEEK_MS, poll_ms=WEEK_MS)
    assert delivered == 5_000
    expected = sorted((ms, number) for number, ms in enumerate(due_ms))
    assert notebook.lines == [(ms, str(number).encode()) for ms, number in expected]
    assert clock.now_ms() == WEEK_MS
    assert len(clock.sleeps_ms) <= 5_001


def test_what_is_due_at_the_end_comes_and_what_is_due_later_waits() -> None:
    clock = ManualClock(0)
    store = MemoryStore(clock)
    for delay_ms in (999, 1_000, 1_001):
        store.schedule(Message("orders", b"%d" % delay_ms), AfterMs(delay_ms))
    notebook = Notebook(clock)
    assert run_store(store, clock, notebook, until_ms=1_000) == 2
    assert notebook.lines == [(999, b"999"), (1_000, b"1000")]
    assert store.next_due_ms() == 1_001


def test_a_clock_beyond_the_end_delivers_up_to_the_end_only() -> None:
    clock = ManualClock(0)
    store = MemoryStore(clock)
    store.schedule(Message("orders", b"early"), AtMs(500))
    store.schedule(Message("orders", b"late"), AtMs(1_500))
    clock.tick(9_000)
    assert run_store(store, clock, Notebook(clock), until_ms=1_000) == 1


def test_stop_is_asked_before_every_round() -> None:
    clock = ManualClock(0)
    store = MemoryStore(clock)
    store.schedule(Message("orders", b"a"), AfterMs(0))
    assert run_store(store, clock, list, stop=lambda: True) == 0
    assert run_store(store, clock, list, stop=lambda: store.next_due_ms() is None) == 1


def test_what_a_callback_schedules_is_delivered_too() -> None:
    clock = ManualClock(0)
    store = MemoryStore(clock)
    times_ms: list[int] = []

    def again(deliveries: Deliveries) -> None:
        times_ms.append(clock.now_ms())
        for each in deliveries:
            store.schedule(Message("ticks", each.message.body), AfterMs(60_000))

    store.schedule(Message("ticks", b"tick"), AfterMs(60_000))
    assert run_store(store, clock, again, until_ms=3_600_000, poll_ms=7_777) == 60
    assert times_ms == list(range(60_000, 3_600_001, 60_000))


def test_a_sleep_is_bounded_and_never_nothing() -> None:
    clock = SleepCounter(0)
    store = MemoryStore(clock)
    store.schedule(Message("orders", b"a"), AfterMs(250))

    def dawdle(_deliveries: Deliveries) -> None:
        clock.tick(5_000)
        store.schedule(Message("orders", b"b"), AtMs(0))
        clock.tick(-9_000)  # somebody sets the clock

    run_store(store, clock, dawdle, until_ms=2_000, poll_ms=100)
    assert all(1 <= duration_ms <= 100 for duration_ms in clock.sleeps_ms)


@pytest.mark.parametrize(("took_ms", "rest_ms"), [(0, 1), (1, 3), (2, 6), (4, 10), (60, 10)])
def test_where_more_is_due_at_once_others_get_on_for_three_times_as_long_and_10_ms_at_most(
    took_ms: int, rest_ms: int
) -> None:
    clock = SleepCounter(0)
    store = MemoryStore(clock)
    store.schedule(Message("orders", b"a"), AfterMs(250))
    store.schedule(Message("orders", b"b"), AfterMs(251))
    assert run_store(store, clock, lambda _all: clock.tick(took_ms), until_ms=500) == 2
    assert clock.sleeps_ms[:4] == [100, 100, 50, rest_ms]


def test_an_error_of_the_callback_comes_out_and_what_was_delivered_stays() -> None:
    clock = ManualClock(0)
    store = MemoryStore(clock)
    store.schedule(Message("orders", b"a"), AfterMs(10))

    def fail(_deliveries: Deliveries) -> None:
        raise LookupError("no such order")

    with pytest.raises(LookupError, match="no such order"):
        run_store(store, clock, fail)
    assert [each.body for each in store.topic("orders").read(0, 0)] == [b"a"]


def test_a_store_that_is_closed_ends_the_loop_with_an_error() -> None:
    clock = ManualClock(0)
    store = MemoryStore(clock)
    store.schedule(Message("orders", b"a"), AfterMs(10))
    with pytest.raises(StoreClosedError):
        run_store(store, clock, lambda _deliveries: store.close())


def test_on_the_system_clock_another_thread_schedules_and_stops() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    arrived, stopped = threading.Event(), threading.Event()
    found: list[bytes] = []

    def take(deliveries: Deliveries) -> None:
        found.extend(each.message.body for each in deliveries)
        arrived.set()

    loop = threading.Thread(
        target=run_store, args=(store, clock, take), kwargs={"stop": stopped.is_set, "poll_ms": 5}
    )
    loop.start()
    store.schedule(Message("orders", b"a"), AfterMs(20))
    assert arrived.wait(60)
    stopped.set()
    loop.join(60)
    assert not loop.is_alive()
    assert found == [b"a"]


def test_a_store_is_flushed_as_often_as_asked_for_and_no_more() -> None:
    @attrs.define
    class Flushed(MemoryStore):
        clock: ManualClock
        times_ms: list[int] = attrs.field(factory=list)

        def __attrs_pre_init__(self) -> None:
            super().__init__()

        def flush(self) -> None:
            self.times_ms.append(self.clock.now_ms())

    clock = ManualClock(5_000)
    store = Flushed(clock)
    run_store(store, clock, list, until_ms=8_500, flush_every_ms=1_000)
    assert store.times_ms == [6_000, 7_000, 8_000]
    clock.tick(-4_000)
    rounds = iter([False, False, True])
    run_store(store, clock, lambda _all: None, stop=lambda: next(rounds), flush_every_ms=1_000)
    assert len(store.times_ms) == 3
