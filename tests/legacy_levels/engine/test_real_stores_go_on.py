# SPDX-License-Identifier: Apache-2.0
"""Stores that real brokers left behind are opened, deliver the rest, each once and at its time, and
close so that a broker's reader goes on where we stopped.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from legacy_levels import LevelStore
from legacy_levels.backlog.backlog import read_backlog
from message_store import ManualClock, Severity
from message_store.format.dialect import Dialect
from tests.independent.raw_files import commit_log_records, read_config
from tests.independent.raw_records import body_sha1
from tests.independent.real_stores import LEVEL_STORES, RealStore, unpack
from tests.legacy_levels.level_stores import deliveries_without_names

STEP_MS = 600_000


def dialect_of(store: RealStore) -> Dialect:
    return Dialect.ROCKETMQ_4_9 if "4.9" in store.name else Dialect.ROCKETMQ_5_5


@pytest.mark.check
@pytest.mark.parametrize("offsets", ["as they were", "gone"])
@pytest.mark.parametrize("name", LEVEL_STORES)
def test_the_rest_of_a_broker_s_store_is_delivered(tmp_path: Path, name: str, offsets: str) -> None:
    """Without offsets a broker would deliver all again: of what it delivered the log has copies."""
    real = unpack(name, tmp_path / "store")
    if offsets == "gone":
        for file in (real.root / "config").glob("delayOffset.json*"):
            file.unlink()
    levels = read_backlog(real.root, after_crash=True).level_table
    before = {placed.commit_log_offset for placed in commit_log_records(real.root / "commitlog")}
    clock = ManualClock(real.stopped_ms)
    wanted = real.pending_in_levels()
    with LevelStore.open(real.root, clock=clock, levels=levels, dialect=dialect_of(real)) as store:
        bad = [each for each in store.check() if each.severity is not Severity.INFO]
        assert bad == []
        assert len(list(store.pending())) == len(wanted)
        delivered = 0
        while (next_ms := store.next_due_ms()) is not None:
            clock.tick(max(next_ms - clock.now_ms(), STEP_MS))
            for each in store.advance(clock.now_ms()):
                delivered += 1
                assert each.lateness_ms >= 0
        assert delivered == len(wanted)
    placed = commit_log_records(real.root / "commitlog")
    came = [one.record for one in placed if one.commit_log_offset not in before]
    assert Counter(
        (one.topic, one.queue_id, one.effective.get("UNIQ_KEY"), body_sha1(one)) for one in came
    ) == Counter((one.topic, one.queue_id, one.unique_key, one.body_sha1) for one in wanted)
    after = read_backlog(real.root)
    assert (len(after), after.total("already_delivered")) == (0, 0)
    table = read_config(real.root, "delayOffset.json")["offsetTable"]
    assert table == {str(one.level): one.to_queue_offset for one in after.counts if one.queue_max}


@pytest.mark.check
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "by an earlier version"])
@pytest.mark.parametrize("name", LEVEL_STORES)
def test_a_broker_s_store_is_delivered_once_however_often_it_is_killed(
    tmp_path: Path, name: str, is_named: bool
) -> None:
    """Copies of the broker, of an earlier version and of ours lie in one log; the reader agrees."""
    real = unpack(name, tmp_path / "store")
    levels = read_backlog(real.root, after_crash=True).level_table
    clock, wanted, delivered = ManualClock(real.stopped_ms), len(real.pending_in_levels()), 0
    for round_ in range(1_000):
        store = LevelStore.open(real.root, clock=clock, levels=levels, dialect=dialect_of(real))
        assert len(list(store.pending())) == wanted - delivered
        with nullcontext() if is_named or round_ % 2 else deliveries_without_names():
            delivered += len(store.advance(clock.now_ms()))
        next_ms = store.next_due_ms()
        store.abandon()
        assert len(read_backlog(real.root, after_crash=True)) == wanted - delivered
        if next_ms is None:
            break
        clock.tick(max(next_ms - clock.now_ms(), STEP_MS))
    assert delivered == wanted
