# SPDX-License-Identifier: Apache-2.0
"""The lower bounds of pyproject.toml are true (`make lowest`)."""

import subprocess
import sys

import pytest

from tests.helpers.lowest import ROOT, SMOKE, lowest_python, pins


def test_every_dependency_has_a_lower_bound() -> None:
    assert {"click==8.1", "pyspark[sql]==4", "numpy==2.0"} <= {*pins()}


def test_what_is_run_on_the_lowest_versions_is_there() -> None:
    assert [path for path in SMOKE if not (ROOT / path).is_file()] == []


@pytest.mark.nightly
@pytest.mark.skipif(lowest_python() is None, reason="the lowest Python is not on this machine")
def test_the_lowest_versions_do() -> None:
    command = [sys.executable, "-m", "tests.helpers.lowest", "--numprocesses", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
