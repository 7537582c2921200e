# SPDX-License-Identifier: Apache-2.0
"""CRC-32 for kernels, equal to ``zlib.crc32``: by carry-less multiplication where the processor has
it, else by tables.

A call of zlib from Python costs 150 ns and more a record. Sixteen tables take 16 bytes a step.
`pclmulqdq` folds any 64 bytes or more into 16 and leaves only those to the tables. (Gopal et
al., "Fast CRC computation using PCLMULQDQ", Intel 2009.) The import of this module decides which of
the two is behind :func:`crc32`. One large buffer takes 20 GB/s here, 1.4 GB/s in Python's zlib.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic

from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import load_u8, load_word, load_word32

_STEP = 16
_FOLD = 64
_POLYNOMIAL = 0xEDB88320
_I64 = ir.IntType(64)
_I128 = ir.VectorType(_I64, 2)


def _tables() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    tables = np.zeros((_STEP, 256), np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, value] = crc
    for step in range(1, _STEP):
        tables[step] = tables[step - 1] >> 8 ^ tables[0][tables[step - 1] & 0xFF]
    return tables.ravel()


_TABLES = _tables()
_BYTE = np.uint64(0xFF)
_ALL_ONES = np.uint64(0xFFFFFFFF)


@inline_kernel
def _lookup4(word: np.uint64, base: np.uint64) -> np.uint64:
    # Indices are unsigned: a signed one costs a test for "negative, count from the end".
    return np.uint64(
        _TABLES[base + np.uint64(0x300) + (word & _BYTE)]
        ^ _TABLES[base + np.uint64(0x200) + (word >> np.uint64(8) & _BYTE)]
        ^ _TABLES[base + np.uint64(0x100) + (word >> np.uint64(16) & _BYTE)]
        ^ _TABLES[base + (word >> np.uint64(24) & _BYTE)]
    )


@inline_kernel
def _lookup8(word: np.uint64, base: np.uint64) -> np.uint64:
    return _lookup4(word, base + np.uint64(0x400)) ^ _lookup4(word >> np.uint64(32), base)


@inline_kernel
def _by_tables(crc: np.uint64, address: int, length: int) -> np.uint64:
    end = address + length
    while end - address >= 16:
        later = _lookup8(load_word(address + 8), np.uint64(0))
        later ^= _lookup4(load_word32(address + 4), np.uint64(0x800))
        crc = _lookup4(crc ^ load_word32(address), np.uint64(0xC00)) ^ later
        address += 16
    if end - address >= 8:
        crc = _lookup8(crc ^ load_word(address), np.uint64(0))
        address += 8
    if end - address >= 4:
        crc = _lookup4(crc ^ load_word32(address), np.uint64(0))
        address += 4
    while address < end:
        crc = crc >> np.uint64(8) ^ np.uint64(_TABLES[(crc ^ np.uint64(load_u8(address))) & _BYTE])
        address += 1
    return crc


@kernel("uint64(int64, int64)")
def crc32_by_tables(address: int, length: int) -> int:
    """``zlib.crc32`` of ``length`` bytes at ``address``, on any processor."""
    crc = _by_tables(np.uint64(0xFFFFFFFF), address, length)
    return crc ^ np.uint64(0xFFFFFFFF)  # type: ignore[return-value]


def _power(exponent: int) -> int:
    """x to this power modulo the polynomial, bit-reversed and shifted as `pclmulqdq` wants it."""
    value = 0x80000000  # x^0, reversed
    for _ in range(exponent):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value << 1


def _fold_factors(distance_bytes: int) -> Any:
    bits = 8 * distance_bytes
    return ir.Constant(_I128, [_power(bits + 32), _power(bits - 32)])


def _multiply(builder: Any, left: Any, right: Any, halves: int) -> Any:
    kind = ir.FunctionType(_I128, [_I128, _I128, ir.IntType(8)])
    multiply = builder.module.declare_intrinsic("llvm.x86.pclmulqdq", fnty=kind)
    return builder.call(multiply, [left, right, ir.IntType(8)(halves)])


def _load(builder: Any, place: Any, lane: int = 0) -> Any:
    at = builder.add(place, _I64(16 * lane))
    return builder.load(builder.inttoptr(at, _I128.as_pointer()), align=1)


def _folded(builder: Any, state: Any, distance_bytes: int, data: Any) -> Any:
    factors = _fold_factors(distance_bytes)
    low, high = (_multiply(builder, state, factors, halves) for halves in (0x00, 0x11))
    return builder.xor(builder.xor(low, high), data)


def _fold_code(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Four lanes of 16 bytes run over the data; then the lanes become one, which takes the rest."""
    crc, address, end = arguments
    lanes = [_load(builder, address, lane) for lane in range(4)]
    start = builder.insert_element(ir.Constant(_I128, [0, 0]), crc, ir.IntType(32)(0))
    lanes[0] = builder.xor(lanes[0], start)
    entry = builder.block
    loop, more, last = (builder.append_basic_block(name) for name in ("fold", "more", "last"))
    builder.branch(loop)

    builder.position_at_end(loop)
    place = builder.phi(_I64)
    states = [builder.phi(_I128) for _ in range(4)]
    following = builder.add(place, _I64(_FOLD))
    has_more = builder.icmp_signed("<=", builder.add(following, _I64(_FOLD)), end)
    builder.cbranch(has_more, more, last)
    builder.position_at_end(more)
    folded = [
        _folded(builder, state, _FOLD, _load(builder, following, lane))
        for lane, state in enumerate(states)
    ]
    builder.branch(loop)
    place.add_incoming(address, entry)
    place.add_incoming(following, more)
    for state, first, later in zip(states, lanes, folded, strict=True):
        state.add_incoming(first, entry)
        state.add_incoming(later, more)

    builder.position_at_end(last)
    one = states[0]
    for state in states[1:]:
        one = _folded(builder, one, 16, state)
    one = _with_rest(builder, one, following, end)
    halves = [builder.extract_element(one, ir.IntType(32)(half)) for half in (0, 1)]
    return _context.make_tuple(builder, signature.return_type, halves)


def _with_rest(builder: Any, block: Any, address: Any, end: Any) -> Any:
    """A block of 16 and all bytes behind it, from ``address`` to ``end``, in one block."""
    entry = builder.block
    loop, more, last = (builder.append_basic_block(name) for name in ("rest", "one", "end"))
    builder.branch(loop)
    builder.position_at_end(loop)
    place, state = builder.phi(_I64), builder.phi(_I128)
    following = builder.add(place, _I64(16))
    builder.cbranch(builder.icmp_signed("<=", following, end), more, last)
    builder.position_at_end(more)
    folded = _folded(builder, state, 16, _load(builder, place))
    builder.branch(loop)
    for value, first, later in ((place, address, following), (state, block, folded)):
        value.add_incoming(first, entry)
        value.add_incoming(later, more)

    # Fewer than 16 are left. Behind zeros, the block and they are two blocks that end with them.
    builder.position_at_end(last)
    left = builder.sub(end, place)
    kind = ir.ArrayType(ir.IntType(8), 48)
    room = builder.ptrtoint(cgutils.alloca_once(builder, kind), _I64)  # type: ignore[no-untyped-call]
    positions = _I64(0), builder.add(left, _I64(16)), _I64(16)
    contents = ir.Constant(_I128, [0, 0]), _load(builder, end, -1), state
    for position, content in zip(positions, contents, strict=True):  # each over the one before it
        at = builder.inttoptr(builder.add(room, position), _I128.as_pointer())
        builder.store(content, at, align=1)
    begin = builder.add(room, left)
    return _folded(builder, _load(builder, begin), 16, _load(builder, begin, 1))


def _fold(_context: Any, crc: Any, address: Any, end: Any) -> Any:
    result = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]
    return result(types.uint64, types.int64, types.int64), _fold_code


_fold_to_16: Any = intrinsic(_fold)
"""Sixteen bytes, as two words, with the same remainder as all from address to end, at least 64."""


def has_carryless_multiply() -> bool:
    """Whether kernels may use `pclmulqdq`: the processor has it, and numba may use it."""
    if config.CPU_NAME not in (None, "", "host"):  # type: ignore[attr-defined]
        return False
    features: str = codegen.get_host_cpu_features()  # type: ignore[no-untyped-call]
    return "+pclmul" in features.split(",")


def _by_multiplication(crc: np.uint64, address: int, length: int) -> np.uint64:
    """The same as ``_by_tables``, by carry-less multiplication."""
    if length >= 64:
        low, high = _fold_to_16(crc, address, address + length)
        return _lookup8(low, np.uint64(0x800)) ^ _lookup8(high, np.uint64(0))
    return _by_tables(crc, address, length)


_remainder = inline_kernel(_by_multiplication) if has_carryless_multiply() else _by_tables
"""The fastest way this machine has."""


@kernel("uint64(int64, int64)")
def crc32(address: int, length: int) -> int:
    """``zlib.crc32`` of ``length`` bytes at ``address``."""
    return _remainder(_ALL_ONES, address, length) ^ _ALL_ONES  # type: ignore[return-value]


@kernel("uint64(uint64, int64, int64)")
def crc32_from(crc: int, address: int, length: int) -> int:
    """``zlib.crc32`` of these bytes behind others, whose ``crc`` is known."""
    return _remainder(np.uint64(crc) ^ _ALL_ONES, address, length) ^ _ALL_ONES  # type: ignore[return-value]
