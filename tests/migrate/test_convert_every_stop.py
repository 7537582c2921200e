# SPDX-License-Identifier: Apache-2.0
"""A conversion that ends before one of its changes to the disk, whichever: the same command makes
of it what it would have come to without.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from message_store.base.errors import TargetError
from message_store.files.places import Places, placed
from migrate.convert import convert, convert_merged
from migrate.settings import ConvertOptions
from tests.helpers.log_places import scatter
from tests.helpers.tiers import by_turns
from tests.independent.dledger_member import make_member
from tests.independent.queue_database import move_queues
from tests.migrate.conversions import broker_files
from tests.migrate.stopped_conversions import MARKER, made_merge
from tests.migrate.stops import Stopped, stopping_before

Command = Callable[[Path], object]
SHAPES = [
    *("one store", "two stores", "a second plan"),
    *("a DLedger member", "queues in RocksDB", "a log in two directories"),
]


def of_one(members: Sequence[ConvertOptions], places: Places) -> Command:
    def command(target: Path) -> object:
        with placed(members[0].source, places):
            return convert(attrs.evolve(members[0], target=target))

    return command


def of_all(members: Sequence[ConvertOptions]) -> Command:
    return lambda target: convert_merged([attrs.evolve(each, target=target) for each in members])


@pytest.mark.parametrize(("shape", "first"), by_turns(SHAPES, range(9)))
def test_a_conversion_that_ends_before_any_change_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, first: int
) -> None:
    members, places = made_merge(tmp_path, 2), Places()
    if shape == "a DLedger member":
        make_member(members[0].source)
    elif shape == "queues in RocksDB":
        move_queues(members[0].source)
    elif shape == "a log in two directories":
        places = Places(commit_logs=(tmp_path / "disk-a", tmp_path / "disk-b"))
        scatter(members[0].source / "commitlog", *places.commit_logs)
    command = of_all(members) if shape == "two stores" else of_one(members, places)
    if shape == "a second plan":
        monkeypatch.setattr("migrate.plan.plan.RESERVE_MAX", 0)
    command(tmp_path / "right")
    right, target = broker_files(tmp_path / "right"), tmp_path / "target"
    stops = 0
    for number in itertools.count(first, 9):
        shutil.rmtree(target, ignore_errors=True)
        try:
            with stopping_before(target, number) as done:
                command(target)
        except Stopped:
            stops += 1
        else:
            break
        if (target / MARKER).exists():
            with pytest.raises(TargetError, match="already holds a finished conversion"):
                command(target)
        else:
            command(target)
        assert broker_files(target) == right, (number, done[-2:])
        assert not (target / "delaywheel/staging").exists(), (number, done[-2:])
    assert stops > 20
