# SPDX-License-Identifier: Apache-2.0
"""Verification agrees with each reason for which a conversion sets a record aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.convert import convert
from migrate.verify.verify import verify
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import options_for

SOUND = [LevelMessage(level=number % 5 + 1) for number in range(20)]
BAD = {
    "no body": LevelMessage(level=3, body=b""),
    "no queue": LevelMessage(level=3, without=["REAL_QID"]),
    "no topic": LevelMessage(level=3, without=["REAL_TOPIC"]),
    "a topic that is none": LevelMessage(level=3, topic="a/b"),
    "a damaged body": LevelMessage(level=3, record_fields={"body_crc": 1}),
}


@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_set_aside_is_no_problem(bad: LevelMessage, engine: str, tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [*SOUND, bad])
    options = options_for(tmp_path, on_bad_record="quarantine", to=engine)
    assert len(convert(options).bad_records) == 1
    report = verify(options.source, options.target, spark=None)
    assert report.problems == ()
    assert (report.is_clean, report.converted, report.quarantined) == (True, len(SOUND), 1)
