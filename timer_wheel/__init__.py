# SPDX-License-Identifier: Apache-2.0
"""The timer wheel of RocketMQ 5: any due time, slots of a fixed width, chains in a log."""

from timer_wheel.pending_timers import PendingTimers, pending_records
from timer_wheel.placing import Placing, place
from timer_wheel.wheel_reader import WheelState, read_wheel_store

__all__ = [
    "PendingTimers",
    "Placing",
    "WheelState",
    "pending_records",
    "place",
    "read_wheel_store",
]
