# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own ScheduleMessageService, in a JVM, beside the reference and ``LevelStore``: one
random history of three stores, at one clock, which Java is told too (`SetClock.java`).

Java's levels look ten times a second of the machine's time, each in a thread of its own. So Java
is told the time at the end of a step, and rests. Then what each level delivered is equal, in
order. `delayOffset.json` is equal to the byte in 4.9, in 5.x its table. Java's disk never refuses.
"""

import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from legacy_levels.delay_offsets import read_delay_offsets
from message_store import AfterMs, AtLevel, Due
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import LEVEL_TOPIC
from tests.independent.raw_files import commit_log_records, read_range
from tests.interop.witness import Witness, each_version
from tests.legacy_levels.test_against_reference import (
    DAMAGES,
    HALF,
    LEVELS,
    SMALL,
    Against55,
    AgainstReference,
    AsyncAgainst49,
    AsyncAgainst55,
    Fact,
    fact,
)

_OF_THE_WHEEL = 1 << 16, 604_740, 1_000
"""A broker of 5.x has one too; no message of these histories goes there."""


def in_any_order(known: Fact) -> Fact:
    """A delivery with its properties in order: Java has a hash map for them."""
    fields = dict(known)
    fields["properties_text"] = sorted(fields["properties_text"].split(b"\x02"))
    return tuple(fields.items())


class WithJava(AgainstReference):
    """The machine of the reference, and Java."""

    witness: ClassVar[Witness]

    def __init__(self) -> None:
        self.kills = self.poisons = self.scheduled_end = 0
        self.is_open = self.is_followed = False
        super().__init__()

    # --- Java's store -----------------------------------------------------------------------------

    @property
    def java(self) -> Path:
        return self.folder / f"java-{self.kills}"

    @property
    def roots(self) -> tuple[Path, ...]:
        return (*super().roots, self.java)

    def open(self) -> None:
        super().open()
        sizes = SMALL.commit_log_file_bytes, SMALL.queue_file_bytes
        levels = str(self.is_async).lower(), LEVELS.text().replace(" ", ",")
        self.witness.ask("set", self.clock.now_ms())
        self.witness.ask("open", self.java, *sizes, *levels, *_OF_THE_WHEEL)
        self.is_open = True
        self.flush()  # Java saves what it corrected only when it is told to

    def rest(self) -> None:
        """Let Java do all that it does at this time; at each poison a look of 5.x ends."""
        self.witness.ask("set", self.clock.now_ms())
        self.witness.ask("rest", 2 + self.poisons)

    def close(self) -> None:
        super().close()
        self.rest()
        self.witness.ask("close")
        self.is_open = False

    def kill(self) -> None:
        """What a kill leaves is copied while Java lives; the rest of that life counts no more."""
        super().kill()
        left = self.java
        self.kills += 1
        shutil.copytree(left, self.java)
        self.witness.ask("close")

    def in_log(self, root: Path) -> Iterator[StoredMessage]:
        log = root / "commitlog"
        for placed in commit_log_records(log):
            place = placed.commit_log_offset, placed.size_bytes
            data = read_range(log, SMALL.commit_log_file_bytes, *place)
            yield decode_message_at(memoryview(data))

    # --- steps ------------------------------------------------------------------------------------

    def schedule(
        self, dues: list[Due], topic: str, count: int, queue_id: int, pause_ms: int
    ) -> None:
        """In a broker a level is all that a message may wait for."""
        super().schedule(dues, topic, count, queue_id, pause_ms)
        for message in self.in_log(self.roots[1]):
            if message.commit_log_offset >= self.scheduled_end and message.topic == LEVEL_TOPIC:
                self.witness.ask("set", message.store_timestamp_ms)
                self.witness.put(message)
                self.scheduled_end = message.commit_log_offset + 1

    def the_clock_is_set_back(self, step_ms: int) -> None:
        """What lies too far ahead comes early then: how far, each look says."""
        super().the_clock_is_set_back(step_ms)
        self.is_followed = True
        self.let_time_pass(100)
        self.is_followed = False

    def look(self) -> None:
        super().look()
        if self.is_followed:
            self.rest()

    def a_record_is_damaged(self, number: int, damage: bytes) -> None:
        self.poisons += self.dialect is not Dialect.ROCKETMQ_4_9
        super().a_record_is_damaged(number, damage)

    # --- what holds -------------------------------------------------------------------------------

    def compare(self) -> None:
        super().compare()
        if not self.is_open:
            return
        self.rest()
        theirs: dict[int, list[Fact]] = defaultdict(list)
        for message in self.in_log(self.java):
            if message.topic != LEVEL_TOPIC:
                theirs[self.level_of[message.body]].append(in_any_order(fact(message)))
        reference = self.delivered[1]
        for level in sorted(theirs.keys() | reference.keys()):
            assert theirs[level] == [*map(in_any_order, reference[level])], level

    def compare_offset_files(self) -> None:
        super().compare_offset_files()
        if self.is_open:
            self.rest()
            self.witness.ask("flush")
        java, reference = self.java, self.roots[1]
        if self.dialect is Dialect.ROCKETMQ_4_9:
            names = [root / "config" / "delayOffset.json" for root in (java, reference)]
            assert names[0].read_bytes() == names[1].read_bytes()
        else:
            tables = [dict(read_delay_offsets(root).offsets) for root in (java, reference)]
            assert tables[0] == tables[1]


class AsyncWithJava(WithJava, AsyncAgainst49):
    pass


class WithJava55(WithJava, Against55):
    pass


class AsyncWithJava55(WithJava55, AsyncAgainst55):
    pass


def schedule(machine: WithJava, dice: random.Random) -> None:
    kinds: list[Due] = [AtLevel(dice.randint(1, 5)), AfterMs(dice.randint(1, 60_000))]
    machine.schedule(
        dues=dice.choices(kinds, k=dice.randint(1, 3)),
        topic=dice.choice(["orders", "payments", HALF]),
        count=dice.randint(1, 4),
        queue_id=dice.randint(0, 1),
        pause_ms=dice.choice([0, 1_500, 4_500]),
    )


def step(machine: WithJava, dice: random.Random) -> None:
    """One of the machine's rules; an end, which takes Java seconds, is rare."""
    chance = dice.randrange(16)
    if chance < 7:
        schedule(machine, dice)
    elif chance < 11:
        machine.let_time_pass(step_ms=dice.randint(100, 70_000))
    elif chance == 11:
        machine.the_clock_is_set_back(step_ms=dice.randint(1, 70_000))
    elif chance == 12:
        machine.flush()
    elif chance == 13:
        machine.end_and_reopen(is_kill=dice.random() < 0.5)
    elif chance == 14:
        levels = dice.sample(range(1, 7), dice.randint(1, 4))
        machine.somebody_writes_offsets({level: dice.randint(0, 12) for level in levels})
    elif dice.random() < 0.5:
        machine.an_entry_is_damaged(dice.randint(1, 4), dice.randrange(10**6))
    elif machine.made:
        machine.a_record_is_damaged(dice.randrange(10**6), dice.choice([*DAMAGES]))


def live(machine: WithJava, dice: random.Random) -> None:
    """A history of the machine, often with poison, and with a kill near its end."""
    machine.begin(millisecond=dice.randrange(1_000))
    for _ in range(10):
        step(machine, dice)
    schedule(machine, dice)
    if dice.random() < 0.5:
        machine.schedule([AtLevel(dice.randint(1, 4))], "orders", 3, queue_id=0, pause_ms=0)
        machine.a_record_is_damaged(machine.made - 2, b"REAL_TOPIC")  # the second of them
    machine.let_time_pass(step_ms=dice.randint(100, 5_000))
    machine.end_and_reopen(is_kill=True)
    machine.teardown()


@pytest.fixture(scope="module")
def of_4_9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with Witness("4.9.7", "Levels", tmp_path_factory.mktemp("java")) as WithJava.witness:
        yield


@pytest.fixture(scope="module", params=each_version("5.5.0", "5.5.1"))
def of_5_5(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with Witness(request.param, "Wheel", tmp_path_factory.mktemp("java")) as WithJava55.witness:
        yield


@pytest.mark.interop("4.9.7")
@pytest.mark.nightly
@pytest.mark.usefixtures("of_4_9")
@pytest.mark.parametrize("machine", [WithJava, AsyncWithJava])
@pytest.mark.parametrize("_life", range(3))
def test_java_4_9_does_what_the_reference_does(
    machine: type[WithJava], _life: int, seed: int
) -> None:
    live(machine(), random.Random(seed))


@pytest.mark.nightly
@pytest.mark.usefixtures("of_5_5")
@pytest.mark.parametrize("machine", [WithJava55, AsyncWithJava55])
@pytest.mark.parametrize("_life", range(3))
def test_java_5_5_does_what_the_reference_does(
    machine: type[WithJava], _life: int, seed: int
) -> None:
    live(machine(), random.Random(seed))
