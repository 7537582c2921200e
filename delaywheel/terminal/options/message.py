# SPDX-License-Identifier: Apache-2.0
"""The flags of ``schedule`` that say which message is stored, and until when."""

import itertools
from typing import IO, Any

import click

from delaywheel.terminal.options.message_lines import (
    LINES,
    Request,
    due_of,
    requests_of,
    require_tags,
)
from delaywheel.terminal.options.types import DURATION, SETTING, TIME, TIME_FORMS, all_of
from message_store.base.durations import DURATION_FORMS
from message_store.format.message import Message
from message_store.intake.asked import asks

due_options = all_of(
    click.option("--after", "after_ms", type=DURATION, help=f"Wait so long, {DURATION_FORMS}."),
    click.option("--at", "at_ms", type=TIME, help=f"Wait until then, {TIME_FORMS}."),
    click.option("--level", type=click.IntRange(min=1), help="Wait as long as this delay level."),
)
"""The flags that say until when a message waits: exactly one of them."""

message_options = all_of(
    click.option("--topic", help="Topic of the message."),
    click.option("--body", help="Body of the message, as text."),
    click.option("--body-file", type=click.File("rb"), help="A file with the body; - is stdin."),
    due_options,
    click.option("--tags", help="Its tag."),
    click.option("--keys", multiple=True, help="Keys to find it by; can be given several times."),
    click.option(
        "--property",
        "properties",
        type=SETTING,
        multiple=True,
        metavar="KEY=VALUE",
        help="A property; can be given several times. DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS and"
        " TIMER_DELIVER_MS say when, as for a broker, in place of --at, --after and --level.",
    ),
    click.option("--queue-id", type=click.IntRange(min=0), help="Queue of the topic. Default: 0."),
    click.option("--unique-key", help="Unique key. Default: generated."),
    click.option(
        LINES,
        type=click.File("r", encoding="utf-8-sig"),
        help="A file of messages instead, one JSON object a line; - is stdin. Either all of them"
        " are stored or none.",
    ),
)
"""The flags of ``schedule`` that say what is stored, and until when."""


def requested(
    *, lines: IO[str] | None, start_deliver_time_alias: bool, **flags: Any
) -> list[Request]:
    """What the flags of ``schedule`` ask for: one message, or those of a file."""
    if lines is None:
        return [_one_request(start_deliver_time_alias=start_deliver_time_alias, **flags)]
    for name, value in flags.items():
        if value not in (None, ()):
            flag = _FLAG_OF.get(name, name.replace("_", "-"))
            raise click.UsageError(f"{LINES} brings the messages; --{flag} does not go with it")
    try:
        return requests_of(lines, start_deliver_time_alias=start_deliver_time_alias)
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"not UTF-8: {error}", param_hint=LINES) from error


_FLAG_OF = {"after_ms": "after", "at_ms": "at", "properties": "property"}


def _one_request(
    *,
    start_deliver_time_alias: bool,
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
        raise click.UsageError(f"missing --topic (or use {LINES} to schedule several messages)")
    if (body is None) == (body_file is None):
        raise click.UsageError("give exactly one of --body and --body-file")
    require_tags(tags, "--tags")
    names = dict(properties)
    does_ask = asks(names, start_deliver_time_alias=start_deliver_time_alias)
    due = due_of(at_ms, after_ms, level, asks=does_ask)
    for text in (topic, tags, unique_key, *keys, *itertools.chain(*properties)):
        _require_unicode(text or "", "")
    _require_unicode(body or "", "; --body-file takes any bytes")
    try:
        message = Message(
            topic=topic,
            body=body.encode() if body is not None else body_file.read() if body_file else b"",
            tags=tags,
            keys=tuple(key for words in keys for key in words.split()),
            properties=names,
            queue_id=queue_id or 0,
            unique_key=unique_key,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return Request(message, due)


def _require_unicode(text: str, way_out: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"not UTF-8: {text!r}{way_out}") from error
