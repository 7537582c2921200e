# SPDX-License-Identifier: Apache-2.0
"""The power goes while a store is converted in place, retired or rolled back: whatever the disk
kept of what nobody waited for, no message waits nowhere, and the same command, or rolling back,
ends as if nothing had happened.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from legacy_levels.level_backlog import read_backlog
from message_store.store_root import StoreRoot
from migrate.convert import convert
from migrate.retire import retire
from migrate.rollback import roll_back
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do, timer_records, tree
from tests.simulation.simulated_disk import Event, Note, any_choice, make_disk, recording

NOW_MS = T0 + 500
ITEMS: list[Item] = [
    OrdinaryMessage(topic="Plain"),
    *(LevelMessage(level=number % 3 + 3, body=bytes(number * 90)) for number in range(9)),
    LevelMessage(level=18, topic="TopicB"),
]

often = pytest.mark.parametrize("cuts", [12, pytest.param(400, marks=pytest.mark.nightly)])


Contents = dict[str, str]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    store = tmp_path / "original"
    build_level_store(store, ITEMS, commit_log_file_bytes=4096, queue_file_bytes=100)
    return store


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def contents(store: Path) -> dict[str, str]:
    """Digests alone: a disk that is put together anew has no file's own permissions."""
    return {name: digest for name, (digest, _mode) in tree(store).items()}


def recorded(store: Path, act: Callable[[], object]) -> list[Event]:
    with recording(store) as recorder:
        recorder.note(begins=True)
        act()
    return recorder.events


def disks(events: Sequence[Event], store: Path, cuts: int) -> Iterator[str]:
    """The store as so many losses of power leave it; the seed says which."""
    first = next(number for number, event in enumerate(events) if isinstance(event, Note))
    for seed in range(cuts):
        rng = random.Random(seed)
        moment = rng.randint(first, len(events))
        shutil.rmtree(store)
        make_disk(events, any_choice(events, moment, rng), store)
        yield f"seed {seed}, before event {moment} of {len(events)}"


def waiting(store: Path) -> tuple[Counter[int], int]:
    """The records that a level still delivers, and how many are in the timer queue."""
    backlog = read_backlog(store, after_crash=True)
    return Counter(backlog.commit_log_offset.tolist()), len(timer_records(store))


@pytest.fixture
def right(original: Path, tmp_path: Path) -> Contents:
    """A change that nothing stopped."""
    whole = Path(shutil.copytree(original, tmp_path / "whole"))
    do(whole, NOW_MS)
    return contents(whole)


@often
def test_the_same_command_ends_as_if_the_power_had_stayed(
    store: Path, right: Contents, cuts: int
) -> None:
    events = recorded(store, lambda: do(store, NOW_MS))
    ends = Counter[str]()
    for where in disks(events, store, cuts):
        levels, on_wheel = waiting(store)
        assert sum(levels.values()) == 10 or on_wheel == 10, where
        ends[do(store, NOW_MS).state] += 1
        assert contents(store) == right, where
    assert len(ends) > 1


@often
def test_rolling_back_ends_where_it_began(original: Path, store: Path, cuts: int) -> None:
    events, before = recorded(store, lambda: do(store, NOW_MS)), contents(original)
    for where in disks(events, store, cuts):
        roll_back(StoreRoot(store), execute=True)
        assert contents(store) == before, where


@often
def test_a_rollback_that_loses_the_power_is_gone_on_with(
    original: Path, store: Path, cuts: int
) -> None:
    do(store, NOW_MS)
    events = recorded(store, lambda: roll_back(StoreRoot(store), execute=True))
    before = contents(original)
    for where in disks(events, store, cuts):
        levels, on_wheel = waiting(store)
        assert sum(levels.values()) == 10 or on_wheel == 10, where
        roll_back(StoreRoot(store), execute=True)
        assert contents(store) == before, where


@often
def test_a_retirement_that_loses_the_power_is_gone_on_with(
    store: Path, tmp_path: Path, cuts: int
) -> None:
    options = options_for(tmp_path, source=store, now_ms=NOW_MS)
    convert(options)
    logs = {path.name: path.stat().st_mtime_ns for path in (store / "commitlog").iterdir()}
    events = recorded(store, lambda: retire(store, options.target, execute=True))
    right = contents(store)
    for where in disks(events, store, cuts):
        for name, modified_ns in logs.items():
            os.utime(store / "commitlog" / name, ns=(modified_ns, modified_ns))
        retire(store, options.target, execute=True)
        assert contents(store) == right, where
        assert not waiting(store)[0], where
