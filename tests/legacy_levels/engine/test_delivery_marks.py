# SPDX-License-Identifier: Apache-2.0
"""What a damaged mark is: none, and never more than its queue has."""

from __future__ import annotations

from pathlib import Path

import pytest

from legacy_levels import LevelStore
from legacy_levels.delivery_marks import FLUSHED_NAME, LATEST_NAME, DeliveryMark
from message_store import AtLevel, ManualClock
from message_store.writing.settings import StoreSettings
from tests.legacy_levels.level_stores import Bench, message

WHOLE = DeliveryMark(100, {3: 7}, (1, 2), {3: 9}, {3: [(8, 1)]}).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 4_096,
        b"[" * 4_096,
        b"[]",
        WHOLE[:-1],
        WHOLE.replace(b"100", b"1e999"),
        WHOLE.replace(b"7", b"NaN"),
        WHOLE.replace(b"[[8, 1]]", b"[8, 1]"),
        WHOLE.replace(b"[[8, 1]]", b"[[8]]"),
    ],
)
def test_a_torn_mark_is_none(text: bytes) -> None:
    assert DeliveryMark.decode(WHOLE) is not None
    assert DeliveryMark.decode(text) is None


@pytest.mark.parametrize("run", [(0, 10**15), (-5, 6), (10**18, 10**18), (2, -1)], ids=str)
def test_a_mark_that_names_more_than_the_queue_has_is_taken_as_far_as_that_goes(
    tmp_path: Path, run: tuple[int, int]
) -> None:
    bench = Bench(tmp_path / "store")
    store = bench.open()
    for number in range(3):
        store.schedule(message(number), AtLevel(1))
    store.flush()
    store.abandon()
    for name in (FLUSHED_NAME, LATEST_NAME):
        path = bench.root / "delaywheel" / name
        mark = DeliveryMark.decode(path.read_bytes())
        assert mark is not None
        path.write_bytes(DeliveryMark(mark.log_end, {1: 0}, mark.tables, {}, {1: [run]}).encode())
    named = set(range(run[0], min(sum(run), 3)))
    with bench.open() as store:
        assert [each.unique_key for each in store.pending()] == [
            f"KEY{number:08X}" for number in range(3) if number not in named
        ]


@pytest.mark.parametrize("repeats", [False, True])
def test_the_offsets_of_a_store_that_repeats_are_never_ahead_of_its_log(
    tmp_path: Path, *, repeats: bool
) -> None:
    """They alone say there what is done: the power may take the log's end and leave them."""
    clock = ManualClock(1_793_000_000_000)
    settings = StoreSettings(commit_log_file_bytes=1 << 20, repeat_after_kill=repeats)
    store = LevelStore.open(tmp_path / "store", clock=clock, settings=settings)
    for number in range(2):
        store.schedule(message(number), AtLevel(2))
    store.advance(clock.now_ms())
    store.flush()
    offsets = tmp_path / "store" / "config" / "delayOffset.json"
    before = offsets.read_bytes()
    clock.tick(6_000)
    assert len(store.advance(clock.now_ms())) == 2
    clock.tick(11_000)
    store.advance(clock.now_ms())
    assert offsets.read_bytes() != before
    assert (store.live.synced_end == store.live.log.end) is repeats
    store.close()
