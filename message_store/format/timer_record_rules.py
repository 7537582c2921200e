# SPDX-License-Identifier: Apache-2.0
"""The rules for records of the timer topic, without which a broker cannot place or deliver them.

A record that breaks a rule stops a stock broker's wheel for ever, or is lost when it is due. All
code that writes such records keeps these rules: conversions, tables, engines and restored records;
their kernels accept nothing that is refused here. Engines alone take a message without a body,
which they deliver themselves. ``check`` looks for records of others that break the rules.
"""

from collections.abc import Iterator
from enum import Enum

from message_store.base.errors import BadFieldError
from message_store.format import properties as names
from message_store.format.java_numbers import INT_MAX, parse_long
from message_store.format.message import Host, StoredMessage
from message_store.format.message_rules import DELIVERY_GROWTH_BYTES, check_topic
from message_store.format.record_layout import (
    PROPERTIES_MAX_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
)


class TimerFault(Enum):
    """Why a record cannot be on a wheel."""

    NO_DESTINATION = "nobody knows where to deliver it"
    BAD_TOPIC = "its real topic takes no messages"
    NO_BODY = "no broker with a timer wheel delivers it"
    DELAY = "it would be delayed again by a level"
    NO_OUT_MS = "it has no time"
    DELETES = "it is no delete marker and says whom it deletes"
    TRANSACTION = "it is never delivered"
    HOSTS = "its flags and its addresses disagree"
    TOO_LARGE = "a wheel does not read it"
    PROPERTIES = "its properties have no room for what delivery adds"


def timer_record_faults(
    message: StoredMessage, size_bytes: int, most_bytes: int, *, is_marker: bool = False
) -> Iterator[tuple[TimerFault, str]]:
    """The rules that a record breaks, each with a sentence; none for a record that may be written.

    ``most_bytes`` is the longest record that its wheel reads.
    """
    values = message.properties
    yield from _destination_faults(values.get(names.REAL_TOPIC), values.get(names.REAL_QUEUE_ID))
    if not message.body:  # RocketMQ: HookUtils#checkBeforePutMessage, "message body is null"
        yield TimerFault.NO_BODY, "no body"
    if names.DELAY in values:
        yield TimerFault.DELAY, f"{names.DELAY}={values[names.DELAY][:32]}"
    out_ms = values.get(names.TIMER_OUT_MS)
    if out_ms is None or not (out_ms.isascii() and out_ms.isdigit()):
        yield TimerFault.NO_OUT_MS, f"{names.TIMER_OUT_MS} {out_ms!r}"
    if names.TIMER_DELETE_UNIQUE_KEY in values and not is_marker:
        yield TimerFault.DELETES, f"{names.TIMER_DELETE_UNIQUE_KEY} in a message"
    if message.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_COMMIT):
        yield TimerFault.TRANSACTION, "a prepared or rolled back transaction"
    for host in (message.born_host, message.store_host):
        if host_problem(host):
            yield TimerFault.HOSTS, f"{host_problem(host)}: {host}"
    if size_bytes > most_bytes:
        yield TimerFault.TOO_LARGE, f"{size_bytes:,} bytes, {most_bytes:,} are read"
    length = len(message.properties_text)
    if length + DELIVERY_GROWTH_BYTES > PROPERTIES_MAX_BYTES:
        what = f"{length:,} bytes of properties would outgrow {PROPERTIES_MAX_BYTES} at delivery"
        yield TimerFault.PROPERTIES, what


def _destination_faults(
    topic: str | None, queue_id: str | None
) -> Iterator[tuple[TimerFault, str]]:
    if topic is None:
        yield TimerFault.NO_DESTINATION, f"no {names.REAL_TOPIC}"
    else:
        try:
            check_topic(topic)
        except BadFieldError:
            yield TimerFault.BAD_TOPIC, f"{names.REAL_TOPIC} {topic[:64]!r}"
    if (problem := queue_problem(queue_id)) is not None:
        yield TimerFault.NO_DESTINATION, problem


def queue_problem(text: str | None) -> str | None:
    """The fault of a REAL_QID; None without one."""
    if text is None:
        return f"no {names.REAL_QUEUE_ID}"
    try:
        number = parse_long(text)
    except BadFieldError:
        number = -1
    return None if 0 <= number <= INT_MAX else f"{names.REAL_QUEUE_ID} {text[:32]!r}"


def host_problem(host: Host) -> str | None:
    """The fault of an address; None without one."""
    return "an IPv4 address in the form of an IPv6 one" if host.is_mapped else None
