# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own ScheduleMessageService, in a JVM, beside the reference and ``LevelStore``: random
histories of two stores, and then one of the reference's is carried on by all three.

Java cannot be told what time it is. So all that waits is overdue by the machine's clock, and by the
others' clocks in the end. What a level delivers is equal then, and delayOffset.json to the byte.
"""

import random
import shutil
from collections import defaultdict
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtLevel
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import LEVEL_TOPIC
from tests.independent.raw_files import commit_log_records, read_range
from tests.interop.witness import run_witness
from tests.legacy_levels.test_against_reference import (
    DAMAGES,
    HALF,
    LEVELS,
    SMALL,
    AgainstReference,
    AsyncAgainst49,
    Fact,
    fact,
)

VERSION = "4.9.7"
TOGETHER = 24
"""So many stores are carried on by one JVM."""
LONGER_THAN_ANY_LEVEL_MS = 120_000


def in_any_order(message: StoredMessage) -> Fact:
    """What is decided of a delivery; Java writes properties in the order of a hash map."""
    text = b"\x02".join(sorted(message.properties_text.split(b"\x02")))
    return fact(attrs.evolve(message, properties_text=text))


@attrs.define
class History:
    """What happened to two stores, and what Java makes of the reference's."""

    seed: int
    machine: AgainstReference
    log_end: int = 0

    @classmethod
    def of(cls, seed: int) -> "History":
        """Some steps of the machine, as a seed draws them; nothing is open."""
        dice = random.Random(seed)
        machine = (AsyncAgainst49 if seed % 2 else AgainstReference)()
        machine.begin(millisecond=dice.randrange(1_000))
        for _ in range(dice.randint(3, 10)):
            step(machine, dice)
        schedule(machine, dice)
        if dice.random() < 0.5:
            machine.a_record_is_damaged(dice.randrange(10**6), dice.choice([*DAMAGES]))
        machine.close()
        return cls(seed, machine)

    @property
    def reference(self) -> Path:
        return self.machine.roots[1]

    @property
    def java(self) -> Path:
        return self.machine.folder / ("java-async" if self.machine.is_async else "java")

    def copy(self) -> None:
        """The store that Java carries on."""
        shutil.copytree(self.reference, self.java, ignore=shutil.ignore_patterns("delaywheel"))
        placed = [*commit_log_records(self.java / "commitlog")]
        self.log_end = placed[-1].commit_log_offset + placed[-1].size_bytes

    def carry_on(self) -> None:
        """Both others do the same, and agree."""
        self.machine.open()
        self.machine.let_time_pass(LONGER_THAN_ANY_LEVEL_MS)
        self.machine.close()
        self.machine.compare()
        self.machine.compare_offset_files()

    @property
    def wanted(self) -> int:
        """How many messages are in the reference's topics in the end."""
        placed = commit_log_records(self.reference / "commitlog")
        return sum(each.record.topic != LEVEL_TOPIC for each in placed)

    def delivered(self, root: Path) -> dict[int, list[Fact]]:
        """What was delivered from each level since, in order."""
        found: dict[int, list[Fact]] = defaultdict(list)
        log = root / "commitlog"
        for placed in commit_log_records(log):
            offset = placed.commit_log_offset
            if offset < self.log_end or placed.record.topic == LEVEL_TOPIC:
                continue
            data = read_range(log, SMALL.commit_log_file_bytes, offset, placed.size_bytes)
            message = decode_message_at(memoryview(data))
            found[self.machine.level_of[message.body]].append(in_any_order(message))
        return dict(found)

    def offset_files(self) -> tuple[bytes, bytes]:
        roots = self.java, self.reference
        one, other = ((root / "config" / "delayOffset.json").read_bytes() for root in roots)
        return one, other


def schedule(machine: AgainstReference, dice: random.Random) -> None:
    kinds = [AtLevel(dice.randint(1, 5)), AfterMs(dice.randint(0, 60_000))]
    machine.schedule(
        dues=dice.choices(kinds, k=dice.randint(1, 3)),
        topic=dice.choice(["orders", "payments", HALF]),
        count=dice.randint(1, 4),
        queue_id=dice.randint(0, 1),
        pause_ms=dice.choice([0, 1_500, 4_500]),
    )


def step(machine: AgainstReference, dice: random.Random) -> None:
    """One of the machine's rules."""
    chance = dice.randrange(8)
    if chance < 3:
        schedule(machine, dice)
    elif chance == 3:
        machine.let_time_pass(step_ms=dice.randint(100, 70_000))
    elif chance == 4:
        machine.end_and_reopen(is_kill=dice.random() < 0.5)
    elif chance == 5:
        levels = dice.sample(range(1, 7), dice.randint(1, 4))
        machine.somebody_writes_offsets({level: dice.randint(0, 12) for level in levels})
    elif chance == 6:
        machine.an_entry_is_damaged(dice.randint(1, 4), dice.randrange(10**6))
    elif machine.made:
        machine.a_record_is_damaged(dice.randrange(10**6), dice.choice([*DAMAGES]))


def run_java(histories: list[History], scratch: Path) -> None:
    """RocketMQ delivers from all of their stores."""
    sizes = SMALL.commit_log_file_bytes, SMALL.queue_file_bytes
    stores = [f"{each.java}={each.wanted}" for each in histories]
    run_witness(VERSION, "Levels", scratch, LEVELS.text(), *sizes, *stores)


@pytest.mark.interop(VERSION)
@pytest.mark.nightly
@pytest.mark.parametrize("first_seed", range(0, 3 * TOGETHER, TOGETHER))
def test_java_delivers_what_the_reference_delivers(tmp_path: Path, first_seed: int) -> None:
    histories = [History.of(seed) for seed in range(first_seed, first_seed + TOGETHER)]
    try:
        for each in histories:
            each.copy()
            each.carry_on()
        run_java(histories, tmp_path)
        for each in histories:
            assert each.delivered(each.java) == each.delivered(each.reference), each.seed
            one, other = each.offset_files()
            assert one == other, each.seed
        assert sum(len(each.delivered(each.java)) for each in histories) > TOGETHER
    finally:
        for each in histories:
            shutil.rmtree(each.machine.folder)
