# SPDX-License-Identifier: Apache-2.0
"""The commit log in bulk: its end, damage, times by offset; kernels held to the scalar codec."""

import struct
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from message_store.base.errors import FormatError
from message_store.files.segments import SegmentReader, segment_name
from message_store.format.message_codec import decode_message_at
from message_store.kernels.log import FILE_ENDS, NEEDS_MORE, NO_RECORD, WALKED, walk_window
from message_store.kernels.raw_memory import address_of
from message_store.reading.commit_log import (
    NO_TIME,
    LogWalk,
    find_log_end,
    first_store_times,
    read_prepared_offsets,
    read_store_times,
    start_of_last_used_file,
)
from tests.independent.raw_records import (
    BORN_HOST_IPV6,
    MAGIC_V2,
    STORE_HOST_IPV6,
    RawRecord,
    encode_record,
)

BLANK = 0xCBD43194
FILE_BYTES = 1_000


def record(offset: int, time_ms: int = 5, body: bytes = b"hello", **fields: object) -> bytes:
    plain = RawRecord(topic="TopicA", body=body, properties=b"a\x01b\x02")
    given = attrs.evolve(
        plain,
        commit_log_offset=offset,
        store_timestamp_ms=time_ms,
        **fields,  # type: ignore[arg-type]
    )
    return encode_record(given)


def log_of(count: int, *, file_bytes: int = FILE_BYTES) -> tuple[bytes, list[int]]:
    """Log bytes with blanks at file ends, and where the records begin; times are 1000 + number."""
    data, offsets = b"", []
    for number in range(count):
        one = record(len(data), 1_000 + number)
        left = file_bytes - len(data) % file_bytes
        if len(one) + 8 > left:
            data += struct.pack(">iI", left, BLANK).ljust(left, b"\0")
            one = record(len(data), 1_000 + number)
        offsets.append(len(data))
        data += one
    return data, offsets


def write_log(
    directory: Path, data: bytes, *, file_bytes: int = FILE_BYTES, start: int = 0, spare: int = 0
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    data = data.ljust(-(-len(data) // file_bytes) * file_bytes + spare * file_bytes, b"\0")
    for place in range(0, len(data), file_bytes):
        (directory / segment_name(start + place)).write_bytes(data[place : place + file_bytes])
    return directory


def ends(data: bytes, offsets: list[int]) -> list[int]:
    return [offset + struct.unpack_from(">i", data, offset)[0] for offset in offsets]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 50])
@pytest.mark.parametrize("spare", [0, 1])
def test_the_log_ends_behind_its_last_record(tmp_path: Path, count: int, spare: int) -> None:
    data, offsets = log_of(count)
    with SegmentReader(write_log(tmp_path, data, spare=spare)) as reader:
        bounds = find_log_end(reader)
        assert bounds.log_end == (ends(data, offsets)[-1] if count else 0)
        assert bounds.newest_store_ms == (999 + count if count else NO_TIME)
        assert find_log_end(reader, from_offset=0).log_end == bounds.log_end


def test_only_the_newest_used_file_is_walked(tmp_path: Path) -> None:
    data, offsets = log_of(50)
    with SegmentReader(write_log(tmp_path, data, spare=2)) as reader:
        start = start_of_last_used_file(reader)
        assert start == offsets[-1] - offsets[-1] % FILE_BYTES
        assert find_log_end(reader).bytes_scanned == FILE_BYTES


@pytest.mark.parametrize(
    "tail",
    [
        b"\x5a" * 300,
        record(0)[:60],
        record(123),
        record(0, magic=-5),
        struct.pack(">iI", 90, 0xDAA320A7) + bytes(200),
        struct.pack(">iI", 10**9, 0xDAA320A7) + bytes(200),
        struct.pack(">iI", -1, 0xDAA320A7) + bytes(200),
    ],
    ids=["garbage", "torn", "stale", "magic", "small", "huge", "negative"],
)
def test_the_log_ends_where_no_record_fits(tmp_path: Path, tail: bytes) -> None:
    data, offsets = log_of(3)
    with SegmentReader(write_log(tmp_path, data + tail)) as reader:
        assert find_log_end(reader).log_end == ends(data, offsets)[-1]


def test_a_record_with_a_damaged_body_ends_the_log(tmp_path: Path) -> None:
    data, offsets = log_of(4)
    damaged = data[: offsets[3]] + data[offsets[3] :].replace(b"hello", b"hellO")
    with SegmentReader(write_log(tmp_path, damaged)) as reader:
        assert find_log_end(reader).log_end == offsets[3]


@pytest.mark.parametrize("blank", [8, 9, 100])
def test_a_blank_of_any_size_leads_to_the_next_file(tmp_path: Path, blank: int) -> None:
    room = FILE_BYTES - blank
    first = record(0, body=b"x" * (room - len(record(0, body=b""))))
    data = first + struct.pack(">iI", blank, BLANK).ljust(blank, b"\0") + record(FILE_BYTES, 9)
    with SegmentReader(write_log(tmp_path, data)) as reader:
        assert find_log_end(reader, from_offset=0).newest_store_ms == 9


@pytest.mark.parametrize("large", [300_000, 700_000])
def test_a_record_larger_than_the_first_buffer_is_walked(tmp_path: Path, large: int) -> None:
    one = record(0, 7, body=bytes(large))
    data = one + record(len(one), 8)
    with SegmentReader(write_log(tmp_path, data, file_bytes=1 << 20)) as reader:
        bounds = find_log_end(reader)
    assert (bounds.log_end, bounds.newest_store_ms) == (len(data), 8)


def test_a_log_that_lost_its_oldest_files_begins_at_its_first_name(tmp_path: Path) -> None:
    data, offsets = log_of(50)
    write_log(tmp_path, data)
    (tmp_path / segment_name(0)).unlink()
    with SegmentReader(tmp_path) as reader:
        bounds = find_log_end(reader, from_offset=FILE_BYTES)
    assert (bounds.log_min, bounds.log_end) == (FILE_BYTES, ends(data, offsets)[-1])


# --- damage in the middle -------------------------------------------------------------------------


def walk(reader: SegmentReader, known_end: int) -> tuple[int, int, list[int]]:
    steps = LogWalk(reader, known_end=known_end)
    found = np.zeros(WALKED, np.int64)
    seen = 0

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        nonlocal seen
        walk_window(address, length, base, room, found)
        seen += int(found[0])
        return int(found[1]), int(found[2])

    end = steps.run(0, visit)
    return seen, end, steps.damaged_places


def test_damage_in_an_old_file_is_stepped_over(tmp_path: Path) -> None:
    data, offsets = log_of(50)
    broken = bytearray(data)
    broken[offsets[2] + 4] ^= 0xFF
    with SegmentReader(write_log(tmp_path, bytes(broken))) as reader:
        assert walk(reader, 0) == (49, ends(data, offsets)[-1], [offsets[2]])


def test_damage_in_the_newest_file_ends_the_walk_unless_records_are_known_to_follow(
    tmp_path: Path,
) -> None:
    data, offsets = log_of(5)
    broken = bytearray(data)
    broken[offsets[2] + 4] ^= 0xFF
    end = ends(data, offsets)[-1]
    with SegmentReader(write_log(tmp_path, bytes(broken))) as reader:
        assert walk(reader, 0) == (2, offsets[2], [])
        assert walk(reader, end) == (4, end, [offsets[2]])


def test_a_missing_file_in_the_row_is_stepped_over(tmp_path: Path) -> None:
    data, offsets = log_of(50)
    write_log(tmp_path, data)
    (tmp_path / segment_name(FILE_BYTES)).unlink()
    there = [offset for offset in offsets if not FILE_BYTES <= offset < 2 * FILE_BYTES]
    with SegmentReader(tmp_path) as reader:
        assert walk(reader, 0) == (len(there), ends(data, offsets)[-1], [])


@given(st.binary(max_size=600), st.integers(0, 700))
def test_any_bytes_in_a_log_are_walked(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, place: int
) -> None:
    data, _offsets = log_of(8, file_bytes=400)
    data = data[:place] + garbage + data[place + len(garbage) :]
    directory = write_log(tmp_path_factory.mktemp("log"), data, file_bytes=400)
    with SegmentReader(directory) as reader:
        for known_end in (0, len(data)):
            _seen, end, _damaged = walk(reader, known_end)
            assert 0 <= end <= reader.end_offset


# --- the kernel against the scalar codec ----------------------------------------------------------


def scalar_walk(data: bytes) -> list[int]:
    return places_and_stop(data)[0]


def places_and_stop(data: bytes) -> tuple[list[int], str]:
    places: list[int] = []
    place = 0
    while True:
        try:
            message = decode_message_at(data, place)
        except FormatError as error:
            return places, error.problem
        if message.commit_log_offset != place:
            return places, "another offset"
        places.append(place)
        place += struct.unpack_from(">i", data, place)[0]


def kernel_walk(data: bytes) -> tuple[int, int, int]:
    found = np.zeros(WALKED, np.int64)
    buffer = np.frombuffer(data, np.uint8).copy()
    walk_window(address_of(buffer), len(data), 0, len(data), found)
    return int(found[0]), int(found[1]), int(found[2])


def odd_records() -> bytes:
    data = b""
    for fields in (
        {"sys_flag": BORN_HOST_IPV6, "born_ip": bytes(16)},
        {"sys_flag": STORE_HOST_IPV6, "store_ip": bytes(16)},
        {
            "sys_flag": BORN_HOST_IPV6 | STORE_HOST_IPV6,
            "born_ip": bytes(16),
            "store_ip": bytes(16),
        },
        {"topic": "t" * 200, "magic": MAGIC_V2},
        {"body": b"", "properties": b""},
    ):
        data += record(len(data), **fields)
    return data


def test_every_shape_of_record_is_walked() -> None:
    data = odd_records()
    assert kernel_walk(data) == (5, len(data), FILE_ENDS)


def test_every_cut_is_noticed() -> None:
    data = odd_records()
    places = [*scalar_walk(data), len(data)]
    for length in range(len(data)):
        count, place, why = kernel_walk(data[:length])
        assert place == max(p for p in places if p <= length)
        assert places[count] == place
        assert why == (FILE_ENDS if length - place < 8 else NO_RECORD)


def test_a_record_that_the_buffer_cuts_off_asks_for_more() -> None:
    data = np.frombuffer(odd_records(), np.uint8).copy()
    found = np.zeros(WALKED, np.int64)
    for length in range(1, 100):
        walk_window(address_of(data), length, 0, len(data), found)
        assert found[:3].tolist() == [0, 0, NEEDS_MORE]


@given(st.lists(st.tuples(st.integers(0, 800), st.integers(0, 255)), min_size=1, max_size=4))
def test_the_kernel_believes_what_the_scalar_codec_believes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(odd_records())
    for place, value in changes:
        data[place % len(data)] = value
    places, stop = places_and_stop(bytes(data))
    assume("not UTF-8" not in stop)  # no broker minds when it walks
    count, _place, _why = kernel_walk(bytes(data))
    assert count == len(places)


# --- times by offset ------------------------------------------------------------------------------


def test_store_times_are_found_by_offset_in_any_order(tmp_path: Path) -> None:
    data, offsets = log_of(60)
    order = np.random.default_rng(1).permutation(60)
    asked = np.array(offsets, np.int64)[order]
    sizes = np.array(ends(data, offsets), np.int64)[order] - asked
    with SegmentReader(write_log(tmp_path, data)) as reader:
        times = read_store_times(reader, asked, sizes)
    assert times.tolist() == (order + 1_000).tolist()


def test_the_store_time_behind_an_ipv6_born_host_is_found(tmp_path: Path) -> None:
    one = record(0, 77, sys_flag=BORN_HOST_IPV6, born_ip=bytes(16))
    with SegmentReader(write_log(tmp_path, one)) as reader:
        assert read_store_times(reader, np.zeros(1, np.int64), np.full(1, len(one)))[0] == 77


@pytest.mark.parametrize("born_v6", [False, True])
def test_the_prepared_offset_behind_any_host_is_found(tmp_path: Path, born_v6: bool) -> None:
    hosts: dict[str, Any] = {"sys_flag": BORN_HOST_IPV6, "born_ip": bytes(16)} if born_v6 else {}
    first = record(0, 77, prepared_transaction_offset=-6, body=b"x" * 40, **hosts)
    data = first + record(len(first), 78, prepared_transaction_offset=~3, body=b"x" * 40)
    places = np.array([len(first), 0, 1], np.int64)
    sizes = np.array([len(data) - len(first), len(first), len(first)], np.int64)
    with SegmentReader(write_log(tmp_path, data)) as reader:
        assert read_prepared_offsets(reader, places, sizes).tolist() == [~3, -6, 0]
        assert read_prepared_offsets(reader, places, sizes + 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("offset", [-(2**63), -1, 1, 500, 990, 999, 1_000, 10**6, 2**63 - 1])
def test_where_no_record_begins_there_is_no_time(tmp_path: Path, offset: int) -> None:
    data, offsets = log_of(3)
    size = ends(data, offsets)[0]
    asked = np.array([offset, 0], np.int64)
    with SegmentReader(write_log(tmp_path, data)) as reader:
        assert read_store_times(reader, asked, np.full(2, size)).tolist() == [NO_TIME, 1_000]


def test_a_record_of_another_size_has_no_time(tmp_path: Path) -> None:
    data, _offsets = log_of(1)
    with SegmentReader(write_log(tmp_path, data)) as reader:
        wrong = np.full(1, len(data) + 1, np.int64)
        assert read_store_times(reader, np.zeros(1, np.int64), wrong)[0] == NO_TIME


def test_files_are_dated_by_their_first_record(tmp_path: Path) -> None:
    data, offsets = log_of(20)
    with SegmentReader(write_log(tmp_path, data, spare=1)) as reader:
        starts = first_store_times(reader)
    firsts = {offset - offset % FILE_BYTES: offset for offset in reversed(offsets)}
    assert starts == [
        (start, 1_000 + offsets.index(offset)) for start, offset in sorted(firsts.items())
    ]
