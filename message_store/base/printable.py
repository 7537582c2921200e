# SPDX-License-Identifier: Apache-2.0
"""Values made for people: times with their distance from now, text from a store made safe to show.

A topic or a key is chosen by whoever sends the message. Printed as it is, it could move the cursor,
colour a terminal, or turn the direction of what follows.
"""

import json
import os
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
DURATION_UNITS_MS = (("h", 3_600_000), ("min", 60_000), ("s", 1_000))
"""The units of ``duration``, to a tenth; shorter times are given in milliseconds."""


def printable(text: str) -> str:
    r"""The text with control characters, bidirectional marks and lone surrogates escaped.

    >>> printable("a\x1b[31mb\u202ec")
    'a\\x1b[31mb\\u202ec'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    r"""The value as JSON in which other scripts can be read: only what ``printable`` escapes is
    escaped, as JSON does it.

    >>> print(json_text({"tags": "取消", "keys": "a\u202eb\x7f"}))
    {"tags": "取消", "keys": "a\u202eb\u007f"}
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    # Outside of strings JSON has nothing but printable characters, and the line feeds of indents.
    return "".join(char if char.isprintable() or char == "\n" else _in_json(char) for char in text)


def _in_json(char: str) -> str:
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def shell_word(text: str) -> str:
    r"""The text as one word of a command to copy, which stays what it is when it is printed.

    What would be escaped on its way to a terminal is written as the bytes that it is, in the form
    that bash, zsh and ksh read.

    >>> print(shell_word("two words"), shell_word("a'\nb"))
    'two words' $'a\'\x0ab'
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_dollar_quotes, text)) + "'"


def _in_dollar_quotes(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))


def counted(number: int | None, one: str, many: str = "") -> str:
    """A number, ? for one that is not known, with what it counts; ``many`` unless that is ``one``
    with an s.

    >>> counted(1, "message"), counted(2_000, "message waits", "messages wait")
    ('1 message', '2,000 messages wait')
    """
    told = "?" if number is None else f"{number:,}"
    return f"{told} {one if number == 1 else many or f'{one}s'}"


def listed(names: Iterable[str]) -> str:
    """Names as a sentence has them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def iso_time(time_ms: int) -> str:
    """A time in UTC, with milliseconds only where it has some.

    >>> iso_time(1_767_323_045_000), iso_time(1_767_323_045_120)
    ('2026-01-02T03:04:05Z', '2026-01-02T03:04:05.120Z')
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms since 1970"
    has_part = time_ms % 1000 != 0
    text = moment.isoformat(timespec="milliseconds" if has_part else "seconds")
    return text.removesuffix("+00:00") + "Z"


def span(duration_ms: int) -> str:
    """A duration in its two largest units.

    >>> span(250_000), span(93_600_000), span(400)
    ('4m 10s', '1d 2h', '0s')
    """
    parts = []
    left = abs(duration_ms)
    for unit, unit_ms in _UNITS_MS:
        count, left = divmod(left, unit_ms)
        parts.append((count, unit))
    first = next((place for place, (count, _unit) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count) or "0s"


def duration(length_ms: float) -> str:
    """A duration in one unit, for figures that stand beside each other.

    >>> duration(999), duration(5_200), duration(890_000), duration(-3)
    ('999 ms', '5.2 s', '14.8 min', '-3 ms')
    """
    for unit, unit_ms in DURATION_UNITS_MS:
        if abs(length_ms) >= unit_ms:
            return f"{length_ms / unit_ms:,.1f} {unit}"
    return f"{length_ms:,.0f} ms"


def size(length: float) -> str:
    """A length in bytes, in the largest unit that fits.

    >>> size(1_023), size(1_536), size(5 << 30)
    ('1,023 bytes', '1.5 KiB', '5.0 GiB')
    """
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if length >= unit_bytes:
            return f"{length / unit_bytes:,.1f} {unit}"
    return f"{length:,.0f} bytes"


def when(time_ms: int, now_ms: int) -> str:
    """A time to the second, and how far that is from now.

    >>> when(1_767_323_045_900, 1_767_323_045_900 - 250_000)
    '2026-01-02T03:04:05Z (in 4m 10s)'
    """
    second = iso_time(time_ms // 1000 * 1000)
    distance_ms = time_ms - now_ms
    if abs(distance_ms) < 1000:
        return f"{second} (now)"
    how_far = f"in {span(distance_ms)}" if distance_ms > 0 else f"{span(distance_ms)} ago"
    return f"{second} ({how_far})"
