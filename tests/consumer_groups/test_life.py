# SPDX-License-Identifier: Apache-2.0
"""Where in its life a message is, and what its records tell: over every engine and the model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from consumer_groups import GroupStore, consumer_group, message_state
from consumer_groups.received import Received
from message_store import AfterMs, AtMs, Cancellation, ManualClock, MemoryStore, Message, Receipt
from message_store.base.errors import BadFieldError, SourceError
from message_store.format.record_layout import HEAD_V4_V4
from message_store.interface.message_life import Event, MessageState
from message_store.life.by_key import cancel_by_key, find_receipts, trace_message
from message_store.life.trace import offset_of_id, trace_directory, trace_offset_id
from migrate.look.groups import look_at_state
from tests.consumer_groups.group_bench import GroupBench
from tests.faults.damage import flip
from tests.faults.engines import ENGINES

START_MS = 1_793_000_000_000
ON_FILES = list(ENGINES)


def opened(engine: str, folder: Path, clock: ManualClock) -> GroupStore:
    if engine == "memory":
        return MemoryStore(clock)
    return cast(GroupStore, ENGINES[engine].open(folder, clock, False))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture(params=[*ON_FILES, "memory"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[GroupStore]:
    with opened(request.param, tmp_path / "store", clock) as store:
        yield store


def message(key: str, topic: str = "orders") -> Message:
    return Message(topic, key.encode(), unique_key=key)


def events(store: GroupStore, key: str) -> list[str]:
    return [step.event.value for step in trace_message(store, key)]


def wait(store: GroupStore, duration_ms: int) -> None:
    clock = store.clock
    assert isinstance(clock, ManualClock)
    clock.tick(duration_ms)
    store.advance(clock.now_ms())


def received(store: GroupStore, group: str = "billing") -> Received:
    [message] = consumer_group(store, group).receive("orders", invisible_ms=30_000)
    return message


def test_a_message_goes_from_waiting_to_acknowledged(store: GroupStore) -> None:
    receipt = store.schedule(message("A"), AfterMs(60_000))
    assert message_state(store, receipt) is MessageState.PENDING
    wait(store, 60_000)
    assert message_state(store, receipt) is MessageState.DELIVERED
    consumer_group(store, "other").receive("nothing")
    assert message_state(store, "A") is MessageState.DELIVERED
    hand = received(store)
    assert message_state(store, receipt) is MessageState.IN_FLIGHT
    assert message_state(store, receipt, "billing") is MessageState.IN_FLIGHT
    assert message_state(store, receipt, "other") is MessageState.DELIVERED
    wait(store, 30_000)
    assert message_state(store, receipt) is MessageState.DELIVERED
    hand = received(store)
    consumer_group(store, "billing").ack(hand)
    assert message_state(store, "A") is MessageState.ACKNOWLEDGED
    assert message_state(store, receipt, "other") is MessageState.DELIVERED
    assert events(store, "A") == ["scheduled", "delivered"]
    scheduled, delivered = trace_message(store, "A")
    assert scheduled.first_offset == delivered.first_offset == receipt.commit_log_offset
    assert delivered.record.topic == "orders"
    assert delivered.record.store_timestamp_ms == START_MS + 60_000


def test_a_message_that_is_given_back_waits_again_and_dies(store: GroupStore) -> None:
    receipt = store.schedule(message("A"), AfterMs(0))
    wait(store, 0)
    group = consumer_group(store, "billing", max_retries=1)
    group.retry(received_by(group))
    assert message_state(store, receipt) is MessageState.PENDING
    wait(store, 60_000)
    assert message_state(store, "A") is MessageState.DELIVERED
    group.retry(received_by(group))
    wait(store, 1_000)
    assert message_state(store, receipt) is MessageState.DEAD
    assert events(store, "A") == [
        "scheduled", "delivered", "retried", "delivered", "rejected", "dead",
    ]  # fmt: skip
    steps = trace_message(store, "A")
    assert {step.first_offset for step in steps} == {receipt.commit_log_offset}
    topics = [step.record.topic for step in steps if step.event in (Event.DELIVERED, Event.DEAD)]
    assert topics == ["orders", "%RETRY%billing", "%DLQ%billing"]


def received_by(group: object) -> Received:
    [message] = group.receive("orders")  # type: ignore[attr-defined]
    return cast(Received, message)


def test_what_was_cancelled_or_never_was(store: GroupStore) -> None:
    receipt = store.schedule(message("A"), AfterMs(60_000))
    assert store.cancel(receipt) is Cancellation.CANCELLED
    assert message_state(store, receipt) is MessageState.CANCELLED
    assert message_state(store, "NEVER") is MessageState.UNKNOWN
    assert message_state(store, receipt._replace(unique_key="NEVER")) is MessageState.UNKNOWN
    assert trace_message(store, "NEVER") == []
    assert events(store, "A")[0] == "scheduled"


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("by_handle", [False, True])
@pytest.mark.parametrize("engine", ON_FILES)
def test_what_was_lost_is_not_called_cancelled(
    tmp_path: Path, engine: str, clock: ManualClock, by_handle: bool, is_moved: bool
) -> None:
    with opened(engine, tmp_path / "store", clock) as store:
        lost = store.schedule(Message("orders", b"to be damaged", unique_key="A"), AfterMs(60_000))
        if is_moved:
            moved = store.reschedule(lost.handle if by_handle else lost, AfterMs(90_000))
            assert isinstance(moved, Receipt)
            lost = moved
        if engine != "levels":
            twin = store.schedule(message("A"), AfterMs(300_000))
            store.cancel(twin.handle if by_handle else twin)
        [pending] = store.pending()
        store.flush()
        log = tmp_path / "store" / "commitlog" / f"{0:020}"
        place = log.read_bytes().index(b"to be damaged", pending.commit_log_offset)
        with log.open("r+b") as file:
            file.seek(place)
            file.write(b"X")
        wait(store, 300_000)
        assert message_state(store, lost) is MessageState.UNKNOWN


def test_of_twins_the_receipt_s_own_was_cancelled(store: GroupStore) -> None:
    first, second = (store.schedule(message("A"), AfterMs(60_000)) for _ in range(2))
    assert store.cancel(first) is Cancellation.CANCELLED
    assert message_state(store, first) is MessageState.CANCELLED
    assert message_state(store, second) is MessageState.PENDING
    wait(store, 100_000)
    assert message_state(store, first) is MessageState.CANCELLED
    assert message_state(store, second) is MessageState.DELIVERED
    third, fourth = (store.schedule(message("A"), AfterMs(60_000)) for _ in range(2))
    store.cancel(third.handle)
    store.cancel(fourth)
    assert message_state(store, third) is MessageState.CANCELLED
    assert message_state(store, fourth) is MessageState.CANCELLED


def test_a_rescheduled_message_is_one_life(store: GroupStore) -> None:
    old = store.schedule(message("A"), AfterMs(60_000))
    new = store.reschedule(old, AtMs(START_MS + 120_000))
    assert isinstance(new, Receipt)
    newest = store.reschedule(new, AtMs(START_MS + 300_000))
    assert isinstance(newest, Receipt)
    assert [message_state(store, each) for each in (old, new, newest)] == [MessageState.PENDING] * 3
    wait(store, 400_000)
    assert [message_state(store, each) for each in (old, newest)] == [MessageState.DELIVERED] * 2
    steps = [step for step in trace_message(store, "A") if step.event is not Event.CANCELLED]
    told = [step.event.value for step in steps]
    assert told == ["scheduled", "rescheduled", "rescheduled", "delivered"]
    assert {step.first_offset for step in trace_message(store, "A")} == {old.commit_log_offset}


def test_messages_that_share_a_key_have_lives_of_their_own(store: GroupStore) -> None:
    first = store.schedule(message("A"), AfterMs(60_000))
    wait(store, 60_000)
    second = store.schedule(message("A"), AfterMs(60_000))
    assert message_state(store, first) is MessageState.DELIVERED
    assert message_state(store, second) is MessageState.PENDING
    assert message_state(store, "A") is MessageState.PENDING
    store.cancel(second)
    assert message_state(store, first) is MessageState.DELIVERED
    assert message_state(store, second) is MessageState.CANCELLED
    lives = {step.first_offset for step in trace_message(store, "A")}
    assert lives == {first.commit_log_offset, second.commit_log_offset}


@pytest.mark.parametrize("what_comes", ["cancel", "delivery"])
def test_the_newest_message_of_a_key_is_the_one_that_was_scheduled_last(
    store: GroupStore, what_comes: str
) -> None:
    """Also if what came last is of an older one."""
    older = store.schedule(message("A1"), AfterMs(5_000))
    newer = store.schedule(message("A1"), AfterMs(60_000))
    if what_comes == "cancel":
        assert store.cancel(older) is Cancellation.CANCELLED
    else:
        wait(store, 5_000)
    assert message_state(store, "A1") is MessageState.PENDING
    assert store.cancel(newer) is Cancellation.CANCELLED
    assert message_state(store, "A1") is MessageState.CANCELLED


def test_receipts_are_found_by_key_and_cancelled(store: GroupStore) -> None:
    given = [store.schedule(message("A", topic), AfterMs(60_000)) for topic in ("orders", "sent")]
    store.schedule(message("B"), AfterMs(60_000))
    found = find_receipts(store, "A")
    assert sorted(each.topic for each in found) == ["orders", "sent"]
    assert {each.handle for each in found} == {each.handle for each in given}
    assert find_receipts(store, "A", "sent") == [each for each in found if each.topic == "sent"]
    [(receipt, answer)] = cancel_by_key(store, "A", "sent")
    assert (receipt.topic, answer) == ("sent", Cancellation.CANCELLED)
    assert [answer for _, answer in cancel_by_key(store, "A")] == [Cancellation.CANCELLED]
    assert cancel_by_key(store, "A") == []
    assert [each.unique_key for each in store.pending()] == ["B"]


def test_a_receipt_that_was_found_reschedules_its_message(store: GroupStore) -> None:
    store.schedule(message("A"), AfterMs(60_000))
    [found] = find_receipts(store, "A")
    assert isinstance(store.reschedule(found, AtMs(START_MS + 120_000)), Receipt)
    [found] = find_receipts(store, "A")
    assert found.promised_ms == START_MS + 120_000


# --- a log that is only read ----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ON_FILES)
def test_a_log_is_read_beside_its_owner(tmp_path: Path, engine: str, clock: ManualClock) -> None:
    folder = tmp_path / "store"
    with opened(engine, folder, clock) as store:
        receipt = store.schedule(message("A"), AfterMs(60_000))
        for number in range(300):
            store.schedule(message(f"OTHER{number}"), AfterMs(60_000))
        wait(store, 60_000)
        told = trace_message(store, "A")
        assert trace_directory(folder, "A") == told
    assert trace_directory(folder, "A") == told
    assert [step.event for step in told] == [Event.SCHEDULED, Event.DELIVERED]
    for step in told:
        found = trace_offset_id(folder, step.record.offset_message_id)
        assert found == told
        assert offset_of_id(step.record.offset_message_id) == step.record.commit_log_offset
    assert told[0].record.commit_log_offset == receipt.commit_log_offset
    assert trace_directory(folder, "NEVER") == []
    nowhere = told[0].record.offset_message_id[:-16] + f"{1 << 40:016X}"
    assert trace_offset_id(folder, nowhere) == []


@pytest.mark.parametrize("which", [0, 1, 3], ids=["first", "inner", "last"])
@pytest.mark.parametrize("engine", ON_FILES)
def test_a_damaged_head_hides_no_other_record_and_is_told(
    tmp_path: Path, engine: str, which: int, clock: ManualClock
) -> None:
    """Every bit of the length, the magic and the log offset, which say where the next record is."""
    folder, keys = tmp_path / "store", ["A", "B", "C", "D"]
    with opened(engine, folder, clock) as store:
        places = [store.schedule(message(k), AfterMs(60_000)).commit_log_offset for k in keys]
    [log, *_] = sorted((folder / "commitlog").iterdir())
    others = [key for key in keys if key != keys[which]]
    for field, size in {"size_bytes": 4, "magic": 4, "commit_log_offset": 8}.items():
        for bit in range(8 * size):
            at = places[which] + HEAD_V4_V4.offset_of(field) + bit // 8
            flip(log, at, bit % 8)
            for key in others:
                told: list[int] = []
                assert len(trace_directory(folder, key, told.append)) == 1, (field, bit, key)
                assert told == [places[which]], (field, bit, key)
            flip(log, at, bit % 8)
    assert len(trace_directory(folder, keys[which])) == 1
    queue = next((folder / "consumequeue").glob("*/*/*"))
    for bit in range(8 * 12):  # offset and length of the newest entry: the log is whole
        flip(queue, 3 * 20 + bit // 8, bit % 8)
        told = []
        assert len(trace_directory(folder, "D", told.append)) == 1
        assert told == [], bit
        flip(queue, 3 * 20 + bit // 8, bit % 8)


TRACERS: dict[str, Callable[..., object]] = {
    "trace_message": lambda store, key, _, *tell: trace_message(store, key, *tell),
    "message_state": lambda store, key, _, *tell: message_state(store, key, None, *tell),
    "message_state of a receipt": lambda store, _, of, *tell: message_state(store, of, None, *tell),
    "trace_directory": lambda store, key, _, *tell: trace_directory(
        store.live.root.path, key, *tell
    ),
    "trace_offset_id": lambda store, _, of, *tell: trace_offset_id(
        store.live.root.path, f"{of.commit_log_offset:032X}", *tell
    ),
    "look_at_state": lambda store, key, _, *tell: look_at_state(
        store.live.root.path, key, None, *tell, now_ms=START_MS
    ),
}


@pytest.mark.parametrize("asked", TRACERS)
@pytest.mark.parametrize("engine", ON_FILES)
def test_whoever_reads_the_life_of_a_message_tells_what_cannot_be_read(
    tmp_path: Path, engine: str, asked: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the message that is asked for, and of another: nobody knows of which it is."""
    with opened(engine, tmp_path / "store", clock) as store:
        receipts = [store.schedule(message(key), AfterMs(60_000)) for key in "ABC"]
        [log, *_] = sorted((tmp_path / "store/commitlog").iterdir())
        damaged = receipts[1].commit_log_offset
        flip(log, damaged + HEAD_V4_V4.offset_of("size_bytes") + 3, 2)
        for receipt in receipts:
            told: list[int] = []
            TRACERS[asked](store, receipt.unique_key, receipt, told.append)
            assert told == [damaged], receipt.unique_key
            caplog.clear()
            TRACERS[asked](store, receipt.unique_key, receipt)
            assert [f"cannot be read at offset {damaged}" in each for each in caplog.messages] == [
                True
            ]
        flip(log, damaged + HEAD_V4_V4.offset_of("size_bytes") + 3, 2)


@pytest.mark.parametrize("engine", ON_FILES)
def test_a_receipt_whose_first_record_is_damaged_tells_what_became_of_it(
    tmp_path: Path, engine: str, clock: ManualClock
) -> None:
    with opened(engine, tmp_path / "store", clock) as store:
        receipt = store.schedule(message("A"), AfterMs(60_000))
        wait(store, 60_000)
        [log, *_] = sorted((tmp_path / "store/commitlog").iterdir())
        flip(log, receipt.commit_log_offset + HEAD_V4_V4.offset_of("size_bytes") + 3, 2)
        told: list[int] = []
        state = message_state(store, receipt, tell_damage=told.append)
        assert (state, told) == (MessageState.DELIVERED, [receipt.commit_log_offset])


@pytest.mark.parametrize("engine", ON_FILES)
def test_what_no_queue_has_yet_is_told(tmp_path: Path, engine: str, clock: ManualClock) -> None:
    """As after a kill: queues are written behind the log."""
    folder = tmp_path / "store"
    with opened(engine, folder, clock) as store:
        for key in ("A", "B", "C"):
            store.schedule(message(key), AfterMs(60_000))
    [queue] = (folder / "consumequeue").glob("*/*/*")
    with queue.open("r+b") as file:
        file.seek(20)
        file.write(bytes(40))
    for key in ("A", "B", "C"):
        told: list[int] = []
        assert len(trace_directory(folder, key, told.append)) == 1
        assert told == []


@pytest.mark.parametrize("text", ["", "no id", "00" * 15, "7F"])
def test_text_that_is_no_id_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadFieldError, match="not an offset message id"):
        trace_offset_id(tmp_path, text)


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        trace_directory(tmp_path / "nothing", "A")


def test_rolls_are_told(tmp_path: Path, clock: ManualClock) -> None:
    with cast(GroupStore, ENGINES["wheel"].open(tmp_path / "store", clock, False)) as store:
        store.schedule(message("A"), AfterMs(300_000))
        for _ in range(30):
            wait(store, 10_000)
        told = events(store, "A")
    assert (told[0], told[-1]) == ("scheduled", "delivered")
    assert set(told[1:-1]) == {"rolled"}


def test_each_group_is_asked_for_itself(bench: GroupBench) -> None:
    """What one gives back, rejects or acknowledges says nothing of another."""
    receipt = bench.store.schedule(
        Message("orders", b"a", unique_key="A"), AtMs(bench.clock.now_ms())
    )
    bench.store.advance(bench.clock.now_ms())
    one, other = bench.group("one"), bench.group("other")
    [of_one], [of_other] = one.receive("orders"), other.receive("orders")
    other.ack(of_other)

    def states() -> list[str]:
        names = "one", "other", None
        return [message_state(bench.store, receipt, name).value for name in names]

    assert states() == ["in flight", "acknowledged", "in flight"]
    one.retry(of_one)
    assert states() == ["pending", "acknowledged", "pending"]
    bench.wait(20_000)
    assert states() == ["delivered", "acknowledged", "delivered"]
    [again] = one.receive("orders")
    one.reject(again)
    bench.wait(2_000)
    assert states() == ["dead", "acknowledged", "dead"]


def test_a_group_that_has_not_begun_with_it_is_not_done(bench: GroupBench) -> None:
    one, other = bench.group("one"), bench.group("other")
    bench.deliver("first")
    one.ack(*one.receive("orders"))
    other.ack(*other.receive("orders"))
    bench.deliver("second", unique_key="B")
    [given] = one.receive("orders")
    one.retry(given)
    bench.wait(20_000)
    one.ack(*one.receive("orders"))
    assert message_state(bench.store, "B", "one").value == "acknowledged"
    assert message_state(bench.store, "B").value == "delivered"
