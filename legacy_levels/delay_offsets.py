# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json: how far each level has been delivered, read and written as a broker does.

A level maps to the queue offset at which delivery continues; a level that is missing begins at 0.

Reading. RocketMQ: ConfigManager#load. A broker takes the main file, or its `.bak` if the main file
is missing, empty or damaged. With neither, it delivers everything in the queues again. Limitation:
a file of blanks counts as empty here; brokers before 5.4 read it as an empty table.

Writing. RocketMQ: ScheduleMessageService#persist. A broker writes ten seconds after its start,
every ten seconds from then on, and when it stops. 4.9 writes a new file beside the old one, 5.3
writes over it, later versions move the old one away first. All leave the previous text as `.bak`.
Here each file is replaced in one step. If only the process may die, and the text is not shorter,
one call writes over the file. A kill at any point leaves a readable main file.
"""

import enum
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import attrs

from message_store.base.errors import BadFieldError, FormatError, SourceError
from message_store.files.small_files import read_small_file, replace_file, write_over
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import (
    ConfigDialect,
    Damage,
    JsonObject,
    JsonValue,
    Reading,
    examine,
    write,
)
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import INT_MAX, LONG_MAX, LONG_MIN, parse_long
from message_store.reading.unfinished_change import moved_past

FILE_NAME = "delayOffset.json"
_TABLE = "offsetTable"
_VERSION = "dataVersion"


class OffsetsChoice(enum.StrEnum):
    """Which file to believe: as a broker would, or one of them whatever a broker would say."""

    AUTO = "auto"
    MAIN = "main"
    BACKUP = "bak"
    NONE = "none"


@attrs.frozen
class DataVersion:
    """How often a 5.x broker has changed the table, and when last."""

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


@attrs.frozen
class OffsetsFile:
    """One of the two files as it was found.

    ``offsets`` is what it says, or what could be saved of a damaged one; None when that is nothing.
    ``problem`` says in words why a broker passes it over; None for a file that it takes.
    """

    path: Path
    offsets: Mapping[int, int] | None
    problem: str | None
    damage: Damage | None = None
    dialect: ConfigDialect | None = None
    data_version: DataVersion | None = None

    @property
    def is_missing(self) -> bool:
        """Whether a broker finds nothing there to read, and so nothing to object to."""
        return self.offsets is None and self.damage in (None, Damage.EMPTY)


@attrs.frozen
class DelayOffsets:
    """The table in force: level to the next queue offset, and where it comes from.

    ``moved`` are the offsets before which a change of ours left nothing to deliver, where no whole
    file is taken: the change has written both of them. No level goes on before them.
    """

    offsets: Mapping[int, int]
    source: OffsetsChoice
    main: OffsetsFile
    backup: OffsetsFile
    moved: Mapping[int, int] = attrs.field(factory=dict)

    def at_least(self, offsets: Mapping[int, int]) -> "DelayOffsets":
        """The same, where no level goes on before one of these."""
        return attrs.evolve(self, offsets=_at_least(self.offsets, offsets)) if offsets else self

    def offset_of(self, level: int) -> int:
        """Where delivery of a level goes on; 0 when the table does not name it."""
        return self.offsets.get(level, 0)

    @property
    def dialect(self) -> ConfigDialect | None:
        """Whose handwriting the file is, when it is exactly that of a broker."""
        return self.backup.dialect if self.source is OffsetsChoice.BACKUP else self.main.dialect

    @property
    def data_version(self) -> DataVersion | None:
        """The data version in force; 4.9 writes none."""
        file = self.backup if self.source is OffsetsChoice.BACKUP else self.main
        return file.data_version

    @property
    def broker_choice(self) -> OffsetsChoice | None:
        """Which of the files a broker takes; None where it would not start."""
        return _broker_choice(self.main, self.backup)

    @property
    def taken(self) -> str:
        """Where the table comes from and why, as a sentence."""
        if self.source is self.broker_choice:
            return f"taken: {self.source}, as a broker would"
        broker = self.broker_choice
        instead = "would not start on these files" if broker is None else f"would take {broker}"
        return f"taken: {self.source}, as --offsets said; a broker {instead}"

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the files, as sentences; a missing `.bak` alone is nothing wrong."""
        sentences = [self.main.problem]
        if self.main.problem is not None or not self.backup.is_missing:
            sentences.append(self.backup.problem)
        return tuple(problem for problem in sentences if problem is not None)

    def by_choice(self) -> dict[OffsetsChoice, Mapping[int, int]]:
        """What each choice would take as the table, for those that are possible."""
        files = {OffsetsChoice.MAIN: self.main, OffsetsChoice.BACKUP: self.backup}
        tables = {
            choice: file.offsets if file.problem is None else _at_least(file.offsets, self.moved)
            for choice, file in files.items()
            if file.offsets is not None
        }
        return {**tables, OffsetsChoice.NONE: _at_least({}, self.moved)}


def _at_least(offsets: Mapping[int, int], floor: Mapping[int, int]) -> Mapping[int, int]:
    return {**offsets, **{level: max(at, offsets.get(level, 0)) for level, at in floor.items()}}


def read_delay_offsets(
    root: Path, choice: OffsetsChoice | str = OffsetsChoice.AUTO
) -> DelayOffsets:
    """The offsets that a broker would start from, or those of the file that ``choice`` names.

    A file chosen by name is used as far as it can be read: of a truncated one the levels before the
    damage, of one with a stale tail its first value. Raises SourceError where a broker would not
    start (a damaged `.bak` behind a main file that cannot be used), and when the file chosen by
    name holds nothing. Where no whole file is taken, what a change of ours has moved stays moved.
    """
    choice = OffsetsChoice(choice)
    main_path = StoreRoot(root).config_file(FILE_NAME)
    main = _read_file(main_path)
    backup = _read_file(main_path.with_name(FILE_NAME + ".bak"))
    if choice is OffsetsChoice.AUTO:
        choice = _broker_choice(main, backup) or _refuse(main, backup)
    tables = {OffsetsChoice.MAIN: main, OffsetsChoice.BACKUP: backup}
    offsets = tables[choice].offsets if choice in tables else MappingProxyType({})
    if offsets is None:
        others = [other for other, table in tables.items() if table.offsets is not None]
        way_out = f"; those of --offsets {others[0]} can" if others else ""
        raise SourceError(f"no offsets can be read: {tables[choice].problem}{way_out}")
    is_whole = choice in tables and tables[choice].problem is None
    moved = {} if is_whole else moved_past(StoreRoot(root))
    return DelayOffsets(offsets, choice, main, backup, moved).at_least(moved)


def _broker_choice(main: OffsetsFile, backup: OffsetsFile) -> OffsetsChoice | None:
    if main.problem is None:
        return OffsetsChoice.MAIN
    if backup.problem is None:
        return OffsetsChoice.BACKUP
    if backup.is_missing:
        return OffsetsChoice.NONE
    return None


def _refuse(main: OffsetsFile, backup: OffsetsFile) -> NoReturn:
    raise SourceError(
        f"{main.problem}; {backup.problem}; a broker would not start: choose main, bak or none"
    )


def _read_file(path: Path) -> OffsetsFile:
    content = read_small_file(path)
    if content is None:
        return OffsetsFile(path, None, f"{path}: not there")
    reading = examine(content, path=path)
    if reading.damage is None:
        try:
            return _whole_file(path, content, reading.value)
        except FormatError as error:
            return OffsetsFile(path, None, f"{path}: {error}", Damage.NOT_JSON)
    return _damaged_file(path, reading)


def _whole_file(path: Path, content: bytes, value: JsonValue) -> OffsetsFile:
    offsets, version = decode_delay_offsets(value)
    return OffsetsFile(
        path,
        MappingProxyType(offsets),
        None,
        dialect=_dialect_of(content, offsets, version),
        data_version=version,
    )


def _damaged_file(path: Path, reading: Reading) -> OffsetsFile:
    try:
        saved, version = decode_delay_offsets(reading.value)
    except FormatError:
        saved, version = {}, None
    words = f"{path}: {reading.damage}" if reading.damage else f"{path}: damaged"
    if reading.error is not None and reading.error.offset is not None:
        words += f" (at byte {reading.error.offset})"
    offsets = MappingProxyType(saved) if saved else None
    return OffsetsFile(path, offsets, words, reading.damage, data_version=version)


def decode_delay_offsets(value: JsonValue) -> tuple[dict[int, int], DataVersion | None]:
    """Level to queue offset, and the data version, of a parsed text.

    Quoted numbers count as numbers, other members are skipped. Raises FormatError where a
    broker's reader objects.

    >>> decode_delay_offsets({"offsetTable": {1: 10, "2": "20"}})[0]
    {1: 10, 2: 20}
    """
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        raise BadFieldError("not an object", found=type(value).__name__)
    table = value.get(_TABLE, {})
    if not isinstance(table, dict):
        raise BadFieldError(f"{_TABLE} is not an object", found=type(table).__name__)
    offsets = {}
    for key, number in table.items():
        level = _whole_number(key)
        if not -INT_MAX - 1 <= level <= INT_MAX:
            raise BadFieldError("a level beyond 32 bits", found=level)
        offsets[level] = _whole_number(number)
    return offsets, _decode_version(value.get(_VERSION))


def _decode_version(value: JsonValue) -> DataVersion | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadFieldError(f"{_VERSION} is not an object", found=type(value).__name__)
    return DataVersion(
        state_version=_whole_number(value.get("stateVersion") or 0),
        timestamp_ms=_whole_number(value.get("timestamp") or 0),
        counter=_whole_number(value.get("counter") or 0),
    )


def _whole_number(value: JsonValue) -> int:
    if isinstance(value, str):
        return parse_long(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadFieldError("not a whole number", found=repr(value)[:64])
    number = int(value)
    if not LONG_MIN <= number <= LONG_MAX:
        raise BadFieldError("a number beyond 64 bits", found=repr(value)[:64])
    return number


def encode_delay_offsets(
    offsets: Mapping[int, int],
    dialect: ConfigDialect,
    data_version: DataVersion | None = None,
) -> bytes:
    """The text of delayOffset.json as a broker of ``dialect`` writes it, byte for byte.

    4.9 has no data version and leaves ``data_version`` out.

    >>> encode_delay_offsets({1: 1}, ConfigDialect.ROCKETMQ_4_9).hex()
    '7b0a09226f66667365745461626c65223a7b313a310a097d0a7d'
    """
    version = data_version or DataVersion()
    members: JsonObject = {}
    if dialect.has_state_version:
        members[_VERSION] = {
            "counter": version.counter,
            "stateVersion": version.state_version,
            "timestamp": version.timestamp_ms,
        }
    table: JsonObject = dict(offsets.items())
    members[_TABLE] = table
    return write(members, dialect)


def _dialect_of(
    content: bytes, offsets: Mapping[int, int], version: DataVersion | None
) -> ConfigDialect | None:
    """The newest dialect that would have written exactly this text."""
    for dialect in reversed(ConfigDialect):
        if encode_delay_offsets(offsets, dialect, version) == content:
            return dialect
    return None


UPDATES_A_VERSION = 200
"""So many deliveries make a new data version (`delayOffsetUpdateVersionStep`)."""


class OffsetsWriter:
    """Writes the table of one store.

    ``text`` is what the main file holds, None when there is none; ``is_durable`` says that it is
    known to be on the disk.
    """

    def __init__(
        self, root: Path, dialect: Dialect, offsets_read: DelayOffsets, now_ms: int
    ) -> None:
        self._path = StoreRoot(root).config_file(FILE_NAME)
        self._dialect = dialect
        self._version = offsets_read.main.data_version or DataVersion(timestamp_ms=now_ms)
        self._updates = 0
        self._lengths: dict[Path, int] = {}
        self._is_torn = offsets_read.main.problem is not None
        self.text = read_small_file(self._path)
        self.is_durable = self.text is None

    def count(self, deliveries: int, now_ms: int) -> None:
        """So many offsets moved."""
        steps, self._updates = divmod(self._updates + deliveries, UPDATES_A_VERSION)
        if steps:
            counter = self._version.counter + steps
            self._version = attrs.evolve(self._version, counter=counter, timestamp_ms=now_ms)

    def encode(self, offsets: Mapping[int, int]) -> bytes:
        """The text for these offsets, level to queue offset."""
        return encode_delay_offsets(offsets, self._dialect.config, self._version)

    def write(self, text: bytes, *, is_durable: bool) -> None:
        """Put the text in place and the one before into `.bak`. Raises TargetError.

        A text that no broker can read is not kept: its `.bak` may be the only whole one.
        """
        if self.text not in (None, text) and not self._is_torn:
            self._put(self._path.with_name(FILE_NAME + ".bak"), self.text, is_durable)
        self._put(self._path, text, is_durable)
        self.text, self._is_torn, self.is_durable = text, False, is_durable

    def _put(self, path: Path, text: bytes, is_durable: bool) -> None:
        if is_durable or len(text) < self._lengths.get(path, len(text) + 1):
            replace_file(path, text, is_durable=is_durable)
        else:
            write_over(path, text)
        self._lengths[path] = len(text)
