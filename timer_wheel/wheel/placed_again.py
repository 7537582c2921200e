# SPDX-License-Identifier: Apache-2.0
"""Whether messages on the wheel may be other than their units say: copies that were placed again,
whose order their records tell and not their places, or delete markers that lost their flag.

To look at the head of every record that is due took a fifteenth of a drain's processor time. What
is placed has its record read, and from then on is known. What was placed before the store was open
is looked at: no unit need tell any more that a message rolled. Its file went with retention, the
timer log was lost, made anew for another precision, or that of a hierarchical wheel.
"""

from typing import TYPE_CHECKING

import attrs

from message_store.columns.byte_column import int64s
from message_store.format.java_numbers import LONG_MAX
from timer_wheel.timers.record_kernel import PREPARED_OFFSET, is_any_to_be_read

if TYPE_CHECKING:
    from message_store.writing.log import LiveLog
    from timer_wheel.timers.rows import TimerFacts, TimerRows


@attrs.define
class PlacedAgain:
    """What is known of the units of one timer log.

    ``known_from`` is the position from which on all were placed since the store was opened; until
    that is said nothing is known. ``is_any`` says whether one of those was placed again.
    """

    known_from: int = LONG_MAX
    is_any: bool = False

    def note(self, facts: "TimerFacts") -> None:
        """These are being placed."""
        self.is_any = self.is_any or bool((facts.table[PREPARED_OFFSET] < 0).any())

    def among(self, rows: "TimerRows", log: "LiveLog") -> bool:
        """Whether one of these messages was placed again and says where its first record was, or
        may be a delete marker.
        """
        if not self.is_any and (rows.position >= self.known_from).all():
            return False
        offsets, sizes = rows.commit_log_offset, rows.size_bytes
        addresses = log.addresses(offsets)
        addresses[sizes > log.rooms(offsets)] = -1
        return bool(is_any_to_be_read(addresses, int64s(sizes)))
