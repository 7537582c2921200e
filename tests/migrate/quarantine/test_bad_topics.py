# SPDX-License-Identifier: Apache-2.0
"""A message whose topic was damaged: `convert`, `check`, `verify` and `quarantine` say the same."""

from pathlib import Path

import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.format.delay_levels import DelayLevels
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.quarantine.kept import NO_REPAIR, Quarantine, Repair, restorable
from migrate.verify.verify import verify
from migrate.write.rewrite import BadRecordError
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, options_for


@pytest.mark.parametrize("topic", [b"ord rs", b"ord/rs", b"ord\nrs", b"ord\xffrs"])
def test_what_can_go_nowhere_is_told_alike(tmp_path: Path, topic: bytes) -> None:
    items = [LevelMessage(level=18, topic="orders", unique_key=f"K{each}") for each in range(3)]
    root = build_level_store(tmp_path / "source", items).root
    [log] = (root / "commitlog").iterdir()
    text, name = log.read_bytes(), b"REAL_TOPIC\x01orders"
    assert text.count(name) == 3
    log.write_bytes(text.replace(name, b"REAL_TOPIC\x01" + topic, 1))
    findings = check_store(root, CheckOptions(now_ms=NOW_MS)).findings
    assert "record-bad-topic" in [found.code for found in findings]
    options = options_for(tmp_path, target=tmp_path / "target", on_bad_record="quarantine")
    assert convert(options).total("quarantined") == 1
    assert len(read_backlog(root)) == 3
    told = verify(root, tmp_path / "target", spark=None)
    assert (told.is_clean, told.converted, told.quarantined) == (True, 2, 1)
    [record] = Quarantine(tmp_path / "target").waiting
    with pytest.raises(BadRecordError, match="cannot be delivered to"):
        restorable(record, NO_REPAIR, DelayLevels.parse())
    assert restorable(record, Repair(topic="orders"), DelayLevels.parse()).topic == "orders"
