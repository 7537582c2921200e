# SPDX-License-Identifier: Apache-2.0
"""A cancel takes back what was scheduled before it and is pending, and its answer is about the
message of the receipt: whatever has the same key and time before it or after it.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store import AtMs, Cancellation, ManualClock, Message, Receipt
from message_store.base.errors import UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from message_store.writing.settings import StoreSettings
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.timer_due import FINEST_MS, HIERARCHY_PRECISIONS_MS
from timer_wheel.reading.ownership import index_path

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
STEPS = 40
SETTINGS = StoreSettings(commit_log_file_bytes=16 << 10, queue_file_bytes=1_000)
PENDING, CANCELLED, DELIVERED = "pending", "cancelled", "delivered"
ANSWERS = {
    PENDING: Cancellation.CANCELLED,
    CANCELLED: Cancellation.CANCELLED,
    DELIVERED: Cancellation.ALREADY_DELIVERED,
}


@attrs.define
class Twin:
    """One of many messages with few keys and times."""

    body: bytes
    receipt: Receipt
    width_ms: int
    fate: str = PENDING

    @property
    def named(self) -> tuple[str, int, int]:
        """What a delete marker names: slots of each width have out times of their own, and so has
        what was due at once in a tenth of a second.
        """
        unit_ms = 1 if self.width_ms else FINEST_MS
        return self.receipt.unique_key, self.width_ms, self.receipt.promised_ms // unit_ms


class History:
    """What happens to one store, and what it has to answer."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path, self.clock = path, ManualClock(START_MS)
        self.precision_ms = self.chance.choice(HIERARCHY_PRECISIONS_MS)
        self.twins: list[Twin] = []
        self.steps: list[str] = [f"seed {seed}, {self.precision_ms} ms"]
        self.times = [START_MS + 1_000, START_MS + 1_500, START_MS + 7_437, START_MS + 9 * HOUR_MS]
        self.store = self.opened(self.precision_ms)

    def opened(self, precision_ms: int) -> HierarchicalWheelStore:
        """The store, with promises so wide."""
        return HierarchicalWheelStore.open(
            self.path, clock=self.clock, precision_ms=precision_ms, settings=SETTINGS
        )

    def _expect(self, holds: bool, what: object) -> None:
        assert holds, "\n".join([*self.steps, str(what)])

    # --- steps ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        due_ms = self.chance.choice(self.times)
        for _ in range(self.chance.choice([1, 1, 2])):
            body = b"%d" % len(self.twins)
            message = Message("orders", body, unique_key=self.chance.choice("AB"))
            receipt = self.store.schedule(message, AtMs(due_ms))
            is_at_once = due_ms <= self.clock.now_ms()
            twin = Twin(body, receipt, 0 if is_at_once else self.precision_ms)
            self.twins.append(twin)
            self.steps[-1] += f" {twin}"

    def _cancel(self) -> None:
        if self.twins:
            self._ask(self.chance.choice(self.twins))

    def _ask(self, asked: Twin) -> None:
        by_handle = asked.fate is PENDING and self.chance.random() < 0.5
        answer = self.store.cancel(asked.receipt.handle if by_handle else asked.receipt)
        self.steps[-1] += f" {asked} {answer}" + " by handle" * by_handle
        self._expect(answer is ANSWERS[asked.fate], f"{answer} of {asked}")
        if by_handle:
            pending = [twin for twin in self.twins if twin.fate is PENDING]
            named = {twin.named for twin in pending if twin.receipt.handle == asked.receipt.handle}
            for twin in pending:
                if twin.named in named:
                    twin.fate = CANCELLED
        elif asked.fate is PENDING:
            asked.fate = CANCELLED

    def _advance(self) -> None:
        now_ms = self.clock.now_ms() + self.chance.choice([0, 0, 500, 5_000, 9 * HOUR_MS])
        came = sorted(each.message.body for each in self.store.advance(now_ms))
        self.steps[-1] += f" to {now_ms - START_MS}: {came}"
        due = [
            twin
            for twin in self.twins
            if twin.fate is PENDING and twin.receipt.promised_ms <= now_ms
        ]
        self._expect(came == sorted(twin.body for twin in due), f"not {due}")
        for twin in due:
            twin.fate = DELIVERED

    def _tick(self) -> None:
        self.clock.tick(self.chance.choice([1, 500, 1_000, 6_000, -400, -3_000]))
        self.steps[-1] += f" to {self.clock.now_ms() - START_MS}"

    def roll(self) -> None:
        """The oldest files are old, for once."""
        now_ms = self.clock.now_ms()
        self.store._index.place_queued()
        self.store._index.waiting.reach(now_ms)
        self.store._renewal._renew(self.store.live.log.end, now_ms)

    def lose_index(self) -> None:
        """The queue and the log have to tell everything."""
        for path in index_path(StoreRoot(self.path)).iterdir():
            path.unlink()

    def _reopen(self) -> None:
        if self.chance.random() < 0.5:
            self.store.close()
        else:
            self.store.abandon()
            self.steps[-1] += " killed"
        if self.chance.random() < 0.4:
            self.steps[-1] += " without index"
            self.lose_index()
        if self.chance.random() < 0.4:
            asked_ms = self.chance.choice(HIERARCHY_PRECISIONS_MS)
            try:
                self.store = self.opened(asked_ms)
            except UnsupportedStoreError:
                pass
            else:
                self.precision_ms = asked_ms
                self.steps[-1] += f" {asked_ms} ms"
                return
        self.store = self.opened(self.precision_ms)

    def step(self) -> None:
        """One more thing."""
        ways: dict[Callable[[], None], float] = {
            self._schedule: 6,
            self._cancel: 4,
            self._advance: 2,
            self._tick: 2,
            self.roll: 0.7,
            self._reopen: 2,
        }
        do = self.chance.choices([*ways], [*ways.values()])[0]
        self.steps.append(do.__name__)
        do()

    def finish(self) -> None:
        """What waits is what should; and then all comes, and every answer is known."""
        self.steps.append("finish")
        waits = sorted(each.commit_log_offset for each in self.store.pending())
        self._expect(len(waits) == sum(twin.fate is PENDING for twin in self.twins), waits)
        self.clock.tick(20 * HOUR_MS)
        self._advance()
        for twin in self.twins:
            self._ask(twin)
        self.store.close()


COUNTS = [
    4,
    pytest.param(20, marks=pytest.mark.check),
    pytest.param(400, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("end", ["open", "closed", "killed", "index lost"])
@pytest.mark.parametrize("is_rolled", [False, True], ids=["first record", "rolled"])
def test_a_marker_says_nothing_of_what_was_delivered_before_it(
    tmp_path: Path, end: str, is_rolled: bool
) -> None:
    """Equal messages of one time, to which a clock that was set right comes twice."""
    lived, due_ms = History(tmp_path, 1), START_MS + 9 * HOUR_MS
    twins = []
    for fate in (CANCELLED, DELIVERED, CANCELLED, PENDING):
        receipt = lived.store.schedule(Message("orders", b"", unique_key="K"), AtMs(due_ms))
        twins.append(Twin(b"", receipt, lived.precision_ms, fate))
        if is_rolled:
            lived.roll()
        if fate is CANCELLED:
            assert lived.store.cancel(receipt) is Cancellation.CANCELLED
        elif fate is DELIVERED:
            assert len(lived.store.advance(receipt.promised_ms)) == 1
    if end == "closed":
        lived.store.close()
    elif end != "open":
        lived.store.abandon()
    if end == "index lost":
        lived.lose_index()
    if end != "open":
        lived.store = lived.opened(lived.precision_ms)
    assert [lived.store.cancel(each.receipt) for each in twins[:3]] == [
        ANSWERS[each.fate] for each in twins[:3]
    ]
    assert len(lived.store.advance(due_ms + HOUR_MS)) == 1
    assert lived.store.cancel(twins[3].receipt) is Cancellation.ALREADY_DELIVERED
    lived.store.close()


@pytest.mark.parametrize("count", COUNTS)
def test_a_cancel_takes_what_lies_before_it_and_answers_of_its_message(
    tmp_path: Path, count: int, seed: int
) -> None:
    seeds = random.Random(seed)
    for number in range(count):
        lived = History(tmp_path / str(number), seeds.getrandbits(32))
        for _ in range(STEPS):
            lived.step()
        lived.finish()


def test_a_receipt_of_what_came_is_not_answered_by_a_cancel_in_other_slots(tmp_path: Path) -> None:
    clock, due_ms = ManualClock(START_MS), START_MS + 5_000
    message = Message("orders", b"", unique_key="K")
    with HierarchicalWheelStore.open(tmp_path, clock=clock, precision_ms=500) as store:
        came = store.schedule(message, AtMs(due_ms))
        assert len(store.advance(came.promised_ms)) == 1
    with HierarchicalWheelStore.open(tmp_path, clock=clock, precision_ms=100) as store:
        again = store.schedule(message, AtMs(due_ms))
        assert store.cancel(again.handle) is Cancellation.CANCELLED
        assert store.cancel(came) is Cancellation.ALREADY_DELIVERED


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
def test_a_receipt_of_what_is_lost_takes_nothing_that_lies_in_its_place(
    tmp_path: Path, engine: Any
) -> None:
    """As after a loss of power: the log goes on where the message was that nobody flushed."""
    clock, message = ManualClock(START_MS), Message("orders", b"", unique_key="K")
    with engine.open(tmp_path / "lost", clock=clock) as store:
        lost = store.schedule(message, AtMs(START_MS + 5_000))
    with engine.open(tmp_path / "kept", clock=clock) as store:
        kept = store.schedule(message, AtMs(START_MS + 60_000))
        assert kept.commit_log_offset == lost.commit_log_offset
        assert store.cancel(lost) is not Cancellation.CANCELLED
        assert len([*store.pending()]) == 1
