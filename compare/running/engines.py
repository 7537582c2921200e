# SPDX-License-Identifier: Apache-2.0
"""The engines that race in a Python process: how each is opened, and read afterwards."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from compare.running.observation import RaceSettings
from message_store.base.clock import Clock
from message_store.format.delay_levels import DelayLevels
from message_store.interface.delay_store import DelayStore
from message_store.writing.settings import StoreSettings

OpenStore = Callable[[Path, Clock, RaceSettings], DelayStore]
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


def _opener(module: str, name: str, how: Callable[[RaceSettings], dict[str, Any]]) -> OpenStore:
    """Opens stores of a class, which is loaded with the first: that takes its time."""

    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        Store = getattr(import_module(module), name)
        store: DelayStore = Store.open(path, clock=clock, **how(settings))
        return store

    return open_store


def _open_memory(_path: Path, clock: Clock, _settings: RaceSettings) -> DelayStore:
    """The model in memory: nothing on the disk, nothing left after a kill."""
    from message_store.memory.store import MemoryStore

    return MemoryStore(clock)


@attrs.frozen
class Engine:
    """One engine: how it is opened, and whether it leaves files behind."""

    open_store: OpenStore
    has_files: bool = True


ENGINES: dict[str, Engine] = {
    # A free delay is rounded up to the next level, a longer one refused.
    "levels": Engine(_opener("legacy_levels", "LevelStore", _of_levels)),
    "wheel": Engine(_opener("timer_wheel", "WheelStore", _of_wheels)),
    # With promises as wide as the wheel's slots.
    "hierarchy": Engine(_opener("timer_wheel", "HierarchicalWheelStore", _of_wheels)),
    "time-index": Engine(
        _opener("time_index", "TimeIndexStore", lambda how: {"settings": _store_settings(how)})
    ),
    # RocketMQ's algorithms in plain Python, one message at a time.
    "reference-levels": Engine(
        _opener("legacy_levels.reference.store", "ReferenceLevelStore", _of_levels)
    ),
    "reference-wheel": Engine(
        _opener("timer_wheel.reference.store", "ReferenceWheelStore", _of_wheels)
    ),
    "memory": Engine(_open_memory, has_files=False),
}
