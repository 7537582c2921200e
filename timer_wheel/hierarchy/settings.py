# SPDX-License-Identifier: Apache-2.0
"""What can be set about a hierarchical wheel."""

from typing import Literal

import attrs

from timer_wheel.format.hierarchy_due import HIERARCHY_PRECISIONS_MS, TO_THE_MILLISECOND
from timer_wheel.format.wheel_math import DAY_MS


@attrs.frozen(kw_only=True)
class HierarchySettings:
    """How a hierarchical wheel behaves.

    ``precision_ms`` is how wide a promise is: to the millisecond, or as a wheel's slot. A delay
    longer than ``max_delay_ms`` (None: none is too long) is refused, or with
    ``beyond_max="deliver"`` delivered at once. ``start_deliver_time_alias`` lets `put` take
    __STARTDELIVERTIME for a due time.
    """

    precision_ms: int = attrs.field(
        default=TO_THE_MILLISECOND, validator=attrs.validators.in_(HIERARCHY_PRECISIONS_MS)
    )
    max_delay_ms: int | None = 40 * DAY_MS
    beyond_max: Literal["refuse", "deliver"] = attrs.field(
        default="refuse", validator=attrs.validators.in_(("refuse", "deliver"))
    )
    start_deliver_time_alias: bool = False
