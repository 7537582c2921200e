# SPDX-License-Identifier: Apache-2.0
"""What a change has moved waits in no level any more, whatever became of the offset files."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from legacy_levels import LevelStore
from message_store import ManualClock
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from migrate.look.pending import PendingFilter, pending_messages
from migrate.table.pending_table import LEVELS, TableOptions, pending_rows
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do

NOW_MS = T0 + 500
OFFSETS = ("config/delayOffset.json", "config/delayOffset.json.bak")


def built(folder: Path) -> Path:
    """A store in which three messages wait in a level."""
    messages = [LevelMessage(level=5, unique_key=f"K{number}") for number in range(3)]
    return build_level_store(folder / "source", messages).root


def change_in_place(folder: Path, store: Path) -> None:
    assert do(store, NOW_MS).conversion.total("converted") == 3


def convert_and_retire(folder: Path, store: Path) -> None:
    assert convert(options_for(folder, now_ms=NOW_MS)).total("converted") == 3
    retire(store, folder / "target", execute=True)


def gone(path: Path) -> None:
    path.unlink(missing_ok=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def sound(_path: Path) -> None:
    pass


@pytest.mark.parametrize("change", [change_in_place, convert_and_retire])
@pytest.mark.parametrize(("damage", "offsets"), [(sound, "none"), (gone, "auto"), (empty, "auto")])
def test_nothing_that_was_moved_is_taken_again(
    change: Callable[[Path, Path], None],
    damage: Callable[[Path], None],
    offsets: str,
    tmp_path: Path,
) -> None:
    """Neither by who lists, nor by who converts, nor by who delivers."""
    store = built(tmp_path)
    change(tmp_path, store)
    for name in OFFSETS:
        damage(store / name)
    of_levels = PendingFilter(level=5)
    assert not list(pending_messages(store, of_levels, now_ms=NOW_MS, offsets=offsets))
    found = inspect_store(store, now_ms=NOW_MS, offsets=offsets)
    assert [level.pending for level in found.levels if level.pending] == []
    assert len(pending_rows(store, LEVELS, TableOptions(now_ms=NOW_MS, offsets=offsets))) == 0
    again = options_for(tmp_path, target=tmp_path / "again", offsets=offsets, levels_only=True)
    assert convert(again).total("converted") == 0
    if change is change_in_place:
        assert do(store, NOW_MS, offsets=offsets).state == "nothing to do"
    with LevelStore.open(store, clock=ManualClock(T0 + 10**8), offsets=offsets) as levels:
        assert len(levels.advance(T0 + 10**8)) == 0


@pytest.mark.parametrize("change", [change_in_place, convert_and_retire])
def test_a_broker_that_would_repeat_it_is_told_of(
    change: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """It knows of no change of ours."""
    store = built(tmp_path)
    change(tmp_path, store)
    for name in OFFSETS:
        gone(store / name)
    findings = check_store(store, CheckOptions(now_ms=NOW_MS)).findings
    assert [each for each in findings if each.code == "offsets-missing"]
    problems = inspect_store(store, now_ms=NOW_MS).problems
    assert [each for each in problems if "a broker that takes none delivers them again" in each]


def test_whole_offsets_that_somebody_put_back_are_believed(tmp_path: Path) -> None:
    store = built(tmp_path)
    kept = {name: (store / name).read_bytes() for name in OFFSETS if (store / name).exists()}
    convert_and_retire(tmp_path, store)
    for name, content in kept.items():
        (store / name).write_bytes(content)
    assert len(list(pending_messages(store, PendingFilter(), now_ms=NOW_MS))) == 3
    with LevelStore.open(store, clock=ManualClock(T0 + 10**8)) as levels:
        assert len(levels.advance(T0 + 10**8)) == 3


def test_a_change_that_was_undone_has_moved_nothing(tmp_path: Path) -> None:
    store = built(tmp_path)
    change_in_place(tmp_path, store)
    roll_back(StoreRoot(store), execute=True)
    for name in OFFSETS:
        gone(store / name)
    assert len(list(pending_messages(store, PendingFilter(), now_ms=NOW_MS))) == 3


def test_a_store_that_was_put_back_from_before_a_change_has_its_messages(tmp_path: Path) -> None:
    """The notes of the change stay there: the log no longer has what it appended."""
    store = built(tmp_path)
    shutil.copytree(store, tmp_path / "backup")
    change_in_place(tmp_path, store)
    for each in store.iterdir():
        if each.is_dir() and each.name != "delaywheel":
            shutil.rmtree(each)
    shutil.copytree(tmp_path / "backup", store, dirs_exist_ok=True)
    of_levels = PendingFilter(level=5)
    assert len(list(pending_messages(store, of_levels, now_ms=NOW_MS))) == 3
    with pytest.raises(SourceError, match=r"queue-ends\.json"):  # which says the same
        convert(options_for(tmp_path, now_ms=NOW_MS))
    (store / "delaywheel/queue-ends.json").unlink()
    assert convert(options_for(tmp_path, now_ms=NOW_MS)).total("converted") == 3
