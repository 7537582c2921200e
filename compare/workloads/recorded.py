# SPDX-License-Identifier: Apache-2.0
"""Workloads that really happened: the backlog of a store, and a trace of arrivals and due times."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import numpy as np

from compare.workloads.made_up import LONGEST_DAYS, LONGEST_MS, START_MS
from compare.workloads.workload import NUMBER_BYTES, Workload
from message_store.base.errors import SourceError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.small_files import read_small_file

RELATIVE_BELOW_MS = 10**11
"""Smaller numbers in a trace count from its beginning; larger ones are epoch milliseconds."""
_EPOCH_ENDS_MS = 10**13
_COLUMNS = ("arrival", "due", "topic", "body_bytes")
_PLAIN_TOPIC = re.compile(r"(?!rmq_|RMQ_|SCHEDULE_TOPIC|TBW102)[A-Za-z0-9_-]{1,100}")


def backlog(
    *,
    source: str,
    store_ms: Int64s,
    due_ms: Int64s,
    level: Int64s,
    topics: Sequence[str],
    body_bytes: Int64s,
    unique_keys: Sequence[str | None] = (),
) -> tuple[Workload, tuple[str, ...]]:
    """The backlog of a store, as it was put, and the unique keys of its messages by number.

    Each message arrives when it was stored, and asks for its level (0: for a time). Contents are
    made up, sizes are kept.

    A topic that applications cannot have gets another name. Raises SourceError for nothing.
    """
    if not len(due_ms):
        raise SourceError(f"{source}: nothing waits there")
    order = np.argsort(np.minimum(store_ms, due_ms), kind="stable")
    arrival_ms = np.minimum(store_ms, due_ms)[order]
    names = list(dict.fromkeys(topics))
    numbers = {name: number for number, name in enumerate(names)}
    index = int64s([numbers[name] for name in topics])
    keys = tuple(unique_keys[row] or "" for row in order.tolist()) if unique_keys else ()
    workload = Workload(
        name="backlog",
        start_ms=int(arrival_ms[0]),
        arrival_ms=arrival_ms,
        due_ms=due_ms[order],
        level=level[order],
        topic=index[order],
        body_bytes=np.maximum(NUMBER_BYTES, body_bytes)[order],
        topics=tuple(_plain(name, number) for number, name in enumerate(names)),
        source=source,
    )
    return workload, keys


def _plain(topic: str, number: int) -> str:
    return topic if _PLAIN_TOPIC.fullmatch(topic) else f"race-{number}"


@attrs.frozen
class _Row:
    arrival_ms: int
    due_ms: int
    topic: str
    body_bytes: int


def trace(path: Path, *, body_bytes: int, most: int | None = None) -> Workload:
    """A CSV of ``arrival,due`` and, where they are there, ``topic`` and ``body_bytes``; the first
    line may name its columns, in any order.

    Times are ISO 8601, epoch milliseconds, or milliseconds from the beginning; a line has two
    points in time or two numbers from the beginning. What is due before it arrives is overdue. At
    most the first ``most`` lines are taken. Raises SourceError, with the line, for what cannot be
    understood.
    """
    content = read_small_file(path)
    if content is None:
        raise SourceError(f"{path}: no such file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: no text: byte {error.start} is not UTF-8") from error
    rows: list[_Row] = []
    for row in _rows(path, text, body_bytes):
        if most is not None and len(rows) == most:
            break
        rows.append(row)
    if not rows:
        raise SourceError(f"{path}: holds no messages")
    rows.sort(key=lambda row: row.arrival_ms)
    if rows[-1].arrival_ms - rows[0].arrival_ms > LONGEST_MS:
        raise SourceError(f"{path}: arrivals lie more than {LONGEST_DAYS:,} days apart")
    names = list(dict.fromkeys(row.topic for row in rows))
    numbers = {name: number for number, name in enumerate(names)}
    return Workload(
        name="trace",
        start_ms=rows[0].arrival_ms,
        arrival_ms=[row.arrival_ms for row in rows],
        due_ms=[row.due_ms for row in rows],
        level=np.zeros(len(rows), np.int64),
        topic=[numbers[row.topic] for row in rows],
        body_bytes=[row.body_bytes for row in rows],
        topics=tuple(_plain(name, number) for number, name in enumerate(names)),
        source=str(path),
    )


def _rows(path: Path, text: str, body_bytes: int) -> Iterator[_Row]:
    columns: dict[str, int] = dict(zip(_COLUMNS, range(len(_COLUMNS)), strict=True))
    for line, cells in _lines(path, text):
        if not cells or cells[0].startswith("#"):
            continue
        if line == 1 and (named := _header(cells)):
            columns = named
            continue
        arrival, due, topic, length = (_cell(cells, columns.get(name)) for name in _COLUMNS)
        try:
            arrival_ms, due_ms = _times_ms(arrival, due)
        except ValueError as error:
            raise SourceError(f"{path}: line {line}: {error}") from error
        problem = length or str(body_bytes)
        size = int(problem) if re.fullmatch(r"[0-9]{1,9}", problem) else 0
        if not NUMBER_BYTES <= size <= 4 << 20:
            expected = f"a body has {NUMBER_BYTES} bytes to 4 MiB"
            raise SourceError(f"{path}: line {line}: {expected}, not {problem[:40]}")
        yield _Row(arrival_ms, due_ms, topic or "race-0", size)


def _lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, whatever sign ends it, and its number from 1."""
    try:
        yield from enumerate(csv.reader(io.StringIO(text, newline=None)), start=1)
    except csv.Error as error:
        raise SourceError(f"{path}: cannot be read as CSV: {error}") from error


def _cell(cells: list[str], place: int | None) -> str:
    return cells[place].strip() if place is not None and place < len(cells) else ""


def _header(cells: list[str]) -> dict[str, int] | None:
    """Where each column is, if these are names; ``arrival_ms`` and ``due_ms`` are known too."""
    names = [cell.strip().lower().removesuffix("_ms") for cell in cells]
    if "arrival" in names and "due" in names:
        return {name: place for place, name in enumerate(names) if name in _COLUMNS}
    return None


def _times_ms(arrival: str, due: str) -> tuple[int, int]:
    """Both as epoch milliseconds; raises ValueError for what is no time, or none beside the other.

    What counts from the trace's beginning says nothing beside a point in time.
    """
    times_ms = _time_ms(arrival), _time_ms(due)
    are_relative = _is_relative(arrival), _is_relative(due)
    if are_relative[0] != are_relative[1]:
        relative, point = (arrival, due) if are_relative[0] else (due, arrival)
        message = f"{relative!r} counts from the beginning, and {point[:40]!r} is a point in time"
        raise ValueError(f"{message}: a line has two of one kind")
    if abs(times_ms[1] - times_ms[0]) > LONGEST_MS:
        raise ValueError(f"due more than {LONGEST_DAYS:,} days from its arrival")
    return times_ms


def _is_relative(text: str) -> bool:
    return text.isdecimal() and int(text) < RELATIVE_BELOW_MS


def _time_ms(text: str) -> int:
    """Epoch milliseconds; raises ValueError for what is no time."""
    moment_ms = _moment_ms(text)
    if not RELATIVE_BELOW_MS <= moment_ms < _EPOCH_ENDS_MS:
        raise ValueError(f"{text[:40]!r} is not within the years 1973 to 2286")
    return moment_ms


def _moment_ms(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,15}", text):
        number = int(text)
        return START_MS + number if number < RELATIVE_BELOW_MS else number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text[:40]!r} is neither ISO 8601 nor milliseconds"
        raise ValueError(message) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000)
