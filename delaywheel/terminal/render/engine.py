# SPDX-License-Identifier: Apache-2.0
"""What the verbs that use an engine say to people; lines are not yet escaped."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delaywheel.terminal.options.message_lines import message_json
from delaywheel.terminal.render.text import due_span, some
from message_store.base.printable import counted, iso_time, when
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import StoredMessage
from message_store.format.properties import HALF_TOPIC, OP_HALF_TOPIC, WAITING_TOPICS
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation, Receipt
from message_store.interface.message_life import TraceStep
from message_store.reading.topic_listing import UnreadableMessage

if TYPE_CHECKING:
    from migrate.look.groups import GroupFacts

Topics = Mapping[str, Sequence[int]]
"""Topics and the numbers of their queues."""
SYSTEM_TOPICS = {*WAITING_TOPICS, HALF_TOPIC, OP_HALF_TOPIC}
"""The engines' own topics: no consumer reads them."""
LISTED_TOPICS = 20
LISTED_RECEIPTS = 20
SHOWN_BODY_BYTES = 60


def receipt_lines(receipts: Sequence[Receipt], now_ms: int) -> Iterator[str]:
    """What was stored for later: the first messages with their handles, and when all are due."""
    for receipt in receipts[:LISTED_RECEIPTS]:
        is_exact = receipt.promised_ms == receipt.due_ms
        requested = "" if is_exact else f", requested {iso_time(receipt.due_ms)}"
        when_due = _exactly(receipt.promised_ms, now_ms)
        yield f"{receipt.topic}: will be delivered at {when_due}{requested}"
        yield f"handle: {receipt.handle}"
    if len(receipts) == 1:
        return
    if len(receipts) > LISTED_RECEIPTS:
        yield f"... and {len(receipts) - LISTED_RECEIPTS:,} more; --json prints every handle"
    promised_ms = [receipt.promised_ms for receipt in receipts]
    first_ms, last_ms = min(promised_ms, default=None), max(promised_ms, default=None)
    yield f"{counted(len(receipts), 'message')} stored{due_span(first_ms, last_ms, now_ms)}"


def _exactly(time_ms: int, now_ms: int) -> str:
    """A time to the millisecond, and how far that is from now."""
    _second, bracket, distance = when(time_ms, now_ms).rpartition(" (")
    return f"{iso_time(time_ms)}{bracket}{distance}"


def level_lowered_line(level: int, levels: DelayLevels) -> str:
    """What becomes of a level beyond the table."""
    last = levels.describe(levels.max_level)
    return f"there is no level {level}: {last} is taken instead, as brokers do"


def cancellation_line(handle: RecallHandle, answer: Cancellation, now_ms: int, is_new: bool) -> str:
    """What came of taking a message back; ``is_new`` where it may have been cancelled only now."""
    again = "already " if answer is Cancellation.CANCELLED and not is_new else ""
    # A message that never existed was not due either, whatever its handle says.
    is_known = answer is not Cancellation.NEVER_EXISTED
    due = f", due {when(handle.due_ms, now_ms)}" if is_known else ""
    return f"{again}{answer.value}: {handle.topic} {handle.unique_key}{due}"


def ran_line(delivered: int, next_due_ms: int | None, now_ms: int, signal: str | None) -> str:
    """What a run has done, why it ended, and what is left."""
    ended = "" if signal is None else f" until {signal}"
    left = (
        "nothing waits" if next_due_ms is None else f"the next is due {when(next_due_ms, now_ms)}"
    )
    return f"{counted(delivered, 'message')} delivered{ended}; {left}"


def message_line(message: StoredMessage, now_ms: int) -> str:
    """One message of a topic."""
    text = message.body[:SHOWN_BODY_BYTES].decode("utf-8", "replace")
    more = " ..." if len(message.body) > SHOWN_BODY_BYTES else ""
    words = [
        when(message.store_timestamp_ms, now_ms),
        f"{message.topic}/{message.queue_id} at {message.queue_offset}",
        f"tags {message.tags}" if message.tags else "",
        f"keys {' '.join(message.keys)}" if message.keys else "",
        message.unique_key or "",
        f"{len(message.body):,} bytes, compressed" if message.is_compressed else text + more,
    ]
    return "  ".join(word for word in words if word)


def step_json(step: TraceStep, *, is_full: bool) -> dict[str, Any]:
    """A record of a trace as a JSON object."""
    record = step.record
    facts: dict[str, Any] = {
        "event": step.event.value,
        "first_offset": step.first_offset,
        "real_topic": record.real_topic,
        "timer_out_ms": step.out_ms,
        "retries": record.reconsume_times,
    }
    told = message_json(record)
    for name in () if is_full else ("properties", "tags", "keys", "body", "body_base64"):
        told.pop(name, None)
    return facts | told


def step_line(step: TraceStep, now_ms: int) -> str:
    """A record of a trace."""
    record = step.record
    words = [
        when(record.store_timestamp_ms, now_ms),
        step.event.value,
        f"{record.topic}/{record.queue_id} at {record.queue_offset}",
        f"for {record.real_topic}" if record.real_topic != record.topic else "",
        f"log offset {record.commit_log_offset}",
        f"first {step.first_offset}" if step.first_offset != record.commit_log_offset else "",
    ]
    return "  ".join(word for word in words if word)


def group_lines(groups: "Iterable[GroupFacts]") -> Iterator[str]:
    """How far each group is behind: a line a topic, then its retries and dead letters."""
    for group in groups:
        ready = "ready" if group.in_flight is not None else "ready or in flight"
        for topic, count in group.ready.items():
            yield f"{group.name}  {topic}: {counted(count, 'message')} {ready}"
        retries = f"{group.retries_ready:,} {ready}, {group.retries_waiting:,} waiting"
        yield f"{group.name}  retries: {retries}; {counted(group.dead, 'dead letter')}"


def unreadable_line(message: UnreadableMessage) -> str:
    """An entry of a topic whose message cannot be read: where, and why."""
    position = f"queue {message.queue_id}, queue offset {message.queue_offset}"
    return f"{position}, log offset {message.commit_log_offset}: {message.reason}"


def nothing_there_line(topic: str, queue_id: int | None, topics: Topics) -> str:
    """What a store does hold, for whoever asked for something else."""
    if topic in topics:
        there = some([str(number) for number in topics[topic]], LISTED_TOPICS)
        return f"nothing was ever put into queue {queue_id} of {topic}; it has {there}"
    own = [name for name in topics if name not in SYSTEM_TOPICS]
    held = f"it holds {some(own, LISTED_TOPICS)}" if own else "it holds no topic yet"
    return f"nothing was ever put into {topic or repr('')}; {held}"
