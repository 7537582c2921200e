# SPDX-License-Identifier: Apache-2.0
"""Histories in which groups lost or repeated messages: loss of power, kills, other consumers."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from message_store.base.errors import TargetError
from message_store.files.small_files import replace_file
from tests.consumer_groups.group_bench import ENGINE_NAMES, GroupBench, texts
from tests.faults.engines import abandon


def _refuse(*_given: object) -> None:
    raise TargetError("no room")


@pytest.fixture(params=ENGINE_NAMES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GroupBench]:
    bench = GroupBench(request.param, tmp_path / "store")
    yield bench
    bench.store.close()


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


@pytest.mark.parametrize("deliverer", ["an engine", "a broker"])
def test_an_older_retry_that_is_delivered_since_does_not_stand_for_a_later_one(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch, deliverer: str
) -> None:
    """Given back, received again after a seek, given back again. A kill comes before the second
    record, and the first one is delivered before anybody asks for the group. A broker's copy of it
    names no record, and looks like the second: the group is yet to receive it, so that nothing is
    lost; but it comes once for both.
    """
    bench.deliver("a")
    group = bench.group()
    [message] = group.receive("orders")
    group.retry(message)
    group.seek("orders", "first")
    [message] = group.receive("orders")
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "schedule", _refuse)
        with pytest.raises(TargetError):
            group.retry(message)
    bench.kill()
    bench.wait(20_000)
    if deliverer == "a broker":
        monkeypatch.setattr(
            "consumer_groups.progress_table.first_offset", lambda record: record.commit_log_offset
        )
    assert bench.bodies(bench.group()) == (["a", "a"] if deliverer == "an engine" else ["a"])


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


def test_an_acknowledgement_of_what_power_took_does_not_count_once_a_later_one_does(
    bench: GroupBench, tmp_path: Path
) -> None:
    """Two messages are lost, and their acknowledgements are not. Two others take their places, and
    the second is acknowledged. Found by random runs.
    """
    bench.store.flush()
    shutil.copytree(bench.folder, tmp_path / "synced")
    bench.deliver("a", "b")
    group = bench.group()
    for message in group.receive("orders"):
        group.ack(message)
    abandon(bench.store)
    (tmp_path / "synced/delaywheel").mkdir(exist_ok=True)
    shutil.copy(bench.folder / "delaywheel/consumers", tmp_path / "synced/delaywheel/consumers")
    shutil.rmtree(bench.folder)
    shutil.move(tmp_path / "synced", bench.folder)
    bench.store = bench.opened()
    bench.deliver("c", "d")
    bench.group().ack(bench.group().receive("orders")[1])
    bench.kill()
    assert bench.bodies(bench.group()) == ["c"]


def test_a_late_retry_frees_nothing_that_another_holds(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group(ordered=True)
    [first, _] = group.receive("orders", invisible_ms=1_000)
    bench.wait(1_000)
    assert texts(group.receive("orders", invisible_ms=60_000)) == ["a", "b"]
    group.retry(first)
    bench.wait(2_000)
    assert bench.bodies(group) == []


def test_what_was_acknowledged_after_a_retry_that_failed_stays_so(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement comes while a flush has begun: its save knows the failed try."""
    bench.deliver("a", "b")
    group = bench.group()
    first, second = group.receive("orders")
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "schedule", _refuse)
        with pytest.raises(TargetError):
            group.retry(first)
    group.ack(second)
    assert bench.store.live is not None
    companions = bench.store.live.companions
    begin_flush = companions.begin_flush

    def acknowledge_then() -> None:
        begin_flush()
        group.ack(first)

    monkeypatch.setattr(companions, "begin_flush", acknowledge_then)
    bench.store.flush()
    monkeypatch.undo()
    bench.kill()
    assert bench.bodies(bench.group()) == []


def test_a_queue_whose_first_line_the_disk_refused_is_numbered_again(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.deliver("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr("message_store.files.line_journal.LineJournal.append", _refuse)
        with pytest.raises(TargetError):
            bench.group().receive("orders")
    group = bench.group()
    group.ack(group.receive("orders", 1)[0])
    bench.kill()
    assert bench.bodies(bench.group()) == ["b"]


@pytest.mark.parametrize("is_renamed", [True, False])
def test_after_a_save_that_failed_acknowledgements_are_those_of_their_queues(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch, is_renamed: bool
) -> None:
    """Nobody knows then whether the old journal or the new one has the name."""

    def fail(path: Path, content: bytes, **how: bool) -> None:
        if is_renamed:
            replace_file(path, content, **how)
        raise TargetError("no answer")

    bench.deliver("a", "b")
    bench.deliver("c", "d", topic="other")
    group = bench.group()
    group.ack(group.receive("other", 1)[0])
    bench.reopen()
    group = bench.group()
    [a, _] = group.receive("orders")
    with monkeypatch.context() as patch:
        patch.setattr("message_store.files.line_journal.replace_file", fail)
        bench.clock.tick(20_000)
        group.ack(a)
        with pytest.raises(TargetError):
            bench.store.flush()
    group.ack(group.receive("other", 1)[0])
    bench.store.flush()
    bench.kill()
    group = bench.group()
    assert (bench.bodies(group), bench.bodies(group, "other")) == (["b"], [])


def test_what_was_given_back_before_a_kill_is_looked_for_in_one_listing(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.deliver(*(str(number) for number in range(20)))
    group = bench.group()
    for message in group.receive("orders"):
        group.retry(message)
    bench.kill()
    listed: list[object] = []
    pending = bench.store.pending

    def noted(**wanted: object) -> object:
        listed.append(wanted)
        return pending(**wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.store, "pending", noted)
    assert bench.bodies(bench.group()) == []
    assert len(listed) == 1


def test_the_lag_of_a_group_that_starts_last_counts_a_queue_that_came_later(
    bench: GroupBench,
) -> None:
    group = bench.group(start="last")
    bench.deliver("a")
    assert (group.lag("orders").total, bench.bodies(group)) == (0, [])
    bench.deliver("b", queue_id=1)
    assert group.lag("orders").total == 1
