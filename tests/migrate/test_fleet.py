# SPDX-License-Identifier: Apache-2.0
"""Many stores in one run: each is converted as it would be alone, none stops the others, and the
same run again goes on with what is left.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store.base.errors import (
    BadRecordsError,
    FormatError,
    OptionsError,
    PlanError,
    SourceError,
    TargetError,
)
from migrate.convert import convert
from migrate.fleet import CONVERTED, FAILED, FINISHED_BEFORE, Fleet, target_name
from migrate.settings import ConvertOptions
from migrate.source.members import SameBrokerError
from migrate.spark.session import spark_session
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import broker_files, checked_target, options_for
from tests.migrate.stopped_conversions import notes_of

NAMES = ("north", "south", "west")


class Stopped(BaseException):
    """The process ends here, as far as the code under test can tell."""


@pytest.fixture
def members(tmp_path: Path) -> list[ConvertOptions]:
    """Three stores of different brokers."""
    found = []
    for name in NAMES:
        items = [LevelMessage(level=n % 4 + 1, body=name.encode() * n) for n in range(1, 13)]
        build_level_store(tmp_path / name / "store", items)
        found.append(
            options_for(
                tmp_path, source=tmp_path / name / "store", target=tmp_path / "targets" / name
            )
        )
    return found


def run(
    members: list[ConvertOptions],
    progress: Callable[[str, int, int], None] = lambda *_: None,
    **more: Any,
) -> Fleet:
    fleet = Fleet(members, **more)
    fleet.examine()
    fleet.convert(None, progress)
    assert fleet.is_settled
    assert [entry.options for entry in fleet.entries] == members
    return fleet


def states(fleet: Fleet) -> list[str]:
    return [entry.state for entry in fleet.entries]


def alone(options: ConvertOptions) -> dict[str, str]:
    """The files of a target that was converted by itself."""
    elsewhere = attrs.evolve(options, target=options.target.with_name("alone") / "target")
    convert(elsewhere)
    try:
        return broker_files(elsewhere.target)
    finally:
        shutil.rmtree(elsewhere.target.parent)


def test_every_store_is_converted_as_it_would_be_alone(members: list[ConvertOptions]) -> None:
    heard: list[str] = []
    fleet = run(members, lambda stage, *_: heard.append(stage))
    assert states(fleet) == [CONVERTED] * 3
    for entry, options in zip(fleet.entries, members, strict=True):
        assert entry.report is not None
        assert entry.report.total("converted") == 12
        checked_target(options)
        assert broker_files(options.target) == alone(options)
    assert heard[0] == "1 of 3, north: plan"
    assert heard[-1] == "3 of 3, west: seal"


def test_the_json_of_a_store_is_that_of_convert_and_more(members: list[ConvertOptions]) -> None:
    fleet = run(members)
    marker = json.loads((members[1].target / "delaywheel/conversion.json").read_bytes())
    told = json.loads(json.dumps(fleet.entries[1].as_json()))
    assert told.items() >= {name: marker[name] for name in marker if name != "conversion"}.items()
    assert (told["state"], told["error"]) == (CONVERTED, None)


def test_finished_ones_are_passed_over_and_told_as_before(members: list[ConvertOptions]) -> None:
    first = run(members[:2])
    files = broker_files(members[0].target)
    again = run(members)
    assert states(again) == [FINISHED_BEFORE, FINISHED_BEFORE, CONVERTED]
    assert [entry.report for entry in again.entries[:2]] == [e.report for e in first.entries]
    assert broker_files(members[0].target) == files
    settled = Fleet(members)
    settled.examine()
    assert settled.is_settled


def test_a_fleet_that_was_stopped_goes_on_where_it_was(members: list[ConvertOptions]) -> None:
    def stop(stage: str, _done: int, _total: int) -> None:
        if stage == "2 of 3, south: seal":
            raise Stopped

    with pytest.raises(Stopped):
        run(members, stop)
    assert notes_of(members[1].target)
    assert not members[2].target.exists() or not any(members[2].target.iterdir())
    assert states(run(members)) == [FINISHED_BEFORE, CONVERTED, CONVERTED]
    for options in members:
        assert broker_files(options.target) == alone(options)


def missing(options: ConvertOptions) -> None:
    shutil.rmtree(options.source)


def no_store(options: ConvertOptions) -> None:
    shutil.rmtree(options.source / "commitlog")


def crashed(options: ConvertOptions) -> None:
    (options.source / "abort").touch()


def in_the_way(options: ConvertOptions) -> None:
    options.target.mkdir(parents=True)
    (options.target / "notes.txt").touch()


def a_file(options: ConvertOptions) -> None:
    options.target.parent.mkdir(parents=True)
    options.target.touch()


def bad_record(options: ConvertOptions) -> None:
    [log] = (options.source / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[100] ^= 0xFF
    log.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (missing, SourceError),
        (no_store, SourceError),
        (crashed, SourceError),
        (in_the_way, TargetError),
        (a_file, TargetError),
        (bad_record, BadRecordsError),
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_one_bad_store_does_not_stop_the_others(
    members: list[ConvertOptions],
    damage: Callable[[ConvertOptions], None],
    error: type[Exception],
    place: int,
) -> None:
    damage(members[place])
    fleet = run(members)
    assert states(fleet) == [FAILED if n == place else CONVERTED for n in range(3)]
    entry = fleet.entries[place]
    assert isinstance(entry.error, error)
    told = json.loads(json.dumps(entry.as_json()))
    assert told["source"] == str(members[place].source)
    assert told["error"] == str(entry.error)
    assert len(told.get("bad_records", [])) == (damage is bad_record)


def test_what_was_repaired_is_converted_by_the_same_run(members: list[ConvertOptions]) -> None:
    crashed(members[1])
    assert states(run(members)) == [CONVERTED, FAILED, CONVERTED]
    (members[1].source / "abort").unlink()
    assert states(run(members)) == [FINISHED_BEFORE, CONVERTED, FINISHED_BEFORE]


def test_copies_of_one_broker_are_refused_and_the_others_are_not(
    tmp_path: Path, members: list[ConvertOptions]
) -> None:
    slave = Path(shutil.copytree(members[0].source, tmp_path / "slave"))
    members.append(attrs.evolve(members[0], source=slave, target=tmp_path / "targets/slave"))
    fleet = run(members)
    assert states(fleet) == [FAILED, CONVERTED, CONVERTED, FAILED]
    for place in (0, 3):
        assert isinstance(fleet.entries[place].error, SameBrokerError)
        assert not members[place].target.exists()


def test_the_copy_of_a_store_that_is_finished_is_refused(
    tmp_path: Path, members: list[ConvertOptions]
) -> None:
    run(members[:1])
    slave = Path(shutil.copytree(members[0].source, tmp_path / "slave"))
    members.append(attrs.evolve(members[0], source=slave, target=tmp_path / "targets/slave"))
    assert states(run(members)) == [FINISHED_BEFORE, CONVERTED, CONVERTED, FAILED]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"now_ms": 1_700_000_000_000}, "now_ms"), ({"only_levels": [1]}, "only_levels")],
)
def test_a_finished_target_of_something_else_is_not_taken_for_this_one(
    members: list[ConvertOptions], changes: dict[str, Any], named: str
) -> None:
    run(members)
    other = [attrs.evolve(members[0], **changes), *members[1:]]
    fleet = run(other)
    assert states(fleet) == [FAILED, FINISHED_BEFORE, FINISHED_BEFORE]
    assert isinstance(fleet.entries[0].error, PlanError)
    assert f"something else (differs in: {named})" in str(fleet.entries[0].error)


def test_without_a_now_a_finished_target_is_recognised(members: list[ConvertOptions]) -> None:
    run(members)
    later = [attrs.evolve(options, now_ms=None) for options in members]
    assert states(run(later)) == [FINISHED_BEFORE] * 3


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"levels": 3}', b"\xff"])
def test_a_damaged_report_is_an_error_of_that_store(
    members: list[ConvertOptions], content: bytes
) -> None:
    run(members)
    (members[2].target / "delaywheel/conversion.json").write_bytes(content)
    fleet = run(members)
    assert states(fleet) == [FINISHED_BEFORE, FINISHED_BEFORE, FAILED]
    assert isinstance(fleet.entries[2].error, FormatError)


def test_each_store_has_its_page_also_when_it_was_finished_before(
    tmp_path: Path, members: list[ConvertOptions]
) -> None:
    run(members[:1])
    pages = tmp_path / "pages"
    run(members, reports=pages)
    assert sorted(path.name for path in pages.iterdir()) == [f"{name}.html" for name in NAMES]
    assert str(members[0].source) in (pages / "north.html").read_text()


def test_a_target_that_is_made_anew_gets_a_new_page(
    tmp_path: Path, members: list[ConvertOptions]
) -> None:
    pages = tmp_path / "pages"
    run(members[:1], reports=pages)
    before = (pages / "north.html").read_text()
    shutil.rmtree(members[0].target)
    changes: dict[str, Any] = {"only_levels": [1]}
    other = [attrs.evolve(members[0], **changes)]
    assert states(run(other, reports=pages)) == [CONVERTED]
    assert (pages / "north.html").read_text() != before


@pytest.mark.parametrize("name", ["north", "North"])
def test_two_pages_of_one_name_are_refused(
    tmp_path: Path, members: list[ConvertOptions], name: str
) -> None:
    alike = attrs.evolve(members[1], target=tmp_path / "elsewhere" / name)
    Fleet([members[0], alike])
    with pytest.raises(OptionsError, match="their pages would have one name"):
        Fleet([members[0], alike], tmp_path / "pages")


@pytest.mark.check
def test_a_page_that_cannot_be_written_is_an_error_of_a_converted_store(
    tmp_path: Path, members: list[ConvertOptions]
) -> None:
    (tmp_path / "pages").touch()
    fleet = run(members, reports=tmp_path / "pages")
    assert states(fleet) == [CONVERTED] * 3
    assert all(isinstance(entry.error, TargetError) for entry in fleet.entries)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("north/store", "targets/other", "named twice"),
        ("east", "targets/north", "named twice"),
        ("east", "targets/north/inner", "one lies in the other"),
        ("east", "north/store/inner", "one lies in the other"),
        ("east", "targets", "one lies in the other"),
        ("east", "east", "named twice"),
    ],
)
def test_places_in_each_others_way_are_refused_before_anything_is_done(
    tmp_path: Path, members: list[ConvertOptions], source: str, target: str, words: str
) -> None:
    extra = attrs.evolve(members[0], source=tmp_path / source, target=tmp_path / target)
    with pytest.raises(OptionsError, match=words):
        Fleet([*members, extra])
    assert not (tmp_path / "targets").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [("/mnt/a/store", "a"), ("/mnt/a", "a"), ("/store", ""), ("/mnt/a/store/", "a")],
)
def test_targets_are_named_after_their_source(source: str, name: str) -> None:
    assert target_name(Path(source)) == name


@pytest.mark.check
@pytest.mark.spark
def test_a_spark_that_ends_takes_no_further_store_with_it(
    members: list[ConvertOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("migrate.fleet.small_stores", lambda *_: [])  # each has jobs of its own
    monkeypatch.setattr("migrate.fleet.own_core_count", lambda: 1)
    fleet = Fleet(members)
    fleet.examine()
    with spark_session("local[2]") as spark:

        def stop(_stage: str, _done: int, _total: int) -> None:
            if len(fleet.entries) == 1:
                spark.stop()

        fleet.convert(spark, stop)
    assert states(fleet) == [CONVERTED, FAILED, FAILED]
    assert "not tried, because Spark has ended" in str(fleet.entries[2].error)
    assert not members[2].target.exists()
    assert states(run(members)) == [FINISHED_BEFORE, CONVERTED, CONVERTED]
