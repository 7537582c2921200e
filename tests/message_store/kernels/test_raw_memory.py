# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and copies at raw addresses, inside a block with guards around it."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from message_store.kernels import raw_memory as memory
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import address_of


@kernel("int64[::1](int64)")
def load_all(address: int) -> NDArray[np.int64]:
    found = np.empty(9, np.int64)
    found[0] = memory.load_u8(address)
    found[1] = memory.load_i8(address)
    found[2] = memory.load_i16(address)
    found[3] = memory.load_i32(address)
    found[4] = memory.load_i64(address)
    found[5] = memory.load_native(address)
    found[6] = np.int64(memory.load_word(address) >> np.uint64(1))
    found[7] = np.int64(memory.load_word32(address))
    found[8] = 0
    return found


@kernel("void(int64, int64)")
def store_all(address: int, value: int) -> None:
    memory.store_u8(address, value)
    memory.store_i16(address + 1, value)
    memory.store_i32(address + 3, value)
    memory.store_i64(address + 7, value)
    memory.store_native(address + 15, value)
    memory.store_word(address + 23, np.uint64(value))
    memory.store_word32(address + 31, np.uint64(value))


@kernel("void(int64, int64, int64, boolean)")
def copy(target: int, source: int, count: int, short: bool) -> None:
    if short:
        memory.copy_short(target, source, count)
    else:
        memory.copy_bytes(target, source, count)


@given(st.binary(min_size=8, max_size=8), st.integers(0, 7))
def test_loads_are_those_of_struct_at_any_alignment(data: bytes, shift: int) -> None:
    block = np.frombuffer(bytes(shift) + data, np.uint8)
    native = struct.unpack("=Q", data)[0]
    expected = [
        data[0],
        *(struct.unpack_from(f">{code}", data)[0] for code in "bhiq"),
        *struct.unpack("=q", data),
        native >> 1,
        struct.unpack_from("=I", data)[0],
        0,
    ]
    assert load_all(address_of(block) + shift).tolist() == expected


@given(st.integers(-(2**63), 2**63 - 1))
def test_stores_keep_the_low_bytes_and_touch_nothing_else(value: int) -> None:
    block = np.full(40, 0xEE, np.uint8)
    store_all(address_of(block) + 1, value)
    big, little = value.to_bytes(8, "big", signed=True), value.to_bytes(8, "little", signed=True)
    stored = big[-1:] + big[-2:] + big[-4:] + big + little + little + little[:4]
    assert block.tobytes() == b"\xee" + stored + b"\xee" * 4


@pytest.mark.parametrize("short", [True, False])
def test_copies_take_exactly_what_was_asked_for(short: bool) -> None:
    source = np.arange(1, 101, dtype=np.uint8)
    for count in range(80):
        target = np.zeros(100, np.uint8)
        copy(address_of(target) + 5, address_of(source) + 3, count, short)
        expected = bytes(5) + source[3 : 3 + count].tobytes() + bytes(95 - count)
        assert target.tobytes() == expected, count


def test_a_memoryview_has_the_address_of_its_first_byte() -> None:
    block = np.zeros(10, np.uint8)
    assert address_of(block.data[4:]) == address_of(block) + 4


def test_a_kernel_refuses_an_array_where_it_wants_an_address() -> None:
    with pytest.raises(TypeError, match="No matching definition"):
        store_all(np.zeros(40, np.uint8), 1)  # type: ignore[arg-type]
