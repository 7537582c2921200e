# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own TimerMessageStore, in a JVM, beside the reference and ``WheelStore``: random
histories of two stores, and then one of the reference's is carried on by all three.

Java cannot be told what time it is. So the histories are of the last quarter of an hour, and all
that waits is overdue for Java. What it delivers then is equal, each message once; the order in a
slot, and when a message rolls, depend on when a broker looks.
"""

import random
import shutil
import time
from pathlib import Path

import attrs
import pytest

from tests.independent.raw_records import RawRecord
from tests.interop.witness import run_witness
from tests.timer_wheel.reference import test_oracle
from tests.timer_wheel.reference.test_oracle import (
    LOG_FILE_BYTES,
    SMALL,
    TIMER_FILE_BYTES,
    PlainMachine,
    WheelMachine,
    records,
)

VERSION = "5.5.0"
STORES = 6
"""One after the other in a JVM: each is most of a broker."""
AGO_MS = 900_000
LONGEST_MS = 75_000
QUEUES = [Path("consumequeue") / "orders" / queue_id for queue_id in ("0", "1")]
Told = tuple[object, ...]


def told(record: RawRecord) -> Told:
    """What of a delivery does not depend on when a broker looked at it."""
    kept = {
        name: value for name, value in record.effective.items() if not name.startswith("TIMER_")
    }
    return (record.topic, record.queue_id, record.body, record.flag, record.born_timestamp_ms,
            record.reconsume_times, *sorted(kept.items()))  # fmt: skip


@attrs.define
class History:
    """What happened to two stores, and what Java makes of the reference's."""

    seed: int
    machine: WheelMachine
    before: dict[Path, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, seed: int) -> "History":
        """Some steps of the machine, as a seed draws them; nothing is open."""
        dice = random.Random(seed)
        machine = (PlainMachine if seed % 2 else WheelMachine)()
        for _ in range(dice.randint(6, 20)):
            step(machine, dice)
        machine.twins.close()
        return cls(seed, machine)

    @property
    def reference(self) -> Path:
        return self.machine.twins.paths[1]

    @property
    def java(self) -> Path:
        return self.reference.with_name("java")

    def copy(self) -> None:
        """The store that Java carries on."""
        shutil.copytree(self.reference, self.java, ignore=shutil.ignore_patterns("delaywheel"))
        self.before = {queue: len(records(self.java, queue)) for queue in QUEUES}

    def carry_on(self) -> None:
        """Both others do the same, and agree."""
        self.machine.twins.open()
        self.machine.advance([1_000] * (LONGEST_MS // 1_000))
        self.machine.twins.close()
        self.machine.require_same_files()

    def delivered(self, root: Path) -> list[Told]:
        new = (record for queue in QUEUES for record in records(root, queue)[self.before[queue] :])
        return sorted(map(told, new), key=repr)

    @property
    def wanted(self) -> int:
        return sum(len(records(self.reference, queue)) for queue in QUEUES)


def step(machine: WheelMachine, dice: random.Random) -> None:
    """One of the machine's rules."""
    chance = dice.randrange(6)
    if chance < 3:
        machine.schedule(
            ahead_ms=dice.randint(1, 60_000),
            is_round=dice.random() < 0.5,
            together=dice.randint(1, 3),
            queue_id=dice.randint(0, 1),
            size=dice.randint(1, 40),  # 5.x puts no message with an empty body: it would be lost
            tag=dice.choice([None, "A", "übung"]),
        )
    elif chance == 3:
        machine.cancel(dice.randrange(1 << 30))
    elif chance == 4:
        machine.advance([dice.randint(1, 1_000) for _ in range(dice.randint(0, 25))])
    else:
        machine.reopen(killed=dice.random() < 0.5)


def run_java(histories: list[History], scratch: Path) -> None:
    """RocketMQ delivers from all of their stores."""
    sizes = LOG_FILE_BYTES, SMALL.queue_file_bytes, TIMER_FILE_BYTES
    stores = [f"{each.java}={each.machine.window_slots}={each.wanted}" for each in histories]
    run_witness(VERSION, "Wheel", scratch, *sizes, "orders", *stores)


@pytest.mark.interop(VERSION)
@pytest.mark.nightly
@pytest.mark.parametrize("first_seed", range(0, 3 * STORES, STORES))
def test_java_delivers_what_the_reference_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_seed: int
) -> None:
    start_ms = time.time_ns() // 1_000_000 - AGO_MS
    monkeypatch.setattr(test_oracle, "START_MS", start_ms - start_ms % 1_000)
    histories = [History.of(seed) for seed in range(first_seed, first_seed + STORES)]
    try:
        for each in histories:
            each.copy()
            each.carry_on()
        run_java(histories, tmp_path)
        for each in histories:
            assert each.delivered(each.java) == each.delivered(each.reference), each.seed
        assert sum(len(each.delivered(each.java)) for each in histories) > 3 * STORES
    finally:
        for each in histories:
            each.machine.folder.cleanup()
