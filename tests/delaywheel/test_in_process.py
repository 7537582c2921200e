# SPDX-License-Identifier: Apache-2.0
"""``--in-process``: without Spark and Java, with the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from migrate.convert import convert
from migrate.settings import ConvertOptions
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.migrate.in_place_stores import tree
from tests.source_laws import ROOT

NOW_MS = T0 + 500
CACHES = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
_WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
import cli
cli.main()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "source", [LevelMessage(level=level) for level in (3, 3, 5, 18)])
    return tmp_path / "source"


def without_spark(*words: object) -> subprocess.CompletedProcess[str]:
    """The command where PySpark cannot be imported, nor Java found."""
    command = [sys.executable, "-c", _WITHOUT_SPARK, *map(str, words)]
    kernels = {name: os.environ[name] for name in CACHES if name in os.environ}
    surroundings = {"PATH": "/nowhere", "HOME": str(Path.home()), **kernels}
    return subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True)


@pytest.mark.check
def test_a_conversion_and_its_verification_need_neither_spark_nor_java(
    store: Path, tmp_path: Path
) -> None:
    other, target = tmp_path / "other", tmp_path / "target"
    convert(ConvertOptions(source=store, target=other, now_ms=NOW_MS))
    done = without_spark("convert", "--in-process", "--json", store, target, "--now", NOW_MS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seconds"]["spark_start"] == 0
    assert tree(target).keys() == tree(other).keys()
    differ = {name for name, facts in tree(target).items() if facts != tree(other)[name]}
    assert differ <= {"delaywheel/conversion.json"}  # it names its target
    verified = without_spark("verify", "--in-process", store, target)
    assert verified.returncode == 0, verified.stderr
    assert "4 converted, 0 missing" in verified.stdout


@pytest.mark.check
def test_many_stores_and_a_merge_need_neither(store: Path, tmp_path: Path) -> None:
    build_level_store(tmp_path / "more", [LevelMessage(level=4)])
    for words in ((tmp_path / "all",), (tmp_path / "one", "--merge")):
        done = without_spark(
            "convert", "--in-process", store, tmp_path / "more", *words, "--now", NOW_MS
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("--master", "local[1]"), ("--conf", "spark.ui.enabled=true")])
def test_what_is_said_to_spark_is_refused(store: Path, tmp_path: Path, words: tuple[str]) -> None:
    target = tmp_path / "target"
    given = ["convert", "--in-process", *words, str(store), str(target)]
    result = CliRunner().invoke(cli.main, given)
    assert result.exit_code == 2
    assert "--in-process runs no Spark" in result.stderr
    assert not target.exists()
