# SPDX-License-Identifier: Apache-2.0
"""Messages as people type them, as programs write them in lines of JSON, and as JSON objects again.

Whatever a message cannot be is a usage error that names the flag, or the line and its field.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import click

from delaywheel.terminal.options.types import TIME_FORMS, parse_length, parse_time
from message_store.base.durations import DURATION_FORMS
from message_store.base.errors import BadFieldError, DelayLimitError, UnsupportedDelayError
from message_store.base.printable import listed
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Message, StoredMessage
from message_store.intake.asked import asked_of_no_wheel, asks
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, Delivered, Due

LINES = "--lines"
_TEXT = "a text"
_FIELD_FORMS = {
    "at": TIME_FORMS,
    "after": f"a text {DURATION_FORMS}",
    "level": "a whole number from 1",
    "topic": _TEXT,
    "body": f'{_TEXT}; "body_base64" takes what is none',
    "body_base64": _TEXT,
    "tags": _TEXT,
    "keys": "a text with spaces between keys, or a list of texts",
    "properties": "an object of texts",
    "queue_id": "a whole number from 0",
    "unique_key": _TEXT,
}
"""The fields of a line, and what each takes, as a refusal says it."""


@attrs.frozen
class Request:
    """A message, when it is wanted, and in which line of a file it was asked for, from 1. Without a
    due time its own properties say when.
    """

    message: Message
    due: Due | None
    line: int | None = None


def due_of(
    at_ms: int | None,
    after_ms: int | None,
    level: int | None,
    *,
    names: str = "--{}",
    asks: bool = False,
) -> Due | None:
    """The one way in which a due time was given; None where the properties ask for one instead.
    Raises UsageError for none and for several.
    """
    times = {"at": at_ms, "after": after_ms, "level": level}
    flags = [names.format(name) for name, value in times.items() if value is not None]
    if asks and not flags:
        return None
    if len(flags) != 1:
        choice = ", ".join(names.format(name) for name in times)
        which = listed(flags) if flags else "none"
        were = "was" if len(flags) < 2 else "were"
        raise click.UsageError(f"give exactly one of {choice} ({which} {were} given)")
    if at_ms is not None:
        return AtMs(at_ms)
    return AfterMs(after_ms) if after_ms is not None else AtLevel(level or 0)


def require_tags(tags: str | None, name: str) -> None:
    """Raise UsageError for an empty tag, which no reader would find."""
    if tags == "":
        raise click.UsageError(f"{name} must not be empty; without it the message has no tag")


def time_due_ms(due: Due, now_ms: int, levels: DelayLevels) -> int:
    """When a message is due that is stored now."""
    match due:
        case AtLevel(level):
            return now_ms + levels.delay_ms(levels.clamp(level))
        case AfterMs(delay_ms):
            return now_ms + delay_ms
        case AtMs(due_ms):
            return due_ms


def with_due(
    request: Request, row: int, now_ms: int, start_deliver_time_alias: bool
) -> tuple[Message, Due]:
    """The message to schedule and its due time; where its properties ask for one, without these.
    Raises BadFieldError, which names the row.
    """
    if request.due is not None:
        return request.message, request.due
    try:
        asked = asked_of_no_wheel(
            request.message, now_ms, start_deliver_time_alias=start_deliver_time_alias
        )
    except BadFieldError as error:
        raise error.of_row(row) from None
    return asked.message, asked.due


# --- lines of JSON --------------------------------------------------------------------------------


def requests_of(lines: Iterable[str], *, start_deliver_time_alias: bool = False) -> list[Request]:
    """The messages of a file of JSON objects, one a line; empty lines are skipped.

    Raises BadParameter for the first line that is no message, so that nothing is stored then.
    """
    requests = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                requests.append(_request(json.loads(line), number, start_deliver_time_alias))
            except json.JSONDecodeError as error:
                problem = f"not JSON: {error.msg} at column {error.colno}"
                raise _bad_line(number, problem) from error
            except UnicodeEncodeError as error:
                raise _bad_line(number, f"{error.object[:64]!r} is not text") from error
            except (click.UsageError, ValueError, RecursionError) as error:
                sentence = error.message if isinstance(error, click.UsageError) else str(error)
                raise _bad_line(number, sentence) from error
    return requests


def levels_beyond(requests: Iterable[Request], levels: DelayLevels) -> list[int]:
    """The levels that were asked for and that the table does not have, each once."""
    asked = {request.due.level for request in requests if isinstance(request.due, AtLevel)}
    return sorted(level for level in asked if level > levels.max_level)


@contextmanager
def naming_lines(requests: Sequence[Request]) -> Iterator[None]:
    """Around the storing of messages: what an engine refuses is a usage error, which names the line
    where the message came from one.
    """
    try:
        yield
    except (BadFieldError, UnsupportedDelayError) as error:
        row = 0 if len(requests) == 1 else error.row
        problem = str(error).removeprefix(f"row {row}: ")
        if isinstance(error, DelayLimitError):
            problem += "; --max-delay, or timerMaxDelaySec in --broker-conf, allows more"
        line = None if row is None else requests[row].line
        if line is None:
            raise click.UsageError(problem) from error
        raise _bad_line(line, problem) from error


def _bad_line(number: int, problem: str) -> click.BadParameter:
    return click.BadParameter(f"line {number}: {problem}", param_hint=LINES)


def _request(value: Any, line: int, start_deliver_time_alias: bool) -> Request:
    if not isinstance(value, dict):
        raise ValueError("a message is a JSON object")
    for name in value:
        if name not in _FIELD_FORMS:
            fields_text = ", ".join(_FIELD_FORMS)
            raise ValueError(f"{name!r} is no field of a message; these are: {fields_text}")
    fields = _Fields(value)
    if not fields.of("topic", str):
        raise ValueError("'topic' is missing")
    at = fields.of("at", (str, int))
    after = fields.of("after", str)
    properties = _properties(fields.of("properties", dict))
    due = due_of(
        None if at is None else parse_time(str(at)),
        None if after is None else parse_length(after),
        fields.number("level", at_least=1),
        names='"{}"',
        asks=asks(properties, start_deliver_time_alias=start_deliver_time_alias),
    )
    tags = fields.of("tags", str)
    require_tags(tags, "'tags'")
    message = Message(
        topic=fields.of("topic", str),
        body=_body(fields),
        tags=tags,
        keys=_keys(fields.of("keys", (str, list))),
        properties=properties,
        queue_id=fields.number("queue_id", at_least=0) or 0,
        unique_key=fields.of("unique_key", str),
    )
    return Request(message, due, line)


@attrs.frozen
class _Fields:
    """The fields of one JSON object, each of a type that is asked for; null is as if absent."""

    _values: Mapping[str, Any]

    def of(self, name: str, types: type | tuple[type, ...]) -> Any:
        value = self._values.get(name)
        if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
            raise _wrong_value(name, value)
        str(value or "").encode()  # half a character, which JSON can write, is a ValueError
        return value

    def number(self, name: str, *, at_least: int) -> int | None:
        value: int | None = self.of(name, int)
        if value is not None and value < at_least:
            raise _wrong_value(name, value)
        return value


def _wrong_value(name: str, value: Any) -> ValueError:
    return ValueError(f"{name!r} cannot be {json.dumps(value)[:64]}; it is {_FIELD_FORMS[name]}")


def _body(fields: _Fields) -> bytes:
    text, encoded = fields.of("body", str), fields.of("body_base64", str)
    if (text is None) == (encoded is None):
        raise ValueError('give exactly one of "body" and "body_base64"')
    if encoded is None:
        return str(text).encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"'body_base64' is not base64: {error}") from error


def _keys(value: str | list[Any] | None) -> tuple[str, ...]:
    parts = value.split() if isinstance(value, str) else value or []
    return tuple(_text("keys", part) for part in parts)


def _properties(value: dict[str, Any] | None) -> dict[str, str]:
    return {name: _text("properties", text) for name, text in (value or {}).items()}


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name!r} holds {json.dumps(value)[:64]}, which is not a text")
    return value


# --- as JSON again --------------------------------------------------------------------------------


def message_json(message: StoredMessage) -> dict[str, Any]:
    """A stored message as a JSON object; the body as text where it is UTF-8, else as base64.

    A body that its client has compressed stays so, and the object says it.
    """
    facts: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "offset_message_id": message.offset_message_id,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
    }
    if message.is_compressed:
        facts["is_compressed"] = True
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    return facts


def delivered_json(delivered: Delivered) -> dict[str, Any]:
    """A delivery as a JSON object."""
    times = {"promised_ms": delivered.promised_ms, "lateness_ms": delivered.lateness_ms}
    return {**message_json(delivered.message), **times}
