# SPDX-License-Identifier: Apache-2.0
"""Which messages ``pending`` is asked for, by what the rows of a wheel know."""

import attrs
import numpy as np

from message_store.format.java_numbers import string_hash
from message_store.interface.waiting_messages import WaitingFilter
from timer_wheel.timers.rows import Bools, TimerRows
from timer_wheel.timers.unit_kernels import TOPIC_HASH


@attrs.frozen
class Filter(WaitingFilter):
    """What to let through; None lets everything through."""

    def may_pass(self, rows: TimerRows) -> Bools:
        """Which rows to look at: what is known of them without their records."""
        if self.topic is None:
            return np.ones(len(rows), bool)
        return np.asarray(rows.table[TOPIC_HASH] == string_hash(self.topic))
