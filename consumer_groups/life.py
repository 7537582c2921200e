# SPDX-License-Identifier: Apache-2.0
"""Where in its life a message is: waiting, delivered, in the hands of a group, or done."""

from collections.abc import Sequence

from consumer_groups.groups import groups_of
from consumer_groups.offset_files import QueueKey
from consumer_groups.stores import GroupStore
from message_store.format.message import StoredMessage
from message_store.interface.delay_store import Receipt
from message_store.interface.message_life import Event, MessageState, TraceStep
from message_store.life.by_key import trace_message
from message_store.life.trace import only_life_of


def message_state(
    store: GroupStore, which: Receipt | str, group: str | None = None
) -> MessageState:
    """Where in its life the message of a receipt is, or the newest one with a unique key.

    The receipt of a message that was rescheduled tells of that message still. A message that was
    given back waits, until it is delivered to its group's retries. Without ``group`` all groups of
    the store are asked that have read its topic: one that has the message in hand decides, then one
    that has not acknowledged it. Reads the log once. Raises StoreClosedError, SourceError and
    TargetError.

    >>> from message_store import AfterMs, ManualClock, MemoryStore, Message
    >>> with MemoryStore(ManualClock(0)) as store:
    ...     receipt = store.schedule(Message("orders", b"cancel 42"), AfterMs(90_000))
    ...     message_state(store, receipt).value
    'waiting'
    """
    with store.lock:
        unique_key = which if isinstance(which, str) else which.unique_key
        steps = trace_message(store, unique_key)
        if steps:
            newest = steps[-1].record.commit_log_offset
            steps = only_life_of(
                steps, newest if isinstance(which, str) else which.commit_log_offset
            )
        if not steps:
            return MessageState.UNKNOWN
        places = {step.record.commit_log_offset for step in steps}
        for pending in store.pending(unique_key=unique_key):
            if pending.commit_log_offset in places:
                return MessageState.WAITING
        return _state_of_past(store, steps, group)


def _state_of_past(
    store: GroupStore, steps: Sequence[TraceStep], group: str | None
) -> MessageState:
    """The state of a message that is not pending."""
    last = [step for step in steps if step.event is not Event.CANCELLED][-1:]
    if not last or last[0].event not in (Event.DELIVERED, Event.STORED, Event.DEAD):
        return MessageState.CANCELLED
    if last[0].event is Event.DEAD:
        return MessageState.DEAD
    return _state_in_groups(store, last[0].record, group)


def _state_in_groups(store: GroupStore, record: StoredMessage, group: str | None) -> MessageState:
    table, now_ms = groups_of(store).table, store.clock.now_ms()
    names = table.group_names() if group is None else {group}
    found = set()
    for name in names:
        progress = table.find(QueueKey(name, record.topic, record.queue_id))
        if progress is None:
            continue
        if progress.is_done(record.queue_offset):
            found.add(MessageState.ACKNOWLEDGED)
        elif progress.is_in_flight(record.queue_offset, now_ms):
            found.add(MessageState.IN_FLIGHT)
        else:
            found.add(MessageState.DELIVERED)
    order = (MessageState.IN_FLIGHT, MessageState.DELIVERED, MessageState.ACKNOWLEDGED)
    return next((state for state in order if state in found), MessageState.DELIVERED)
