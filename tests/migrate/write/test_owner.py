# SPDX-License-Identifier: Apache-2.0
"""What root gives to a broker's user: all of a target, and nothing that a link in it leads to,
whenever the new owner puts it there.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.report.finished_target import finished_before
from migrate.settings import ENGINES
from migrate.write.owner import Access, tidy_up
from migrate.write.staging import Staging, clear_staging
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.stops import Stopped

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

USER, MODE = (12345, 23456), 0o644


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What is none of the target's: a file and a directory that only root may read."""
    place = tmp_path / "outside"
    (place / "staging").mkdir(parents=True)
    for path in (place / "secret", place / "staging/plan.json"):
        path.write_text("secret")
        path.chmod(0o600)
    for path in (place, place / "staging"):
        path.chmod(0o700)
    return place


def facts_of(place: Path) -> dict[str, tuple[int, int, int]]:
    found = {path: path.lstat() for path in (place, *place.rglob("*"))}
    return {str(path): (facts.st_uid, facts.st_gid, facts.st_mode) for path, facts in found.items()}


def target_of(tmp_path: Path) -> Path:
    target = tmp_path / "target"
    for name in ("commitlog", "consumequeue/a/0", "delaywheel/staging/store", "lost+found"):
        (target / name).mkdir(parents=True)
    for name in ("commitlog/0", "consumequeue/a/0/0", "delaywheel/broker.conf", "timerwheel",
                 "delaywheel/staging/plan.json", "lost+found/piece"):  # fmt: skip
        (target / name).write_text(name)
    (target / "lost+found").chmod(0o700)
    return target


def put_links(target: Path, outside: Path) -> None:
    """All that the new owner could put into any directory."""
    for directory in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        for name in ("0-first", "zz-last"):
            with suppress(OSError):
                (directory / f"{name}-file").symlink_to(outside / "secret")
                (directory / f"{name}-directory").symlink_to(outside)
                os.link(outside / "secret", directory / f"{name}-hard")
                os.mkfifo(directory / f"{name}-fifo")


def swap_files(target: Path, outside: Path) -> None:
    """A link in the place of each file."""
    for path in [path for path in target.rglob("*") if path.is_file() and not path.is_symlink()]:
        if "lost+found" not in path.parts:
            path.unlink()
            path.symlink_to(outside / "secret")


def swap_directories(target: Path, outside: Path) -> None:
    """A link in the place of each directory in the target."""
    for path in [path for path in target.iterdir() if path.is_dir() and not path.is_symlink()]:
        path.rename(target.parent / f"moved-{path.name}")
        path.symlink_to(outside)


@pytest.mark.parametrize("attack", [put_links, swap_files, swap_directories])
def test_a_link_put_anywhere_at_any_moment_leads_root_nowhere(
    tmp_path: Path,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
    attack: Callable[[Path, Path], None],
) -> None:
    before = facts_of(outside)
    for number in itertools.count():
        target = target_of(tmp_path)
        calls = itertools.count()
        with monkeypatch.context() as patch:
            for name in ("open", "fchown", "fchmod", "fstat"):
                patch.setattr(
                    os, name, attacked(getattr(os, name), calls, number, attack, target, outside)
                )
            with suppress(TargetError):
                tidy_up(Staging(StoreRoot(target)), Access(USER, MODE))
        assert facts_of(outside) == before, number
        assert (outside / "secret").read_text() == "secret"
        is_over = next(calls) <= number
        shutil.rmtree(target)
        for moved in tmp_path.glob("moved-*"):
            shutil.rmtree(moved)
        assert (outside / "secret").stat().st_nlink == 1
        if is_over:
            break
    assert number > 20


def attacked(
    known: Callable[..., Any],
    calls: itertools.count[int],
    number: int,
    attack: Callable[[Path, Path], None],
    target: Path,
    outside: Path,
) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            attack(target, outside)
        return known(*arguments, **options)

    return step


def test_links_that_are_there_are_left_alone(tmp_path: Path, outside: Path) -> None:
    target = target_of(tmp_path)
    put_links(target, outside)
    before = facts_of(outside)
    Access(USER, MODE).give(target, exclude=target / "delaywheel/staging")
    assert facts_of(outside) == before
    for path in target.rglob("*link*"):
        assert path.lstat().st_uid == 0
    assert (target / "commitlog/0").stat().st_uid == USER[0]


def test_lost_and_found_stays_root_s(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    before = facts_of(target / "lost+found")
    Access(USER, MODE).give(target, exclude=target / "delaywheel/staging")
    assert facts_of(target / "lost+found") == before
    assert (target.stat().st_uid, target.stat().st_gid) == USER


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_of_a_target_is_given_and_its_report_too(tmp_path: Path, engine: str) -> None:
    build_level_store(tmp_path / "source", [LevelMessage(level=3), LevelMessage(level=4)])
    options = options_for(tmp_path, access=Access(USER, 0o640), to=engine)
    convert(options)
    for path in (options.target, *options.target.rglob("*")):
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == USER, path
        assert facts.st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_a_stop_while_the_files_are_given_is_made_good_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_level_store(tmp_path / "source", [LevelMessage(level=3), LevelMessage(level=4)])
    options = options_for(tmp_path, access=Access(USER))
    known = os.fchown
    for number in itertools.count():
        shutil.rmtree(options.target, ignore_errors=True)
        calls = itertools.count()

        def stop(*arguments: Any) -> None:
            if next(calls) == number:  # noqa: B023
                raise Stopped
            known(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fchown", stop)
            try:
                convert(options)
            except Stopped:
                pass
            else:
                break
        assert finished_before(options) is not None
        assert {path.stat().st_uid for path in options.target.rglob("*")} == {USER[0]}
        assert not (options.target / "delaywheel/staging").exists()
    assert number > 10


def test_a_staging_place_behind_a_link_is_not_cleared(tmp_path: Path, outside: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "delaywheel").symlink_to(outside)
    with pytest.raises(TargetError):
        clear_staging(Staging(StoreRoot(target)))
    (target / "delaywheel").unlink()
    (target / "delaywheel").mkdir()
    (target / "delaywheel/staging").symlink_to(outside / "staging")
    with pytest.raises(TargetError):
        clear_staging(Staging(StoreRoot(target)))
    assert (outside / "staging/plan.json").exists()
