# SPDX-License-Identifier: Apache-2.0
"""The same ``convert`` command again, on a target that it has finished."""

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

import cli
from message_store.base.errors import PlanError
from migrate.changes.retire import retire
from migrate.convert import convert
from migrate.report.finished_target import finished_before
from migrate.settings import TargetSettings
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import tree

NOW_MS = T0 + 500
ITEMS = [LevelMessage(level=3), LevelMessage(level=3), LevelMessage(level=5)]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def test_the_same_conversion_again_is_done_already(tmp_path: Path) -> None:
    store = build_level_store(tmp_path / "source", ITEMS).root
    conf = tmp_path / "target.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n")
    target, page = tmp_path / "target", tmp_path / "page.html"
    words = ("convert", store, target, "--target-conf", conf)
    first = options_for(
        tmp_path,
        source=store,
        target=target,
        now_ms=NOW_MS,
        settings=TargetSettings(commit_log_file_bytes=65536, queue_file_bytes=2000),
    )
    convert(first)
    before = tree(target)
    again = run(*words, "--report", page)
    assert again.exit_code == cli.DONE, again.output
    assert f"{target}: this conversion was finished before; nothing was done now" in again.stdout
    assert "3 of 3 pending messages converted" in again.stdout
    assert page.exists()
    assert tree(target) == before
    retire(store, target, execute=True)
    assert run(*words, "--now", NOW_MS, "--json").exit_code == cli.DONE
    for other in (("--only-level", 3), ("--now", NOW_MS + 1), ("--offsets", "main")):
        refused = run(*words, *other)
        assert refused.exit_code == cli.TARGET_UNWRITABLE
        assert "already holds a finished conversion" in refused.stderr


def test_a_source_that_was_deleted_does_not_make_it_another_conversion(tmp_path: Path) -> None:
    options = options_for(
        tmp_path, source=build_level_store(tmp_path / "source", ITEMS).root, now_ms=NOW_MS
    )
    convert(options)
    shutil.rmtree(options.source)
    found = finished_before(options)
    assert found is not None
    assert found.total("converted") == 3
    changes: dict[str, Any] = {"only_levels": [3]}
    with pytest.raises(PlanError, match="differs in: only_levels"):
        finished_before(attrs.evolve(options, **changes))
