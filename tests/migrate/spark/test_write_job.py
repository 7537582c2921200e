# SPDX-License-Identifier: Apache-2.0
"""What a task of the write stage says to the driver, and what the driver makes of it."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from pyspark.sql import SparkSession

from message_store.base.errors import MigrationError, PlanError, SourceError, TargetError
from migrate.convert import convert
from migrate.settings import ENGINES
from migrate.source.topic_table import TopicCount, TopicTable
from migrate.write.log_file import FileNote, Receipt, write_file
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.disk_watch import DiskWatch, watching

NOTE = FileNote(
    identity="one",
    number=3,
    attempt="000003-abc",
    log_bytes=900,
    bad_count=1,
    log_crc=1,
    numbers_crc=2,
    receipts=[
        Receipt(
            source=1,
            log_bytes=900,
            bytes_read=99,
            largest_record_bytes=400,
            topics=[("TopicA", 2, 7), ("\xe8\xae\xa2", 1, 0)],
        )
    ],
)
WRITTEN = json.dumps(attrs.asdict(NOTE)).encode()


def test_a_note_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(WRITTEN)
    assert FileNote.read(path) == NOTE


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", WRITTEN[:-5], b'{"receipts": []}']
)
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "note.json"
    assert FileNote.read(path) is None
    path.write_bytes(content)
    assert FileNote.read(path) is None


def test_a_note_of_another_version_is_none(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(json.dumps({**attrs.asdict(NOTE), "colour": "red"}))
    assert FileNote.read(path) is None


@pytest.mark.parametrize("kind", [SourceError, TargetError])
def test_the_writers_errors_come_home_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def refuse(_target: Path, _identity: str, _durably: bool, _number: int) -> None:
        raise kind("/some/path: cannot be read at 7: Input/output error")

    monkeypatch.setattr("migrate.spark.tasks.write_file", refuse)
    build_level_store(tmp_path / "source", [LevelMessage()])
    with pytest.raises(kind, match=r"^/some/path: cannot be read at 7: Input/output error$"):
        convert(options_for(tmp_path))


def test_without_a_plan_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match=r"plan\.json: no plan"):
        write_file(tmp_path, "a" * 64, False, 0)
    assert not list(tmp_path.iterdir())


def test_progress_is_told_for_each_stage_and_ends_at_the_whole(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [LevelMessage(body=bytes(900)) for _ in range(9)])
    steps: list[tuple[str, int, int]] = []
    convert(options_for(tmp_path), progress=lambda *step: steps.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in steps))
    assert stages == ["plan", "write", "seal"]
    for stage in stages:
        *_, (_, done, total) = [step for step in steps if step[0] == stage]
        assert done == total > 0


def test_a_task_that_counts_too_few_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a writer that passed over a message."""
    build_level_store(tmp_path / "source", [LevelMessage() for _ in range(4)])
    known = TopicTable.counts

    def one_less(table: TopicTable) -> list[TopicCount]:
        first, *others = known(table)
        return [attrs.evolve(first, count=first.count - 1), *others]

    monkeypatch.setattr(TopicTable, "counts", one_less)
    with pytest.raises(
        PlanError, match="3 messages were written and 0 are bad where the plan has 4"
    ):
        convert(options_for(tmp_path))


# --- what Spark is asked for ----------------------------------------------------------------------


class Cluster:
    """What stands in for Spark: runs its tasks here, and keeps what is said of its jobs."""

    def __init__(self, master: str) -> None:
        self.sparkContext = self
        self.master, self.defaultParallelism = master, 2
        self.properties: dict[str, str | None] = {"spark.jobGroup.id": "the caller's"}

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.properties[name] = value

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        self.properties |= {"spark.jobGroup.id": group, "spark.job.description": description}

    def parallelize(self, runs: list[Any], count: int) -> Any:
        def collect(function: Callable[[Iterable[Any]], Iterable[Any]]) -> Any:
            assert self.properties["spark.jobGroup.id"] != "the caller's"
            found = [each for run in runs for each in function([run])]
            return SimpleNamespace(collect=lambda: found)

        assert len(runs) == count
        return SimpleNamespace(mapPartitions=collect)

    def statusTracker(self) -> Any:
        return SimpleNamespace(getJobIdsForGroup=lambda _group: [])


def converted_on(cluster: Cluster, tmp_path: Path, **changes: Any) -> list[str]:
    """Convert there; gives what was not on the disk when the last note was about to appear."""
    build_level_store(tmp_path / "source", [LevelMessage(body=bytes(900)) for _ in range(9)])
    options = options_for(tmp_path, **changes)
    loose = list[str]()

    def look(watch: DiskWatch, name: Path) -> None:
        if name.name == "note.json":
            attempts = name.parent.parent
            loose[:] = [
                each
                for each in watch.loose(attempts, but=attempts / "none")
                if (attempts / each).is_file()
            ]

    with watching(look):
        spark: Any = cluster
        assert convert(options, spark=spark).total("converted") == 9
    return loose


@pytest.mark.parametrize("engine", ENGINES)
def test_on_a_cluster_a_file_is_on_the_disk_before_its_note(tmp_path: Path, engine: str) -> None:
    assert converted_on(Cluster("spark://there:7077"), tmp_path, to=engine) == []


def test_on_this_machine_nobody_waits_twice(tmp_path: Path) -> None:
    assert converted_on(Cluster("local[2]"), tmp_path) != []


def test_a_job_of_the_caller_s_is_not_of_our_group_afterwards(tmp_path: Path) -> None:
    cluster = Cluster("local[2]")
    converted_on(cluster, tmp_path)
    assert cluster.properties["spark.jobGroup.id"] == "the caller's"
    assert cluster.properties["spark.job.description"] is None


@pytest.mark.spark
def test_spark_forgets_the_group_too(spark: SparkSession, tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [LevelMessage()])
    convert(options_for(tmp_path), spark=spark)
    for name in ("spark.jobGroup.id", "spark.job.description"):
        assert spark.sparkContext.getLocalProperty(name) is None
