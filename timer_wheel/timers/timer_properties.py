# SPDX-License-Identifier: Apache-2.0
"""What a message's own properties ask of the wheel, as a broker's hooks read them.

DELAY above 0 wins and makes it a message of the levels. One that already has TIMER_OUT_MS, as a
message that was received and is sent again, is not delayed. TIMER_DELAY_SEC counts before
TIMER_DELAY_MS before TIMER_DELIVER_MS. Brokers ignore __STARTDELIVERTIME, a property of other
clients; it counts last, and only if that is asked for.
"""

from collections.abc import Mapping

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, UnsupportedDelayError
from message_store.columns.byte_column import ByteColumn, Int64s
from message_store.columns.property_column import join_property_columns
from message_store.format import properties as names
from message_store.format.java_numbers import parse_long
from message_store.format.message import Message
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, Due

START_DELIVER_TIME = "__STARTDELIVERTIME"
_TIMES = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
_STEERING = frozenset({*_TIMES, names.DELAY, names.TIMER_OUT_MS, names.TIMER_DELETE_UNIQUE_KEY})


@attrs.frozen
class Asked:
    """A message without what steers the wheel, when it is due, and the properties that its record
    keeps of that.
    """

    message: Message
    due: Due
    kept: tuple[tuple[str, str], ...]


def asked_by(message: Message, now_ms: int, *, start_deliver_time_alias: bool = False) -> Asked:
    """What a message asks for; one that asks for nothing is due now.

    Raises BadFieldError for a time that is no number, and for a delete marker whose time is past:
    it would come too late.
    """
    properties = message.properties
    plain = {name: value for name, value in properties.items() if name not in _STEERING}
    asked = attrs.evolve(message, properties=plain)
    level = _number(properties, names.DELAY)
    if level is not None and level > 0:
        return Asked(asked, AtLevel(level), ())
    if names.TIMER_OUT_MS in properties:
        return Asked(asked, AtMs(now_ms), ())
    due = _due(properties, start_deliver_time_alias=start_deliver_time_alias)
    kept = [(name, properties[name]) for name in _TIMES if name in properties]
    if names.TIMER_DELETE_UNIQUE_KEY in properties:
        due_ms = _due_ms(due, now_ms)
        if due_ms <= now_ms:
            raise BadFieldError("a delete marker for a time that is past", found=due_ms)
        kept.append((names.TIMER_DELETE_UNIQUE_KEY, properties[names.TIMER_DELETE_UNIQUE_KEY]))
    return Asked(asked, due or AtMs(now_ms), tuple(kept))


def _due(properties: Mapping[str, str], *, start_deliver_time_alias: bool) -> Due | None:
    seconds = _number(properties, names.TIMER_DELAY_SEC)
    if seconds is not None:
        return AfterMs(max(0, seconds * 1000))
    delay_ms = _number(properties, names.TIMER_DELAY_MS)
    if delay_ms is not None:
        return AfterMs(max(0, delay_ms))
    due_ms = _number(properties, names.TIMER_DELIVER_MS)
    if due_ms is None and start_deliver_time_alias:
        due_ms = _number(properties, START_DELIVER_TIME)
    return None if due_ms is None else AtMs(max(0, due_ms))


def _due_ms(due: Due | None, now_ms: int) -> int:
    match due:
        case AfterMs(delay_ms):
            return now_ms + delay_ms
        case AtMs(due_ms):
            return due_ms
        case _:
            return now_ms


def _number(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    try:
        return parse_long(text)
    except BadFieldError as error:
        raise BadFieldError(f"{name} is no whole number", found=repr(text[:64])) from error


LATEST_MS = 2**62
"""No due time is as late as this."""

LATEST_ADVANCE_MS = LATEST_MS + 2**61
"""Later than every promise; what is asked for beyond it would only overflow."""


def require_kept(due_ms: int, now_ms: int) -> None:
    """Raise UnsupportedDelayError for a time that no record or no slot can hold."""
    if due_ms >= LATEST_MS:
        raise UnsupportedDelayError(f"{due_ms} is a time beyond all calendars")
    if now_ms < 0:  # a slot of a time that is not positive counts as empty
        raise UnsupportedDelayError(f"the clock says {now_ms}, and no wheel turns before 1970")


def wheel_stamps(enqueue_ms: Int64s, dequeue_ms: int, rolled: Int64s | None = None) -> ByteColumn:
    """What the wheel adds to a record that leaves a slot, for each row: when it was placed, when it
    was taken, and for those that go round again how often they have.

    >>> list(wheel_stamps(np.array([7]), 9, np.array([1])))
    [b'TIMER_ENQUEUE_MS\\x017\\x02TIMER_DEQUEUE_MS\\x019\\x02TIMER_ROLL_TIMES\\x011\\x02']
    """
    columns = [enqueue_ms] if rolled is None else [enqueue_ms, rolled]
    is_new = np.ones(len(enqueue_ms), np.bool_)
    if len(is_new):  # neighbours are mostly alike: each different text is written once
        is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    enqueued = enqueue_ms[is_new]
    stamps = [
        (names.TIMER_ENQUEUE_MS, enqueued),
        (names.TIMER_DEQUEUE_MS, np.full(len(enqueued), dequeue_ms, np.int64)),
    ]
    if rolled is not None:
        stamps.append((names.TIMER_ROLL_TIMES, rolled[is_new]))
    return join_property_columns(stamps).take(np.cumsum(is_new) - 1)
