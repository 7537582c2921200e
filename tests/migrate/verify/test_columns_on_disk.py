# SPDX-License-Identifier: Apache-2.0
"""What verification knows of each message lies on the disk: the same report, and less memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legacy_levels.generate.store import generate_level_store
from message_store.files import array_room
from migrate.convert import convert
from migrate.settings import ConvertOptions, TargetSettings
from migrate.verify import jobs as verify_jobs
from migrate.verify.verify import VerifyOptions, verify
from tests.migrate.verify_targets import NOW_MS, Stores, make_stores

FILES = (
    "consumequeue/rmq_sys_wheel_timer/0/00000000000000000000",
    "timerlog/00000000000000000000",
    "timerwheel",
    "commitlog/00000000000000000000",
)


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


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def most_bytes(place: Path, messages: int) -> int:
    """The most memory at a time of a verification in this process."""
    generate_level_store(place / "source", messages=messages, now_ms=NOW_MS, body_bytes=16)
    settings = TargetSettings(commit_log_file_bytes=2 << 20)
    options = ConvertOptions(
        source=place / "source", target=place / "target", now_ms=NOW_MS, settings=settings
    )
    convert(options)
    gc.collect()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    assert verify(options.source, options.target, spark=None).converted == messages
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.check
@pytest.mark.usefixtures("traced")
def test_memory_does_not_grow_with_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_room, "_LARGE_BYTES", 1 << 12)
    monkeypatch.setattr(verify_jobs, "_TASK_MAX_ENTRIES", 50_000)
    most_bytes(tmp_path / "kernels", 1_000)
    few, many = most_bytes(tmp_path / "few", 200_000), most_bytes(tmp_path / "many", 600_000)
    # How far the reading of one store runs ahead of the other's differs by a task or two.
    assert many - few < 16 * 400_000, "columns in memory are hundreds of bytes a message"
