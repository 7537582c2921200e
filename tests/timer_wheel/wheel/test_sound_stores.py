# SPDX-License-Identifier: Apache-2.0
"""A store that goes from owner to owner, is cancelled on and delivered from, and has nothing wrong:
``check`` says nothing, and readers count each message once, also without the checkpoint.
"""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message, Severity
from message_store.base.errors import UnsupportedStoreError
from migrate.look.pending import pending_messages
from tests.faults.damage import copy_store
from tests.faults.engines import SMALL
from tests.helpers.tiers import with_examples
from tests.migrate.check_case import look
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.wheel_math import PRECISIONS_MS
from timer_wheel.timers.store import TimerStore

START_MS = 1_793_000_000_000
OWNERS = (0, 100, 1_000)
"""The width of a wheel's slots; 0 for a hierarchical wheel."""


def opened(path: Path, clock: ManualClock, width_ms: int) -> TimerStore:
    if not width_ms:
        return HierarchicalWheelStore.open(path, clock=clock, settings=SMALL)
    how: dict[str, Any] = {"precision_ms": width_ms, "on_precision_change": "rebuild"}
    return WheelStore.open(path, clock=clock, settings=SMALL, **how)


def keys_told(path: Path, now_ms: int) -> Counter[str | None]:
    return Counter(
        getattr(each, "unique_key", None) for each in pending_messages(path, now_ms=now_ms)
    )


@pytest.mark.parametrize(
    "owners",
    with_examples(
        [(owners,) for owners in itertools.product(OWNERS, repeat=3)],
        [((0, 1_000, 1_000),), ((1_000, 0, 1_000),), ((100, 1_000, 0),)],
    ),
)
def test_nothing_is_said_of_a_sound_store_and_each_message_counts_once(
    tmp_path: Path, owners: tuple[int, ...]
) -> None:
    place, clock = tmp_path / "store", ManualClock(START_MS)
    for turn, width_ms in enumerate(owners):
        try:
            store = opened(place, clock, width_ms)
        except UnsupportedStoreError:  # a finer wheel, on which messages would come early
            continue
        receipts = [
            store.schedule(
                Message("orders", b"0", unique_key=f"{turn}-{number}"), AfterMs(delay_ms)
            )
            for number, delay_ms in enumerate((900, 5_000, 9_000, 20_000))
        ]
        store.close()
        with opened(place, clock, width_ms) as store:
            assert store.cancel(receipts[2]) is Cancellation.CANCELLED
            clock.tick(2_000)
            store.advance(clock.now_ms())
            waiting = Counter(each.unique_key for each in store.pending())
        assert receipts[1].unique_key in waiting
        report = look(place, now_ms=clock.now_ms())
        said = {each.code for each in report.findings if each.severity is not Severity.INFO}
        assert said <= {"open-soon"}, report.findings
        assert keys_told(place, clock.now_ms()) == waiting
        if width_ms:
            copy_store(place, tmp_path / f"copy{turn}")
            (tmp_path / f"copy{turn}" / "config" / "timercheck").unlink()
            assert keys_told(tmp_path / f"copy{turn}", clock.now_ms()) == waiting


def files_below(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    "owners",
    [
        (100, 200, 500, 1_000, 500, 1_000),
        (1_000, 500, 200, 100, 1_000, 200),
        (100, 0, 200, 0, 500, 0, 1_000, 0),
        (1_000, 0, 500, 0, 100, 0, 200, 0, 1_000),
    ],
)
def test_a_width_more_than_is_remembered_loses_nothing_or_is_refused_before_anything_is_written(
    tmp_path: Path, owners: tuple[int, ...]
) -> None:
    assert set(PRECISIONS_MS) <= {*owners}
    clock = ManualClock(START_MS)
    promised_ms: dict[str, int] = {}
    width_ms = owners[0]
    for turn, asked_ms in enumerate(owners):
        before = files_below(tmp_path)
        try:
            store = opened(tmp_path, clock, asked_ms)
        except UnsupportedStoreError:
            assert files_below(tmp_path) == before
            continue
        width_ms = asked_ms
        with store:
            for delay_ms in (60_037, 60_777, 61_500):
                message = Message("orders", b"0", unique_key=f"{turn}-{delay_ms}")
                receipt = store.schedule(message, AfterMs(delay_ms))
                promised_ms[receipt.unique_key] = receipt.promised_ms
        clock.tick(137)
    came: Counter[str | None] = Counter()
    with opened(tmp_path, clock, width_ms) as store:
        while (next_ms := store.next_due_ms()) is not None:
            clock.tick(max(0, next_ms - clock.now_ms()))
            for each in store.advance(clock.now_ms()):
                assert clock.now_ms() >= promised_ms[each.message.unique_key or ""]
                came[each.message.unique_key] += 1
    assert came == Counter(promised_ms.keys())
