# SPDX-License-Identifier: Apache-2.0
"""An acknowledgement after a seek counts once, and only for the message that it names."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from consumer_groups import Acknowledgement
from tests.consumer_groups.group_bench import GroupBench, texts
from tests.faults.engines import abandon


def test_an_ack_after_a_seek_back_counts_for_its_message_alone(bench: GroupBench) -> None:
    bench.deliver("a", "b", "c")
    group = bench.group()
    a, b, c = group.receive("orders")
    group.ack(a, c)
    group.seek("orders", "first")
    group.ack(b)
    assert group.lag("orders").total == 2
    assert bench.bodies(group) == ["a", "c"]
    bench.kill()
    assert bench.bodies(bench.group()) == ["a", "c"]


def test_two_acks_after_a_seek_count_once(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group()
    [first, _] = group.receive("orders")
    group.seek("orders", "first")
    [again, b] = group.receive("orders")
    group.ack(first)
    group.ack(again, again)
    assert (group.lag("orders").total, group.lag("orders").in_flight) == (1, 1)
    group.ack(b)
    assert group.lag("orders").total == 0
    bench.deliver("c")
    assert bench.bodies(group) == ["c"]


def test_an_ack_of_what_a_seek_left_behind_counts_nothing(bench: GroupBench) -> None:
    bench.deliver("a", "b", "c")
    group = bench.group()
    [a] = group.receive("orders", 1)
    group.seek("orders", {0: 2})
    group.ack(a)
    assert group.lag("orders").total == 1
    assert bench.bodies(group) == ["c"]
    bench.kill()
    assert bench.bodies(bench.group()) == ["c"]


def test_a_late_ack_takes_nothing_from_the_retry_of_its_message(bench: GroupBench) -> None:
    """The message was received again after the seek, and given back: that retry has to come."""
    bench.deliver("a")
    group = bench.group()
    [first] = group.receive("orders")
    group.seek("orders", "first")
    [again] = group.receive("orders")
    group.retry(again)
    group.ack(first)
    bench.wait(15_000)
    [retry] = group.receive("orders")
    assert (retry.body, retry.retries) == (b"a", 1)


def test_a_message_that_is_given_back_again_after_a_seek_outlives_a_loss_of_power(
    bench: GroupBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush is about to write down the first time, whose record it has synced. The seek flushed
    before. The second record comes behind the sync, and is lost.
    """
    bench.deliver("a")
    group = bench.group()
    group.retry(group.receive("orders")[0])
    live = bench.store.live
    assert live is not None
    flush_companions: Callable[..., None] = live.companions.flush
    seen: list[str] = []

    def seek_first(**how: bool) -> None:
        if not seen:
            seen.append("once")
            shutil.copytree(bench.folder, tmp_path / "synced")
            with monkeypatch.context() as patch:
                patch.setattr(bench.store, "flush", lambda: None)
                group.seek("orders", "first")
            group.retry(group.receive("orders")[0])
        flush_companions(**how)

    monkeypatch.setattr(live.companions, "flush", seek_first)
    bench.store.flush()
    monkeypatch.undo()
    abandon(bench.store)
    shutil.copy(bench.folder / "delaywheel/consumers", tmp_path / "synced/delaywheel/consumers")
    shutil.rmtree(bench.folder)
    shutil.move(tmp_path / "synced", bench.folder)
    bench.store = bench.opened()
    assert "a" in bench.bodies(bench.group()) + texts(list(bench.group().dead_letters()))


def test_an_ack_says_what_became_of_its_messages(bench: GroupBench) -> None:
    bench.deliver("a", "b", "c")
    group = bench.group()
    a, b = group.receive("orders", 2)
    assert group.ack(a, a) == Acknowledgement(1, 1, 0)
    assert group.ack(b, a) == Acknowledgement(1, 1, 0)
    assert group.ack() == Acknowledgement(0, 0, 0)
    assert bench.group("mailing").ack(a, b) == Acknowledgement(0, 0, 2)
    assert bench.bodies(bench.group("mailing")) == ["a", "b", "c"]


def test_an_ack_of_a_message_in_the_place_of_another_counts_nothing(bench: GroupBench) -> None:
    """As one does of a store that was made anew, or whose end a loss of power took."""
    bench.deliver("a", "b")
    bench.deliver("x", "y", "z", topic="other")
    group = bench.group()
    [a] = group.receive("orders", 1)
    strangers = [each._replace(queue=a.queue) for each in group.receive("other")]
    assert group.ack(*strangers[1:], a) == Acknowledgement(1, 0, 2)
    assert bench.bodies(group) == ["b"]
    assert group.ack(a._replace(queue=a.queue._replace(queue_id=5))).never_received == 1
