# SPDX-License-Identifier: Apache-2.0
"""What people type, made into values: times, durations, levels, settings, paths.

Anything that cannot be understood is a usage error, which names the flag and what it takes.
"""

import errno
import grp
import os
import pwd
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from message_store.base.durations import DURATION_FORMS, TOO_LONG, parse_duration
from message_store.base.errors import BadFieldError
from message_store.format.delay_levels import DelayLevels
from message_store.format.recall_handle import RecallHandle

if TYPE_CHECKING:
    from click import ParamType as ParamType
else:

    class ParamType(click.ParamType):
        """Takes a parameter in every click: click's own class is generic only from 8.4 on."""

        def __class_getitem__(cls, _converted):
            return cls


EPOCH_MS_MIN = 10**11
"""A smaller number of milliseconds is a time before March 1973: somebody meant seconds."""
EPOCH_MS_DIGITS = 13
"""As many as milliseconds have until November 2286."""
TIME_FORMS = "ISO 8601 (UTC where it names no zone) or epoch milliseconds"


class Time(ParamType[int]):
    """ISO 8601 (UTC unless it says otherwise) or epoch milliseconds; becomes epoch milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in milliseconds."""
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return self._epoch_ms(value, param, ctx)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither ISO 8601 nor epoch milliseconds", param, ctx)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)

    def _epoch_ms(
        self, digits: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Milliseconds, unless they would be before 1973, as seconds are, or after 2286."""
        if len(digits) > EPOCH_MS_DIGITS:
            self.fail(
                f"{digits[:32]!r} is beyond the year 2286; milliseconds are wanted", param, ctx
            )
        if int(digits) < EPOCH_MS_MIN:
            self.fail(f"{digits!r} looks like seconds; milliseconds are wanted", param, ctx)
        return int(digits)


class Duration(ParamType[int]):
    """``90s``, ``1h30m``, ``250ms``, ``2d``; becomes milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The duration in milliseconds."""
        try:
            return parse_duration(value)
        except BadFieldError as error:
            what = TOO_LONG if error.problem == TOO_LONG else f"not a duration {DURATION_FORMS}"
            self.fail(f"{value!r} is {what}", param, ctx)


class Handle(ParamType[str]):
    """A recall handle, as ``schedule`` prints it and RocketMQ's own clients get it."""

    name = "handle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The handle, once it is known to be one."""
        try:
            RecallHandle.parse(value)
        except BadFieldError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class LevelRange(ParamType[tuple[int, ...]]):
    """Levels such as ``1-18`` or ``3,5,7-9``; becomes a tuple of numbers."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The levels in order, each once."""
        levels: set[int] = set()
        for part in value.split(","):
            first, _, last = part.partition("-")
            try:
                bounds = int(first), int(last or first)
            except ValueError:
                self.fail(f"{value!r} is not like 1-18 or 3,5,7-9", param, ctx)
            if not 1 <= bounds[0] <= bounds[1] <= DelayLevels.parse().max_level:
                self.fail(f"{part!r} is not within RocketMQ's levels 1 to 18", param, ctx)
            levels |= set(range(bounds[0], bounds[1] + 1))
        return tuple(sorted(levels))


class Place(click.Path):
    """A path, which an empty word is not: it would become the folder that one is in. Nor is what
    no file can ever be at: a name that is too long, links that lead in a circle.
    """

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """The path."""
        if value == "":
            self.fail("an empty path", param, ctx)
        try:
            os.stat(value)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                self.fail(f"{os.fsdecode(value)!r}: {error.strerror}", param, ctx)
        except ValueError:  # a NUL, or half a character, which only a manifest can have
            self.fail(f"{os.fsdecode(value)!r} cannot be a path", param, ctx)
        return super().convert(value, param, ctx)


class LevelTable(ParamType[DelayLevels]):
    """A broker's ``messageDelayLevel``, such as ``1s 5s 10s``."""

    name = "level table"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> DelayLevels:
        """The table."""
        try:
            return DelayLevels.parse(value)
        except BadFieldError as error:
            self.fail(str(error), param, ctx)


class Owner(ParamType[tuple[int, int]]):
    """``USER``, ``USER:GROUP``, by name or number; becomes user and group id."""

    name = "user:group"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The ids; without a group that of the user."""
        user, _separator, group = value.partition(":")
        try:
            known = pwd.getpwuid(int(user)) if _is_id(user) else pwd.getpwnam(user)
            user_id, group_id = known.pw_uid, known.pw_gid
        except (KeyError, ValueError):  # ValueError: a NUL, or half a character
            if not _is_id(user) or not group:
                self.fail(f"{user!r} is no user of this machine", param, ctx)
            user_id, group_id = int(user), -1
        if group:
            try:
                group_id = int(group) if _is_id(group) else grp.getgrnam(group).gr_gid
            except (KeyError, ValueError):
                self.fail(f"{group!r} is no group of this machine", param, ctx)
        return user_id, group_id


def _is_id(text: str) -> bool:
    """Whether this is the number of a user or group; the largest of 32 bits stands for nobody."""
    return re.fullmatch(r"[0-9]{1,10}", text) is not None and int(text) < 2**32 - 1


class Mode(ParamType[int]):
    """Permissions in octal, such as ``640``."""

    name = "octal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bits."""
        if not re.fullmatch(r"0?[0-7]{3}", value):
            self.fail(f"{value!r} is not three octal digits such as 640", param, ctx)
        return int(value, 8)


class Setting(ParamType[tuple[str, str]]):
    """``KEY=VALUE``."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Key and value."""
        key, separator, text = value.partition("=")
        if not separator or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text
