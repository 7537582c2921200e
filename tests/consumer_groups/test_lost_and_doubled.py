# SPDX-License-Identifier: Apache-2.0
"""Histories in which groups lost or repeated messages: loss of power, kills, other consumers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from message_store.base.errors import TargetError
from tests.consumer_groups.group_bench import ENGINE_NAMES, GroupBench, texts
from tests.faults.engines import abandon


def _refuse(*_given: object) -> None:
    raise TargetError("no room")


@pytest.fixture(params=ENGINE_NAMES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> GroupBench:
    return GroupBench(request.param, tmp_path / "store")


def test_a_group_that_starts_last_gets_what_comes_after_also_in_a_new_queue(
    bench: GroupBench,
) -> None:
    group = bench.group(start="last")
    assert bench.bodies(group) == []  # the topic has no queue yet
    bench.deliver("a")
    bench.deliver("b", queue_id=1)
    assert sorted(bench.bodies(group)) == ["a", "b"]


def test_an_older_record_of_a_message_does_not_stand_for_a_later_one(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected, driven back, rejected again: a kill comes before the second dead letter."""
    bench.deliver("a")
    group = bench.group()
    [message] = group.receive("orders")
    group.reject(message)
    bench.wait(0)
    [letter] = group.dead_letters()
    group.redrive(letter)
    bench.wait(0)
    [message] = group.receive("orders")
    with monkeypatch.context() as patch:
        patch.setattr(
            bench.store, "schedule", lambda *_: (_ for _ in ()).throw(TargetError("full"))
        )
        with pytest.raises(TargetError):
            group.reject(message)
    bench.kill()
    group = bench.group()
    assert bench.bodies(group) + texts(list(group.dead_letters())) == ["a"]


def test_a_loss_of_power_takes_no_retry_and_leaves_its_acknowledgement(
    bench: GroupBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry comes between the sync of the log and that of the journal; the log's end is lost."""
    bench.deliver("a")
    group = bench.group()
    [message] = group.receive("orders")
    bench.store.flush()
    bench.clock.tick(20_000)
    live = bench.store.live
    assert live is not None
    flush_companions: Callable[..., None] = live.companions.flush

    def retry_first(**how: bool) -> None:
        shutil.copytree(bench.folder, tmp_path / "synced")
        group.retry(message)
        flush_companions(**how)

    monkeypatch.setattr(live.companions, "flush", retry_first)
    bench.store.flush()
    monkeypatch.undo()
    abandon(bench.store)
    for name in ("delaywheel/consumers", "config/consumerOffset.json"):
        if (bench.folder / name).exists():
            (tmp_path / "synced" / name).parent.mkdir(exist_ok=True)
            shutil.copy(bench.folder / name, tmp_path / "synced" / name)
    shutil.rmtree(bench.folder)
    shutil.move(tmp_path / "synced", bench.folder)
    bench.store = bench.opened()
    assert bench.bodies(bench.group()) == ["a"]


def test_a_late_retry_frees_nothing_that_another_holds(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group(ordered=True)
    [first, _] = group.receive("orders", invisible_ms=1_000)
    bench.wait(1_000)
    assert texts(group.receive("orders", invisible_ms=60_000)) == ["a", "b"]
    group.retry(first)
    bench.wait(2_000)
    assert bench.bodies(group) == []
