# SPDX-License-Identifier: Apache-2.0
"""The engines by name, with files so small that every border is crossed often."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from message_store import Clock, DelayStore
from message_store.writing.settings import StoreSettings
from tests.faults.leeway import LEVELS, WHEEL

SMALL = StoreSettings(
    commit_log_file_bytes=64 << 10,
    queue_file_bytes=50 * 20,
    timer_log_file_bytes=40 * 52 + 16,
)
"""Files of about a hundred messages."""

WINDOW_SLOTS = 60


def open_levels(folder: Path, clock: Clock, settings: StoreSettings = SMALL) -> DelayStore:
    """The levels, as they come."""
    from legacy_levels.engine.store import LevelStore

    return LevelStore.open(folder, clock=clock, settings=settings)


def open_wheel(
    folder: Path,
    clock: Clock,
    settings: StoreSettings = SMALL,
    *,
    precision_ms: int = 1_000,
    roll_window_slots: int = WINDOW_SLOTS,
) -> DelayStore:
    """A wheel that rolls often."""
    from timer_wheel.wheel.store import WheelStore

    return WheelStore.open(
        folder,
        clock=clock,
        settings=settings,
        precision_ms=precision_ms,
        roll_window_slots=roll_window_slots,
    )


def open_hierarchy(
    folder: Path, clock: Clock, settings: StoreSettings = SMALL, *, precision_ms: int = 1
) -> DelayStore:
    """Wheels in a database."""
    from timer_wheel import HierarchicalWheelStore

    return HierarchicalWheelStore.open(
        folder, clock=clock, settings=settings, precision_ms=precision_ms
    )


def open_time_index(folder: Path, clock: Clock, settings: StoreSettings = SMALL) -> DelayStore:
    """A time index."""
    from time_index import TimeIndexStore

    return TimeIndexStore.open(folder, clock=clock, settings=settings)


OPEN: dict[str, Any] = {
    "levels": open_levels,
    "wheel": open_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}
"""The engines as they come."""


def abandon(store: DelayStore) -> None:
    """Let go of the files as a kill does."""
    store.abandon()  # type: ignore[attr-defined]


@attrs.frozen
class Engine:
    """How to open a store in a folder: by a clock, and whether it repeats after a kill as brokers
    do.
    """

    name: str
    open: Callable[[Path, Clock, bool], DelayStore]


def _levels(folder: Path, clock: Clock, faithful: bool) -> DelayStore:
    return open_levels(folder, clock, attrs.evolve(SMALL, repeat_after_kill=faithful))


def _wheel(folder: Path, clock: Clock, faithful: bool) -> DelayStore:
    return open_wheel(folder, clock, attrs.evolve(SMALL, repeat_after_kill=faithful))


def _hierarchy(folder: Path, clock: Clock, faithful: bool) -> DelayStore:
    return open_hierarchy(folder, clock, attrs.evolve(SMALL, repeat_after_kill=faithful))


def _time_index(folder: Path, clock: Clock, faithful: bool) -> DelayStore:
    return open_time_index(folder, clock, attrs.evolve(SMALL, repeat_after_kill=faithful))


def _reference_levels(folder: Path, clock: Clock, _faithful: bool) -> DelayStore:
    from legacy_levels.reference.store import ReferenceLevelStore

    return ReferenceLevelStore.open(folder, clock=clock, settings=SMALL)


def _reference_wheel(folder: Path, clock: Clock, _faithful: bool) -> DelayStore:
    from timer_wheel.reference.store import ReferenceWheelStore
    from timer_wheel.wheel.settings import WheelSettings

    rules = WheelSettings.of_broker(
        "5.5.0", precision_ms=1_000, roll_window_slots=WINDOW_SLOTS, max_delay_ms=None
    )
    return ReferenceWheelStore.open(folder, clock=clock, settings=SMALL, rules=rules)


REFERENCES = {
    LEVELS: Engine(LEVELS, _reference_levels),
    WHEEL: Engine(WHEEL, _reference_wheel),
}
"""The plain forms, which repeat after a kill as brokers do."""

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("levels", _levels),
        Engine("wheel", _wheel),
        Engine("hierarchy", _hierarchy),
        Engine("time-index", _time_index),
    )
}
