# SPDX-License-Identifier: Apache-2.0
"""Consume queues read as whole ranges: their end, their gaps, their extension units."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, FormatError, TruncatedRecordError
from message_store.files.segments import SegmentReader, segment_name
from message_store.format.java_numbers import LONG_MIN
from message_store.format.queue_unit import EXT_UNIT, PRE_BLANK, QUEUE_UNIT
from message_store.reading.consume_queue import QueueEntries, read_queue, resolve_tags_codes

ROOT = Path(__file__).resolve().parents[3]
READ_WITH_LITTLE_MEMORY = """
import pathlib, resource, sys
from message_store.reading.consume_queue import read_queue
from message_store.base.errors import SourceError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    read_queue(pathlib.Path(sys.argv[1]))
except SourceError as error:
    print(error)
"""

UNITS_A_FILE = 10
FILE_BYTES = UNITS_A_FILE * QUEUE_UNIT.size


def unit(number: int) -> bytes:
    return QUEUE_UNIT.encode(commit_log_offset=number * 100, size_bytes=100, tags_code=number)


def write_row(
    directory: Path, data: bytes, *, start: int = 0, file_bytes: int = FILE_BYTES
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for place in range(0, max(len(data), 1), file_bytes):
        content = data[place : place + file_bytes].ljust(file_bytes, b"\0")
        (directory / segment_name(start + place)).write_bytes(content)
    return directory


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((1234, 183, 1700000060123), "00000000000004d2000000b70000018bcfe652db"),
        ((1234, 184, 1700000060123), "00000000000004d2000000b80000018bcfe652db"),
        ((5678, 203, 2598919), "000000000000162e000000cb000000000027a807"),
        ((0, 2**31 - 1, 0), "00000000000000007fffffff0000000000000000"),
        ((9999, 200, 441731474), "000000000000270f000000c8000000001a544992"),
        ((9999, 200, -9223372036854775768), "000000000000270f000000c88000000000000028"),
    ],
)
def test_units_are_the_bytes_of_the_format(fields: tuple[int, int, int], text: str) -> None:
    names = ("commit_log_offset", "size_bytes", "tags_code")
    values = dict(zip(names, fields, strict=True))
    assert QUEUE_UNIT.encode(**values).hex() == text
    assert QUEUE_UNIT.decode_at(bytes.fromhex(text), 0) == values
    [row] = np.frombuffer(bytes.fromhex(text), QUEUE_UNIT.dtype)
    assert tuple(map(int, row)) == fields


def test_the_extension_unit_is_the_bytes_of_the_format() -> None:
    unit_bytes = EXT_UNIT.encode(
        size_bytes=20, tags_code=1700000060123, store_timestamp_ms=1700000000123, bitmap_bytes=0
    )
    assert unit_bytes.hex() == "00140000018bcfe652db0000018bcfe5687b0000"


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35, 40])
def test_a_queue_ends_before_the_first_empty_unit(tmp_path: Path, count: int) -> None:
    directory = write_row(tmp_path / "0", b"".join(map(unit, range(count))))
    entries = read_queue(directory)
    assert (entries.first_queue_offset, entries.queue_max) == (0, count)
    assert entries.commit_log_offset.tolist() == [number * 100 for number in range(count)]
    assert entries.tags_code.tolist() == list(range(count))
    assert entries.indexed_end == count * 100
    assert (entries.misfits, entries.is_damaged) == ((), False)


def test_a_missing_directory_is_an_empty_queue(tmp_path: Path) -> None:
    entries = read_queue(tmp_path / "none")
    assert (len(entries), entries.queue_min, entries.queue_max) == (0, 0, 0)


def test_a_queue_whose_oldest_files_are_gone_begins_at_its_first_name(tmp_path: Path) -> None:
    data = b"".join(map(unit, range(50, 63)))
    entries = read_queue(write_row(tmp_path / "0", data, start=5 * FILE_BYTES))
    assert (entries.queue_min, entries.first_queue_offset, entries.queue_max) == (50, 50, 63)
    assert entries.tags_code.tolist() == list(range(50, 63))


@pytest.mark.parametrize("from_queue_offset", [0, 5, 10, 37, 44, 45, 99])
def test_only_the_entries_from_an_offset_on_are_given(
    tmp_path: Path, from_queue_offset: int
) -> None:
    directory = write_row(tmp_path / "0", b"".join(map(unit, range(45))))
    entries = read_queue(directory, from_queue_offset=from_queue_offset)
    assert entries.tags_code.tolist() == list(range(45))[from_queue_offset:]
    assert entries.queue_max == 45
    assert entries.queue_min == 0
    assert entries.first_queue_offset == min(from_queue_offset, 45)


def test_a_slice_stays_within_the_entries(tmp_path: Path) -> None:
    entries = read_queue(write_row(tmp_path / "0", b"".join(map(unit, range(15)))))
    assert entries.slice(3, 6).tags_code.tolist() == [3, 4, 5]
    assert entries.slice(3, 6).first_queue_offset == 3
    assert entries.slice(-5, 99).tags_code.tolist() == list(range(15))
    assert len(entries.slice(40, 50)) == 0


def test_pre_blank_units_are_entries_and_recognised(tmp_path: Path) -> None:
    entries = read_queue(write_row(tmp_path / "0", PRE_BLANK * 3 + unit(3)))
    assert entries.is_pre_blank.tolist() == [True, True, True, False]
    assert entries.indexed_end == 400


@pytest.mark.parametrize("bad", [bytes(20), b"\xff" * 20], ids=["zeros", "negative offset"])
def test_an_empty_unit_in_the_last_three_files_ends_the_queue_and_is_noticed(
    tmp_path: Path, bad: bytes
) -> None:
    units = [unit(number) for number in range(45)]
    units[25] = bad
    entries = read_queue(write_row(tmp_path / "0", b"".join(units)))
    assert (entries.queue_max, entries.is_damaged) == (25, True)


@pytest.mark.parametrize("bad", [bytes(20), b"\xff" * 20, bytes(4096)], ids=["0", "-1", "page"])
@pytest.mark.parametrize("before", [3, 2_950])
def test_an_empty_unit_with_others_behind_it_in_its_file_is_noticed(
    tmp_path: Path, bad: bytes, before: int
) -> None:
    data = b"".join(map(unit, range(before))) + bad + unit(before)
    (tmp_path / segment_name(0)).write_bytes(data.ljust(6_000_000, b"\0"))
    entries = read_queue(tmp_path)
    assert (entries.queue_max, entries.is_damaged) == (before, True)


def test_an_empty_unit_before_the_last_three_files_stays_in_the_range(tmp_path: Path) -> None:
    units = [unit(number) for number in range(45)]
    units[7] = bytes(20)
    entries = read_queue(write_row(tmp_path / "0", b"".join(units)))
    assert (entries.queue_max, entries.is_damaged) == (45, True)
    assert entries.size_bytes[7] == 0


@pytest.mark.parametrize("short_by", [1, 20, 35, 199, 200])
def test_a_short_last_file_is_read_as_far_as_it_goes(tmp_path: Path, short_by: int) -> None:
    directory = write_row(tmp_path / "0", b"".join(map(unit, range(20))))
    last = directory / segment_name(FILE_BYTES)
    last.write_bytes(last.read_bytes()[: FILE_BYTES - short_by])
    entries = read_queue(directory)
    assert entries.queue_max == 10 + (FILE_BYTES - short_by) // 20
    assert [segment.start_offset for segment in entries.misfits] == [FILE_BYTES]


def test_a_short_old_file_leaves_empty_units(tmp_path: Path) -> None:
    directory = write_row(tmp_path / "0", b"".join(map(unit, range(45))))
    (directory / segment_name(0)).write_bytes(b"".join(map(unit, range(4))))
    entries = read_queue(directory)
    assert (entries.queue_max, entries.is_damaged) == (45, True)
    assert entries.size_bytes[:11].tolist() == [100] * 4 + [0] * 6 + [100]


def test_a_missing_file_is_an_error_only_where_it_is_needed(tmp_path: Path) -> None:
    directory = write_row(tmp_path / "0", b"".join(map(unit, range(65))))
    (directory / segment_name(FILE_BYTES)).unlink()
    with pytest.raises(TruncatedRecordError, match="a file of the queue is missing"):
        read_queue(directory)
    assert read_queue(directory, from_queue_offset=20).tags_code.tolist() == list(range(20, 65))


@pytest.mark.parametrize("names", [[7], [0, 10**15], [0, 200, 10**19]])
def test_names_that_make_no_row_are_refused(tmp_path: Path, names: list[int]) -> None:
    for name in names:
        (tmp_path / segment_name(name)).write_bytes(unit(1))
    with pytest.raises(FormatError):
        read_queue(tmp_path)


def sparse_row(directory: Path, *lengths: int) -> Path:
    directory.mkdir()
    for number, length in enumerate(lengths):
        path = directory / segment_name(number * length)
        path.write_bytes(unit(0) * 3)
        os.truncate(path, length)
    return directory


def test_a_queue_file_longer_than_a_broker_can_make_it_is_refused(tmp_path: Path) -> None:
    queue = sparse_row(tmp_path / "0", 8 << 40)
    with pytest.raises(BadFieldError, match=r"longer than any queue file .*at most 2147483647 b"):
        read_queue(queue)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits a process as Linux does")
def test_a_queue_that_no_memory_holds_is_refused_with_a_sentence(tmp_path: Path) -> None:
    queue = sparse_row(tmp_path / "0", *[2_147_483_640] * 3)
    run = subprocess.run(
        [sys.executable, "-c", READ_WITH_LITTLE_MEMORY, str(queue)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.stdout == f"{queue}: a queue of 4298967340 bytes, for which there is no memory\n"


def test_a_sparse_file_costs_only_its_used_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / segment_name(0)).write_bytes(unit(0) * 300)
    with (tmp_path / segment_name(0)).open("r+b") as file:
        file.truncate(6_000_000)
    asked: list[int] = []
    read_into = SegmentReader.read_into

    def counting(reader: SegmentReader, offset: int, buffer: memoryview) -> int:
        asked.append(buffer.nbytes)
        return read_into(reader, offset, buffer)

    monkeypatch.setattr(SegmentReader, "read_into", counting)
    entries = read_queue(tmp_path)
    assert len(entries) == 300
    assert sum(asked) <= 60_000
    # A conversion has room for columns taken on the disk.
    assert entries.units.base is not None
    assert entries.units.base.nbytes <= 60_000


@given(st.binary(max_size=450), st.integers(0, 40))
def test_any_bytes_are_a_queue(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, from_queue_offset: int
) -> None:
    directory = write_row(tmp_path_factory.mktemp("queue"), data, file_bytes=100)
    entries = read_queue(directory, from_queue_offset=from_queue_offset)
    assert entries.queue_max >= entries.first_queue_offset >= 0


# --- extension units ------------------------------------------------------------------------------


def ext_unit(tags_code: int, bitmap: bytes = b"") -> bytes:
    return (
        EXT_UNIT.encode(
            size_bytes=EXT_UNIT.size + len(bitmap),
            tags_code=tags_code,
            store_timestamp_ms=1,
            bitmap_bytes=len(bitmap),
        )
        + bitmap
    )


def entries_with(*tags_codes: int) -> QueueEntries:
    units = [QUEUE_UNIT.encode(commit_log_offset=0, size_bytes=1, tags_code=t) for t in tags_codes]
    return QueueEntries(np.frombuffer(b"".join(units), QUEUE_UNIT.dtype), 0, 0)


def test_extension_addresses_are_followed(tmp_path: Path) -> None:
    first = ext_unit(1_700_000_000_001) + ext_unit(1_700_000_000_002, b"1234")
    second = ext_unit(1_700_000_000_003)
    directory = write_row(tmp_path / "ext", first.ljust(100, b"\0") + second, file_bytes=100)
    entries = entries_with(LONG_MIN + 100, 77, LONG_MIN + 20, LONG_MIN, -(2**31))
    tags_codes, unresolved = resolve_tags_codes(entries, directory)
    due = [1_700_000_000_003, 77, 1_700_000_000_002, 1_700_000_000_001, -(2**31)]
    assert tags_codes.tolist() == due
    assert not unresolved.any()


@pytest.mark.parametrize("address", [1, 20, 90, 99, 150, 250, 2**40, 2**63 - 2**31 - 1], ids=str)
def test_an_address_that_leads_to_no_unit_stays_unresolved(tmp_path: Path, address: int) -> None:
    data = ext_unit(5).ljust(100, b"\0")
    directory = write_row(tmp_path / "ext", data, file_bytes=100)
    write_row(tmp_path / "ext", ext_unit(6).ljust(100, b"\xff"), start=200, file_bytes=100)
    entries = entries_with(LONG_MIN + address, LONG_MIN, LONG_MIN + 200)
    tags_codes, unresolved = resolve_tags_codes(entries, directory)
    assert tags_codes.tolist() == [LONG_MIN + address, 5, 6]
    assert unresolved.tolist() == [True, False, False]


def test_without_extension_files_every_address_is_unresolved(tmp_path: Path) -> None:
    tags_codes, unresolved = resolve_tags_codes(entries_with(LONG_MIN, 3), tmp_path / "none")
    assert tags_codes.tolist() == [LONG_MIN, 3]
    assert unresolved.tolist() == [True, False]
