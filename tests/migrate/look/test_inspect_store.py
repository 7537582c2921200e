# SPDX-License-Identifier: Apache-2.0
"""What ``inspect`` says of real stores and of broken ones; a number it cannot tell is never 0."""

import collections
import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from legacy_levels import LevelStore
from message_store import AtLevel, ManualClock, Message
from message_store.base.errors import SourceError, StoreLockedError
from message_store.interface.delay_store import Pending
from migrate.look.inspect import inspect_store
from migrate.look.inspection import StoreInspection
from migrate.look.pending import pending_messages
from migrate.write.publishing import UNFINISHED_WHEEL
from tests.independent.level_messages import DeliveredCopy, LevelMessage, OrdinaryMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.real_stores import (
    LEVEL_STORES,
    LEVELS_49_CRASH,
    LEVELS_55_CLEAN,
    WHEEL_55_CLEAN,
    RealStore,
    unpack,
)
from tests.independent.tiny_target import MESSAGES, WRITE_TIME_MS, write_tiny_target
from tests.timer_wheel.wheel_store_builder import NOW_MS as WHEEL_NOW_MS
from tests.timer_wheel.wheel_store_builder import WheelStoreBuilder, write_wheel

NOW_MS = T0 + 20_000


@pytest.fixture(scope="module")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RealStore]:
    stores: dict[str, RealStore] = {}

    def get(name: str) -> RealStore:
        if name not in stores:
            stores[name] = unpack(name, tmp_path_factory.mktemp(name) / "store")
        return stores[name]

    return get


def hand_made(tmp_path: Path, **arguments: object) -> Path:
    """Three messages in level 3 of which one was delivered, two in level 5, one ordinary."""
    first = LevelMessage(level=3)
    items = [
        first,
        LevelMessage(level=3, store_timestamp_ms=T0 + 1_000),
        LevelMessage(level=5, store_timestamp_ms=T0 + 2_000),
        LevelMessage(level=5, store_timestamp_ms=T0 + 3_000),
        OrdinaryMessage(store_timestamp_ms=T0 + 4_000),
        DeliveredCopy(of=first),
        LevelMessage(level=3, store_timestamp_ms=T0 + 11_000),
    ]
    root = tmp_path / "store"
    build_level_store(root, items, **({"offsets": {3: 1}} | arguments))  # type: ignore[arg-type]
    return root


def look(root: Path, offsets: str = "auto") -> StoreInspection:
    return inspect_store(root, now_ms=NOW_MS, offsets=offsets)


# --- what is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEVEL_STORES)
def test_the_levels_of_real_stores(name: str, real_store: Callable[[str], RealStore]) -> None:
    store = real_store(name)
    found = inspect_store(store.root, now_ms=store.stopped_ms)
    truth = collections.Counter(line.level for line in store.pending_in_levels())
    assert {level.level: level.pending for level in found.levels if level.pending} == truth
    assert found.pending == sum(truth.values())
    assert found.clean is not store.is_crashed
    assert found.format == ("rocketmq-5" if name == LEVELS_55_CLEAN else "rocketmq-4")
    assert found.next_due_ms is not None
    assert found.overdue is not None
    assert found.overdue < 100


def test_the_wheel_of_a_real_store(real_store: Callable[[str], RealStore]) -> None:
    store = real_store(WHEEL_55_CLEAN)
    found = inspect_store(store.root, now_ms=store.stopped_ms)
    states = collections.Counter(
        (line.state, line.level is None) for line in store.truth if line.state == "pending"
    )
    assert found.wheel is not None
    assert found.wheel.pending == states["pending", True]
    assert found.wheel.precision_ms == 1000
    assert found.pending == sum(states.values())
    assert found.format == "rocketmq-5"


def test_a_crashed_store_is_read_and_said_to_be_crashed(
    real_store: Callable[[str], RealStore],
) -> None:
    found = inspect_store(real_store(LEVELS_49_CRASH).root, now_ms=NOW_MS)
    assert not found.clean
    assert sum(level.already_delivered or 0 for level in found.levels) == 206
    assert any("without closing the store" in problem for problem in found.problems)


def test_a_hand_made_store(tmp_path: Path) -> None:
    found = look(hand_made(tmp_path))
    three, five = found.levels
    assert (three.level, three.delay_ms, three.offset) == (3, 10_000, 1)
    assert (three.queue_min, three.queue_max, three.pending, three.overdue) == (0, 3, 2, 1)
    assert three.next_due_ms == T0 + 11_000
    assert (five.level, five.offset, five.pending, five.overdue) == (5, None, 2, 0)
    assert (found.pending, found.overdue, found.clean, found.wheel) == (4, 1, True, None)
    assert found.problems == ()
    assert [each.name for each in found.files] == [
        "checkpoint", "commitlog", "config", "consumequeue", "lock",
    ]  # fmt: skip
    assert found.as_json()["levels"][0]["delay_ms"] == 10_000


def test_a_store_without_delayed_messages_has_none_pending(tmp_path: Path) -> None:
    build_level_store(tmp_path / "store", [OrdinaryMessage()])
    found = look(tmp_path / "store")
    assert (found.pending, found.levels, found.next_due_ms) == (0, (), None)


def test_a_level_that_is_done_has_none_pending_and_still_its_queue(tmp_path: Path) -> None:
    first = LevelMessage(level=3)
    build_level_store(tmp_path / "store", [first, DeliveredCopy(of=first)], offsets={3: 1})
    [level] = look(tmp_path / "store").levels
    assert (level.offset, level.queue_min, level.queue_max, level.pending) == (1, 0, 1, 0)


def test_the_delays_of_another_table_are_told_and_pointed_out(tmp_path: Path) -> None:
    found = look(hand_made(tmp_path, level_table="1s 5s 7s 30s 90s"))
    assert [level.delay_ms for level in found.levels] == [7_000, 90_000]
    assert found.pending == 4
    assert [p for p in found.problems if p.startswith("level 3 delays by 7s")] != []


def test_a_fresh_target_with_a_wheel(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "target")
    found = inspect_store(tmp_path / "target", now_ms=WRITE_TIME_MS)
    assert found.wheel is not None
    assert (found.wheel.pending, found.pending) == (len(MESSAGES), len(MESSAGES))
    assert found.wheel.units == len(MESSAGES)


def test_what_was_recalled_is_not_pending_and_who_delivers_it_all_the_same_is_said(
    tmp_path: Path,
) -> None:
    builder = WheelStoreBuilder(tmp_path / "store")
    out_ms = WHEEL_NOW_MS + 60_000
    for key, marker_text in (("A", "A"), ("B", "TopicA+B"), ("C", None)):
        builder.put_and_place(out_ms, key=key)
        if marker_text:
            builder.place(builder.put(out_ms, key=key, deletes=marker_text), out_ms, flags=5)
    root = builder.stop().path
    found = inspect_store(root, now_ms=WHEEL_NOW_MS)
    assert found.wheel is not None
    assert (found.wheel.pending, found.wheel.cancelled) == (1, 2)
    [said] = [problem for problem in found.problems if "recalled" in problem]
    assert said.startswith("1 message of the wheel was recalled in the form of 5.3.2 and 5.3.3")
    assert "appendTopicForTimerDeleteKey=true" in said
    waiting = pending_messages(root, now_ms=WHEEL_NOW_MS)
    assert [each.unique_key for each in waiting if isinstance(each, Pending)] == ["C"]


def test_a_wheel_that_is_in_snapshots_is_seen_whole(tmp_path: Path) -> None:
    """A broker with `timerWheelSnapshotFlush` leaves zeros in the file. Found by random runs."""
    builder = WheelStoreBuilder(tmp_path / "store")
    for ahead_s in range(60, 78):
        builder.put_and_place(WHEEL_NOW_MS + ahead_s * 1000)
    snapshot, position = builder.remembered(), len(builder.log)
    root = builder.stop(slots={}).path
    write_wheel(root / f"timerwheel.{position}", snapshot)
    found = inspect_store(root, now_ms=WHEEL_NOW_MS)
    assert found.wheel is not None
    assert found.wheel.pending == 18
    assert len(list(pending_messages(root, now_ms=WHEEL_NOW_MS))) == 18


def test_what_a_crashed_broker_delivered_from_its_wheel_is_left_out_and_said(
    tmp_path: Path,
) -> None:
    builder = WheelStoreBuilder(tmp_path / "store")
    for key in ("A", "B"):
        builder.put_and_place(WHEEL_NOW_MS, key=key)
    builder.deliver(0, stored_ms=WHEEL_NOW_MS + 1_010)
    root = builder.stop().path
    (root / "abort").touch()
    found = inspect_store(root, now_ms=WHEEL_NOW_MS + 5_000)
    assert found.wheel is not None
    assert found.wheel.pending == 1
    assert any("1 entry of the wheel" in problem for problem in found.problems)
    waiting = pending_messages(root, now_ms=WHEEL_NOW_MS + 5_000)
    assert [each.unique_key for each in waiting if isinstance(each, Pending)] == ["B"]


# --- what is damaged ------------------------------------------------------------------------------


def test_offsets_on_which_no_broker_starts_leave_the_number_open(tmp_path: Path) -> None:
    root = hand_made(tmp_path, offsets=b"\0" * 40, backup_offsets=b'{"offsetTable":{3:')
    found = look(root)
    assert (found.pending, found.offsets_source) == (None, None)
    assert [level.pending for level in found.levels] == [None, None]
    assert [level.queue_max for level in found.levels] == [3, 2]
    words = "\n".join(found.problems)
    assert "filled with NUL bytes" in words
    assert "--offsets none delivers 5" in words


def test_each_choice_of_damaged_offsets_can_be_looked_at(tmp_path: Path) -> None:
    root = hand_made(tmp_path, offsets=b"\0" * 40, backup_offsets=b'{"offsetTable":{3:1,')
    assert look(root, "bak").pending == 4
    # Everything from the queues' beginnings, but for what the log shows as delivered.
    assert look(root, "none").pending == 4
    with_copies = [level.already_delivered for level in look(root, "none").levels]
    assert with_copies == [1, 0]


def test_a_good_backup_is_used_and_named(tmp_path: Path) -> None:
    found = look(hand_made(tmp_path, offsets=b"", backup_offsets={3: 1}))
    assert (found.pending, found.offsets_source) == (4, "bak")
    assert any("delayOffset.json: empty" in problem for problem in found.problems)


def test_offsets_outside_the_queue_are_named(tmp_path: Path) -> None:
    found = look(hand_made(tmp_path, offsets={3: 77, 5: 0}))
    assert any("level 3: offset 77 lies outside" in problem for problem in found.problems)


def test_a_queue_that_begins_late_and_has_no_offset_is_named(tmp_path: Path) -> None:
    items = [LevelMessage(level=18) for _ in range(60)]
    root = tmp_path / "store"
    build_level_store(root, items, offsets={5: 0}, queue_file_bytes=200)
    min((root / "consumequeue/SCHEDULE_TOPIC_XXXX/17").iterdir()).unlink()
    [problem] = [each for each in look(root).problems if "begins at" in each]
    assert problem.endswith(
        "no offset is known, and its queue begins at 10; a broker goes on there"
    )


def test_levels_that_the_offsets_should_name_or_that_nobody_has_are_said_in_one_line(
    tmp_path: Path,
) -> None:
    root = hand_made(tmp_path, offsets={0: 4, 5: 0, 99: 1})
    [said] = [each for each in look(root).problems if "names" in each or "not name" in each]
    assert said.startswith(str(root / "config/delayOffset.json"))
    assert "does not name level 3: a broker begins anew there" in said
    assert "names levels 0, 99, which the level table does not have" in said


def test_a_queue_with_a_hole_leaves_the_number_open(tmp_path: Path) -> None:
    root = tmp_path / "store"
    build_level_store(root, [LevelMessage(level=3)] * 60, queue_file_bytes=10 * 20)
    (root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / f"{200:020d}").unlink()
    found = look(root)
    assert found.pending is None
    assert [level.pending for level in found.levels] == [None]
    assert any("level 3 cannot be read" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("name", "length"), [("commitlog/00000000000000000000", 5_000), ("timerlog/" + "0" * 20, 7)]
)
def test_files_of_a_wrong_length_are_named(tmp_path: Path, name: str, length: int) -> None:
    root = hand_made(tmp_path, commit_log_file_bytes=1024)
    path = root / name
    path.parent.mkdir(exist_ok=True)
    other = path.with_name(f"{1024:020d}")
    if not other.exists():
        other.write_bytes(b"\0" * 1024)
    path.write_bytes((path.read_bytes() if path.exists() else b"").ljust(length, b"\0"))
    problems = look(root).problems
    assert any(f"{path}: {length:,} bytes long, not 1,024" in problem for problem in problems)


def test_a_missing_log_file_is_named(tmp_path: Path) -> None:
    root = hand_made(tmp_path, commit_log_file_bytes=600)
    (root / "commitlog" / f"{600:020d}").unlink()
    assert any("a file is missing between" in problem for problem in look(root).problems)


def test_messages_beyond_the_end_of_the_log_are_pending_and_named(tmp_path: Path) -> None:
    root = hand_made(tmp_path, commit_log_file_bytes=1024)
    (root / "commitlog" / f"{1024:020d}").unlink()
    found = look(root)
    assert found.pending == 4
    assert found.beyond_log == 1
    assert any("beyond the end of the log" in problem for problem in found.problems)
    assert CliRunner().invoke(cli.main, ["inspect", str(root)]).exit_code == cli.SOURCE_UNREADABLE


def test_a_wheel_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    root = hand_made(tmp_path)
    (root / "timerwheel").write_bytes(b"\0" * 320)
    found = look(root)
    assert found.wheel is not None
    assert (found.wheel.pending, found.pending) == (None, None)
    [said] = [each for each in found.problems if "not the length of a timer wheel" in each]
    assert "makes it anew from the timer log" in said


def test_an_unfinished_conversion_is_recognised(tmp_path: Path) -> None:
    root = hand_made(tmp_path)
    (root / "timerwheel").write_bytes(UNFINISHED_WHEEL)
    found = look(root)
    assert found.pending is None
    assert any("unfinished conversion" in problem for problem in found.problems)


def test_a_conversion_that_has_only_begun_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "delaywheel" / "staging").mkdir(parents=True)
    words = "an unfinished conversion; run the same convert command again"
    with pytest.raises(SourceError, match=words):
        look(tmp_path)


def test_what_is_left_of_a_finished_conversion_is_no_unfinished_one(tmp_path: Path) -> None:
    write_tiny_target(tmp_path)
    before = look(tmp_path).problems
    (tmp_path / "delaywheel" / "staging").mkdir(parents=True)
    (tmp_path / "delaywheel" / "conversion.json").write_text("{}")
    assert look(tmp_path).problems == before


def test_what_was_cancelled_or_came_before_its_turn_is_not_called_lost(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    with LevelStore.open(tmp_path, clock=clock) as store:
        waits, cancelled, _ = (
            store.schedule(Message("orders", b"x"), AtLevel(5)) for _ in range(3)
        )
        store.cancel(cancelled)
    found = look(tmp_path)
    [level] = found.levels
    assert (level.pending, level.neutral, level.expired) == (2, 1, 0)
    assert "1 message behind the offsets was cancelled" in "".join(found.problems)
    assert waits.due_ms == level.next_due_ms


def test_damaged_topics_do_not_stop_anybody(tmp_path: Path) -> None:
    root = hand_made(tmp_path)
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_bytes(b'{"topicConfigTable":{')
    found = look(root)
    assert found.pending == 4
    assert any("topics.json: truncated" in problem for problem in found.problems)


# --- what is refused ------------------------------------------------------------------------------


def test_a_queue_directory_that_leads_out_of_the_store_is_refused(tmp_path: Path) -> None:
    root = hand_made(tmp_path)
    (root / "consumequeue").rename(tmp_path / "elsewhere")
    (root / "consumequeue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="leads outside the store"):
        look(root)


def test_a_store_that_a_broker_holds_is_refused(tmp_path: Path) -> None:
    root = hand_made(tmp_path)
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        f"fcntl.lockf(file, {int(fcntl.LOCK_EX)}, 1)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match="stop the broker first"):
            look(root)
        broker.communicate()
    assert look(root).pending == 4
