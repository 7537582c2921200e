# SPDX-License-Identifier: Apache-2.0
"""``WheelStore`` and the reference wheel, driven alike, leave the same bytes.

Both get the same messages and the same times, as a broker would: what comes in is placed at once,
and each slot is taken when it is over. Without rolls the files are equal, byte for byte, but for
`timercheck` and `timermetrics`, which name versions and moments. With rolls a broker's order in a
slot is that of placing, ours that of scheduling: then everything is compared by its queue offset.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from message_store import AtMs, Cancellation, ManualClock, Message, Receipt
from message_store.format.dialect import Dialect
from message_store.writing.settings import StoreSettings
from tests.independent.raw_files import queue_units, read_timer_check, record_at
from tests.independent.raw_records import RawRecord
from timer_wheel import WheelStore
from timer_wheel.format.checkpoint import (
    TIMER_CHECKPOINT_NAME,
    TimerCheckpoint,
    encode_timer_checkpoint,
)
from timer_wheel.format.timer_log import TIMER_BLANK, TIMER_UNIT
from timer_wheel.reference.store import ReferenceWheelStore
from timer_wheel.wheel.settings import WheelSettings

START_MS = 1_700_000_000_000
LOG_FILE_BYTES = 1 << 16
TIMER_FILE_BYTES = 5 * 52 + 20
SMALL = StoreSettings(
    commit_log_file_bytes=LOG_FILE_BYTES,
    queue_file_bytes=20 * 50,
    timer_log_file_bytes=TIMER_FILE_BYTES,
    repeat_after_kill=True,
)
TIMERS = Path("consumequeue") / "rmq_sys_wheel_timer" / "0"
Row = tuple[str | None, int]


def begun(path: Path) -> Path:
    """A store's directory whose hand is at the start: a new wheel begins a week before."""
    (path / "config").mkdir(parents=True)
    check = encode_timer_checkpoint(TimerCheckpoint(last_read_time_ms=START_MS))
    (path / "config" / TIMER_CHECKPOINT_NAME).write_bytes(check)
    return path


def neutral(record: RawRecord) -> RawRecord:
    """The record without the places that it and its first record have in the log."""
    return attrs.evolve(record, commit_log_offset=0, prepared_transaction_offset=0, queue_offset=0)


class Twins:
    """The two engines on directories of their own, at one clock."""

    precision_ms = 1_000

    def __init__(self, path: Path, window_slots: int, dialect: Dialect) -> None:
        self.clock = ManualClock(START_MS)
        self.paths = [begun(path / "fast"), begun(path / "reference")]
        self._dialect = dialect
        self._rules = WheelSettings.of_broker(
            "5.5.0", roll_window_slots=window_slots, precision_ms=self.precision_ms
        )
        self.open()

    def open(self) -> None:
        with_rules: Any = {"dialect": self._dialect, "settings": SMALL, "rules": self._rules}
        fast, slow = self.paths
        self.fast = WheelStore.open(fast, clock=self.clock, **with_rules)
        self.slow = ReferenceWheelStore.open(slow, clock=self.clock, **with_rules)

    @property
    def engines(self) -> "tuple[WheelStore, ReferenceWheelStore]":
        return self.fast, self.slow

    def schedule(self, message: Message, due_ms: int) -> Receipt:
        ours, theirs = [each.schedule(message, AtMs(due_ms)) for each in self.engines]
        assert (ours.promised_ms, ours.unique_key) == (theirs.promised_ms, theirs.unique_key)
        self.place()
        return ours

    def place(self) -> None:
        """Let both take in what the queue holds, as a broker does within a tenth of a second."""
        for each in self.engines:
            each.next_due_ms()

    def cancel(self, receipt: Receipt) -> Cancellation:
        ours, theirs = [each.cancel(receipt.handle) for each in self.engines]
        assert ours is theirs
        self.place()
        return ours

    def advance(self) -> tuple[list[Row], list[Row]]:
        now_ms = self.clock.now_ms()
        ours, theirs = [
            [(each.message.unique_key, each.promised_ms) for each in engine.advance(now_ms)]
            for engine in self.engines
        ]
        return ours, theirs

    def reopen(self, *, killed: bool) -> None:
        for each in self.engines:
            if killed:
                each.flush()
                each.abandon()
            else:
                each.close()
        self.open()

    def close(self) -> None:
        for each in self.engines:
            each.close()


def records(path: Path, queue: Path) -> list[RawRecord]:
    units = queue_units(path / queue)
    return [record_at(path / "commitlog", LOG_FILE_BYTES, unit.commit_log_offset) for unit in units]


def units_by_queue_offset(path: Path) -> list[tuple[int, ...]]:
    """All units of the timer log; in place of a record's offset that of its queue entry."""
    places = [unit.commit_log_offset for unit in queue_units(path / TIMERS)]
    number = {offset: index for index, offset in enumerate(places)}
    found = []
    for file in sorted((path / "timerlog").iterdir()):
        content = file.read_bytes()
        for at in range(0, len(content) - TIMER_UNIT.size - TIMER_BLANK.size + 1, TIMER_UNIT.size):
            fields = TIMER_UNIT.decode_at(content, at)
            if fields["size_bytes"] == TIMER_UNIT.size:
                fields["commit_log_offset"] = number[fields["commit_log_offset"]]
                found.append((int(file.name) + at, *fields.values()))
    return found


WINDOW_SLOTS: Final = 12
AT_BORDERS: Final = [
    1000 * (slots + 1)
    for slots in (0, 1, WINDOW_SLOTS - 1, WINDOW_SLOTS, 4 * WINDOW_SLOTS // 3 - 1)
] + [1000 * (4 * WINDOW_SLOTS // 3 + 1), 1000 * (4 * WINDOW_SLOTS // 3 + 2)]
"""Delays at which a message begins to roll, and to be parked a whole window ahead."""


class WheelMachine(RuleBasedStateMachine):
    """Any steps of a broker's life, with messages that roll where the window is short."""

    window_slots = WINDOW_SLOTS
    dialect = Dialect.ROCKETMQ_5_5
    twins_of = Twins

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.twins = self.twins_of(Path(self.folder.name), self.window_slots, self.dialect)
        self.receipts: list[Receipt] = []
        self.delivered: tuple[list[Row], list[Row]] = ([], [])
        self.count = 0

    @rule(
        ahead_ms=st.integers(1, 60_000) | st.sampled_from(AT_BORDERS),
        is_round=st.booleans(),
        together=st.integers(1, 3),
        queue_id=st.integers(0, 1),
        size=st.integers(0, 40),
        tag=st.sampled_from([None, "A", "übung"]),
    )
    def schedule(
        self,
        ahead_ms: int,
        is_round: bool,
        together: int,
        queue_id: int,
        size: int,
        tag: str | None,
    ) -> None:
        now_ms, slot_ms = self.twins.clock.now_ms(), self.twins.precision_ms
        due_ms = now_ms + ahead_ms
        due_ms = max(due_ms // slot_ms * slot_ms, now_ms + 1) if is_round else due_ms
        for _ in range(together):
            key = f"K{self.count}"
            message = Message("orders", b"x" * size, tag, queue_id=queue_id, unique_key=key)
            self.count += 1
            receipt = self.twins.schedule(message, due_ms)
            ahead_slots = receipt.promised_ms // slot_ms - 1 - now_ms // slot_ms
            if ahead_slots < self.window_slots:
                self.receipts.append(receipt)  # a broker rolls what was cancelled, and we do not

    @rule(choice=st.integers(0, 1 << 30))
    def cancel(self, choice: int) -> None:
        if self.receipts:
            self.twins.cancel(self.receipts[choice % len(self.receipts)])

    @rule(steps=st.lists(st.integers(1, 1000), max_size=25))
    def advance(self, steps: list[int]) -> None:
        for step_ms in steps:
            self.twins.clock.tick(step_ms)
            ours, theirs = self.twins.advance()
            self.require_same_order(ours, theirs)
            self.delivered[0].extend(ours)
            self.delivered[1].extend(theirs)

    def require_same_order(self, ours: list[Row], theirs: list[Row]) -> None:
        assert Counter(ours) == Counter(theirs)
        assert [due_ms for _, due_ms in ours] == [due_ms for _, due_ms in theirs]

    @rule(killed=st.booleans())
    def reopen(self, killed: bool) -> None:
        self.twins.reopen(killed=killed)

    @invariant()
    def the_same_waits(self) -> None:
        ours, theirs = [
            Counter(
                (each.unique_key, each.topic, each.queue_id, each.due_ms, each.size_bytes)
                for each in engine.pending()
            )
            for engine in self.twins.engines
        ]
        assert ours == theirs

    def teardown(self) -> None:
        try:
            self.twins.close()
            self.require_same_files()
        finally:
            self.folder.cleanup()

    def require_same_files(self) -> None:
        """The same units by their queue offsets, and the same records of each queue."""
        fast, slow = self.twins.paths
        if (slow / "timerlog").exists():
            assert units_by_queue_offset(fast) == units_by_queue_offset(slow)
        ours, theirs = [[*map(neutral, records(path, TIMERS))] for path in (fast, slow)]
        assert ours == theirs
        for queue_id in ("0", "1"):
            queue = Path("consumequeue") / "orders" / queue_id
            if (slow / queue).exists():
                ours, theirs = [[*map(neutral, records(path, queue))] for path in (fast, slow)]
                assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
        hands = [
            read_timer_check(path / "config" / TIMER_CHECKPOINT_NAME) for path in self.twins.paths
        ]
        assert hands[0].last_read_time_ms == hands[1].last_read_time_ms


class PlainMachine(WheelMachine):
    """Without rolls: the same order, and the same bytes."""

    window_slots = 604_740

    def require_same_order(self, ours: list[Row], theirs: list[Row]) -> None:
        assert ours == theirs

    def require_same_files(self) -> None:
        super().require_same_files()
        fast, slow = self.twins.paths
        for name in ("commitlog", "consumequeue", "timerlog"):
            names = sorted(file.relative_to(fast) for file in (fast / name).rglob("*"))
            assert names == sorted(file.relative_to(slow) for file in (slow / name).rglob("*"))
            for file in names:
                if (fast / file).is_file():
                    assert (fast / file).read_bytes() == (slow / file).read_bytes(), file


class OlderMachine(PlainMachine):
    """Delete markers as 5.3 reads them."""

    dialect = Dialect.ROCKETMQ_5_3


def live(machine: type[WheelMachine], count: int) -> None:
    """Run so many lives of a machine. One that fails is not made smaller: that takes minutes."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_messages_roll_alike() -> None:
    live(WheelMachine, 8)


def test_without_rolls_every_byte_is_the_same() -> None:
    live(PlainMachine, 8)


@pytest.mark.check
@pytest.mark.parametrize("machine", [WheelMachine, PlainMachine, OlderMachine])
@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.nightly)])
def test_many_lives(machine: type[WheelMachine], count: int) -> None:
    live(machine, count)
