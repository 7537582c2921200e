# SPDX-License-Identifier: Apache-2.0
"""Sources that are none or in use, and targets that cannot be written: one clear sentence each,
nothing lost.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from message_store.base.errors import (
    DelayStoreError,
    OptionsError,
    SourceError,
    StoreLockedError,
    TargetError,
    UncleanStoreError,
    UnsupportedStoreError,
)
from message_store.files.store_root import StoreRoot
from migrate.convert import check_request, convert
from migrate.settings import ENGINES, TargetSettings
from migrate.source.sources import WheelNotEmptyError
from migrate.write.owner import Access
from migrate.write.staging import sole_writer
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.independent.real_stores import WHEEL_55_CLEAN, unpack
from tests.migrate.conversions import (
    Converted,
    assert_right,
    broker_files,
    build_and_convert,
    checked_target,
    options_for,
)

ROOT = Path(__file__).resolve().parent.parent.parent
ITEMS: list[Item] = [LevelMessage(level=number % 4 + 1, body=bytes(900)) for number in range(9)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build_level_store(tmp_path / "source", ITEMS).root


# --- the source ----------------------------------------------------------------------------------


def gone(source: Path) -> None:
    shutil.rmtree(source)


def a_file(source: Path) -> None:
    shutil.rmtree(source)
    source.write_text("not a directory")


def without_a_log(source: Path) -> None:
    shutil.rmtree(source / "commitlog")


def without_its_rocksdb_queues(source: Path) -> None:
    shutil.rmtree(source / "consumequeue")
    (source / "consumequeue_rocksdb").mkdir()


def with_dledger(source: Path) -> None:
    (source / "dledger-n0").mkdir()


def led_outside(name: str) -> Callable[[Path], None]:
    def change(source: Path) -> None:
        outside = source.parent / "outside"
        shutil.move(source / name, outside)
        (source / name).symlink_to(outside)

    return change


def after_a_crash(source: Path) -> None:
    (source / "abort").touch()


SOURCES: list[tuple[str, Callable[[Path], None], type[DelayStoreError], str]] = [
    ("missing", gone, SourceError, "source: no such directory; expected a broker's store"),
    ("a file", a_file, SourceError, "source: not a directory; expected a broker's store"),
    ("no store", without_a_log, SourceError, "not a store directory: there is no commitlog/"),
    ("rocksdb", without_its_rocksdb_queues, SourceError, "CURRENT: is missing"),
    ("dledger", with_dledger, UnsupportedStoreError, "DLedger"),
    ("crashed", after_a_crash, UncleanStoreError, "abort: the broker is running or has crashed"),
    ("log elsewhere", led_outside("commitlog"), SourceError, "commitlog: leads outside the store"),
    ("queues elsewhere", led_outside("consumequeue"), SourceError, "leads outside the store"),
    ("config elsewhere", led_outside("config"), SourceError, "config: leads outside the store"),
]


@pytest.mark.parametrize(
    ("_name", "change", "error", "sentence"), SOURCES, ids=[row[0] for row in SOURCES]
)
def test_a_source_that_is_none_is_refused_and_no_target_begun(
    tmp_path: Path,
    source: Path,
    _name: str,
    change: Callable[[Path], None],
    error: type[DelayStoreError],
    sentence: str,
) -> None:
    change(source)
    with pytest.raises(error) as caught:
        convert(options_for(tmp_path))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    target = tmp_path / "target"
    assert not target.exists() or not list(target.iterdir())


LEVEL_QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX/0"


@pytest.mark.parametrize("inner", [f"commitlog/{0:020d}", LEVEL_QUEUE, f"{LEVEL_QUEUE}/{0:020d}"])
@pytest.mark.parametrize("outside", ["../elsewhere", "elsewhere"])
def test_a_link_within_the_store_is_refused_not_passed_over(
    tmp_path: Path, source: Path, inner: str, outside: str
) -> None:
    """Passed over, it would hide messages; followed, it would show those of another store."""
    shutil.move(source / inner, source / outside)
    (source / inner).symlink_to(source / outside)
    with pytest.raises(SourceError, match="a link in the place of a store's own file"):
        convert(options_for(tmp_path, on_bad_record="quarantine"))


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def running_broker(source: Path) -> Iterator[None]:
    """A process that holds the lock as Java does, until it is told to go."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(source / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield
        assert child.stdin is not None
        child.stdin.close()


@pytest.mark.usefixtures("running_broker")
def test_a_source_in_use_is_refused_even_after_a_crash(tmp_path: Path) -> None:
    for after_crash in (False, True):
        with pytest.raises(StoreLockedError, match="lock: held by another process"):
            convert(options_for(tmp_path, after_crash=after_crash))
    assert not (tmp_path / "target").exists()


def test_a_source_whose_wheel_holds_messages_is_refused_unless_only_levels_are_asked_for(
    tmp_path: Path,
) -> None:
    store = unpack(WHEEL_55_CLEAN, tmp_path / "source")
    with pytest.raises(WheelNotEmptyError, match=r"\d+ messages wait in its timer wheel"):
        convert(options_for(tmp_path, now_ms=store.stopped_ms))
    large = TargetSettings(commit_log_file_bytes=1 << 20)
    report = convert(
        options_for(tmp_path, now_ms=store.stopped_ms, levels_only=True, settings=large)
    )
    assert report.total("converted") == len(store.pending_in_levels())


# --- the target ----------------------------------------------------------------------------------


def full_of_something(target: Path) -> None:
    target.mkdir()
    (target / "commitlog").mkdir()
    (target / "notes.txt").touch()


def a_file_itself(target: Path) -> None:
    target.write_text("a file")


def below_a_file(target: Path) -> None:
    target.parent.joinpath("a-file").touch()


TARGETS: list[tuple[str, str, Callable[[Path], None], str]] = [
    ("not empty", "target", full_of_something, "target: is not empty: commitlog, notes.txt"),
    ("a file", "target", a_file_itself, "target: cannot be written: File exists"),
    ("below a file", "a-file/target", lambda t: t.parent.touch(), "cannot be written: Not a dir"),
    ("the source", "source", lambda _: None, "must not lie in the source, or around it"),
    ("in the source", "source/new", lambda _: None, "must not lie in the source, or around it"),
    ("around the source", ".", lambda _: None, "must not lie in the source, or around it"),
]


@pytest.mark.parametrize(
    ("_name", "place", "prepare", "sentence"), TARGETS, ids=[row[0] for row in TARGETS]
)
def test_a_target_that_cannot_be_one_is_refused_and_left_as_it_was(
    tmp_path: Path,
    source: Path,
    _name: str,
    place: str,
    prepare: Callable[[Path], None],
    sentence: str,
) -> None:
    target = tmp_path / place
    prepare(target)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TargetError) as caught:
        convert(options_for(tmp_path, source=source, target=target))
    assert sentence in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_to_the_source_is_the_source(tmp_path: Path, source: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    with pytest.raises(TargetError, match="must not lie in the source"):
        convert(options_for(tmp_path, target=link / "new"))


@pytest.mark.parametrize("there", ["missing", "empty", "a mount point"])
def test_a_target_may_be_missing_or_empty(tmp_path: Path, source: Path, there: str) -> None:
    target = tmp_path / "deep/target"
    if there != "missing":
        target.mkdir(parents=True)
    if there == "a mount point":
        (target / "lost+found").mkdir()
    options = options_for(tmp_path, source=source, target=target)
    convert(options)
    checked_target(options)


def test_a_name_that_cannot_be_made_is_said_in_a_sentence(tmp_path: Path, source: Path) -> None:
    with pytest.raises(TargetError, match="cannot be written: File name too long"):
        convert(options_for(tmp_path, source=source, target=tmp_path / ("x" * 300)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_said_in_a_sentence(tmp_path: Path, source: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(TargetError, match="cannot be written: Permission denied"):
        convert(options_for(tmp_path, source=source, target=closed / "target"))


# --- room ----------------------------------------------------------------------------------------


def test_a_disk_with_too_little_room_is_refused_before_the_first_byte(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("migrate.write.room.free_bytes", lambda _: 12_345)
    with pytest.raises(TargetError, match=r"target: [\d,]+ bytes are needed, 12,345 are free"):
        convert(options_for(tmp_path))
    assert not (tmp_path / "target").exists()
    monkeypatch.undo()
    options = options_for(tmp_path, source=source)
    convert(options)
    checked_target(options)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, mounted where the target will be."""
    place = tmp_path / "target"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="only root may mount a small disk"
)
def test_a_disk_that_fills_up_is_said_in_a_sentence_and_the_same_command_goes_on(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[Item] = [LevelMessage(level=2, body=bytes(3000)) for _ in range(60)]
    built = build_level_store(tmp_path / "source", items, commit_log_file_bytes=1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr("migrate.write.room.free_bytes", lambda _: 1 << 40)
        with pytest.raises(TargetError, match="cannot be written: No space left on device"):
            convert(options_for(tmp_path))
    assert not (small_disk / "delaywheel/conversion.json").exists()
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    options = options_for(tmp_path)
    assert_right(Converted(built=built, options=options, report=convert(options)), items)
    usual = options_for(tmp_path, target=tmp_path / "elsewhere")
    convert(usual)
    assert broker_files(small_disk) == broker_files(usual.target)


LIMITED = """
import resource, sys
from pathlib import Path
from message_store.base.errors import TargetError
from migrate.convert import convert
from tests.migrate.conversions import options_for

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    convert(options_for(Path(sys.argv[1])))
except TargetError as error:
    print(error)
"""


@pytest.mark.check
def test_a_limit_on_file_sizes_is_said_in_a_sentence_and_the_same_command_goes_on(
    tmp_path: Path, source: Path
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stderr == ""
    assert child.stdout.endswith("timerwheel: cannot be written: File too large\n")
    options = options_for(tmp_path, source=source)
    assert not (options.target / "delaywheel/conversion.json").exists()
    convert(options)
    checked_target(options)


def test_what_is_no_file_in_the_source_stops_nothing(tmp_path: Path, source: Path) -> None:
    """A socket, a pipe, a stray directory: not a row's file, so passed over."""
    os.mkfifo(source / "commitlog/pipe")
    (source / "commitlog" / f"{1 << 20:020d}").mkdir()
    (source / "consumequeue/stray").touch()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(source / "s"))
    options = options_for(tmp_path)
    assert convert(options).total("converted") == len(ITEMS)
    checked_target(options)


@pytest.mark.parametrize("to", ENGINES)
def test_a_refused_conversion_leaves_no_directory(source: Path, tmp_path: Path, to: str) -> None:
    (source / "abort").touch()
    refused = options_for(tmp_path, to=to, target=tmp_path / "new" / "target")
    for ask in (check_request, convert):
        with pytest.raises(UncleanStoreError):
            ask(refused)
    assert not (tmp_path / "new").exists()
    refused.target.mkdir(parents=True)
    with pytest.raises(UncleanStoreError):
        convert(refused)
    assert list(refused.target.iterdir()) == []


def test_two_conversions_do_not_share_a_target(source: Path, tmp_path: Path) -> None:
    options = options_for(tmp_path)
    options.target.mkdir()
    with (
        sole_writer(StoreRoot(options.target)),
        pytest.raises(TargetError, match="another conversion is writing here"),
    ):
        convert(options)
    assert list(options.target.iterdir()) == []
    assert convert(options).total("converted") == len(ITEMS)


# --- to whom the files belong ---------------------------------------------------------------------


def test_files_belong_to_whom_they_are_given(tmp_path: Path) -> None:
    access = Access(owner=(os.getuid(), os.getgid()), mode=0o640)
    bad = LevelMessage(level=4, without=["REAL_TOPIC"])
    converted = build_and_convert(
        tmp_path, [LevelMessage(level=3), bad], access=access, on_bad_record="quarantine"
    )
    aside = converted.target / "delaywheel/quarantine"
    for path in (converted.target, *converted.target.rglob("*")):
        facts = path.stat()
        wanted = 0o750 if path.is_dir() else 0o600 if aside in path.parents else 0o640
        assert facts.st_mode & 0o777 == wanted, path
        assert (facts.st_uid, facts.st_gid) == (os.getuid(), os.getgid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_gives_the_files_to_the_broker_s_user(tmp_path: Path) -> None:
    converted = build_and_convert(tmp_path, [LevelMessage(level=3)], access=Access((1234, 5678)))
    found = {(path.stat().st_uid, path.stat().st_gid) for path in converted.target.rglob("*")}
    assert found == {(1234, 5678)}


def test_others_cannot_give_them_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OptionsError, match="only root can give files to another user"):
        build_and_convert(tmp_path, [LevelMessage(level=3)], access=Access((1234, 5678)))
    with pytest.raises(OptionsError, match="600 at least"):
        convert(options_for(tmp_path, access=Access(mode=0o440)))
    assert not (tmp_path / "target").exists()
