# SPDX-License-Identifier: Apache-2.0
"""What a task of the write stage says to the driver, and what the driver makes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from message_store.base.errors import MigrationError, PlanError, SourceError, TargetError
from migrate.convert import convert
from migrate.settings import ENGINES
from migrate.source.topic_table import TopicCount, TopicTable
from migrate.write.log_file import FileNote, SourceShare, write_file
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
    shares=[
        SourceShare(
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
    "content", [b"", b"{", b"[]", b"null", b"{}", WRITTEN[:-5], b'{"shares": []}']
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


def session_of(master: str, *, has_context: bool) -> Any:
    """What stands in for a session: as much as the write stage asks of one beside its job."""
    conf = {"spark.master": master}
    facts = {"conf": SimpleNamespace(get=conf.get)}
    context = {"sparkContext": SimpleNamespace(defaultParallelism=2)} if has_context else {}
    return SimpleNamespace(**facts, **context)


def run_here(
    _spark: object, tasks: list[Any], function: Callable[[Any], Any], *_: object
) -> list[Any]:
    return [function(task) for task in tasks]


def converted_on(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> list[str]:
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

    monkeypatch.setattr("migrate.spark.tasks.run_each", run_here)
    with watching(look):
        assert convert(options, spark=session).total("converted") == 9
    return loose


@pytest.mark.parametrize("engine", ENGINES)
def test_on_a_cluster_a_file_is_on_the_disk_before_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    session = session_of("spark://there:7077", has_context=True)
    assert converted_on(session, tmp_path, monkeypatch, to=engine) == []


def test_behind_spark_connect_a_file_is_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server calls itself local, and is wherever it is."""
    monkeypatch.setattr("migrate.spark.cluster._partitions_of_a_range", lambda _session: 2)
    session = session_of("local[2]", has_context=False)
    assert converted_on(session, tmp_path, monkeypatch) == []


def test_on_this_machine_nobody_waits_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of("local[2]", has_context=True)
    assert converted_on(session, tmp_path, monkeypatch) != []
