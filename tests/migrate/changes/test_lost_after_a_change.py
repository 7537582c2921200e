# SPDX-License-Identifier: Apache-2.0
"""After a change, each file and directory of a store gets lost once, and both offset files at once:
no message comes twice, and none goes missing unless somebody is told.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from legacy_levels import LevelStore
from message_store import ManualClock
from message_store.base.errors import DelayStoreError
from message_store.interface.delay_store import Severity
from migrate.changes.retire import retire
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do
from timer_wheel import WheelStore

NOW_MS = T0 + 500
LATER_MS = T0 + 40_000_000
MOVED, STAYED = 4, 3


def change_in_place(folder: Path, store: Path) -> Path:
    assert do(store, NOW_MS, only_levels=(5,)).conversion.total("converted") == MOVED
    return store


def convert_and_retire(folder: Path, store: Path) -> Path:
    options = options_for(folder, source=store, now_ms=NOW_MS, only_levels=(5,))
    assert convert(options).total("converted") == MOVED
    retire(store, folder / "target", execute=True)
    return folder / "target"


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.write_bytes(b"")


def came(store: Path, engine: type[LevelStore | WheelStore]) -> Iterator[str]:
    """What an engine delivers from now on; nothing where it refuses, which tells somebody."""
    try:
        with engine.open(store, clock=ManualClock(LATER_MS)) as opened:
            for _ in range(2):
                for each in opened.advance(LATER_MS):
                    yield each.message.unique_key or ""
    except DelayStoreError:
        yield "refused"


def is_told(store: Path) -> bool:
    """Whether a look at the store says that anything is wrong with it."""
    try:
        if inspect_store(store, now_ms=NOW_MS).problems:
            return True
        findings = check_store(store, CheckOptions(now_ms=NOW_MS)).findings
    except DelayStoreError:
        return True
    return any(each.severity is not Severity.INFO for each in findings)


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::message_store.base.errors.OtherEngineWarning")
@pytest.mark.parametrize("change", [change_in_place, convert_and_retire])
@pytest.mark.parametrize("damage", [gone, empty])
def test_a_lost_file_repeats_nothing_and_hides_nothing_in_silence(
    change: Callable[[Path, Path], Path], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    messages = [
        LevelMessage(level=level, unique_key=f"L{level}K{number}")
        for level, count in ((5, MOVED), (6, STAYED))
        for number in range(count)
    ]
    whole = tmp_path / "whole"
    store = build_level_store(whole / "source", messages).root
    target = change(whole, store)
    assert not is_told(store)  # else whatever is missing would count as told
    everything = Counter([*came(copied(whole, tmp_path, "levels"), LevelStore)])
    everything += Counter([*came(copied(whole, tmp_path, "wheel", target.name), WheelStore)])
    assert everything == Counter(each.unique_key for each in messages)
    wrong = []
    names = [(each.relative_to(store),) for each in sorted(store.rglob("*"))]
    both = tuple(name for (name,) in names if name.name.startswith("delayOffset.json"))
    for parts in [*names, both]:
        struck = copied(whole, tmp_path, "struck")
        for part in parts:
            damage(struck / part)
        name = " and ".join(map(str, parts))
        told = is_told(struck)
        levels = Counter([*came(struck, LevelStore)])
        wheel = struck if target == store else copied(whole, tmp_path, "wheel", target.name)
        found = levels + Counter([*came(wheel, WheelStore)])
        told |= found.pop("refused", 0) > 0
        if any(count > 1 for count in found.values()):
            wrong.append(f"{name}: {found} twice")
        if found.keys() < everything.keys() and not told:
            wrong.append(f"{name}: {everything - found} missing, and nobody is told")
    assert wrong == []


def copied(whole: Path, folder: Path, name: str, part: str = "source") -> Path:
    """A copy of the source, or of its target."""
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(whole / part, folder / name)
    return folder / name
