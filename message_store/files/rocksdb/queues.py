# SPDX-License-Identifier: Apache-2.0
"""Consume queues in RocksDB (`storeType=defaultRocksDB`), copied into files once, and then read as
any other queue.

The copy is a temporary directory of this process. It has the queues of waiting messages, and of all
others the one with the newest entry, which tells how far the log was dispatched. Limitations: a
process that is killed leaves its copy behind, and 20 bytes a waiting message take room there.

RocketMQ writes these rows without a log of RocksDB's own. After a kill they end where they were
last flushed, all queues at the same record. Rows behind a queue's end are dirt.
RocketMQ: RocksDBConsumeQueueStore (5.5.1).
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import (
    BadFieldError,
    SourceError,
    TruncatedRecordError,
    UnsupportedStoreError,
    reason_of,
)
from message_store.base.forks import belongs_to_this_process
from message_store.files.rocksdb.manifest import POINTER
from message_store.files.rocksdb.view import (
    FamilyView,
    database_files,
    has_database,
    open_families,
)
from message_store.files.segments import holds_queues, list_segments, segment_name
from message_store.files.small_files import is_directory, is_present, read_piece
from message_store.format.message_rules import is_topic_name
from message_store.format.properties import WAITING_TOPICS
from message_store.format.queue_unit import (
    QUEUE_END,
    QUEUE_ROW,
    QUEUE_ROW_KEY_HEAD,
    QUEUE_ROW_KEY_TAIL,
    QUEUE_UNIT,
)

QUEUES = "consumequeue"
SEPARATE_DATABASE = "consumequeue_rocksdb"
"""Where a broker keeps them with `useSeparateStorePathForRocksdbCQ`."""
ROWS, ENDS = "default", "offset"
"""The column families of rows and of the queues' ends."""
DISPATCHED_TO = "CHECKPOINT_TOPIC"
"""In place of a topic: its value says up to where the log was dispatched, and is of no queue."""

_MAX = b"\1max\1"
_QUEUE_ID_BYTES = 4
_FILE_BYTES = 300_000 * QUEUE_UNIT.size

_State: TypeAlias = tuple[tuple[str, int, int, int], ...]


def has_queue_database(root: Path) -> bool:
    """Whether a broker of the store at ``root`` keeps consume queues in RocksDB, alone or besides
    those in files.
    """
    return bool(_databases(root))


def queue_database(root: Path) -> Path | None:
    """The database in which alone the store at ``root`` has its queues; None where files hold them.

    A broker that keeps both kinds assigns offsets by the files, and they survive a kill.
    """
    databases = _databases(root)
    return databases[0] if databases and not holds_queues(root / QUEUES) else None


def _databases(root: Path) -> list[Path]:
    places = root / QUEUES, root / SEPARATE_DATABASE
    return [place for place in places if is_present(place / POINTER)]


def require_readable_queues(root: Path) -> None:
    """Raise SourceError for queues that cannot be told from what is left of a database. Raise
    UnsupportedStoreError for two databases, on which no broker starts, and for one that goes on
    where the queues in files end.
    """
    databases = _databases(root)
    if len(databases) > 1:
        raise UnsupportedStoreError(
            f"{databases[0]} and {databases[1]}: two databases of consume queues; a broker does not"
            " start either. Move away the one that useSeparateStorePathForRocksdbCQ does not name"
        )
    if databases and holds_queues(root / QUEUES):
        _require_newest_in_files(root, databases[0])
    if not databases:
        is_lost = is_directory(root / SEPARATE_DATABASE) and not holds_queues(root / QUEUES)
        for place in (root / SEPARATE_DATABASE, root / QUEUES):
            if has_database(place.resolve()) or (is_lost and place.name == SEPARATE_DATABASE):
                raise SourceError(
                    f"{place / POINTER}: is missing, so that no queue can be read from RocksDB;"
                    " take the database from a backup"
                )


def _require_newest_in_files(root: Path, database: Path) -> None:
    """Raise UnsupportedStoreError where the newest row of a database is not in the files: a broker
    that wrote both was given storeType=defaultRocksDB, and went on without them.

    After a kill either may be behind, and the log tells the rest.
    """
    if is_present(root / "abort"):
        return
    with open_families(database, ENDS) as [ends]:
        newest = max(_ends(ends), default=None)
    if newest is None:
        return
    position = newest.last * QUEUE_UNIT.size
    for segment in list_segments(root / QUEUES / newest.topic / str(newest.queue_id)):
        if segment.start_offset > position:
            break
        unit = read_piece(segment.path, position - segment.start_offset, QUEUE_UNIT.size)
        is_whole = len(unit) == QUEUE_UNIT.size
        offset = QUEUE_UNIT.decode_at(unit, 0)["commit_log_offset"] if is_whole else None
        if offset == newest.commit_log_offset:
            return
    raise UnsupportedStoreError(
        f"{database}: has an entry {newest.last:,} of queue {newest.queue_id} of {newest.topic},"
        f" which the files in {root / QUEUES} have not: a broker went on without them. In a copy of"
        " the store, move their directories away"
    )


def refuse_queue_database(root: Path, why: str) -> None:
    """Raise UnsupportedStoreError, with the reason, where consume queues are in RocksDB."""
    for database in _databases(root):
        raise UnsupportedStoreError(f"{database}: consume queues in RocksDB: {why}")


def queues_directory(root: Path) -> Path:
    """The directory of the queues of the store at ``root``, each as a row of files.

    For queues in RocksDB it is that of a copy, and of another one if the database has changed.
    Raises SourceError for one that cannot be read, BadFieldError for rows that are none,
    UnsupportedStoreError where rocksdict is not installed.
    """
    database = queue_database(root)
    return root / QUEUES if database is None else _COPIES.of(database)


# --- copies ---------------------------------------------------------------------------------------


class _Copies:
    """What this process has copied: of each database the state that it had, and the files made.

    An older copy stays until the process ends, because somebody may be reading it. A copy of which
    somebody cleaned up a part is made once more: its queues would look shorter than they are.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: dict[Path, tuple[_State, Path, list[Path]]] = {}
        self._directories: list[Path] = []
        belongs_to_this_process(self)
        atexit.register(self._remove)

    def of(self, database: Path) -> Path:
        """The directory with the queues of this database."""
        with self._lock:
            # A database that is restored with its times (`cp -a`) has other times of change.
            state = tuple(
                (path.name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
                for path, facts in database_files(database)
            )
            known_state, directory, files = self._made.get(database.absolute(), ((), database, []))
            if known_state != state or sorted(directory.rglob("*")) != files:
                directory = self._copy(database)
                files = sorted(directory.rglob("*"))
                self._made[database.absolute()] = state, directory, files
            return directory

    def _copy(self, database: Path) -> Path:
        try:
            parent = Path(tempfile.mkdtemp(prefix="delaywheel-queues-"))
            self._directories.append(parent)
            directory = parent / QUEUES
            os.mkdir(directory)
            with open_families(database, ROWS, ENDS) as [rows, ends]:
                _copy_queues(rows, ends, directory)
        except OSError as error:
            raise SourceError(
                f"{database}: its queues cannot be copied to {tempfile.gettempdir()}:"
                f" {reason_of(error)}; TMPDIR names another place"
            ) from error
        return directory

    def leave_to_parent(self) -> None:
        """In a child after a fork: the copies are the parent's, which removes them."""
        self._lock = Lock()
        self._made, self._directories = {}, []

    def _remove(self) -> None:
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)


_COPIES = _Copies()


# --- rows -----------------------------------------------------------------------------------------


@attrs.frozen(order=True)
class _End:
    """The end of a queue: where its last message begins, of which topic and queue, its ordinal."""

    commit_log_offset: int
    topic: str
    queue_id: int
    last: int


def _copy_queues(rows: FamilyView, ends: FamilyView, directory: Path) -> None:
    newest: _End | None = None
    for end in _ends(ends):
        newest = end if newest is None else max(newest, end)
        if end.topic in WAITING_TOPICS:
            _copy_queue(rows, end, 0, directory)
    if newest is not None and newest.topic not in WAITING_TOPICS:
        _copy_queue(rows, newest, newest.last, directory)


def _ends(ends: FamilyView) -> Iterator[_End]:
    """The end of each queue that can have a directory, in the order of the keys."""
    for key, value in ends.entries(b""):
        topic, tail = _topic_of(key)
        if topic == DISPATCHED_TO or not tail.startswith(_MAX):
            continue  # where a queue begins is told by the log: units before that are expired
        number = tail.removeprefix(_MAX)
        if len(number) != _QUEUE_ID_BYTES or len(value) != QUEUE_END.size:
            raise BadFieldError("the end of a queue that is none", found=key.hex())
        end = QUEUE_END.decode_at(value, 0)
        queue_id = int.from_bytes(number, "big", signed=True)
        if is_topic_name(topic) and queue_id >= 0 and end["queue_offset"] >= 0:
            yield _End(end["commit_log_offset"], topic, queue_id, end["queue_offset"])


def _topic_of(key: bytes) -> tuple[str, bytes]:
    """The topic of a key, and what stands behind it. Raises BadFieldError."""
    try:
        topic_bytes = QUEUE_ROW_KEY_HEAD.decode_at(key, 0)["topic_bytes"]
    except TruncatedRecordError as error:
        raise BadFieldError("a key that is none", found=key.hex()) from error
    topic_end = QUEUE_ROW_KEY_HEAD.size + topic_bytes
    if not 0 <= topic_bytes <= topic_end < len(key):
        raise BadFieldError("a key that is none", found=key.hex())
    topic = key[QUEUE_ROW_KEY_HEAD.size : topic_end].decode("utf-8", "surrogateescape")
    return topic, key[topic_end:]


def _row_key(topic: str, queue_id: int, queue_offset: int) -> bytes:
    name = topic.encode("utf-8", "surrogateescape")
    head = QUEUE_ROW_KEY_HEAD.encode(topic_bytes=len(name), separator=1)
    tail = QUEUE_ROW_KEY_TAIL.encode(
        separator=1, queue_id=queue_id, separator_2=1, queue_offset=queue_offset
    )
    return head + name + tail


def _copy_queue(rows: FamilyView, end: _End, first: int, directory: Path) -> None:
    """Write the units of a queue from ``first`` to its end. A row that is missing stays empty: such
    a queue is damaged. Raises BadFieldError, OSError.
    """
    files: _QueueFiles | None = None
    last_key = _row_key(end.topic, end.queue_id, end.last)
    queue = directory / end.topic / str(end.queue_id)
    queue.mkdir(parents=True)
    for count, keys, values in rows.blocks(_row_key(end.topic, end.queue_id, first), last_key):
        if len(keys) != count * len(last_key) or len(values) != count * QUEUE_ROW.size:
            raise BadFieldError("rows of a queue that are none", path=queue)
        ordinals = _ordinals(keys, count)
        if files is None:
            files = _QueueFiles(queue, int(ordinals[0]))
        units = np.frombuffer(values, np.uint8).reshape(count, -1)[:, : QUEUE_UNIT.size]
        files.write(ordinals, np.ascontiguousarray(units))
    if files is None:  # all of it is expired: only its end is known
        files = _QueueFiles(queue, end.last + 1)
        files.make(0)


def _ordinals(keys: bytes, count: int) -> NDArray[np.int64]:
    """The queue offsets at the ends of joined keys of one length."""
    tails = np.frombuffer(keys, np.uint8).reshape(count, -1)[:, -8:]
    return np.ascontiguousarray(tails).view(">i8")[:, 0].astype(np.int64)


class _QueueFiles:
    """Writes the units of one queue, in order, into files as long as a broker's."""

    def __init__(self, directory: Path, first: int) -> None:
        self._directory = directory
        self._first = first

    def write(self, ordinals: NDArray[np.int64], units: NDArray[np.uint8]) -> None:
        """Write units at their queue offsets. Raises OSError."""
        at = ordinals - self._first
        per_file = _FILE_BYTES // QUEUE_UNIT.size
        borders = np.flatnonzero((np.diff(at) != 1) | (np.diff(at // per_file) != 0)) + 1
        for run in np.split(np.arange(len(at)), borders):
            number, place = divmod(int(at[run[0]]), per_file)
            descriptor = os.open(self.make(number), os.O_WRONLY | os.O_CLOEXEC)
            try:
                content = units[run[0] : run[-1] + 1].tobytes()
                if os.pwrite(descriptor, content, place * QUEUE_UNIT.size) != len(content):
                    raise OSError("only a part could be written")
            finally:
                os.close(descriptor)

    def make(self, number: int) -> Path:
        """The path of a file, which is made if it is not there. Raises OSError."""
        start = self._first * QUEUE_UNIT.size + number * _FILE_BYTES
        path = self._directory / segment_name(start)
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, _FILE_BYTES)
            finally:
                os.close(descriptor)
        return path
