# SPDX-License-Identifier: Apache-2.0
"""``LevelStore`` with a broker's rules against the reference, for random histories of two stores.

Both get the same messages, the same time, the same damage and the same ends. A broker runs each
level in a thread of its own, so what is compared is decided for each level alone: which messages
it delivered, in which order, with which contents. delayOffset.json is equal to the byte in 4.9. In
5.x its data version counts how often threads ran, so there the table is compared.
"""

import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from legacy_levels import LevelRules, LevelStore
from legacy_levels.delay_offsets import encode_delay_offsets, read_delay_offsets
from legacy_levels.engine.rules import BROKER_TIMINGS, AsyncRules
from legacy_levels.reference.store import ReferenceLevelStore
from message_store import AfterMs, AtLevel, AtMs, DelayStore, Due, ManualClock, Message
from message_store.base.errors import TargetError, UnsupportedDelayError
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.properties import LEVEL_TOPIC
from message_store.writing.settings import StoreSettings
from tests.helpers.tiers import with_examples
from tests.independent.raw_files import commit_log_records, queue_units, segments
from tests.legacy_levels.level_stores import START_MS

LEVELS = DelayLevels.parse("1s 2s 5s 1m")
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 16, queue_file_bytes=20 * 500, repeat_after_kill=True
)
BY_HAND = attrs.evolve(BROKER_TIMINGS, persist_offsets_ms=1 << 40)
"""Offsets are saved when the machine says so: at the same moment in both."""
ROUNDS, MOST_ROUNDS = 11, 100
"""So many looks, 100 ms apart, are enough for all that is due: after a start, behind poison."""

HALF = "to-the-halves-of-transac"
DAMAGES = {
    b"REAL_TOPIC": b"REAL_TOPIX",
    b"REAL_QID\x010": b"REAL_QID\x01x",
    b"REAL_QID\x011": b"REAL_QXD\x011",
    HALF.encode(): b"RMQ_SYS_TRANS_HALF_TOPIC",
}
"""What stands in a record that waits, and what it becomes: two have no queue, one no topic, and one
is for half messages, which brokers drop.
"""

Fact = tuple[tuple[str, Any], ...]


def damage_record(root: Path, body: bytes, old: bytes) -> None:
    """Change the record that waits and has this body, in the file."""
    for placed in list(commit_log_records(root / "commitlog")):
        if placed.record.body == body and placed.record.topic == LEVEL_TOPIC:
            file = placed.commit_log_offset // SMALL.commit_log_file_bytes
            path = segments(root / "commitlog")[file]
            start = placed.commit_log_offset % SMALL.commit_log_file_bytes
            text = path.read_bytes()
            record = text[start : start + placed.size_bytes].replace(old, DAMAGES[old])
            path.write_bytes(text[:start] + record + text[start + placed.size_bytes :])


def damage_unit(root: Path, level: int, index: int) -> None:
    """Let an entry say another size than its record has: brokers find no record there."""
    queue = root / "consumequeue" / LEVEL_TOPIC / str(level - 1)
    units = queue_units(queue) if queue.is_dir() else []
    if len(units) > 1:
        unit = index % (len(units) - 1)  # the last one tells where the log ends
        path = segments(queue)[unit * 20 // SMALL.queue_file_bytes]
        text, at = path.read_bytes(), unit * 20 % SMALL.queue_file_bytes
        path.write_bytes(text[: at + 8] + (117).to_bytes(4, "big") + text[at + 12 :])


@contextmanager
def disk_that_refuses() -> Iterator[None]:
    """Nothing can be delivered meanwhile, by either."""

    def refuse(*_args: Any, **_options: Any) -> None:
        raise TargetError("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legacy_levels.engine.delivery.redeliver", refuse)
        patch.setattr("legacy_levels.reference.store.LiveBroker._append", refuse)
        yield


def fact(message: StoredMessage) -> Fact:
    """What of a delivery is decided: not its place, nor when it was stored, nor what it names."""
    kept = attrs.asdict(message, recurse=False)
    for name in ("commit_log_offset", "store_timestamp_ms", "prepared_transaction_offset"):
        del kept[name]
    del kept["queue_offset"]
    return tuple(kept.items())


dues = st.one_of(
    st.builds(AtLevel, st.integers(1, 5)),
    st.builds(AfterMs, st.integers(0, 60_000)),
    st.builds(AtMs, st.integers(START_MS - 5_000, START_MS)),
)


class AgainstReference(RuleBasedStateMachine):
    """Two stores, one clock."""

    version = "4.9.7"
    dialect = Dialect.ROCKETMQ_4_9
    is_async = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="against-reference-"))
        self.clock = ManualClock(START_MS)
        self.made = 0
        self.has_failed = False
        self.level_of: dict[bytes, int] = {}
        self.delivered: tuple[dict[int, list[Fact]], ...] = (defaultdict(list), defaultdict(list))
        self.open()

    @property
    def roots(self) -> tuple[Path, ...]:
        return self.folder / "fast", self.folder / "reference"

    def open(self) -> None:
        rules = LevelRules.of_broker(self.version, async_delivery=self.is_async)
        self.saved_ms = self.clock.now_ms()
        fast, reference, *_ = self.roots
        self.fast = LevelStore.open(
            fast,
            clock=self.clock,
            levels=LEVELS,
            dialect=self.dialect,
            settings=SMALL,
            rules=attrs.evolve(rules, timings=BY_HAND),
        )
        self.reference = ReferenceLevelStore.open(
            reference,
            clock=self.clock,
            levels=LEVELS,
            dialect=self.dialect,
            settings=SMALL,
            timings=BY_HAND,
            async_rules=AsyncRules() if self.is_async else None,
        )
        self.reference.service.next_persist_ms = 1 << 60  # the first time is no setting in brokers
        self.reference.flush()  # ``LevelStore`` saves at once what it corrected
        self.fast.advance(self.clock.now_ms())  # from here on it counts a second, as a broker does
        self.look_again()

    def handle_results(self) -> None:
        """A broker hears 10 ms later what became of a put; until then it saves no offset of it."""
        for step_ms in (100, 10):  # what is put by the first look is heard of at the second
            self.clock.tick(step_ms)
            self.look()

    def close(self) -> None:
        self.look_again()
        self.handle_results()
        self.fast.close()
        self.reference.close()

    def kill(self) -> None:
        self.fast.abandon()
        self.reference.abandon()

    def teardown(self) -> None:
        try:
            if sys.exception() is None:
                self.let_time_pass(60_000)
        finally:
            self.close()
            shutil.rmtree(self.folder)

    # --- steps ------------------------------------------------------------------------------------

    @initialize(millisecond=st.integers(0, 999))
    def begin(self, millisecond: int) -> None:
        self.clock.tick(millisecond)

    @rule(
        dues=st.lists(dues, min_size=1, max_size=3),
        topic=st.sampled_from(["orders", "payments", HALF]),
        count=st.integers(1, 4),
        queue_id=st.integers(0, 1),
        pause_ms=st.sampled_from([0, 1_500, 4_500]),
    )
    def schedule(
        self, dues: list[Due], topic: str, count: int, queue_id: int, pause_ms: int
    ) -> None:
        """Some are stored within a millisecond, so that their due times are equal."""
        for number, due in enumerate(due for due in dues for _ in range(count)):
            # Nobody looks in a pause, so that a longer level may be due before a shorter one.
            self.clock.tick(pause_ms if number and number % count == 0 else 0)
            self.made += 1
            body = b"%d" % self.made
            message = Message(topic, body, "tag", queue_id=queue_id, unique_key=f"K{self.made}")
            try:
                receipts = self.fast.schedule(message, due), self.reference.schedule(message, due)
            except UnsupportedDelayError:  # a past time lies ahead of a clock that was set back
                with pytest.raises(UnsupportedDelayError):
                    self.reference.schedule(message, due)
                continue
            assert receipts[0] == receipts[1]._replace(
                commit_log_offset=receipts[0].commit_log_offset
            )
            [level] = [each.level for each in self.fast.pending(unique_key=f"K{self.made}")]
            assert level is not None
            self.level_of[body] = level

    @rule(step_ms=st.one_of(st.integers(100, 3_000), st.integers(100, 70_000)))
    def let_time_pass(self, step_ms: int) -> None:
        """A long step, and then the looks that a broker makes."""
        self.clock.tick(step_ms)
        self.look()
        self.look_again()
        self.compare()

    @rule(step_ms=st.integers(1, 70_000))
    def the_clock_is_set_back(self, step_ms: int) -> None:
        """Both hear of it: in a broker time goes on meanwhile, by another clock. Not to before the
        offsets were saved: ``LevelStore`` saves them again then, and a broker does not.
        """
        self.clock.tick(-min(step_ms, self.clock.now_ms() - self.saved_ms))
        self.look()

    @rule()
    def flush(self) -> None:
        self.let_time_pass(1_000)  # a second flush within a second syncs the log alone
        self.handle_results()
        self.fast.flush()
        self.reference.flush()
        self.saved_ms = self.clock.now_ms()
        self.compare_offset_files()

    @rule(is_kill=st.booleans())
    def end_and_reopen(self, is_kill: bool) -> None:
        """After a kill, both repeat what was delivered since the offsets were saved."""
        self.let_time_pass(100)
        if is_kill:
            self.kill()
        else:
            self.close()
            self.compare_offset_files()
        self.open()

    @rule(offsets=st.dictionaries(st.integers(1, 6), st.integers(0, 30), min_size=1))
    def somebody_writes_offsets(self, offsets: dict[int, int]) -> None:
        """Below the queues, within, and above; no marks tell of anything else."""
        self.close()
        for root in self.roots:
            shutil.rmtree(root / "delaywheel", ignore_errors=True)
            for name in ("delayOffset.json", "delayOffset.json.bak"):
                text = encode_delay_offsets(offsets, self.dialect.config)
                (root / "config" / name).write_bytes(text)
        self.open()

    @precondition(lambda self: self.made)
    @rule(number=st.integers(0, 10**6), damage=st.sampled_from([*DAMAGES]))
    def a_record_is_damaged(self, number: int, damage: bytes) -> None:
        self.close()
        for root in self.roots:
            damage_record(root, b"%d" % (1 + number % self.made), damage)
        self.open()

    @rule(level=st.integers(1, 4), index=st.integers(0, 10**6))
    def an_entry_is_damaged(self, level: int, index: int) -> None:
        self.close()
        for root in self.roots:
            damage_unit(root, level, index)
        self.open()

    @rule(looks=st.integers(1, 30))
    def the_disk_refuses(self, looks: int) -> None:
        """For a while. Then all is put again: of each level one after the other, if async."""
        self.has_failed = True
        with disk_that_refuses():
            for _ in range(looks):
                self.clock.tick(100)
                self.look()
        waiting = len(list(self.fast.pending()))
        for _ in range(waiting + looks):
            self.clock.tick(200)
            self.look()
        self.let_time_pass(100)

    # --- what holds -------------------------------------------------------------------------------

    def look_again(self) -> None:
        """A broker stays at each poisoned entry for a while, and each level looks at times of its
        own: one of many has to catch up.
        """
        fast, reference = self.delivered
        for number in range(MOST_ROUNDS):
            self.clock.tick(100)
            self.look()
            if number + 1 >= ROUNDS and fast == reference:
                break

    def look(self) -> None:
        now_ms = self.clock.now_ms()
        stores: tuple[DelayStore, ...] = (self.fast, self.reference)
        for store, delivered in zip(stores, self.delivered, strict=True):
            try:
                deliveries = [*store.advance(now_ms)]
            except TargetError:  # a synchronous ``LevelStore`` says so; brokers write to their log
                assert self.has_failed
                deliveries = []
            for each in deliveries:
                level = self.level_of[each.message.body]
                delivered[level].append(fact(each.message))

    def compare(self) -> None:
        fast, reference = self.delivered
        for level in sorted(fast.keys() | reference.keys()):
            assert self.in_order(fast[level]) == self.in_order(reference[level]), level

    def in_order(self, facts: list[Fact]) -> list[Fact]:
        """What was put again comes behind others that were not refused; how many is luck."""
        return sorted(facts, key=repr) if self.has_failed and self.is_async else facts

    def compare_offset_files(self) -> None:
        fast, reference = (root / "config" / "delayOffset.json" for root in self.roots[:2])
        if self.dialect is Dialect.ROCKETMQ_4_9:
            assert fast.read_bytes() == reference.read_bytes()
        else:
            fast_table, table = (dict(read_delay_offsets(root).offsets) for root in self.roots[:2])
            assert fast_table == table


class Against55(AgainstReference):
    version = "5.5.0"
    dialect = Dialect.ROCKETMQ_5_5


class AsyncAgainst49(AgainstReference):
    is_async = True


class AsyncAgainst55(Against55):
    is_async = True


MACHINES = [AgainstReference, Against55, AsyncAgainst49, AsyncAgainst55]
QUICK = [AgainstReference, Against55]
few = settings(
    max_examples=10,
    stateful_step_count=25,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
brief = settings(few, max_examples=2, stateful_step_count=10)
many = settings(few, max_examples=150, stateful_step_count=60)


@pytest.mark.parametrize("machine", with_examples(MACHINES, QUICK))
@pytest.mark.parametrize(
    "effort",
    [
        pytest.param(brief, id="brief"),
        pytest.param(few, id="few", marks=pytest.mark.check),
        pytest.param(many, id="many", marks=pytest.mark.nightly),
    ],
)
def test_levels_by_a_broker_s_rules_do_what_the_reference_does(
    machine: type[AgainstReference], effort: settings
) -> None:
    run_state_machine_as_test(machine, settings=effort)


def test_of_levels_that_are_due_together_each_keeps_its_order() -> None:
    """A history of the machine that chance makes too seldom: a longer level is due first."""
    machine = AgainstReference()
    machine.schedule(
        dues=[AtLevel(3), AtLevel(1)], topic="orders", count=3, queue_id=0, pause_ms=4_500
    )
    machine.let_time_pass(step_ms=5_000)
    assert [len(facts) for facts in machine.delivered[0].values()] == [3, 3]
    machine.teardown()


@pytest.mark.parametrize("machine_of", MACHINES)
def test_poison_stops_a_level_of_4_9_however_it_delivers(
    machine_of: type[AgainstReference],
) -> None:
    """A history of the machine: the second of three messages does not name its topic."""
    machine = machine_of()
    machine.schedule(dues=[AtLevel(2)], topic="orders", count=3, queue_id=0, pause_ms=0)
    machine.a_record_is_damaged(number=1, damage=b"REAL_TOPIC")
    machine.let_time_pass(step_ms=5_000)
    is_4_9 = machine.dialect is Dialect.ROCKETMQ_4_9
    assert [len(facts) for facts in machine.delivered[0].values()] == [1 if is_4_9 else 2]
    machine.teardown()


@pytest.mark.parametrize("machine_of", [Against55, AsyncAgainst55])
def test_a_message_that_is_passed_over_moves_no_offset(machine_of: type[AgainstReference]) -> None:
    """A history of the machine: a record is damaged that waits alone in its level."""
    machine = machine_of()
    machine.begin(millisecond=0)
    machine.schedule(count=1, dues=[AtLevel(1)], pause_ms=0, queue_id=0, topic="orders")
    machine.a_record_is_damaged(damage=b"REAL_TOPIC", number=0)
    machine.flush()
    machine.teardown()


@pytest.mark.parametrize("machine_of", [AsyncAgainst49, AsyncAgainst55])
def test_what_goes_nowhere_holds_no_level_back_while_the_disk_refuses(
    machine_of: type[AgainstReference],
) -> None:
    """A history of the machine: half messages are due with others on a disk that refuses."""
    machine = machine_of()
    machine.begin(millisecond=0)
    machine.schedule(count=2, dues=[AtLevel(3)], pause_ms=0, queue_id=0, topic=HALF)
    machine.schedule(count=2, dues=[AtLevel(3)], pause_ms=0, queue_id=0, topic="orders")
    for number in range(2):  # each opening takes 1,100 ms
        machine.a_record_is_damaged(number=number, damage=HALF.encode())
    machine.let_time_pass(step_ms=1_500)
    machine.the_disk_refuses(looks=3)
    assert [len(facts) for facts in machine.delivered[0].values()] == [2]
    [finding] = machine.fast.check()
    assert "2 half messages of transactions" in str(finding)
    machine.teardown()


@pytest.mark.parametrize("machine_of", MACHINES)
def test_a_clock_set_back_into_the_first_second_begins_no_other_wait(
    machine_of: type[AgainstReference],
) -> None:
    """A history of the machine, which chance makes too seldom."""
    machine = machine_of()
    machine.begin(millisecond=0)
    machine.end_and_reopen(is_kill=False)
    machine.clock.tick(-1_363)
    machine.schedule(count=1, dues=[AtLevel(1)], pause_ms=0, queue_id=0, topic="orders")
    machine.end_and_reopen(is_kill=False)
    assert [len(facts) for facts in machine.delivered[0].values()] == [1]
    machine.teardown()
