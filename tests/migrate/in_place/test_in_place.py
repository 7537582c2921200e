# SPDX-License-Identifier: Apache-2.0
"""A store converted in place: what is appended, what moves, and what stays as it was."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from message_store.base.errors import BadRecordsError, OptionsError
from message_store.files.store_root import StoreRoot
from migrate.changes.undo import roll_back
from migrate.in_place.convert import convert_in_place
from migrate.settings import TargetSettings
from tests.independent.expected_conversion import (
    expected_of_truth,
    message_of,
    out_ms_of,
    survivors,
)
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    BuiltStore,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    RawBytes,
    build_level_store,
)
from tests.independent.raw_files import queue_units_by_index, read_config
from tests.independent.raw_records import decode_record
from tests.independent.real_stores import (
    LEVELS_49_CLEAN,
    LEVELS_49_CRASH,
    LEVELS_55_CLEAN,
    WHEEL_55_CLEAN,
    unpack,
)
from tests.migrate.in_place_stores import (
    TIMER_QUEUE,
    ask,
    do,
    offsets_text,
    plan,
    timer_records,
    tree,
)

NOW_MS = T0 + 500
FIRST = LevelMessage(level=3, body=b"delivered before")
ITEMS: list[Item] = [
    FIRST,
    OrdinaryMessage(topic="Plain", body=b"not delayed"),
    *(LevelMessage(level=number % 3 + 3, body=bytes(number * 40 + 1)) for number in range(9)),
    LevelMessage(level=18, topic="TopicB", queue_id=3, tags=None),
]
PENDING = [item for item in ITEMS if isinstance(item, LevelMessage) and item is not FIRST]
OFFSETS = {3: 1}


@pytest.fixture
def built(tmp_path: Path) -> BuiltStore:
    return build_level_store(tmp_path / "store", ITEMS, offsets=OFFSETS, commit_log_file_bytes=4096)


def due_ms(built: BuiltStore, item: Item) -> int:
    due = built.of(item).due_ms
    assert due is not None
    return due


def slots(first_ms: int, last_ms: int) -> int:
    """How many slots of a second there are from one to the other."""
    return (last_ms - first_ms) // 1000 + 1


def offsets_of(store: Path) -> dict[int, int]:
    main, backup = (
        (store / "config" / name).read_bytes()
        for name in ("delayOffset.json", "delayOffset.json.bak")
    )
    assert main == backup
    table = read_config(store, "delayOffset.json")["offsetTable"]
    return {int(level): offset for level, offset in table.items()}


def test_a_plan_writes_nothing_and_says_what_will_be_done(built: BuiltStore) -> None:
    before = tree(built.root)
    planned = plan(built.root, NOW_MS)
    assert tree(built.root) == before
    assert not (built.root / "delaywheel").exists()
    done = do(built.root, NOW_MS)
    assert (planned.state, done.state) == ("planned", "done")
    for name in ("log_from", "log_to", "queue_from", "queue_to", "offsets"):
        assert getattr(planned, name) == getattr(done, name)
    told, planned_json = done.as_json(), planned.as_json()
    for facts in (told, planned_json):
        del facts["seconds"], facts["backup"], facts["state"]
    assert told == planned_json
    assert (told["converted"], told["pending"], told["in_place"]) == (len(PENDING),) * 2 + (True,)


def test_every_pending_message_waits_once_for_the_wheel_in_the_order_of_the_log(
    built: BuiltStore,
) -> None:
    do(built.root, NOW_MS)
    found = timer_records(built.root)
    wanted = [built.of(item) for item in PENDING]
    assert [survivors(each.record) for each in found] == [
        survivors(decode_record(p.data)) for p in wanted
    ]
    assert [each.out_ms for each in found] == [
        out_ms_of(due_ms(built, item), 1000) for item in PENDING
    ]
    assert {each.record.store_timestamp_ms for each in found} == {NOW_MS}


def test_the_offsets_move_to_the_ends_and_nothing_else_changes(built: BuiltStore) -> None:
    before = tree(built.root)
    report = do(built.root, NOW_MS)
    assert offsets_of(built.root) == report.offsets == {3: 4, 4: 3, 5: 3, 18: 1}
    after = tree(built.root)
    changed = {name for name in before if after[name] != before[name]}
    log = [name for name in before if name.startswith("commitlog/")]
    assert changed == {"config/delayOffset.json", "config/delayOffset.json.bak", max(log)}
    new = {name for name in after.keys() - before.keys() if not name.startswith("commitlog")}
    assert new == {
        "consumequeue/rmq_sys_wheel_timer", TIMER_QUEUE, f"{TIMER_QUEUE}/{0:020d}",
    }  # fmt: skip


def test_only_the_levels_asked_for_move(built: BuiltStore) -> None:
    report = do(built.root, NOW_MS, only_levels=[4, 18])
    assert offsets_of(built.root) == {3: 1, 4: 3, 18: 1}
    assert report.conversion.total("converted") == len(timer_records(built.root)) == 4
    assert report.conversion.total("skipped") == len(PENDING) - 4
    left = plan(built.root, NOW_MS)
    assert left.conversion.total("pending") == len(PENDING) - 4


def test_one_level_after_the_other_and_back_again(built: BuiltStore) -> None:
    trees = [tree(built.root)]
    for level in (3, 4, 5):
        do(built.root, NOW_MS + level, only_levels=[level])
        trees.append(tree(built.root))
    assert len(timer_records(built.root)) == 9
    for earlier in reversed(trees[:-1]):
        assert roll_back(StoreRoot(built.root), execute=True).state == "rolled back"
        assert tree(built.root) == earlier
    assert roll_back(StoreRoot(built.root), execute=True).state == "nothing to do"


def test_a_second_time_there_is_nothing_to_do(built: BuiltStore) -> None:
    do(built.root, NOW_MS)
    before = tree(built.root)
    again = do(built.root, NOW_MS + 1)
    assert (again.state, again.conversion.total("converted")) == ("nothing to do", 0)
    assert tree(built.root) == before
    notes = {path.name for path in (built.root / "delaywheel").iterdir()}
    assert len(notes - {"queue-ends.json", "log-file-bytes.json"}) == 1


def test_backups_are_for_their_owner_only_and_hold_what_was_there(built: BuiltStore) -> None:
    before = {name: (built.root / name).read_bytes() for name in (
        "config/delayOffset.json", "config/delayOffset.json.bak", "checkpoint",
    )}  # fmt: skip
    report = do(built.root, NOW_MS)
    assert report.backup is not None
    backup = Path(report.backup)
    assert backup == built.root / "delaywheel/backup-20231114T221320500Z"
    assert {name: (backup / name).read_bytes() for name in before} == before
    files = [path for path in backup.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert json.loads((backup / "change.json").read_text())["state"] == "done"


def test_small_files_keep_their_permissions(built: BuiltStore) -> None:
    path = built.root / "config/delayOffset.json"
    path.chmod(0o640)
    do(built.root, NOW_MS)
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_was_delivered_already_is_passed_over(tmp_path: Path) -> None:
    waiting = LevelMessage(level=3, body=b"waits")
    items = [FIRST, waiting, DeliveredCopy(of=FIRST)]
    built = build_level_store(tmp_path / "store", items, offsets={3: 0})
    report = do(built.root, T0 + 10_500)
    assert report.conversion.total("already_delivered") == 1
    assert [each.record.body for each in timer_records(built.root)] == [b"waits"]
    assert offsets_of(built.root) == {3: 2}


@pytest.mark.parametrize(
    ("read_ms", "lowest"),
    [
        (0, T0 + 10_000_000 - 3_600_000),
        (T0 + 9_999_000, T0 + 9_999_000),
        (T0 + 9_998_500, T0 + 9_999_000),
        (T0 + 20_000_000, T0 + 20_000_000),
    ],
    ids=["no wheel yet", "a hand just before now", "between two slots", "a hand after now"],
)
def test_nothing_overdue_lies_before_the_hand_of_the_wheel(
    tmp_path: Path, read_ms: int, lowest: int
) -> None:
    items = [LevelMessage(level=level, body=b"%d" % level) for level in (5, 4, 3, 18)]
    built = build_level_store(tmp_path / "store", items)
    check = read_ms.to_bytes(8, "big").ljust(4096, b"\0")
    (built.root / "config/timercheck").write_bytes(check)
    now_ms = T0 + 10_000_000
    report = do(built.root, now_ms)
    outs = [each.out_ms for each in timer_records(built.root)]
    due = [due_ms(built, item) for item in items]
    assert min(outs) == lowest
    assert max(outs) <= max(now_ms, lowest)
    assert [out for _due, out in sorted(zip(due, outs, strict=True))] == sorted(outs)
    assert len(set(outs)) == min(4, max(1, slots(lowest, now_ms)))
    assert report.conversion.total("overdue") == 4
    assert any("stands later" in said for said in report.conversion.warnings) == (read_ms > now_ms)


def test_a_message_due_within_the_hour_keeps_its_slot(tmp_path: Path) -> None:
    soon, late = LevelMessage(level=5), LevelMessage(level=3)
    built = build_level_store(tmp_path / "store", [soon, late])
    do(built.root, T0 + 30_500)
    outs = {each.record.effective["UNIQ_KEY"]: each.out_ms for each in timer_records(built.root)}
    assert T0 + 59_000 in outs.values()


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
def test_a_message_never_comes_early_at_any_precision(tmp_path: Path, precision_ms: int) -> None:
    items = [LevelMessage(level=3, store_timestamp_ms=T0 + part) for part in (0, 1, 99, 100, 999)]
    built = build_level_store(tmp_path / "store", items)
    do(built.root, T0 + 1000, settings=TargetSettings(precision_ms=precision_ms))
    for each, item in zip(timer_records(built.root), items, strict=True):
        due_ms = built.of(item).due_ms
        assert due_ms is not None
        assert due_ms <= each.out_ms + precision_ms < due_ms + precision_ms


def test_bad_records_stop_it_before_anything_is_written(tmp_path: Path) -> None:
    bad = LevelMessage(level=3, without=["REAL_TOPIC"])
    built = build_level_store(tmp_path / "store", [bad, LevelMessage(level=3)])
    before = tree(built.root)
    with pytest.raises(BadRecordsError, match="1 pending record cannot be converted"):
        do(built.root, NOW_MS)
    assert tree(built.root) == before
    assert not (built.root / "delaywheel").exists()


def test_bad_records_are_kept_aside_when_asked_for(tmp_path: Path) -> None:
    bad = LevelMessage(level=3, without=["REAL_TOPIC"])
    odd = LevelMessage(level=3, extra_pairs=[("__CRC32#", "0"), ("TIMER_ROLL_TIMES", "3")])
    built = build_level_store(tmp_path / "store", [bad, LevelMessage(level=3), odd])
    report = do(built.root, NOW_MS, on_bad_record="quarantine")
    assert report.conversion.total("quarantined") == 1
    assert len(timer_records(built.root)) == 2
    assert offsets_of(built.root) == {3: 3}
    [aside] = Path(str(report.backup)).glob("**/quarantine/*.record")
    assert aside.read_bytes() == built.of(bad).data


def test_records_larger_than_the_wheel_reads_are_bad(tmp_path: Path) -> None:
    built = build_level_store(
        tmp_path / "store", [LevelMessage(level=3, body=bytes(3000)), LevelMessage(level=3)]
    )
    with pytest.raises(BadRecordsError):
        plan(built.root, NOW_MS, settings=TargetSettings(max_message_bytes=2000))
    report = plan(built.root, NOW_MS)
    assert "maxMessageSize" not in report.conversion.broker_conf


def test_the_file_that_a_broker_would_take_is_the_one_that_moves_on(tmp_path: Path) -> None:
    """A torn main file: the `.bak` counts, and both are whole afterwards."""
    built = build_level_store(
        tmp_path / "store", [FIRST, LevelMessage(level=3), LevelMessage(level=4)],
        offsets=b'{\n\t"offsetTa', backup_offsets={3: 1},
    )  # fmt: skip
    report = do(built.root, NOW_MS, only_levels=[4])
    assert offsets_of(built.root) == {3: 1, 4: 1}
    assert any("would find" in said for said in report.conversion.warnings)


def test_another_choice_of_offsets_is_for_the_levels_that_move_only(tmp_path: Path) -> None:
    items = [LevelMessage(level=level) for level in (3, 3, 4, 4)]
    built = build_level_store(
        tmp_path / "store", items, offsets={3: 1, 4: 1}, backup_offsets={3: 0, 4: 0}
    )
    report = do(built.root, NOW_MS, offsets="bak", only_levels=[4])
    assert report.conversion.total("converted") == 2
    assert offsets_of(built.root) == {3: 1, 4: 2}


@pytest.mark.parametrize("dialect", ["4.9", "5.3", "5.5"])
def test_the_offsets_are_written_in_the_hand_of_their_broker(tmp_path: Path, dialect: str) -> None:
    from legacy_levels.delay_offsets import DataVersion, encode_delay_offsets, read_delay_offsets
    from message_store.format.broker_json import ConfigDialect

    hand = ConfigDialect(dialect)
    version = DataVersion(counter=7, timestamp_ms=T0)
    text = encode_delay_offsets({3: 1}, hand, version)
    built = build_level_store(tmp_path / "store", [FIRST, LevelMessage(level=3)], offsets=text)
    do(built.root, NOW_MS)
    found = read_delay_offsets(built.root)
    assert found.offsets == {3: 2}
    both = (ConfigDialect.ROCKETMQ_5_4, ConfigDialect.ROCKETMQ_5_5)
    assert found.dialect in (both if hand in both else (hand,))
    if hand is not ConfigDialect.ROCKETMQ_4_9:
        assert found.main.data_version == DataVersion(counter=8, timestamp_ms=NOW_MS)


def test_a_store_without_offsets_is_one_that_delivered_nothing(tmp_path: Path) -> None:
    built = build_level_store(tmp_path / "store", [LevelMessage(level=3)], offsets=None)
    do(built.root, NOW_MS)
    assert (built.root / "config/delayOffset.json").read_bytes() == offsets_text([(3, 1)])
    assert offsets_of(built.root) == {3: 1}
    roll_back(StoreRoot(built.root), execute=True)
    assert not list((built.root / "config").glob("delayOffset.json*"))


def test_now_must_not_lie_before_the_newest_message(built: BuiltStore) -> None:
    with pytest.raises(OptionsError, match="must not go back"):
        plan(built.root, T0 - 1)


def test_open_before_is_when_the_first_slot_leaves_the_wheel(tmp_path: Path) -> None:
    built = build_level_store(tmp_path / "store", [LevelMessage(level=5)])
    report = plan(built.root, NOW_MS)
    assert report.conversion.open_before_ms == T0 + 59_000 + (7 * 86_400 - 60) * 1000


@pytest.mark.parametrize("has_crashed", [True, False])
def test_messages_that_their_queue_does_not_know_get_their_entry_first(
    tmp_path: Path, has_crashed: bool
) -> None:
    """As when a broker is killed between log and queue: its own recovery is done first."""
    items = [*(LevelMessage(level=number % 2 + 3) for number in range(6)), OrdinaryMessage()]
    built = build_level_store(tmp_path / "store", items, indexed_items=3, abort=has_crashed)
    report = do(built.root, NOW_MS, after_crash=has_crashed)
    assert report.conversion.total("converted") == len(timer_records(built.root)) == 6
    assert offsets_of(built.root) == {3: 3, 4: 3}
    for queue in ("SCHEDULE_TOPIC_XXXX/2", "SCHEDULE_TOPIC_XXXX/3"):
        assert len(queue_units_by_index(built.root / "consumequeue" / queue)) == 3
    assert len(queue_units_by_index(built.root / "consumequeue/TopicA/0")) == 1
    assert (built.root / "abort").exists() == has_crashed
    assert plan(built.root, NOW_MS, after_crash=True).state == "nothing to do"


def test_the_torn_end_of_a_crashed_log_does_not_come_to_light(tmp_path: Path) -> None:
    torn = RawBytes(built_record()[:150])
    built = build_level_store(tmp_path / "store", [LevelMessage(level=3), torn], abort=True)
    do(built.root, NOW_MS, after_crash=True)
    assert len(timer_records(built.root)) == 1
    roll_back(StoreRoot(built.root), execute=True)
    assert plan(built.root, NOW_MS, after_crash=True).conversion.total("pending") == 1
    assert (built.root / "abort").exists()


def built_record() -> bytes:
    """A record that looks whole at its head."""
    return (400).to_bytes(4, "big") + bytes.fromhex("daa320a7") + bytes(392)


# --- what real brokers left -----------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.parametrize("name", [LEVELS_49_CLEAN, LEVELS_49_CRASH, LEVELS_55_CLEAN])
def test_a_real_backlog_waits_for_the_wheel_as_the_truth_says(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    before = tree(store.root)
    report = do(store.root, store.stopped_ms, after_crash=store.is_crashed)
    pending = store.pending_in_levels()
    assert report.conversion.total("converted") == report.conversion.total("pending")
    found = timer_records(store.root)
    late = {each.queue_offset for each in found if each.out_ms < store.stopped_ms}
    wanted = Counter(
        message for message in expected_of_truth(pending) if message.out_ms >= store.stopped_ms
    )
    there = Counter(
        message_of(each.record, each.out_ms) for each in found if each.queue_offset not in late
    )
    assert there == wanted
    assert len(found) == len(pending)
    after = tree(store.root)
    for name in ("checkpoint", "abort", "config/consumerOffset.json", "config/topics.json"):
        assert after.get(name) == before.get(name)
    assert (store.root / "abort").exists() == store.is_crashed


def test_a_store_whose_own_wheel_turns_keeps_what_waits_there(tmp_path: Path) -> None:
    from timer_wheel.reading.wheel_reader import read_wheel_store

    store = unpack(WHEEL_55_CLEAN, tmp_path / "store")
    root = StoreRoot(store.root)
    before = len(read_wheel_store(root, now_ms=store.stopped_ms).pending)
    waiting = {each.queue_offset for each in timer_records(store.root)}
    report = do(store.root, store.stopped_ms)
    after = len(read_wheel_store(root, now_ms=store.stopped_ms).pending)
    converted = report.conversion.total("converted")
    assert converted > 0
    assert after == before + converted
    new = [each for each in timer_records(store.root) if each.queue_offset not in waiting]
    assert [each.queue_offset for each in new] == list(range(report.queue_from, report.queue_to))


def test_progress_is_told(built: BuiltStore) -> None:
    stages: list[str] = []
    convert_in_place(
        ask(built.root, NOW_MS), execute=True, progress=lambda stage, *_: stages.append(stage)
    )
    assert list(dict.fromkeys(stages)) == ["plan", "check", "write", "offsets"]


def test_files_that_root_adds_belong_to_the_owner_of_the_store(built: BuiltStore) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for path in (built.root, *built.root.rglob("*")):
        os.chown(path, 1234, 1235)
    do(built.root, NOW_MS)
    foreign = [
        path.relative_to(built.root).as_posix()
        for path in built.root.rglob("*")
        if (path.stat().st_uid, path.stat().st_gid) != (1234, 1235)
        and "delaywheel" not in path.parts
    ]
    assert foreign == []
