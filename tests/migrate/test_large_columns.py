# SPDX-License-Identifier: Apache-2.0
"""Columns of a large store lie on the disk: the same target, the same report of a conversion and of
a verification, and less memory.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from legacy_levels.generate.store import generate_level_store
from message_store.files import array_room
from migrate.convert import convert, convert_merged
from migrate.report.report import ConversionReport, Seconds
from migrate.settings import ConvertOptions, TargetSettings
from migrate.verify import jobs as verify_jobs
from migrate.verify.verify import VerifyOptions, verify
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    RawBytes,
    build_level_store,
)
from tests.independent.real_stores import LEVELS_49_CRASH, unpack
from tests.migrate.conversions import NOW_MS, SMALL, broker_files, options_for
from tests.migrate.verify_targets import Stores, make_stores

ITEMS: list[Item] = [
    *(LevelMessage(level=number % 18 + 1, body=bytes(number * 7 + 1)) for number in range(90)),
    LevelMessage(level=2, extra_pairs=[("__CRC32#", "0")]),
    LevelMessage(level=2, without=["REAL_QID"]),
    RawBytes(b"x" * 50),
    *(LevelMessage(level=number % 5 + 1, topic=f"Topic{number}") for number in range(40)),
]


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has every column on the disk, in blocks of a few rows; their sizes."""
    made: list[int] = []
    map_one = array_room._mapped

    def counted(*shape_and_type: Any) -> Any:
        array = map_one(*shape_and_type)
        made.extend([] if array is None else [array.nbytes])
        return array

    monkeypatch.setattr(array_room, "_LARGE_BYTES", 1)
    monkeypatch.setattr(array_room, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(array_room, "_mapped", counted)
    return made


def told(report: ConversionReport) -> ConversionReport:
    """All of a report that is to be the same."""
    return attrs.evolve(
        report,
        target="",
        seconds=Seconds(0, 0, 0, 0, 0),
        sources=tuple(map(told, report.sources)),
    )


CASES: dict[str, dict[str, Any]] = {
    "some overdue": {},
    "all overdue": {"now_ms": T0 + 10**8},
    "some roll": {"settings": attrs.evolve(SMALL, roll_window_slots=20), "now_ms": T0 + 2_000},
    "a hierarchical wheel": {"to": "hierarchy"},
    "some levels": {"only_levels": (2, 3, 7)},
    "some topics": {"only_topics": ("Topic3", "Topic4")},
    "the whole log": {"whole_log": True},
    "files of the usual size": {"settings": TargetSettings()},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_target_is_the_same_with_columns_on_the_disk(
    changes: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    options = options_for(tmp_path, on_bad_record="quarantine", **changes)
    wanted = convert(attrs.evolve(options, target=tmp_path / "wanted"))
    mapped = request.getfixturevalue("mapped")
    report = convert(options)
    assert len(mapped) > 20
    assert told(report) == told(wanted)
    assert broker_files(options.target) == broker_files(tmp_path / "wanted")
    assert list(options.target.glob(".*")) == []


def test_a_crashed_store_is_the_same_too(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = unpack(LEVELS_49_CRASH, tmp_path / "real")
    options = ConvertOptions(
        source=store.root, target=tmp_path / "target", now_ms=store.stopped_ms, after_crash=True
    )
    wanted = convert(attrs.evolve(options, target=tmp_path / "wanted"))
    request.getfixturevalue("mapped")
    assert told(convert(options)) == told(wanted)
    assert broker_files(options.target) == broker_files(tmp_path / "wanted")


def test_merged_stores_are_the_same_too(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    members = []
    for name, count in (("one", 40), ("two", 60)):
        items = [LevelMessage(level=at % 4 + 1, unique_key=f"{name}-{at}") for at in range(count)]
        build_level_store(tmp_path / name, items)
        members.append(options_for(tmp_path, source=tmp_path / name))
    wanted = convert_merged([attrs.evolve(one, target=tmp_path / "wanted") for one in members])
    request.getfixturevalue("mapped")
    assert told(convert_merged(members)) == told(wanted)
    assert broker_files(tmp_path / "target") == broker_files(tmp_path / "wanted")


# --- verification ---------------------------------------------------------------------------------

FILES = (
    "consumequeue/rmq_sys_wheel_timer/0/00000000000000000000",
    "timerlog/00000000000000000000",
    "timerwheel",
    "commitlog/00000000000000000000",
)


def damage(stores: Stores, seed: int) -> None:
    """Change a bit of what a file holds."""
    chance = random.Random(seed)
    path = stores.target / chance.choice(FILES)
    data = np.fromfile(path, np.uint8)
    data[chance.choice(np.flatnonzero(data).tolist())] ^= 1 << chance.randrange(8)
    data.tofile(path)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_target_is_reported_the_same(
    seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stores = make_stores(tmp_path)
    if seed:
        damage(stores, seed)
    wanted = verify(stores.source.root, stores.target, spark=None)
    mapped = request.getfixturevalue("mapped")
    assert verify(stores.source.root, stores.target, spark=None) == wanted
    assert len(mapped) > 10
    assert wanted.is_clean == (seed == 0)


def test_columns_lie_in_the_scratch_directory(
    tmp_path: Path, mapped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = make_stores(tmp_path)
    asked: list[Path] = []
    arrays_on_disk = array_room.arrays_on_disk

    def noted(directory: Path) -> Any:
        asked.append(directory)
        return arrays_on_disk(directory)

    monkeypatch.setattr("migrate.verify.verify.arrays_on_disk", noted)
    (tmp_path / "scratch").mkdir()
    options = VerifyOptions(scratch=tmp_path / "scratch")
    assert verify(stores.source.root, stores.target, spark=None, options=options).is_clean
    assert asked == [tmp_path / "scratch"]
    assert mapped
    assert list((tmp_path / "scratch").iterdir()) == []


# --- memory ---------------------------------------------------------------------------------------


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def most_bytes(work: Callable[[ConvertOptions], object], place: Path, messages: int) -> int:
    """The most memory at a time of some work in this process, for a target of many small files."""
    generate_level_store(place / "source", messages=messages, now_ms=NOW_MS, body_bytes=16)
    settings = TargetSettings(commit_log_file_bytes=2 << 20)
    options = ConvertOptions(
        source=place / "source", target=place / "target", now_ms=NOW_MS, settings=settings
    )
    if work is verified:
        convert(options)
    gc.collect()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    assert work(options) == messages
    return tracemalloc.get_traced_memory()[1] - before


def converted(options: ConvertOptions) -> int:
    return convert(options).total("converted")


def verified(options: ConvertOptions) -> int:
    return verify(options.source, options.target, spark=None).converted


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task of a pool of threads ends before the next begins. Which of them fall together, and
    need their memory at once, differs from run to run.
    """
    submit = ThreadPoolExecutor.submit

    def submit_and_wait(*task: Any, **named: Any) -> Future[Any]:
        future = submit(*task, **named)
        wait([future])
        return future

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_wait)


# Columns in memory would be hundreds of bytes a message.
@pytest.mark.check
@pytest.mark.usefixtures("traced", "one_by_one")
@pytest.mark.parametrize("work", [converted, verified])
def test_memory_does_not_grow_with_messages(
    work: Callable[[ConvertOptions], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(array_room, "_LARGE_BYTES", 1 << 12)
    monkeypatch.setattr(verify_jobs, "_TASK_MAX_ENTRIES", 50_000)
    most_bytes(work, tmp_path / "kernels", 1_000)
    few = most_bytes(work, tmp_path / "few", 200_000)
    assert most_bytes(work, tmp_path / "many", 600_000) - few < 2 * 400_000
