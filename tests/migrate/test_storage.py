# SPDX-License-Identifier: Apache-2.0
"""Storage that is not a local disk: calls that it refuses change no byte, or are refused with a
sentence before anything is written; no file is read before its writer has closed it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import rocksdict

from message_store.base.errors import TargetError
from message_store.files import array_room
from message_store.files.store_root import StoreRoot
from migrate import convert as conversion
from migrate.convert import convert
from migrate.settings import ConvertOptions
from migrate.spark.tasks import write_logs
from migrate.table.export import export_parquet
from migrate.table.pending_table import TableOptions
from migrate.verify.verify import verify
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, broker_files, checked_target, options_for
from tests.migrate.in_place_stores import do
from tests.migrate.stops import Stopped

ITEMS = [LevelMessage(level=number % 9 + 1, body=bytes(number * 5 + 1)) for number in range(80)]


def refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def refusing(
    patch: pytest.MonkeyPatch, module: Any, name: str, number: int, when: Callable[..., bool]
) -> None:
    """Have a call of the system refused with this error for some arguments."""
    real = getattr(module, name)

    def call(*given: Any, **options: Any) -> Any:
        if when(*given):
            raise refusal(number)
        return real(*given, **options)

    patch.setattr(module, name, call)


def has_flag(flag: int) -> Callable[..., bool]:
    return lambda _path, flags, *_: flags & flag == flag


def is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def always(*_: Any) -> bool:
    return True


def no_locks(patch: pytest.MonkeyPatch, number: int) -> None:
    refusing(patch, fcntl, "flock", number, always)
    refusing(patch, fcntl, "fcntl", number, always)


def no_links(patch: pytest.MonkeyPatch, number: int) -> None:
    refusing(patch, os, "link", number, always)


def no_nameless_files(patch: pytest.MonkeyPatch, number: int) -> None:
    refusing(patch, os, "open", number, has_flag(os.O_TMPFILE))


def no_direct_writes(patch: pytest.MonkeyPatch, number: int) -> None:
    refusing(patch, os, "open", number, has_flag(os.O_DIRECT))


def no_allocation(patch: pytest.MonkeyPatch, number: int) -> None:
    refusing(patch, os, "posix_fallocate", number, always)


def no_synced_directories(patch: pytest.MonkeyPatch, number: int) -> None:
    refusing(patch, os, "fsync", number, is_directory)


Refusal = tuple[Callable[[pytest.MonkeyPatch, int], None], int]

DISKS: dict[str, list[Refusal]] = {
    "no hard links, as exFAT": [(no_links, errno.EPERM)],
    "no hard links, as some FUSE": [(no_links, errno.EOPNOTSUPP)],
    "no locks, as NFS without its daemon": [(no_locks, errno.ENOLCK)],
    "no locks, as some FUSE": [(no_locks, errno.ENOSYS)],
    "no files without a name, as NFS": [(no_nameless_files, errno.EOPNOTSUPP)],
    "no allocation": [(no_allocation, errno.EOPNOTSUPP)],
    "no direct writes": [(no_direct_writes, errno.EINVAL)],
    "no synced directories, as some FUSE": [(no_synced_directories, errno.EINVAL)],
    "none of all that": [
        (no_links, errno.EPERM),
        (no_locks, errno.ENOLCK),
        (no_nameless_files, errno.EOPNOTSUPP),
        (no_direct_writes, errno.EINVAL),
        (no_synced_directories, errno.EINVAL),
    ],
}


@pytest.fixture(params=list(DISKS.values()), ids=list(DISKS))
def disk(request: pytest.FixtureRequest) -> list[Refusal]:
    refusals: list[Refusal] = request.param
    return refusals


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConvertOptions:
    """A conversion of a store with a lock file, every column of which wants room on the disk."""
    build_level_store(tmp_path / "source", ITEMS)
    StoreRoot(tmp_path / "source").lock.touch()
    monkeypatch.setattr(array_room, "_LARGE_BYTES", 1)
    return options_for(tmp_path)


def elsewhere(options: ConvertOptions) -> ConvertOptions:
    return attrs.evolve(options, target=options.target.with_name("elsewhere"))


@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
def test_a_target_has_the_same_bytes_on_every_disk(
    options: ConvertOptions, disk: list[Refusal], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = attrs.evolve(options, to=engine)
    convert(elsewhere(options))
    for refuse, number in disk:
        refuse(monkeypatch, number)
    report = convert(options)
    has_locks = no_locks not in [refuse for refuse, _ in disk]
    unlocked = [warning for warning in report.warnings if "this disk knows no locks" in warning]
    assert len(unlocked) == (0 if has_locks else 1)
    assert verify(options.source, options.target, spark=None).is_clean
    if engine == "wheel":
        checked_target(options)
    assert broker_files(options.target) == broker_files(elsewhere(options).target)


def test_a_stopped_conversion_goes_on_on_every_disk(
    options: ConvertOptions, disk: list[Refusal], monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(elsewhere(options))
    for refuse, number in disk:
        refuse(monkeypatch, number)

    def stop_after_it(*given: Any) -> None:
        write_logs(*given)
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "write_logs", stop_after_it)
        with pytest.raises(Stopped):
            convert(options)
    convert(options)
    assert broker_files(options.target) == broker_files(elsewhere(options).target)


def test_an_export_is_the_same_on_every_disk(
    options: ConvertOptions, disk: list[Refusal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for refuse, number in disk:
        refuse(monkeypatch, number)
    out = tmp_path / "out.parquet"
    assert export_parquet(options.source, out, options=TableOptions(now_ms=NOW_MS)).exported == 80
    with pytest.raises(TargetError, match="is already there"):
        export_parquet(options.source, out, options=TableOptions(now_ms=NOW_MS))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_disk_that_renames_no_directories_is_refused_before_anything_is_written(
    options: ConvertOptions, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, os, "replace", number, lambda path, _: os.path.isdir(path))
    with pytest.raises(TargetError, match=r"this disk renames no directories .* copy the finished"):
        convert(options)
    assert not list(options.target.rglob("*.npy"))
    monkeypatch.undo()
    convert(options)
    checked_target(options)


@pytest.mark.parametrize(
    "said",
    [
        "While lock file: {}/LOCK: No locks available",
        "While lock file: {}/LOCK: Function not implemented",
        "While fsync: a directory: Invalid argument",
    ],
)
def test_a_disk_on_which_rocksdb_does_not_work_is_refused_before_anything_is_written(
    options: ConvertOptions, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes its own calls. So these are its errors where the system refused them."""
    asked = attrs.evolve(options, to="hierarchy")

    def refuse(path: str, *_: Any) -> None:
        raise Exception("IO error: " + said.format(path))

    monkeypatch.setattr(rocksdict, "Rdict", refuse)
    words = "RocksDB does not work on this disk .*convert to another disk, or without --to hierar"
    with pytest.raises(TargetError, match=words):
        convert(asked)
    assert not list(options.target.rglob("*.npy"))
    convert(elsewhere(options))  # a wheel needs none of it
    monkeypatch.undo()
    convert(asked)
    assert verify(options.source, options.target, spark=None).is_clean


def test_a_conversion_in_place_is_refused_where_nothing_can_be_locked(
    options: ConvertOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = broker_files(options.source)
    no_locks(monkeypatch, errno.ENOLCK)
    with pytest.raises(TargetError, match="lock: cannot be locked: No locks available"):
        do(options.source, NOW_MS)
    assert broker_files(options.source) == before


# --- close-to-open consistency --------------------------------------------------------------------


class _Opened:
    """Files below a directory that were opened to be read while somebody had them open to write:
    on NFS the reader might see anything.
    """

    def __init__(self) -> None:
        self.root: Path | None = None
        self.too_early: list[str] = []
        self.read = 0

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        if event != "open" or self.root is None or not isinstance(given[0], str | os.PathLike):
            return
        path, flags = Path(os.fspath(given[0])), given[2] or 0
        if not path.is_relative_to(self.root) or flags & os.O_ACCMODE != os.O_RDONLY:
            return
        self.read += 1
        if path.is_file() and _is_open_for_writing(path):
            self.too_early.append(str(path))


def _is_open_for_writing(path: Path) -> bool:
    wanted = path.stat()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            facts = os.stat(f"/proc/self/fd/{name}")
            flags = fcntl.fcntl(int(name), fcntl.F_GETFL)
            is_it = (facts.st_dev, facts.st_ino) == (wanted.st_dev, wanted.st_ino)
            if is_it and flags & os.O_ACCMODE != os.O_RDONLY:
                return True
    return False


_opened = _Opened()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[_Opened]:
    """Every opening of a file below the test's directory."""
    if _opened.hook not in _hooked:
        sys.addaudithook(_opened.hook)  # there is no way to take one away
        _hooked.append(_opened.hook)
    _opened.root, _opened.too_early, _opened.read = tmp_path, [], 0
    yield _opened
    _opened.root = None


_hooked: list[Callable[..., None]] = []


@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
def test_no_file_is_read_before_its_writer_has_closed_it(
    options: ConvertOptions, opened: _Opened, engine: str
) -> None:
    asked = attrs.evolve(options, to=engine)
    convert(asked)
    assert opened.read > 20
    # RocksDB keeps its files open, in the one process that writes them, until they are published.
    assert [
        path for path in opened.too_early if Path(path).parent.parts[-2:] != ("hierarchy", "index")
    ] == []


def test_a_reader_beside_a_writer_is_noticed(opened: _Opened, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb"):
        path.read_bytes()
    assert opened.too_early == [str(path)]
    path.read_bytes()
    assert len(opened.too_early) == 1
