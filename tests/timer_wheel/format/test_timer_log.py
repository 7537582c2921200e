# SPDX-License-Identifier: Apache-2.0
"""The timer log: a broker's own bytes, where units lie, and where reading stops."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.files.segments import SegmentReader, segment_name
from timer_wheel.format.timer_log import (
    TIMER_BLANK,
    TIMER_UNIT,
    TimerUnits,
    blank_bytes,
    log_end_position,
    read_units,
    unit_position,
    unit_runs,
    units_per_file,
)

#: Units as a 5.3.3 broker reads and writes them, at 1700000001000.
T1 = bytes.fromhex(
    "00000034ffffffffffffffff000000010000018bcfe56be80036ea98"
    "000000000000162e000000cb95a7c5120000000000000000"
)
T2 = bytes.fromhex(
    "000000340000000000000000000000010000018bcfe56be80036ea98"
    "00000000000016f9000000cb95a7c5120000000000000000"
)
ROLL = bytes.fromhex(
    "00000034ffffffffffffffff000000030000018bcfe56be805265c00"
    "000000000000162e000000cb95a7c5120000000000000000"
)
MARKER = bytes.fromhex(
    "00000034ffffffffffffffff000000050000018bcfe56be80036ea98"
    "000000000000162e000000cb95a7c5120000000000000000"
)
BLANK_16 = bytes.fromhex("000000100000000000000000cbd43194")

#: Three units and a blank of twenty bytes.
FILE_BYTES = 3 * 52 + 20
FULL_FILE = T1 * 3 + blank_bytes(FILE_BYTES) + bytes(4)


def written(directory: Path, *files: bytes, file_bytes: int = FILE_BYTES) -> Path:
    directory.mkdir()
    for number, content in enumerate(files):
        (directory / segment_name(number * file_bytes)).write_bytes(
            content.ljust(file_bytes, b"\0")
        )
    return directory


def read(directory: Path, begin_position: int = 0) -> TimerUnits:
    with SegmentReader(directory) as reader:
        return read_units(reader, begin_position)


@pytest.mark.parametrize(
    ("unit", "previous", "magic", "delay_ms", "offset"),
    [
        (T1, -1, 1, 3_599_000, 5678),
        (T2, 0, 1, 3_599_000, 5881),
        (ROLL, -1, 3, 86_400_000, 5678),
        (MARKER, -1, 5, 3_599_000, 5678),
    ],
)
def test_units_are_the_bytes_a_broker_writes(
    unit: bytes, previous: int, magic: int, delay_ms: int, offset: int
) -> None:
    fields = {
        "size_bytes": 52,
        "previous_position": previous,
        "magic": magic,
        "write_time_ms": 1_700_000_001_000,
        "delay_ms": delay_ms,
        "commit_log_offset": offset,
        "record_size_bytes": 203,
        "topic_hash": -1_784_167_150,
        "reserved": 0,
    }
    assert TIMER_UNIT.decode_at(unit, 0) == fields
    assert TIMER_UNIT.encode(**fields) == unit


def test_the_blank_of_a_default_file_fills_it_exactly() -> None:
    assert blank_bytes(100 << 20) == BLANK_16
    assert unit_position(2_016_491, 100 << 20) == 104_857_532
    assert unit_position(2_016_492, 100 << 20) == 104_857_600
    assert units_per_file(100 << 20) * 52 + 16 == 100 << 20


@pytest.mark.parametrize("file_bytes", [68, 69, 119, 120, 156, 172, 100 * 1024])
def test_the_file_ends_where_a_broker_no_longer_appends(file_bytes: int) -> None:
    """A broker's rule, step by step: a unit is appended while a blank still fits behind it."""
    positions, start, at = [], 0, 0
    for _ in range(7000):
        if file_bytes - at < 52 + 16:
            left = file_bytes - at
            assert blank_bytes(file_bytes) == TIMER_BLANK.encode(
                size_bytes=left, reserved=0, magic=0xCBD43194 - 2**32
            )
            start, at = start + file_bytes, 0
        positions.append(start + at)
        at += 52
    of_array = unit_position(np.arange(7000, dtype=np.int64), file_bytes)
    assert of_array.tolist() == positions
    assert [unit_position(index, file_bytes) for index in range(100)] == positions[:100]
    ends = [log_end_position(count, file_bytes) for count in range(1, 101)]
    assert ends == [position + 52 for position in positions[:100]]
    assert log_end_position(0, file_bytes) == 0


def test_units_are_read_across_files(tmp_path: Path) -> None:
    units = read(written(tmp_path / "log", FULL_FILE, FULL_FILE, T1 + T2))
    assert len(units) == 8
    expected = [0, 52, 104, 176, 228, 280, 352, 404]
    assert units.positions.tolist() == expected
    assert units.end_position == 456
    assert units.units[7].tobytes() == T2
    assert set(units.slot_time_ms) == {1_700_003_600_000}
    assert units.index_at(np.array(expected)).tolist() == list(range(8))


def test_a_position_where_no_unit_begins_has_no_index(tmp_path: Path) -> None:
    units = read(written(tmp_path / "log", FULL_FILE, T1))
    strange = np.array([-1, -52, 1, 51, 156, 172, 175, 228, 352, 10**15, -(2**63)], np.int64)
    assert units.index_at(strange).tolist() == [-1] * len(strange)


def test_without_a_log_there_are_no_units(tmp_path: Path) -> None:
    units = read(tmp_path / "none")
    assert (len(units), units.end_position) == (0, 0)
    assert units.index_at(np.array([-1, 0, 52])).tolist() == [-1, -1, -1]
    assert units.index_of_file(0) == 0


@pytest.mark.parametrize(
    ("files", "count", "end_position"),
    [
        ((b"",), 0, 0),
        ((T1 + bytes(52) + T1,), 1, 52),
        ((T1 + T1[:3] + b"\x35" + T1[4:],), 1, 52),
        ((T1 + T1[:12] + b"\0\0\0\x10" + T1[16:],), 1, 52),
        ((T1 + T1[:12] + b"\0\0\0\x0f" + T1[16:],), 2, 104),
        ((T1 + T1[:12] + bytes(4) + T1[16:],), 2, 104),
        # The last file ends in a blank: the next append makes a new one.
        ((FULL_FILE,), 3, 156),
        # An empty last file: the log ends where that file begins.
        ((FULL_FILE, b""), 3, 176),
        # Zeros instead of a blank end the log, and what follows is lost.
        ((T1 * 3, T1), 3, 156),
        # A blank in the middle of a file leads on all the same.
        ((T1 + BLANK_16, T1), 2, 228),
        # A blank after garbage is not reached.
        ((T1 + b"\1" * 52 + BLANK_16, T1), 1, 52),
    ],
)
def test_reading_stops_where_a_broker_stops(
    tmp_path: Path, files: tuple[bytes, ...], count: int, end_position: int
) -> None:
    units = read(written(tmp_path / "log", *files))
    assert (len(units), units.end_position) == (count, end_position)


def test_a_file_full_to_its_last_byte_leads_on(tmp_path: Path) -> None:
    units = read(written(tmp_path / "log", T1 * 2, T1, file_bytes=104))
    assert units.positions.tolist() == [0, 52, 104]


def test_damage_before_the_files_a_broker_scans_ends_only_its_file(tmp_path: Path) -> None:
    log = written(tmp_path / "log", T1 + bytes(52) + T1 + BLANK_16, FULL_FILE, T1)
    assert read(log).positions.tolist() == [0]
    units = read(log, begin_position=176)
    assert units.positions.tolist() == [0, 176, 228, 280, 352]
    assert units.index_of_file(176) == units.index_of_file(351) == 1
    assert units.index_of_file(0) == units.index_of_file(-7) == 0
    assert units.index_of_file(10**12) == 4


def test_a_log_whose_oldest_files_are_gone_keeps_its_positions(tmp_path: Path) -> None:
    log = written(tmp_path / "log", FULL_FILE, FULL_FILE, T1)
    (log / segment_name(0)).unlink()
    units = read(log)
    assert units.positions.tolist() == [176, 228, 280, 352]
    assert units.index_at(np.array([0, 176, 352])).tolist() == [-1, 0, 3]


def test_a_file_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log = written(tmp_path / "log", FULL_FILE, FULL_FILE)
    (log / segment_name(FILE_BYTES)).write_bytes(FULL_FILE[:60])
    units = read(log)
    assert (len(units), units.end_position) == (4, 228)


def test_long_files_are_read_in_runs(tmp_path: Path) -> None:
    """A run is what one read brings; a chain may lead from any run to any other."""
    count = 150_000
    numbers = np.zeros(count, TIMER_UNIT.dtype)
    numbers["size_bytes"], numbers["magic"] = 52, 1
    numbers["commit_log_offset"] = np.arange(count)
    log = written(tmp_path / "log", numbers.tobytes(), file_bytes=8 << 20)
    with SegmentReader(log) as reader:
        runs = list(unit_runs(reader))
        units = read_units(reader)
    assert len(runs) == 3
    assert [run.end_position for run in runs[:2]] == [run.start_position for run in runs[1:]]
    assert np.array_equal(units.units["commit_log_offset"], np.arange(count))
    assert np.array_equal(units.positions, np.arange(count) * 52)
    assert np.array_equal(units.index_at(units.positions), np.arange(count))


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_arbitrary_bytes_are_never_an_error(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes]
) -> None:
    log = written(tmp_path_factory.mktemp("wild") / "log", *(data[:FILE_BYTES] for data in files))
    units = read(log)
    assert len(units) * 52 <= units.end_position or not len(units)


@given(st.integers(0, len(FULL_FILE) * 2 - 1), st.integers(0, 255))
def test_one_changed_byte_never_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    data = bytearray(FULL_FILE * 2)
    data[place] = value
    log = written(
        tmp_path_factory.mktemp("flip") / "log", bytes(data[:FILE_BYTES]), bytes(data[FILE_BYTES:])
    )
    assert len(read(log)) <= 6
