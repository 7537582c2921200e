# SPDX-License-Identifier: Apache-2.0
"""The files of a store without their content: sizes, version, wrong lengths and gaps."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import attrs

from legacy_levels.delay_offsets import OffsetsFile
from message_store.base.errors import SourceError
from message_store.files.config_files import TOPICS, read_config
from message_store.files.log_row import open_log
from message_store.files.rocksdb.queues import queue_database
from message_store.files.segments import Segment, SegmentReader, list_directories, list_segments
from message_store.files.small_files import (
    is_directory,
    is_ordinary_file,
    is_present,
    read_small_file,
)
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import engines_in, is_hierarchical
from message_store.writing.queue_set import usual_queue_bytes
from message_store.writing.settings import StoreSettings
from timer_wheel.format.checkpoint import TIMER_CHECKPOINT_NAME
from timer_wheel.format.metrics import TIMER_METRICS_NAME
from timer_wheel.format.timer_log import units_per_file

ROCKETMQ_4 = "rocketmq-4"
ROCKETMQ_5 = "rocketmq-5"
HIERARCHICAL_WHEEL = "delaywheel-hierarchy"
"""A store of delaywheel's own, on which no broker starts."""
TIME_INDEX = "delaywheel-time-index"
"""A store of delaywheel's own, of which a broker delivers nothing."""
UNKNOWN_FORMAT = "unknown"
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system's own."""


@attrs.frozen
class FilesOf:
    """One entry of the store directory: files in it, their length, and what the disk gives them."""

    name: str
    files: int
    size_bytes: int
    disk_bytes: int


@attrs.frozen
class FormatGuess:
    """Which version's files these look like, and what says so."""

    format: str
    evidence: tuple[str, ...]


def guess_format(store: StoreRoot, offsets: tuple[OffsetsFile, ...]) -> FormatGuess:
    """The version of the broker that last wrote to a store, as its files show it; that it is a
    hierarchical wheel's, where it is.
    """
    is_hierarchy = is_hierarchical(store)
    is_time_index = engines_in(store) == ("time-index",)
    marks = {
        "there is a time index, of which a broker delivers nothing": is_time_index,
        "there is a hierarchical wheel, on which no broker starts": is_hierarchy,
        "consume queues are in RocksDB": queue_database(store.path) is not None,
        "there is a timer wheel": is_present(store.timer_wheel) and not is_hierarchy,
        "there is a timer log": bool(list_segments(store.timer_log)),
        "there is config/timercheck": is_present(store.config_file(TIMER_CHECKPOINT_NAME)),
        "there is config/timermetrics": is_present(store.config_file(TIMER_METRICS_NAME)),
        "delayOffset.json counts its versions": any(
            file.data_version is not None for file in offsets
        ),
        "topics.json knows attributes": _topics_have_attributes(store),
        "abort holds a process id": bool(
            is_ordinary_file(store.abort) and read_small_file(store.abort)
        ),
    }
    evidence = tuple(sentence for sentence, is_true in marks.items() if is_true)
    if is_time_index:
        return FormatGuess(TIME_INDEX, evidence)
    if evidence:
        return FormatGuess(HIERARCHICAL_WHEEL if is_hierarchy else ROCKETMQ_5, evidence)
    if any(file.offsets is not None for file in offsets):
        return FormatGuess(ROCKETMQ_4, ("delayOffset.json is written as 4.x writes it",))
    if read_config(store.path, TOPICS).value:
        return FormatGuess(ROCKETMQ_4, ("topics.json is written as 4.x writes it",))
    return FormatGuess(UNKNOWN_FORMAT, ("there are no configuration files to tell by",))


def _topics_have_attributes(store: StoreRoot) -> bool:
    table = read_config(store.path, TOPICS).value.get("topicConfigTable")
    entries = table.values() if isinstance(table, dict) else ()
    return any(isinstance(entry, dict) and "attributes" in entry for entry in entries)


def count_files(store: StoreRoot) -> tuple[FilesOf, ...]:
    """Every entry of the store directory with what lies below it; links are not followed.

    Raises SourceError where the disk refuses.
    """
    try:
        return tuple(
            _files_of(path) for path in sorted(store.path.iterdir()) if not path.is_symlink()
        )
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _files_of(path: Path) -> FilesOf:
    facts = [file.stat(follow_symlinks=False) for file in _files_below(path)]
    return FilesOf(
        name=path.name,
        files=len(facts),
        size_bytes=sum(fact.st_size for fact in facts),
        disk_bytes=sum(fact.st_blocks * _BLOCK_BYTES for fact in facts),
    )


def _files_below(path: Path) -> Iterator[Path]:
    if not is_directory(path):
        yield path
    for parent, _directories, names in os.walk(path):
        yield from (Path(parent, name) for name in sorted(names))


@attrs.frozen
class RowFault:
    """What is wrong with a row of files: the file of a wrong length, or the row with a gap."""

    path: Path
    problem: str
    is_gap: bool = False


def file_rows(store: StoreRoot) -> Iterator[SegmentReader]:
    """Every row of files of a store, as far as most of its files tell with their right length.
    Nothing is opened yet. Queues in RocksDB are no rows of files.
    """
    yield open_log(store, _usual_length(open_log(store).segments))
    timer_bytes = _usual_length(list_segments(store.timer_log))
    if timer_bytes and not units_per_file(timer_bytes):
        timer_bytes = StoreSettings().timer_log_file_bytes
    yield SegmentReader(store.timer_log, timer_bytes)
    if queue_database(store.path) is not None:
        return
    queue_bytes = usual_queue_bytes(store) or StoreSettings().queue_file_bytes
    for topic in list_directories(store.consume_queues):
        for queue in list_directories(topic):
            yield SegmentReader(queue, queue_bytes)


def _usual_length(segments: Iterable[Segment]) -> int | None:
    """The length that most files have; None when no length is the most frequent."""
    ranked = Counter(segment.length_bytes for segment in segments).most_common(2)
    is_clear = len(ranked) == 1 or (len(ranked) == 2 and ranked[0][1] > ranked[1][1])
    return ranked[0][0] if is_clear else None


def row_faults(row: SegmentReader, *, is_open: bool = False) -> Iterator[RowFault]:
    """Files of a wrong length in a row, and files that are missing in it. The last one may be in
    the making where somebody has the store open.
    """
    for segment in row.misfits:
        if is_open and segment == row.segments[-1]:
            continue
        problem = f"{segment.length_bytes:,} bytes long, not {row.file_bytes:,}"
        yield RowFault(segment.path, problem)
    for before, after in pairwise(row.segments):
        end = before.start_offset + max(before.length_bytes, row.file_bytes)
        if end < after.start_offset:
            problem = f"a file is missing between {before.path.name} and {after.path.name}"
            yield RowFault(after.path.parent, problem, is_gap=True)


def log_gaps(store: StoreRoot) -> list[str]:
    """Where files of the commit log are missing between others, as sentences."""
    with next(file_rows(store)) as row:
        return [_sentence(fault) for fault in row_faults(row) if fault.is_gap]


def row_problems(store: StoreRoot, *, is_open: bool = False) -> Iterator[str]:
    """Files of a wrong length or missing ones, in every row of a store, as sentences."""
    for row in file_rows(store):
        with row:
            for fault in row_faults(row, is_open=is_open):
                yield _sentence(fault)


def _sentence(fault: RowFault) -> str:
    effect = "" if fault.is_gap else ": a broker would not start on it"
    return f"{fault.path}: {fault.problem}{effect}"
