# SPDX-License-Identifier: Apache-2.0
"""CRC-32 for kernels: sixteen bytes a step by tables, equal to ``zlib.crc32``.

Calling zlib once a record from Python costs 230 ns; these tables 63 ns for a body of 200 bytes, a
plain byte table 350 ns (measured).
"""

import numpy as np

from message_store.kernel_cache import inline_kernel, kernel
from message_store.raw_memory import load_u8, load_word32

_STEP = 16


def _tables() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    tables = np.zeros((_STEP, 256), np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, value] = crc
    for step in range(1, _STEP):
        tables[step] = tables[step - 1] >> 8 ^ tables[0][tables[step - 1] & 0xFF]
    return tables.ravel()


_TABLES = _tables()


@inline_kernel
def _lookup4(word: np.uint64, first_table: int) -> np.uint64:
    base = first_table * 256
    return (
        np.uint64(_TABLES[base + 768 + np.int64(word & np.uint64(0xFF))])
        ^ np.uint64(_TABLES[base + 512 + np.int64(word >> np.uint64(8) & np.uint64(0xFF))])
        ^ np.uint64(_TABLES[base + 256 + np.int64(word >> np.uint64(16) & np.uint64(0xFF))])
        ^ np.uint64(_TABLES[base + np.int64(word >> np.uint64(24) & np.uint64(0xFF))])
    )


@kernel("uint64(int64, int64)")
def crc32(address: int, length: int) -> int:
    """``zlib.crc32`` of ``length`` bytes at ``address``."""
    crc = np.uint64(0xFFFFFFFF)
    end = address + length
    while end - address >= 16:
        crc = (
            _lookup4(crc ^ load_word32(address), 12)
            ^ _lookup4(load_word32(address + 4), 8)
            ^ _lookup4(load_word32(address + 8), 4)
            ^ _lookup4(load_word32(address + 12), 0)
        )
        address += 16
    while address < end:
        place = np.int64((crc ^ np.uint64(load_u8(address))) & np.uint64(0xFF))
        crc = crc >> np.uint64(8) ^ np.uint64(_TABLES[place])
        address += 1
    return crc ^ np.uint64(0xFFFFFFFF)  # type: ignore[return-value]
