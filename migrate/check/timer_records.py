# SPDX-License-Identifier: Apache-2.0
"""Records of pending messages on the wheel that a broker does not find, or delivers wrongly."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from legacy_levels.engine.waiting_records import are_plain_numbers, equals
from message_store.columns.message_batch import StoredBatch
from message_store.format import properties as names
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.record_layout import (
    IPV4_BYTES,
    PROPERTIES_MAX_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
)
from message_store.format.timer_record_rules import TimerFault, timer_record_faults
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import FindingRule, error, warning
from message_store.reading.consume_queue import read_queue
from migrate.check.delete_markers import MARKER_DAMAGED, out_ms_of
from migrate.check.record_walk import RecordWalk, Tally, largest_record_bytes, undeliverable
from migrate.check.snapshot import StoreSnapshot
from migrate.look.pending import plain_times
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.delete_markers import MARKER_BODY, MARKER_TAGS, SlotWidths, is_of_cancel
from timer_wheel.reading.state import WheelState

_AGAIN = "convert the source again, or take the store from a backup"
_SKIP = (
    "set timerSkipUnknownError=true, also on a running broker: `mqadmin updateBrokerConfig -k"
    " timerSkipUnknownError -v true`; the wheel continues, those messages are lost"
)
ELSEWHERE = error(
    "timer-record-missing",
    "a broker drops them silently, or reads another message in their place, again and again"
    " (5.5.0 after a replica was cut)",
    "take the commit log from a backup",
)
BODY_DAMAGED = error(
    "timer-body-damaged",
    "a broker delivers the damaged bodies; if it recovers its log there, it cuts the log",
    _AGAIN,
)
NO_DESTINATION = error(
    "timer-no-destination",
    "the wheel stands still at their slot for ever, also after a restart (unless"
    " timerSkipUnknownError=true)",
    _SKIP,
)
BAD_TOPIC = error(
    "timer-bad-topic",
    "a broker refuses to store them when they are due, and drops them; or it stores them where no"
    " client finds them",
    "see who sends to such a topic",
)
NO_BODY = error(
    "timer-no-body",
    "a 5.x broker refuses to store them when they are due, or roll, and drops them",
    "see who writes such records: clients refuse to send them",
)
DELAY_LEFT = error(
    "timer-delay-left",
    "when they are due a broker delays them once more, by that level; one that rolls is queued"
    " endlessly",
    _AGAIN,
)
OUT_ELSEWHERE = warning(
    "timer-out-elsewhere",
    "the slot decides: they are delivered at another time than their records say",
    _AGAIN,
)
OUT_MISSING = error(
    "timer-out-missing",
    "on the wheel the slot decides; a broker that reads them from the queue stops there for ever",
    "keep config/timercheck with the rest, so that the queue is not read from its beginning",
)
DELETES = error(
    "timer-deletes",
    "a broker takes them for delete markers: it drops them when they are due, and the messages"
    " that they name",
    "see who writes such records; the body is in the log",
)
TRANSACTION = error(
    "timer-transaction",
    "when they are due, or roll, a broker stores them as half messages: no consumer sees them",
    "see who writes such records; the body is in the log",
)
HOSTS = error(
    "timer-hosts",
    "Java makes the address an IPv4 one: a broker that stores the record writes fewer bytes than"
    " its length says. It fails, or damages its log",
    _SKIP,
)
TOO_LARGE = error(
    "timer-too-large",
    "a wheel reads records into a buffer of maxMessageSize + 100 bytes (5.5.1: + 64 KiB). 5.3 and"
    " older stop at them for ever, 5.4 and newer lose them silently",
    "give the broker a larger maxMessageSize before it starts",
)
PROPERTIES_FULL = error(
    "timer-properties-full",
    "delivery adds properties, and a broker drops a message with more than a record can hold",
    "see who sends messages with so many properties",
)
_RULE_OF = {
    TimerFault.NO_DESTINATION: NO_DESTINATION,
    TimerFault.BAD_TOPIC: BAD_TOPIC,
    TimerFault.NO_BODY: NO_BODY,
    TimerFault.DELAY: DELAY_LEFT,
    TimerFault.DELETES: DELETES,
    TimerFault.TRANSACTION: TRANSACTION,
    TimerFault.HOSTS: HOSTS,
    TimerFault.TOO_LARGE: TOO_LARGE,
    TimerFault.PROPERTIES: PROPERTIES_FULL,
}


def check_timer_records(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Every record that is pending on the wheel or in its queue; delete markers are left out.

    RocketMQ: TimerMessageStore#dequeue and #doPut.
    """
    if snapshot.wheel is None:
        return
    walk = _TimerRecords(snapshot, snapshot.wheel)
    walk.walk()
    for rule, tally in walk.tallies.items():
        yield rule.at("the wheel", tally.text())


class _TimerRecords(RecordWalk):
    no_record, other_size, other_body = ELSEWHERE, ELSEWHERE, BODY_DAMAGED

    def __init__(self, snapshot: StoreSnapshot, state: WheelState) -> None:
        pending = state.pending
        self.rows = pending.rows(np.argsort(pending.commit_log_offset, kind="stable"))
        super().__init__(snapshot, self.rows.commit_log_offset, self.rows.size_bytes)
        self.tallies: dict[FindingRule, Tally] = {}
        self.precision_ms = state.precision_ms
        self.widths = SlotWidths(state.precision_ms)
        self.is_final = ~self.rows.is_roll & (self.rows.position >= 0)
        if snapshot.is_hierarchical:  # its index holds the due times; it has no slots
            self.is_final[:] = False
        else:
            self.widths = SlotWidths.of(snapshot.root, state.precision_ms)
        self.read_bytes = largest_record_bytes(snapshot.broker.max_message_bytes)

    def note(self, rule: FindingRule, row: int, what: str) -> None:
        rows = self.rows
        position, queue_offset = int(rows.position[row]), int(rows.queue_offset[row])
        where = f"timer log {position}" if position >= 0 else f"queue offset {queue_offset}"
        position_text = f"{where}, log offset {rows.commit_log_offset[row]}"
        self.tallies.setdefault(rule, Tally()).add(f"{position_text} ({what})")

    def unusual(self, batch: StoredBatch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        table = self.rows
        unusual = ~equals(batch.topic, names.TIMER_TOPIC.encode())
        unusual |= batch.commit_log_offset != table.commit_log_offset[rows]
        unusual |= ~are_plain_numbers(batch.property(names.REAL_QUEUE_ID))
        unusual |= batch.property(names.DELAY).lengths > 0
        unusual |= batch.properties_text.lengths > PROPERTIES_MAX_BYTES - DELIVERY_GROWTH_BYTES
        unusual |= table.size_bytes[rows] > self.read_bytes
        unusual |= batch.property(names.TIMER_DELETE_UNIQUE_KEY).lengths > 0
        unusual |= equals(batch.body, MARKER_BODY) | (batch.body.lengths == 0)
        unusual |= ~np.isin(batch.sys_flag & SYS_TRANSACTION_MASK, (0, SYS_COMMIT))
        unusual |= (batch.born_ip.lengths > IPV4_BYTES) | (batch.store_ip.lengths > IPV4_BYTES)
        unusual |= undeliverable(batch.property(names.REAL_TOPIC))
        outs_ms = plain_times(batch.property(names.TIMER_OUT_MS))
        unusual |= outs_ms < 0
        slots_ms = floor_ms(outs_ms, self.precision_ms)
        unusual |= self.is_final[rows] & (slots_ms != table.slot_time_ms[rows])
        return np.asarray(unusual)

    def broken_rules(self, message: StoredMessage, row: int) -> Iterator[tuple[FindingRule, str]]:
        rows = self.rows
        if message.topic != names.TIMER_TOPIC:
            yield ELSEWHERE, f"a record of topic {message.topic!r}"
        elif message.commit_log_offset != rows.commit_log_offset[row]:
            yield ELSEWHERE, f"the record says that it lies at {message.commit_log_offset}"
        size_bytes = int(rows.size_bytes[row])
        for fault, what in timer_record_faults(message, size_bytes, self.read_bytes):
            if fault is not TimerFault.NO_OUT_MS:  # a broker takes any number: see _of_time
                yield _RULE_OF[fault], what
        if self._is_of_cancel(message) and names.TIMER_DELETE_UNIQUE_KEY not in message.properties:
            yield MARKER_DAMAGED, "a delete marker that names no message"
        yield from self._of_time(message, row)

    def _is_of_cancel(self, message: StoredMessage) -> bool:
        """Whether a record is, or once was, a delete marker. One of a broker that lost its tags too
        looks like a message "0", also to an engine; its queue entry still has the tags' hash.
        """
        if message.body != MARKER_BODY or is_of_cancel(message):
            return is_of_cancel(message)
        return message.commit_log_offset in self._recalls

    @cached_property
    def _recalls(self) -> NDArray[np.int64]:
        """The records of the timer queue whose entries have the tags of a delete marker."""
        queue = read_queue(self.snapshot.root.timer_queue())
        is_recall = queue.tags_code == string_hash(MARKER_TAGS)
        recalls: NDArray[np.int64] = queue.commit_log_offset[is_recall]
        return recalls

    def _of_time(self, message: StoredMessage, row: int) -> Iterator[tuple[FindingRule, str]]:
        if (out_ms := out_ms_of(message)) is None:
            text = message.properties.get(names.TIMER_OUT_MS)
            yield OUT_MISSING, f"{names.TIMER_OUT_MS} {text!r}"
            return
        slot_ms, now_ms = int(self.rows.slot_time_ms[row]), self.snapshot.now_ms
        is_overdue = out_ms < now_ms and slot_ms < now_ms  # spread over the slots before now
        if self.is_final[row] and not is_overdue and slot_ms not in self._slots_ms(message):
            yield OUT_ELSEWHERE, f"{names.TIMER_OUT_MS}={out_ms}, in the slot of {slot_ms}"

    def _slots_ms(self, message: StoredMessage) -> set[int]:
        """The slots where a message may lie: its own, and those of earlier widths of slots."""
        end_ms = self.widths.slot_end_ms(message)
        ends_ms = set() if end_ms is None else self.widths.later_ends_ms(end_ms)
        return {each_ms - self.precision_ms for each_ms in ends_ms}
