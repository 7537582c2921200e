# SPDX-License-Identifier: Apache-2.0
"""Stores and settings with which a change in place would lose or repeat messages are refused by
name, and nothing is written.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from legacy_levels import LevelStore
from message_store import ManualClock
from message_store.base.errors import (
    BadRecordsError,
    DelayStoreError,
    OptionsError,
    OtherEngineWarning,
    PlanError,
    SourceError,
    StoreLockedError,
    UncleanStoreError,
    UnsupportedStoreError,
)
from message_store.files.store_root import StoreRoot
from message_store.reading.topic_listing import list_topic
from message_store.reading.unfinished_change import DONE
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.in_place.plan import plan_in_place
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.quarantine.kept import Quarantine
from migrate.report.report import BadRecord
from migrate.settings import ConvertOptions, TargetSettings
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store
from tests.independent.real_stores import WHEEL_55_CLEAN, unpack
from tests.migrate.check_store_cases import begun_change
from tests.migrate.in_place_stores import ask, do, plan, tree
from timer_wheel import HierarchicalWheelStore, WheelStore

NOW_MS = T0 + 500


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "store", [LevelMessage(level=3), LevelMessage(level=4)])
    return tmp_path / "store"


def refused(store: Path, kind: type[DelayStoreError], words: str, **more: Any) -> None:
    """Plan and change alike; nothing is written."""
    before = tree(store)
    for act in (plan, do):
        with pytest.raises(kind, match=words):
            act(store, NOW_MS, **more)
    assert tree(store) == before
    assert not (store / "delaywheel").exists()


def make(name: str) -> Callable[[Path], None]:
    def add(store: Path) -> None:
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)

    return add


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (make("dledger-n0/data/0"), "DLedger"),
        (make("consumequeue/CURRENT"), "RocksDB"),
        (make("consumequeue_rocksdb/CURRENT"), "RocksDB"),
        (make(f"consumequeue_ext/SCHEDULE_TOPIC_XXXX/2/{0:020d}"), "extension units"),
        (make(f"batchconsumequeue/T/0/{0:020d}"), "batch consume queues"),
        (make("epochFileCheckpoint"), "group with a controller"),
        (make("brokerIdentity"), "group with a controller"),
    ],
    ids=["dledger", "rocksdb", "rocksdb apart", "ext", "batch", "epochs", "identity"],
)
def test_a_kind_of_store_that_cannot_be_appended_to(
    store: Path, change: Callable[[Path], None], words: str
) -> None:
    change(store)
    refused(store, UnsupportedStoreError, words)


@pytest.mark.parametrize(
    ("conf", "kind", "words"),
    [
        ({"brokerRole": "SLAVE"}, UnsupportedStoreError, "slave"),
        ({"enableDLegerCommitLog": "true"}, UnsupportedStoreError, "DLedger group"),
        ({"enableControllerMode": "TRUE"}, UnsupportedStoreError, "controller"),
        ({"duplicationEnable": "true"}, UnsupportedStoreError, "duplicates"),
        ({"storeType": "defaultRocksDB"}, UnsupportedStoreError, "RocksDB"),
        ({"enableConsumeQueueExt": "true"}, UnsupportedStoreError, "extension units"),
        ({"timerWheelEnable": "false"}, UnsupportedStoreError, "without a wheel"),
        ({"timerStopEnqueue": "true"}, UnsupportedStoreError, "places nothing"),
        ({"timerStopDequeue": "true"}, UnsupportedStoreError, "stands still"),
        ({"timerRocksDBEnable": "true"}, UnsupportedStoreError, "timeline in RocksDB"),
        ({"mappedFileSizeCommitLog": "1073741824"}, OptionsError, "would not start"),
        ({"mappedFileSizeConsumeQueue": "40"}, OptionsError, "would not start"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_broker_with_such_a_setting(
    store: Path, conf: dict[str, str], kind: type[DelayStoreError], words: str
) -> None:
    before = tree(store)
    with pytest.raises(kind, match=words):
        convert_in_place(ask(store, NOW_MS), confs=[conf], execute=True)
    assert tree(store) == before


def test_a_broker_with_other_settings_is_fine(store: Path) -> None:
    conf = {
        "brokerRole": "ASYNC_MASTER",
        "timerWheelEnable": "true",
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
    }
    assert convert_in_place(ask(store, NOW_MS), confs=[conf], execute=True).state == "done"


def test_topics_are_refused_with_the_reason(store: Path) -> None:
    refused(store, OptionsError, "a level has one delivery offset", only_topics=["TopicA"])


def test_what_says_nothing_in_place_is_refused(store: Path) -> None:
    refused(store, OptionsError, "--whole-log cannot", whole_log=True)
    refused(store, OptionsError, "--levels-only", levels_only=True)
    refused(store, OptionsError, "no queue of level 7", only_levels=[7])


def test_a_now_that_has_not_come_is_refused(store: Path) -> None:
    with pytest.raises(OptionsError, match="later than this machine's clock"):
        do(store, 4_000_000_000_000)


def test_a_store_that_was_not_stopped_cleanly(store: Path) -> None:
    (store / "abort").touch()
    refused(store, UncleanStoreError, "--after-crash")


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1)
print("held", flush=True)
time.sleep(600)
"""


def test_a_store_that_a_broker_holds(store: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store / "lock")], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            refused(store, StoreLockedError, "stop the broker first")
        finally:
            holder.kill()


def test_a_plan_does_not_shut_readers_out(store: Path) -> None:
    with (store / "lock").open("rb") as other:
        fcntl.lockf(other, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
        assert plan(store, NOW_MS).state == "planned"


def test_no_store_at_all(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SourceError):
            do(place, NOW_MS)
    assert not (tmp_path / "nothing").exists()


# --- the store's own wheel ------------------------------------------------------------------------


@pytest.fixture
def used(tmp_path: Path) -> tuple[Path, int]:
    """A store of a real 5.5.0 whose wheel holds messages."""
    store = unpack(WHEEL_55_CLEAN, tmp_path / "store")
    return store.root, store.stopped_ms


def refused_wheel(used: tuple[Path, int], kind: type[DelayStoreError], words: str) -> None:
    store, now_ms = used
    before = tree(store)
    with pytest.raises(kind, match=words):
        do(store, now_ms)
    assert tree(store) == before


def test_a_wheel_that_lost_its_log(used: tuple[Path, int]) -> None:
    for path in (used[0] / "timerlog").iterdir():
        path.unlink()
    refused_wheel(used, UnsupportedStoreError, "timerlog: has no units")


def test_a_wheel_that_lost_its_checkpoint(used: tuple[Path, int]) -> None:
    (used[0] / "config/timercheck").unlink()
    refused_wheel(used, UnsupportedStoreError, "timercheck: is missing or empty")


def test_a_wheel_that_is_ahead_of_its_queue(used: tuple[Path, int]) -> None:
    files = sorted((used[0] / "consumequeue/rmq_sys_wheel_timer/0").iterdir())
    data = bytearray(files[-1].read_bytes())
    size = len(data.rstrip(b"\0")) // 20 * 20
    data[size - 100 :] = bytes(len(data) - size + 100)
    files[-1].write_bytes(data)
    refused_wheel(used, DelayStoreError, "skip appended records|no queue knew")


def test_a_wheel_of_another_precision(used: tuple[Path, int]) -> None:
    store, now_ms = used
    with pytest.raises(OptionsError, match="a precision of 1000 ms, not 100"):
        do(store, now_ms, settings=TargetSettings(precision_ms=100))


def test_a_wheel_of_ours_that_holds_nothing_has_a_precision_all_the_same(store: Path) -> None:
    """An engine would refuse another one for what is then on its way there."""
    with pytest.warns(OtherEngineWarning):
        WheelStore.open(store, clock=ManualClock(NOW_MS), precision_ms=100).close()
    before = tree(store)
    with pytest.raises(OptionsError, match="a precision of 100 ms, not 1000"):
        do(store, NOW_MS)
    assert tree(store) == before
    do(store, NOW_MS, settings=TargetSettings(precision_ms=100))


# --- a log that a broker would cut off ------------------------------------------------------------


def flip(data: bytes) -> bytes:
    """A body that is not what its checksum says; its own is the message's last "hello"."""
    return data.replace(b"hello", b"olleh")


def unwritten(data: bytes) -> bytes:
    return bytes(len(data))


def harmed(root: Path, at: int, damage: Callable[[bytes], bytes], **sizes: Any) -> Path:
    items = [
        LevelMessage(level=3, damage=damage if number == at else None) for number in range(100)
    ]
    build_level_store(root, items, **sizes)
    return root


@pytest.mark.parametrize("damage", [flip, unwritten])
@pytest.mark.parametrize("at", [3, 99], ids=["within", "the last"])
def test_a_log_that_a_broker_cuts_off_is_not_appended_to(
    tmp_path: Path, damage: Callable[[bytes], bytes], at: int
) -> None:
    """A broker ends the log at the damage: all that was appended would go with the rest."""
    store = harmed(tmp_path / "store", at, damage)
    for policy in ("fail", "quarantine"):
        refused(
            store, SourceError, "cut.* off.*fresh store with --on-bad-record", on_bad_record=policy
        )
    (store / "abort").touch()
    before = tree(store)
    if at == 3:  # behind the end of what is whole, recovery may do what a broker does
        for act in (plan, do):
            with pytest.raises(SourceError, match="cuts off"):
                act(store, NOW_MS, after_crash=True, on_bad_record="quarantine")
        assert tree(store) == before


@pytest.mark.parametrize("damage", [flip, unwritten])
@pytest.mark.parametrize("file_bytes", [1 << 20, 4096], ids=["recent", "old"])
def test_a_change_in_place_says_of_a_damaged_body_what_pending_says(
    tmp_path: Path, damage: Callable[[bytes], bytes], file_bytes: int
) -> None:
    store = harmed(tmp_path / "store", 3, damage, commit_log_file_bytes=file_bytes)
    found = pending_messages(store, now_ms=NOW_MS)
    [bad] = [one for one in found if isinstance(one, BadRecord)]
    with pytest.raises((SourceError, BadRecordsError)) as stopped:
        plan(store, NOW_MS)
    if isinstance(stopped.value, BadRecordsError):
        assert file_bytes == 4096
        [record] = stopped.value.records
        assert isinstance(record, BadRecord)
        assert record.commit_log_offset == bad.commit_log_offset
        assert record.reason.endswith(bad.reason)
    else:
        told = f"log offset {bad.commit_log_offset} cannot be read: {bad.reason}. A broker"
        assert told in str(stopped.value)


def test_damage_before_all_that_a_broker_looks_at_is_set_aside(tmp_path: Path) -> None:
    store = harmed(tmp_path / "store", 3, flip, commit_log_file_bytes=4096)
    assert len(list((store / "commitlog").iterdir())) > 4
    report = do(store, NOW_MS, on_bad_record="quarantine")
    assert (report.conversion.total("converted"), report.state) == (99, "done")


def test_a_change_that_was_refused_in_the_end_leaves_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what it would have set aside: nobody is told of a change that never was."""
    build_level_store(
        store.with_name("other"),
        [LevelMessage(level=3, without=["REAL_QID"]), LevelMessage(level=3)],
    )
    store = store.with_name("other")
    before = tree(store)

    def unlike(root: StoreRoot, options: ConvertOptions, **given: Any) -> Any:
        planned = plan_in_place(root, options, **given)
        return attrs.evolve(planned, offsets={3: 1})

    monkeypatch.setattr("migrate.in_place.convert.plan_in_place", unlike)
    with pytest.raises(PlanError, match="queues did not know"):
        do(store, NOW_MS, on_bad_record="quarantine")
    assert {name: kept for name, kept in tree(store).items() if name != "lock"} == {
        name: kept for name, kept in before.items() if name != "lock"
    }
    assert not (store / "delaywheel").exists()


def test_nobody_works_on_a_store_whose_change_was_stopped(store: Path, tmp_path: Path) -> None:
    """Its messages may stand in the levels and on the wheel; what only looks, looks."""
    change = begun_change(store)
    before = tree(store)
    for engine in (LevelStore, WheelStore, HierarchicalWheelStore):
        with pytest.raises(SourceError, match=r"stopped in its middle.*rollback"):
            engine.open(store, clock=ManualClock(NOW_MS))
    with pytest.raises(SourceError, match="stopped in its middle"):
        list(pending_messages(store, now_ms=NOW_MS))
    for more in (False, True):
        options = ConvertOptions(
            source=store,
            target=tmp_path / "target",
            now_ms=NOW_MS,
            levels_only=more,
            after_crash=more,
        )
        with pytest.raises(SourceError, match="stopped in its middle"):
            convert(options)
    assert not (tmp_path / "target").exists()
    assert "stopped in its middle" in inspect_store(store, now_ms=NOW_MS).problems[0]
    assert list(list_topic(store, "TopicA")) == []
    assert Quarantine(store).records == ()
    assert tree(store) == before
    change.write(DONE)
    with LevelStore.open(store, clock=ManualClock(NOW_MS)) as opened:
        assert len(list(opened.pending())) == 2


def test_what_is_refused_after_a_crash_was_not_recovered(tmp_path: Path) -> None:
    """ "Nothing was written" holds for the queues too, which a recovery would write."""
    store = tmp_path / "store"
    items = [LevelMessage(level=5), LevelMessage(level=5, body=b""), LevelMessage(level=3)]
    build_level_store(store, items, indexed_items=2, abort=True)
    before = tree(store)
    with pytest.raises(BadRecordsError, match="nothing was written"):
        do(store, NOW_MS, after_crash=True)
    assert tree(store) == before


def test_what_leads_behind_a_log_that_the_power_cut_is_taken_away_first(tmp_path: Path) -> None:
    """A queue may be ahead of the log then; recovery cuts it, as a broker does."""
    built = build_level_store(
        tmp_path / "store", [LevelMessage(level=5), LevelMessage(level=3)], abort=True
    )
    [log] = (built.root / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size:] = bytes(len(data) - size)
    log.write_bytes(data)
    assert do(built.root, NOW_MS, after_crash=True).conversion.total("converted") == 1
