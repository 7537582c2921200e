# SPDX-License-Identifier: Apache-2.0
"""A level's queue, or the whole log, that is not there any more: whoever looks at the store says
so, and what finds the messages; a level that was never used is none that is gone.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cli
from legacy_levels import LevelStore
from legacy_levels.backlog.lost_queues import gone_queues
from message_store import AtLevel, ManualClock, Message
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.table.pending_table import LEVELS, WHEEL, TableOptions, pending_rows
from migrate.verify.verify import verify
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.independent.real_stores import ALL_STORES, unpack
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do, plan, tree

NOW_MS = T0 + 500
ITEMS = [
    *(LevelMessage(level=level, store_timestamp_ms=T0 + level) for level in (3, 5, 18, 3, 5)),
    OrdinaryMessage(store_timestamp_ms=T0 + 100),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "source", ITEMS, offsets={3: 0})
    return tmp_path / "source"


def lose(source: Path, level: int, *, keeps_directory: bool = False) -> Path:
    queue = StoreRoot(source).level_queue(level)
    shutil.rmtree(queue)
    if keeps_directory:
        queue.mkdir()
    return queue


def gone(source: Path) -> list[int]:
    return [each.level for each in gone_queues(StoreRoot(source))]


@pytest.mark.parametrize("keeps_directory", [True, False])
def test_a_conversion_says_that_a_level_is_left_behind(
    source: Path, tmp_path: Path, keeps_directory: bool
) -> None:
    queue = lose(source, 5, keeps_directory=keeps_directory)
    report = convert(options_for(tmp_path))
    assert report.total("converted") == 3
    [said] = [each for each in report.warnings if str(queue) in each]
    assert "the queue of level 5" in said
    assert any("--whole-log reads all of it" in each for each in report.warnings)
    whole = convert(options_for(tmp_path, target=tmp_path / "whole", whole_log=True))
    assert whole.total("converted") == 5
    assert verify(source, tmp_path / "whole", spark=None).is_clean


@pytest.mark.parametrize("keeps_directory", [True, False])
def test_a_conversion_in_place_says_where_to_go_instead(
    source: Path, keeps_directory: bool
) -> None:
    queue = lose(source, 5, keeps_directory=keeps_directory)
    for act in (plan, do):
        report = act(source, NOW_MS)
        assert report.conversion.total("converted") == 3
        assert any(str(queue) in each for each in report.conversion.warnings)
        [advice] = [each for each in report.conversion.warnings if "--whole-log" in each]
        assert "into a fresh store" in advice


def test_of_a_killed_store_a_directory_without_files_is_enough(source: Path) -> None:
    """A broker's, without an offset of the level; but not beside who makes queues."""
    lose(source, 5, keeps_directory=True)
    (source / "abort").touch()
    assert gone(source) == [5]
    lock = StoreRoot(source).take_lock()
    assert gone(source) == []
    lock.release()


def test_who_looks_at_the_store_is_told(source: Path, tmp_path: Path) -> None:
    queue = lose(source, 18)
    said = f"{queue}: the queue of level 18 is gone"
    problems = inspect_store(source, now_ms=NOW_MS).problems
    assert any(each.startswith(said) for each in problems)
    assert any("`delaywheel convert --whole-log` reads all of it" in each for each in problems)
    for words in (("pending",), ("export", tmp_path / "out.parquet")):
        verb, *more = words
        result = CliRunner().invoke(cli.main, [str(word) for word in (verb, source, *more)])
        assert result.exit_code == 0, result.output
        assert said in " ".join(result.stderr.split()), result.stderr


def test_where_a_level_stood_tells_that_it_had_a_queue(tmp_path: Path) -> None:
    """Also where nothing of it is in the log any more; of a level that has an offset of 0 nothing
    is known, and a number beyond every level is nobody's.
    """
    build_level_store(tmp_path / "source", ITEMS, offsets={3: 0, 4: 0, 7: 2, 77: 5})
    assert gone(tmp_path / "source") == [7]


def test_a_level_that_no_queue_knows_yet_is_not_gone(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", ITEMS, offsets={3: 0}, indexed_items=2)
    assert gone(tmp_path / "source") == []


def test_a_record_that_names_another_level_makes_no_queue_gone(tmp_path: Path) -> None:
    items = [*ITEMS, LevelMessage(level=5, record_fields={"queue_id": 7})]
    build_level_store(tmp_path / "source", items)
    assert gone(tmp_path / "source") == []


def test_queues_that_are_all_gone_are_made_anew(source: Path) -> None:
    shutil.rmtree(source / "consumequeue")
    assert gone(source) == []
    assert inspect_store(source, now_ms=NOW_MS).pending == 5


def test_all_level_queues_may_be_gone(source: Path) -> None:
    shutil.rmtree(source / "consumequeue/SCHEDULE_TOPIC_XXXX")
    assert gone(source) == [3, 5, 18]


@pytest.mark.parametrize("name", ALL_STORES)
def test_nothing_is_gone_in_a_real_store(name: str, tmp_path: Path) -> None:
    assert gone(unpack(name, tmp_path / "store").root) == []


# --- no log ---------------------------------------------------------------------------------------


@pytest.fixture
def logless(source: Path) -> Path:
    for path in (source / "commitlog").iterdir():
        path.unlink()
    return source


def test_a_store_without_a_log_is_refused(logless: Path, tmp_path: Path) -> None:
    before = tree(logless)
    table = TableOptions(now_ms=NOW_MS)
    attempts: list[Any] = [
        lambda: convert(options_for(tmp_path)),
        lambda: plan(logless, NOW_MS),
        lambda: do(logless, NOW_MS),
        lambda: inspect_store(logless, now_ms=NOW_MS),
        lambda: list(pending_messages(logless, now_ms=NOW_MS)),
        lambda: pending_rows(logless, LEVELS, table),
        lambda: pending_rows(logless, WHEEL, table),
    ]
    for attempt in attempts:
        with pytest.raises(SourceError, match="no commit log file is there, but consume queues"):
            attempt()
    assert tree(logless) == before
    assert not (tmp_path / "target").exists()


def test_the_shell_calls_it_the_source(logless: Path, tmp_path: Path) -> None:
    for words in (
        ("convert", "--in-place", logless),
        ("convert", logless, tmp_path / "target"),
        ("inspect", logless),
        ("pending", logless),
        ("export", logless, tmp_path / "out.parquet"),
    ):
        result = CliRunner().invoke(cli.main, [str(word) for word in words])
        assert result.exit_code == 3, (words, result.output)
        assert "no commit log file" in result.stderr
    result = CliRunner().invoke(cli.main, ["check", str(logless), "--json"])
    assert {each["code"] for each in json.loads(result.stdout)["findings"]} >= {"log-missing"}


def test_a_store_in_which_nothing_was_ever_stored_has_lost_nothing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    StoreRoot(tmp_path).require_log()
    assert inspect_store(tmp_path, now_ms=NOW_MS).pending == 0


def test_a_queue_that_a_killed_store_has_flushed_and_lost_is_gone(tmp_path: Path) -> None:
    """No offset tells of it yet: what the flush noted does."""
    store = LevelStore.open(tmp_path / "store", clock=ManualClock(NOW_MS))
    store.schedule(Message("orders", b"x"), AtLevel(7))
    store.schedule(Message("orders", b"x"), AtLevel(8))
    store.flush()
    store.abandon()
    lose(tmp_path / "store", 7, keeps_directory=True)
    assert gone(tmp_path / "store") == [7]
