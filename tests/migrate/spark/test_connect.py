# SPDX-License-Identifier: Apache-2.0
"""Through Spark Connect, whose sessions have no context, all is as in this process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.convert import convert
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import broker_files, options_for
from tests.source_laws import ROOT

LACKS_CONNECT = importlib.util.find_spec("grpc") is None and not os.environ.get("CI")


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.skipif(LACKS_CONNECT, reason="no grpcio: pip install 'delaywheel[connect]'")
def test_a_conversion_and_its_verification_need_no_context(tmp_path: Path) -> None:
    items = [LevelMessage(level=one % 18 + 1, body=bytes([one]) * 300) for one in range(60)]
    source = build_level_store(tmp_path / "source", items).root
    here = options_for(tmp_path, target=tmp_path / "here")
    convert(here)
    (tmp_path / "scratch").mkdir()
    paths = [source, tmp_path / "target", tmp_path / "scratch"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.migrate.connect_client", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_TESTING": "1",  # a free port for the server
        },
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert broker_files(tmp_path / "target") == broker_files(here.target)
    assert list((tmp_path / "scratch").iterdir()) == []
    progress, cancelled_s = answer.pop("progress"), answer.pop("cancelled_s")
    assert 0 < max(progress) <= 8
    assert cancelled_s < 600
    assert answer.pop("without_scratch").startswith("Spark's workers (behind Spark Connect) may be")
    assert answer == {
        "has_context": False,
        "cores": 2,
        "converted": 60,
        "is_clean": True,
        "verified": 60,
        "damage": "SourceError: /logs: damaged",
        "failure": (
            "MigrationError: Spark could not finish the verification: ZeroDivisionError:"
            " division by zero"
        ),
        "tags": ["of-the-caller"],
        "same_conf": True,
        "handlers": 0,
        "had_ended": False,
        "has_ended": True,
    }
