# SPDX-License-Identifier: Apache-2.0
"""The timer wheel of RocketMQ 5: any due time, slots of a fixed width, chains in a log."""

from typing import TYPE_CHECKING, Any

from timer_wheel.placing import Placing, place
from timer_wheel.reading.pending_timers import PendingTimers, pending_records
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.wheel_reader import read_wheel_store

if TYPE_CHECKING:
    from timer_wheel.hierarchy.store import HierarchicalWheelStore
    from timer_wheel.wheel.store import WheelStore

__all__ = [
    "HierarchicalWheelStore",
    "PendingTimers",
    "Placing",
    "WheelState",
    "WheelStore",
    "pending_records",
    "place",
    "read_wheel_store",
]


def __getattr__(name: str) -> Any:
    if name == "WheelStore":  # it brings numba with it, which reading a wheel needs not
        from timer_wheel.wheel.store import WheelStore

        return WheelStore
    if name == "HierarchicalWheelStore":  # and this one RocksDB
        from timer_wheel.hierarchy.store import HierarchicalWheelStore

        return HierarchicalWheelStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
