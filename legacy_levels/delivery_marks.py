# SPDX-License-Identifier: Apache-2.0
"""Delivery marks: up to which offset of the log the levels' offsets cover deliveries.

delayOffset.json holds how far each level was delivered, but not when it was written. After a kill,
copies in the log that it covers look like those that it does not. A mark beside it, among
delaywheel's own files, adds the log's end. There are two marks, each with a checksum of its text:

- The flushed mark was synced after the log.
- The latest mark survives a kill, but not necessarily a loss of power. It may then be ahead of a
  log that has grown again; ``last_head``, a checksum of the last record's head, detects that.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import numpy as np

from message_store.files.small_files import read_small_file, replace_file, write_over
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.consume_queue import Int64Array
from message_store.reading.recovered_end import RecoveredLog
from message_store.writing.log import LiveLog

FLUSHED_NAME = "levels-flushed.json"
LATEST_NAME = "levels-latest.json"

_MARK_BYTES = 4_096
_CHECKSUM = "checksum"

Run = tuple[int, int]
"""The first of some queue offsets that follow each other, and how many they are."""


@attrs.frozen
class DeliveryMark:
    """All deliveries before ``log_end``, and none behind it, are in the offsets.

    ``offsets`` are by level; of what was delivered out of turn behind them, ``done`` has the queue
    offsets of those whose units may not say so, the first and how many, run by run. An opening
    writes them, which knows of them by copies that name no record.
    ``tables`` are checksums of the delayOffset.json that it goes with: before that was written, and
    after. ``ends`` are the queue offsets where the level queues ended. ``last_start`` is where the
    last record before ``log_end`` began, ``last_head`` what tells it from any other. ``table`` is
    the level table in use.
    """

    log_end: int
    offsets: Mapping[int, int]
    tables: tuple[int, ...] = ()
    ends: Mapping[int, int] = attrs.field(factory=dict)
    done: Mapping[int, Sequence[Run]] = attrs.field(factory=dict)
    last_start: int = -1
    last_head: int = 0
    table: str = ""

    def encode(self) -> bytes:
        """The file's text: JSON, and in it a checksum of the JSON without that."""
        facts = attrs.asdict(self)
        return json.dumps({**facts, _CHECKSUM: crc32(json.dumps(facts).encode())}).encode()

    @classmethod
    def decode(cls, text: bytes) -> "DeliveryMark | None":
        """What a file says; None for one that is torn or changed.

        Older files have no checksum.

        >>> mark = DeliveryMark(100, {3: 7}, (1, 2), {3: 9}, {3: [(8, 1)]})
        >>> DeliveryMark.decode(mark.encode()) == mark, DeliveryMark.decode(b'{"log_e')
        (True, None)
        """
        try:
            facts: Any = json.loads(text)
            stored_checksum = facts.pop(_CHECKSUM, None)
            if stored_checksum not in (None, crc32(json.dumps(facts).encode())):
                return None
            mark = cls(
                log_end=int(facts["log_end"]),
                offsets={int(level): int(at) for level, at in facts["offsets"].items()},
                tables=tuple(map(int, facts["tables"])),
                ends={int(level): int(at) for level, at in facts["ends"].items()},
                done={
                    int(level): [(int(first), int(count)) for first, count in runs]
                    for level, runs in facts.get("done", {}).items()
                },
                last_start=int(facts.get("last_start", -1)),
                last_head=int(facts.get("last_head", 0)),
                table=str(facts.get("table", "")),
            )
            numbers = [mark.log_end, mark.last_start, *mark.offsets.values(), *mark.ends.values()]
            numbers += [number for runs in mark.done.values() for run in runs for number in run]
            if mark.table:
                DelayLevels.parse(mark.table)
            return mark if max(map(abs, numbers)) <= LONG_MAX else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def is_of(self, log: LiveLog | RecoveredLog) -> bool:
        """Whether the log still has all that it had then."""
        is_there = log.head_checksum(self.last_start) == self.last_head
        return self.log_end <= log.end and self.last_start >= 0 and is_there


def to_runs(queue_offsets: Int64Array) -> list[Run]:
    """Queue offsets in order, as runs.

    >>> to_runs(np.array([3, 4, 5, 9])), to_runs(np.array([], np.int64))
    ([(3, 3), (9, 1)], [])
    """
    if not len(queue_offsets):
        return []
    firsts = np.append(0, np.flatnonzero(np.diff(queue_offsets) != 1) + 1)
    counts = np.diff(np.append(firsts, len(queue_offsets)))
    return list(zip(queue_offsets[firsts].tolist(), counts.tolist(), strict=True))


def from_runs(runs: Sequence[Run], stop: int) -> Int64Array:
    """What ``to_runs`` was given, as far as it lies before a queue offset.

    >>> from_runs([(3, 3), (9, 10**18)], 11).tolist(), from_runs([], 11).tolist()
    ([3, 4, 5, 9, 10], [])
    """
    limits = [(max(first, 0), min(first + count, stop)) for first, count in runs]
    parts = [np.arange(first, end, dtype=np.int64) for first, end in limits if first < end]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def checksum(table: bytes | None) -> int:
    """What a mark keeps of delayOffset.json; -1 for none."""
    return -1 if table is None else crc32(table)


def read_mark(root: Path, name: str) -> DeliveryMark | None:
    """One of the two marks, where there is one that can be read."""
    text = read_small_file(StoreRoot(root).own / name)
    return None if text is None else DeliveryMark.decode(text)


def write_mark(root: Path, name: str, mark: DeliveryMark, *, is_durable: bool) -> None:
    """Put a mark in place. Raises TargetError."""
    path = StoreRoot(root).own / name
    text = mark.encode().ljust(_MARK_BYTES)
    is_as_long = path.exists() and path.stat().st_size == len(text) == _MARK_BYTES
    if is_as_long and not is_durable:
        write_over(path, text)
    else:
        replace_file(path, text, is_durable=is_durable)


def mark_to_trust(root: Path, log: LiveLog | RecoveredLog) -> DeliveryMark | None:
    """The newest mark that this log bears out; None where there is none.

    What was delivered since is found in the log behind it, whoever did it. The flushed mark was
    synced after the log. It counts unless another record stands where its last one was: there may
    have been none yet, or retention has taken it.
    """
    latest, flushed = read_mark(root, LATEST_NAME), read_mark(root, FLUSHED_NAME)
    believed = [latest] if latest and latest.is_of(log) else []
    if flushed and flushed.log_end <= log.end:
        may_be_checked = flushed.last_head and flushed.last_start >= log.min_offset
        believed += [flushed] if flushed.is_of(log) or not may_be_checked else []
    return max(believed, key=lambda mark: mark.log_end, default=None)


def is_of_a_lost_log(root: Path, table: int, log: LiveLog | RecoveredLog) -> bool:
    """Whether delayOffset.json was written with a mark of which the log has lost the record."""
    latest = read_mark(root, LATEST_NAME)
    return latest is not None and table in latest.tables and not latest.is_of(log)


def level_ends(root: Path, log: LiveLog | RecoveredLog) -> dict[int, int]:
    """Where each level queue ended at least, as the marks know it."""
    latest, flushed = read_mark(root, LATEST_NAME), read_mark(root, FLUSHED_NAME)
    ends: dict[int, int] = {}
    for mark in (flushed, latest if latest and latest.is_of(log) else None):
        for level, end in (mark.ends if mark else {}).items():
            ends[level] = max(end, ends.get(level, 0))
    return ends
