# SPDX-License-Identifier: Apache-2.0
"""Names the messages whose units are put away, on disk before any of those changes.

Whoever opens the store after a kill looks at the slots from the last flush on, and gives each copy
in the log to one message. What was put away lies in no such slot; its copy would be given to an
equal message that still waits. The names count until the next flush, behind which copies begin.
"""

import json
from typing import Any

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.files.small_files import read_small_file, replace_file
from message_store.files.store_root import StoreRoot
from timer_wheel.timers.rows import TimerRows
from timer_wheel.timers.unit_kernels import FLAGS, LOG_OFFSET, SIZE

PUT_AWAY_NAME = "wheel-put-away.json"
_COLUMNS = (LOG_OFFSET, SIZE, FLAGS)


@attrs.frozen(eq=False)
class PutAway:
    """Rows without slots; copies of theirs begin at ``copies_from``, which also tells for which
    flush they count.
    """

    copies_from: int
    rows: TimerRows

    def write(self, root: StoreRoot) -> None:
        """Put it there, durably. Raises TargetError."""
        columns = self.rows.table[list(_COLUMNS)].tolist()
        text = json.dumps({"copies_from": self.copies_from, "rows": columns})
        replace_file(root.own / PUT_AWAY_NAME, text.encode())


def put_away_since(root: StoreRoot, copies_from: int) -> TimerRows:
    """What was put away since the flush from which on copies are looked for; no rows where nothing
    was, or what tells of it was not written to its end.
    """
    try:
        facts: Any = json.loads(read_small_file(root.own / PUT_AWAY_NAME) or b"")
        columns: Int64s = np.array(facts["rows"], np.int64).reshape(len(_COLUMNS), -1)
        if facts["copies_from"] != copies_from:
            return TimerRows.empty()
    except (ValueError, KeyError, TypeError, OverflowError):
        return TimerRows.empty()
    rows = TimerRows.empty(columns.shape[1])
    rows.table[list(_COLUMNS)] = columns
    return rows
