# SPDX-License-Identifier: Apache-2.0
"""What people type, made into values: times, durations, levels, settings, paths.

A text that cannot be understood is a usage error, which names the flag and what it takes.
"""

import errno
import grp
import os
import pwd
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from message_store.base.durations import DURATION_FORMS, TOO_LONG, parse_duration
from message_store.base.errors import BadFieldError, DelayStoreError
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


HIGHEST_PORT = 65_535
LOOPBACK = "127.0.0.1"

T = TypeVar("T")
Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


def all_of(*options: Decorator) -> Decorator:
    """Many options as one, in the order in which help lists them."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@contextmanager
def errors_of_flag(flag: str | None = None) -> Iterator[None]:
    """Let an error be one of how the verb was called; ``flag`` where click does not know it."""
    try:
        yield
    except DelayStoreError as error:
        raise click.BadParameter(str(error), param_hint=flag) from error


class Parsed(ParamType[T]):
    """A parameter whose text ``parse`` turns into a value. It raises BadParameter, or an error of
    ours; click adds the flag. ``name`` is what help calls the value.
    """

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> T:
        """The value; a default may be one already."""
        with errors_of_flag():
            return self._parse(value) if isinstance(value, str) else value


def parse_time(text: str) -> int:
    """Epoch milliseconds from ISO 8601 (UTC unless it says otherwise) or epoch milliseconds."""
    if text.isascii() and text.isdigit():
        if len(text) > EPOCH_MS_DIGITS:
            raise click.BadParameter(
                f"{text[:32]!r} is beyond the year 2286; milliseconds are wanted"
            )
        if int(text) < EPOCH_MS_MIN:
            raise click.BadParameter(f"{text!r} looks like seconds; milliseconds are wanted")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        what = f"{text!r} is neither ISO 8601 nor epoch milliseconds"
        raise click.BadParameter(what) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    time_ms = round(moment.timestamp() * 1000)
    if time_ms < 0:
        raise click.BadParameter(f"{text!r} is before 1970: brokers have no such times")
    return time_ms


def parse_length(text: str) -> int:
    """Milliseconds from ``90s``, ``1h30m``, ``250ms``, ``2d``."""
    try:
        return parse_duration(text)
    except BadFieldError as error:
        what = TOO_LONG if error.problem == TOO_LONG else f"not a duration {DURATION_FORMS}"
        raise click.BadParameter(f"{text!r} is {what}") from error


def _parse_handle(text: str) -> str:
    """A recall handle, as ``schedule`` prints it and RocketMQ's own clients get it."""
    RecallHandle.parse(text)
    return text


def _parse_levels(text: str) -> tuple[int, ...]:
    """Levels from ``1-18`` or ``3,5,7-9``, in order, each once."""
    levels: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            bounds = int(first), int(last or first)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is not like 1-18 or 3,5,7-9") from error
        if bounds[0] > bounds[1]:
            raise click.BadParameter(f"{part!r} runs backwards: write the smaller level first")
        if not 1 <= bounds[0] <= bounds[1] <= DelayLevels.parse().max_level:
            raise click.BadParameter(f"{part!r} is not within RocketMQ's levels 1 to 18")
        levels |= set(range(bounds[0], bounds[1] + 1))
    return tuple(sorted(levels))


def _parse_owner(text: str) -> tuple[int, int]:
    """User and group id from ``USER`` or ``USER:GROUP``; the default group is the user's."""
    user, _separator, group = text.partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if _is_id(user) else pwd.getpwnam(user)
        user_id, group_id = entry.pw_uid, entry.pw_gid
    except (KeyError, ValueError) as error:  # ValueError: a NUL, or half a character
        if not _is_id(user) or not group:
            raise click.BadParameter(f"{user!r} is no user of this machine") from error
        user_id, group_id = int(user), -1
    if group:
        try:
            group_id = int(group) if _is_id(group) else grp.getgrnam(group).gr_gid
        except (KeyError, ValueError) as error:
            raise click.BadParameter(f"{group!r} is no group of this machine") from error
    return user_id, group_id


def _is_id(text: str) -> bool:
    """Whether this is the number of a user or group; the largest of 32 bits stands for nobody."""
    return re.fullmatch(r"[0-9]{1,10}", text) is not None and int(text) < 2**32 - 1


def _parse_mode(text: str) -> int:
    """Permissions in octal, such as ``640``."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise click.BadParameter(f"{text!r} is not three octal digits such as 640")
    return int(text, 8)


def _parse_setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


def _parse_paths(text: str) -> tuple[Path, ...]:
    """Directories, separated by commas as in a broker's configuration."""
    paths = tuple(Path(each.strip()) for each in text.split(",") if each.strip())
    if not paths or "\0" in text:
        raise click.BadParameter(f"{text!r} names no directory")
    return paths


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= HIGHEST_PORT):
        raise click.BadParameter(f"{text!r}: expected HOST:PORT, or the port alone")
    return host.strip("[]") or LOOPBACK, int(port)


ADDRESS = Parsed("host:port", _parse_address)
TIME = Parsed("time", parse_time)
DURATION = Parsed("duration", parse_length)
HANDLE = Parsed("handle", _parse_handle)
LEVELS = Parsed("levels", _parse_levels)
LEVEL_TABLE = Parsed("level table", DelayLevels.parse)
OWNER = Parsed("user:group", _parse_owner)
MODE = Parsed("octal", _parse_mode)
SETTING = Parsed("key=value", _parse_setting)
PATHS = Parsed("directories", _parse_paths)


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
