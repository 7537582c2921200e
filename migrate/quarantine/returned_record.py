# SPDX-License-Identifier: Apache-2.0
"""A record that was set aside, as it can go back: what it says, and what somebody says instead."""

import attrs

from message_store.base.errors import FormatError
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import parse_long
from message_store.format.message import StoredMessage
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.format.record_layout import SYS_COMMIT, SYS_TRANSACTION_MASK
from message_store.format.timer_record_rules import host_problem
from migrate.quarantine.kept import Quarantine, Quarantined
from migrate.quarantine.waits_twice import told_not_aside
from migrate.write.rewrite import (
    QUEUE_ID_MAX,
    REMOVED_PROPERTIES,
    BadRecordError,
    is_deliverable_topic,
)


@attrs.frozen(kw_only=True)
class Repair:
    """What is to be taken instead of what the record says; None takes the record's own.

    ``despite_damage`` takes a body that is not what its checksum says.
    """

    topic: str | None = None
    queue_id: int | None = None
    due_ms: int | None = None
    despite_damage: bool = False


NO_REPAIR = Repair()


@attrs.frozen(eq=False)
class Returned:
    """A record that can go back: the message, where it goes, and when it is due."""

    record: Quarantined
    message: StoredMessage
    topic: str
    queue_id: int
    due_ms: int

    def text(self, more: tuple[str, str], *, closed: bool) -> bytes:
        """Its properties, with the one that makes it wait."""
        kept = [
            (name, value)
            for name, value in names.split_entries(self.message.properties_text)
            if name not in REMOVED_PROPERTIES
            and name not in (names.REAL_TOPIC.encode(), names.REAL_QUEUE_ID.encode())
        ]
        entries = [
            (names.REAL_TOPIC.encode(), self.topic.encode()),
            *kept,
            (more[0].encode(), more[1].encode()),
            (names.REAL_QUEUE_ID.encode(), str(self.queue_id).encode()),
        ]
        text = b"\x02".join(name + b"\x01" + value for name, value in entries)
        return text + (b"\x02" if closed else b"")


def returned(record: Quarantined, repair: Repair, levels: DelayLevels) -> Returned:
    """The record as it can go back. Raises BadRecordError with what is in the way."""
    try:
        message = record.message(check_crc=not repair.despite_damage)
    except FormatError as error:
        raise BadRecordError(f"unreadable: {error.problem}") from error
    if message.topic not in (LEVEL_TOPIC, TIMER_TOPIC):
        raise BadRecordError(f"a record of topic {message.topic!r}, which did not wait")
    if message.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_COMMIT):
        raise BadRecordError("a prepared or rolled back transaction, which is never delivered")
    for host in (message.born_host, message.store_host):
        if problem := host_problem(host):
            raise BadRecordError(f"{problem}: {host}")
    topic = repair.topic or message.properties.get(names.REAL_TOPIC)
    if topic is None:
        raise BadRecordError("no REAL_TOPIC: say where it goes with --topic")
    if not is_deliverable_topic(topic.encode("utf-8", "surrogatepass")):
        raise BadRecordError(f"REAL_TOPIC {topic[:64]!r} cannot be delivered to; see --topic")
    due_ms = record.when_due_ms(levels) if repair.due_ms is None else repair.due_ms
    if due_ms is None:
        raise BadRecordError("nothing tells when it is due: say it with --at")
    return Returned(record, message, topic, _queue_id(message, repair), due_ms)


def _queue_id(message: StoredMessage, repair: Repair) -> int:
    if repair.queue_id is not None:
        return repair.queue_id
    text = message.properties.get(names.REAL_QUEUE_ID)
    try:
        number = parse_long(text or "")
    except FormatError:
        number = -1
    if not 0 <= number <= QUEUE_ID_MAX:
        raise BadRecordError(f"REAL_QID is {text!r}: say it with --queue-id")
    return number


def in_the_way(quarantine: Quarantine, levels: DelayLevels | None = None) -> dict[str, str]:
    """Why each record that waits cannot be put back as it is; the empty string where it can."""
    if told := told_not_aside(quarantine.directory):
        return {record.file: told for record in quarantine.waiting}
    found = {}
    for record in quarantine.waiting:
        try:
            returned(record, NO_REPAIR, levels or DelayLevels.parse())
            found[record.file] = ""
        except BadRecordError as error:
            found[record.file] = str(error)
    return found
