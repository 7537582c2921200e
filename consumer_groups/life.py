# SPDX-License-Identifier: Apache-2.0
"""Where in its life a message is: pending, delivered, in the hands of a group, or done."""

from collections.abc import Callable, Sequence

from consumer_groups.groups import groups_of
from consumer_groups.stores import GroupStore
from message_store.base.kinds import CALLABLE, takes
from message_store.files.group_journal import QueueKey
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import MAX_NEUTRAL_BYTES
from message_store.interface.delay_store import Receipt
from message_store.interface.message_life import Event, MessageState, TraceStep
from message_store.life.by_key import trace_message
from message_store.life.trace import TellPlace, only_life_of, tell_log, was_cancelled
from message_store.reading.consume_queue import UnitArray

LevelUnits = Callable[[int, int], UnitArray]


@takes(which=Receipt | str, group=str | None, tell_damage=CALLABLE)
def message_state(
    store: GroupStore,
    which: Receipt | str,
    group: str | None = None,
    tell_damage: TellPlace = tell_log,
) -> MessageState:
    """Where in its life the message of a receipt is, or the newest one with a unique key.

    The receipt of a message that was rescheduled tells of that message still. A message that was
    given back waits, until it is delivered to its group's retries. Without ``group`` all groups of
    the store are asked that have read its topic. The one decides that is least done with it: for
    which it waits, then which has it in hand, then which has not acknowledged it. ``tell_damage``
    is told of each log offset at which no record can be read: a later record of the message may
    have been there, and the answer is of an earlier time. Without it that is a warning in the log.
    Reads the log once. Raises StoreClosedError, SourceError and TargetError.

    >>> from message_store import AfterMs, ManualClock, MemoryStore, Message
    >>> with MemoryStore(ManualClock(0)) as store:
    ...     receipt = store.schedule(Message("orders", b"cancel 42"), AfterMs(90_000))
    ...     message_state(store, receipt).value
    'pending'
    """
    with store.lock:
        unique_key = which if isinstance(which, str) else which.unique_key
        steps = trace_message(store, unique_key, tell_damage)
        return state_by_steps(store, steps, which, group, _level_units_of(store))


def _level_units_of(store: GroupStore) -> LevelUnits | None:
    if (live := store.live) is None:
        return None
    return lambda queue_id, at: live.queue(LEVEL_TOPIC, queue_id).units(at, at + 1)


def state_by_steps(
    store: GroupStore,
    of_key: Sequence[TraceStep],
    which: Receipt | str,
    group: str | None = None,
    level_units: LevelUnits | None = None,
) -> MessageState:
    """The same where all steps of the unique key are known, as in a store that is looked at.
    ``level_units`` gives the entry of a level by queue id and queue offset.
    """
    with store.lock:
        unique_key = which if isinstance(which, str) else which.unique_key
        steps = of_key
        if steps:
            offset = _newest_life(steps) if isinstance(which, str) else which.commit_log_offset
            steps = only_life_of(steps, offset)
        if not steps:
            return MessageState.UNKNOWN
        waiting = {each.commit_log_offset for each in store.pending(unique_key=unique_key)}

        def state_for(name: str | None) -> MessageState:
            own = steps if name is None else _steps_of(steps, name)
            if not own:  # all that is left is of what others gave back
                return MessageState.UNKNOWN
            if any(step.record.commit_log_offset in waiting for step in own):
                return MessageState.PENDING
            return _state_of_past(store, own, of_key, name, level_units)

        readers: list[str | None] = [group] if group is not None else _readers(store, steps)
        return min({state_for(name) for name in readers or [None]}, key=_FIRST.index)


def _newest_life(steps: Sequence[TraceStep]) -> int:
    """Where the message was scheduled that was scheduled last; others may have gone on since."""
    told = [step for step in steps if step.event is not Event.CANCELLED]
    return max(step.first_offset for step in told or steps)


_FIRST = (
    MessageState.PENDING,
    MessageState.IN_FLIGHT,
    MessageState.DELIVERED,
    MessageState.DEAD,
    MessageState.ACKNOWLEDGED,
    MessageState.CANCELLED,
    MessageState.UNKNOWN,
)
"""Of several groups the one decides that is least done with the message."""


def _steps_of(steps: Sequence[TraceStep], group: str) -> Sequence[TraceStep]:
    """The steps without those of what other groups gave back."""
    own = (names.RETRY_PREFIX + group, names.DEAD_LETTER_PREFIX + group)
    return [
        step
        for step in steps
        if step.record.real_topic in own
        or not step.record.real_topic.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX))
    ]


def _readers(store: GroupStore, steps: Sequence[TraceStep]) -> list[str | None]:
    """The groups that have begun in a queue where a message came."""
    table = groups_of(store).table
    return [
        name
        for name in sorted(table.group_names())
        if any(
            table.find(QueueKey(name, step.record.topic, step.record.queue_id)) is not None
            for step in _steps_of(steps, name)
        )
    ]


def _state_of_past(
    store: GroupStore,
    steps: Sequence[TraceStep],
    of_key: Sequence[TraceStep],
    group: str | None,
    level_units: LevelUnits | None,
) -> MessageState:
    """The state of a message that is not pending, by its steps and by those of its key, as a group
    sees it, or as it is where no group has begun.
    """
    last = [step for step in steps if step.event is not Event.CANCELLED][-1:]
    if not last:  # a cancel is all that is left
        return MessageState.CANCELLED
    if last[0].event not in (Event.DELIVERED, Event.STORED, Event.DEAD):
        is_known = _was_cancelled(of_key, last[0].record, level_units)
        return MessageState.CANCELLED if is_known else MessageState.UNKNOWN
    if last[0].event is Event.DEAD:
        return MessageState.DEAD
    return _state_in_group(store, last[0].record, group)


def _was_cancelled(
    of_key: Sequence[TraceStep], record: StoredMessage, level_units: LevelUnits | None
) -> bool:
    """Whether a record tells that the message of this pending one was cancelled, or the entry of a
    delay level: what is neither may be lost.
    """
    if level_units is None or record.topic != LEVEL_TOPIC:
        return was_cancelled(of_key, record)
    units = level_units(record.queue_id, record.queue_offset)
    return any(0 < size < MAX_NEUTRAL_BYTES for size in units["size_bytes"])


def _state_in_group(store: GroupStore, record: StoredMessage, group: str | None) -> MessageState:
    key = None if group is None else QueueKey(group, record.topic, record.queue_id)
    progress = None if key is None else groups_of(store).table.find(key)
    if progress is None:
        return MessageState.DELIVERED
    if progress.is_done(record.queue_offset):
        return MessageState.ACKNOWLEDGED
    is_in_flight = progress.is_in_flight(record.queue_offset, store.clock.now_ms())
    return MessageState.IN_FLIGHT if is_in_flight else MessageState.DELIVERED
