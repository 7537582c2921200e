# SPDX-License-Identifier: Apache-2.0
"""Our own engine of the levels, opened after a change of a store and after the way back: it has
marks of its own, which it believes before the offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.files.store_root import StoreRoot
from message_store.format.message import Message
from message_store.interface.delay_store import AfterMs
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert
from tests.independent.level_store_builder import T0
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do

NOW_MS = T0 + 500
COUNT = 5


def filled(path: Path, *, is_killed: bool) -> Path:
    store = LevelStore.open(path, clock=ManualClock(T0))
    for number in range(COUNT):
        store.schedule(Message(topic="T", body=b"%d" % number), AfterMs(5_000 * (number % 2 + 1)))
    store.flush()
    if is_killed:
        store.live.abandon()
    store.close()
    return path


def retired(source: Path, *, after_crash: bool) -> None:
    target = source.with_name("target")
    folder = source.parent
    options = options_for(
        folder, source=source, target=target, now_ms=NOW_MS, after_crash=after_crash
    )
    convert(options)
    assert retire(source, target, execute=True).converted == COUNT


def in_place(source: Path, *, after_crash: bool) -> None:
    assert do(source, NOW_MS, after_crash=after_crash).as_json()["converted"] == COUNT


def waiting(source: Path) -> int:
    with LevelStore.open(source, clock=ManualClock(NOW_MS)) as store:
        return len(list(store.pending()))


@pytest.mark.check
@pytest.mark.parametrize("change", [retired, in_place])
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_what_was_converted_waits_in_no_level_any_more(
    change: Callable[..., None], is_killed: bool, tmp_path: Path
) -> None:
    source = filled(tmp_path / "source", is_killed=is_killed)
    change(source, after_crash=is_killed)
    assert waiting(source) == 0


@pytest.mark.check
@pytest.mark.parametrize(
    ("change", "has_opened"),
    [(retired, False), (retired, True), (in_place, False)],
    ids=["retired", "retired and opened", "in place"],
)
def test_after_the_way_back_all_of_it_waits_again(
    change: Callable[..., None], has_opened: bool, tmp_path: Path
) -> None:
    source = filled(tmp_path / "source", is_killed=False)
    change(source, after_crash=False)
    if has_opened:
        assert waiting(source) == 0
    assert roll_back(StoreRoot(source), execute=True).state == "rolled back"
    with LevelStore.open(source, clock=ManualClock(NOW_MS)) as store:
        assert len(list(store.pending())) == COUNT
        assert [each for each in store.check() if each.severity.name != "INFO"] == []
