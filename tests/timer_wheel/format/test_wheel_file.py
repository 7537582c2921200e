# SPDX-License-Identifier: Apache-2.0
"""The wheel file: a broker's slot, wrong lengths, snapshots, and sparse writing."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, FormatError
from message_store.files.store_root import StoreRoot
from tests.independent.raw_files import Slot, wheel_slots
from tests.timer_wheel.wheel_store_builder import write_wheel
from timer_wheel.format.wheel_file import (
    SLOT,
    WHEEL_FILE_BYTES,
    encode_slots,
    read_wheel,
    snapshots,
)
from timer_wheel.format.wheel_math import PRECISIONS_MS

#: The slot of two units at 0 and 52, time 1700003600000, precision 1000.
BROKER_SLOT = bytes.fromhex("000000006553ff10000000000000000000000000000000340000000200000000")
SLOT_OF_IT = Slot(515_600, 1_700_003_600, 0, 52, 2, 0)


def test_a_slot_is_the_bytes_a_broker_writes() -> None:
    fields = {
        "time_units": 1_700_003_600,
        "first_position": 0,
        "last_position": 52,
        "unit_count": 2,
        "magic": 0,
    }
    assert SLOT.decode_at(BROKER_SLOT, 0) == fields
    assert SLOT.encode(**fields) == BROKER_SLOT
    assert WHEEL_FILE_BYTES == 38_707_200


def test_a_wheel_is_read_whole(tmp_path: Path) -> None:
    write_wheel(tmp_path / "timerwheel", {0: SLOT_OF_IT})
    wheel = read_wheel(StoreRoot(tmp_path))
    assert wheel.path == tmp_path / "timerwheel"
    assert wheel.log_position is None
    assert wheel.slots.tobytes() == BROKER_SLOT
    assert wheel.index.tolist() == [515_600]
    assert wheel.slot(515_600).tobytes() == BROKER_SLOT
    assert not wheel.slot(515_601)["time_units"].any()


@pytest.mark.parametrize("content", [None, b""])
def test_no_wheel_file_is_a_wheel_without_units(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "timerwheel").write_bytes(content)
    wheel = read_wheel(StoreRoot(tmp_path))
    assert wheel.path is None
    assert (len(wheel.index), len(wheel.slots)) == (0, 0)


@pytest.mark.parametrize("length", [1, 32, WHEEL_FILE_BYTES - 1, WHEEL_FILE_BYTES + 32])
@pytest.mark.parametrize("name", ["timerwheel", "timerwheel.520"])
def test_a_wheel_of_another_length_is_refused(tmp_path: Path, length: int, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(length)
    with pytest.raises(FormatError) as refused:
        read_wheel(StoreRoot(tmp_path), snapshots_on=True)
    assert refused.value.found == length
    assert refused.value.path == tmp_path / name


def test_the_largest_snapshot_is_the_wheel_when_snapshots_are_on(tmp_path: Path) -> None:
    root = StoreRoot(tmp_path)
    write_wheel(tmp_path / "timerwheel", {})
    write_wheel(tmp_path / "timerwheel.104", {0: SLOT_OF_IT})
    write_wheel(tmp_path / "timerwheel.52", {})
    for other in (
        "timerwheel.999.tmp",
        "timerwheel.x",
        "timerwheel.",
        "timerwheel.99999999999999999999",
    ):
        (tmp_path / other).write_bytes(b"not looked at")
    (tmp_path / "timerwheel.888").symlink_to(tmp_path / "timerwheel.104")
    (tmp_path / "timerwheel.777").mkdir()
    assert [position for position, _ in snapshots(root)] == [52, 104]
    wheel = read_wheel(root, snapshots_on=True)
    assert (wheel.path, wheel.log_position) == (tmp_path / "timerwheel.104", 104)
    assert wheel.slots.tobytes() == BROKER_SLOT
    # With the mode off, snapshots are passed over.
    assert read_wheel(root).path == tmp_path / "timerwheel"


def test_a_snapshot_at_0_says_nothing_about_the_log(tmp_path: Path) -> None:
    write_wheel(tmp_path / "timerwheel.0", {})
    wheel = read_wheel(StoreRoot(tmp_path), snapshots_on=True)
    assert (wheel.path, wheel.log_position) == (tmp_path / "timerwheel.0", None)


def test_without_a_snapshot_the_plain_wheel_is_read(tmp_path: Path) -> None:
    write_wheel(tmp_path / "timerwheel", {0: SLOT_OF_IT})
    assert read_wheel(StoreRoot(tmp_path), snapshots_on=True).path == tmp_path / "timerwheel"


@given(
    st.dictionaries(st.integers(1, 1_209_599), st.integers(0, 2**31 - 1), max_size=12),
    st.sampled_from(PRECISIONS_MS),
)
def test_written_slots_are_what_an_independent_reader_finds(
    tmp_path_factory: pytest.TempPathFactory, counts: dict[int, int], precision_ms: int
) -> None:
    path = tmp_path_factory.mktemp("wheel") / "timerwheel"
    units = [1_209_600 * 1405 + index for index in counts]
    time_units = np.array(units, np.int64)
    pieces = list(
        encode_slots(
            time_units * precision_ms + precision_ms // 2,
            time_units * 7,
            time_units * 8,
            np.array(list(counts.values()), np.int64),
            precision_ms=precision_ms,
        )
    )
    with path.open("wb") as file:
        file.truncate(WHEEL_FILE_BYTES)
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
    assert [offset for offset, _ in pieces] == sorted({offset for offset, _ in pieces})
    written = {at // 128 for at, data in pieces for at in range(at // 32, (at + len(data)) // 32)}
    assert written == {index // 128 for index in counts}
    assert list(wheel_slots(path)) == [
        Slot(index, 1_209_600 * 1405 + index, 7 * unit, 8 * unit, counts[index], 0)
        for index, unit in sorted(zip(counts, units, strict=True))
    ]


def test_slots_less_than_a_page_apart_are_one_piece() -> None:
    ones = np.ones(6, np.int64)
    times_ms = np.array([7, 3, 4, 5, 135, 264], np.int64) * 1000
    pieces = list(encode_slots(times_ms, ones, ones, ones, precision_ms=1000))
    assert [(offset, len(data)) for offset, data in pieces] == [(96, 133 * 32), (8448, 32)]


def test_two_times_in_one_slot_are_refused() -> None:
    ones = np.ones(2, np.int64)
    times_ms = np.array([5, 5 + 1_209_600], np.int64) * 1000
    with pytest.raises(BadFieldError, match="two times in one slot"):
        list(encode_slots(times_ms, ones, ones, ones, precision_ms=1000))
