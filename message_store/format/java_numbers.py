# SPDX-License-Identifier: Apache-2.0
"""Java's arithmetic where Python's differs: 32-bit wrap-around, String.hashCode, Long.parseLong."""

from functools import lru_cache

from message_store.base.errors import BadFieldError

INT_MAX = 2**31 - 1
LONG_MIN = -(2**63)
LONG_MAX = 2**63 - 1


def wrap_int32(value: int) -> int:
    """``value`` as Java's int keeps it.

    >>> wrap_int32(2**31), wrap_int32(-2**31 - 1)
    (-2147483648, 2147483647)
    """
    return (value + 2**31) % 2**32 - 2**31


@lru_cache(maxsize=4096)
def string_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 code units, wrapped to 32 bits, signed.

    Cached, because a store asks for the same tags and topics again and again and this loop costs 50
    ns a character.

    >>> string_hash("TagA"), string_hash("polygenelubricants"), string_hash("\N{GRINNING FACE}")
    (2598919, -2147483648, 1772899)
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return wrap_int32(value)


def parse_long(text: str) -> int:
    """``Long.parseLong``: an optional sign and digits only, within 64 bits.

    Raises BadFieldError for anything else; unlike Python's ``int`` neither spaces nor underscores
    are accepted.

    >>> parse_long("+17"), parse_long("-1")
    (17, -1)
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or len(digits) > 200:
        raise BadFieldError("not a whole number", found=repr(text[:64]))
    value = int(text)
    if not LONG_MIN <= value <= LONG_MAX:
        raise BadFieldError("a number beyond 64 bits", found=text[:64])
    return value
