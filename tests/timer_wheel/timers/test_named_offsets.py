# SPDX-License-Identifier: Apache-2.0
"""The offset that a delete marker names, as kernel and scalar code read it."""

import random

import numpy as np

from message_store.format.properties import offset_of_text, offset_text
from timer_wheel.reading import record_kernel


def read_by_kernel(text: str) -> int:
    content = np.frombuffer(text.encode("latin-1") + bytes(8), np.uint8).copy()
    return int(record_kernel._offset_of_text(content.ctypes.data, len(text)))


def test_kernel_and_scalar_code_read_alike_and_believe_no_flipped_bit(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2_000):
        offset = rng.randrange(10 ** rng.randint(1, 17))
        whole = offset_text(offset)
        assert read_by_kernel(whole) == read_by_kernel(str(offset)) == offset
        assert offset_of_text(whole) == offset_of_text(str(offset)) == offset
        place = rng.randrange(len(whole))
        flipped = chr(ord(whole[place]) ^ 1 << rng.randrange(8))
        damaged = whole[:place] + flipped + whole[place + 1 :]
        assert offset_of_text(damaged) is None
        assert read_by_kernel(damaged) == record_kernel._DAMAGED
