# SPDX-License-Identifier: Apache-2.0
"""Where everything lies under a store root, and its two files ``lock`` and ``abort``."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import (
    DelayStoreError,
    SourceError,
    StoreLockedError,
    TargetError,
    disk_errors,
    reason_of,
)
from message_store.files.dledger import (
    MEMBER_PREFIX,
    NO_LINK,
    entries_directories,
    readable_entries,
)
from message_store.files.places import Places, places_of
from message_store.files.rocksdb.queues import (
    QUEUES,
    queue_database,
    queues_directory,
    require_readable_queues,
)
from message_store.files.segments import (
    holds_queues,
    list_directories,
    list_segments,
    require_whole_row,
)
from message_store.files.small_files import (
    is_directory,
    is_ordinary_file,
    is_present,
    replace_file,
    sync_directory,
    sync_file,
)
from message_store.files.store_lock import StoreLock
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC, WAITING_TOPICS
from message_store.format.queue_unit import QUEUE_UNIT

COMMIT_LOG_FILE_BYTES = 1 << 30
QUEUE_FILE_BYTES = 300_000 * QUEUE_UNIT.size
TIMER_LOG_FILE_BYTES = 100 << 20
_LOCK_TEXT = b"lock"

_NAME_ITS_PLACE = (
    ". Verbs that read a source find a log in another place by --broker-conf or --commit-log;"
    " `delaywheel plain` makes a store with all parts in one place"
)


def _stores_within(path: Path) -> str:
    """Which directories of this one are stores, to be put behind a sentence; nothing for none."""
    members, stores = [], []
    with suppress(SourceError):
        for store in (each / name for each in list_directories(path) for name in ("", "store")):
            inner = [each.name for each in list_directories(store)]
            if any(name.startswith(MEMBER_PREFIX) for name in inner):
                members.append(str(store))
            elif "commitlog" in inner:
                stores.append(str(store))
    if members:
        return f"; members of a DLedger group are in it, give one of them: {', '.join(members)}"
    return f"; stores are in it, give one of them: {', '.join(stores)}" if stores else ""


@attrs.frozen
class Below:
    """A path of this name below another path that its owner has."""

    name: str
    above: str = "path"

    def __get__(self, owner: Any, _kind: object = None) -> Path:
        return Path(getattr(owner, self.above), self.name)


@attrs.frozen
class StoreRoot:
    """The directory of a broker's store; paths only, nothing is opened or made. But queues that lie
    in RocksDB are copied into files when somebody asks where they are.

    ``places`` are those of its parts that its broker keeps elsewhere: what is given, or what
    ``placed`` names around the call that makes this.
    """

    path: Path = attrs.field(converter=Path)
    places: Places = attrs.field(
        default=attrs.Factory(lambda self: places_of(self.path), takes_self=True)
    )

    timer_log = Below("timerlog")
    """The chain units of the wheel."""
    timer_wheel = Below("timerwheel")
    """The slots of the wheel."""
    checkpoint = Below("checkpoint")
    """The store's own checkpoint."""
    abort = Below("abort")
    """There while the store is open, and after a crash."""
    lock = Below("lock")
    """Locked while a broker runs."""
    config = Below("config")
    """The parent of the JSON configuration files."""
    own = Below("delaywheel")
    """What delaywheel keeps in a target: report, settings, quarantine. Brokers ignore it."""
    group_journal = Below("consumers", "own")
    """What consumer groups acknowledged since consumerOffset.json was written."""
    staging = Below("staging", "own")
    """Where a store is made that is not finished yet."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """The root, and those of its parts that lie elsewhere."""
        return (self.path, *self.places.elsewhere)

    @property
    def commit_log(self) -> Path:
        """The log of all records; the first of its directories, if it has several."""
        return self.commit_logs[0]

    @property
    def commit_logs(self) -> tuple[Path, ...]:
        """All directories of the log: readers need them all, by ``open_log``."""
        return self.places.commit_logs or (self.path / "commitlog",)

    @property
    def entries(self) -> tuple[Path, ...]:
        """All directories of a DLedger member's log, if it is one's. Raises SourceError."""
        return entries_directories(self.path, self.places.entries)

    @property
    def consume_queues(self) -> Path:
        """The parent of all consume queues; of those in RocksDB, of a copy (``rocksdb_queues``).
        Raises what ``queues_directory`` does.
        """
        return self.places.consume_queues or queues_directory(self.path)

    def config_file(self, name: str) -> Path:
        """A configuration file, such as ``topics.json``."""
        return self.config / name

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        """The directory of one consume queue."""
        return self.consume_queues / topic / str(queue_id)

    def consume_queue_ext(self, topic: str, queue_id: int) -> Path:
        """The directory of a queue's extension file, where `enableConsumeQueueExt` was on."""
        return self.path / "consumequeue_ext" / topic / str(queue_id)

    def level_queue(self, level: int) -> Path:
        """The consume queue of a delay level (from 1)."""
        return self.consume_queue(LEVEL_TOPIC, level - 1)

    def timer_queue(self) -> Path:
        """The consume queue that feeds the wheel."""
        return self.consume_queue(TIMER_TOPIC, 0)

    @property
    def was_stopped_cleanly(self) -> bool:
        """Whether no `abort` file says otherwise."""
        return not is_present(self.abort)

    @property
    def lacks_newest_entries(self) -> bool:
        """Whether its queues are in RocksDB and its broker was killed: they end where they were
        last flushed, and a broker that starts reads the log from there.
        """
        return not self.was_stopped_cleanly and queue_database(self.path) is not None

    def require_readable(self) -> None:
        """Raise SourceError unless this is a store directory of a kind that we read.

        What is recognised and not read is named as such (UnsupportedStoreError): reading on would
        find nothing and report a store full of messages as empty.
        """
        try:
            self._require_readable()
        except OSError as error:
            place = error.filename or self.path
            raise SourceError(f"{place}: cannot be read: {reason_of(error)}") from error

    def _require_readable(self) -> None:
        if not self.path.exists():
            raise SourceError(
                f"{self.path}: no such directory; expected a broker's store directory"
            )
        if not self.path.is_dir():
            raise SourceError(f"{self.path}: not a directory; expected a broker's store directory")
        names = set(os.listdir(self.path))
        entries = readable_entries(self.path, self.places.entries, self.commit_logs)
        elsewhere = self.places.elsewhere
        if "commitlog" not in names and not entries and not self.places.commit_logs:
            raise SourceError(
                f"{self.path}: not a store directory: there is no commitlog/ in it"
                + (_stores_within(self.path) or _NAME_ITS_PLACE)
            )
        queues = self.places.consume_queues or self.path / QUEUES
        logs = (*self.commit_logs, *entries)
        parts = (*logs, queues, self.config, self.timer_log)
        self.require_inside(*(each for each in parts if each not in elsewhere))
        require_readable_queues(self.path)
        self._require_no_links(*logs, self.timer_log)
        for row in (self.places.commit_logs, self.places.entries):
            require_whole_row(row)
        for topic in WAITING_TOPICS:
            self._require_no_links(queues / topic)
            self._require_no_links(queues.with_name("consumequeue_ext") / topic)

    @property
    def has_lost_log(self) -> bool:
        """Whether there are consume queues, and no file of the log that they lead to."""
        logs = (*self.commit_logs, *self.entries)
        return not any(map(list_segments, logs)) and holds_queues(self.consume_queues)

    def require_log(self) -> None:
        """Raise SourceError where the log is lost: no pending message can be read."""
        if self.has_lost_log:
            raise SourceError(
                f"{self.commit_log}: no commit log file is there, but consume queues are; take the"
                " log from a backup, and start no broker: it would delete them"
            )

    def require_inside(self, *paths: Path) -> None:
        """Raise SourceError for a link out of the store, but for one to where a part was named."""
        root = self.path.resolve()
        linked = [each.resolve() for each in self.places.linked]
        for path in paths:
            try:
                end = path.resolve()
            except RuntimeError as error:
                raise SourceError(f"{path}: a link that leads to itself") from error
            if not end.is_relative_to(root) and end not in linked:
                raise SourceError(
                    f"{path}: leads outside the store, to {end}; it is followed if --broker-conf or"
                    " a flag names that directory"
                )

    def _require_no_links(self, *directories: Path) -> None:
        """Raise SourceError for a link below these, which reading would pass over: the messages
        behind it would be missed silently. Raises OSError for what cannot be looked into.
        """

        def pass_over_missing(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        for directory in directories:
            for parent, inner, files in os.walk(directory, onerror=pass_over_missing):
                for path in (Path(parent, name) for name in (*inner, *files)):
                    if path.is_symlink():
                        raise SourceError(f"{path}: {NO_LINK}")

    @contextmanager
    def shared_lock(self) -> Iterator[None]:
        """Hold the store's lock file for reading, so that no broker starts meanwhile.

        It keeps out who takes the lock as Java does (a POSIX record lock on the first byte). A
        store without a lock file, or on a disk that knows no locks, is read without. Raises
        StoreLockedError when a broker or a writer holds it, in this process too, and SourceError
        when it cannot be opened: then nothing says that none does.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.lock, flags)
        except FileNotFoundError:
            descriptor = None
        except OSError as error:
            raise SourceError(
                f"{self.lock}: cannot be opened, so that a broker may be running:"
                f" {reason_of(error)}"
            ) from error
        if descriptor is None:
            yield
            return
        lock = StoreLock(descriptor)
        try:
            try:
                lock.take(fcntl.F_RDLCK)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise lock.refusal(self.lock, fcntl.F_RDLCK) from error
            yield
        finally:
            lock.release()

    def is_in_use(self) -> bool:
        """Whether somebody has the store open for writing; asked without keeping anybody out."""
        try:
            with self.shared_lock():
                return False
        except StoreLockedError:
            return True

    def take_lock(self) -> StoreLock:
        """Hold the store for writing, against brokers and all who read under ``shared_lock``.

        Raises StoreLockedError when somebody holds it, this process included, and TargetError when
        the lock file cannot be made or the disk knows no locks.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with disk_errors(TargetError, self.lock, "opened"):
            descriptor = os.open(self.lock, flags, 0o644)
        lock = StoreLock(descriptor)
        try:
            lock.take(fcntl.F_WRLCK)
            os.pwrite(descriptor, _LOCK_TEXT, 0)
        except OSError as error:
            is_held = error.errno in (errno.EACCES, errno.EAGAIN)
            refusal = lock.refusal(self.lock, fcntl.F_WRLCK) if is_held else None
            lock.release()
            if refusal is not None:
                raise refusal from error
            raise TargetError(f"{self.lock}: cannot be locked: {reason_of(error)}") from error
        except BaseException:  # Ctrl-C: as long as it is open it keeps everybody out
            lock.release()
            raise
        return lock

    def mark_open(self, abort_text: bytes) -> None:
        """Make the `abort` file, durably: from here on the store counts as not stopped cleanly."""
        replace_file(self.abort, abort_text)

    def sync_names(self) -> None:
        """Come back when the names of small files and directories are on the disk, and what groups
        acknowledged: who opens the store relies on what it sees, and a process that was killed may
        not have waited for it. Raises TargetError.
        """
        try:
            with suppress(FileNotFoundError):
                sync_file(self.group_journal)
        except OSError as error:
            what = f"cannot be synced: {reason_of(error)}"
            raise TargetError(f"{self.group_journal}: {what}") from error
        own = (*list_directories(self.own), self.own)
        for directory in (*own, self.config, self.path, self.path.parent):
            try:
                sync_directory(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                if directory == self.path.parent and isinstance(error, PermissionError):
                    continue  # it need not be ours
                raise TargetError(f"{directory}: cannot be synced: {reason_of(error)}") from error

    def sync_own_files(self) -> None:
        """Come back when what a killed process wrote into small files of ours is on the disk. Some
        other engine may close the store in order, and a loss of power would then leave them as they
        were before. Raises TargetError.
        """
        paths = sorted(self.own.iterdir()) if is_directory(self.own) else []
        for path in (each for each in paths if is_ordinary_file(each)):
            with disk_errors(TargetError, path, "synced"):
                sync_file(path)

    def mark_stopped(self) -> None:
        """Take the `abort` file away, durably, as the last thing of all. Raises TargetError."""
        with disk_errors(TargetError, self.abort, "removed"):
            with suppress(FileNotFoundError):
                os.unlink(self.abort)
            sync_directory(self.path)

    def discard(self, *, keeps_directory: bool) -> None:
        """Take away all that is in it, as far as the disk allows: a store that was not finished."""
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in list(entries):
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
        if not keeps_directory:
            with suppress(OSError):
                os.rmdir(self.path)

    @contextmanager
    def new_or_nothing(self) -> Iterator[None]:
        """Around the making of a store and the first that is stored in it: where that is refused,
        and the log has no file yet, what was made is taken away again, as far as the disk allows.
        A directory in which something was before stays as it is.
        """
        made = [path for path in (self.path, *self.path.parents) if not is_present(path)]
        is_new = bool(made) or (is_directory(self.path) and not any(self.path.iterdir()))
        try:
            yield
        except BaseException:
            if is_new:
                self._take_away(made)
            raise

    def _take_away(self, made: list[Path]) -> None:
        with suppress(DelayStoreError, OSError):
            lock = self.take_lock()  # by now somebody else may have it open
            try:
                if not list_segments(self.commit_log):
                    self.discard(keeps_directory=not made)
                    for path in made[1:]:
                        path.rmdir()
            finally:
                lock.release()


def require_outside(path: Path, *stores: Path) -> None:
    """Raise TargetError where a file that is to be written would lie in one of these stores, or in
    any other, or take its place: a report could replace a file of it, and a broker takes any file
    there for its own.
    """
    around = [each for each in path.resolve().parents if os.path.isdir(each / "commitlog")]
    for store in (*(part for each in stores for part in StoreRoot(each).directories), *around):
        if path.resolve().is_relative_to(store.resolve()):
            raise TargetError(f"{path}: lies in the store {store}; choose a place outside")


def require_apart(source: StoreRoot, target: Path) -> None:
    """Raise TargetError for a target in the source, with all of its parts, or around it."""
    end = target.resolve()
    for each in (directory.resolve() for directory in source.directories):
        if each.is_relative_to(end) or end.is_relative_to(each):
            raise TargetError(f"{target}: must not lie in the source, or around it")
