# SPDX-License-Identifier: Apache-2.0
"""Messages as people type them, as programs write them in lines of JSON, and as JSON objects again.

Whatever a message cannot be is a usage error that names the flag, or the line and its field.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

import attrs
import click

from cli_values import DURATION_FORMS, TIME_FORMS, Duration, Setting, Time
from message_store.delay_levels import DelayLevels
from message_store.delay_store import AfterMs, AtLevel, AtMs, Delivered, Due
from message_store.message import Message, StoredMessage

LINES = "--lines"
DUE_FIELDS = ("at", "after", "level")
OTHER_FIELDS = (
    "topic", "body", "body_base64", "tags", "keys", "properties", "queue_id", "unique_key",
)  # fmt: skip


@attrs.frozen
class Request:
    """A message, and when it is wanted."""

    message: Message
    due: Due


def due_of(
    at_ms: int | None, after_ms: int | None, level: int | None, *, names: str = "--{}"
) -> Due:
    """The one way in which a due time was given. Raises UsageError for none and for several."""
    given = {"at": at_ms, "after": after_ms, "level": level}
    said = [names.format(name) for name, value in given.items() if value is not None]
    if len(said) != 1:
        choice = ", ".join(names.format(name) for name in given)
        found = " and ".join(said) or "none of them"
        raise click.UsageError(f"one of {choice} says when; found {found}")
    if at_ms is not None:
        return AtMs(at_ms)
    return AfterMs(after_ms) if after_ms is not None else AtLevel(level or 0)


def time_due_ms(due: Due, now_ms: int, levels: DelayLevels) -> int:
    """When a message is due that is stored now."""
    match due:
        case AtLevel(level):
            return now_ms + levels.delay_ms(levels.clamp(level))
        case AfterMs(delay_ms):
            return now_ms + delay_ms
        case AtMs(due_ms):
            return due_ms


# --- lines of JSON --------------------------------------------------------------------------------


def requests_of(lines: Iterable[str]) -> list[Request]:
    """The messages of a file of JSON objects, one a line; empty lines are passed over.

    Raises BadParameter for the first line that is no message, so that nothing is stored then.
    """
    requests = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                requests.append(_request(json.loads(line)))
            except json.JSONDecodeError as error:
                problem = f"not JSON: {error.msg} at column {error.colno}"
                raise _bad_line(number, problem) from error
            except UnicodeEncodeError as error:
                raise _bad_line(number, f"{error.object[:64]!r} is not text") from error
            except (click.UsageError, ValueError, RecursionError) as error:
                said = error.message if isinstance(error, click.UsageError) else str(error)
                raise _bad_line(number, said) from error
    return requests


def _bad_line(number: int, problem: str) -> click.BadParameter:
    return click.BadParameter(f"line {number}: {problem}", param_hint=LINES)


def _request(value: Any) -> Request:
    if not isinstance(value, dict):
        raise ValueError("a message is a JSON object")
    for name in value:
        if name not in (*DUE_FIELDS, *OTHER_FIELDS):
            known = ", ".join((*DUE_FIELDS, *OTHER_FIELDS))
            raise ValueError(f"{name!r} is no field of a message; these are: {known}")
    fields = _Fields(value)
    if not fields.of("topic", str):
        raise ValueError("'topic' says where the message goes")
    at = fields.of("at", (str, int))
    after = fields.of("after", str)
    due = due_of(
        None if at is None else Time().convert(str(at), None, None),
        None if after is None else Duration().convert(after, None, None),
        fields.number("level", at_least=1),
        names='"{}"',
    )
    message = Message(
        topic=fields.of("topic", str),
        body=_body(fields),
        tags=fields.of("tags", str) or None,
        keys=_keys(fields.of("keys", (str, list))),
        properties=_properties(fields.of("properties", dict)),
        queue_id=fields.number("queue_id", at_least=0) or 0,
        unique_key=fields.of("unique_key", str) or None,
    )
    return Request(message, due)


@attrs.frozen
class _Fields:
    """The fields of one JSON object, each of a type that is asked for; null is as if absent."""

    _values: Mapping[str, Any]

    def of(self, name: str, types: type | tuple[type, ...]) -> Any:
        value = self._values.get(name)
        if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
            raise ValueError(f"{name!r} cannot be {json.dumps(value)[:64]}")
        str(value or "").encode()  # half a character, which JSON can write, is a ValueError
        return value

    def number(self, name: str, *, at_least: int) -> int | None:
        value: int | None = self.of(name, int)
        if value is not None and value < at_least:
            raise ValueError(f"{name!r} cannot be {value}")
        return value


def _body(fields: _Fields) -> bytes:
    text, encoded = fields.of("body", str), fields.of("body_base64", str)
    if (text is None) == (encoded is None):
        raise ValueError('either "body" or "body_base64" says what is in it')
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


# --- flags ----------------------------------------------------------------------------------------


def message_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The flags of ``schedule`` that say what is stored, and until when."""
    for option in reversed(_MESSAGE_OPTIONS):
        function = option(function)
    return function


_MESSAGE_OPTIONS = (
    click.option("--topic", help="Where the message goes when it is due."),
    click.option("--body", help="What is in it, as text."),
    click.option("--body-file", type=click.File("rb"), help="A file with the body; - is stdin."),
    click.option("--after", "after_ms", type=Duration(), help=f"Wait so long, {DURATION_FORMS}."),
    click.option("--at", "at_ms", type=Time(), help=f"Wait until then, {TIME_FORMS}."),
    click.option("--level", type=click.IntRange(min=1), help="Wait as long as this delay level."),
    click.option("--tags", help="Its tag."),
    click.option("--keys", multiple=True, help="Keys to find it by; can be given several times."),
    click.option(
        "--property",
        "properties",
        type=Setting(),
        multiple=True,
        metavar="KEY=VALUE",
        help="A property of your own; can be given several times.",
    ),
    click.option(
        "--queue-id", type=click.IntRange(min=0), help="Into which queue of the topic, else 0."
    ),
    click.option("--unique-key", help="Its unique key, where it has one; else one is made."),
    click.option(
        LINES,
        type=click.File("r", encoding="utf-8"),
        help="A file of messages instead, one JSON object a line; - is stdin. All of them are"
        " stored, or none.",
    ),
)


def requested(*, lines: IO[str] | None, **flags: Any) -> list[Request]:
    """What the flags of ``schedule`` ask for: one message, or those of a file."""
    if lines is None:
        return [_one_request(**flags)]
    for name, value in flags.items():
        if value not in (None, ()):
            flag = _FLAG_OF.get(name, name.replace("_", "-"))
            raise click.UsageError(f"{LINES} brings the messages; --{flag} does not go with it")
    try:
        return requests_of(lines)
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"not UTF-8: {error}", param_hint=LINES) from error


_FLAG_OF = {"after_ms": "after", "at_ms": "at", "properties": "property"}


def _one_request(
    *,
    topic: str | None,
    body: str | None,
    body_file: IO[bytes] | None,
    after_ms: int | None,
    at_ms: int | None,
    level: int | None,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[tuple[str, str], ...],
    queue_id: int | None,
    unique_key: str | None,
) -> Request:
    if not topic:
        raise click.UsageError(f"--topic says where the message goes, or {LINES} where many do")
    if (body is None) == (body_file is None):
        raise click.UsageError("either --body or --body-file says what is in the message")
    due = due_of(at_ms, after_ms, level)
    texts = [topic, body, tags, unique_key, *keys, *(part for pair in properties for part in pair)]
    for text in texts:
        _require_unicode(text or "")
    message = Message(
        topic=topic,
        body=body.encode() if body is not None else body_file.read() if body_file else b"",
        tags=tags or None,
        keys=tuple(key for words in keys for key in words.split()),
        properties=dict(properties),
        queue_id=queue_id or 0,
        unique_key=unique_key or None,
    )
    return Request(message, due)


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"not text: {text!r}; --body-file takes any bytes") from error
