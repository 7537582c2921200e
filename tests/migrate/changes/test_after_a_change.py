# SPDX-License-Identifier: Apache-2.0
"""What is asked of a store that was changed before: the same again, another thing, an undoing."""

from __future__ import annotations

from pathlib import Path

import pytest

import migrate.changes.retire as retirement
import migrate.in_place.convert as in_place
from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import PlanError, SourceError, TargetError
from message_store.files.store_root import StoreRoot
from migrate.changes.note import all_changes_of
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert
from migrate.quarantine.kept import Quarantine, find_quarantine
from migrate.verify.verify import verify
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.raw_files import read_config
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do, timer_records

NOW_MS = T0 + 500


def offsets_of(store: Path) -> dict[str, int]:
    table: dict[str, int] = read_config(store, "delayOffset.json")["offsetTable"]
    return table


def build(path: Path, *levels: int, **fields: object) -> Path:
    messages = [LevelMessage(level=level, **fields) for level in levels]  # type: ignore[arg-type]
    return build_level_store(path, messages).root


def test_offsets_none_converts_nothing_twice_in_place(tmp_path: Path) -> None:
    store = build(tmp_path / "source", 3, 5, 5)
    assert do(store, NOW_MS, offsets="none", only_levels=(3,)).conversion.total("converted") == 1
    assert do(store, NOW_MS, offsets="none").conversion.total("converted") == 2
    assert do(store, NOW_MS, offsets="none").state == "nothing to do"
    assert len(timer_records(store)) == 3
    assert offsets_of(store) == {"3": 1, "5": 2}


def test_offsets_none_retires_once_and_converts_nothing_that_was_retired(tmp_path: Path) -> None:
    source = build(tmp_path / "source", 5, 5, 5)
    convert(options_for(tmp_path, now_ms=NOW_MS, offsets="none"))
    states = [retire(source, tmp_path / "target", execute=True).state for _ in range(2)]
    assert states == ["done", "nothing to do"]
    again = convert(options_for(tmp_path, target=tmp_path / "again", offsets="none"))
    assert again.total("converted") == 0
    assert roll_back(StoreRoot(source), execute=True).messages == 3
    assert len(read_backlog(source)) == 3


def test_a_target_of_the_rest_is_verified_after_the_first_was_retired(tmp_path: Path) -> None:
    source = build(tmp_path / "source", 3, 5, 5)
    first, rest = tmp_path / "first", tmp_path / "rest"
    convert(options_for(tmp_path, target=first, now_ms=NOW_MS, only_levels=(3,)))
    assert verify(source, first, spark=None).is_clean
    retire(source, first, execute=True)
    assert convert(options_for(tmp_path, target=rest, now_ms=NOW_MS)).total("converted") == 2
    assert verify(source, rest, spark=None).is_clean
    with pytest.raises(SourceError, match="no longer shows its converted messages"):
        verify(source, first, spark=None)


def _refused(*_given: object) -> None:
    raise TargetError("no room")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TargetError])
def test_a_stop_before_bad_records_are_kept_moves_no_offset(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages are bad, so that nothing is left to append: the change would look finished."""
    store = build(tmp_path / "store", 5, 5, body=b"")

    def stopped(*_given: object) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(in_place, "list_bad_records", stopped)
        with pytest.raises(stop):
            do(store, NOW_MS, on_bad_record="quarantine")
    assert len(read_backlog(store)) == 2
    assert do(store, NOW_MS, on_bad_record="quarantine").conversion.total("quarantined") == 2
    quarantine = find_quarantine(store)
    assert quarantine is not None
    assert len(Quarantine(quarantine).records) == 2


def test_another_target_finishes_no_retirement_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = build(tmp_path / "source", 3, 5)
    one, other = tmp_path / "one", tmp_path / "other"
    convert(options_for(tmp_path, target=one, now_ms=NOW_MS, only_levels=(3,)))
    convert(options_for(tmp_path, target=other, now_ms=NOW_MS, only_levels=(5,)))
    with monkeypatch.context() as patch:
        patch.setattr(retirement, "put_offsets", _refused)
        with pytest.raises(TargetError):
            retire(source, one, execute=True)
    with pytest.raises(PlanError, match="was stopped"):
        retire(source, other, execute=True)
    assert offsets_of(source) == {}
    retire(source, one, execute=True)
    retire(source, other, execute=True)
    assert offsets_of(source) == {"3": 1, "5": 1}


def test_changes_are_undone_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    """Whatever time was given, or the clock said."""
    source = build(tmp_path / "source", 3, 5)
    convert(options_for(tmp_path, now_ms=NOW_MS, only_levels=(3,)))
    retire(source, tmp_path / "target", execute=True)
    do(source, NOW_MS)
    kinds = [change.kind for change in all_changes_of(StoreRoot(source))]
    assert kinds == ["retire", "in-place"]
    undone = [roll_back(StoreRoot(source), execute=True).kind for _ in range(2)]
    assert undone == kinds[::-1]
    assert len(read_backlog(source)) == 2
