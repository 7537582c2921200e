# SPDX-License-Identifier: Apache-2.0
"""Which pages of a log are found before they are needed; and that nothing comes of it but speed."""

import os
import threading
from pathlib import Path

import pytest

from message_store.base.errors import TargetError
from message_store.files.live_segments import LiveSegments
from message_store.writing import pages_ahead
from message_store.writing.pages_ahead import PagesAhead, PagesToFind
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore

MIB = 1 << 20
FILE_BYTES = 64 * MIB
LONG_S = 60.0


@pytest.fixture
def segments(tmp_path: Path) -> LiveSegments:
    row = LiveSegments(tmp_path / "commitlog", FILE_BYTES, root=tmp_path)
    row.make_file(0)
    return row


def found(ahead: PagesAhead, end: int) -> tuple[int, int] | None:
    """What is found in MiB when the log ends here; None for nothing."""
    if (pages := ahead.next(end)) is None:
        return None
    pages.find()
    return pages.start // MIB, ahead.found_end // MIB


def test_twice_what_the_log_grew_by_is_found_and_nothing_twice(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    assert found(ahead, 0) is None
    assert found(ahead, 4 * MIB) == (4, 12)
    assert found(ahead, 8 * MIB) == (12, 16)
    assert found(ahead, 8 * MIB) is None
    assert found(ahead, 9 * MIB) is None, "so much of it is there"
    assert found(ahead, 30 * MIB) == (30, 64), "to the end of the file at most"
    segments.close()


def test_a_log_that_grows_little_between_two_flushes_finds_nothing(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    assert not any(found(ahead, end) for end in range(MIB - 1, 16 * MIB, MIB - 1))
    assert found(ahead, 32 * MIB) is not None
    segments.close()


def test_a_small_file_behind_is_found_when_it_is_there(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    assert found(ahead, FILE_BYTES) is None
    assert segments.starts == [0]
    segments.make_file(FILE_BYTES)
    assert found(ahead, FILE_BYTES + MIB) == (65, 128)
    segments.close()


def test_a_large_file_behind_is_made_ahead(
    segments: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_ahead, "AHEAD_FROM_BYTES", FILE_BYTES)
    ahead = PagesAhead(segments, 0)
    assert found(ahead, 20 * MIB) == (20, 60)
    assert segments.starts == [0]
    assert found(ahead, 30 * MIB) == (60, 65)
    assert segments.starts == [0, FILE_BYTES]
    assert segments.is_dirty, "whoever flushes next syncs its name"
    assert found(ahead, 90 * MIB) == (90, 128 + 82)
    assert segments.starts == [0, FILE_BYTES, 2 * FILE_BYTES, 3 * FILE_BYTES]
    segments.close()


def test_a_full_disk_makes_no_file_ahead_and_keeps_nobody(
    segments: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_start: int) -> None:
        raise TargetError("no room")

    monkeypatch.setattr(pages_ahead, "AHEAD_FROM_BYTES", FILE_BYTES)
    monkeypatch.setattr(segments, "make_file", refuse)
    ahead = PagesAhead(segments, 0)
    assert found(ahead, 30 * MIB) == (30, 64)
    assert found(ahead, 60 * MIB) is None
    segments.close()


def test_one_finds_at_a_time(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    pages = ahead.next(4 * MIB)
    assert pages is not None
    assert ahead.next(8 * MIB) is None
    pages.find()
    assert found(ahead, 8 * MIB) is not None
    segments.close()


def test_finding_pages_changes_no_byte_and_takes_no_room(segments: LiveSegments) -> None:
    segments.write_at(0, b"x" * 100)
    path = segments.path_of(0)
    segments.sync()
    blocks = path.stat().st_blocks
    assert found(PagesAhead(segments, 0), 16 * MIB) == (16, 48)
    segments.sync()
    assert path.stat().st_blocks == blocks
    assert path.read_bytes() == b"x" * 100 + bytes(FILE_BYTES - 100)
    segments.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_what_cannot_be_read_keeps_nobody(
    segments: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    ahead = PagesAhead(segments, 0)
    pages = ahead.next(4 * MIB)
    assert pages is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fadvise", refuse)
        pages.find()
    assert not any(map(is_open, pages.descriptors))
    assert found(ahead, 4 * MIB) is not None
    segments.close()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), TargetError("no handle")])
def test_a_file_that_cannot_be_opened_keeps_nobody(
    segments: LiveSegments, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_start: int) -> int:
        raise error

    monkeypatch.setattr(segments, "descriptor", refuse)
    assert PagesAhead(segments, 0).next(4 * MIB) is None
    segments.close()


def test_whoever_flushes_does_not_wait_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    is_found, may_end = threading.Event(), threading.Event()
    find, following = PagesToFind.find, PagesAhead.next

    def next_one(ahead: PagesAhead, end: int) -> PagesToFind | None:
        looked.append(end)
        return following(ahead, end)

    def find_slowly(pages: PagesToFind) -> None:
        assert may_end.wait(LONG_S)
        find(pages)
        is_found.set()

    monkeypatch.setattr(PagesAhead, "next", next_one)
    monkeypatch.setattr(PagesToFind, "find", find_slowly)
    store = LiveStore.open(tmp_path / "store", settings=StoreSettings())
    group = store.group(store.flush)
    store.log.append(MIB, lambda _: bytes(MIB))
    group.run()
    group.run()
    store.close()
    assert looked == [MIB, MIB], "nothing follows a close"
    may_end.set()
    assert is_found.wait(LONG_S)


def test_without_a_thread_there_are_no_pages(
    segments: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ahead = PagesAhead(segments, 0)
    pages = ahead.next(4 * MIB)
    assert pages is not None
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pages.find_in_a_thread()
    assert not any(map(is_open, pages.descriptors))
    assert found(ahead, 4 * MIB) is not None
    segments.close()
