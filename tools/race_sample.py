# SPDX-License-Identifier: Apache-2.0
"""Draws docs/race-sample.html from what ``benchmarks.race_sample`` left; measures nothing."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import attrs

from benchmarks.race_sample import SAMPLE
from compare.report.html import render_report
from compare.report.results import RaceResults
from tools.performance_bars import Results

SAMPLE_PAGE = Path(__file__).resolve().parents[1] / "docs" / "race-sample.html"


def sample_page(results: Results) -> str | None:
    """The page; None where the race was not run."""
    found = results.get(SAMPLE, {}).get("race")
    return None if found is None else render_report(from_json(RaceResults, found))


def from_json(kind: Any, value: Any) -> Any:
    """A value of ``attrs.asdict``, which went through JSON, as the type that it had."""
    parts = get_args(kind)
    if value is None:
        return None
    if get_origin(kind) in (UnionType, tuple):
        part = next(each for each in parts if each is not NoneType)
        if get_origin(kind) is tuple:
            return tuple(from_json(part, each) for each in value)
        return from_json(part, value)
    if get_origin(kind) is Mapping:
        return {key: from_json(parts[1], each) for key, each in value.items()}
    if attrs.has(kind):
        hints = get_type_hints(kind)
        return kind(**{name: from_json(hints[name], each) for name, each in value.items()})
    return value
