# SPDX-License-Identifier: Apache-2.0
"""What a task of the write stage says to the driver, and what the driver makes of it."""

import json
from pathlib import Path

import pytest

from message_store.errors import MigrationError, SourceError, TargetError
from message_store.store_root import StoreRoot
from migrate.convert import convert
from migrate.staged_output import Staging
from migrate.write import Receipt
from migrate.write_job import write_all
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import options_for

RECEIPT = Receipt(
    identity="one",
    part=3,
    count=2,
    bytes_read=99,
    log_crc=1,
    units_crc=2,
    largest_record_bytes=400,
    topics=[("TopicA", 2, 7), ("\xe8\xae\xa2", 1, 0)],
    bad={5: "why"},
    odd_sizes={6: 333},
)


def test_a_receipt_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(RECEIPT.to_json())
    assert Receipt.read(path) == RECEIPT


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", RECEIPT.to_json()[:-5], b'{"bad": [], "odd_sizes": {}}'],
)
def test_a_receipt_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "receipt.json"
    assert Receipt.read(path) is None
    path.write_bytes(content)
    assert Receipt.read(path) is None


def test_a_receipt_of_another_version_is_none(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps({**json.loads(RECEIPT.to_json()), "colour": "red"}))
    assert Receipt.read(path) is None


@pytest.mark.parametrize("kind", [SourceError, TargetError])
def test_the_writers_errors_come_home_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def refuse(_target: Path, _parts: range, _identity: str) -> None:
        raise kind("/some/path: cannot be read at 7: Input/output error")

    monkeypatch.setattr("migrate.write_job.write_parts", refuse)
    build_level_store(tmp_path / "source", [LevelMessage()])
    with pytest.raises(kind, match=r"^/some/path: cannot be read at 7: Input/output error$"):
        convert(options_for(tmp_path))


def test_without_a_plan_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match=r"plan\.json: no plan"):
        write_all(Staging(StoreRoot(tmp_path)), 1, None, lambda *_: None)
    assert not list(tmp_path.iterdir())


def test_progress_is_told_for_each_stage_and_ends_at_the_whole(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [LevelMessage(body=bytes(900)) for _ in range(9)])
    steps: list[tuple[str, int, int]] = []
    convert(options_for(tmp_path), progress=lambda *step: steps.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in steps))
    assert stages == ["plan", "write", "seal"]
    for stage in stages:
        *_, (_, done, total) = [step for step in steps if step[0] == stage]
        assert done == total > 0
