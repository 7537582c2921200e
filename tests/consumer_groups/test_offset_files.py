# SPDX-License-Identifier: Apache-2.0
"""What groups leave in files: stopped at each write, damaged, moved by a broker, without power."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumer_groups import ConsumerGroup
from consumer_groups.groups import groups_of
from message_store import Finding
from message_store.base.errors import TargetError
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    TOPICS,
    encode_consumer_offsets,
    read_config,
    read_consumer_offsets,
    read_groups,
    read_topics,
)
from message_store.files.line_journal import LineJournal, encode_line
from message_store.format.broker_json import ConfigDialect, parse, write
from tests.consumer_groups.group_bench import ENGINE_NAMES, GroupBench, texts
from tests.faults.engines import abandon
from tests.migrate.stops import Stopped, stopping_before

OFFSETS_5_5 = (
    b'{\n\t"dataVersion":{\n\t\t"counter":4\n\t},\n\t"groupTopicMap":{\n\t\t"billing":[\n\t\t\t'
    b'"orders"\n\t\t]\n\t},\n\t"offsetTable":{\n\t\t"T_1@other":{\n\t\t\t0:93,\n\t\t\t1:82\n\t\t},'
    b'\n\t\t"orders@billing":{\n\t\t\t0:2\n\t\t}\n\t}\n}'
)
OFFSETS_4_9 = (
    b'{\n\t"offsetTable":{\n\t\t"orders@billing":{0:2\n\t\t},\n\t\t"T_1@other":{0:93,1:82\n\t\t}'
    b"\n\t}\n}"
)


def journal(bench: GroupBench) -> Path:
    return bench.folder / "delaywheel" / "consumers"


def all_received(bench: GroupBench, group: ConsumerGroup) -> list[str]:
    """All that the group will ever receive, retries and dead letters among them."""
    bench.wait(0)
    found = bench.bodies(group, max_messages=99, invisible_ms=10**9)
    bench.wait(60_000)
    found += bench.bodies(group, max_messages=99)
    return sorted(found + texts(list(group.dead_letters())))


# --- stopped at each write ------------------------------------------------------------------------


class Work:
    """Steps of one consumer: messages whose step returned, and the one whose step was begun."""

    def __init__(self) -> None:
        self.acked: set[str] = set()
        self.given_back: set[str] = set()
        self.begun: set[str] = set()

    def run(self, bench: GroupBench) -> None:
        group = bench.group(max_retries=5)
        a, b, c, d, e, f = group.receive("orders")
        for message in (a, b, d):
            self._ack(group, message)
        bench.store.flush()
        self.begun = {"c"}
        group.retry(c)
        self.given_back.add("c")
        self._ack(group, f)
        self.begun = {"e"}
        group.reject(e)
        self.given_back.add("e")
        self.begun = set()
        bench.clock.tick(10_000)
        bench.store.flush()
        bench.store.close()

    def _ack(self, group: ConsumerGroup, message: object) -> None:
        body = message.body.decode()  # type: ignore[attr-defined]
        self.begun = {body}
        group.ack(message)  # type: ignore[arg-type]
        self.acked.add(body)


@pytest.mark.parametrize(
    ("engine", "stride"),
    [
        ("levels", 9),
        *(pytest.param(name, 1, marks=pytest.mark.check) for name in ENGINE_NAMES),
    ],
)
def test_a_process_that_is_stopped_at_any_write(engine: str, stride: int, tmp_path: Path) -> None:
    number, stopped = 0, True
    while stopped:
        bench = GroupBench(engine, tmp_path / str(number))
        bench.deliver(*"abcdef")
        bench.store.flush()
        work = Work()
        try:
            with stopping_before(bench.folder, number):
                work.run(bench)
            stopped = False
        except Stopped:
            pass
        bench.kill()
        group = bench.group(max_retries=5)
        received = all_received(bench, group)
        kept = set("abcdef") - work.acked
        assert kept - work.begun <= set(received) <= kept, number
        assert len(received) == len(set(received)), number
        assert bench.bodies(group) == [], number
        bench.store.close()
        shutil.rmtree(bench.folder)
        number += stride
    assert number > 20


@pytest.mark.parametrize("advanced", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("step", ["retry", "reject", "redrive"])
def test_a_kill_between_a_retry_and_its_acknowledgement_repeats_nothing(
    bench: GroupBench, step: str, advanced: bool, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.deliver("a", "b")
    bench.deliver("c", topic="other")
    group = bench.group()
    message = group.receive("orders")[0]
    if step == "redrive":
        group.reject(message)
        bench.wait(0)
        [message] = group.dead_letters()
    with monkeypatch.context() as patch:
        patch.setattr(group._table, "gave_back", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            getattr(group, step)(message)
    bench.kill()
    if saved:  # another topic's progress is written down, and this one's stays noted
        bench.group().ack(*bench.group().receive("other"))
        bench.reopen()
    if advanced:
        bench.wait(20_000)
    group = bench.group()
    received = bench.bodies(group, invisible_ms=10**9)
    bench.wait(20_000)
    received += bench.bodies(group)
    letters = texts(list(group.dead_letters()))
    assert sorted(received + letters) == ["a", "b"]
    assert letters == (["a"] if step == "reject" else [])


def test_a_full_disk_leaves_a_message_in_flight(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group()
    a = group.receive("orders")[0]
    with stopping_before(bench.folder, 0), pytest.raises(Stopped):
        group.ack(a)
    assert group.lag("orders").in_flight == 2
    group.ack(a)
    bench.kill()
    assert bench.bodies(bench.group()) == ["b"]


# --- without power --------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
def test_an_acknowledgement_does_not_count_for_another_record(
    bench: GroupBench, closed: bool, tmp_path: Path
) -> None:
    """A loss of power takes the end of the log, and leaves the journal. With ``closed`` even
    consumerOffset.json is ahead of the log, as a broker may leave it.
    """
    bench.deliver("kept")
    bench.store.close()
    shutil.copytree(bench.folder, tmp_path / "before")
    bench.store = bench.opened()
    bench.deliver("a", "b")
    group = bench.group()
    group.ack(*group.receive("orders"))
    if closed:
        bench.store.close()
    else:
        bench.kill()
        bench.store.abandon()  # type: ignore[attr-defined]
    saved = journal(bench).read_bytes()
    offsets = bench.folder / "config" / CONSUMER_OFFSETS
    offset_text = offsets.read_bytes() if closed else None
    shutil.rmtree(bench.folder)
    shutil.copytree(tmp_path / "before", bench.folder)
    journal(bench).write_bytes(saved)
    if offset_text is not None:
        offsets.write_bytes(offset_text)
    bench.store = bench.opened()
    if closed:
        assert bench.bodies(bench.group()) in ([], ["kept"])
    bench.deliver("x", "y")
    received = bench.bodies(bench.group())
    assert received[-2:] == ["x", "y"]
    assert received[:-2] in ([], ["kept"])


# --- damage ---------------------------------------------------------------------------------------


def test_a_journal_that_is_cut_or_damaged_repeats_and_never_loses(tmp_path: Path) -> None:
    bench = GroupBench("levels", tmp_path / "store")
    bench.deliver(*"abcdef")
    group = bench.group()
    a, b, c, d, _, f = group.receive("orders")
    group.ack(a, b)
    group.ack(d)
    group.ack(f)
    bench.store.abandon()  # type: ignore[attr-defined]
    text = journal(bench).read_bytes()
    lengths = range(0, len(text), 7)
    damaged = [text[:length] for length in lengths]
    damaged += [text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :] for at in lengths]
    damaged += [bytes(len(text)), b"\xff" * 99, text + b"A 0 2 17 00000000\n", text + text]
    for content in damaged:
        journal(bench).write_bytes(content)
        bench.store = bench.opened()
        received = bench.bodies(bench.group())
        assert {"c", "e"} <= set(received) <= set("abcdef"), content
        assert received == sorted(received)
        is_whole = content == text + text or (text.startswith(content) and content[-1:] in b"\n")
        assert bool(groups_of(bench.store).table.problems) != is_whole, content
        bench.group().ack(c)  # what is appended can be read again
        bench.kill()
        assert "c" not in bench.bodies(bench.group())
        bench.store.abandon()  # type: ignore[attr-defined]


def test_the_lines_of_a_journal_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = LineJournal(path)
    assert (first.lines, path.exists()) == ([], False)
    first.append([encode_line("one"), encode_line("two words")])
    first.sync(first.begin_sync())
    assert first.begin_sync() is None
    first.close()
    path.write_bytes(path.read_bytes() + encode_line("three")[:-2])
    second = LineJournal(path)
    assert (second.lines, second.has_damage) == (["one", "two words"], True)
    second.append([encode_line("four")])
    second.replace([encode_line("five")])
    second.append([encode_line("six")])
    second.close()
    assert LineJournal(path).lines == ["five", "six"]


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(Exception, match="no ordinary file"):
        LineJournal(tmp_path / "journal")
    (tmp_path / "file").touch()
    with pytest.raises(TargetError):
        LineJournal(tmp_path / "file" / "journal").append([encode_line("one")])


# --- a broker's file ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dialect"), [(OFFSETS_4_9, "4.9"), (OFFSETS_5_5, "5.5")], ids=["4.9", "5.5"]
)
@pytest.mark.parametrize("engine", ["levels", "wheel"])
def test_a_group_goes_on_where_a_broker_left_it(
    text: bytes, dialect: str, engine: str, tmp_path: Path
) -> None:
    bench = GroupBench(engine, tmp_path / "store")
    bench.deliver(*"abcde")
    bench.store.close()
    (bench.folder / "config" / CONSUMER_OFFSETS).write_bytes(text)
    bench.store = bench.opened()
    group = bench.group()
    c, d, e = group.receive("orders")
    assert texts([c, d, e]) == ["c", "d", "e"]
    group.ack(c, e)
    bench.store.close()
    left = (bench.folder / "config" / CONSUMER_OFFSETS).read_bytes()
    assert read_consumer_offsets(bench.folder) == {
        ("orders", "billing"): {0: 3},
        ("T_1", "other"): {0: 0, 1: 0},  # whose queues are not there
    }
    expected: Any = parse(text)
    expected["offsetTable"] |= {"orders@billing": {0: 3}, "T_1@other": {0: 0, 1: 0}}
    ours = ConfigDialect("4.9" if engine == "levels" else "5.5")
    assert left == write(expected, ours)
    expected["offsetTable"]["orders@billing"] = {0: 2}
    assert (bench.folder / "config" / (CONSUMER_OFFSETS + ".bak")).read_bytes() == write(
        expected, ours
    )
    bench.store = bench.opened()
    assert bench.bodies(bench.group()) == ["d"]
    bench.store.close()


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize(
    ("offset", "expected"),
    [(3, "de"), (4, ""), (5, ""), (1, "bcde"), (0, "abcde"), (99, ""), (None, "abcde")],
    ids=["as far", "further", "to the end", "back", "to the beginning", "beyond", "removed"],
)
def test_a_broker_that_moved_the_offset_counts(
    engine: str, offset: int | None, expected: str, tmp_path: Path
) -> None:
    """We left offset 3, with the last message acknowledged ahead of it."""
    bench = GroupBench(engine, tmp_path / "store")
    bench.deliver(*"abcde")
    group = bench.group()
    a, b, c, _, e = group.receive("orders")
    group.ack(a, b, c, e)
    bench.store.close()
    if offset != 3:
        left = {} if offset is None else {("orders", "billing"): {0: offset}}
        content = encode_consumer_offsets(left)
        (bench.folder / "config" / CONSUMER_OFFSETS).write_bytes(content)
    bench.store = bench.opened()
    wanted = "d" if offset == 3 else expected
    assert "".join(bench.bodies(bench.group())) == wanted
    bench.kill()
    assert "".join(bench.bodies(bench.group())) == wanted
    bench.deliver("f")
    assert "".join(bench.bodies(bench.group())) == "f"
    bench.store.close()


def remove_topic(bench: GroupBench, topic: str) -> None:
    """As a broker does: with its queues and with every group's offset in it."""
    bench.store.close()
    shutil.rmtree(bench.folder / "consumequeue" / topic)
    for end in ("log-end", "queue-ends.json"):
        (bench.folder / "delaywheel" / end).unlink(missing_ok=True)
    offsets = read_consumer_offsets(bench.folder)
    left = {names: queues for names, queues in offsets.items() if names[0] != topic}
    content = encode_consumer_offsets(left)
    (bench.folder / "config" / CONSUMER_OFFSETS).write_bytes(content)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_topic_that_was_deleted_and_filled_again_is_received_whole(
    engine: str, again: bool, tmp_path: Path
) -> None:
    """Somebody else fills it, before the group looks: its old offset is in the middle."""
    bench = GroupBench(engine, tmp_path / "store")
    bench.deliver("a", "b")
    bench.deliver("kept", topic="bills")
    group = bench.group()
    group.ack(*group.receive("orders"), *group.receive("bills"))
    remove_topic(bench, "orders")
    bench.store = bench.opened()
    bench.deliver(*"xyz")
    bench.reopen()
    if again:  # what was noted without the topic is no more than that it was removed
        bench.group().ack(*bench.group().receive("bills"))
        bench.deliver("bill", topic="bills")
        bench.group().ack(*bench.group().receive("bills"))
        bench.reopen()
    assert len(bench.group().receive("orders")) == 3
    bench.kill()
    received = bench.group().receive("orders")
    assert len(received) == 3
    bench.group().ack(*received)
    bench.kill()
    assert bench.group().lag("orders").total == bench.group().lag("bills").total == 0
    bench.store.close()


@pytest.mark.parametrize("start", ["first", "last"])
def test_a_group_that_was_deleted_and_made_again_begins_where_it_is_told(
    bench: GroupBench, start: str
) -> None:
    bench.deliver("a", "b")
    bench.group().ack(*bench.group().receive("orders"))
    reopen_with_offsets(bench, {})
    group = bench.group(start=start)
    assert bench.bodies(group) == (["a", "b"] if start == "first" else [])
    bench.deliver("c")
    assert "c" in bench.bodies(group)


def test_an_entry_that_was_not_there_yet_was_not_removed(tmp_path: Path) -> None:
    """The journal alone knows of the group: whatever stops the save, its progress counts."""
    bench = GroupBench("levels", tmp_path / "store")
    bench.deliver(*"abcd")
    number, stopped = 0, True
    while stopped:
        name = f"group{number}"
        group = bench.group(name)
        a, b, *_ = group.receive("orders")
        group.ack(a, b)
        try:
            with stopping_before(bench.folder, number):
                bench.store.flush()
            stopped = False
        except Stopped:
            number += 1
        bench.kill()
        assert bench.bodies(bench.group(name)) == ["c", "d"]
        bench.clock.tick(5_000)
    assert number > 3
    bench.store.close()


def test_a_journal_without_a_note_of_the_save_counts_as_before(bench: GroupBench) -> None:
    """An earlier version left it."""
    bench.deliver(*"abcd")
    group = bench.group()
    group.ack(*group.receive("orders", 2))
    bench.store.close()
    lines = LineJournal(journal(bench)).lines
    assert [line for line in lines if line.startswith("E ")] == ["E 0 2"]
    kept = [encode_line(line) for line in lines if not line.startswith("E ")]
    journal(bench).write_bytes(b"".join(kept))
    bench.store = bench.opened()
    reopen_with_offsets(bench, {})
    assert bench.bodies(bench.group()) == ["c", "d"]


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b'{"offsetTable":{"orders@bil', None])
def test_a_damaged_consumer_offset_json_repeats_nothing(
    bench: GroupBench, content: bytes | None
) -> None:
    bench.deliver(*"abc")
    group = bench.group()
    a, _, c = group.receive("orders")
    group.ack(a, c)
    bench.store.close()
    path = bench.folder / "config" / CONSUMER_OFFSETS
    for name in (path, path.with_name(path.name + ".bak")):
        name.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    bench.store = bench.opened()
    assert bool(groups_of(bench.store).table.problems) == (content is not None)
    assert bench.bodies(bench.group()) == ["b"]
    bench.reopen()
    assert read_consumer_offsets(bench.folder)["orders", "billing"] == {0: 1}


def test_groups_and_topics_that_brokers_need_are_there(bench: GroupBench) -> None:
    (bench.folder / "config").mkdir(exist_ok=True)
    known = b'{"subscriptionGroupTable":{"mailing":{"groupName":"mailing","retryMaxTimes":1}}}'
    (bench.folder / "config" / GROUPS).write_bytes(known)
    bench.deliver("a", "b")
    for name in ("billing", "mailing"):
        group = bench.group(name)
        a, b = group.receive("orders")
        group.retry(a)
        group.reject(b)
    assert bench.group("mailing").max_retries == 1
    bench.reopen()
    groups, topics = read_groups(bench.folder), read_topics(bench.folder)
    assert (groups["billing"].max_retries, groups["mailing"].max_retries) == (16, 1)
    assert groups["billing"].members["retryQueueNums"] == 1
    for topic in ("%RETRY%billing", "%DLQ%billing", "%RETRY%mailing", "%DLQ%mailing"):
        assert (topics[topic].read_queues, topics[topic].write_queues) == (1, 1)
        assert topics[topic].perm == 6
    assert not read_config(bench.folder, TOPICS).problems


def test_a_flush_writes_offsets_at_their_interval(bench: GroupBench) -> None:
    bench.deliver(*"abc")
    group = bench.group()
    for tick_ms, expected in ((0, 1), (4_999, 1), (1, 3)):
        bench.clock.tick(tick_ms)
        [message] = group.receive("orders", max_messages=1, invisible_ms=1)
        group.ack(message)
        bench.store.flush()
        assert read_consumer_offsets(bench.folder)["orders", "billing"] == {0: expected}


def test_what_others_wrote_into_an_entry_stays(bench: GroupBench) -> None:
    bench.deliver("a")
    bench.store.close()
    path = bench.folder / "config" / CONSUMER_OFFSETS
    value = {"offsetTable": {"orders@billing": {"7": 0}}, "future": [1]}
    path.write_bytes(json.dumps(value).encode())
    bench.store = bench.opened()
    bench.group().ack(*bench.group().receive("orders"))
    bench.reopen()
    assert read_config(bench.folder, CONSUMER_OFFSETS).value["future"] == [1]
    assert read_consumer_offsets(bench.folder)["orders", "billing"] == {0: 1, 7: 0}


def test_many_acknowledgements_flush_by_themselves(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer_groups.progress_table._MOST_ACKED", 3)
    bench.deliver(*"abcd")
    group = bench.group()
    for message in group.receive("orders"):
        group.ack(message)
    assert read_consumer_offsets(bench.folder)["orders", "billing"] == {0: 3}


# --- behind the end of a queue --------------------------------------------------------------------


@pytest.mark.parametrize("knows", ["both files", "the broker's alone"])
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_group_behind_the_end_of_a_queue_misses_nothing_that_comes(
    tmp_path: Path, engine: str, knows: str
) -> None:
    """The queue lost its end with the log, and new messages came before anybody asked for the
    group: its offset is in the middle of them.
    """
    bench = GroupBench(engine, tmp_path / "store")
    bench.deliver("a", "b")
    group = bench.group()
    group.ack(*group.receive("orders"))
    bench.reopen()  # saved at 2, and the journal knows that
    bench.deliver("c")
    group = bench.group()
    group.ack(*group.receive("orders"))
    bench.store.close()
    for end in ("log-end", "queue-ends.json"):
        (bench.folder / "delaywheel" / end).unlink(missing_ok=True)
    if knows == "the broker's alone":
        journal(bench).unlink()
    [queue] = (bench.folder / "consumequeue/orders/0").iterdir()
    lose_the_last_record(bench.folder, queue)
    bench.store = bench.opened()
    [told] = found_of_offsets(bench.store)
    assert "read up to 3, and the queue ended at 2" in told.problem
    bench.deliver("d", "e")
    bench.reopen()
    assert not found_of_offsets(bench.store)
    # Where the engine knows the message, whose copy was lost, it delivers it once more.
    assert bench.bodies(bench.group()) in (["d", "e"], ["c", "d", "e"])
    bench.store.close()


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_group_with_offsets_of_another_store_misses_nothing_that_comes(
    tmp_path: Path, engine: str
) -> None:
    """A topic that was deleted and comes again begins at 0, and so does that of a new store."""
    bench = GroupBench(engine, tmp_path / "store")
    reopen_with_offsets(bench, {"orders@billing": {"0": 5, "3": 7}})
    assert len(found_of_offsets(bench.store)) == 2
    assert read_consumer_offsets(bench.folder)["orders", "billing"] == {0: 0, 3: 0}
    bench.deliver("a", "b")
    bench.reopen()
    assert not found_of_offsets(bench.store)
    assert bench.bodies(bench.group()) == ["a", "b"]
    bench.store.close()


@pytest.mark.parametrize("topic", ["orders", "my orders", "a\nb"])
def test_a_name_that_no_engine_takes_ends_no_journal(tmp_path: Path, topic: str) -> None:
    """Whatever consumerOffset.json has: what groups acknowledge later counts after a kill."""
    bench = GroupBench("wheel", tmp_path / "store")
    bench.deliver("a")
    bench.group().ack(*bench.group().receive("orders"))
    reopen_with_offsets(bench, {"orders@billing": {"0": 1}, f"{topic}@other": {"7": 5}})
    bench.deliver("b", "c")
    bench.group().ack(*bench.group().receive("orders"))
    abandon(bench.store)
    bench.store = bench.opened()
    assert bench.bodies(bench.group()) == []
    bench.store.close()


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_group_whose_offset_is_in_the_journal_alone_misses_nothing_that_comes(
    tmp_path: Path, engine: str
) -> None:
    """It went on elsewhere, and a kill came before that was saved; then its queue was lost."""
    bench = GroupBench(engine, tmp_path / "store")
    bench.deliver(*"abcdef")
    bench.group().seek("orders", "last")
    abandon(bench.store)
    lines = journal(bench).read_bytes()
    shutil.rmtree(bench.folder)
    bench.store = bench.opened()
    bench.store.close()
    journal(bench).write_bytes(lines)
    bench.store = bench.opened()
    [told] = found_of_offsets(bench.store)
    assert "read up to 6, and the queue ended at 0" in told.problem
    bench.deliver("g", "h")
    assert bench.bodies(bench.group()) == ["g", "h"]
    bench.store.close()


def reopen_with_offsets(bench: GroupBench, offsets: dict[str, dict[str, int]]) -> None:
    """As if somebody else had written consumerOffset.json since."""
    bench.store.close()
    path = bench.folder / "config" / CONSUMER_OFFSETS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"offsetTable": offsets}))
    bench.store = bench.opened()


def found_of_offsets(store: Any) -> list[Finding]:
    return [each for each in store.found_at_opening() if "consumerOffset" in each.where]


def lose_the_last_record(folder: Path, queue: Path) -> None:
    """Take the last message of a queue's file out of the log, with all behind it."""
    content = queue.read_bytes()
    offset = int.from_bytes(content[40:48], "big")
    log = folder / "commitlog" / f"{0:020}"
    with log.open("r+b") as file:
        size = log.stat().st_size
        file.truncate(offset)
        file.truncate(size)


@pytest.mark.parametrize("name", ["consumerOffset.json", "consumerOffset.json.bak"])
def test_offsets_that_cannot_be_read_keep_no_store_from_opening(tmp_path: Path, name: str) -> None:
    """Nobody may have asked for a group."""
    bench = GroupBench("wheel", tmp_path / "store")
    bench.deliver("a")
    bench.store.close()
    (bench.folder / "config" / name).mkdir()
    bench.store = bench.opened()
    bench.store.close()
    assert not (bench.folder / "abort").exists()
