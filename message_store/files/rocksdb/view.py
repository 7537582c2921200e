# SPDX-License-Identifier: Apache-2.0
"""A RocksDB database that somebody else keeps, read without a trace: nothing in its directory is
made, changed or locked.

Opened read-only RocksDB still writes an information log, and rocksdict a file of its own, into the
directory that it is given. That directory is here a temporary one with links to the data files, so
nothing is copied either. Limitations: files that a running broker deletes meanwhile end the reading
with an error; what it holds only in memory is not seen.
"""

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from message_store.base.errors import SourceError, UnsupportedStoreError, reason_of
from message_store.files.rocksdb.manifest import MANIFEST_PREFIX, POINTER

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

_DATA_ENDINGS = (".sst", ".log", ".blob")
_ROWS_AT_ONCE = 1 << 15
_VIEW = "delaywheel-rocksdb-"
_OF_A_VIEW = re.compile(rf"/[^ ]*{_VIEW}[^/ ]*/")
"""How errors name a file: where it is linked for a while, and nobody finds it."""


def has_database(directory: Path) -> bool:
    """Whether there is a database in this directory, or what is left of one.

    Raises SourceError for a directory that cannot be read, and for links in it.
    """
    return bool(database_files(directory))


def holds_data(directory: Path) -> bool:
    """Whether files with data lie in this directory: a new database has empty ones. Raises
    SourceError.
    """
    return any(
        path.suffix in _DATA_ENDINGS and facts.st_size > 0
        for path, facts in database_files(directory)
    )


def database_files(directory: Path) -> list[tuple[Path, os.stat_result]]:
    """The files that make up a database, with what the disk says of them; none where there is none.

    Raises SourceError as ``has_database``.
    """
    if directory.is_symlink():
        raise SourceError(f"{directory}: a link in the place of a store's own directory")
    found = []
    try:
        for path in directory.iterdir():
            is_ours = path.name == POINTER or path.name.startswith(MANIFEST_PREFIX)
            if not is_ours and path.suffix not in _DATA_ENDINGS:
                continue
            facts = path.lstat()
            if not stat.S_ISREG(facts.st_mode):
                raise SourceError(f"{path}: no ordinary file in the place of a store's own file")
            found.append((path, facts))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SourceError(f"{directory}: cannot be read: {reason_of(error)}") from error
    return sorted(found, key=lambda each: each[0])


class FamilyView:
    """One column family of a database that is open; without ``family`` one that it does not have:
    nothing stands in it.
    """

    def __init__(self, family: "Rdict | None", directory: Path) -> None:
        self._family = family
        self._directory = directory

    def get(self, key: bytes) -> bytes | None:
        """The value of a key. Raises SourceError."""
        if self._family is None:
            return None
        with _as_source_error(self._directory):
            value: bytes | None = self._family.get(key)
        return value

    def entries(self, from_key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every key from this one on, in order, and its value.

        Raises SourceError for a damaged place: a plain loop over the items of rocksdict ends there
        as if it were the end.
        """
        if self._family is None:
            return
        with _as_source_error(self._directory):
            place = self._family.iter()
            place.seek(from_key)
        while place.valid():
            yield place.key(), place.value()
            place.next()
        with _as_source_error(self._directory):
            place.status()

    def blocks(self, first_key: bytes, last_key: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """The keys from one to another, some thousand at once: how many, all keys and all values.

        Raises SourceError as ``entries`` does.
        """
        if self._family is None:
            return
        key = first_key
        with _as_source_error(self._directory):
            items = self._family.items(from_key=first_key)
        while True:
            with _as_source_error(self._directory):
                rows: list[tuple[Any, Any]] = list(islice(items, _ROWS_AT_ONCE))
            if not rows:
                break
            key = rows[-1][0]
            if key > last_key:
                rows = [row for row in rows if row[0] <= last_key]
            if rows:
                yield len(rows), b"".join(row[0] for row in rows), b"".join(row[1] for row in rows)
            if key >= last_key:
                return
        for _ in islice(self.entries(key), 2):  # whether it ended at a damaged place
            pass


@contextmanager
def open_families(directory: Path, *families: str) -> Iterator[list[FamilyView]]:
    """Column families of the database in this directory.

    Raises SourceError for a database that cannot be opened, UnsupportedStoreError where rocksdict
    is not installed.
    """
    rocksdict = _library(directory)
    with tempfile.TemporaryDirectory(prefix=_VIEW) as view:
        for path, _ in database_files(directory):
            os.symlink(path.absolute(), os.path.join(view, path.name))
        with _as_source_error(directory):
            names = rocksdict.Rdict.list_cf(view, _options())
            database = rocksdict.Rdict(
                view,
                _options(),
                {name: _options() for name in names},
                rocksdict.AccessType.read_only(False),
            )
        opened = {name: database.get_column_family(name) for name in families if name in names}
        try:
            yield [FamilyView(opened.get(name), directory) for name in families]
        finally:
            for family in opened.values():
                family.close()
            database.close()


def _options() -> "Options":
    from rocksdict import Options

    options = Options(raw_mode=True)
    options.create_if_missing(False)
    return options


def _library(directory: Path):  # type: ignore[no-untyped-def]
    try:
        import rocksdict
    except ImportError as error:
        raise UnsupportedStoreError(
            f"{directory}: a RocksDB database, which cannot be read because the Python package"
            f" rocksdict is not installed ({error})"
        ) from error
    return rocksdict


@contextmanager
def _as_source_error(directory: Path) -> Iterator[None]:
    """Raise SourceError for whatever RocksDB complains of; rocksdict knows one kind of error."""
    try:
        yield
    except Exception as error:
        reason = _OF_A_VIEW.sub(lambda _: f"{directory}/", reason_of(error))
        raise SourceError(f"{directory}: RocksDB cannot read it: {reason}") from error
