# SPDX-License-Identifier: Apache-2.0
"""Records of every shape at one price: each log file is written once, by the kernel, and the plan
says nothing of single records.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from migrate.convert import convert, convert_merged
from migrate.report.report import ConversionReport
from migrate.settings import HIERARCHY, WHEEL
from migrate.verify.verify import verify_all
from migrate.write import log_file, rewriter
from migrate.write.rewrite import rewrite_record
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import checked_target, options_for
from tests.migrate.stops import Stopped

GOOD = [LevelMessage(level=number % 4 + 1, body=bytes([number]) * 200) for number in range(60)]
BAD = LevelMessage(level=3, without=["REAL_TOPIC"])
SHAPES = {
    "usual": GOOD,
    "with checksums": [
        attrs.evolve(each, extra_pairs=[("__CRC32#", "0123456789")], ends_with_separator=True)
        for each in GOOD
    ],
    "one with a timer's property": [
        LevelMessage(level=3, extra_pairs=[("TIMER_OUT_MS", "1")], ends_with_separator=True)
    ],
    "one is bad": [BAD],
}
BY_SCALAR_CODE = {"one is bad": 1}
"""It says why a record is bad, and so reads each of those once."""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The log files that were written."""
    written: list[object] = []
    write_file = log_file.FileWriter.write

    def count_file(self: log_file.FileWriter) -> log_file.FileNote:
        written.append(self)
        return write_file(self)

    monkeypatch.setattr(log_file.FileWriter, "write", count_file)
    return written


@pytest.mark.parametrize("shape", SHAPES)
def test_each_log_file_is_written_once_and_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[object], shape: str
) -> None:
    items = SHAPES[shape] if len(SHAPES[shape]) > 1 else [*GOOD[:30], *SHAPES[shape], *GOOD[30:]]
    build_level_store(tmp_path / "source", items)
    records: list[object] = []

    def count_record(*arguments: object) -> object:
        records.append(arguments)
        return rewrite_record(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rewriter, "rewrite_record", count_record)
    report = convert(options_for(tmp_path, on_bad_record="quarantine"))
    assert report.total("converted") == len(items) - (shape == "one is bad")
    assert len(files) == len(list((tmp_path / "target/commitlog").iterdir())) > 2
    assert len(records) == BY_SCALAR_CODE.get(shape, 0)


def test_records_that_went_with_files_of_the_log_have_nothing_written_twice(
    tmp_path: Path, files: list[object]
) -> None:
    """More than the reserve holds; entries tell so much before anything is written."""
    source = tmp_path / "source"
    build_level_store(source, GOOD, commit_log_file_bytes=4096)
    for log in sorted((source / "commitlog").iterdir())[1:3]:
        log.unlink()
    report = convert(options_for(tmp_path, on_bad_record="quarantine"))
    assert report.total("quarantined") > 15
    assert len(files) == len(list((tmp_path / "target/commitlog").iterdir())) > 1


@pytest.mark.parametrize("engine", [WHEEL, HIERARCHY])
@pytest.mark.parametrize("lengths", [(60, 60, 60), (60, 20, 3), (60, 60, 1)])
def test_a_merge_with_a_bad_record_in_each_source_writes_each_log_file_once(
    tmp_path: Path, files: list[object], lengths: tuple[int, ...], engine: str
) -> None:
    """Messages of the last sources take the places of bad ones of all, and stay theirs."""
    members = []
    for number, length in enumerate(lengths):
        items = [*GOOD[: length // 2], BAD, *GOOD[length // 2 : length]]
        source = tmp_path / f"source-{number}"
        build_level_store(source, [attrs.evolve(each, tags=f"from-{number}") for each in items])
        how = {"on_bad_record": "quarantine", "to": engine}
        members.append(options_for(tmp_path, source=source, **how))
    target = tmp_path / "target"
    report = convert_merged(members)
    assert len(files) == len(list((target / "commitlog").iterdir())) > 2
    assert any(each.target_runs for each in report.sources)
    if engine == WHEEL:
        checked_target(members[0])
    for each, length in zip(report.sources, lengths, strict=True):
        assert (each.total("converted"), each.total("quarantined")) == (length, 1)
        assert sum(end - first for first, end in each.target_runs) in (0, length)
    found = verify_all([each.source for each in members], target, spark=None)
    assert [(each.converted, each.quarantined) for each in found] == [(n, 1) for n in lengths]
    assert all(each.is_clean for each in found)
    assert ConversionReport.from_json(json.loads(json.dumps(report.as_json()))) == report


def test_a_plan_is_as_long_for_many_messages(tmp_path: Path) -> None:
    lengths = []
    for count in (40, 60):
        place = tmp_path / str(count)
        place.mkdir()
        items = SHAPES["with checksums"][:count]
        build_level_store(place / "source", items, commit_log_file_bytes=1 << 20)
        options = options_for(place)

        def stop(stage: str, *_: int) -> None:
            if stage == "seal":
                raise Stopped

        with pytest.raises(Stopped):
            convert(options, progress=stop)
        plan = (options.target / "delaywheel/staging/plan.json").read_text()
        lengths.append(len(plan.replace(str(place), "")))
    assert abs(lengths[1] - lengths[0]) < 100
