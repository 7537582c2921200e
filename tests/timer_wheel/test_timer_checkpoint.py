# SPDX-License-Identifier: Apache-2.0
"""timercheck: a broker's bytes, and files that are short, long or missing."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from message_store.store_root import StoreRoot
from timer_wheel.timer_checkpoint import (
    TimerCheckpoint,
    decode_timer_checkpoint,
    encode_timer_checkpoint,
    read_timer_checkpoint,
)

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
