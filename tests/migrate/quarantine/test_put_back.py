# SPDX-License-Identifier: Apache-2.0
"""What a conversion set aside is listed, and goes back once: whatever stops the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import cli
from legacy_levels.engine.store import LevelStore
from message_store import AtLevel, Message
from message_store.base.clock import ManualClock
from message_store.base.errors import PlanError, SourceError, StoreLockedError
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import StoredMessage
from message_store.format.record_layout import HEAD_V4_V4
from message_store.reading.engine_choice import EngineName
from migrate.convert import convert, convert_merged
from migrate.quarantine.kept import Quarantine, Repair, obstacles
from migrate.quarantine.restore import (
    DONE,
    NOTHING,
    PLANNED,
    RecordInserter,
    RestoreOptions,
    RestoreReport,
    restore_records,
)
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, build_and_convert, options_for
from timer_wheel.wheel.store import WheelStore

STORED_MS = NOW_MS - 60_000
DUE_MS = STORED_MS + 7_200_000


def text(unique_key: str) -> bytes:
    """Properties that say another level than the queue does."""
    pairs = [("REAL_TOPIC", "T"), ("UNIQ_KEY", unique_key), ("DELAY", "7"), ("mine", "x")]
    pairs.append(("REAL_QID", "1"))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def message(number: int, **wrong: Any) -> LevelMessage:
    """Of level 18, each a second after the one before."""
    facts: dict[str, Any] = {
        "store_timestamp_ms": STORED_MS + number * 1000,
        "body": b"body %d" % number,
    }
    return LevelMessage(level=18, **(facts | wrong))


ITEMS = [
    message(1),
    message(2, raw_properties=text("K2"), reconsume_times=3, flag=9),
    message(3, without=["REAL_QID"]),
    message(4, record_fields={"body_crc": 7}),
    message(5, raw_properties=text("K5"), compress_body=True),
    message(6, damage=lambda data: bytes(len(data))),
]
"""One is fine; two and five say another level; three and four can be repaired; six is lost."""

FILES = [f"level-18-{number}.record" for number in range(6)]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted")
    build_and_convert(path, ITEMS, on_bad_record="quarantine")
    return path / "target"


@pytest.fixture
def target(converted: Path, tmp_path: Path) -> Path:
    shutil.copytree(converted, tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def levels(tmp_path: Path) -> Path:
    """A level store of a stopped broker, in which one message waits."""
    build_level_store(tmp_path / "levels", [message(0, unique_key="K0")], queue_file_bytes=2000)
    return tmp_path / "levels"


def back(quarantine: Path, store: Path, *, execute: bool = True, **options: Any) -> RestoreReport:
    request = RestoreOptions(quarantine=quarantine, store=store, **options)
    return restore_records(request, execute=execute, clock=ManualClock(NOW_MS))


def files_of(report: RestoreReport) -> list[str]:
    return [row.file for row in report.put_back]


def delivered(store: Path, engine: Any = WheelStore) -> list[StoredMessage]:
    """Everything that a store delivers until everything is due."""
    at_ms = DUE_MS + 3_600_000
    with engine.open(store, clock=ManualClock(at_ms)) as opened:
        return [each.message for each in opened.advance(at_ms)]


# --- looking --------------------------------------------------------------------------------------


def test_what_was_set_aside_is_listed_with_what_is_in_the_way(target: Path) -> None:
    found = Quarantine(target)
    assert [record.file for record in found.records] == FILES[1:]
    assert found.records[0].due_ms == DUE_MS + 2000
    reasons = obstacles(found)
    assert [bool(reasons[file]) for file in FILES[1:]] == [False, True, True, False, True]
    assert "--queue-id" in reasons[FILES[2]]
    assert "damaged" in reasons[FILES[3]]
    assert Quarantine(target / "delaywheel/quarantine").records == found.records


def test_the_books_add_up_by_level_and_say_what_went_back(target: Path) -> None:
    [before] = Quarantine(target).accounts()
    assert (before.pending, before.converted, before.skipped, before.quarantined) == (6, 1, 0, 5)
    assert before.adds_up
    assert before.put_back == 0
    back(target, target)
    [after] = Quarantine(target).accounts()
    assert (after.quarantined, after.put_back, after.adds_up) == (5, 2, True)


def test_a_plan_writes_nothing(target: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in target.rglob("*"))
    report = back(target, target, execute=False)
    assert report.state == PLANNED
    assert files_of(report) == [FILES[1], FILES[4]]
    assert set(report.in_the_way) == {FILES[2], FILES[3], FILES[5]}
    assert sorted((path, path.stat().st_mtime_ns) for path in target.rglob("*")) == before


# --- going back -----------------------------------------------------------------------------------


def test_records_go_back_onto_the_wheel_as_they_were(target: Path) -> None:
    report = back(target, target)
    assert (report.state, report.engine) == (DONE, "wheel")
    found = {message.unique_key: message for message in delivered(target)}
    assert len(found) == 3
    two, five = found["K2"], found["K5"]
    assert (two.topic, two.queue_id, two.body) == ("T", 1, b"body 2")
    assert (two.reconsume_times, two.flag) == (3, 9)
    assert two.born_timestamp_ms == STORED_MS + 2000 - 7
    assert two.born_host.port == 4567
    assert two.properties["mine"] == "x"
    assert "DELAY" not in two.properties
    assert five.is_compressed
    # A slot ends on a whole second, and they were due half a second after one.
    assert [row.promised_ms for row in report.put_back] == [DUE_MS + 2500, DUE_MS + 5500]


def test_records_go_back_into_levels(target: Path, levels: Path) -> None:
    report = back(target, levels)
    assert (report.state, report.engine) == (DONE, "levels")
    # The smallest level that is not shorter than what is left of its two hours.
    assert [row.promised_ms for row in report.put_back] == [NOW_MS + 7_200_000] * 2
    with LevelStore.open(levels, clock=ManualClock(NOW_MS)) as store:
        waiting = {each.unique_key: each for each in store.pending()}
    assert set(waiting) == {"K0", "K2", "K5"}
    assert waiting["K2"].level == 18
    assert {each.unique_key for each in delivered(levels, LevelStore)} == {"K0", "K2", "K5"}


def test_a_level_store_of_a_newer_broker_stays_one(target: Path, tmp_path: Path) -> None:
    """Its offset table has a version, which a slave compares."""
    store = tmp_path / "newer"
    build_level_store(store, [message(0, unique_key="K0")], dialect="5.3", offsets={18: 0})
    assert back(target, store).state == DONE
    assert "dataVersion" in json.loads((store / "config/topics.json").read_bytes())
    assert b"dataVersion" in (store / "config/delayOffset.json").read_bytes()


def test_what_a_record_does_not_say_can_be_said(target: Path) -> None:
    report = back(target, target, only=(FILES[2],), repair=Repair(queue_id=3, topic="Elsewhere"))
    [row] = report.put_back
    assert (row.file, row.topic, row.queue_id) == (FILES[2], "Elsewhere", 3)
    soon = back(target, target, only=(FILES[3],), repair=Repair(despite_damage=True, due_ms=NOW_MS))
    assert files_of(soon) == [FILES[3]]
    assert soon.put_back[0].promised_ms is not None
    assert soon.put_back[0].promised_ms - NOW_MS <= 1000
    found = delivered(target)
    assert sorted(each.body for each in found) == [b"body 1", b"body 3", b"body 4"]
    assert {each.topic for each in found if each.body == b"body 3"} == {"Elsewhere"}


def test_a_record_that_no_broker_would_deliver_stays(target: Path) -> None:
    report = back(target, target, max_message_bytes=10)
    assert report.put_back == ()
    assert all("maxMessageSize" in report.in_the_way[file] for file in (FILES[1], FILES[4]))
    assert len(delivered(target)) == 1


# --- once -----------------------------------------------------------------------------------------


def test_a_second_run_puts_nothing_back(target: Path) -> None:
    back(target, target)
    again = back(target, target)
    assert (again.state, again.put_back) == (NOTHING, ())
    assert again.before == (FILES[1], FILES[4])
    assert len(delivered(target)) == 3


class Stop(BaseException):
    """As a kill: nothing catches it, nothing is tidied up."""


def stop_at(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: int, *, after: bool
) -> None:
    """Stop in the call number ``at`` of a method, before its work or after it."""
    works: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(100))

    def stopping(*words: Any, **more: Any) -> Any:
        is_it = next(calls) == at
        if is_it and not after:
            raise Stop
        answer = works(*words, **more)
        if is_it:
            raise Stop
        return answer

    monkeypatch.setattr(owner, name, stopping)
    # A process that is gone closes nothing in order.
    for engine in (WheelStore, LevelStore):
        monkeypatch.setattr(engine, "__exit__", lambda store, *_: abandon(store))


def abandon(store: Any) -> None:
    store.abandon()


@pytest.mark.parametrize("engine", ["wheel", "levels"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [
        (Quarantine, "_write_notes", 0),
        (RecordInserter, "append", 0),
        (RecordInserter, "append", 1),
        (WheelStore, "flush", 0),
        (LevelStore, "flush", 0),
        (Quarantine, "_write_notes", 1),
    ],
)
def test_a_run_that_is_stopped_anywhere_is_finished_by_the_next(
    owner: type,
    name: str,
    at: int,
    after: bool,
    engine: str,
    target: Path,
    levels: Path,
) -> None:
    store = target if engine == "wheel" else levels
    kind = WheelStore if engine == "wheel" else LevelStore
    is_reached = owner in (Quarantine, RecordInserter, kind)
    with pytest.MonkeyPatch.context() as patched:
        stop_at(patched, owner, name, at, after=after)
        if is_reached:
            with pytest.raises(Stop):
                back(target, store)
        else:
            back(target, store)
    again = back(target, store)
    assert {*files_of(again), *again.before} == {FILES[1], FILES[4]}
    assert back(target, store).state == NOTHING
    keys = sorted(str(each.unique_key) for each in delivered(store, kind))
    assert [key for key in keys if key in ("K2", "K5")] == ["K2", "K5"]
    assert len(keys) == 3


def test_a_stopped_run_has_to_be_finished_where_it_began(
    target: Path, levels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_at(patched, RecordInserter, "append", 1, after=False)
        with pytest.raises(Stop):
            back(target, target)
    with pytest.raises(PlanError, match="was stopped; repeat that command first"):
        back(target, levels)


# --- refusals and the command ---------------------------------------------------------------------


def test_what_cannot_be_done_is_refused_in_words(target: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no quarantined records; expected a store"):
        Quarantine(tmp_path)
    build_level_store(tmp_path / "healthy", [message(0)])
    with pytest.raises(SourceError, match="healthy: has no quarantined records"):
        back(tmp_path / "healthy", target)
    with pytest.raises(PlanError, match=r"has no level-01-7\.record"):
        back(target, target, only=("level-01-7.record",))
    with WheelStore.open(target), pytest.raises(StoreLockedError):
        back(target, target)


def test_a_store_of_which_nothing_was_set_aside_has_an_empty_list(levels: Path) -> None:
    listed = run("quarantine", levels)
    assert (listed.exit_code, listed.stdout) == (0, f"{levels}: nothing was quarantined here\n")
    assert json.loads(run("quarantine", levels, "--json").stdout)["records"] == []
    assert not (levels / "delaywheel").exists()


def test_what_a_conversion_in_place_set_aside_is_found_in_its_backup(
    target: Path, levels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(state="done")
    monkeypatch.setattr("migrate.quarantine.kept.read_change", lambda _directory: done)
    backups = [levels / f"delaywheel/backup-{name}/delaywheel" for name in ("a", "b")]
    for backup in backups:
        backup.mkdir(parents=True)
    shutil.copytree(target / "delaywheel/quarantine", backups[1] / "quarantine")
    assert Quarantine(levels).directory == backups[1] / "quarantine"
    shutil.copytree(target / "delaywheel/quarantine", backups[0] / "quarantine")
    with pytest.raises(SourceError, match=r"quarantined records; name one of .*backup-a.*backup-b"):
        Quarantine(levels)


def test_notes_that_are_damaged_stop_everything(target: Path) -> None:
    """Nobody knows then what went back: rather nothing than twice."""
    (target / "delaywheel/quarantine/put-back.json").write_text('{"done": {')
    with pytest.raises(Exception, match="no notes of ours"):
        back(target, target)


def run(*words: object) -> Any:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def test_the_commands(target: Path) -> None:
    listed = run("quarantine", target)
    assert listed.exit_code == cli.FINDINGS, listed.output
    assert f"{FILES[1]}: level 18, queue offset 1" in listed.stdout
    assert "5 records were quarantined, 0 of them restored" in listed.stdout
    answer = json.loads(run("quarantine", target, "--json").stdout)
    assert answer["waiting"] == 5
    assert answer["levels"][0]["adds_up"] is True
    planned = run("put-back", target, target, "--now", NOW_MS)
    assert planned.exit_code == cli.FINDINGS  # three cannot go
    assert "2 records would be restored into the wheel" in planned.stdout
    assert "nothing was written; --execute applies the plan" in planned.stdout
    chosen = ("put-back", target, target, "--only", FILES[1], "--now", NOW_MS, "--execute")
    assert run(*chosen).exit_code == cli.DONE
    done = json.loads(run("quarantine", target, "--json").stdout)
    assert done["records"][0]["put_back"]["due_ms"] == DUE_MS + 2000
    assert run("put-back", target, target, "--queue-id", 70_000).exit_code == cli.USAGE


def test_a_record_with_an_address_that_brokers_cannot_store_anew_stays(tmp_path: Path) -> None:
    disguised = message(1, born_host=("::ffff:10.1.2.3", 7))
    build_and_convert(tmp_path, [disguised, message(2)], on_bad_record="quarantine")
    [file] = [record.file for record in Quarantine(tmp_path / "target").waiting]
    report = back(tmp_path / "target", tmp_path / "target")
    assert "in the form of an IPv6 one" in report.in_the_way[file]
    assert files_of(report) == []


def test_what_was_restored_is_counted_once_where_sources_mean_other_times_by_a_level(
    tmp_path: Path,
) -> None:
    requests = []
    for name, table in (("one", "1s 10h"), ("two", "1s 2h")):
        odd, good = (
            LevelMessage(
                level=2, store_timestamp_ms=NOW_MS - 1_000, unique_key=name, without=without
            )
            for without in (["REAL_QID"], [])
        )
        build_level_store(tmp_path / name, [odd, good], level_table=table)
        levels = DelayLevels.parse(table)
        requests.append(
            options_for(
                tmp_path,
                source=tmp_path / name,
                level_table=levels,
                on_bad_record="quarantine",
            )
        )
    convert_merged(requests)
    target = tmp_path / "target"
    first = Quarantine(target).records[0].file
    options = RestoreOptions(
        quarantine=target, store=target, only=(first,), repair=Repair(queue_id=0)
    )
    assert len(restore_records(options, execute=True, clock=ManualClock(NOW_MS)).put_back) == 1
    accounts = Quarantine(target).accounts()
    assert sorted((each.level, each.put_back) for each in accounts) == [(2, 0), (2, 1)]


# --- when a restored record is due ----------------------------------------------------------------


def no_store_time(record: bytes) -> bytes:
    """The record with a store time that is none."""
    at = HEAD_V4_V4.offset_of("store_timestamp_ms")
    return record[:at] + (5).to_bytes(8, "big") + record[at + 8 :]


@pytest.mark.parametrize("engine", ["levels", "wheel"])
def test_no_record_is_restored_before_its_time_whatever_its_level_meant(
    tmp_path: Path, engine: EngineName
) -> None:
    """Its entry's due time is damage, and its level has another delay than RocketMQ's own."""
    table = "1s 10h 30s"
    known, damaged = (
        LevelMessage(
            level=2,
            store_timestamp_ms=STORED_MS,
            unique_key=key,
            unit_fields={"tags_code": 12_345},
            without=["REAL_QID"],
            damage=damage,
        )
        for key, damage in (("KNOWN", None), ("DAMAGED", no_store_time))
    )
    build_level_store(tmp_path / "source", [known, damaged], level_table=table)
    levels = DelayLevels.parse(table)
    convert(options_for(tmp_path, on_bad_record="quarantine", level_table=levels))
    request = RestoreOptions(
        quarantine=tmp_path / "target",
        store=tmp_path / engine,
        engine=engine,
        levels=levels,
        repair=Repair(queue_id=0),
    )
    kind = LevelStore if engine == "levels" else WheelStore
    kind.open(tmp_path / engine, clock=ManualClock(NOW_MS)).close()
    report = restore_records(request, execute=True, clock=ManualClock(NOW_MS))
    [row] = report.put_back
    assert row.due_ms == STORED_MS + 36_000_000
    assert row.promised_ms is not None
    assert row.promised_ms >= row.due_ms
    assert ["--at" in why for why in report.in_the_way.values()] == [True]


def test_into_levels_goes_what_a_broker_delivers_in_the_shortest_of_them(tmp_path: Path) -> None:
    odd = LevelMessage(
        level=2, store_timestamp_ms=STORED_MS, unique_key="ODD", without=["REAL_QID"]
    )
    empty = LevelMessage(level=2, store_timestamp_ms=STORED_MS, unique_key="EMPTY", body=b"")
    build_level_store(tmp_path / "source", [odd, empty])
    convert(options_for(tmp_path, on_bad_record="quarantine"))
    levels, clock = DelayLevels.parse("1h 1s"), ManualClock(NOW_MS)
    with LevelStore.open(tmp_path / "levels", clock=clock, levels=levels) as store:
        store.schedule(Message("T", b"x"), AtLevel(1))
    request = RestoreOptions(
        quarantine=tmp_path / "target",
        store=tmp_path / "levels",
        levels=levels,
        repair=Repair(queue_id=0),
    )
    report = restore_records(request, execute=True, clock=clock)
    assert len(report.put_back) == 1
    assert ["no body" in why for why in report.in_the_way.values()] == [True]
    with LevelStore.open(tmp_path / "levels", clock=clock, levels=levels) as store:
        # A broker works each level in order: in the first it would stand behind an hour.
        assert {each.unique_key: each.level for each in store.pending()}["ODD"] == 2
        assert [each.message.unique_key for each in store.advance(NOW_MS + 2_000)] == ["ODD"]
