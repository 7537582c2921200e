# SPDX-License-Identifier: Apache-2.0
"""Settings of a wheel; the defaults are a broker's, or safe ones where those lose messages."""

from typing import Literal

import attrs

from message_store.base.errors import OptionsError, UnsupportedStoreError
from message_store.base.kinds import require_whole, whole
from message_store.format.java_numbers import INT_MAX
from message_store.interface.promise_rules import BEYOND_MAX, BeyondMax, check_max_delay
from timer_wheel.format.wheel_math import (
    DAY_MS,
    DEFAULT_PRECISION_MS,
    DEFAULT_ROLL_WINDOW_SLOTS,
    PRECISIONS_MS,
    effective_roll_window,
)

DEFAULT_MAX_DELAY_MS = 3 * DAY_MS
"""RocketMQ: timerMaxDelaySec (5.5.0)."""

BROKERS = ("5.3.3", "5.4.0", "5.5.0", "5.5.1")
"""The versions whose defaults are ours; between them no default of a wheel's settings changed."""


def _roll_window(slots: int) -> int:
    """What a broker makes of it. Raises BadFieldError."""
    require_whole("roll_window_slots", slots, 0, INT_MAX)
    return effective_roll_window(slots)


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

    precision_ms: int = attrs.field(
        validator=[whole(1, INT_MAX), attrs.validators.in_(PRECISIONS_MS)]
    )
    roll_window_slots: int = attrs.field(default=DEFAULT_ROLL_WINDOW_SLOTS, converter=_roll_window)
    max_delay_ms: int | None = attrs.field(default=DEFAULT_MAX_DELAY_MS, validator=check_max_delay)
    beyond_max: BeyondMax = attrs.field(
        default="refuse", validator=attrs.validators.in_(BEYOND_MAX)
    )
    start_deliver_time_alias: bool = False
    congest_num_each_slot: int = attrs.field(default=INT_MAX, validator=whole(0, INT_MAX))
    snapshots: bool = False
    on_precision_change: Literal["refuse", "rebuild"] = attrs.field(
        default="refuse", validator=attrs.validators.in_(("refuse", "rebuild"))
    )

    @classmethod
    def of_broker(
        cls,
        version: str,
        *,
        precision_ms: int = DEFAULT_PRECISION_MS,
        roll_window_slots: int = DEFAULT_ROLL_WINDOW_SLOTS,
        max_delay_ms: int | None = DEFAULT_MAX_DELAY_MS,
        congest_num_each_slot: int = INT_MAX,
        snapshots: bool = False,
    ) -> "WheelSettings":
        """The settings of a stock broker of 5.3.3, 5.4.0, 5.5.0 or 5.5.1: the one name for "as
        a broker does it". The others are what its configuration may have otherwise.

        Give the store ``StoreSettings(repeat_after_kill=True)`` and the dialect of that version as
        well. Raises UnsupportedStoreError for other versions.
        """
        if version not in BROKERS:
            known = ", ".join(BROKERS)
            raise UnsupportedStoreError(f"wheels of RocketMQ {version}: known are {known}")
        return cls(
            precision_ms=precision_ms,
            roll_window_slots=roll_window_slots,
            max_delay_ms=max_delay_ms,
            congest_num_each_slot=congest_num_each_slot,
            snapshots=snapshots,
        )

    def in_place_of(self, named: "WheelSettings") -> "WheelSettings":
        """These settings, where an ``open`` was given them and ``named`` ones. Raises OptionsError
        unless the latter are all defaults: one of the two would be lost.
        """
        if named != WheelSettings(precision_ms=named.precision_ms):
            raise OptionsError(
                "rules has all settings of a wheel: change them there"
                " (attrs.evolve), and name none beside it"
            )
        return self
