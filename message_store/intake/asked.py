# SPDX-License-Identifier: Apache-2.0
"""What a message's own properties ask of a store, as a broker's hooks read them.

DELAY above 0 wins and means a level. A message that already has TIMER_OUT_MS, as one that was
received and is sent again, is not delayed. TIMER_DELAY_SEC counts before TIMER_DELAY_MS before
TIMER_DELIVER_MS. Brokers ignore __STARTDELIVERTIME, a property of other clients. It counts last,
and only if that is asked for. RocketMQ: HookUtils#handleScheduleMessage (5.3.3).
"""

from collections.abc import Iterable, Mapping

import attrs

from message_store.base.errors import BadFieldError
from message_store.format import properties as names
from message_store.format.java_numbers import parse_long
from message_store.format.message import Message
from message_store.format.message_rules import TIME_PROPERTIES
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, Due

STEERING = frozenset(
    {*TIME_PROPERTIES, names.DELAY, names.TIMER_OUT_MS, names.TIMER_DELETE_UNIQUE_KEY}
)
"""The properties that ``put`` takes out of a message and obeys."""


@attrs.frozen
class Asked:
    """A message without the steering of its delay, its due time, and what a wheel's record has."""

    message: Message
    due: Due
    kept: tuple[tuple[str, str], ...]


def asks(properties: Iterable[str], *, start_deliver_time_alias: bool = False) -> bool:
    """Whether properties of these names say when a message is due.

    >>> asks(["colour", "TIMER_DELAY_SEC"]), asks(["__STARTDELIVERTIME"])
    (True, False)
    """
    given = set(properties)
    alias = start_deliver_time_alias and names.START_DELIVER_TIME in given
    return alias or not STEERING.isdisjoint(given)


def asked_by(message: Message, now_ms: int, *, start_deliver_time_alias: bool = False) -> Asked:
    """What a message asks for; one that asks for nothing is due now.

    Raises BadFieldError for a time that is no number, and for a delete marker whose time is past:
    it would come too late.
    """
    properties = message.properties
    plain = {name: value for name, value in properties.items() if name not in STEERING}
    asked = attrs.evolve(message, properties=plain)
    level = _number(properties, names.DELAY)
    if level is not None and level > 0:
        return Asked(asked, AtLevel(level), ())
    if names.TIMER_OUT_MS in properties:
        return Asked(asked, AtMs(now_ms), ())
    due = _due(properties, start_deliver_time_alias=start_deliver_time_alias)
    kept = [(name, properties[name]) for name in TIME_PROPERTIES if name in properties]
    if names.TIMER_DELETE_UNIQUE_KEY in properties:
        due_ms = _due_ms(due, now_ms)
        if due_ms <= now_ms:
            raise BadFieldError("a delete marker for a time that is past", found=due_ms)
        kept.append((names.TIMER_DELETE_UNIQUE_KEY, properties[names.TIMER_DELETE_UNIQUE_KEY]))
    return Asked(asked, due or AtMs(now_ms), tuple(kept))


def asked_of_no_wheel(
    message: Message, now_ms: int, *, start_deliver_time_alias: bool = False
) -> Asked:
    """The same for an engine that has no delete markers. Raises BadFieldError for one too."""
    asked = asked_by(message, now_ms, start_deliver_time_alias=start_deliver_time_alias)
    if names.TIMER_DELETE_UNIQUE_KEY in dict(asked.kept):
        raise BadFieldError(
            f"{names.TIMER_DELETE_UNIQUE_KEY} makes a delete marker, which only a wheel takes;"
            " `cancel` cancels a message in every engine"
        )
    return asked


def _due(properties: Mapping[str, str], *, start_deliver_time_alias: bool) -> Due | None:
    seconds = _number(properties, names.TIMER_DELAY_SEC)
    if seconds is not None:
        return AfterMs(max(0, seconds * 1000))
    delay_ms = _number(properties, names.TIMER_DELAY_MS)
    if delay_ms is not None:
        return AfterMs(max(0, delay_ms))
    due_ms = _number(properties, names.TIMER_DELIVER_MS)
    if due_ms is None and start_deliver_time_alias:
        due_ms = _number(properties, names.START_DELIVER_TIME)
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
    return None if text is None else whole_number(name, text)


def whole_number(name: str, text: str) -> int:
    """The value of a property as Java's Long.parseLong reads it. Raises BadFieldError."""
    try:
        return parse_long(text)
    except BadFieldError as error:
        raise BadFieldError(f"{name} is no whole number", found=repr(text[:64])) from error
