# SPDX-License-Identifier: Apache-2.0
"""The store's checkpoint: known bytes of every version, and files of one read by another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.format.checkpoint import (
    CHECKPOINT_4_9,
    CHECKPOINT_5_3,
    CHECKPOINT_5_5,
    CHECKPOINT_FILE_BYTES,
    StoreCheckpoint,
)
from message_store.format.layout import Layout

T = 1_700_000_000_123
KNOWN = [
    (
        CHECKPOINT_4_9,
        StoreCheckpoint(T, T, T),
        "0000018bcfe5687b0000018bcfe5687b0000018bcfe5687b",
    ),
    (
        CHECKPOINT_5_3,
        StoreCheckpoint(T, T, T, 0, 5678),
        "0000018bcfe5687b0000018bcfe5687b0000018bcfe5687b0000000000000000000000000000162e",
    ),
    (
        CHECKPOINT_5_5,
        StoreCheckpoint(T, T, 0, 0, 5678, 5475),
        "0000018bcfe5687b" * 2 + "00" * 16 + "000000000000162e0000000000001563",
    ),
]


@pytest.mark.parametrize(("layout", "checkpoint", "known"), KNOWN, ids=["4.9", "5.3", "5.5"])
def test_known_checkpoints(layout: Layout, checkpoint: StoreCheckpoint, known: str) -> None:
    content = checkpoint.encode(layout)
    assert len(content) == CHECKPOINT_FILE_BYTES
    assert content.rstrip(b"\0").hex() == known
    assert StoreCheckpoint.decode(content) == checkpoint


@given(st.binary(max_size=60))
def test_a_short_or_odd_file_is_filled_up_with_zeros(content: bytes) -> None:
    found = StoreCheckpoint.decode(content)
    assert found.encode()[:48] == content[:48].ljust(48, b"\0")


def test_recovery_begins_three_seconds_before_the_older_time() -> None:
    assert StoreCheckpoint(10_000, 9_000, 1).recover_from_ms == 6_000
    assert StoreCheckpoint(10_000, 0).recover_from_ms == 0
