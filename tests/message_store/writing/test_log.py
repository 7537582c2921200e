# SPDX-License-Identifier: Apache-2.0
"""The log open for writing: where records go, what a failed append leaves, what expires."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, FormatError, TargetError, TruncatedRecordError
from message_store.format.message_codec import encode_message, record_size_at
from message_store.format.record_layout import BLANK_RECORD, MAGIC_BLANK
from message_store.reading.commit_log import NO_TIME
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import (
    NOW_MS,
    SMALL,
    append,
    append_rows,
    log_records,
    require_sound,
    stored,
)

FILE_BYTES = SMALL.commit_log_file_bytes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    opened = LiveStore.open(tmp_path / "store", settings=SMALL)
    yield opened
    opened.abandon()


def size_of(body_bytes: int) -> int:
    return len(encode_message(stored(bytes(body_bytes))))


def test_records_lie_one_behind_another_from_the_first_byte(store: LiveStore) -> None:
    places = [append(store, stored(b"x" * size)) for size in (0, 1, 100)]
    assert places[0] == 0
    assert [offset for offset, _ in map(_place, log_records(store))] == places
    assert store.log.last_start == places[-1]


def _place(found: tuple[Any, int]) -> tuple[int, int]:
    return found[0].commit_log_offset, found[1]


@pytest.mark.parametrize("left", [7, 8, 9, 15, 16])
@pytest.mark.parametrize("in_rows", [False, True])
def test_a_record_goes_to_the_next_file_when_it_would_leave_less_than_eight_bytes(
    store: LiveStore, left: int, in_rows: bool
) -> None:
    put: Callable[[Any], object] = (
        (lambda message: append_rows(store, [message])) if in_rows else lambda m: append(store, m)
    )
    empty = size_of(0)
    put(stored(bytes(FILE_BYTES // 2)))
    room = FILE_BYTES - store.log.end
    put(stored(bytes(room - left - empty)))
    end_of_last = store.log.end
    if left < 8:
        assert end_of_last > FILE_BYTES
        return
    assert end_of_last == FILE_BYTES - left
    put(stored(b"next"))
    assert store.log.last_start == FILE_BYTES
    blank = BLANK_RECORD.decode_at(store.log.segments.read_at(end_of_last, 8), 0)
    assert blank == {"size_bytes": left, "magic": MAGIC_BLANK}
    assert (store.root.commit_log / "00000000000000016384").stat().st_size == FILE_BYTES


@pytest.mark.parametrize("in_rows", [False, True])
def test_a_record_larger_than_a_file_is_refused(store: LiveStore, in_rows: bool) -> None:
    append(store, stored(b"kept"))
    message = stored(bytes(FILE_BYTES))
    with pytest.raises(BadFieldError, match="larger than a log file"):
        append_rows(store, [stored(b"small"), message]) if in_rows else append(store, message)
    assert require_sound(store) == [b"kept"]
    append(store, stored(b"after"))
    assert require_sound(store) == [b"kept", b"after"]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=25,
)
@given(steps=st.lists(st.one_of(st.integers(0, 9_000), st.lists(st.integers(0, 9_000)))))
def test_one_by_one_and_in_rows_is_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    one = LiveStore.open(folder / "one", settings=SMALL)
    rows = LiveStore.open(folder / "rows", settings=SMALL)
    for number, step in enumerate(steps):
        sizes = [step] if isinstance(step, int) else step
        messages = [stored(bytes([number % 256]) * size) for size in sizes]
        for message in messages:
            append(one, message)
        append_rows(rows, messages) if isinstance(step, list) else append(rows, messages[0])
    assert one.log.end == rows.log.end
    assert one.log.last_start == rows.log.last_start
    contents = [
        [p.read_bytes() for p in sorted(store.root.path.glob("c*/**/0*")) if p.is_file()]
        for store in (one, rows)
    ]
    assert contents[0] == contents[1]
    assert require_sound(rows) == require_sound(one)
    one.abandon()
    rows.abandon()


def test_a_batch_of_many_files_is_what_the_scalar_codec_reads(store: LiveStore) -> None:
    append(store, stored(b"first"))
    bodies = [os.urandom(size % 5_000) for size in range(0, 90_000, 997)]
    append_rows(store, [stored(body) for body in bodies])
    assert require_sound(store) == [b"first", *bodies]
    assert len(store.log.segments.starts) > 10
    file = store.log.segments.view(FILE_BYTES, FILE_BYTES)
    assert record_size_at(file, record_size_at(file, 0)) > 0  # more than one record


class FullDisk:
    """Refuses a write after so many, or takes only a part of it."""

    def __init__(self, allowed: int, *, partly: bool) -> None:
        self.allowed = allowed
        self.partly = partly
        self.real = os.pwrite

    def pwrite(self, descriptor: int, data: Any, place: int) -> int:
        self.allowed -= 1
        if self.allowed == -1:
            if self.partly:
                return self.real(descriptor, memoryview(data)[: len(data) // 2], place)
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(descriptor, data, place)


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("allowed", range(6))
def test_an_append_that_the_disk_refuses_leaves_nothing_behind(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch, allowed: int, partly: bool
) -> None:
    append(store, stored(b"kept"))
    end = store.log.end
    disk = FullDisk(allowed, partly=partly)
    monkeypatch.setattr(os, "pwrite", disk.pwrite)
    try:
        append_rows(store, [stored(bytes([number]) * 5_000) for number in range(12)])
        was_refused = False
    except TargetError:
        was_refused = True
    monkeypatch.undo()
    assert was_refused or partly or allowed > 4
    if was_refused:
        assert store.log.end == end
        assert not store.log.segments.has_data_from(end)
        append(store, stored(b"after"))
        assert require_sound(store) == [b"kept", b"after"]


@pytest.mark.parametrize(("body_bytes", "allowed"), [(900, 0), (5_000, 0), (5_000, 1)])
@pytest.mark.parametrize("partly", [False, True])
def test_a_record_that_the_disk_refuses_leaves_nothing_behind(
    store: LiveStore,
    monkeypatch: pytest.MonkeyPatch,
    body_bytes: int,
    allowed: int,
    partly: bool,
) -> None:
    append(store, stored(b"kept"))
    end = store.log.end
    monkeypatch.setattr(os, "pwrite", FullDisk(allowed, partly=partly).pwrite)
    with pytest.raises(TargetError, match=r"No space left|only a part"):
        append(store, stored(b"x" * body_bytes))
    monkeypatch.undo()
    assert store.log.end == end
    assert not store.log.segments.has_data_from(end)
    append(store, stored(b"after"))
    assert require_sound(store) == [b"kept", b"after"]


def test_a_file_whose_end_cannot_be_marked_is_gone_on_with(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next file is there by then, and nothing may go into it."""
    append(store, stored(bytes(FILE_BYTES - 600)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", FullDisk(0, partly=False).pwrite)
        with pytest.raises(TargetError, match="No space left"):
            append(store, stored(b"x" * 900))
    append(store, stored(b"small"))
    append(store, stored(b"x" * 900))
    assert require_sound(store)[1:] == [b"small", b"x" * 900]


@pytest.mark.parametrize(
    ("end", "sizes"),
    [
        (4_096 - 300, [300]),
        (4_096 - 299, [1, 299]),
        (4_096 - 8, [292, 8]),
        (4_096 - 7, [292, 8]),
        (4_096, [300]),
    ],
)
def test_what_publishes_a_record_is_one_write_into_one_page(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch, end: int, sizes: list[int]
) -> None:
    """But for the eight bytes of a head that crosses a page, which go in order."""
    append(store, stored(bytes(end - size_of(0))))
    assert store.log.end == end
    written = []
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, place: int) -> int:
        written.append((place, len(data)))
        return real(descriptor, data, place)

    message = stored(bytes(300 - size_of(0)))
    monkeypatch.setattr(os, "pwrite", pwrite)
    append(store, message)
    places = [end + 300 - sizes[0], end] if len(sizes) > 1 else [end]
    assert list(zip(places, sizes, strict=True)) == written[: len(sizes)]


@pytest.mark.parametrize("body_bytes", [10, 70_000, FILE_BYTES // 2])
def test_pages_made_ready_say_nothing_and_lie_within_the_file(
    store: LiveStore, body_bytes: int
) -> None:
    for _ in range(5):
        append(store, stored(bytes(min(body_bytes, FILE_BYTES // 2))))
        files = sorted((store.root.path / "commitlog").iterdir())
        assert {file.stat().st_size for file in files} == {FILE_BYTES}
        written = b"".join(file.read_bytes() for file in files)
        assert not any(written[store.log.end :])
    assert len(log_records(store)) == 5


def test_pages_that_cannot_be_made_ready_keep_no_record_out(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def refuses_zeros(descriptor: int, data: Any, place: int) -> int:
        if not any(bytes(data)):
            raise OSError(errno.ENOSPC, "no space left")
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", refuses_zeros)
    append(store, stored(b"all the same"))
    assert [record.body for record, _ in log_records(store)] == [b"all the same"]


def test_what_fill_raises_goes_through_and_nothing_is_stored(store: LiveStore) -> None:
    append(store, stored(b"kept"))

    def fill(rows: slice, positions: object, target: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.log.append_rows(np.array([200, 300]), fill)
    assert require_sound(store) == [b"kept"]


def test_after_a_disk_that_cannot_even_take_zeros_nothing_more_is_appended(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    append(store, stored(b"kept"))
    real, calls = os.pwrite, []

    def first_only(descriptor: int, data: Any, place: int) -> int:
        calls.append(place)
        return real(descriptor, data, place) if len(calls) == 1 else refuse()

    monkeypatch.setattr(os, "pwrite", first_only)
    with pytest.raises(TargetError):
        append(store, stored(b"x" * 5_000))
    monkeypatch.undo()
    with pytest.raises(TargetError, match="open it again"):
        append(store, stored(b"later"))
    with pytest.raises(TargetError, match="open it again"):
        append_rows(store, [stored(b"later")])
    store.close()
    assert store.root.abort.exists()
    again = LiveStore.open(store.root.path, settings=SMALL)
    assert require_sound(again) == [b"kept"]
    again.close()


def test_a_record_is_read_back_or_named_as_missing(store: LiveStore) -> None:
    place = append(store, stored(b"here"))
    size_bytes = store.log.end - place
    assert store.log.record(place, size_bytes).body == b"here"
    for offset, size in ((place + 1, size_bytes), (place, size_bytes + 1), (-1, 5), (place, 0)):
        with pytest.raises(FormatError):
            store.log.record(offset, size)
    with pytest.raises(TruncatedRecordError):
        store.log.record(FILE_BYTES - 10, 20)


def test_addresses_are_given_inside_the_log_only(store: LiveStore) -> None:
    append_rows(store, [stored(bytes(3_000)) for _ in range(12)])
    end = store.log.end
    offsets = np.array([0, FILE_BYTES, end - 1, end, -1, 10**15])
    addresses, rooms = store.log.addresses(offsets), store.log.rooms(offsets)
    assert (addresses[:3] > 0).all()
    assert (addresses[3:] == -1).all()
    assert rooms[:3].tolist() == [FILE_BYTES, min(FILE_BYTES, end - FILE_BYTES), 1]
    assert rooms[3] == 0
    first = store.log.segments.view(0, 100)
    assert bytes(np.frombuffer(first, np.uint8)) == store.log.segments.read_at(0, 100)


# --- retention ------------------------------------------------------------------------------------


def filled(store: LiveStore, times_ms: list[int]) -> None:
    """One log file for each time but the last."""
    for store_ms in times_ms:
        append(store, stored(bytes(9_000), store_ms=store_ms - 5))
        append(store, stored(bytes(6_000), store_ms=store_ms))


def test_files_are_over_when_their_last_record_is_old_enough_but_never_the_last_one(
    store: LiveStore,
) -> None:
    filled(store, [NOW_MS, NOW_MS + 1_000, NOW_MS + 2_000, NOW_MS + 3_000])
    everything = 10**12
    keep_ms = 10_000
    assert store.log.end_of_expired(NOW_MS + keep_ms - 1, keep_ms, everything) == 0
    assert store.log.end_of_expired(NOW_MS + keep_ms, keep_ms, everything) == FILE_BYTES
    store.log.segments.delete_before(FILE_BYTES)
    assert store.log.end_of_expired(NOW_MS + keep_ms, keep_ms, everything) == FILE_BYTES
    assert store.log.end_of_expired(NOW_MS * 2, keep_ms, everything) == 3 * FILE_BYTES


@pytest.mark.parametrize(
    ("keep_from", "over"),
    [(0, 0), (FILE_BYTES - 1, 0), (FILE_BYTES, 1), (2 * FILE_BYTES + 1, 2), (10**12, 3)],
)
def test_nothing_is_over_that_is_still_needed(store: LiveStore, keep_from: int, over: int) -> None:
    filled(store, [NOW_MS] * 4)
    assert store.log.end_of_expired(NOW_MS * 2, 1, keep_from) == over * FILE_BYTES


def test_a_file_whose_last_record_is_young_stays_though_its_first_is_old(store: LiveStore) -> None:
    filled(store, [NOW_MS + 50_000, NOW_MS + 1, NOW_MS + 2])
    append(store, stored(b"old", store_ms=NOW_MS))
    assert store.log.end_of_expired(NOW_MS + 50_000 + 999, 1_000, 10**12) == 0
    assert store.log.end_of_expired(NOW_MS + 51_000, 1_000, 10**12) == 2 * FILE_BYTES


def test_store_times_of_many_are_those_of_each(store: LiveStore) -> None:
    places = [append(store, stored(bytes(size))) for size in (0, 10, 9_000, 9_000, 300)]
    ends = [*places[1:], store.log.end]
    sizes = [end - place for place, end in zip(places, ends, strict=True)]
    sizes[2] = size_of(9_000)  # a blank follows it
    asked = np.array([*places, 1, -5, store.log.end, 10**9], np.int64)
    wanted = [store.log.store_time_ms(int(place)) or NO_TIME for place in asked]
    assert store.log.store_times_ms(asked).tolist() == wanted
    assert wanted[0] == NOW_MS
    of_that_size = np.array([*sizes[:-1], sizes[-1] - 1, 0, 0, 0, 0], np.int64)
    found = store.log.store_times_ms(asked, of_that_size).tolist()
    assert found == [NOW_MS] * 4 + [NO_TIME] * 5
