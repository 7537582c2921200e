# SPDX-License-Identifier: Apache-2.0
"""A fleet with Spark: small stores are a task each, with the bytes, errors and locks that each has
alone; whoever is stopped in the middle is continued.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from legacy_levels.backlog.queues import estimate_backlog
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import (
    BadFieldError,
    BadRecordsError,
    DelayStoreError,
    MigrationError,
    PrecisionError,
    SourceError,
    StoreLockedError,
    UncleanStoreError,
)
from message_store.base.parallel import core_count, on_one_core, parallel_map
from message_store.files.store_root import StoreRoot
from message_store.reading.consume_queue import read_queue
from migrate import fleet as fleet_module
from migrate.convert import convert, convert_patiently
from migrate.fleet import CONVERTED, FAILED, FINISHED_BEFORE, Fleet
from migrate.progress import Progress
from migrate.report.report import BadRecord, ConversionReport
from migrate.settings import ConvertOptions
from migrate.write.staging import TargetBusyError, knows_locks, sole_writer
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, broker_files, checked_target, options_for
from tests.migrate.standalone_cluster import kill_with_all_below, wait_for
from tests.source_laws import ROOT

STORES = 12
BROKEN = range(4, 7)


class Stopped(BaseException):
    """The process ends here, as far as the code under test can tell."""


@pytest.fixture
def members(tmp_path: Path) -> list[ConvertOptions]:
    """Stores of different brokers, one more message in each."""
    asked = []
    for number in range(STORES):
        name = f"broker-{number:02d}"
        source = tmp_path / name / "store"
        items = [LevelMessage(level=n % 4 + 1, body=name.encode()) for n in range(number + 3)]
        build_level_store(source, items)
        asked.append(options_for(tmp_path, source=source, target=tmp_path / "targets" / name))
    return asked


def break_three(members: Sequence[ConvertOptions]) -> None:
    """A bad record, a store that was not stopped, and no store."""
    bad, unclean, none = (members[number].source for number in BROKEN)
    [log] = (bad / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[100] ^= 0xFF
    log.write_bytes(data)
    (unclean / "abort").touch()
    shutil.rmtree(none)


def run(
    members: Sequence[ConvertOptions],
    spark: SparkSession | None,
    progress: Progress = lambda *_: None,
    reports: Path | None = None,
) -> Fleet:
    fleet = Fleet(members, reports)
    fleet.examine()
    fleet.convert(spark, progress)
    assert fleet.is_settled
    return fleet


def states(fleet: Fleet) -> list[str]:
    return [entry.state for entry in fleet.entries]


def elsewhere(members: Sequence[ConvertOptions]) -> list[ConvertOptions]:
    """The same stores, to be converted to another place."""
    return [
        attrs.evolve(options, target=options.target.parents[1] / "one-by-one" / options.target.name)
        for options in members
    ]


def same_bytes(members: Sequence[ConvertOptions], others: Sequence[ConvertOptions]) -> None:
    for one, other in zip(members, others, strict=True):
        assert broker_files(one.target) == broker_files(other.target)


@pytest.mark.spark
def test_three_broken_stores_stop_nobody_and_all_is_as_one_by_one(
    spark: SparkSession, members: list[ConvertOptions], tmp_path: Path
) -> None:
    break_three(members)
    heard: list[tuple[str, int, int]] = []
    fleet = run(members, spark, lambda *told: heard.append(told), tmp_path / "pages")
    alone = run(elsewhere(members), None)
    wanted = [FAILED if number in BROKEN else CONVERTED for number in range(STORES)]
    assert states(fleet) == states(alone) == wanted
    assert heard[0] == ("small stores", 0, STORES)
    assert heard[-1] == ("small stores", STORES, STORES)
    assert {stage for stage, *_ in heard} == {"small stores"}
    for number, (entry, other) in enumerate(zip(fleet.entries, alone.entries, strict=True)):
        if number in BROKEN:
            assert type(entry.error) is type(other.error)
            assert str(entry.error) == str(other.error)
            continue
        assert entry.report is not None
        assert entry.report.total("converted") == number + 3
        assert broker_files(entry.options.target) == broker_files(other.options.target)
    checked_target(members[0])
    kinds = [type(fleet.entries[number].error) for number in BROKEN]
    assert kinds == [BadRecordsError, UncleanStoreError, SourceError]
    assert len(fleet.entries[BROKEN[0]].as_json()["bad_records"]) == 1
    pages = sorted(path.stem for path in (tmp_path / "pages").iterdir())
    assert pages == [m.target.name for n, m in enumerate(members) if n not in BROKEN]


@pytest.mark.spark
def test_a_large_store_among_them_has_a_task_for_each_log_file(
    spark: SparkSession, members: list[ConvertOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "small_stores", lambda *_: range(STORES - 1))
    heard: list[str] = []
    assert states(run(members, spark, lambda stage, *_: heard.append(stage))) == [CONVERTED] * 12
    stages = list(dict.fromkeys(heard))
    label = f"{STORES} of {STORES}, broker-{STORES - 1:02d}"
    assert stages == ["small stores", *(f"{label}: {s}" for s in ("plan", "write", "seal"))]
    others = elsewhere(members)
    run(others, None)
    same_bytes(members, others)


Converting = Callable[[ConvertOptions], None]


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> Callable[[Converting], None]:
    """No store is small, and three threads convert them, here: Spark has no part in how they share
    the cores. Given is what is called before each of them.
    """
    monkeypatch.setattr(SparkContext, "_gateway", None)  # one that an earlier test stopped
    monkeypatch.setattr(Fleet, "_convert_small", lambda *_: True)
    monkeypatch.setattr(fleet_module, "has_ended", lambda _spark: False)
    monkeypatch.setattr(fleet_module, "own_core_count", lambda: 3)

    def begin(first: Converting) -> None:
        def converted(options: ConvertOptions, **how: Any) -> ConversionReport:
            first(options)
            return convert_patiently(options, **how | {"spark": None})

        monkeypatch.setattr(fleet_module, "convert_patiently", converted)

    return begin


def test_large_stores_share_the_cores_and_three_broken_ones_stop_nobody(
    members: list[ConvertOptions], all_large: Callable[[Converting], None]
) -> None:
    break_three(members)
    heard: list[tuple[str, int, int]] = []
    begun: set[int] = set()
    is_together = threading.Event()

    def meet(_options: ConvertOptions) -> None:
        begun.add(threading.get_ident())
        if len(begun) > 1:
            is_together.set()
        assert is_together.wait(60), "a second one begins before the first has ended"

    all_large(meet)
    fleet = run(members, object(), lambda *told: heard.append(told))  # type: ignore[arg-type]
    wanted = [FAILED if number in BROKEN else CONVERTED for number in range(STORES)]
    assert states(fleet) == wanted
    assert {stage for stage, _, _ in heard} == {"large stores"}
    percents = [done for _, done, _ in heard]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    others = elsewhere(members)
    run(others, None)
    for number, (one, other) in enumerate(zip(members, others, strict=True)):
        if number not in BROKEN:
            assert broker_files(one.target) == broker_files(other.target)


def test_large_stores_that_were_stopped_have_stopped_and_go_on(
    members: list[ConvertOptions], all_large: Callable[[Converting], None]
) -> None:
    def stop(_stage: str, done: int, _total: int) -> None:
        if done > 30:
            raise Stopped

    before = {*threading.enumerate()}
    all_large(lambda _options: None)
    with pytest.raises(Stopped):
        run(members, object(), stop)  # type: ignore[arg-type]
    assert {*threading.enumerate()} <= before
    again = run(members, None)
    assert {*states(again)} == {CONVERTED, FINISHED_BEFORE}
    others = elsewhere(members)
    run(others, None)
    same_bytes(members, others)


@pytest.mark.spark
def test_relative_paths_mean_the_caller_s_directory(
    spark: SparkSession,
    members: list[ConvertOptions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [
        attrs.evolve(
            options,
            source=options.source.relative_to(tmp_path),
            target=options.target.relative_to(tmp_path),
        )
        for options in members[:2]
    ]
    told = run(asked, spark).entries[1].as_json()
    assert (told["source"], told["target"]) == ("broker-01/store", "targets/broker-01")
    assert states(run(asked, spark)) == [FINISHED_BEFORE] * 2


@pytest.mark.check
@pytest.mark.spark
def test_a_fleet_stopped_in_its_job_goes_on(
    spark: SparkSession, members: list[ConvertOptions]
) -> None:
    def stop(_stage: str, done: int, _total: int) -> None:
        if done:
            raise Stopped

    with pytest.raises(Stopped):
        run(members, spark, stop)
    again = run(members, spark)
    assert set(states(again)) <= {CONVERTED, FINISHED_BEFORE}
    assert FINISHED_BEFORE in states(again)
    others = elsewhere(members)
    run(others, None)
    same_bytes(members, others)


@pytest.mark.check
@pytest.mark.spark
def test_a_command_killed_in_its_job_goes_on(members: list[ConvertOptions], tmp_path: Path) -> None:
    (tmp_path / "conf").write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\nmappedFileSizeTimerLog=436\n"
    )
    lines = [f"{options.source} {options.target}" for options in members]
    (tmp_path / "stores").write_text("\n".join(lines))
    flags = ["--manifest", f"{tmp_path}/stores", "--target-conf", f"{tmp_path}/conf"]
    words = [sys.executable, "-m", "cli", "convert", *flags, "--now", str(NOW_MS), "--json"]

    def finished() -> int:
        return len(list(tmp_path.glob("targets/*/delaywheel/conversion.json")))

    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as first:
        wait_for("some stores", lambda: finished() > 1)
        kill_with_all_below(first)
    before = finished()
    again = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    told = [entry["state"] for entry in json.loads(again.stdout)]
    assert (told.count(FINISHED_BEFORE), len(told)) == (before, STORES)
    assert told.count(CONVERTED) == STORES - before
    for options in members:
        checked_target(options)


@pytest.mark.spark
@pytest.mark.parametrize("finished", [0, 2])
def test_where_spark_gives_up_on_the_job_the_rest_is_converted_one_by_one(
    spark: SparkSession,
    members: list[ConvertOptions],
    monkeypatch: pytest.MonkeyPatch,
    finished: int,
) -> None:
    def give_up(_spark: object, stores: Sequence[ConvertOptions], *_rest: object) -> None:
        for options in sorted(stores, key=lambda options: options.target)[:finished]:
            convert(options)
        raise MigrationError("Spark could not finish the small stores: a worker crashed")

    monkeypatch.setattr("migrate.fleet.convert_stores", give_up)
    heard: list[str] = []
    fleet = run(members[:4], spark, lambda stage, *_: heard.append(stage))
    assert states(fleet) == [CONVERTED] * 4
    assert heard[0] == f"{finished + 1} of 4, broker-{finished:02d}: plan"


# --- locks, of which each task holds its own ------------------------------------------------------


@contextlib.contextmanager
def held_for_a_while(target: Path) -> Iterator[threading.Event]:
    """Another attempt holds a target until the event is set."""
    target.mkdir(parents=True)
    is_over, is_held = threading.Event(), threading.Event()

    def hold() -> None:
        with sole_writer(StoreRoot(target)):
            is_held.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    try:
        yield is_over
    finally:
        is_over.set()
        holder.join()


def test_an_attempt_waits_for_another_one_but_not_without_patience(
    members: list[ConvertOptions],
) -> None:
    with held_for_a_while(members[0].target) as is_over:
        with pytest.raises(TargetBusyError, match="another conversion is writing here"):
            convert_patiently(members[0], patience_s=0.0)
        with pytest.raises(TargetBusyError):
            knows_locks(StoreRoot(members[0].target))
        threading.Timer(0.3, is_over.set).start()
        assert convert_patiently(members[0], patience_s=60.0).total("converted") == 3


def test_an_attempt_takes_the_report_of_one_that_has_finished(
    members: list[ConvertOptions],
) -> None:
    report = convert(members[0])
    assert convert_patiently(members[0], patience_s=0.0) == report


@pytest.fixture
def on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[ConvertOptions]]:
    """Which stores are tasks of their own on a cluster, whose job finishes none of them."""
    monkeypatch.setattr("migrate.fleet.attempts_elsewhere", lambda _spark: 4)
    monkeypatch.setattr("migrate.fleet.has_ended", lambda _spark: True)
    monkeypatch.setattr("migrate.fleet.core_count", lambda *_: 2)

    def chosen(members: Sequence[ConvertOptions]) -> list[ConvertOptions]:
        asked: list[ConvertOptions] = []

        def note(
            _spark: object, stores: Sequence[ConvertOptions], *_rest: object
        ) -> list[ConversionReport]:
            asked.extend(stores)
            raise MigrationError("Spark could not finish the small stores: no worker")

        monkeypatch.setattr("migrate.fleet.convert_stores", note)
        run(members, object())  # type: ignore[arg-type]
        return sorted(asked, key=lambda options: options.target)

    return chosen


def test_on_a_cluster_a_target_that_is_in_use_is_refused_before_tasks_wait_for_it(
    members: list[ConvertOptions], on_a_cluster: Callable[..., list[ConvertOptions]]
) -> None:
    with held_for_a_while(members[1].target):
        assert on_a_cluster(members[:3]) == [members[0], members[2]]


def test_on_a_cluster_a_disk_without_locks_leaves_a_store_to_the_driver(
    members: list[ConvertOptions],
    on_a_cluster: Callable[..., list[ConvertOptions]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("migrate.fleet.knows_locks", lambda root: root.path != members[2].target)
    assert on_a_cluster(members[:3]) == members[:2]


def test_a_task_starts_no_threads_beside_those_of_other_tasks() -> None:
    with on_one_core():
        names = parallel_map(lambda _: threading.current_thread().name, range(3))
    assert names == [threading.current_thread().name] * 3
    others = parallel_map(lambda _: threading.current_thread().name, range(3))
    assert core_count() == 1 or names[0] not in others


# --- errors on their way home ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BadRecordsError([BadRecord(1, 2, 3, "torn")]),
        BadFieldError("torn", path="/a", offset=3, expected=1, found=2),
        StoreLockedError("/a: in use", 7),
        PrecisionError("/a", 1000, 100, "wait"),
        MigrationError("Spark").of_row(4),
    ],
)
def test_an_error_is_the_same_after_the_way_from_a_worker(error: DelayStoreError) -> None:
    came = pickle.loads(pickle.dumps(error))
    assert (type(came), str(came), vars(came)) == (type(error), str(error), vars(error))


def test_large_messages_make_a_store_large_whatever_its_last_one_is(tmp_path: Path) -> None:
    """The last entry alone was looked at once: a hundred gibibytes went to one task."""
    lengths = [3_000, 3_000, 3_000, 1]
    source = tmp_path / "source"
    build_level_store(source, [LevelMessage(level=2, body=b"x" * length) for length in lengths])
    options = options_for(tmp_path, source=source)
    size_bytes = fleet_module._task_bytes(options)
    assert size_bytes is not None
    assert 9_000 < size_bytes < 11_000


def test_lengths_are_looked_at_all_over_a_queue(tmp_path: Path) -> None:
    """Half of the records are long, and lie together."""
    source = tmp_path / "source"
    bodies = [b"", *([b"x" * 2_000] * 3_000), *([b""] * 3_000)]
    build_level_store(source, [LevelMessage(level=2, body=body) for body in bodies])
    entries = read_queue(StoreRoot(source).level_queue(2))
    messages, size_bytes = estimate_backlog(source, read_delay_offsets(source))
    assert messages == len(entries) == 6_001
    assert size_bytes == pytest.approx(int(entries.size_bytes.sum()), rel=0.1)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("sizes", "cores", "small"),
    [
        ([], 2, []),
        ([1], 2, [0]),
        ([GIB], 2, []),
        ([GIB], 1, [0]),
        ([2 << 20] * 200, 2, list(range(200))),
        ([10 * GIB] * 1_000, 160, list(range(1_000))),
        ([2 * GIB] * 200, 160, list(range(200))),
        ([500 * GIB] * 20, 160, list(range(20))),
        ([500 * GIB], 160, []),
        ([500 * GIB, *[GIB] * 400], 40, list(range(1, 401))),
    ],
)
def test_a_store_is_large_where_the_others_would_not_keep_the_cores_busy_meanwhile(
    sizes: list[int], cores: int, small: list[int]
) -> None:
    assert sorted(fleet_module.small_stores(dict(enumerate(sizes)), cores)) == small


def test_a_store_of_many_messages_is_a_task_where_its_columns_lie_on_the_disk(
    members: list[ConvertOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "MOST_IN_MEMORY", 4)
    sizes = [fleet_module._task_bytes(each) for each in members[:3]]
    assert None not in sizes
    monkeypatch.setattr(fleet_module, "has_room", lambda _: False)
    assert [fleet_module._task_bytes(each) for each in members[:3]] == [
        *sizes[:2],
        None,
    ]
