# SPDX-License-Identifier: Apache-2.0
"""Which pages of a log are found before they are needed; and that nothing comes of it but speed."""

import mmap
import os
from pathlib import Path

import pytest

from message_store.live_segments import LiveSegments
from message_store.live_store import LiveStore
from message_store.pages_ahead import PagesAhead, PagesToFind
from message_store.store_settings import StoreSettings

MIB = 1 << 20
FILE_BYTES = 64 * MIB


@pytest.fixture
def segments(tmp_path: Path) -> LiveSegments:
    row = LiveSegments(tmp_path / "commitlog", FILE_BYTES, root=tmp_path)
    row.make_file(0)
    return row


def found(pages: PagesToFind | None) -> tuple[int, int] | None:
    if pages is None:
        return None
    pages.find()
    return pages.start // MIB, pages.stop // MIB


def test_twice_what_the_log_grew_by_is_found_and_nothing_twice(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    assert found(ahead.next(0)) is None
    assert found(ahead.next(4 * MIB)) == (4, 12)
    assert found(ahead.next(8 * MIB)) == (12, 16)
    assert found(ahead.next(8 * MIB)) is None
    assert found(ahead.next(8 * MIB)) is None
    assert found(ahead.next(9 * MIB)) is None, "so much of it is there"
    assert found(ahead.next(30 * MIB)) == (30, 64), "to the end of the file at most"
    segments.close()


def test_a_log_that_grows_little_finds_a_piece_now_and_then(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    ends = range(0, 4 * MIB, 1_000)
    assert [found(ahead.next(end)) for end in ends if end].count(None) > len(ends) - 8
    segments.close()


def test_a_file_that_is_not_there_yet_is_left_alone(segments: LiveSegments) -> None:
    ahead = PagesAhead(segments, 0)
    assert found(ahead.next(FILE_BYTES)) is None
    assert segments.starts == [0]
    segments.close()


def test_finding_pages_changes_no_byte_and_takes_no_room(segments: LiveSegments) -> None:
    segments.write_at(0, b"x" * 100)
    path = segments.path_of(0)
    segments.sync()
    blocks = path.stat().st_blocks
    assert found(PagesAhead(segments, 0).next(16 * MIB)) == (16, 48)
    segments.sync()
    assert path.stat().st_blocks == blocks
    assert path.read_bytes() == b"x" * 100 + bytes(FILE_BYTES - 100)
    segments.close()


def test_a_disk_that_refuses_keeps_nobody(
    segments: LiveSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    pages = PagesAhead(segments, 0).next(4 * MIB)
    assert pages is not None
    monkeypatch.setattr(os, "preadv", refuse)
    pages.find()
    with pytest.raises(OSError, match="Bad file descriptor"):
        mmap.mmap(pages.descriptor, mmap.PAGESIZE)
    segments.close()


def test_every_flush_that_is_shared_looks_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(PagesAhead, "next", lambda _self, end: looked.append(end))
    store = LiveStore.open(tmp_path / "store", settings=StoreSettings())
    group = store.group(store.flush)
    group.run()
    assert looked == [0]
    store.close()
    assert looked == [0]
