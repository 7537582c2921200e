# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own TimerMessageStore, in a JVM, beside the reference and ``WheelStore``: one random
history of three stores, at one clock, which Java is told too (`SetClock.java`).

Java rests before anything else happens. Then its timer log, its queues, its slots and what its
`timercheck` says are the reference's; so is each record, but for the order of its properties. A
broker has three threads that put, which leaves the order in a slot open. Here Java has one.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from message_store import Cancellation, Message, Receipt
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_DELETE_UNIQUE_KEY, TIMER_TOPIC
from message_store.writing.queue import LiveQueue
from tests.independent.raw_files import queue_units, read_timer_check, segments, wheel_slots
from tests.independent.raw_records import RawRecord
from tests.interop.witness import Witness, each_version
from tests.timer_wheel.reference.test_oracle import (
    AT_BORDERS,
    LOG_FILE_BYTES,
    SMALL,
    TIMER_FILE_BYTES,
    TIMERS,
    PlainMachine,
    Twins,
    WheelMachine,
    begun,
    records,
)
from timer_wheel.format.checkpoint import TIMER_CHECKPOINT_NAME

AHEAD_MS = range(1_000, 60_000, 1_700)
ORDERS = [Path("consumequeue") / "orders" / queue_id for queue_id in ("0", "1")]


def decided(record: RawRecord) -> RawRecord:
    """The record without what we add for ourselves, its properties in order: Java has a hash map
    for them.
    """
    properties = b"\x02".join(sorted(record.properties.split(b"\x02")))
    is_marker = TIMER_DELETE_UNIQUE_KEY in record.effective
    flag = 0 if is_marker else record.flag
    return attrs.evolve(record, properties=properties, prepared_transaction_offset=0, flag=flag)


class TwinsAndJava(Twins):
    """The two engines and RocketMQ's, each on a directory of its own."""

    witness: Witness

    def __init__(self, path: Path, window_slots: int, dialect: Dialect) -> None:
        self.java = begun(path / "java-0")
        self.window_slots = window_slots
        self.due_ms: dict[str, int] = {}
        super().__init__(path, window_slots, dialect)

    def open(self) -> None:
        super().open()
        sizes = LOG_FILE_BYTES, SMALL.queue_file_bytes
        wheel = TIMER_FILE_BYTES, self.window_slots, self.precision_ms
        self.witness.ask("set", self.clock.now_ms())
        self.witness.ask("open", self.java, *sizes, "false", "1s,2s", *wheel)
        self.rest()

    def rest(self) -> None:
        """Let Java do all that it does at this time; then the same is in its files."""
        self.witness.ask("rest", 1)
        reference = self.paths[1]
        for queue in (TIMERS, *ORDERS):
            assert queue_units(self.java / queue) == queue_units(reference / queue), queue
        for file in segments(reference / "timerlog"):
            name = Path("timerlog") / file.name
            assert (self.java / name).read_bytes() == (reference / name).read_bytes(), name

    @property
    def waiting(self) -> LiveQueue:
        return self.slow.live.queue(TIMER_TOPIC, 0)

    def last_waiting(self) -> StoredMessage:
        queue = self.waiting
        [unit] = queue.units(queue.max_offset - 1, queue.max_offset)
        return self.slow.live.log.record(int(unit["commit_log_offset"]), int(unit["size_bytes"]))

    def schedule(self, message: Message, due_ms: int) -> Receipt:
        receipt = super().schedule(message, due_ms)
        self.due_ms[receipt.unique_key] = due_ms
        self.witness.put(self.last_waiting(), due_ms)
        self.rest()
        return receipt

    def cancel(self, receipt: Receipt) -> Cancellation:
        due_ms = self.due_ms[receipt.unique_key]
        if due_ms <= self.clock.now_ms():
            return Cancellation.ALREADY_DELIVERED  # a broker recalls nothing that is due
        before = self.waiting.max_offset
        cancellation = super().cancel(receipt)
        if self.waiting.max_offset > before:  # one marker is enough
            self.witness.put(self.last_waiting(), due_ms)
            self.rest()
        return cancellation

    def advance(self) -> tuple[list[tuple[str | None, int]], list[tuple[str | None, int]]]:
        delivered = super().advance()
        self.witness.ask("set", self.clock.now_ms())
        self.rest()
        return delivered

    def reopen(self, *, killed: bool) -> None:
        self.end(killed=killed)
        super().reopen(killed=killed)

    def close(self) -> None:
        self.end(killed=False)
        super().close()

    def end(self, *, killed: bool) -> None:
        """Java's end. What a kill leaves is copied while Java lives; the rest counts no more."""
        for _ in range(2):  # the flush position is that of the round before
            self.witness.ask("flush")
            self.slow.timers.flush()
        self.require_same_store()
        left = self.java
        if killed:
            number = int(left.name.partition("-")[2]) + 1
            self.java = left.with_name(f"java-{number}")
            shutil.copytree(left, self.java)
        self.witness.ask("close")

    def require_same_store(self) -> None:
        reference, java = self.paths[1], self.java
        slots = [[*wheel_slots(path / "timerwheel")] for path in (java, reference)]
        assert slots[0] == slots[1]
        for queue in (TIMERS, *ORDERS):
            theirs, ours = [[*map(decided, records(path, queue))] for path in (java, reference)]
            assert theirs == ours, queue
        hands = [
            attrs.astuple(read_timer_check(path / "config" / TIMER_CHECKPOINT_NAME))[:4]
            for path in (java, reference)
        ]
        assert hands[0] == hands[1], hands  # not when, and how often, it was saved


class WithJava(WheelMachine):
    """The machine of the reference, and Java."""

    twins_of = TwinsAndJava


class FineTwinsAndJava(TwinsAndJava):
    precision_ms = 100


class FineWithJava(WheelMachine):
    """With slots of a tenth of a second."""

    twins_of = FineTwinsAndJava


class PlainWithJava(PlainMachine):
    """Without rolls."""

    twins_of = TwinsAndJava


def step(machine: WheelMachine, dice: random.Random) -> None:
    """One of the machine's rules; an end, which takes Java seconds, is rare."""
    chance, slot_ms = dice.randrange(10), machine.twins.precision_ms
    if chance < 5:
        machine.schedule(
            ahead_ms=dice.choice([*AHEAD_MS, *AT_BORDERS]) * slot_ms // 1_000
            - dice.choice([0, dice.randrange(slot_ms)]),
            is_round=dice.random() < 0.5,
            together=dice.randint(1, 3),
            queue_id=dice.randint(0, 1),
            size=dice.randint(1, 40),  # 5.x puts no message with an empty body: it would be lost
            tag=dice.choice([None, "A", "übung"]),
        )
    elif chance < 7:
        machine.cancel(dice.randrange(1 << 30))
    elif chance < 9:
        machine.advance([dice.randint(1, slot_ms) for _ in range(dice.randint(1, 8))])
    else:
        machine.reopen(killed=dice.random() < 0.5)


def live(machine: WheelMachine, dice: random.Random) -> None:
    """A history of the machine, in which some of what waits is due and some has rolled."""
    try:
        for _ in range(12):
            step(machine, dice)
        machine.advance([machine.twins.precision_ms] * 15)
        machine.reopen(killed=dice.random() < 0.5)
        machine.advance([machine.twins.precision_ms] * 5)
    finally:
        machine.teardown()


@pytest.fixture(scope="module", params=each_version("5.5.0", "5.5.1"))
def witness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with Witness(request.param, "Wheel", tmp_path_factory.mktemp("java")) as TwinsAndJava.witness:
        yield


@pytest.mark.nightly
@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize("machine", [WithJava, PlainWithJava, FineWithJava])
@pytest.mark.parametrize("_life", range(2))
def test_java_does_what_the_reference_does(
    machine: type[WheelMachine], _life: int, seed: int
) -> None:
    live(machine(), random.Random(seed))
