# SPDX-License-Identifier: Apache-2.0
"""Level stores for tests: small files, a clock by hand, and what their files say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from legacy_levels import LevelStore
from legacy_levels.delay_offsets import read_delay_offsets
from message_store import ManualClock, Message
from message_store.format.dialect import Dialect
from message_store.redelivery.batch import redeliver
from message_store.writing.settings import StoreSettings
from tests.independent.raw_files import queue_units, record_at
from tests.independent.raw_records import RawRecord

START_MS = 1_793_000_000_000
LOG_FILE_BYTES = 1 << 16
SMALL = StoreSettings(commit_log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=2_000)
BOTH = [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5]


@attrs.define
class Bench:
    """One store directory and its clock."""

    root: Path
    clock: ManualClock = attrs.field(factory=lambda: ManualClock(START_MS))

    def open(self, **options: Any) -> LevelStore:
        options.setdefault("settings", SMALL)
        return LevelStore.open(self.root, clock=self.clock, **options)

    def advance(self, store: LevelStore, step_ms: int = 0) -> list[bytes]:
        """Let time pass; the bodies of what was delivered."""
        self.clock.tick(step_ms)
        return [each.message.body for each in store.advance(self.clock.now_ms())]

    def offsets(self) -> dict[int, int]:
        """What delayOffset.json says."""
        return dict(read_delay_offsets(self.root).offsets)

    def records(self, topic: str, queue_id: int = 0) -> list[RawRecord]:
        """What a queue holds, read by nobody's code but the tests'."""
        units = queue_units(self.root / "consumequeue" / topic / str(queue_id))
        log = self.root / "commitlog"
        return [record_at(log, LOG_FILE_BYTES, unit.commit_log_offset) for unit in units]

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


@contextmanager
def deliveries_without_names() -> Iterator[None]:
    """Deliver as a broker does, or as earlier versions did: no copy says what it is a copy of."""

    def deliver(*given: Any, prepared_offsets: Any, **options: Any) -> Any:
        return redeliver(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legacy_levels.engine.delivery.redeliver", deliver)
        yield


def message(number: int, topic: str = "TopicA", **fields: Any) -> Message:
    fields.setdefault("unique_key", f"KEY{number:08X}")
    return Message(topic, b"body %d" % number, **fields)
