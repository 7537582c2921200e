# SPDX-License-Identifier: Apache-2.0
"""Every error this project raises on purpose, in one tree.

An error keeps its facts as attributes and builds its message from them. Decoders given arbitrary
bytes raise :class:`FormatError` or one of its children, and nothing else.
"""

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from message_store.base.printable import counted


class DelayStoreError(Exception):
    """The root: anything that delaywheel refuses or cannot do.

    ``row`` says which of many messages it is about, from 0; None where there is one, or all.
    """

    row: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle facts and sentence: a worker's error arrives as it was, whatever made it."""
        return _restored, (type(self), self.args, self.__dict__)

    def of_row(self, row: int) -> Self:
        """The same error, which knows its row."""
        self.row = row
        return self


def _restored(
    kind: type[DelayStoreError], args: tuple[Any, ...], facts: dict[str, Any]
) -> DelayStoreError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class FormatError(DelayStoreError):
    """Bytes that are not what the format says, with where they are and what was expected there."""

    def __init__(
        self,
        problem: str,
        *,
        path: Path | str | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        self.problem = problem
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" at offset {self.offset}"
        facts = []
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        if self.found is not None:
            facts.append(f"found {self.found}")
        return f"{where}{self.problem}{at}" + (f" ({', '.join(facts)})" if facts else "")


class BadMagicError(FormatError):
    """The four bytes that name a record's kind are none that we know."""


class TruncatedRecordError(FormatError):
    """A record claims more bytes than are there."""


class ChecksumError(FormatError):
    """A stored checksum is not that of the bytes it covers."""


class BadFieldError(FormatError, ValueError):
    """A field holds a value that the format does not allow."""


class TooLongError(BadFieldError):
    """What is too long to be stored now, or to be delivered later."""


class SourceError(DelayStoreError):
    """A store that cannot be read as one: missing, of a kind we do not read, or in use."""


class UnsupportedStoreError(SourceError):
    """A store whose files we recognise, and for which the command or the engine is not made."""


class PrecisionError(UnsupportedStoreError):
    """Messages wait on a wheel whose slots are ``kept_ms`` wide, and not ``asked_ms``."""

    def __init__(self, where: object, kept_ms: int, asked_ms: int, way_out: str) -> None:
        self.where = where
        self.kept_ms = kept_ms
        self.asked_ms = asked_ms
        super().__init__(
            f"{where}: messages wait on a wheel with slots of {kept_ms} ms, not {asked_ms}; a"
            f" broker would lose them. {way_out}"
        )


class StoreLockedError(SourceError):
    """Somebody holds the store's lock file: another process, a broker usually, or this one.

    ``pid`` is the process; None where the system does not tell.
    """

    def __init__(self, sentence: str, pid: int | None = None) -> None:
        self.pid = pid
        super().__init__(sentence)


class StoreOpenError(StoreLockedError):
    """A process that runs delaywheel has the store open, or this one has. Its files can be read."""


class UncleanStoreError(SourceError):
    """The store was not stopped cleanly: its `abort` file is there."""


class TargetError(DelayStoreError):
    """A place that cannot be written to: not empty, no permission, no space."""


class UnsupportedDelayError(DelayStoreError, ValueError):
    """A delay or due time that the engine cannot keep."""


class DelayLimitError(UnsupportedDelayError):
    """A delay beyond the longest that the wheel was set to take."""


class SharedKeyError(DelayStoreError, ValueError):
    """Several pending messages share what names one of them; the engine cannot move one alone."""

    def __init__(self, count: int, topic: str, unique_key: str) -> None:
        self.count = count
        self.topic = topic
        self.unique_key = unique_key
        super().__init__(
            f"{count} pending messages of {topic} share the unique key {unique_key} and their time;"
            " none of them can be rescheduled alone"
        )


class OtherEngineWarning(UserWarning):
    """A store was opened with an engine of which nothing lies in it, and another's messages do."""


class StoreClosedError(DelayStoreError):
    """The store was used after it was closed."""


class MigrationError(DelayStoreError):
    """A conversion that was refused or went wrong."""


class PlanError(MigrationError):
    """The plan and the world disagree: another source, another now, another set of options."""


class OptionsError(PlanError):
    """An option does not fit the store or the clock, as a level table or a reference time."""


class BadRecordsError(MigrationError):
    """Records that cannot be converted, under the policy that nothing may be left behind.

    ``records`` are values with level, queue_offset, commit_log_offset and reason.
    """

    def __init__(self, records: Sequence[object]) -> None:
        self.records = tuple(records)
        told = counted(len(self.records), "pending record")
        super().__init__(f"{told} cannot be converted; nothing was written")


class RefusedStoresError(MigrationError):
    """Several stores that are refused, each for a reason of its own; ``errors`` has all of them."""

    def __init__(self, errors: Sequence[DelayStoreError]) -> None:
        self.errors = tuple(errors)
        told = counted(len(self.errors), "store is refused", "stores are refused")
        super().__init__("\n".join([f"{told}; nothing was written", *map(str, self.errors)]))


_TOO_MANY_FILES = os.strerror(errno.EMFILE)


def reason_of(error: Exception) -> str:
    """The reason that the system gives; for too many open files also the limit and its command.

    Errors of a library that have the system's text only are understood too.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if not reason.endswith(_TOO_MANY_FILES):  # and not those of the whole system
        return reason
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{reason}: this process may open {limit:,}; raise that limit (`ulimit -n`)"


@contextmanager
def disk_errors(kind: type[DelayStoreError], where: object, verb: str) -> Iterator[None]:
    """Let what the disk refuses be an error of this kind that says where and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{where}: cannot be {verb}: {reason_of(error)}") from error
