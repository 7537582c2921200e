# SPDX-License-Identifier: Apache-2.0
"""Several sources in one target: every message once, an account of each source, and each of them
verified and retired by itself.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from delaywheel.terminal.verb import exit_code
from message_store.base.clock import ManualClock
from message_store.base.errors import (
    BadRecordsError,
    OptionsError,
    PlanError,
    RefusedStoresError,
    SourceError,
    TargetError,
)
from message_store.files.config_files import read_consumer_offsets, read_groups, read_topics
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from migrate.changes.retire import retire
from migrate.convert import convert, convert_merged
from migrate.quarantine.kept import Quarantine
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions, TargetSettings
from migrate.source import sources as sources_module
from migrate.source.members import SameBrokerError
from migrate.source.sources import SameMessageError
from migrate.verify.verify import verify, verify_all, verify_alone
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.independent.variant_b_checker import read_target
from tests.migrate.conversions import (
    NOW_MS,
    assert_books_add_up,
    broker_files,
    checked_target,
    options_for,
)
from tests.migrate.stopped_conversions import stopping_at
from tests.migrate.stops import Stopped
from timer_wheel import HierarchicalWheelStore

NAMES = ("north", "south", "west")
COUNTS = {"north": 25, "south": 7, "west": 18}


def items_of(name: str, **wrong: Any) -> list[LevelMessage]:
    return [
        LevelMessage(
            level=number % 4 + 1,
            topic=f"T-{name}" if number % 3 else "Shared",
            body=name.encode() * (number + 1),
            unique_key=f"{name}-{number}",
            **wrong,
        )
        for number in range(COUNTS[name])
    ]


def build(tmp_path: Path, name: str, **how: Any) -> ConvertOptions:
    source = tmp_path / name / "store"
    build_level_store(source, how.pop("items", None) or items_of(name), **how)
    return options_for(tmp_path, source=source)


@pytest.fixture
def members(tmp_path: Path) -> list[ConvertOptions]:
    """Three stores of different brokers, and one target for all."""
    return [build(tmp_path, name) for name in NAMES]


def verified(members: list[ConvertOptions]) -> list[int]:
    """How many messages of each source are in the target, unchanged, at their times."""
    found = []
    for options in members:
        report = verify(options.source, options.target, spark=None)
        assert report.is_clean, report
        found.append(report.converted)
    return found


# --- what is written ------------------------------------------------------------------------------


def test_every_message_of_every_source_is_in_the_target_once(members: list[ConvertOptions]) -> None:
    report = convert_merged(members)
    checked_target(attrs.evolve(members[0], source=members[1].source))
    assert len(read_target(members[0].target, precision_ms=1000)) == 50
    assert verified(members) == [25, 7, 18]
    alone = verify_alone(members[0].target, spark=None)
    assert (alone.is_clean, alone.converted) == (True, 50)
    assert [one.total("converted") for one in report.sources] == [25, 7, 18]
    assert [one.target_queue_offset for one in report.sources] == [0, 25, 32]
    assert report.total("converted") == report.total("pending") == 50
    for each in (*report.sources, report):
        assert_books_add_up(each)
    assert report.bytes_written == sum(one.bytes_written for one in report.sources)


def test_sources_are_merged_into_a_hierarchical_wheel(members: list[ConvertOptions]) -> None:
    fine = [attrs.evolve(options, to="hierarchy") for options in members]
    report = convert_merged(fine)
    assert {one.engine for one in (report, *report.sources)} == {"hierarchy"}
    assert verified(fine) == [25, 7, 18]
    with HierarchicalWheelStore.open(fine[0].target, clock=ManualClock(NOW_MS)) as store:
        assert store.check() == []
        keys = sorted(each.unique_key or "" for each in store.pending())
    assert keys == sorted(f"{name}-{number}" for name in NAMES for number in range(COUNTS[name]))


def test_one_source_is_merged_into_what_it_is_converted_to(members: list[ConvertOptions]) -> None:
    convert_merged(members[:1])
    alone = attrs.evolve(members[0], target=members[0].target.with_name("alone"))
    convert(alone)
    assert broker_files(members[0].target) == broker_files(alone.target)


def test_the_report_of_each_source_is_what_it_would_be_alone(members: list[ConvertOptions]) -> None:
    report = convert_merged(members)
    for options, merged in zip(members, report.sources, strict=True):
        elsewhere = options.target.with_name("alone") / options.source.parent.name
        alone = convert(attrs.evolve(options, target=elsewhere))
        assert merged.levels == alone.levels
        assert (merged.due_min_ms, merged.due_max_ms) == (alone.due_min_ms, alone.due_max_ms)
        assert merged.request == alone.request


def test_the_report_comes_back_from_its_json(members: list[ConvertOptions]) -> None:
    report = convert_merged(members)
    content = (members[0].target / "delaywheel/conversion.json").read_bytes()
    assert ConversionReport.from_json(json.loads(content)) == report


def test_topics_and_groups_of_all_sources_are_in_the_target(tmp_path: Path) -> None:
    members = []
    for name, queues, perm in (("north", 4, 6), ("south", 9, 4)):
        how: dict[str, Any] = {
            "topics": {"Shared": queues, f"T-{name}": 2},
            "groups": [f"g-{name}", "g-both"],
            "consumer_offsets": {f"Shared@g-{name}": {0: 7}},
        }
        options = build(tmp_path, name, **how)
        path = StoreRoot(options.source).config_file("topics.json")
        facts = json.loads(path.read_bytes())
        facts["topicConfigTable"]["Shared"]["perm"] = perm
        path.write_text(json.dumps(facts))
        members.append(options)
    report = convert_merged(members)
    topics = read_topics(members[0].target)
    assert sorted(topics) == ["Shared", "T-north", "T-south"]
    shared = topics["Shared"]
    assert (shared.read_queues, shared.write_queues, shared.perm) == (9, 9, 6)
    assert set(read_groups(members[0].target)) == {"g-north", "g-south", "g-both"}
    readers = read_consumer_offsets(members[0].target)
    assert sorted(readers) == [("Shared", "g-north"), ("Shared", "g-south")]
    assert all(set(queues.values()) == {0} for queues in readers.values())
    clash = "topic Shared: sources have different settings; those of the first are taken"
    assert report.warnings.count(clash) == 1


def test_sources_may_mean_different_delays_by_their_levels(tmp_path: Path) -> None:
    table = DelayLevels.parse("2s 6s 11s 31s")
    members = [
        build(tmp_path, "north"),
        attrs.evolve(build(tmp_path, "south", level_table=table.text()), level_table=table),
    ]
    report = convert_merged(members)
    assert verified(members) == [25, 7]
    assert [(one.level, one.delay_ms) for one in report.levels[:4]] == [
        (1, 1_000), (1, 2_000), (2, 5_000), (2, 6_000),
    ]  # fmt: skip
    assert report.total("converted") == 32


def test_a_source_in_which_nothing_waits_is_no_hindrance(tmp_path: Path) -> None:
    members = [build(tmp_path, name) for name in ("north", "south")]
    build_level_store(tmp_path / "empty", [])
    members.insert(1, options_for(tmp_path, source=tmp_path / "empty"))
    report = convert_merged(members)
    assert verified(members) == [25, 0, 7]
    assert [one.due_min_ms is None for one in report.sources] == [False, True, False]


def test_sources_without_a_log_are_told_by_their_places(tmp_path: Path) -> None:
    members = [build(tmp_path, "north")]
    for name in ("none", "nothing"):
        build_level_store(tmp_path / name, [])
        (tmp_path / name / "commitlog").mkdir(exist_ok=True)
        for log in (tmp_path / name / "commitlog").iterdir():
            log.unlink()
        members.append(options_for(tmp_path, source=tmp_path / name))
    convert_merged(members)
    assert verified(members) == [25, 0, 0]


def test_options_of_one_source_are_for_it_alone(members: list[ConvertOptions]) -> None:
    some_levels: dict[str, Any] = {"only_levels": (2, 3)}
    some_topics: dict[str, Any] = {"only_topics": ("Shared",)}
    members[1] = attrs.evolve(members[1], **some_levels)
    members[2] = attrs.evolve(members[2], **some_topics)
    report = convert_merged(members)
    assert verified(members) == [25, 4, 6]
    assert report.left_out_topics == {"T-west": 12}
    assert report.total("skipped") == 3 + 12


@pytest.mark.check
@pytest.mark.spark
def test_on_spark_the_target_is_the_same(
    members: list[ConvertOptions], spark: SparkSession
) -> None:
    convert_merged(members)
    again = [attrs.evolve(one, target=one.target.with_name("spark")) for one in members]
    convert_merged(again, spark=spark)
    report = verify(again[1].source, again[1].target, spark=spark)
    assert broker_files(again[0].target) == broker_files(members[0].target)
    assert (report.converted, report.is_clean) == (7, True)


# --- bad records ----------------------------------------------------------------------------------


def test_bad_records_are_named_with_their_source(tmp_path: Path) -> None:
    members = [
        build(tmp_path, "north"),
        build(tmp_path, "south", items=items_of("south", without=["REAL_TOPIC"])[:2]),
    ]
    with pytest.raises(BadRecordsError) as refused:
        convert_merged(members)
    reasons = [record.reason for record in refused.value.records]  # type: ignore[attr-defined]
    assert len(reasons) == 2
    assert all(reason.startswith(f"{members[1].source}: ") for reason in reasons)
    assert not members[0].target.exists()


def test_what_is_set_aside_is_kept_apart_by_source(tmp_path: Path) -> None:
    members = []
    for name in ("north", "south"):
        items = [*items_of(name)[1:], *items_of(name, without=["REAL_QID"])[:1]]
        options = build(tmp_path, name, items=items)
        members.append(attrs.evolve(options, on_bad_record="quarantine"))
    report = convert_merged(members)
    assert verified(members) == [24, 6]
    assert report.total("quarantined") == 2
    kept = Quarantine(members[0].target)
    assert [record.file[:10] for record in kept.records] == ["source-01-", "source-02-"]
    assert all(account.adds_up for account in kept.accounts())


# --- stopped and resumed --------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["plan", "write", "seal"])
def test_a_stopped_merge_goes_on_and_ends_in_the_same_bytes(
    members: list[ConvertOptions], stage: str
) -> None:
    with pytest.raises(Stopped):
        convert_merged(members, progress=stopping_at(stage))
    with pytest.raises(SourceError):
        verify(members[0].source, members[0].target, spark=None)
    report = convert_merged(members)
    straight = [attrs.evolve(one, target=one.target.with_name("straight")) for one in members]
    expected = convert_merged(straight)
    assert broker_files(members[0].target) == broker_files(straight[0].target)
    assert report.levels == expected.levels


def test_a_begun_merge_is_not_continued_with_other_sources(members: list[ConvertOptions]) -> None:
    with pytest.raises(Stopped):
        convert_merged(members, progress=stopping_at("write"))
    for others in (members[:2], [members[1], members[0], members[2]]):
        with pytest.raises(PlanError, match="was begun from something else"):
            convert_merged(others)
    with pytest.raises(PlanError, match="was begun from something else"):
        convert(members[0])
    convert_merged(members)
    with pytest.raises(TargetError, match="already holds a finished conversion"):
        convert_merged(members)


# --- each source afterwards -----------------------------------------------------------------------


def test_each_source_is_retired_by_itself(members: list[ConvertOptions]) -> None:
    convert_merged(members)
    for options, count in zip(members, (25, 7, 18), strict=True):
        planned = retire(options.source, options.target)
        assert (planned.state, planned.converted) == ("planned", count)
    done = retire(members[1].source, members[1].target, execute=True)
    assert (done.state, done.converted) == ("done", 7)
    again = convert(attrs.evolve(members[1], target=members[1].target.with_name("again")))
    assert again.total("pending") == 0
    assert retire(members[0].source, members[0].target).converted == 25


def test_a_store_that_is_none_of_the_sources_is_refused(
    members: list[ConvertOptions], tmp_path: Path
) -> None:
    convert_merged(members[:2])
    sources = f"{members[0].source}, {members[1].source}, and not from it"
    for act in (lambda: verify(members[2].source, members[2].target, spark=None),
                lambda: retire(members[2].source, members[2].target)):  # fmt: skip
        with pytest.raises(SourceError, match=sources):
            act()


def test_a_source_is_known_by_its_log_wherever_it_lies(
    members: list[ConvertOptions], tmp_path: Path
) -> None:
    convert_merged(members)
    moved = tmp_path / "moved"
    members[2].source.rename(moved)
    assert verify(moved, members[2].target, spark=None).converted == 18


def drop_a_source(facts: dict[str, Any]) -> None:
    del facts["sources"][1]


def shift_a_source(facts: dict[str, Any]) -> None:
    facts["sources"][2]["target_queue_offset"] -= 1


def shorten_a_source(facts: dict[str, Any]) -> None:
    facts["sources"][2]["converted"] -= 1


@pytest.mark.parametrize("wrong", [drop_a_source, shift_a_source, shorten_a_source])
def test_shares_that_do_not_add_up_are_noticed_with_any_source(
    members: list[ConvertOptions], wrong: Callable[[dict[str, Any]], None]
) -> None:
    convert_merged(members)
    marker = members[0].target / "delaywheel/conversion.json"
    facts = json.loads(marker.read_bytes())
    wrong(facts)
    marker.write_text(json.dumps(facts))
    report = verify(members[0].source, members[0].target, spark=None)
    assert report.converted == 25
    assert any(problem.where == "conversion.json" for problem in report.problems)


def test_a_message_that_lies_with_another_source_is_missing_there(
    members: list[ConvertOptions],
) -> None:
    """The shares add up, and yet they are not what the report says."""
    convert_merged(members)
    marker = members[0].target / "delaywheel/conversion.json"
    facts = json.loads(marker.read_bytes())
    facts["sources"][0]["converted"] += 1
    facts["sources"][1]["converted"] -= 1
    facts["sources"][1]["target_queue_offset"] += 1
    marker.write_text(json.dumps(facts))
    first, second, third = (verify(one.source, one.target, spark=None) for one in members)
    assert (first.converted, first.unexpected) == (25, 1)
    assert (second.converted, second.missing) == (6, 1)
    assert third.is_clean


def test_too_many_in_the_metrics_are_found_with_all_sources_and_said_to_be_open_with_some(
    members: list[ConvertOptions],
) -> None:
    convert_merged(members)
    target, sources = members[0].target, [one.source for one in members]
    reports = verify_all(sources, target, spark=None)
    assert [(one.is_clean, one.is_part) for one in reports] == [(True, False)] * 3
    path = target / "config/timermetrics"
    facts = json.loads(path.read_bytes())
    facts["timingCount"]["T-west"]["count"] += 5
    path.write_text(json.dumps(facts))
    first, second, third = verify_all(sources, target, spark=None)
    assert (first.problems, second.problems) == ((), ())
    assert [(each.where, each.count) for each in third.problems] == [("timermetrics", 5)]
    for one in verify_all(sources[1:], target, spark=None):
        assert (one.is_clean, one.is_part) == (True, True)


# --- refusals -------------------------------------------------------------------------------------


def test_a_store_twice_is_refused(members: list[ConvertOptions], tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="named twice"):
        convert_merged([*members, members[0]])
    (tmp_path / "link").symlink_to(members[0].source)
    with pytest.raises(OptionsError, match="named twice"):
        convert_merged([members[0], attrs.evolve(members[0], source=tmp_path / "link")])


def test_two_replicas_are_refused(members: list[ConvertOptions], tmp_path: Path) -> None:
    shutil.copytree(members[0].source, tmp_path / "slave")
    slave = attrs.evolve(members[0], source=tmp_path / "slave")
    with pytest.raises(SameBrokerError, match="hold the data of one broker"):
        convert_merged([*members, slave])
    assert not members[0].target.exists()


def test_one_message_in_two_sources_is_refused_also_where_no_file_of_the_log_is_shared(
    tmp_path: Path,
) -> None:
    """A master that has deleted its first file, and a slave that stopped before it was written."""
    items = items_of("north")
    whole = build(tmp_path, "whole", items=items, commit_log_file_bytes=4096)
    short = build(tmp_path, "short", items=items[:20], commit_log_file_bytes=4096)
    logs = sorted((whole.source / "commitlog").iterdir())
    logs[0].unlink()
    other = bytearray((short.source / "commitlog" / logs[0].name).read_bytes())
    other[40] ^= 1  # the born time of its first record
    (short.source / "commitlog" / logs[0].name).write_bytes(other)
    for path in sorted((short.source / "commitlog").iterdir())[1:]:
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
    with pytest.raises(SameMessageError, match="hold the same message: level"):
        convert_merged([whole, short])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"settings": TargetSettings(precision_ms=100)}, "precision_ms is 1000 .* and 100 for"),
        ({"settings": TargetSettings()}, "commit_log_file_bytes is 4096 for"),
        ({"now_ms": 1_700_000_000_000}, "now_ms is"),
        ({"on_bad_record": "quarantine"}, "on_bad_record is fail for"),
        ({"target": Path("elsewhere")}, "target is"),
    ],
)
def test_sources_that_ask_for_different_targets_are_refused_by_name(
    members: list[ConvertOptions], changes: dict[str, Any], what: str
) -> None:
    members[2] = attrs.evolve(members[2], **changes)
    names = f"{members[0].source} and {members[2].source} cannot be in one target: "
    with pytest.raises(OptionsError, match=names + what):
        convert_merged(members)
    assert not members[0].target.exists()


def test_a_source_that_is_refused_stops_all(members: list[ConvertOptions]) -> None:
    StoreRoot(members[1].source).abort.touch()
    with pytest.raises(SourceError, match="the broker is running or has crashed"):
        convert_merged(members)
    assert not members[0].target.exists()


def test_all_sources_that_are_refused_are_named_at_once(
    members: list[ConvertOptions], tmp_path: Path
) -> None:
    StoreRoot(members[1].source).abort.touch()
    none = attrs.evolve(members[2], source=tmp_path / "none")
    with pytest.raises(RefusedStoresError, match="2 stores are refused; nothing") as refused:
        convert_merged([*members, none])
    first, second = refused.value.errors
    assert str(first).startswith(str(members[1].source))
    assert str(second).startswith(str(none.source))
    assert all(f"\n{error}" in str(refused.value) for error in (first, second))
    assert exit_code(refused.value) == max(map(exit_code, (first, second)))
    assert not members[0].target.exists()


def test_many_sources_with_records_at_the_same_places_go_together(tmp_path: Path) -> None:
    """Each message has a twin of equal length, level and due time in every other store."""
    many = []
    for number in range(9):
        items = [LevelMessage(level=2, body=b"%d-%d" % (number, row)) for row in range(5)]
        many.append(build(tmp_path, f"broker-{number}", items=items))
    assert convert_merged(many).total("converted") == 45


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), max_size=15).map(sorted)


@given(st.lists(ROWS, max_size=4), st.integers(1, 9))
def test_rows_that_agree_are_found_among_all_sources(
    sources: list[list[tuple[int, int]]], stretch_rows: int
) -> None:
    backlogs: list[Any] = []
    for rows in sources:
        offsets, sizes = np.array(rows, np.int64).reshape(-1, 2).T
        alike = np.ones(len(rows), np.int64)
        backlogs.append(
            SimpleNamespace(commit_log_offset=offsets, size_bytes=sizes, level=alike, due_ms=alike)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources_module, "_STRETCH_ROWS", stretch_rows)
        found = [sorted(group) for group in sources_module._alike(backlogs)]
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, rows in enumerate(sources):
        for row, facts in enumerate(rows):
            wanted.setdefault(facts, []).append((number, row))
    groups = [group for group in wanted.values() if len({number for number, _ in group}) > 1]
    assert sorted(found) == sorted(groups)
