# SPDX-License-Identifier: Apache-2.0
"""Receiving by columns gives what reading one by one gives, and leaves the same journal: random
stores with tags, retries, cancelled entries, damaged records, kills.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consumer_groups import Received, run_consumers
from consumer_groups.offset_files import Run
from consumer_groups.received import runs_of
from message_store import AfterMs, AtMs
from message_store.base.errors import FormatError
from message_store.files.group_journal import QueueKey
from message_store.files.line_journal import encode_line
from message_store.interface.queued_messages import QueuedRecord, QueuePart
from message_store.writing.topics import LiveTopic
from tests.consumer_groups.group_bench import GroupBench, texts
from tests.migrate.stops import Stopped, stopping_before

TOPICS = ("orders", "bills")
FILTERS = (None, None, "a", "a || b", "Aa", "*")


def one_by_one(
    topic: LiveTopic,
    queue_id: int,
    from_offset: int,
    max_entries: int = 32,
    _tags_codes: Collection[int] | None = None,
) -> QueuePart:
    """``LiveTopic.queued`` by ``LiveTopic.read``, which passes over no other tags."""
    first, end = topic.ranges().get(queue_id, (0, 0))
    first = max(from_offset, first)
    stop = max(first, min(first + max_entries, end))
    messages, damaged = [], {}
    for at in range(first, stop):
        try:
            found = topic.read(queue_id, at, 1)
        except FormatError as error:
            damaged[at] = error
        else:
            messages += [each for each in found if each.queue_offset == at]
    return QueuePart(messages, stop, damaged)


@contextmanager
def reading_one_by_one() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveTopic, "queued", one_by_one)
        yield


class Pair:
    """Two benches that do the same; the second reads one by one."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.fast = GroupBench(engine, folder / "fast")
        self.slow = GroupBench(engine, folder / "slow")
        self.in_hand: list[tuple[Received, Received]] = []

    def both(self, name: str, *given: Any, **options: Any) -> tuple[Any, Any]:
        """What a method of the benches answers."""
        fast = getattr(self.fast, name)(*given, **options)
        with reading_one_by_one():
            return fast, getattr(self.slow, name)(*given, **options)

    def receive(self, topic: str, count: int, tags: str | None) -> None:
        fast = self.fast.group().receive(topic, count, 5_000, tags)
        with reading_one_by_one():
            slow = self.slow.group().receive(topic, count, 5_000, tags)
        assert texts(fast) == texts(slow)
        for one, other in zip(fast, slow, strict=True):
            assert isinstance(one.queued, QueuedRecord)
            assert one.stored == other.stored
            for name in ("topic", "visible_ms", "queue", "tags", "keys", "unique_key", "retries"):
                assert getattr(one, name) == getattr(other, name)
        self.in_hand += zip(fast, slow, strict=True)

    def settle(self, how: str, pairs: list[tuple[Received, Received]], *given: Any) -> None:
        if pairs:
            fast, slow = zip(*pairs, strict=True)
            getattr(self.fast.group(), how)(*fast, *given)
            with reading_one_by_one():
                getattr(self.slow.group(), how)(*slow, *given)
        for topic in (*TOPICS, "%RETRY%billing"):
            assert self.fast.group().lag(topic) == self.slow.group().lag(topic)
        assert self.journal(self.fast) == self.journal(self.slow)

    @staticmethod
    def journal(bench: GroupBench) -> bytes:
        path = bench.folder / "delaywheel" / "consumers"
        return path.read_bytes() if path.exists() else b""

    def damage(self, topic: str, number: int) -> None:
        """Flip a bit in the body of a record."""
        for bench in (self.fast, self.slow):
            live = bench.store.live
            assert live is not None
            found = [m for q in (0, 1) for m in one_by_one(live.topic(topic), q, 0, 99).messages]
            if found:
                message = found[number % len(found)]
                assert not isinstance(message, QueuedRecord)
                record = live.log.segments.read_at(message.commit_log_offset, 200)
                place = message.commit_log_offset + record.index(message.body)
                live.log.segments.write_at(place, bytes([message.body[0] ^ 1]))

    def neutralise(self, topic: str, queue_offset: int) -> None:
        """Let an entry lead to no record, as a cancel does."""
        for bench in (self.fast, self.slow):
            live = bench.store.live
            assert live is not None
            queue = live.queues.find(topic, 0)
            if queue is not None and queue.max_offset > queue_offset:
                unit = queue.units(queue_offset, queue_offset + 1)[0]
                end = int(unit["commit_log_offset"]) + int(unit["size_bytes"])
                queue.overwrite(queue_offset, end - 1, 1, 0)


def run_steps(pair: Pair, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    made = 0
    for step in range(steps):
        topic = chance.choice(TOPICS)
        what = chance.choice(
            ("deliver", "receive", "receive", "ack", "ack", "retry", "wait", "end")
        )
        if what == "deliver":
            for _ in range(chance.randrange(12)):
                fields = {
                    "topic": topic,
                    "tags": chance.choice(("a", "b", "Aa", "BB", None)),
                    "queue_id": chance.choice((0, 0, 0, 1)),
                    "unique_key": f"key{made}",
                    "keys": [str(made)] * chance.randrange(3),
                }
                pair.both("deliver", f"{made:03}" * chance.randrange(1, 5), **fields)
                made += 1
        elif what == "receive":
            pair.receive(topic, chance.randrange(1, 20), chance.choice(FILTERS))
        elif what == "ack":
            some = [pair.in_hand.pop() for _ in range(chance.randrange(len(pair.in_hand) + 1))]
            if chance.random() < 0.6:
                some.reverse()
            if chance.random() < 0.3:
                chance.shuffle(some)
            pair.settle("ack", some + some[: chance.randrange(3)])
        elif what == "retry" and pair.in_hand:
            pair.settle("retry", [pair.in_hand.pop()], AfterMs(chance.choice((0, 2_000))))
        elif what == "wait":
            pair.both("wait", chance.choice((0, 900, 6_000)))
        elif what == "end" and step < steps // 2:  # before any damage
            pair.both(chance.choice(("kill", "reopen")))
            pair.in_hand.clear()
        elif what == "end":
            pair.damage(topic, chance.randrange(99))
            pair.neutralise(topic, chance.randrange(99))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("engine", ["levels", "wheel"])
def test_both_ways_receive_the_same(engine: str, seed: int, tmp_path: Path) -> None:
    pair = Pair(engine, tmp_path)
    run_steps(pair, seed, 80)
    for bench in (pair.fast, pair.slow):
        bench.store.abandon()  # type: ignore[attr-defined]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 200))
def test_both_ways_receive_the_same_for_long(seed: int, tmp_path: Path) -> None:
    pair = Pair("levels", tmp_path)
    run_steps(pair, seed, 400)
    for bench in (pair.fast, pair.slow):
        bench.store.abandon()  # type: ignore[attr-defined]


def test_a_damaged_record_among_many_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair("levels", tmp_path)
    for body in "abcdef":
        pair.both("deliver", body, unique_key=body)
    pair.damage("orders", 2)
    with caplog.at_level(logging.WARNING):
        pair.receive("orders", 32, None)
    assert texts([fast for fast, _ in pair.in_hand]) == list("abdef")
    assert (
        "a message that cannot be read is skipped: orders, queue 0, queue offset 2" in caplog.text
    )
    pair.settle("ack", pair.in_hand)
    pair.both("reopen")
    assert pair.both("bodies", pair.fast.group())[0] == []


# --- runs -----------------------------------------------------------------------------------------


def journal_lines(bench: GroupBench) -> list[str]:
    path = bench.folder / "delaywheel" / "consumers"
    return [line.rpartition(" ")[0] for line in path.read_text().splitlines()]


def test_messages_one_behind_another_take_one_line(bench: GroupBench) -> None:
    bench.deliver(*"abcdefgh")
    bench.deliver(*"xyz", queue_id=1)
    group = bench.group()
    received = group.receive("orders")
    before = len(journal_lines(bench))
    group.ack(*received)
    assert len(journal_lines(bench)) == before + 2
    bench.kill()
    assert bench.bodies(bench.group()) == []


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_around_a_message_that_was_acknowledged_counts(
    bench: GroupBench, saved: bool
) -> None:
    bench.deliver(*"abcdefgh")
    group = bench.group()
    a, b, c, d, e, f, g, _ = group.receive("orders")
    group.ack(d)
    group.ack(b, c, d, e, f)
    if saved:
        bench.store.flush()
    group.ack(e, e, f, g, f)
    bench.kill()
    received = bench.group().receive("orders")
    assert texts(received) == ["a", "h"]
    bench.group().ack(a)
    assert bench.group().lag("orders").total == 1
    bench.reopen()
    assert bench.bodies(bench.group()) == ["h"]


def test_the_order_in_which_messages_are_given_does_not_matter(bench: GroupBench) -> None:
    bench.deliver(*"abcdef")
    a, b, c, d, e, f = bench.group().receive("orders")
    place = QueueKey("billing", "orders", 0)
    firsts = [(run.first, run.last) for run in runs_of([a, b, d, e, c, b], "billing")]
    assert firsts == [(0, 4)]
    assert [run[:3] for run in runs_of([f, a, b], "billing")] == [(place, 5, 5), (place, 0, 1)]
    assert runs_of([], "billing") == []
    [run] = runs_of([a], "mailing")
    assert isinstance(run, Run)
    assert run.queue.group == "mailing"


def test_a_message_is_acknowledged_for_the_group_that_is_asked(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    bench.group("mailing").receive("orders", 1)
    received = bench.group("billing").receive("orders")
    bench.group("mailing").ack(*received)
    bench.kill()
    assert bench.bodies(bench.group("mailing")) == []
    assert bench.bodies(bench.group("billing")) == ["a", "b"]


def test_the_last_record_of_a_run_vouches_for_all(bench: GroupBench) -> None:
    """A later record at its queue offset has another identity."""
    bench.deliver(*"abcd")
    group = bench.group()
    group.ack(*group.receive("orders"))
    path = bench.folder / "delaywheel" / "consumers"
    bench.store.abandon()  # type: ignore[attr-defined]
    lines = path.read_bytes().splitlines(keepends=True)
    [run] = [line for line in lines if line.startswith(b"A ")]
    _, number, last, identity, first, _ = run.decode().split(" ")
    assert (last, first) == ("3", "0")
    changed = encode_line(f"A {number} {last} {int(identity) ^ 1} {first}")
    path.write_bytes(b"".join(changed if line == run else line for line in lines))
    bench.store = bench.opened()
    assert bench.bodies(bench.group()) == list("abcd")


def test_a_run_counts_whole_or_not_at_all_wherever_a_process_stops(tmp_path: Path) -> None:
    number, stopped = 0, True
    while stopped:
        bench = GroupBench("levels", tmp_path / str(number))
        bench.deliver(*"abcde")
        bench.store.flush()
        group = bench.group()
        received = group.receive("orders")
        acked: set[str] = set()
        try:
            with stopping_before(bench.folder, number):
                for run in (received[:2], received[3:]):
                    group.ack(*run)
                    acked.update(texts(run))
                    bench.store.flush()
                bench.store.close()
            stopped = False
        except Stopped:
            pass
        bench.kill()
        left = bench.bodies(bench.group())
        assert left in (list("abcde"), list("cde"), ["c"])
        assert not acked & set(left)
        bench.store.close()
        number += 1
    assert number > 10


def test_a_loop_decodes_no_more_than_its_handler_reads(bench: GroupBench) -> None:
    bench.deliver(*"abc")
    seen: list[Received] = []
    left = iter(range(9))
    run_consumers(
        bench.store,
        {("orders", "billing"): seen.append},
        stop=lambda: next(left, None) is None,
    )
    assert [vars(each).keys() & {"stored", "properties"} for each in seen] == [set()] * 3
    assert texts(seen) == list("abc")
    assert seen[0]._replace(topic="other").body == b"a"


@pytest.mark.parametrize("damaged", range(6))
def test_a_seek_to_a_time_passes_a_damaged_record(tmp_path: Path, damaged: int) -> None:
    pair = Pair("levels", tmp_path)
    times_ms = []
    for body in "abcdef":
        times_ms.append(pair.slow.clock.now_ms())
        pair.both("deliver", body, unique_key=body)
        pair.both("wait", 1_000)
    pair.damage("orders", damaged)
    for number, time_ms in enumerate(times_ms):
        group = pair.slow.group(f"from{number}")
        group.seek("orders", AtMs(time_ms))
        wanted = [body for at, body in enumerate("abcdef") if at >= number and at != damaged]
        assert texts(group.receive("orders")) == wanted
