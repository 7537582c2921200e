# SPDX-License-Identifier: Apache-2.0
"""Which delays the messages of levels show, by their due and store times."""

import numpy as np

from message_store.reading.commit_log import Int64Array

PLAUSIBLE_DUE_MS = 10**12
"""A tags code above this (September 2001) can be a due time; tag hashes and 0 lie far below."""

WHOLE_DELAY_MS = 1_000
"""A level table knows nothing shorter than a second."""


def shown_delays(due_ms: Int64Array, stored_ms: Int64Array) -> Int64Array:
    """The delays in ms of messages, from their due and store times; shorter than those, because not
    every message tells one.

    A level is whole seconds: anything else is the store time of a torn record. A message that was
    due at once waits in level 1, and tells nothing of that level's delay.

    >>> stored = np.array([10**12 + 7] * 4)
    >>> shown_delays(stored + [5_000, 0, 1_234, -3_000], stored).tolist()
    [5000]
    >>> shown_delays(stored, np.zeros(4, np.int64)).tolist()
    []
    """
    tells = (due_ms > PLAUSIBLE_DUE_MS) & (stored_ms > 0)  # 0: torn, in the midst of its head
    delays_ms = due_ms[tells] - stored_ms[tells]
    is_delay = (delays_ms >= WHOLE_DELAY_MS) & (delays_ms % WHOLE_DELAY_MS == 0)
    return np.asarray(delays_ms[is_delay])
