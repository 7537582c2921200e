# SPDX-License-Identifier: Apache-2.0
"""The engines that race in a Python process: how each is opened, killed, and read afterwards."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from compare.running.observation import RaceSettings
from message_store.base.clock import Clock
from message_store.format.delay_levels import DelayLevels
from message_store.interface.delay_store import DelayStore
from message_store.writing.settings import StoreSettings

_DECADE_MS = 3_653 * 86_400_000


def _store_settings(settings: RaceSettings) -> StoreSettings:
    """Nothing is taken away by retention: what was delivered is counted at the end."""
    return StoreSettings(
        commit_log_file_bytes=settings.commit_log_file_bytes, retention_ms=_DECADE_MS
    )


def _of_levels(settings: RaceSettings) -> dict[str, Any]:
    """What every store of levels is opened with."""
    table = None if settings.level_table is None else DelayLevels.parse(settings.level_table)
    return {"levels": table, "settings": _store_settings(settings)}


def _of_wheels(settings: RaceSettings) -> dict[str, Any]:
    """What every store of timed messages is opened with."""
    return {
        "precision_ms": settings.precision_ms,
        "max_delay_ms": settings.max_delay_ms,
        "settings": _store_settings(settings),
    }


def open_levels(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """The delay levels: a free delay is rounded up to the next level, a longer one refused."""
    from legacy_levels import LevelStore

    return LevelStore.open(path, clock=clock, **_of_levels(settings))


def open_reference_levels(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """ScheduleMessageService in plain Python: the levels by a broker's rules, one by one."""
    from legacy_levels.reference.store import ReferenceLevelStore

    return ReferenceLevelStore.open(path, clock=clock, **_of_levels(settings))


def open_wheel(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """The timer wheel."""
    from timer_wheel import WheelStore

    return WheelStore.open(path, clock=clock, **_of_wheels(settings))


def open_hierarchy(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """The hierarchical wheel, with promises as wide as the wheel's slots."""
    from timer_wheel import HierarchicalWheelStore

    return HierarchicalWheelStore.open(path, clock=clock, **_of_wheels(settings))


def open_time_index(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """The time index, whose promises are to the millisecond."""
    from time_index import TimeIndexStore

    return TimeIndexStore.open(path, clock=clock, settings=_store_settings(settings))


def open_reference_wheel(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """RocketMQ's algorithm of the timer wheel, one message at a time."""
    from timer_wheel.reference.store import ReferenceWheelStore

    return ReferenceWheelStore.open(path, clock=clock, **_of_wheels(settings))


def open_memory(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
    """The model in memory: nothing on the disk, nothing left after a kill."""
    from message_store.memory.store import MemoryStore

    return MemoryStore(clock)


def _lacks_nothing() -> str | None:
    return None


@attrs.frozen
class Engine:
    """One engine. ``lacks`` says in a sentence what it needs and this machine does not have."""

    open_store: Callable[[Path, Clock, RaceSettings], DelayStore]
    has_files: bool = True
    lacks: Callable[[], str | None] = _lacks_nothing


ENGINES: dict[str, Engine] = {
    "levels": Engine(open_levels),
    "wheel": Engine(open_wheel),
    "hierarchy": Engine(open_hierarchy),
    "time-index": Engine(open_time_index),
    "reference-levels": Engine(open_reference_levels),
    "reference-wheel": Engine(open_reference_wheel),
    "memory": Engine(open_memory, has_files=False),
}


def kill(store: DelayStore) -> None:
    """End a store as a kill of its process would: without a last word, and without an answer."""
    end: Callable[[], None] = getattr(store, "abandon", store.close)
    with suppress(Exception):  # RocksDB complains of the write that a full disk refused before
        end()
