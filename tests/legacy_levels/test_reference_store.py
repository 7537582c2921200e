# SPDX-License-Identifier: Apache-2.0
"""The reference on a store directory: what it promises as an engine, and what it refuses."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from legacy_levels import LevelRules, LevelStore
from legacy_levels.delay_offsets import OffsetsWriter
from legacy_levels.engine.rules import BROKER_TIMINGS
from legacy_levels.reference.store import LiveBroker, ReferenceLevelStore
from message_store import AfterMs, AtLevel, ManualClock, Message, MessageBatch
from message_store.base.errors import (
    OptionsError,
    SourceError,
    TargetError,
    UnsupportedStoreError,
)
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from tests.legacy_levels.level_stores import BOTH, SMALL, START_MS, message


@pytest.mark.parametrize("dialect", BOTH, ids=str)
def test_what_is_stored_comes_at_its_time_across_files(tmp_path: Path, dialect: Dialect) -> None:
    """The queue files hold a hundred entries each."""
    clock, root = ManualClock(START_MS), tmp_path / "store"
    with ReferenceLevelStore.open(root, clock=clock, dialect=dialect, settings=SMALL) as store:
        batch = MessageBatch.of(message(number) for number in range(250))
        receipt = store.schedule_batch(batch, np.full(250, START_MS + 5_000))
        assert set(receipt.promised_ms.tolist()) == {START_MS + 5_000}
        assert len(store.advance(START_MS + 4_999)) == 0
        assert store.next_due_ms() == START_MS + 5_000
        assert len(list(store.pending(level=2))) == 250
        came = [each.message.body for each in store.advance(START_MS + 5_000)]
        assert came == [b"body %d" % number for number in range(250)]
        assert store.next_due_ms() is None
        assert list(store.pending()) == []


def test_a_kill_repeats_what_was_delivered_since_the_offsets_were_saved(tmp_path: Path) -> None:
    clock, root = ManualClock(START_MS), tmp_path / "store"
    store = ReferenceLevelStore.open(root, clock=clock, settings=SMALL)
    for number in range(3):
        store.schedule(message(number), AtLevel(1))
    assert len(store.advance(START_MS + 1_000)) == 3
    store.abandon()
    clock.tick(1_000)
    with ReferenceLevelStore.open(root, clock=clock, settings=SMALL) as store:
        assert len(store.advance(clock.now_ms())) == 3
    with LevelStore.open(root, clock=clock, settings=SMALL) as fast:
        assert list(fast.pending()) == []


def test_with_a_broker_s_timings_a_level_is_looked_at_every_100_ms(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with ReferenceLevelStore.open(
        tmp_path / "store", clock=clock, settings=SMALL, timings=BROKER_TIMINGS
    ) as store:
        store.schedule(message(1), AfterMs(1_000))
        clock.tick(20)
        store.schedule(message(2), AfterMs(1_000))
        seen = [ms for ms in range(20, 1_201, 20) for _ in store.advance(START_MS + ms)]
        assert seen == [1_000, 1_100]


def test_what_a_broker_cannot_do_is_refused(tmp_path: Path) -> None:
    clock, root = ManualClock(START_MS), tmp_path / "store"
    with ReferenceLevelStore.open(root, clock=clock, settings=SMALL) as store:
        receipt = store.schedule(message(1), AtLevel(1))
        with pytest.raises(UnsupportedStoreError, match="cannot cancel"):
            store.cancel(receipt)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (root / "config" / name).write_bytes(b"{torn")
    with pytest.raises(SourceError, match="does not start"):
        ReferenceLevelStore.open(root, clock=clock, settings=SMALL)


def test_a_broker_s_rules_have_one_name() -> None:
    assert LevelRules.of_broker("4.9.7").poison == "block"
    assert LevelRules.of_broker("5.5.0").poison == "skip"
    assert LevelRules.of_broker("5.5.0", async_delivery=True).async_delivery
    with pytest.raises(OptionsError):
        LevelRules.of_broker("3.2.6")


def test_offsets_are_saved_behind_the_deliveries_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, unsynced_bytes, write = ManualClock(START_MS), [], OffsetsWriter.write
    with ReferenceLevelStore.open(tmp_path / "store", clock=clock) as store:

        def seen(writer: OffsetsWriter, text: bytes, *, is_durable: bool) -> None:
            unsynced_bytes.append(store.live.log.end - store.live.synced_end)
            write(writer, text, is_durable=is_durable)

        monkeypatch.setattr(OffsetsWriter, "write", seen)
        store.schedule(Message("orders", b"x"), AfterMs(1_000))
        clock.tick(20_000)
        assert len(store.advance(clock.now_ms())) == 1
        assert unsynced_bytes == [0]


def test_what_the_disk_refuses_once_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service tries again by itself; nobody is told less than was delivered."""
    clock = ManualClock(START_MS)
    with ReferenceLevelStore.open(tmp_path, clock=clock) as store:
        for number in range(6):
            store.schedule(message(number), AtLevel(1))
        append, calls = LiveBroker._append, []

        def refused_once(broker: LiveBroker, given: StoredMessage) -> None:
            calls.append(given)
            if len(calls) == 4:
                raise TargetError("no space left")
            append(broker, given)

        monkeypatch.setattr(LiveBroker, "_append", refused_once)
        told: list[str | None] = []
        for _ in range(4):
            clock.tick(20_000)
            with suppress(TargetError):
                told += [each.message.unique_key for each in store.advance(clock.now_ms())]
    assert len(set(told)) == len(told) == 6
