# SPDX-License-Identifier: Apache-2.0
"""A store whose timers wait in a broker's RocksDB timeline: every verb counts them, or says why it
cannot.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Pending, Severity
from migrate.look.inspect import inspect_store
from migrate.look.inspection import TimelineSummary
from migrate.look.pending import pending_messages
from migrate.source.sources import WheelNotEmptyError, require_nothing_left_behind
from migrate.table.pending_table import WHEEL, TableOptions, pending_rows
from tests.independent.real_stores import (
    TIMELINE_55_CLEAN,
    TIMELINE_55_CRASH,
    RealStore,
    unpack,
)
from tests.migrate.check_case import look


@pytest.fixture(scope="module", params=[TIMELINE_55_CLEAN, TIMELINE_55_CRASH])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(request.param, tmp_path_factory.mktemp("timeline"))


def pending_truth(store: RealStore) -> list[tuple[str, str]]:
    return sorted((line.unique_key, line.topic) for line in store.truth if line.state == "pending")


def test_inspect_counts_what_waits_in_the_timeline(store: RealStore) -> None:
    found = inspect_store(store.root, now_ms=store.stopped_ms)
    timers = sum(line.state == "pending" and line.level is None for line in store.truth)
    assert found.timeline is not None
    assert found.timeline.pending == timers
    assert found.pending == len(pending_truth(store))
    assert found.wheel is not None
    assert found.wheel.pending == 0
    expected = (185, 1_795_304_251_000) if not store.is_crashed else (194, 1_795_304_557_000)
    assert (found.timeline.scan_offset, found.timeline.delivered_until_ms) == expected
    assert found.as_json()["timeline"]["entries"] == timers + 8 * store.is_crashed


def test_pending_lists_every_message_once(store: RealStore) -> None:
    found = list(pending_messages(store.root, now_ms=store.stopped_ms))
    messages = [each for each in found if isinstance(each, Pending)]
    assert len(messages) == len(found)
    assert sorted((str(each.unique_key), each.topic) for each in messages) == pending_truth(store)


def test_a_table_of_the_wheel_has_the_timeline_in_it(store: RealStore) -> None:
    options = TableOptions(now_ms=store.stopped_ms, after_crash=store.is_crashed)
    rows = pending_rows(store.root, WHEEL, options)
    timers = sum(line.state == "pending" and line.level is None for line in store.truth)
    assert len(rows) == timers


def test_a_conversion_of_the_levels_does_not_leave_them_behind_unsaid(store: RealStore) -> None:
    with pytest.raises(WheelNotEmptyError, match="messages wait in its timer wheel or timeline"):
        require_nothing_left_behind(StoreRoot(store.root))


def test_a_conversion_in_place_is_refused(store: RealStore) -> None:
    run = CliRunner().invoke(cli.main, ["convert", "--in-place", str(store.root), "--after-crash"])
    assert run.exit_code == 3, run.output
    assert "wait in its RocksDB timeline" in run.stderr


def test_check_finds_nothing_wrong_with_a_real_timeline(store: RealStore) -> None:
    conf = {key: str(value) for key, value in store.about["config"].items()}
    report = look(store.root, now_ms=store.stopped_ms, conf=conf)
    codes = {each.code for each in report.findings if each.severity is not Severity.INFO}
    after_crash = {"store-crashed", "delay-and-timer"}
    assert codes == {"rocksdb-timeline"} | (after_crash if store.is_crashed else set())
    assert report.load is not None
    assert report.load.waiting == len(pending_truth(store))


@pytest.mark.parametrize("verb", ["inspect", "pending"])
def test_without_rocksdict_a_verb_ends_with_a_sentence(
    verb: str, store: RealStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    run = CliRunner().invoke(cli.main, [verb, str(store.root)])
    assert run.exit_code == 3
    assert "rocksdict is not installed" in run.stderr
    assert run.stdout == ""


def test_a_timeline_that_cannot_be_read_is_none_and_never_nothing(
    store: RealStore, tmp_path: Path
) -> None:
    root = unpack(store.name, tmp_path).root
    [table] = (root / "rocksdbstore").glob("*.sst")
    table.unlink()
    found = inspect_store(root, now_ms=store.stopped_ms)
    assert found.pending is None
    assert found.timeline == TimelineSummary()
    assert any("RocksDB cannot read it" in problem for problem in found.problems)
    run = CliRunner().invoke(cli.main, ["inspect", str(root)])
    assert "timeline in RocksDB: cannot be read" in run.stdout
    listed = CliRunner().invoke(cli.main, ["pending", str(root)])
    assert listed.exit_code == 3
    assert "RocksDB cannot read it" in listed.stderr


def test_inspect_says_it_in_words(store: RealStore) -> None:
    run = CliRunner().invoke(cli.main, ["inspect", str(store.root), "--now", str(store.stopped_ms)])
    assert run.exit_code == 0
    timers = sum(line.state == "pending" and line.level is None for line in store.truth)
    assert f"timeline in RocksDB: {timers} pending" in run.stdout
    as_json = CliRunner().invoke(cli.main, ["inspect", str(store.root), "--json"])
    assert json.loads(as_json.stdout)["timeline"]["pending"] == timers
