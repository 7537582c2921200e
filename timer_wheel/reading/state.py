# SPDX-License-Identifier: Apache-2.0
"""What the timers of a stopped store are, whichever engine they are on."""

from pathlib import Path

import attrs

from message_store.base.errors import SourceError
from message_store.base.printable import counted
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.wheel_math import (
    Int64Array,
)
from timer_wheel.reading.pending_timers import Blocking, PendingTimers
from timer_wheel.reading.timeline import Timeline


@attrs.frozen(eq=False)
class WheelState:
    """What a store's wheel holds.

    ``pending`` are messages, in order of slot time and placing, then those that wait in the queue,
    then those in the ``timeline``, which is None where none was ever used;
    ``markers`` are delete markers, ``cancelled`` the messages that they take away. Read without
    ``after_crash``, a crashed store has some in all three as often as a broker would meet them;
    ``recalled_by_topic_count`` messages are recalled only in the form of 5.3.2 and 5.3.3, which
    other brokers do not heed unless they are told to. ``done_already_count`` rows were left out
    because the log shows that they were done before a crash. ``unit_count`` and
    ``slots_used`` count the timer log's units and the slots that are yet to be read.
    ``expired_count`` units point to records that retention has deleted. ``blocking`` are queue
    entries that a broker cannot get past, ``shared_positions`` units that it would
    deliver more than once because two chains lead to them. ``placed_again_count`` messages are on
    the wheel, and the checkpoint lets a broker place them once more. ``astray_count`` entries that
    have to be placed lead to no record. ``lost_log_bytes`` of the timer log are not there, which
    the checkpoint knows (0 after a crash of ours, which makes them again). ``unlinked_count`` are
    units in slots to come that no chain reaches (0 ``after_crash``: they may be of what is done),
    ``cut_slot_count`` slots to come begin where the timer log has no unit any more (0 after a crash
    of ours: units alone count). ``unplaced_count`` messages of the queue lie behind that of the
    last unit, and before where a broker goes on (0 ``after_crash``).
    ``unreachable_count`` messages are in slots further back than a broker that starts reads;
    ``after_crash`` those of which the log does not tell that they are done, from our last flush on.
    ``checkpoint_damage`` says what is wrong with the checkpoint, as far as is known.
    """

    precision_ms: int
    checkpoint: TimerCheckpoint
    read_time_ms: int
    resume_queue_offset: int
    unit_count: int
    slots_used: int
    pending: PendingTimers
    markers: PendingTimers
    cancelled: PendingTimers
    recalled_by_topic_count: int
    done_already_count: int
    expired_count: int
    blocking: Blocking
    shared_positions: Int64Array
    timeline: Timeline | None
    placed_again_count: int = 0
    astray_count: int = 0
    lost_log_bytes: int = 0
    unlinked_count: int = 0
    cut_slot_count: int = 0
    unreachable_count: int = 0
    unplaced_count: int = 0
    checkpoint_damage: str | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why these are not all pending messages, but those that a broker delivers: sentences."""
        again = counted(self.placed_again_count, "message", "messages")
        doubts = [self.checkpoint_damage] if self.checkpoint_damage else []
        if self.lost_log_bytes:
            doubts.append(
                f"timerlog: {self.lost_log_bytes:,} bytes of its end are missing, by"
                " config/timercheck: a broker loses their messages. `delaywheel run` finds them by"
                " the queue"
            )
        if self.astray_count:
            entries = counted(self.astray_count, "entry leads", "entries lead")
            doubts.append(
                f"timer queue: {entries} to no record: a broker loses those messages. `delaywheel"
                " run` looks for them in the log"
            )
        if self.placed_again_count:
            doubts.append(
                f"config/timercheck lets a broker place {again} on the wheel a second time: take it"
                " from the backup that the rest is from"
            )
        if self.unlinked_count:
            units = counted(self.unlinked_count, "unit is", "units are")
            doubts.append(
                f"timerlog: {units} in slots to come, and no link leads there: a broker loses those"
                " messages. `delaywheel check` says what to do"
            )
        if self.cut_slot_count:
            slots = counted(self.cut_slot_count, "slot to come begins", "slots to come begin")
            doubts.append(
                f"timerlog: {slots} where no unit is any more: a broker loses those messages."
                " `delaywheel run` finds them by the queue"
            )
        if self.unplaced_count:
            messages = counted(self.unplaced_count, "message has", "messages have")
            doubts.append(
                f"timer queue: {messages} no unit before queue offset"
                f" {self.resume_queue_offset:,}, where a broker goes on: it loses them. `delaywheel"
                " run` delivers them"
            )
        if self.unreachable_count:
            messages = counted(self.unreachable_count, "message is", "messages are")
            doubts.append(
                f"timerwheel: {messages} in slots further back than a broker that starts reads: it"
                " loses them. `delaywheel run` delivers them"
            )
        return tuple(doubts)

    @property
    def is_miscounted(self) -> bool:
        """Whether there may be any number of messages more or fewer. The other doubts are of as
        many as they say.
        """
        is_short = self.lost_log_bytes or self.cut_slot_count
        return bool(self.checkpoint_damage or is_short or self.placed_again_count)

    def require_sound(self, path: Path) -> "WheelState":
        """This state, of the store at ``path``. Raises SourceError where there are doubts."""
        if self.doubts:
            doubt = self.doubts[0]
            raise SourceError(doubt if doubt.startswith(str(path)) else f"{path}: {doubt}")
        return self
