# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the hierarchical wheel runs, on next to nothing, and says what it measured."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import hierarchy

pytestmark = pytest.mark.check


def test_the_hierarchical_wheel_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ["--rate", "200", "--seconds", "2.5", "--longest-delay-ms", "31000"]
    more = ["--precisions", "1", "--pending", "--directory", str(tmp_path)]
    results = tmp_path / "results"
    monkeypatch.setattr(hierarchy, "prewarm", lambda *_wanted: None)
    monkeypatch.setattr(sys, "argv", ["benchmark", *load, *more, "--results", str(results)])
    hierarchy.main()
    measured = json.loads((results / "hierarchy.json").read_text())
    ordinary, fine, coarse = measured["steady"]
    assert (ordinary["delivered"], fine["early"], coarse["early"]) == (0, 0, 0)
    # All of them are of the backlog: what is put now is due in half a minute.
    assert fine["delivered"] >= fine["measured"] > 0
    assert (fine["sent"], fine["repeated"]) == (500, 0)
