# SPDX-License-Identifier: Apache-2.0
"""What can be set about a wheel; the defaults are a broker's, or where those lose messages the safe
ones.
"""

from typing import Any, Literal

import attrs

from message_store.base.errors import UnsupportedStoreError
from message_store.format.java_numbers import INT_MAX
from timer_wheel.format.wheel_math import (
    DAY_MS,
    DEFAULT_PRECISION_MS,
    DEFAULT_ROLL_WINDOW_SLOTS,
    PRECISIONS_MS,
    effective_roll_window,
)

BROKERS = ("5.3.3", "5.4.0", "5.5.0")
"""The versions whose defaults are ours; between them no default of a wheel's settings changed."""


@attrs.frozen(kw_only=True)
class WheelSettings:
    """How a wheel behaves.

    ``precision_ms`` is how wide a slot is (`timerPrecisionMs`), ``roll_window_slots`` how many
    slots ahead a message rolls (`timerRollWindowSlot`, in a broker's bounds). A delay longer than
    ``max_delay_ms`` (`timerMaxDelaySec`; None: none is too long) is refused, or with
    ``beyond_max="deliver"`` delivered at once. ``start_deliver_time_alias`` lets `put` take
    __STARTDELIVERTIME for a due time. A slot with more than ``congest_num_each_slot`` messages
    refuses some, with twice as many all (`timerCongestNumEachSlot`). ``snapshots`` writes whole
    copies of the wheel as `timerWheelSnapshotFlush` does, instead of the file itself.
    ``on_precision_change`` says what becomes of messages that wait on a wheel of another precision:
    a broker loses them, we refuse to open, or rebuild the wheel.
    """

    precision_ms: int = attrs.field(validator=attrs.validators.in_(PRECISIONS_MS))
    roll_window_slots: int = attrs.field(
        default=DEFAULT_ROLL_WINDOW_SLOTS, converter=effective_roll_window
    )
    max_delay_ms: int | None = 3 * DAY_MS
    beyond_max: Literal["refuse", "deliver"] = attrs.field(
        default="refuse", validator=attrs.validators.in_(("refuse", "deliver"))
    )
    start_deliver_time_alias: bool = False
    congest_num_each_slot: int = INT_MAX
    snapshots: bool = False
    on_precision_change: Literal["refuse", "rebuild"] = attrs.field(
        default="refuse", validator=attrs.validators.in_(("refuse", "rebuild"))
    )

    @classmethod
    def of_broker(cls, version: str, **set_there: Any) -> "WheelSettings":
        """The settings of a stock broker, `5.3.3`, `5.4.0` or `5.5.0`, less what ``set_there`` says
        that its configuration has otherwise: the one name for "as a broker does it".

        Give the store ``StoreSettings(repeat_after_kill=True)`` and the dialect of that version as
        well. Raises UnsupportedStoreError for other versions.
        """
        if version not in BROKERS:
            known = ", ".join(BROKERS)
            raise UnsupportedStoreError(f"wheels of RocketMQ {version}: known are {known}")
        return cls(**{"precision_ms": DEFAULT_PRECISION_MS, **set_there})
