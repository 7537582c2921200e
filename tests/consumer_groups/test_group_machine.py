# SPDX-License-Identifier: Apache-2.0
"""Groups against a plain model through random steps, kills and reopenings among them: nothing that
was acknowledged is received again, nothing else is lost, counts add up.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from consumer_groups import Received
from message_store import AfterMs
from tests.consumer_groups.group_bench import ENGINE_NAMES, GroupBench

GROUPS = ("billing", "mailing")
INVISIBLE_MS = 5_000
MAX_RETRIES = 2

few = settings(max_examples=5, stateful_step_count=30, deadline=None)
many = settings(max_examples=60, stateful_step_count=80, deadline=None)


class GroupMachine(RuleBasedStateMachine):
    """The model of a group is two sets of bodies: what it has to receive, and its dead letters."""

    engine: str

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.bench = GroupBench(self.engine, self.folder / "store")
        self.count = 0
        self.open: dict[str, set[str]] = {name: set() for name in GROUPS}
        self.dead: dict[str, set[str]] = {name: set() for name in GROUPS}
        self.tries: dict[tuple[str, str], int] = {}
        self.in_hand: dict[str, dict[str, Received]] = {name: {} for name in GROUPS}

    def group(self, name: str) -> Any:
        return self.bench.group(name, max_retries=MAX_RETRIES)

    def forget_hands(self) -> None:
        self.in_hand = {name: {} for name in GROUPS}

    @rule(count=st.integers(1, 4), queue_id=st.integers(0, 1))
    def deliver(self, count: int, queue_id: int) -> None:
        bodies = [str(self.count + number) for number in range(count)]
        self.count += count
        self.bench.deliver(*bodies, queue_id=queue_id)
        for name in GROUPS:
            self.open[name].update(bodies)

    @rule(name=st.sampled_from(GROUPS), count=st.integers(1, 8))
    def receive(self, name: str, count: int) -> None:
        now_ms = self.bench.clock.now_ms()
        for message in self.group(name).receive("orders", count, INVISIBLE_MS):
            body = message.body.decode()
            assert body in self.open[name]
            held = self.in_hand[name].get(body)
            assert held is None or held.visible_ms <= now_ms
            assert message.retries == self.tries.get((name, body), 0)
            self.in_hand[name][body] = message

    def take_one(self, data: st.DataObject, name: str) -> tuple[str, Received] | None:
        bodies = sorted(self.in_hand[name])
        if not bodies:
            return None
        body = data.draw(st.sampled_from(bodies))
        return body, self.in_hand[name].pop(body)

    @rule(data=st.data(), name=st.sampled_from(GROUPS))
    def ack(self, data: st.DataObject, name: str) -> None:
        if taken := self.take_one(data, name):
            self.group(name).ack(taken[1])
            self.open[name].discard(taken[0])

    @rule(name=st.sampled_from(GROUPS))
    def ack_all(self, name: str) -> None:
        self.group(name).ack(*self.in_hand[name].values())
        self.open[name] -= self.in_hand[name].keys()
        self.in_hand[name].clear()

    @rule(data=st.data(), name=st.sampled_from(GROUPS), delay_ms=st.sampled_from([0, 1_000]))
    def retry(self, data: st.DataObject, name: str, delay_ms: int) -> None:
        if taken := self.take_one(data, name):
            body, message = taken
            self.group(name).retry(message, AfterMs(delay_ms))
            if message.retries >= MAX_RETRIES:
                self.open[name].discard(body)
                self.dead[name].add(body)
            else:
                self.tries[name, body] = message.retries + 1

    @rule(data=st.data(), name=st.sampled_from(GROUPS))
    def redrive(self, data: st.DataObject, name: str) -> None:
        letters = {m.body.decode(): m for m in self.group(name).dead_letters()}
        if letters:
            body = data.draw(st.sampled_from(sorted(letters)))
            self.group(name).redrive(letters[body])
            self.dead[name].discard(body)
            self.open[name].add(body)
            self.tries[name, body] = 0

    @rule(duration_ms=st.sampled_from([0, 500, 2_000, 6_000]))
    def wait(self, duration_ms: int) -> None:
        self.bench.wait(duration_ms)

    @rule()
    def flush(self) -> None:
        self.bench.store.flush()

    @rule()
    def kill(self) -> None:
        self.bench.kill()
        self.forget_hands()

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()
        self.forget_hands()

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "bench"):
            return
        for name in GROUPS:
            retries = f"%RETRY%{name}"
            received = sum(self.group(name).lag(topic).total for topic in ("orders", retries))
            given_back = [
                pending.topic
                for pending in self.bench.store.pending()
                if pending.topic in (retries, f"%DLQ%{name}")
            ]
            to_come = received + given_back.count(retries)
            assert to_come == len(self.open[name])
            letters = {m.body.decode() for m in self.group(name).dead_letters()}
            assert letters <= self.dead[name]
            assert len(letters) + len(given_back) - given_back.count(retries) == len(
                self.dead[name]
            )

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.kill()
        self.bench.wait(60_000)
        for name in GROUPS:
            left: set[str] = set()
            while received := self.group(name).receive("orders"):
                left.update(message.body.decode() for message in received)
                self.group(name).ack(*received)
            assert left == self.open[name]
            assert {m.body.decode() for m in self.group(name).dead_letters()} == self.dead[name]
        self.bench.store.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_groups_agree_with_a_model(engine: str) -> None:
    machine = type("Machine", (GroupMachine,), {"engine": engine})
    run_state_machine_as_test(machine, settings=few)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_groups_agree_with_a_model_for_long(engine: str) -> None:
    machine = type("Machine", (GroupMachine,), {"engine": engine})
    run_state_machine_as_test(machine, settings=many)
