# SPDX-License-Identifier: Apache-2.0
"""Whatever makes a target look finished is done when all that it stands for is on the disk: every
file, and every name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.convert import convert_merged
from migrate.report.finished_target import WRITTEN_NAME
from migrate.report.marker import CONVERSION_NAME
from migrate.settings import HIERARCHY, WHEEL
from tests.migrate.disk_watch import DiskWatch, watching
from tests.migrate.stopped_conversions import MARKER, made_merge, stopping_at
from tests.migrate.stops import Stopped
from tests.migrate.written_wheels import messages, write


def watched(target: Path, make: Callable[[], object]) -> list[str]:
    """Make a target; gives what nobody had waited for at one of the three moments, as "moment:
    name". They are the first rename, by which anything is published; that of the wheel, which a
    broker starts on; that of the marker.

    Of the first the plan's arrays are left out: who goes on after a loss of power makes those anew.
    Of the wheel the staging place, which has done its work.
    """
    loose: list[str] = []
    own, moments = target / "delaywheel", list[str]()

    def look(watch: DiskWatch, name: Path) -> None:
        if name == target / "config" and not moments:
            but = next((own / "staging").glob("*/plan"), own / "no plan")
        elif name == target / "timerwheel" and (target / "commitlog").exists():
            but = own / "staging"
        elif name in (own / CONVERSION_NAME, own / WRITTEN_NAME):
            but = own  # into which it goes
            loose.extend("around it" for _ in watch.loose(target.parent, but=target))
        else:
            return
        moments.append(name.name)
        loose.extend(f"{name.name}: {each}" for each in watch.loose(target, but=but))

    with watching(look):
        make()
    assert moments[:2] == ["config", "timerwheel"]
    assert len(moments) == 3
    return loose


@pytest.mark.parametrize("engine", [WHEEL, HIERARCHY])
@pytest.mark.parametrize("sources", [1, 3])
def test_everything_is_on_the_disk_before_the_first_rename(
    tmp_path: Path, sources: int, engine: str
) -> None:
    asked = made_merge(tmp_path, sources, target="new/target", engine=engine)
    assert watched(asked[0].target, lambda: convert_merged(asked)) == []


@pytest.mark.parametrize("stage", ["write", "seal"])
@pytest.mark.parametrize("engine", [WHEEL, HIERARCHY])
def test_whoever_goes_on_waits_for_what_another_has_written(
    tmp_path: Path, engine: str, stage: str
) -> None:
    """Nothing of it needs to be on the disk. That the directory is there shows that its name is."""
    asked = made_merge(tmp_path, 2, target="new/target", engine=engine)

    with pytest.raises(Stopped):
        convert_merged(asked, progress=stopping_at(stage))
    assert watched(asked[0].target, lambda: convert_merged(asked)) == ["around it"]


@pytest.mark.parametrize("engine", [WHEEL, HIERARCHY])
def test_whoever_comes_after_the_last_rename_waits_for_its_name(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = made_merge(tmp_path, 1, engine=engine)[0]
    target, real_replace = options.target, os.replace
    loose: list[str] = []

    def stop_behind_the_wheel(one: Path, other: Path) -> None:
        real_replace(one, other)
        if other == target / "timerwheel" and (target / "commitlog").exists():
            raise Stopped

    def look(watch: DiskWatch, name: Path) -> None:
        if name == target / MARKER:
            loose.extend(watch.loose(target, but=target / "delaywheel"))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_behind_the_wheel)
        with pytest.raises(Stopped):
            convert_merged([options])
    with watching(look):
        convert_merged([options])
    assert "commitlog" in loose  # all in it was waited for before the first rename
    assert "." not in loose


def test_everything_of_a_written_wheel_is_on_the_disk_before_the_first_rename(
    tmp_path: Path,
) -> None:
    target = tmp_path / "new" / "target"
    assert watched(target, lambda: write(target, [messages(50), messages(20, 50)])) == []
