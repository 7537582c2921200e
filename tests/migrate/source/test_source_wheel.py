# SPDX-License-Identifier: Apache-2.0
"""What waits in a source's own wheel is counted as of when its hand last moved, not as of today."""

from pathlib import Path

import pytest

from migrate.source.sources import WheelNotEmptyError, require_nothing_left_behind
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder


def test_messages_that_today_s_broker_would_no_longer_reach_wait_all_the_same(
    tmp_path: Path,
) -> None:
    builder = WheelStoreBuilder(tmp_path)
    for ahead_ms in (10_000, 3_600_000):
        builder.put_and_place(NOW_MS + ahead_ms)
    with pytest.raises(WheelNotEmptyError, match="2 messages wait in its timer wheel"):
        require_nothing_left_behind(builder.stop())


def test_a_wheel_whose_hand_has_passed_everything_is_empty(tmp_path: Path) -> None:
    builder = WheelStoreBuilder(tmp_path)
    builder.put_and_place(NOW_MS + 10_000)
    require_nothing_left_behind(builder.stop(last_read_ms=NOW_MS + 11_000))


def test_a_message_that_was_never_placed_waits_too(tmp_path: Path) -> None:
    builder = WheelStoreBuilder(tmp_path)
    builder.put(NOW_MS + 10_000)
    with pytest.raises(WheelNotEmptyError, match="1 message waits"):
        require_nothing_left_behind(builder.stop(last_queue_offset=0))
