# SPDX-License-Identifier: Apache-2.0
"""The database under a hierarchical wheel: blocks by slot, ids by bucket, and one state.

The only place that knows RocksDB. Everything is read in ranges and written in batches; a batch is
there wholly or not at all, whatever column families it touches.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

import attrs
import numpy as np
import rocksdict

from message_store.base.clock import SystemClock
from message_store.base.errors import (
    DelayStoreError,
    FormatError,
    SourceError,
    TargetError,
    disk_errors,
    reason_of,
)
from message_store.base.forks import belongs_to_this_process
from message_store.files.rocksdb.manifest import ManifestNote, note_manifest, read_manifest
from message_store.files.small_files import (
    identity_of,
    require_same_directory,
    sync_directory,
    sync_file,
)
from message_store.format.layout import Layout
from timer_wheel.format.index_layouts import (
    BATCHES,
    BATCHES_KEY,
    BLOCK_KEY,
    FAMILIES,
    ID_KEY,
    ID_ROW,
    IDS,
    LAST_BATCH,
    LAST_BATCH_KEY,
    NATIVE_ID,
    NATIVE_ROW,
    NEWEST,
    NEWEST_KEY,
    STATE,
    STATE_KEY,
    STATE_VERSION,
    WAITING_ROW,
    IndexState,
    Newest,
    Rows,
    known_batches,
    part_apart,
)

_CHANGES_BYTES = 32 << 20
"""So much stays in memory and in the log of changes before it goes into tables."""
_MOST_CHANGES_BYTES = 256 << 20
"""What so many changes take at most in memory: beyond it RocksDB would begin tables by itself."""
_NEVER_BYTES = 8 << 30
_ON_THEIR_WAY = "rocksdb.num-immutable-mem-table"
_FAILURES = "rocksdb.background-errors"
_BLOCK_BYTES = 16 << 10
_FORMAT_VERSION = 5
_T = TypeVar("_T")
_END = 2**62
_MANY_BLOCKS = 256
_READ_BYTES = 4 << 20


class DamagedIndexError(FormatError):
    """An index that cannot be believed: it is rebuilt from the queue."""


@attrs.frozen(eq=False)
class Block:
    """Rows of one slot as they stand in the database."""

    slot_ms: int
    queue_offset: int
    rows: Rows


def _nothing() -> None:
    """Nobody needs to know."""


@attrs.frozen(eq=False)
class IndexView:
    """What a database held at one moment, whatever is written to it since."""

    iterators: dict[str, Any]


class IndexDb:
    """The database of one store, open for writing or, with ``read_only``, for looking.

    Raises DamagedIndexError for what cannot be read, TargetError when the disk refuses or the
    directory was moved or removed meanwhile, SourceError when somebody else has it open.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._on_damage: Callable[[], None] = _nothing
        self._identity: tuple[int, int] | None = None
        self._views = WeakSet[IndexView]()
        access = rocksdict.AccessType
        self._found = read_manifest(path)
        with self._told():
            self._db = rocksdict.Rdict(
                str(path),
                database_options(),
                {name: database_options() for name in FAMILIES},
                access.read_only(False) if read_only else access.read_write(),
            )
            self._families = {name: self._db.get_column_family(name) for name in FAMILIES}
            self._handles = {name: self._db.get_column_family_handle(name) for name in FAMILIES}
        self._one_at_a_time = Lock()
        self._known: dict[str, int] | None = None
        self._noted = ManifestNote()
        self._changes_bytes = self._failures = 0
        self._identity = identity_of(path)
        belongs_to_this_process(self)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the library's errors, which are of one kind, into ours, and tell of damage."""
        try:
            yield
        except DamagedIndexError:
            self._on_damage()
            raise
        except DelayStoreError:
            raise
        except Exception as error:
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> DelayStoreError:
        ours = _ours(self.path, error)
        try:
            require_same_directory(self.path, self._identity)
        except OSError as moved:  # files that are not there are no damage then
            return TargetError(str(moved.strerror))
        if isinstance(ours, DamagedIndexError):
            self._on_damage()
        return ours

    def tell_damage(self, tell: Callable[[], None]) -> None:
        """Call this before any DamagedIndexError is raised."""
        self._on_damage = tell

    # --- reading ----------------------------------------------------------------------------------

    def view(self, families: Iterable[str]) -> "IndexView":
        """The blocks of some families as of now, to be read later; the database may be closed."""
        with self._told():
            # An iterator shows one moment. That of a snapshot does not (rocksdict 0.3.29).
            view = IndexView({name: self._families[name].iter() for name in families})
        self._views.add(view)
        return view

    def blocks_in(self, view: "IndexView", family: str, from_ms: int) -> Iterator[Block]:
        """The blocks of a view, of the slots that begin at a time or later; once for each family.

        Whoever calls knows that the database is open.
        """
        with self._told():
            view.iterators[family].seek(_block_key(from_ms))
        while (pair := self._next(view, family)) is not None:
            yield self._block(*pair)

    def _next(self, view: "IndexView", family: str) -> tuple[bytes, bytes] | None:
        found = view.iterators[family]
        with self._told():
            try:
                if not found.valid():
                    found.status()
                    return None
                pair = found.key(), found.value()
                found.next()
            finally:
                del found  # an error that somebody keeps would keep it too
        return pair

    def state(self) -> IndexState | None:
        """What was last said of the whole; None in a new database. Raises DamagedIndexError when it
        is no state, or other parts of the database are not of its moment; SourceError when its
        version is unknown. To be asked before anything is written.
        """
        with self._told():
            known = known_batches(self._db.get(BATCHES_KEY))
            last = {name: self._families[name].get(LAST_BATCH_KEY) for name in FAMILIES}
            if (wrong := part_apart(known, last, self._found)) is not None:
                what = "not of the same moment as the state"
                raise DamagedIndexError(what, path=self.path, found=wrong)
            self._found = None
            content = self._db.get(STATE_KEY)
        if content is None:
            return None
        if len(content) != STATE.size:
            raise DamagedIndexError("a state of another length", path=self.path, found=len(content))
        fields = STATE.decode_at(content, 0)
        if fields["version"] != STATE_VERSION:
            raise SourceError(
                f"{self.path}: an index of version {fields['version']}, not {STATE_VERSION};"
                " open it with the delaywheel that wrote it"
            )
        return IndexState(**fields)

    def newest(self) -> Newest | None:
        """The record that the log must have for the state to hold; None where it was on disk.
        Raises DamagedIndexError when it is no record.
        """
        with self._told():
            content = self._db.get(NEWEST_KEY)
        if content is None:
            return None
        if len(content) != NEWEST.size:
            raise DamagedIndexError("a record of another length", path=self.path)
        return Newest(**NEWEST.decode_at(content, 0))

    def blocks(self, family: str, from_ms: int = 0, until_ms: int | None = None) -> Iterator[Block]:
        """The blocks of the slots that begin in a range of time, in order."""
        end_ms = _END if until_ms is None else until_ms
        for key, value in self._range(family, _block_key(from_ms), _block_key(end_ms)):
            yield self._block(key, value)

    def _block(self, key: bytes, value: bytes) -> Block:
        fields = BLOCK_KEY.decode_at(key, 0)
        rows = self._rows(value, WAITING_ROW, NATIVE_ROW)
        return Block(fields["slot_ms"], fields["queue_offset"], rows)

    def ids(self, era: int, bucket: int) -> Rows:
        """All ids of one bucket and era."""
        begin, end = _id_key(era, bucket, 0), _id_key(era, bucket + 1, 0)
        parts = [self._rows(value, ID_ROW, NATIVE_ID) for _, value in self._range(IDS, begin, end)]
        return np.concatenate([np.empty(0, NATIVE_ID), *parts])

    def eras(self) -> list[int]:
        """The eras that have ids."""
        found: list[int] = []
        while True:
            begin = _id_key(found[-1] + 1 if found else 0, 0, 0)
            key = next((key for key, _ in self._range(IDS, begin, b"\xff")), None)
            if key is None:
                return found
            found.append(ID_KEY.decode_at(key, 0)["era"])

    def _range(self, family: str, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from one key up to another, without that. No iterator outlives the call:
        it would keep the database open, even behind a close.
        """
        count = 1
        while True:
            some = self._some(family, begin, end, count)
            yield from some
            if len(some) < count and sum(len(value) for _, value in some) < _READ_BYTES:
                return
            begin, count = some[-1][0] + b"\0", min(2 * count, _MANY_BLOCKS)

    def _some(self, family: str, begin: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Some of these, less than ``count`` where there are no more or they are large."""
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        some: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        with self._told():
            found = self._families[family].iter(options)
            try:
                found.seek(begin)
                while found.valid() and len(some) < count and size_bytes < _READ_BYTES:
                    some.append((found.key(), found.value()))
                    size_bytes += len(some[-1][1])
                    found.next()
                found.status()
            finally:
                del found  # an error that somebody keeps would keep it too
        return some

    def _rows(self, value: bytes, layout: Layout, native: Any) -> Rows:
        with self._told():
            if len(value) % layout.size:
                raise DamagedIndexError("a block of odd length", path=self.path, found=len(value))
        return np.frombuffer(value, layout.dtype).astype(native)

    # --- writing ----------------------------------------------------------------------------------

    def batch(self) -> "IndexBatch":
        """Changes that are made together."""
        return IndexBatch(self._handles)

    def write(self, batch: "IndexBatch", state: IndexState, newest: Newest | None = None) -> None:
        """Make changes, and say what holds then; come back when they are on disk, as the log is. Or
        do not wait, and say which record the log then must have.
        """
        with self._told():
            batch.changes.put(STATE_KEY, STATE.encode(**attrs.asdict(state)))
            if newest is None:
                batch.changes.delete(NEWEST_KEY)
            else:
                batch.changes.put(NEWEST_KEY, NEWEST.encode(**attrs.asdict(newest)))
            self._write(batch)
        if newest is None:
            self._sync()

    def _write(self, batch: "IndexBatch") -> None:
        """Write changes, and in the same breath their number into each family that they touch, and
        what they rest on. When there is much of it, it goes into tables, for which the next waits.
        """
        with self._one_at_a_time:
            self._wait_for_tables()
            self._noted = note_manifest(self.path, self._noted)
            known = self._known or known_batches(self._db.get(BATCHES_KEY))
            if known is None:
                raise DamagedIndexError("batches of another length", path=self.path)
            number = max(known[name] for name in FAMILIES) + 1
            known = known | dict.fromkeys(batch.families, number)
            known["manifest_number"] = self._noted.number
            known["manifest_bytes"] = self._noted.size_bytes
            known["manifest_checksum"] = self._noted.checksum
            last = LAST_BATCH.encode(number=number)
            for name in batch.families:
                batch.changes.put(LAST_BATCH_KEY, last, self._handles[name])
            batch.changes.put(BATCHES_KEY, BATCHES.encode(**known))
            self._changes_bytes += batch.changes.size_in_bytes()
            self._known = None  # whoever is stopped here does not know
            self._db.write(batch.changes)
            self._known = known
            if self._changes_bytes >= _CHANGES_BYTES:
                self._changes_bytes = 0
                self._failures = self._db.property_int_value(_FAILURES) or 0
                for each in self._all:
                    each.flush(wait=False)

    @property
    def _all(self) -> list[Any]:
        return [self._db, *self._families.values()]

    def _wait_for_tables(self) -> None:
        """Until no changes are on their way into tables. Raises TargetError where that fails, as
        often as it is asked until they got there.
        """
        while any(each.property_int_value(_ON_THEIR_WAY) for each in self._all):
            if (self._db.property_int_value(_FAILURES) or 0) > self._failures:
                raise TargetError(f"{self.path}: tables cannot be written")
            SystemClock().sleep_ms(1)

    def _sync(self) -> None:
        """Wait for the disk here: the library would let no other thread run meanwhile.

        Called inside ``LiveStore.sync_or_break``: after a failed sync the next one succeeds,
        although data is lost. Raises TargetError.
        """
        with disk_errors(TargetError, self.path, "synced"):
            for path in self.path.glob("*.log"):
                with suppress(FileNotFoundError):  # its changes are in a synced table by now
                    sync_file(path)
            sync_directory(self.path)

    def move(self, batch: "IndexBatch") -> None:
        """Make changes that put what stands in one place into another: what holds stays true."""
        with self._told():
            self._write(batch)

    def close(self) -> None:
        """Give the files back; closing twice is fine. Raises TargetError when the disk refuses what
        is yet to be written, or refused something before; the files are given back all the same.
        """
        for view in self._views:
            view.iterators.clear()
        self._families.clear()
        self._handles.clear()
        with self._told():
            self._db.close()

    def leave_to_parent(self) -> None:
        """In a forked child: nothing, for the store that it belongs to asks no more."""


class IndexBatch:
    """Changes of the database that are yet to be made."""

    def __init__(self, handles: dict[str, Any]) -> None:
        self._handles = handles
        self.changes = rocksdict.WriteBatch(raw_mode=True)
        self.families = set[str]()

    def _of(self, family: str) -> Any:
        """The handle of a family that is changed."""
        self.families.add(family)
        return self._handles[family]

    def put_block(self, family: str, slot_ms: int, rows: Rows) -> tuple[str, int, int]:
        """Add messages of one slot, in order of the queue; returns where they stand."""
        first = int(rows["queue_offset"][0])
        value = rows.astype(WAITING_ROW.dtype).tobytes()
        self.changes.put(_block_key(slot_ms, first), value, self._of(family))
        return family, slot_ms, first

    def drop_block(self, family: str, slot_ms: int, queue_offset: int) -> None:
        """Take a block away."""
        self.changes.delete(_block_key(slot_ms, queue_offset), self._of(family))

    def drop_slots(self, family: str, from_ms: int, until_ms: int) -> None:
        """Take away every block of the slots that begin in a range of time."""
        handle = self._of(family)
        self.changes.delete_range(_block_key(from_ms), _block_key(until_ms), handle)

    def put_ids(self, era: int, bucket: int, ids: Rows) -> None:
        """Add ids of one bucket and era."""
        key = _id_key(era, bucket, int(ids["queue_offset"].min()))
        self.changes.put(key, ids.astype(ID_ROW.dtype).tobytes(), self._of(IDS))

    def drop_eras(self, before: int) -> None:
        """Take away all ids before an era."""
        self.changes.delete_range(_id_key(0, 0, 0), _id_key(before, 0, 0), self._of(IDS))


def remove_index(path: Path) -> None:
    """Take away the database that is there, whatever state it is in. Raises TargetError."""
    if not path.exists():
        return
    _remove(path, lambda: rocksdict.Rdict.destroy(str(path), database_options()))


def _remove(path: Path, destroy: Callable[[], _T]) -> None:
    try:
        destroy()
    except Exception as error:
        raise _ours(path, error) from error


def _block_key(slot_ms: int, queue_offset: int = 0) -> bytes:
    return BLOCK_KEY.packer.pack(slot_ms, queue_offset)


def _id_key(era: int, bucket: int, queue_offset: int) -> bytes:
    return ID_KEY.packer.pack(era, bucket, queue_offset)


def _ours(path: Path, error: Exception) -> DelayStoreError:
    text = " ".join(reason_of(error).split())
    is_held = "While lock file" in text and "temporarily unavailable" in text
    if is_held or "lock hold by current process" in text:
        return SourceError(f"{path}: somebody else has it open: {text}")
    if text.startswith(("Corruption", "Invalid argument")) or "No such file" in text:
        return DamagedIndexError(text, path=path)
    return TargetError(f"{path}: {text}")


def database_options() -> Any:
    """How the database is opened, and how its tables are written."""
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(_FORMAT_VERSION)
    table.set_block_size(_BLOCK_BYTES)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    # Changes go into tables when we say so: no batch is written meanwhile.
    options.set_write_buffer_size(_MOST_CHANGES_BYTES)
    options.set_max_total_wal_size(_NEVER_BYTES)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_keep_log_file_num(2)
    # Otherwise each opening begins sixteen threads a family, which takes longer than the files do.
    options.set_max_file_opening_threads(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_is_fd_close_on_exec(True)
    return options
