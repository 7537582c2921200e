# SPDX-License-Identifier: Apache-2.0
"""``convert --plan`` says what the conversion then does, and leaves nothing."""

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

import cli
from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert, convert_merged, plan_conversion
from migrate.report.report import ConversionPlan, ConversionReport
from migrate.settings import ConvertOptions
from migrate.write.staging import Staging
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import LevelMessage, OrdinaryMessage, build_level_store
from tests.independent.real_stores import LEVELS_49_CLEAN, unpack
from tests.migrate.conversions import SMALL, options_for
from tests.migrate.stopped_conversions import made_merge

ONLY_WRITING_TELLS = ("bytes_read", "bytes_written", "seconds", "broker_conf")
ITEMS: list[Item] = [
    LevelMessage(level=5, topic="orders"),
    OrdinaryMessage(),
    LevelMessage(level=3, topic="orders"),
    LevelMessage(level=18, topic="coupons"),
]
BAD = LevelMessage(level=5, damage=lambda data: bytes(len(data)))


def facts_of(report: ConversionReport) -> dict[str, Any]:
    facts = attrs.asdict(report)
    for each in (facts, *facts["sources"]):
        for name in ("identity", *ONLY_WRITING_TELLS):
            del each[name]
        for record in each["bad_records"]:
            del record["reason"]
    return facts


def require_same(plan: ConversionPlan, report: ConversionReport) -> None:
    assert facts_of(plan.report) == facts_of(report)
    assert plan.refusals == ()
    assert plan.bytes_needed >= report.bytes_written
    assert not plan.begun


@pytest.mark.parametrize("more", [{}, {"only_topics": ["orders"]}, {"only_levels": [3, 18]}])
def test_a_plan_says_what_the_conversion_then_does(tmp_path: Path, more: dict[str, Any]) -> None:
    bodiless = LevelMessage(level=3, topic="orders", body=b"")
    build_level_store(tmp_path / "source", [*ITEMS, BAD, bodiless])
    options = options_for(tmp_path, on_bad_record="quarantine", settings=SMALL, **more)
    plan = plan_conversion(options)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    require_same(plan, convert(options))


def test_a_plan_of_a_real_store(tmp_path: Path) -> None:
    source = unpack(LEVELS_49_CLEAN, tmp_path / "source").root
    options = ConvertOptions(source=source, target=tmp_path / "target")
    plan = plan_conversion(options)
    assert not (tmp_path / "target").exists()
    require_same(plan, convert(attrs.evolve(options, now_ms=plan.report.now_ms)))


def test_a_plan_of_two_sources_in_one_target(tmp_path: Path) -> None:
    members = made_merge(tmp_path, 2)
    require_same(plan_conversion(*members), convert_merged(members))


def test_a_plan_that_would_be_refused_says_so(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [*ITEMS, BAD])
    words = ["convert", str(tmp_path / "source"), str(tmp_path / "target"), "--plan"]
    result = CliRunner().invoke(cli.main, words)
    assert result.exit_code == cli.STOPPED_BY_POLICY, result.output
    assert "would be refused: 1 pending record cannot be converted" in result.stdout
    assert "2 topics: orders 2, coupons 1" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a", "--in-place", "--plan"], "--in-place without --execute is a plan"),
        (["a", "b", "--plan", "--report", "r.html"], "writes nothing; leave --report out"),
        (["a", "b", "c", "--plan"], "for one target"),
    ],
)
def test_a_plan_is_for_one_target(words: list[str], why: str) -> None:
    result = CliRunner().invoke(cli.main, ["convert", *words])
    assert result.exit_code == cli.USAGE
    assert why in result.stderr


def test_a_plan_takes_nothing_away_of_a_run_that_was_stopped_at_its_end(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    options = options_for(tmp_path, settings=SMALL)
    convert(options)
    left = Staging(StoreRoot(options.target)).path / "left"
    left.mkdir(parents=True)
    with pytest.raises(TargetError, match="already holds a finished conversion"):
        plan_conversion(options)
    assert left.exists()


def test_a_plan_knows_what_the_new_broker_does_not_read(tmp_path: Path) -> None:
    large = LevelMessage(level=5, body=bytes(3_000))
    build_level_store(tmp_path / "source", [*ITEMS, large])
    settings = attrs.evolve(SMALL, max_message_bytes=2_000)
    options = options_for(tmp_path, on_bad_record="quarantine", settings=settings)
    plan = plan_conversion(options)
    assert len(plan.report.bad_records) == 1
    require_same(plan, convert(options))


def test_a_plan_of_a_finished_conversion_says_that_it_is(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    words = ["convert", str(tmp_path / "source"), str(tmp_path / "target"), "--in-process"]
    for more in ([], ["--plan"]):
        result = CliRunner().invoke(cli.main, [*words, *more])
        assert result.exit_code == cli.DONE, result.output
    assert "this conversion was finished before" in result.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_plan_sees_a_target_that_nobody_may_write_to(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    options = options_for(tmp_path, settings=SMALL)
    options.target.mkdir(mode=0o555)
    assert "cannot be written" in str(plan_conversion(options).refusals)
