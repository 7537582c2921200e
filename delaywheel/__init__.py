# SPDX-License-Identifier: Apache-2.0
"""The front door: what users import, and the command line; nothing below imports it.

Everything is loaded when it is first asked for: ``import delaywheel`` brings neither NumPy nor
Spark.

>>> import delaywheel
>>> delaywheel.MemoryStore(clock=delaywheel.ManualClock(0)).schedule(
...     delaywheel.Message(topic="orders", body=b"A1"), delaywheel.AfterMs(1_000)
... ).promised_ms
1000
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumer_groups import (
        ConsumerGroup,
        GroupStore,
        Received,
        consumer_group,
        message_state,
        run_consumers,
    )
    from legacy_levels import LevelStore
    from message_store import (
        AfterMs,
        AtLevel,
        AtMs,
        BatchReceipt,
        Cancellation,
        Clock,
        DelayLevels,
        DelayStore,
        Delivered,
        Deliveries,
        Finding,
        ManualClock,
        MemoryStore,
        Message,
        MessageBatch,
        Pending,
        Receipt,
        SystemClock,
        run_store,
    )
    from message_store.base import errors
    from message_store.interface.message_life import Event, MessageState, TraceStep
    from message_store.interface.promise_rules import BeyondMax
    from message_store.life.by_key import cancel_by_key, find_receipts, trace_message
    from message_store.reading.engine_choice import EngineName
    from message_store.writing.settings import StoreSettings
    from time_index import TimeIndexStore
    from timer_wheel import HierarchicalWheelStore, WheelStore

_HOMES = {
    "ConsumerGroup": "consumer_groups",
    "Event": "message_store.interface.message_life",
    "HierarchicalWheelStore": "timer_wheel",
    "LevelStore": "legacy_levels",
    "MessageState": "message_store.interface.message_life",
    "Received": "consumer_groups",
    "TimeIndexStore": "time_index",
    "TraceStep": "message_store.interface.message_life",
    "WheelStore": "timer_wheel",
    "cancel_by_key": "message_store.life.by_key",
    "consumer_group": "consumer_groups",
    "errors": "message_store.base",
    "find_receipts": "message_store.life.by_key",
    "message_state": "consumer_groups",
    "run_consumers": "consumer_groups",
    "trace_message": "message_store.life.by_key",
}
_ENGINES = {
    "levels": "LevelStore",
    "wheel": "WheelStore",
    "hierarchy": "HierarchicalWheelStore",
    "time-index": "TimeIndexStore",
}

__all__ = ["AfterMs", "AtLevel", "AtMs", "BatchReceipt", "Cancellation", "Clock"]
__all__ += ["ConsumerGroup", "DelayLevels", "DelayStore", "Delivered", "Deliveries", "Event"]
__all__ += ["Finding", "HierarchicalWheelStore", "LevelStore", "ManualClock", "MemoryStore"]
__all__ += ["Message", "MessageBatch", "MessageState", "Pending", "Receipt", "Received"]
__all__ += ["SystemClock", "TimeIndexStore", "TraceStep", "WheelStore", "__version__"]
__all__ += ["cancel_by_key", "consumer_group", "errors", "find_receipts", "message_state"]
__all__ += ["open_store", "run_consumers", "run_store", "trace_message"]


def open_store(
    path: Path | str,
    *,
    engine: "EngineName | None" = None,
    clock: "Clock | None" = None,
    levels: "DelayLevels | None" = None,
    settings: "StoreSettings | None" = None,
    max_delay_ms: int | None = None,
    beyond_max: "BeyondMax" = "refuse",
    start_deliver_time_alias: bool = False,
) -> "GroupStore":
    """Open the store at ``path`` for writing, with the engine whose store it is.

    ``engine`` (``"levels"``, ``"wheel"``, ``"hierarchy"`` or ``"time-index"``) is needed for a new
    store, and for one in which two of them lie. ``clock`` is the machine's unless another is given.
    The others are what all engines have: the level table, sizes of files and retention, the longest
    delay (None: the engine's own limit), what becomes of a longer one, and whether ``put`` takes
    __STARTDELIVERTIME for a due time. For the rest use the ``open`` of the engine's own class.

    Raises ValueError for a setting that nothing can have, before anything is made. Raises
    OptionsError where the files do not say which engine, and none was given, and for an
    engine that the store does not have; and what the engine's ``open`` raises: StoreLockedError,
    SourceError, TargetError.
    """
    from message_store.files.store_root import StoreRoot
    from message_store.reading.engine_choice import choose_engine, require_engine

    root = StoreRoot(Path(path))
    chosen = choose_engine(root, engine, may_be_new=True)
    require_engine(root, chosen)
    Engine = engine_class(chosen)
    how: dict[str, Any] = {"clock": clock, "levels": levels, "beyond_max": beyond_max}
    if settings is not None:
        how["settings"] = settings
    if max_delay_ms is not None:
        how["max_delay_ms"] = max_delay_ms
    store: GroupStore = Engine.open(path, start_deliver_time_alias=start_deliver_time_alias, **how)
    return store


def engine_class(engine: "EngineName") -> Any:
    """The class of an engine, which is imported now."""
    return __getattr__(_ENGINES[engine])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("delaywheel")
        except PackageNotFoundError:
            return "unknown"
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "message_store")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
