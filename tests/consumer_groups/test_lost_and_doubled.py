# SPDX-License-Identifier: Apache-2.0
"""Histories in which groups lost or repeated messages: loss of power, kills, other consumers."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from consumer_groups import group_names
from message_store import AfterMs, Cancellation
from message_store.base.errors import TargetError
from message_store.files.small_files import replace_file
from message_store.format.message import LOCAL_HOST, StoredMessage
from message_store.format.message_codec import body_crc, encode_message
from message_store.life.by_key import cancel_by_key
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
    record. The first one is delivered before anybody asks for the group, to where the second would
    have been. A broker's copy of it names no record.
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
    assert bench.bodies(bench.group()) == ["a", "a"]


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


def test_a_retry_that_was_cancelled_before_a_kill_stays_so(bench: GroupBench) -> None:
    bench.deliver("a", unique_key="A")
    group = bench.group()
    [message] = group.receive("orders")
    bench.store.flush()
    group.retry(message, AfterMs(60_000))
    [(_, answer)] = cancel_by_key(bench.store, "A")
    assert answer is Cancellation.CANCELLED
    bench.kill()
    assert bench.bodies(bench.group()) == []
    bench.wait(120_000)
    assert bench.bodies(bench.group()) == []


def test_a_message_without_a_key_comes_once_after_a_kill(bench: GroupBench) -> None:
    """As a broker has them; its retry has got a key."""
    put_as_it_is(bench, b"a")
    group = bench.group()
    [message] = group.receive("orders")
    assert message.unique_key is None
    group.retry(message)
    bench.kill()
    assert bench.bodies(bench.group()) == []
    bench.wait(20_000)
    assert bench.bodies(bench.group()) == ["a"]


def put_as_it_is(bench: GroupBench, body: bytes) -> None:
    """Put a record into a topic's queue without an engine's properties."""
    live, now_ms = bench.store.live, bench.clock.now_ms()
    assert live is not None
    record = StoredMessage(
        topic="orders", body=body, body_crc=body_crc(body), properties_text=b"TAGS\x01t\x02",
        queue_id=0, queue_offset=0, commit_log_offset=0, born_timestamp_ms=now_ms,
        born_host=LOCAL_HOST, store_timestamp_ms=now_ms, store_host=LOCAL_HOST,
    )  # fmt: skip
    size_bytes = len(encode_message(record))
    at = live.log.append(
        size_bytes, lambda at: encode_message(attrs.evolve(record, commit_log_offset=at))
    )
    live.queue("orders", 0).append_one(at, size_bytes, 0)
    bench.reopen()


def test_a_read_that_fails_forgets_nothing(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.deliver("a", "b")
    group = bench.group()
    assert len(group.receive("orders", invisible_ms=1_000)) == 2
    bench.wait(1_000)
    reader = type(bench.store.topic("orders"))
    with monkeypatch.context() as patch:
        patch.setattr(reader, "queued", _refuse)
        with pytest.raises(TargetError):
            group.receive("orders")
    assert bench.bodies(group) == ["a", "b"]


def test_a_topic_with_an_at_sign_has_its_own_group(bench: GroupBench) -> None:
    bench.deliver("a", "b", topic="orders@eu")
    bench.group().ack(*bench.group().receive("orders@eu", 1))
    bench.reopen()
    assert group_names(bench.store) == ["billing"]
    assert bench.bodies(bench.group(), "orders@eu") == ["b"]


def test_the_lag_of_a_group_that_starts_last_counts_a_queue_that_came_later(
    bench: GroupBench,
) -> None:
    group = bench.group(start="last")
    bench.deliver("a")
    assert (group.lag("orders").total, bench.bodies(group)) == (0, [])
    bench.deliver("b", queue_id=1)
    assert group.lag("orders").total == 1
