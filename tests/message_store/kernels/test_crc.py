# SPDX-License-Identifier: Apache-2.0
"""Both ways of computing a CRC-32 in a kernel are equal to zlib's."""

import subprocess
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.kernels import crc as crc_kernel
from message_store.kernels.crc import (
    crc32,
    crc32_by_tables,
    crc32_from,
    has_carryless_multiply,
)
from message_store.kernels.raw_memory import address_of
from tests.source_laws import ROOT

WAYS = pytest.mark.parametrize("way", [crc32, crc32_by_tables], ids=["chosen", "tables"])
Way = Callable[[int, int], int]


@WAYS
def test_it_equals_zlib_on_every_small_length_and_alignment(way: Way) -> None:
    data = np.random.default_rng(1).integers(0, 256, 700, np.uint8)
    for length in range(300):
        for start in (0, 1, 7, 63):
            expected = zlib.crc32(data[start : start + length].tobytes())
            assert way(address_of(data) + start, length) == expected, (length, start)


@WAYS
@pytest.mark.parametrize("length", [1023, 4096, 65_535, 1_000_003])
def test_it_equals_zlib_on_long_runs(way: Way, length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    assert way(address_of(data), length) == zlib.crc32(data.tobytes())


@WAYS
@given(st.binary(max_size=2_000))
def test_it_equals_zlib_on_arbitrary_bytes(way: Way, data: bytes) -> None:
    array = np.frombuffer(data + b"\0", np.uint8)
    assert way(address_of(array), len(data)) == zlib.crc32(data)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_crc_goes_on_behind_other_bytes(first: bytes, second: bytes) -> None:
    array = np.frombuffer(second + b"\0", np.uint8)
    crc = crc32_from(zlib.crc32(first), address_of(array), len(second))
    assert crc == zlib.crc32(first + second)


@WAYS
def test_a_flipped_bit_anywhere_changes_it(way: Way) -> None:
    data = np.zeros(200, np.uint8)
    clean = way(address_of(data), data.size)
    for place in range(data.size):
        data[place] = 0x10
        assert way(address_of(data), data.size) != clean
        data[place] = 0


def test_multiplication_is_chosen_where_the_processor_can() -> None:
    chosen = crc_kernel._remainder is not crc_kernel._by_tables
    assert chosen == has_carryless_multiply()


@pytest.mark.check
def test_tables_are_chosen_where_numba_is_told_of_no_special_processor() -> None:
    program = (
        "import os; os.environ['NUMBA_CPU_NAME'] = 'generic'\n"
        "from message_store.kernels import crc as k\n"
        "assert k._remainder is k._by_tables and not k.has_carryless_multiply()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_power_beyond_the_degree_is_reduced() -> None:
    assert crc_kernel._power(0) == 0x80000000 << 1
    assert crc_kernel._power(32) == crc_kernel._POLYNOMIAL << 1
