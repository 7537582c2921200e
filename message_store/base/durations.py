# SPDX-License-Identifier: Apache-2.0
"""Durations as people write them, such as ``90s``, ``1h30m``, ``250ms`` or ``2d``."""

import re

from message_store.base.errors import BadFieldError

DAY_MS = 86_400_000
DURATION_FORMS = "such as 90s, 1h30m, 250ms or 2d"
DURATION_PATTERN = r"(?:[0-9]{1,12}(?:ms|[smhd]))+"
TOO_LONG = "too long for a duration"
_ANY_LENGTH = re.compile(r"(?:[0-9]+(?:ms|[smhd]))+")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_PART = re.compile(r"([0-9]+)(ms|[smhd])")


def parse_duration(text: str) -> int:
    """The duration in milliseconds, all its parts added up. Raises BadFieldError.

    >>> parse_duration("1h30m"), parse_duration("250ms")
    (5400000, 250)
    """
    if _ANY_LENGTH.fullmatch(text) and not re.fullmatch(DURATION_PATTERN, text):
        raise BadFieldError(TOO_LONG, found=repr(text))
    if not re.fullmatch(DURATION_PATTERN, text):
        raise BadFieldError("no duration", expected=DURATION_FORMS, found=repr(text))
    return sum(int(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
