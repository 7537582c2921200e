# SPDX-License-Identifier: Apache-2.0
"""What the record of a rescheduled message says of the older one, which it replaces.

A pending message is rescheduled in two steps: a new record for the new time, and a cancel of the
older one. Both are one append where a cancel is a record. A stop between the two leaves the new
record as the last one of the log. So whoever opens the store next reads that record, and cancels
the message that it names.

One property of the record holds three numbers. They say where the older message's first record
lies, where this one lies, and for when the older was promised. Delivered copies keep the property.
They lie elsewhere, so it says nothing of them.

A level queue that was lost and rebuilt from the log does not show what was cancelled. There too the
newer record tells: the entry of what it replaces is a cancelled one.
"""

from typing import Protocol

import attrs

from message_store.base.errors import FormatError, SourceError
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.intake.records import kept_entries
from message_store.interface.delay_store import Cancellation, Receipt
from message_store.interface.waiting_messages import real_queue_id
from message_store.writing.log import LiveLog
from message_store.writing.losses import StoreEnds
from message_store.writing.recovery import Extent
from message_store.writing.store import LiveStore


class ReschedulingStore(Protocol):
    """An engine on files."""

    live: LiveStore

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """See ``DelayStore``."""


def receipt_for(
    message: StoredMessage, first_offset: int, promised_ms: int, broker_name: str
) -> Receipt:
    """The receipt of a pending message, by one of its records and by where the first of them is."""
    return Receipt(
        unique_key=message.unique_key or "",
        topic=message.real_topic,
        due_ms=promised_ms,
        promised_ms=promised_ms,
        commit_log_offset=first_offset,
        broker_name=broker_name,
    )


def for_another_time(message: StoredMessage) -> StoredMessage:
    """A pending message as it will be delivered, to be stored once more; with a unique key."""
    return attrs.evolve(
        message,
        topic=message.real_topic,
        queue_id=real_queue_id(message),
        properties_text=names.join_entries(kept_entries(message)),
    )


def replacing(older: Receipt, commit_log_offset: int) -> tuple[tuple[str, str]]:
    """The property of the record at an offset that replaces an older one; always equally long."""
    text = names.replacement_text(older.commit_log_offset, commit_log_offset, older.promised_ms)
    return ((names.RESCHEDULED_FROM, text),)


def replaced_by(message: StoredMessage, broker_name: str) -> Receipt | None:
    """The receipt of the message that this record replaces; None where it replaces none."""
    older, promised_ms = _replaced_by(message, message.commit_log_offset)
    return None if older is None else receipt_for(message, older, promised_ms, broker_name)


def replaced_offset(message: StoredMessage, first: int) -> int | None:
    """Where the record lay that was replaced by the first one of this message, which lay at the
    offset ``first`` and may be gone; None where it replaced none.
    """
    return _replaced_by(message, first)[0]


def _replaced_by(message: StoredMessage, first: int) -> tuple[int | None, int]:
    numbers = names.replacement_of_text(message.properties.get(names.RESCHEDULED_FROM, ""))
    if numbers is None:
        return None, 0
    older, own, promised_ms = numbers
    is_of_first = own == first and message.topic in names.WAITING_TOPICS
    return (older, promised_ms) if is_of_first and older < own else (None, 0)


def finish_rescheduling(store: ReschedulingStore, waiting_topic: str) -> None:
    """Cancel what the last record of the log replaces, in a store that was just opened: a stop may
    have come before that. Raises TargetError, and as ``unfinished``.
    """
    older = unfinished(store.live, waiting_topic)
    if older is not None:
        store.cancel(older)


def unfinished(live: LiveStore, waiting_topic: str) -> Receipt | None:
    """The message that the last record replaces, if a stop may have come before its cancel. Raises
    SourceError where the record waits in another topic than this engine's: only its own engine can
    tell, and behind another record it would not. So engines also ask before recovery. What was
    flushed or closed behind that record is finished.
    """
    last = None if live.was_clean else _last_record(live.log)
    older = None if last is None else replaced_by(last, live.settings.broker_name)
    if last is None or older is None or last.topic == waiting_topic:
        return older
    ends = StoreEnds.read(live.root)
    if ends is None or ends.log_end <= last.commit_log_offset:
        raise SourceError(
            f"{live.root.path}: was stopped while a message of {last.topic} was rescheduled; open"
            " it once with the engine that did that"
        )
    return None


def refuse_unfinished(live: LiveStore, _extent: Extent) -> None:
    """Before recovery, for who appends to a store without its engine: behind another record nobody
    would know any more that a message was replaced. Raises SourceError.
    """
    unfinished(live, "")


def _last_record(log: LiveLog) -> StoredMessage | None:
    head = log.head(log.last_start)
    if head is None:
        return None
    try:
        return log.record(log.last_start, head["size_bytes"])
    except FormatError:
        return None
