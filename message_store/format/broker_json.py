# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's configuration texts: what fastjson reads, and byte for byte what it writes.

The texts look like JSON and are none: integer keys stand without quotes.

- :func:`examine` reads a text as a broker does, and says why brokers refuse it.
- :func:`parse` takes only what a broker takes.
- :func:`write` makes the text that a given broker version would have made.

The rules were tried with the jars of 4.9.7, 5.3.3, 5.4.0 and 5.5.0. Where those differ (single
words as keys, a text of blanks only) the stricter one is followed.
"""

import enum
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import attrs

from message_store.base.errors import BadFieldError, FormatError, TruncatedRecordError
from message_store.format.java_numbers import parse_long

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | JsonObject | None"
JsonObject: TypeAlias = "dict[str | int, JsonValue]"

_MAX_DEPTH = 100
_END_MARKS = "\0\x1a"
_BLANKS = re.compile(r"(?:[ \t\r\n\f\b]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)
_WORD = re.compile(r"[a-z]+")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_STRING = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_MUST_ESCAPE = re.compile(r'["\\\x00-\x1f]')
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPES = {sign: "\\" + code for code, sign in _ESCAPED.items()} | {'"': '\\"', "\\": "\\\\"}


class Damage(enum.StrEnum):
    """Kinds of damage to a configuration file, in the words that people are shown."""

    EMPTY = "empty"
    NUL_FILLED = "filled with NUL bytes"
    TRUNCATED = "truncated"
    STALE_TAIL = "followed by other text"
    NOT_UTF8 = "not UTF-8"
    NOT_JSON = "not what a broker writes"


@attrs.frozen
class Reading:
    """The value of a text, and why a broker would refuse it.

    ``value`` is whole when ``damage`` is None or STALE_TAIL (the first complete value then). Of a
    TRUNCATED or NOT_JSON text it is what stood whole before the damage, containers left open
    included; None when nothing did. ``error`` says where.
    """

    value: JsonValue
    damage: Damage | None = None
    error: FormatError | None = None


def examine(text: bytes, *, path: Path | None = None) -> Reading:
    """Read a text, damaged or not; never raises.

    >>> examine(b'{"offsetTable":{1:10,2:2').value
    {'offsetTable': {1: 10}}
    >>> examine(b'{"offsetTable":{1:9}}}').damage.value
    'followed by other text'
    """
    if not text.strip(b" \t\r\n"):
        return Reading(None, Damage.EMPTY, TruncatedRecordError("the file is empty", path=path))
    if not text.strip(b"\0"):
        problem = BadFieldError("the file holds nothing but NUL bytes", path=path, found=len(text))
        return Reading(None, Damage.NUL_FILLED, problem)
    parser = _Parser(text, path)
    try:
        parser.read_all()
    except FormatError as error:
        return Reading(parser.root, _damage(text, error, parser), error)
    return Reading(parser.root)


def parse(text: bytes, *, path: Path | None = None) -> JsonValue:
    """The value of a text that a broker would accept; raises FormatError for any other."""
    reading = examine(text, path=path)
    if reading.error is not None:
        raise reading.error
    return reading.value


def _damage(text: bytes, error: FormatError, parser: "_Parser") -> Damage:
    if parser.is_complete:
        return Damage.STALE_TAIL
    try:
        text.decode()
    except UnicodeDecodeError:
        return Damage.NOT_UTF8
    return Damage.TRUNCATED if isinstance(error, TruncatedRecordError) else Damage.NOT_JSON


class _Parser:
    """Recursive descent over one text; ``root`` grows as it goes, so that damage costs little."""

    def __init__(self, text: bytes, path: Path | None) -> None:
        decoded = text.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
        self._text = decoded.rstrip(_END_MARKS)
        if not self._text.lstrip().startswith(("{", "[")):
            self._text += "\n"  # a lone number or word is whole where the text ends
        self._shift = len(text) - len(decoded.encode("utf-8", "surrogateescape"))
        self._path = path
        self._place = 0
        self.root: JsonValue = None
        self.is_complete = False

    def read_all(self) -> None:
        holder: list[JsonValue] = []
        try:
            self._value(holder.append, 0)
        finally:
            self.root = holder[0] if holder else None
        self.is_complete = True
        self._skip_blanks()
        if self._place < len(self._text):
            raise self._error("text goes on behind the end of the value")

    def _error(self, problem: str) -> FormatError:
        if self._place >= len(self._text):
            offset = self._byte_offset(len(self._text))
            return TruncatedRecordError("the text breaks off", path=self._path, offset=offset)
        found = repr(self._text[self._place : self._place + 20].encode("utf-8", "replace"))[1:]
        offset = self._byte_offset(self._place)
        return BadFieldError(problem, path=self._path, offset=offset, found=found)

    def _byte_offset(self, place: int) -> int:
        return self._shift + len(self._text[:place].encode("utf-8", "surrogateescape"))

    def _skip_blanks(self) -> None:
        found = _BLANKS.match(self._text, self._place)
        self._place = found.end() if found else self._place

    def _next(self) -> str:
        self._skip_blanks()
        if self._place >= len(self._text):
            raise self._error("")
        return self._text[self._place]

    def _value(self, keep: Callable[[JsonValue], None], depth: int) -> None:
        sign = self._next()
        if depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        if sign == "{":
            self._object(keep, depth)
        elif sign == "[":
            self._list(keep, depth)
        elif sign in _STRING:
            keep(self._string(sign))
        elif found := _WORD.match(self._text, self._place):
            self._finish_token(found)
            if found[0] not in _WORDS:
                raise self._error("an unknown word")
            keep(_WORDS[found[0]])
            self._place = found.end()
        else:
            keep(self._number())

    def _object(self, keep: Callable[[JsonValue], None], depth: int) -> None:
        members: JsonObject = {}
        keep(members)
        self._place += 1
        while self._next() != "}":
            key = self._key()
            if self._next() != ":":
                raise self._error("no colon behind a key")
            self._place += 1
            self._value(_Member(members, key), depth + 1)
            self._comma("}")
        self._place += 1

    def _list(self, keep: Callable[[JsonValue], None], depth: int) -> None:
        items: list[JsonValue] = []
        keep(items)
        self._place += 1
        while self._next() != "]":
            self._value(items.append, depth + 1)
            self._comma("]")
        self._place += 1

    def _comma(self, closing: str) -> None:
        sign = self._next()
        if sign == ",":
            self._place += 1
        elif sign != closing:
            raise self._error("neither a comma nor an end")

    def _key(self) -> str | int:
        sign = self._next()
        if sign in _STRING:
            return self._string(sign)
        number = self._number()
        if not isinstance(number, int):
            raise self._error("a key that is no whole number")
        return number

    def _string(self, quote: str) -> str:
        found = _STRING[quote].match(self._text, self._place)
        if found is None:
            self._place = len(self._text)
            raise self._error("")
        self._place = found.end()
        return _unescape(found[1])

    def _number(self) -> int | float:
        found = _NUMBER.match(self._text, self._place)
        if found is None:
            raise self._error("neither a value nor a key")
        self._finish_token(found)
        if found[1] or found[2]:
            value: int | float = float(found[0])
        else:
            try:
                value = parse_long(found[0])
            except BadFieldError as error:
                raise self._error("a number beyond 64 bits") from error
        self._place = found.end()
        return value

    def _finish_token(self, found: re.Match[str]) -> None:
        """A number or word that the end of the text cuts off may have been longer."""
        if found.end() >= len(self._text):
            self._place = len(self._text)
            raise self._error("")


@attrs.frozen
class _Member:
    """Puts a value under its key as soon as it begins."""

    members: JsonObject
    key: str | int

    def __call__(self, value: JsonValue) -> None:
        self.members[self.key] = value


def _unescape(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(_escaped, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)


class ConfigDialect(enum.Enum):
    """Whose text to write: the oldest broker version of each way of writing."""

    ROCKETMQ_4_9 = "4.9"
    ROCKETMQ_5_3 = "5.3"
    ROCKETMQ_5_4 = "5.4"
    ROCKETMQ_5_5 = "5.5"

    @property
    def has_state_version(self) -> bool:
        """Whether a data version counts states too; then delayOffset.json has a data version."""
        return self is not ConfigDialect.ROCKETMQ_4_9

    @property
    def is_fastjson2(self) -> bool:
        """Whether integer keys stand on lines of their own."""
        return self in (ConfigDialect.ROCKETMQ_5_4, ConfigDialect.ROCKETMQ_5_5)


def write(value: JsonValue, dialect: ConfigDialect = ConfigDialect.ROCKETMQ_5_5) -> bytes:
    """The text that a broker of ``dialect`` writes for ``value``; no line end at its end.

    Members keep the order given, but for integer keys, which go in the order of Java's hash table.
    Members that are None are left out. Raises BadFieldError for a number that JSON has no way to
    say.

    >>> write({"offsetTable": {1: 10, 2: 20}}, ConfigDialect.ROCKETMQ_4_9)
    b'{\\n\\t"offsetTable":{1:10,2:20\\n\\t}\\n}'
    """
    return _text(value, dialect, 0).encode()


def java_key_order(keys: Iterable[int]) -> list[int]:
    """Integer keys as a ``ConcurrentHashMap(32)`` that grew to hold them walks through them.

    >>> java_key_order([64, 1, 63])
    [64, 1, 63]
    """
    listed = sorted(keys)
    buckets = 64
    while len(listed) >= buckets - buckets // 4:
        buckets *= 2
    return sorted(listed, key=lambda key: (key % buckets, key))


def _text(value: JsonValue, dialect: ConfigDialect, depth: int) -> str:
    if isinstance(value, dict):
        return _object_text(value, dialect, depth)
    if isinstance(value, list):
        items = [_text(item, dialect, depth + 1) for item in value]
        return _lines("[]", items, dialect, depth)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadFieldError("a number that cannot be written", found=value)
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)


def _object_text(members: JsonObject, dialect: ConfigDialect, depth: int) -> str:
    given = {key: member for key, member in members.items() if member is not None}
    numbers = [key for key in given if isinstance(key, int)]
    if numbers and len(numbers) == len(given):
        given = {key: given[key] for key in java_key_order(numbers)}
    parts = [
        f"{key if isinstance(key, int) else _quoted(key)}:{_text(member, dialect, depth + 1)}"
        for key, member in given.items()
    ]
    if numbers and not dialect.is_fastjson2:
        return "{" + ",".join(parts) + "\n" + "\t" * depth + "}"
    return _lines("{}", parts, dialect, depth)


def _lines(brackets: str, parts: list[str], dialect: ConfigDialect, depth: int) -> str:
    if not parts and dialect is not ConfigDialect.ROCKETMQ_5_4:  # which writes an empty line
        return brackets
    inner = "\n" + "\t" * (depth + 1)
    text = inner + ("," + inner).join(parts)
    return brackets[0] + text + "\n" + "\t" * depth + brackets[1]


def _quoted(text: str) -> str:
    return '"' + _MUST_ESCAPE.sub(_escape, text.encode("utf-8", "replace").decode()) + '"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"
