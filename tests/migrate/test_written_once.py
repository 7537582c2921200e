# SPDX-License-Identifier: Apache-2.0
"""Records of every shape at one price: each log file is written once, by the kernel, and the plan
says nothing of single records.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from migrate.convert import convert
from migrate.write import log_file, rewriter
from migrate.write.rewrite import rewrite_record
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import options_for
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


@pytest.mark.parametrize("shape", SHAPES)
def test_each_log_file_is_written_once_and_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    items = SHAPES[shape] if len(SHAPES[shape]) > 1 else [*GOOD[:30], *SHAPES[shape], *GOOD[30:]]
    build_level_store(tmp_path / "source", items)
    files: list[object] = []
    records: list[object] = []
    write_file = log_file.FileWriter.write

    def count_file(self: log_file.FileWriter) -> log_file.FileNote:
        files.append(self)
        return write_file(self)

    def count_record(*arguments: object) -> object:
        records.append(arguments)
        return rewrite_record(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(log_file.FileWriter, "write", count_file)
    monkeypatch.setattr(rewriter, "rewrite_record", count_record)
    report = convert(options_for(tmp_path, on_bad_record="quarantine"))
    assert report.total("converted") == len(items) - (shape == "one is bad")
    assert len(files) == len(list((tmp_path / "target/commitlog").iterdir())) > 2
    assert len(records) == BY_SCALAR_CODE.get(shape, 0)


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
