# SPDX-License-Identifier: Apache-2.0
"""Every engine and the model let a pending message wait for another time, and keep it one."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest

from legacy_levels import LevelRules, LevelStore
from message_store import (
    AfterMs,
    AtMs,
    Cancellation,
    Clock,
    DelayStore,
    ManualClock,
    MemoryStore,
    Message,
    Receipt,
    Severity,
)
from message_store.base.errors import (
    BadFieldError,
    SharedKeyError,
    StoreClosedError,
    UnsupportedDelayError,
)
from message_store.format.dialect import Dialect
from message_store.format.properties import CANCELLED_OFFSET, RESCHEDULED_FROM
from message_store.format.recall_handle import RecallHandle
from message_store.writing.settings import StoreSettings
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore, WheelStore

START_MS = 1_793_000_000_437
"""Not at the beginning of a slot."""
FAR_MS = START_MS + 86_400_000
SMALL = StoreSettings(
    commit_log_file_bytes=64 << 10, queue_file_bytes=20 * 50, timer_log_file_bytes=20 * 52 + 30
)
Open = Callable[[Path, Clock], DelayStore]


def small(engine: Callable[..., DelayStore], **how: object) -> Open:
    return lambda folder, clock: engine(folder, clock=clock, settings=SMALL, **how)


ON_FILES: dict[str, Open] = {
    "levels": small(LevelStore.open),
    "levels 5.5": small(LevelStore.open, dialect=Dialect.ROCKETMQ_5_5),
    "asynchronous levels": small(LevelStore.open, rules=LevelRules(async_delivery=True)),
    "wheel": small(WheelStore.open, precision_ms=1000),
    "wheel of tenths": small(WheelStore.open, precision_ms=100),
    "wheel that rolls": small(WheelStore.open, roll_window_slots=6),
    "hierarchy": small(HierarchicalWheelStore.open, precision_ms=1),
    "hierarchy of seconds": small(HierarchicalWheelStore.open, precision_ms=1000),
    "time index": small(TimeIndexStore.open),
}
ALL: dict[str, Open] = {**ON_FILES, "memory": lambda _folder, clock: MemoryStore(clock)}
BY_SLOT = ("wheel", "hierarchy")
"""These cancel by key and slot."""


def message(key: str) -> Message:
    return Message("orders", f"body of {key}".encode(), unique_key=key)


def keys(store: DelayStore, now_ms: int) -> Counter[str]:
    return Counter(each.message.unique_key or "" for each in store.advance(now_ms))


def moved(store: DelayStore, which: Receipt | str, delay_ms: int) -> Receipt:
    receipt = store.reschedule(which, AtMs(START_MS + delay_ms))
    assert isinstance(receipt, Receipt)
    return receipt


def assert_sound(store: DelayStore) -> None:
    assert [each for each in store.check() if each.severity is not Severity.INFO] == []


@attrs.frozen
class Place:
    """Where a store is, which can be opened again."""

    name: str
    folder: Path
    clock: ManualClock
    opened: list[DelayStore]

    def open(self) -> DelayStore:
        self.opened.append(ALL[self.name](self.folder, self.clock))
        return self.opened[-1]


@pytest.fixture(params=ALL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, tmp_path / "store", ManualClock(START_MS), [])
    yield place
    for store in place.opened:
        store.close()


@pytest.fixture
def store(place: Place) -> DelayStore:
    return place.open()


@pytest.mark.parametrize("by_handle", [False, True])
@pytest.mark.parametrize("delay_ms", [10_000, 300_000])
def test_a_message_waits_for_its_new_time_and_no_more_for_its_old_one(
    store: DelayStore, by_handle: bool, delay_ms: int
) -> None:
    old = store.schedule(message("A"), AfterMs(60_000))
    new = moved(store, old.handle if by_handle else old, delay_ms)
    assert (new.unique_key, new.topic, new.due_ms) == ("A", "orders", START_MS + delay_ms)
    assert new.promised_ms >= new.due_ms
    [pending] = store.pending()
    assert (pending.unique_key, pending.due_ms) == ("A", new.promised_ms)
    assert store.next_due_ms() is not None
    assert keys(store, new.promised_ms - 1) == Counter()
    assert keys(store, new.promised_ms) == Counter("A")
    assert keys(store, FAR_MS) == Counter()
    assert len(store.topic("orders").read(0, 0)) == 1
    assert store.next_due_ms() is None
    assert_sound(store)


def test_the_old_receipt_names_nothing_and_the_new_one_can_be_cancelled(store: DelayStore) -> None:
    old = store.schedule(message("A"), AfterMs(60_000))
    new = moved(store, old, 300_000)
    assert store.cancel(old) is Cancellation.CANCELLED
    assert store.reschedule(old, AfterMs(1_000)) is Cancellation.CANCELLED
    assert len(list(store.pending())) == 1
    assert store.cancel(new) is Cancellation.CANCELLED
    assert list(store.pending()) == []
    assert keys(store, FAR_MS) == Counter()


def test_what_does_not_wait_is_not_moved(store: DelayStore) -> None:
    came = store.schedule(message("CAME"), AfterMs(1_000))
    gone = store.schedule(message("GONE"), AfterMs(60_000))
    store.advance(came.promised_ms)
    store.cancel(gone)
    never = RecallHandle("orders", came.broker_name, START_MS + 60_000, "NEVER").text()
    stranger = RecallHandle("orders", "stranger", gone.promised_ms, "GONE").text()
    answers = [store.reschedule(each, AfterMs(5_000)) for each in (came, gone, never, stranger)]
    assert answers == [
        Cancellation.ALREADY_DELIVERED,
        Cancellation.CANCELLED,
        Cancellation.NEVER_EXISTED,
        Cancellation.NEVER_EXISTED,
    ]
    assert keys(store, FAR_MS) == Counter()
    with pytest.raises(BadFieldError, match="handle"):
        store.reschedule("no handle", AfterMs(1))


def test_a_message_moves_there_and_back_again(store: DelayStore) -> None:
    receipt = store.schedule(message("A"), AtMs(START_MS + 60_000))
    for delay_ms in (120_000, 60_000, 300_000, 60_000, 120_000, 60_000):
        receipt = moved(store, receipt, delay_ms)
        assert len(list(store.pending())) == 1
    assert keys(store, receipt.promised_ms - 1) == Counter()
    assert keys(store, receipt.promised_ms) == Counter("A")
    assert keys(store, FAR_MS) == Counter()


DELAYS_MS = (-5_000, 0, 1, 100, 437, 562, 563, 564, 999, 1_000, 1_001, 5_000, 90_000)


def test_whatever_the_two_times_are_it_comes_once_at_the_second(store: DelayStore) -> None:
    wanted: dict[str, int] = {}
    for first in DELAYS_MS:
        for second in DELAYS_MS:
            key = f"FROM{first}TO{second}"
            old = store.schedule(message(key), AtMs(START_MS + first))
            new = moved(store, old, second)
            assert new.promised_ms >= min(new.due_ms, START_MS), key
            wanted[key] = new.promised_ms
    assert Counter(each.unique_key for each in store.pending()) == Counter(wanted.keys())
    came: Counter[str] = Counter()
    for now_ms in sorted({*wanted.values()}):
        for time_ms in (now_ms - 1, now_ms):
            came += keys(store, time_ms)
            due = Counter(key for key, due_ms in wanted.items() if due_ms <= time_ms)
            assert came == due, time_ms
    assert keys(store, FAR_MS) == Counter()
    assert_sound(store)


def test_a_message_that_is_due_can_still_be_put_off(store: DelayStore, place: Place) -> None:
    receipts = [store.schedule(message(key), AfterMs(0)) for key in ("AT_ONCE", "LATER")]
    receipts.append(store.schedule(message("WAS_DUE"), AfterMs(1_000)))
    place.clock.tick(5_000)
    delays_ms = (5_100, 60_000, 120_000)
    news = [moved(store, *each) for each in zip(receipts, delays_ms, strict=True)]
    assert all(new.promised_ms >= new.due_ms for new in news)
    assert keys(store, START_MS + 5_000) == Counter()
    for new in news:
        assert keys(store, new.promised_ms - 1) == Counter()
        assert keys(store, new.promised_ms) == Counter([new.unique_key])


def test_a_message_keeps_all_that_its_consumer_sees(store: DelayStore, place: Place) -> None:
    given = Message(
        topic="orders",
        body="müde 𝄞".encode(),
        tags="zu-spät",
        keys=("42", "größer"),
        properties={"Käufer": "𝄞 Müller"},
        queue_id=3,
        flag=7,
        unique_key="A",
    )
    receipt = store.schedule(given, AfterMs(60_000))
    place.clock.tick(2_000)
    moved(store, receipt, 120_000)
    [delivered] = store.advance(FAR_MS)
    seen = delivered.message
    assert (seen.body, seen.tags, seen.keys) == (given.body, given.tags, given.keys)
    assert (seen.queue_id, seen.flag, seen.unique_key) == (3, 7, "A")
    assert seen.properties["Käufer"] == "𝄞 Müller"
    assert seen.born_timestamp_ms == START_MS


def test_a_time_that_is_refused_changes_nothing(store: DelayStore, place: Place) -> None:
    receipt = store.schedule(message("A"), AfterMs(60_000))
    if place.name != "memory":
        with pytest.raises(UnsupportedDelayError):
            store.reschedule(receipt, AfterMs(10**12))
    assert [each.due_ms for each in store.pending()] == [receipt.promised_ms]
    assert keys(store, FAR_MS) == Counter("A")


def test_of_messages_that_share_a_handle_none_is_lost(store: DelayStore, place: Place) -> None:
    receipts = [store.schedule(message("A"), AfterMs(60_000)) for _ in range(2)]
    with pytest.raises(SharedKeyError, match="2 pending messages of orders share the unique key A"):
        store.reschedule(receipts[0].handle, AfterMs(120_000))
    if place.name.startswith(BY_SLOT):
        with pytest.raises(SharedKeyError):
            store.reschedule(receipts[0], AfterMs(120_000))
        assert keys(store, FAR_MS) == Counter("AA")
    else:
        moved(store, receipts[0], 120_000)
        assert keys(store, receipts[1].promised_ms) == Counter("A")
        assert keys(store, FAR_MS) == Counter("A")


def test_a_message_that_was_due_at_once_in_the_slot_of_another_is_not_lost(
    store: DelayStore, place: Place
) -> None:
    at_once = store.schedule(message("A"), AfterMs(0))
    later = store.schedule(message("A"), AfterMs(300))
    for receipt in (at_once, later):
        if place.name in ("wheel", "wheel that rolls"):
            with pytest.raises(SharedKeyError):
                store.reschedule(receipt, AfterMs(120_000))
        else:
            moved(store, receipt, 120_000)
    assert keys(store, FAR_MS) == Counter("AA")


@pytest.mark.parametrize("name", [RESCHEDULED_FROM, CANCELLED_OFFSET])
def test_a_property_of_the_store_s_own_cannot_be_given(store: DelayStore, name: str) -> None:
    with pytest.raises(BadFieldError, match=name):
        store.schedule(Message("orders", b"", properties={name: "1"}), AfterMs(1_000))


def test_a_closed_store_reschedules_nothing(store: DelayStore) -> None:
    receipt = store.schedule(message("A"), AfterMs(60_000))
    store.close()
    with pytest.raises(StoreClosedError):
        store.reschedule(receipt, AfterMs(1))


@pytest.mark.parametrize("how", ["closed", "abandoned"])
@pytest.mark.parametrize("name", ON_FILES)
def test_it_outlives_the_store(tmp_path: Path, name: str, how: str) -> None:
    clock = ManualClock(START_MS)
    end = "close" if how == "closed" else "abandon"
    store = ON_FILES[name](tmp_path / "store", clock)
    olds = [store.schedule(message(key), AfterMs(60_000)) for key in "ABCD"]
    news = [moved(store, old, 120_000) for old in olds[:2]]
    getattr(store, end)()
    store = ON_FILES[name](tmp_path / "store", clock)
    news += [moved(store, old, 300_000) for old in olds[2:]]
    assert store.cancel(olds[0]) is Cancellation.CANCELLED
    assert store.reschedule(olds[0], AfterMs(1)) is Cancellation.CANCELLED
    getattr(store, end)()
    store = ON_FILES[name](tmp_path / "store", clock)
    found = {each.unique_key: each.due_ms for each in store.pending()}
    assert found == {new.unique_key: new.promised_ms for new in news}
    assert_sound(store)
    assert keys(store, olds[0].promised_ms) == Counter()
    assert keys(store, FAR_MS) == Counter("ABCD")
    getattr(store, end)()
    store = ON_FILES[name](tmp_path / "store", clock)
    assert keys(store, FAR_MS + 1) == Counter()
    assert len(store.topic("orders").read(0, 0)) == 4
    store.close()


@pytest.mark.check
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ON_FILES)
def test_many_moves_among_many_messages(tmp_path: Path, name: str, seed: int) -> None:
    """Against a table of promises; the store is opened again now and then."""
    rng, clock = random.Random(seed), ManualClock(START_MS)
    open_it = partial(ON_FILES[name], tmp_path / "store", clock)
    store = open_it()
    waiting: dict[str, Receipt] = {}
    came: Counter[str] = Counter()
    for number in range(120):
        delay_ms = rng.choice([0, 300, 1_000, 5_000, 30_000, 60_000, 600_000])
        match rng.choice(["put", "move", "move", "move", "cancel", "tick", "open"]):
            case "put":
                waiting[f"K{number}"] = store.schedule(message(f"K{number}"), AfterMs(delay_ms))
            case "move" if waiting:
                key = rng.choice(sorted(waiting))
                answer = store.reschedule(waiting[key], AfterMs(delay_ms))
                assert isinstance(answer, Receipt)
                waiting[key] = answer
            case "cancel" if waiting and rng.random() < 0.3:
                key = rng.choice(sorted(waiting))
                assert store.cancel(waiting.pop(key)) is Cancellation.CANCELLED
            case "tick":
                clock.tick(rng.choice([1, 700, 6_000]))
                due = [k for k, each in waiting.items() if each.promised_ms <= clock.now_ms()]
                found = keys(store, clock.now_ms())
                assert found == Counter(due)
                came += found
                for key in due:
                    del waiting[key]
            case "open":
                getattr(store, rng.choice(["close", "abandon"]))()
                store = open_it()
        assert Counter(each.unique_key for each in store.pending()) == Counter(waiting.keys())
    assert_sound(store)
    assert keys(store, FAR_MS) == Counter(waiting.keys())
    store.close()
