# SPDX-License-Identifier: Apache-2.0
"""timercheck: a broker's bytes, and files that are short, long or missing."""

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.files.store_root import StoreRoot
from timer_wheel.format.checkpoint import (
    OWN_PLACES,
    UNKNOWN,
    OwnCheckpoint,
    TimerCheckpoint,
    decode_own,
    decode_timer_checkpoint,
    encode_own,
    encode_timer_checkpoint,
    read_timer_checkpoint,
)
from timer_wheel.format.older_slots import MOST_WIDTHS, NO_OLDER_SLOTS, OlderSlots

BROKER_BYTES = bytes.fromhex(
    "0000018bcfe56800000000000000006800000000000000020000000000000002"
    "00000000000000000000018bcfe569f40000000000000003"
)
CHECKPOINT = TimerCheckpoint(
    last_read_time_ms=1_700_000_000_000,
    flush_position=104,
    last_queue_offset=2,
    master_queue_offset=2,
    state_version=0,
    timestamp_ms=1_700_000_000_500,
    counter=3,
)


def test_the_checkpoint_is_the_bytes_a_broker_writes() -> None:
    assert encode_timer_checkpoint(CHECKPOINT) == BROKER_BYTES.ljust(4096, b"\0")
    assert decode_timer_checkpoint(BROKER_BYTES.ljust(4096, b"\0")) == CHECKPOINT


def test_a_short_file_is_filled_up_with_zeros() -> None:
    assert decode_timer_checkpoint(BROKER_BYTES[:20]) == TimerCheckpoint(1_700_000_000_000, 104)


def test_a_missing_file_is_zeros(tmp_path: Path) -> None:
    assert read_timer_checkpoint(StoreRoot(tmp_path)) == TimerCheckpoint()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(BROKER_BYTES)
    assert read_timer_checkpoint(StoreRoot(tmp_path)) == CHECKPOINT


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_some_checkpoint(content: bytes) -> None:
    encoded = encode_timer_checkpoint(decode_timer_checkpoint(content))
    assert encoded[:56] == content[:56].ljust(56, b"\0")


@pytest.mark.parametrize("count", range(MOST_WIDTHS + 1))
def test_older_widths_are_read_as_they_were_written(count: int) -> None:
    older = OlderSlots(tuple(range(100, 100 + count)), (1, 100, 1000, 200)[:count])
    own = OwnCheckpoint(5, 6, 100, 7, 8, 9, 10, older)
    content = bytearray(4096)
    for place in OWN_PLACES:
        copy = encode_own(own, CHECKPOINT)
        content[place : place + len(copy)] = copy
    content[: len(BROKER_BYTES)] = BROKER_BYTES
    found = decode_own(bytes(content), CHECKPOINT)
    assert (found.own, found.is_damaged) == (own, False)


@pytest.mark.parametrize("room", [1, 4])
def test_of_a_copy_that_an_earlier_version_wrote_only_the_width_of_slots_counts(room: int) -> None:
    """Its deliveries named nothing: they are told as those of a broker are."""
    numbers = struct.unpack(">7q", BROKER_BYTES)
    older = [500, 1000] + [0, 0] * (room - 1)
    copy = struct.pack(f">{14 + len(older)}q", *numbers, 5, 6, 100, 7, 8, 9, 10, *older)
    copy += struct.pack(">q", zlib.crc32(copy))
    content = b"".join([BROKER_BYTES.ljust(64, b"\0"), copy.ljust(192, b"\0"), copy])
    found = decode_own(content.ljust(4096, b"\0"), CHECKPOINT)
    widths = OlderSlots((500,), (1000,))
    assert found.own == OwnCheckpoint(-1, -1, 100, 7, -1, -1, -1, widths)
    assert not found.own.is_known
    assert not found.is_damaged


def test_a_copy_from_before_it_said_what_is_to_roll_counts_but_for_that() -> None:
    numbers = struct.unpack(">7q", BROKER_BYTES)
    copy = struct.pack(">21q", *numbers, 5, 6, 100, 7, 8, 9, 500, 1000, *[0] * 6)
    copy += struct.pack(">q", zlib.crc32(copy))
    content = b"".join([BROKER_BYTES.ljust(64, b"\0"), copy.ljust(192, b"\0"), copy])
    found = decode_own(content.ljust(4096, b"\0"), CHECKPOINT)
    widths = OlderSlots((500,), (1000,))
    assert found.own == OwnCheckpoint(5, 6, 100, 7, 8, 9, UNKNOWN, widths)
    assert (found.own.is_known, found.is_damaged) == (True, False)


def test_more_widths_than_there_is_room_for_become_one_that_is_never_early() -> None:
    older = NO_OLDER_SLOTS
    for number, width_ms in enumerate((200, 500, 100, 1000, 100)):
        older = older.followed_by(10 * number, width_ms)
    assert older == OlderSlots((10, 20, 30, 40), (1000, 100, 1000, 100))
