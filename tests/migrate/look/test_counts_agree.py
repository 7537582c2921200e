# SPDX-License-Identifier: Apache-2.0
"""``inspect``, ``pending`` and ``check`` count the same messages: of every real store at rest, and
of our engines' with messages beyond the roll window.
"""

from pathlib import Path

import attrs
import pytest

from delaywheel import HierarchicalWheelStore, LevelStore, WheelStore
from message_store import AfterMs, ManualClock, Message
from message_store.reading.engine_choice import EngineName
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from tests.helpers.tiers import with_examples
from tests.independent.real_stores import (
    ALL_STORES,
    COMBINED_STORES,
    LEVELS_49_CRASH,
    LEVELS_551_CLEAN,
    TIMELINE_54_CLEAN,
    TIMELINE_54_CRASH,
    TIMELINE_55_CLEAN,
    TIMELINE_55_CRASH,
    WHEEL_551_CLEAN,
    WHEEL_551_POP,
    unpack,
)

TIMELINES = [TIMELINE_54_CLEAN, TIMELINE_54_CRASH, TIMELINE_55_CLEAN, TIMELINE_55_CRASH]
PLAIN_551 = [LEVELS_551_CLEAN, WHEEL_551_CLEAN, WHEEL_551_POP]
DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


@attrs.frozen
class Counts:
    """How many messages wait, as the three verbs say it."""

    inspect: int
    pending: int
    check: int


def counts(root: Path, now_ms: int) -> Counts:
    seen = inspect_store(root, now_ms=now_ms)
    load = check_store(root, CheckOptions(now_ms=now_ms, disk_used=0.5)).load
    assert load is not None
    return Counts(
        inspect=seen.pending or 0,
        pending=sum(1 for _ in pending_messages(root, now_ms=now_ms)),
        check=load.waiting,
    )


@pytest.mark.parametrize(
    "name",
    with_examples(
        [*ALL_STORES, *TIMELINES, *PLAIN_551, *COMBINED_STORES],
        [LEVELS_49_CRASH, WHEEL_551_CLEAN, TIMELINE_54_CRASH],
    ),
)
def test_three_verbs_count_the_same_messages_in_a_real_store(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    found = counts(store.root, store.stopped_ms)
    assert found == Counts(found.pending, found.pending, found.pending)
    assert found.pending


def opened(engine: EngineName, root: Path) -> LevelStore | WheelStore | HierarchicalWheelStore:
    clock = ManualClock(NOW_MS)
    if engine == "levels":
        return LevelStore.open(root, clock=clock)
    if engine == "wheel":
        return WheelStore.open(root, clock=clock, max_delay_ms=30 * DAY_MS)
    return HierarchicalWheelStore.open(root, clock=clock)


@pytest.mark.parametrize("engine", ["levels", "wheel", "hierarchy"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_and_in_a_store_of_ours(engine: EngineName, is_killed: bool, tmp_path: Path) -> None:
    delays_ms = [1_000, 60_000, 7_200_000]
    if engine != "levels":
        delays_ms += [5 * DAY_MS, 6 * DAY_MS]  # the roll window is two days
    store = opened(engine, tmp_path / "store")
    for delay_ms in delays_ms:
        store.schedule(Message("orders", b"x"), AfterMs(delay_ms))
    if is_killed:
        store.abandon()
    else:
        store.close()
    found = counts(tmp_path / "store", NOW_MS + 2_000)
    assert found == Counts(len(delays_ms), len(delays_ms), len(delays_ms))
