# SPDX-License-Identifier: Apache-2.0
"""A disk that is full at any stage, and kills at random moments: nothing looks finished that is
not, and the same command ends in the same bytes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from legacy_levels.generate.store import generate_level_store
from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert, convert_merged
from migrate.settings import HIERARCHY, WHEEL, ConvertOptions, TargetSettings
from migrate.verify.verify import verify
from migrate.write.staging import Staging
from tests.independent.raw_files import WHEEL_BYTES
from tests.migrate.conversions import NOW_MS, assert_books_add_up, broker_files
from tests.migrate.standalone_cluster import (
    PATIENCE_S,
    count_files,
    descendants,
    kill_with_all_below,
    slow_notes,
    wait_for,
)
from tests.migrate.stopped_conversions import MARKER, made, made_merge, never_stopped
from tests.simulation.simulated_disk import full_disk
from tests.source_laws import ROOT


@pytest.fixture
def options(tmp_path: Path) -> ConvertOptions:
    return made(tmp_path)


@pytest.fixture
def right(tmp_path: Path, options: ConvertOptions) -> dict[str, str]:
    return never_stopped(tmp_path)


def is_bootable(target: Path) -> bool:
    wheel = target / "timerwheel"
    return wheel.is_file() and wheel.stat().st_size == WHEEL_BYTES


def assert_unfinished(target: Path, right: dict[str, str]) -> None:
    """Not marked as finished; a broker that starts refuses it, unless it has every byte."""
    assert not (target / MARKER).exists()
    assert not is_bootable(target) or broker_files(target) == right
    published = {path.name for path in target.glob("[!.]*")} - {"delaywheel"}
    if published and not is_bootable(target):
        assert (target / "timerwheel").stat().st_size > 0, "a broker fills in an empty wheel"


# --- a full disk ----------------------------------------------------------------------------------


def test_no_change_of_the_disk_escapes_the_test(options: ConvertOptions) -> None:
    """On a disk that was always full nothing is left behind but the target's own directory."""
    with full_disk(options.target, 0) as disk, pytest.raises(TargetError):
        convert(options)
    assert disk.refused
    assert not options.target.exists()
    for number in (2, 9, 30):
        with full_disk(options.target, number) as disk, pytest.raises(TargetError):
            convert(options)
        before = {path: path.read_bytes() for path in options.target.rglob("*") if path.is_file()}
        with full_disk(options.target, 0), pytest.raises(TargetError):
            convert(options)
        after = {path: path.read_bytes() for path in options.target.rglob("*") if path.is_file()}
        assert after == {path: data for path, data in before.items() if path in after}


# --- kills at random moments ----------------------------------------------------------------------


def in_a_process(
    members: list[ConvertOptions], after: int, microseconds: int
) -> subprocess.CompletedProcess[str]:
    place, engine = members[0].source.parent, members[0].to
    words = (place, len(members), engine, after, microseconds)
    return subprocess.run(
        [sys.executable, "-m", "tests.migrate.kill_worker", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.check
@pytest.mark.parametrize(
    ("sources", "engine", "seed", "kills"),
    [
        (1, WHEEL, 1, 3),
        (3, WHEEL, 1, 3),
        *(
            pytest.param(sources, engine, seed, 8, marks=pytest.mark.nightly)
            for sources, engine in ((1, WHEEL), (3, WHEEL), (2, HIERARCHY))
            for seed in range(2, 6)
        ),
    ],
)
def test_a_conversion_killed_again_and_again_comes_to_the_same_end(
    tmp_path: Path, sources: int, engine: str, seed: int, kills: int
) -> None:
    dice = random.Random(seed)
    members = made_merge(tmp_path, sources, engine=engine)
    target = members[0].target
    whole = in_a_process(members, 0, 0)
    assert whole.returncode == 0, whole.stderr
    right, changes = broker_files(target), int(whole.stdout)
    assert changes > 80
    shutil.rmtree(target)
    killed = 0
    for _ in range(kills):
        # Later runs have less to do: those moments are sought near their beginning too.
        after = dice.randrange(1, changes if dice.random() < 0.5 else 30)
        done = in_a_process(members, after, dice.randrange(2_000))
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        killed += done.returncode != 0
        if (target / MARKER).exists():
            assert broker_files(target) == right
            shutil.rmtree(target)
        elif target.exists():
            assert_unfinished(target, right)
    assert killed > 0
    report = convert_merged(members)
    assert broker_files(target) == right
    for each in (report, *report.sources):
        assert_books_add_up(each)
    for options in members:
        assert verify(options.source, target, spark=None).is_clean


MESSAGES = 20_000


def python_workers(driver: int) -> list[int]:
    """The Python processes that Spark has started below a driver."""
    found = []
    for pid in descendants(driver):
        try:
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def has_files_or_ended(staging: Staging, enough: int, driver: subprocess.Popen[bytes]) -> bool:
    return count_files(staging.target.path) >= enough or driver.poll() is not None


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize(("sources", "seed"), [(1, 1), (1, 2), (2, 3), (3, 4)])
def test_drivers_and_workers_of_a_local_spark_killed_at_random_change_no_byte(
    tmp_path: Path, sources: int, seed: int
) -> None:
    dice = random.Random(seed)
    places, target = [tmp_path / f"source-{one}" for one in range(sources)], tmp_path / "target"
    for one, place in enumerate(places):
        generate_level_store(
            place,
            messages=MESSAGES // sources,
            now_ms=NOW_MS,
            seed=one,
            commit_log_file_bytes=8 << 20,
        )
    settings = TargetSettings(commit_log_file_bytes=1 << 19)
    alone = tmp_path / "alone"
    convert_merged(
        [
            ConvertOptions(source=place, target=alone, now_ms=NOW_MS, settings=settings)
            for place in places
        ]
    )
    conf = tmp_path / "target.conf"
    conf.write_text(f"mappedFileSizeCommitLog={1 << 19}\n")
    slow_notes(tmp_path / "slow", 0.2)
    words = ["convert", *map(str, (*places, target)), "--now", str(NOW_MS)]
    words += ["--master", "local[2,4]", *(["--merge"] if sources > 1 else [])]
    staging = Staging(StoreRoot(target))
    for round_number in range(3):
        before = count_files(staging.target.path)
        driver = subprocess.Popen(
            [sys.executable, "-m", "cli", *words, "--target-conf", str(conf)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(tmp_path / "slow")},
        )
        try:
            enough = before + dice.randrange(1, 6)
            is_time = partial(has_files_or_ended, staging, enough, driver)
            wait_for("files", is_time)
            with pytest.raises(subprocess.TimeoutExpired):
                driver.wait(dice.random() * 0.3)
            if round_number < 2:
                kill_with_all_below(driver)
                assert_unfinished(target, {})
                continue
            os.kill(dice.choice(python_workers(driver.pid)), signal.SIGKILL)
            assert driver.wait(PATIENCE_S) == 0
        finally:
            kill_with_all_below(driver)
    assert broker_files(target) == broker_files(alone)
