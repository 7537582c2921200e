# SPDX-License-Identifier: Apache-2.0
"""What is read once leaves the system's cache as it was; the same bytes come either way."""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from message_store.files.segments import SegmentReader, segment_name
from message_store.reading.spans import SpanReader

FILE_BYTES = 8 << 20
RECORD_BYTES = 1 << 10


@pytest.fixture
def log() -> Iterator[SegmentReader]:
    """Two files on a disk, not in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        for number in range(2):
            path = Path(name, segment_name(number * FILE_BYTES))
            path.write_bytes(np.random.default_rng(number).bytes(FILE_BYTES))
        with SegmentReader(Path(name)) as reader:
            forget_all(reader)
            if cached(reader) != [0, 0] or reader.is_cached(0):
                pytest.skip("this disk keeps all that was written in memory, or does not say")
            for _ in range(1_000):  # asking reads ahead, and a page on its way is not forgotten
                forget_all(reader)
                if cached(reader) == [0, 0]:
                    break
            assert cached(reader) == [0, 0]
            yield reader


def cached(reader: SegmentReader) -> list[float]:
    """Which part of each file the system has in memory; asking changes nothing."""
    parts = []
    for segment in reader.segments:
        with segment.path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        place = ctypes.c_char.from_buffer(memory)
        pages = (ctypes.c_ubyte * (FILE_BYTES // mmap.PAGESIZE))()
        size = ctypes.c_size_t(FILE_BYTES)
        assert ctypes.CDLL(None).mincore(ctypes.byref(place), size, pages) == 0
        parts.append(sum(page & 1 for page in pages) / len(pages))
        del place
        memory.close()
    return parts


def forget_all(reader: SegmentReader) -> None:
    for segment in reader.segments:
        descriptor = os.open(segment.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_all(reader: SegmentReader, *, is_read_once: bool) -> list[bytes]:
    offsets = np.arange(100, 2 * FILE_BYTES - RECORD_BYTES, RECORD_BYTES)
    offsets = offsets[offsets % FILE_BYTES <= FILE_BYTES - RECORD_BYTES]
    sizes = np.full(len(offsets), RECORD_BYTES)
    spans = SpanReader(reader, is_read_once=is_read_once).spans(offsets, sizes)
    return [span.buffer[: span.available].tobytes() for span in spans]


def test_what_was_not_cached_is_not_cached_afterwards(log: SegmentReader) -> None:
    found = read_all(log, is_read_once=True)
    assert max(cached(log)) < 0.3  # what was read ahead at an end
    assert read_all(log, is_read_once=False) == found
    assert min(cached(log)) > 0.9


def test_what_was_cached_stays(log: SegmentReader) -> None:
    log.read_at(0, FILE_BYTES)
    read_all(log, is_read_once=True)
    first, second = cached(log)
    assert first == 1
    assert second < 0.3


def test_bytes_that_no_file_has_are_no_reason_to_fail(log: SegmentReader) -> None:
    assert log.is_cached(3 * FILE_BYTES)
    log.forget(3 * FILE_BYTES, 4 * FILE_BYTES)
