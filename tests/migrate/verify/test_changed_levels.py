# SPDX-License-Identifier: Apache-2.0
"""A verification reads a source whose levels were changed as strictly as the conversion does."""

from pathlib import Path

import pytest

from message_store.base.errors import OptionsError
from message_store.files.store_root import StoreRoot
from migrate.report.marker import ConversionSettings
from migrate.verify.source import read_pending
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store

DAY_MS = 86_400_000
DEFAULT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LONGER = DEFAULT.replace("2h", "30d")


def test_due_times_of_a_longer_table_are_kept_or_stop_the_verification(tmp_path: Path) -> None:
    late = {"tags_code": T0 + 30 * DAY_MS}
    delivered = [LevelMessage(level=18) for _ in range(300)]
    waiting = [LevelMessage(level=18, unit_fields=late) for _ in range(100)]
    build_level_store(tmp_path / "source", [*delivered, *waiting], offsets={18: 300})
    root = StoreRoot(tmp_path / "source")
    with pytest.raises(OptionsError, match=r"differ at level 18 \(2h\)"):
        read_pending(root, ConversionSettings(now_ms=T0, level_table=DEFAULT))
    found = read_pending(root, ConversionSettings(now_ms=T0, level_table=LONGER))
    assert set(found.due_ms.tolist()) == {T0 + 30 * DAY_MS}
