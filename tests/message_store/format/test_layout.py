# SPDX-License-Identifier: Apache-2.0
"""One table gives struct, NumPy dtype, offsets and documentation, and they agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, TruncatedRecordError
from message_store.format.layout import Field, Layout

MIXED = Layout(
    "mixed",
    (
        Field("tiny", "i8", "one byte"),
        Field("short", "i16", "two"),
        Field("where", "ip4", "an address"),
        Field("whole", "i32", "four"),
        Field("long", "i64", "eight"),
        Field("wide", "ip16", "a long address"),
    ),
)
VALUES: dict[str, int | bytes] = {
    "tiny": -1,
    "short": -2,
    "where": b"abcd",
    "whole": -3,
    "long": -4,
    "wide": bytes(16),
}


def test_fields_lie_one_behind_another_big_endian_and_signed() -> None:
    assert MIXED.size == 35
    assert [MIXED.offset_of(field.name) for field in MIXED.fields] == [0, 1, 3, 7, 11, 19]
    head = "ff" + "fffe" + b"abcd".hex() + "fffffffd" + "fffffffffffffffc"
    assert MIXED.encode(**VALUES).hex() == head + "00" * 16


def test_numpy_sees_the_same_fields_at_the_same_places() -> None:
    assert MIXED.dtype.itemsize == MIXED.size
    assert MIXED.dtype.fields is not None
    for field in MIXED.fields:
        assert MIXED.dtype.fields[field.name][1] == MIXED.offset_of(field.name)
    row = np.frombuffer(MIXED.encode(**VALUES), MIXED.dtype)[0]
    assert [int(row[name]) for name in ("tiny", "short", "whole", "long")] == [-1, -2, -3, -4]
    assert row["where"].tobytes() == b"abcd"


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_what_is_encoded_is_decoded(whole: int, long: int) -> None:
    values = VALUES | {"whole": whole, "long": long}
    assert MIXED.decode_at(b"..." + MIXED.encode(**values), 3) == values


@pytest.mark.parametrize("offset", [-1, 1, 35, 1000])
def test_a_structure_that_is_cut_off_is_refused(offset: int) -> None:
    with pytest.raises(TruncatedRecordError, match="mixed is cut off"):
        MIXED.decode_at(MIXED.encode(**VALUES), offset)


def test_a_number_that_its_field_has_no_room_for_is_refused() -> None:
    with pytest.raises(BadFieldError, match="mixed: "):
        MIXED.encode(**(VALUES | {"tiny": 128}))


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        Field("name", "u32", "unsigned is not Java")


def test_the_documentation_lists_every_field() -> None:
    lines = MIXED.markdown().splitlines()
    assert lines[0] == "**mixed**, 35 bytes, big-endian, signed"
    assert lines[-1] == "| 19 | ip16 | `wide` | a long address |"
    assert len(lines) == 4 + len(MIXED.fields)


def test_a_part_packed_by_itself_fills_its_place() -> None:
    part = MIXED.part("where", "long")
    packed = part.encode(**{field.name: VALUES[field.name] for field in part.fields})
    around = MIXED.packer_around(part).pack(-1, -2, packed, bytes(16))
    assert around == MIXED.encode(**VALUES)
