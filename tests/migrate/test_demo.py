# SPDX-License-Identifier: Apache-2.0
"""The demo: the shipped sample, converted as of the moment it was stopped, and verified."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from message_store.base.errors import TargetError
from migrate.demo import ABOUT, run_demo, unpack_sample


def silent(_stage: str, _done: int, _total: int) -> None:
    """No progress wanted."""


def test_the_sample_keeps_its_holes(tmp_path: Path) -> None:
    log = unpack_sample(tmp_path) / "commitlog" / f"{0:020d}"
    assert log.stat().st_size == 1 << 30
    assert log.stat().st_blocks * 512 < 16 << 20


def test_where_there_already_is_a_demo_nothing_is_overwritten(tmp_path: Path) -> None:
    unpack_sample(tmp_path)
    with pytest.raises(TargetError, match="is there already"):
        unpack_sample(tmp_path)


def test_every_message_of_the_sample_is_converted(tmp_path: Path) -> None:
    about = json.loads(ABOUT.read_text())
    result = run_demo(tmp_path, spark=None, progress=silent)
    waiting = {int(level): n.get("pending", 0) for level, n in about["byLevel"].items()}
    assert {one.level: one.converted for one in result.report.levels} == waiting
    assert result.report.now_ms == result.stopped_ms == about["stoppedMs"]
    assert result.verification.is_clean
    assert result.verification.converted == sum(waiting.values()) == 366
    assert Path(result.target, "timerwheel").stat().st_size == 38_707_200
    assert set(result.as_json()) >= {"source", "target", "report", "verification"}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_verb_says_what_such_a_target_is_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["demo", "--directory", str(tmp_path)])
    assert result.exit_code == cli.DONE, result.output
    assert "366 of 366 pending messages converted" in result.stdout
    assert "366 converted, 0 missing, 0 unexpected, 0 different" in result.stdout
    assert "This target can only be inspected" in result.stdout
    again = CliRunner().invoke(cli.main, ["demo", "--directory", str(tmp_path)])
    assert again.exit_code == cli.TARGET_UNWRITABLE
