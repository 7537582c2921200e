# SPDX-License-Identifier: Apache-2.0
"""A broker's configuration text as ``java.util.Properties`` reads it, which is what a broker does.

What a looser reading would miss is a setting that the broker has: ``timerPrecisionMs: 100`` or
``timerPrecisionMs 100`` count as much as ``timerPrecisionMs=100``.
"""

import re
from collections.abc import Iterator

from message_store.base.errors import BadFieldError

_BLANKS = " \t\f"
_NEWLINE = re.compile(r"\r\n|\r|\n")
_LAST_NEWLINE = re.compile(r"(\r\n|\r|\n)\Z")
_ENTRY = re.compile(r"(?P<key>(?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<char>.?))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(content: bytes) -> dict[str, str]:
    r"""The entries of a file, which is Latin-1 to Java; of two with one key the last.

    Raises BadFieldError for a ``\u`` without four hexadecimal digits, on which a broker does not
    start.

    >>> parse_properties(b"# note\n a : 1\nb=2 \\\n   3\nc\\u0041 4 = 5\n")
    {'a': '1', 'b': '2 3', 'cA': '4 = 5'}
    """
    entries = {}
    for line in _logical_lines(content.decode("latin-1")):
        found = _ENTRY.fullmatch(line)
        assert found is not None
        entries[_unescaped(found["key"])] = _unescaped(found["value"])
    return entries


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, each joined with what continues it.

    An odd number of backslashes at its end continues a line; the next one loses its leading blanks.
    """
    whole = ""
    is_continued = False
    for natural in _NEWLINE.split(_LAST_NEWLINE.sub("", text)):
        line = natural.lstrip(_BLANKS)
        if not whole and line.startswith(("#", "!")):
            is_continued = False
            continue
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        whole += line[:-1] if is_continued else line
        if whole and not is_continued:
            yield whole
            whole = ""
    if whole or is_continued:
        yield whole


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    if escape["code"] is not None:
        return chr(int(escape["code"], 16))
    if escape["char"] == "u":
        raise BadFieldError("a \\u without four hexadecimal digits", found=escape.string[:64])
    return _CONTROLS.get(escape["char"], escape["char"])
