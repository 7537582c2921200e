# SPDX-License-Identifier: Apache-2.0
"""The loop of a service: handlers that fail, disks that refuse, threads, signals, asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from typing import Any

import pytest

from consumer_groups import Received, Worked, run_consumers
from consumer_groups.runner import Until
from message_store import AfterMs
from message_store.base.errors import StoreClosedError, TargetError
from tests.consumer_groups.group_bench import GroupBench


def stop_after(rounds: int) -> Any:
    left = iter(range(rounds))
    return lambda: next(left, None) is None


def test_each_message_is_handled_and_acknowledged(bench: GroupBench) -> None:
    bench.deliver(*"abc")
    seen: list[bytes] = []
    worked = run_consumers(
        bench.store, {("orders", "billing"): lambda m: seen.append(m.body)}, stop=stop_after(9)
    )
    assert (seen, worked) == ([b"a", b"b", b"c"], Worked(handled=3))
    bench.kill()
    assert bench.bodies(bench.group()) == []


def test_a_handler_that_raises_gets_its_message_again(bench: GroupBench) -> None:
    bench.deliver("good", "bad")
    tries: Counter[bytes] = Counter()

    def handle(message: Received) -> None:
        tries[message.body] += 1
        if message.body == b"bad" and message.retries < 2:
            raise RuntimeError("not now")

    worked = run_consumers(
        bench.store,
        {("orders", "billing"): handle},
        stop=lambda: tries[b"bad"] == 3,
        poll_ms=1_000,
    )
    assert (tries, worked) == ({b"good": 1, b"bad": 3}, Worked(2, 2))
    assert bench.group().lag("%RETRY%billing").total == 0


@pytest.mark.parametrize("refused", ["ack", "retry", "receive", "advance"])
def test_a_disk_that_refuses_ends_in_a_retry(
    bench: GroupBench, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.deliver("a")
    bench.store.schedule(_later(), AfterMs(1_000))
    group, seen = bench.group(), []
    owner: Any = bench.store if refused == "advance" else group
    real, calls = getattr(owner, refused), iter(range(2))

    def refuse(*given: Any) -> Any:
        if next(calls, None) is not None:
            raise TargetError("no room left")
        return real(*given)

    def handle(message: Received) -> None:
        seen.append(message.body)
        if refused == "retry" and len(seen) < 4:
            raise RuntimeError("once more")

    monkeypatch.setattr(owner, refused, refuse)
    run_consumers(
        bench.store,
        {("orders", group): handle},
        stop=lambda: group.lag("orders").total == 0 and b"later" in seen,
        poll_ms=1_000,
    )
    assert set(seen) == {b"a", b"later"}


def _later() -> Any:
    from message_store import Message

    return Message("orders", b"later")


def test_a_store_that_is_closed_ends_the_loop(bench: GroupBench) -> None:
    bench.deliver("a")
    with pytest.raises(StoreClosedError):
        run_consumers(bench.store, {("orders", "billing"): lambda _: bench.store.close()})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_behind_the_message_in_hand(
    bench: GroupBench, number: signal.Signals
) -> None:
    bench.deliver(*"abc")
    before = signal.getsignal(number)
    worked = run_consumers(
        bench.store, {("orders", "billing"): lambda _: os.kill(os.getpid(), number)}
    )
    assert worked == Worked(handled=1)
    assert signal.getsignal(number) is before
    bench.reopen()
    assert bench.bodies(bench.group()) == ["b", "c"]


def test_threads_handle_each_message_once(bench: GroupBench) -> None:
    bench.deliver(*(str(number) for number in range(100)))
    seen: Counter[bytes] = Counter()
    counting = threading.Lock()

    def handle(message: Received) -> None:
        with counting:
            seen[message.body] += 1

    worked = run_consumers(
        bench.store,
        {("orders", "billing"): handle},
        stop=lambda: len(seen) == 100,
        threads=3,
        max_messages=7,
    )
    assert set(seen.values()) == {1}
    assert worked.handled == len(seen) == 100


def test_a_stream_gives_messages_as_they_become_due(bench: GroupBench) -> None:
    bench.deliver("a", "b")

    async def take(count: int) -> list[bytes]:
        group, taken = bench.group(), []
        async for message in group.stream("orders", poll_ms=1):
            taken.append(message.body)
            group.ack(message)
            if len(taken) == count:
                break
        return taken

    assert asyncio.run(take(2)) == [b"a", b"b"]
    assert bench.group().lag("orders").total == 0


@pytest.mark.parametrize("handlers", [{"orders": print}, {("orders", "billing"): None}])
def test_handlers_that_can_handle_nothing_are_refused(
    bench: GroupBench, handlers: dict[object, object]
) -> None:
    bench.deliver("a")
    with pytest.raises(TypeError, match="by \\(topic, group\\)"):
        run_consumers(bench.store, handlers)  # type: ignore[arg-type]
    assert bench.bodies(bench.group()) == ["a"]


def test_a_loop_that_leaps_passes_neither_an_invisible_end_nor_a_refusal(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its end, a month later, there is nothing but one message whose acknowledgement failed.
    The receive behind that is refused too.
    """
    bench.deliver("a")
    group, rounds = bench.group(), 0
    seen: list[int] = []
    ack, receive = group.ack, group.receive
    begin_ms = bench.clock.now_ms()
    until_ms = begin_ms + 30 * 86_400_000

    def refuse_first(*given: Any) -> Any:
        if len(seen) == 1:
            raise TargetError("no room left")
        return ack(*given)

    def refuse_second(*given: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise TargetError("no room left")
        return receive(*given)

    monkeypatch.setattr(group, "ack", refuse_first)
    monkeypatch.setattr(group, "receive", refuse_second)
    run_consumers(
        bench.store,
        {("orders", group): lambda _: seen.append(bench.clock.now_ms() - begin_ms)},
        stop=Until(bench.clock, until_ms),
        poll_ms=1,
    )
    assert seen == [0, 30_000]
    assert rounds < 20
    assert bench.clock.now_ms() == until_ms + 1
