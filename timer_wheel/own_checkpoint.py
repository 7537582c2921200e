# SPDX-License-Identifier: Apache-2.0
"""What only we write into ``config/timercheck``, behind the numbers of a broker.

The numbers of a broker are as new as the last advance: one who takes over after a kill repeats
little. After a loss of power they may be newer than the deliveries that they tell of. These say
what was on disk at the last flush, and since when the log may hold copies of what is still on the
wheel. They count only while the broker's numbers are those that we wrote beside them.
"""

import attrs

from message_store.layout import Field, Layout
from timer_wheel.timer_checkpoint import TIMER_CHECKPOINT, TimerCheckpoint
from timer_wheel.wheel_math import PRECISIONS_MS

OWN_PLACE = 64
UNKNOWN = -1
assert TIMER_CHECKPOINT.size <= OWN_PLACE

OWN_CHECKPOINT = Layout(
    "timer checkpoint, our own part",
    (
        Field("last_read_time_ms", "i64", "the broker's number, once more"),
        Field("counter", "i64", "the broker's number, once more"),
        Field("flushed_hand_ms", "i64", "slots before it are done, and that is on disk"),
        Field("copies_from", "i64", "commit log offset from which on the log may hold copies"),
        Field("precision_ms", "i64", "the width of a slot, which is written nowhere else"),
        Field("log_begins", "i64", "timer log position before which everything is superseded"),
        Field("flushed_position", "i64", "timer log position up to which units are on disk"),
        Field("copies_hand_ms", "i64", "slots before it were done when copies began"),
        Field("copies_position", "i64", "timer log position where units ended when copies began"),
    ),
)


@attrs.frozen
class OwnCheckpoint:
    """Where the hand was at the last flush, where copies begin, how wide a slot is, where the timer
    log begins that counts, and where it ended when the hand was there.

    Copies begin at the last moment when nothing in the slots ahead of the hand was dealt with. The
    hand and the end of the timer log of that moment belong to it: what had its slot there, and what
    got one since, is what the copies are of.
    """

    flushed_hand_ms: int
    copies_from: int
    precision_ms: int
    log_begins: int = 0
    flushed_position: int = 0
    copies_hand_ms: int = 0
    copies_position: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it tells of the last flush: nobody else was here since."""
        return self.flushed_hand_ms != UNKNOWN


def encode_own(own: OwnCheckpoint, checkpoint: TimerCheckpoint) -> bytes:
    """The bytes for ``OWN_PLACE``."""
    return OWN_CHECKPOINT.encode(
        last_read_time_ms=checkpoint.last_read_time_ms,
        counter=checkpoint.counter,
        **attrs.asdict(own),
    )


def decode_own(content: bytes, checkpoint: TimerCheckpoint) -> OwnCheckpoint | None:
    """Our part of the file; None when there is none.

    When a broker was here since, only the precision and where the log begins are still true: the
    hand at the flush is then the broker's, and copies may be anywhere.
    """
    if len(content) < OWN_PLACE + OWN_CHECKPOINT.size:
        return None
    fields = OWN_CHECKPOINT.decode_at(content, OWN_PLACE)
    if fields["precision_ms"] not in PRECISIONS_MS:
        return None
    same = (checkpoint.last_read_time_ms, checkpoint.counter)
    if same != (fields.pop("last_read_time_ms"), fields.pop("counter")):
        of_the_last_flush = set(fields) - {"precision_ms", "log_begins"}
        fields |= dict.fromkeys(of_the_last_flush, UNKNOWN)
    return OwnCheckpoint(**fields)
