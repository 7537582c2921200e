# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and copies at raw addresses, for kernels: big-endian as Java wrote, unaligned,
unchecked.

Nothing here checks a bound: a kernel has compared every length and offset from a file with what
holds it. ``address_of`` is the one place where an address is made.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from message_store.kernels.cache import inline_kernel

_I64 = ir.IntType(64)


def address_of(array: np.ndarray[Any, Any] | memoryview) -> int:
    """The address of the first byte; the caller keeps the array alive while it is used."""
    return int(pa.py_buffer(array).address)  # a fifth of what ``array.ctypes.data`` costs


def _loader(bits: int, *, signed: bool = False, swapped: bool = True, word: bool = False) -> Any:
    def load(_context: Any, address: Any) -> Any:
        def code(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            if bits > 8 and swapped:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return (types.uint64 if word else types.int64)(types.int64), code

    return intrinsic(load)


def _storer(bits: int, *, swapped: bool = True, word: bool = False) -> Any:
    def store(_context: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], kind)
            if bits > 8 and swapped:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64 if word else types.int64), code

    return intrinsic(store)


load_u8 = _loader(8)
load_i8 = _loader(8, signed=True)
load_i16 = _loader(16, signed=True)
load_i32 = _loader(32, signed=True)
load_i64 = _loader(64)
load_native = _loader(64, swapped=False)
"""An int64 of a NumPy array, in the machine's own order."""
load_word = _loader(64, swapped=False, word=True)
"""Eight bytes in the machine's own order, unsigned: for comparing and hashing."""
load_word32 = _loader(32, swapped=False, word=True)
"""Four bytes in the machine's own order, unsigned."""
store_u8 = _storer(8)
store_i16 = _storer(16)
store_i32 = _storer(32)
store_i64 = _storer(64)
store_native = _storer(64, swapped=False)
"""An int64 of a NumPy array, in the machine's own order."""
store_word = _storer(64, swapped=False, word=True)
"""Eight bytes in the machine's own order, unsigned."""
store_word32 = _storer(32, swapped=False, word=True)
"""The low four bytes of a word, in the machine's own order."""


def _copy_bytes(_context: Any, target: Any, source: Any, count: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to_address = builder.inttoptr(arguments[0], pointer)
        from_address = builder.inttoptr(arguments[1], pointer)
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, to_address, from_address, arguments[2], 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


copy_bytes: Any = intrinsic(_copy_bytes)
"""memcpy(target, source, count): the two ranges do not overlap."""


def _trailing_zeros(_context: Any, word: Any) -> Any:
    def code(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), code


trailing_zeros: Any = intrinsic(_trailing_zeros)
"""How many of the lowest bits of a word are zero."""


def _folded_product(_context: Any, one: Any, other: Any) -> Any:
    def code(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        one, other = (builder.zext(argument, wide) for argument in arguments)
        product = builder.mul(one, other)
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)
        return builder.xor(builder.trunc(product, _I64), high)

    return types.uint64(types.uint64, types.uint64), code


folded_product: Any = intrinsic(_folded_product)
"""The two halves of the whole product of two words, one xor the other: for hashing."""


def _prefetch(_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, "llvm.prefetch.p0"
        )
        numbers = [ir.Constant(ir.IntType(32), number) for number in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], pointer), *numbers])
        return context.get_dummy_value()

    return types.void(types.int64), code


prefetch: Any = intrinsic(_prefetch)
"""Begin to bring the memory around an address near: it is read soon. Any address is fine."""


def _separator_bits(_context: Any, address: Any) -> Any:
    def code(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block = ir.VectorType(ir.IntType(8), 64)
        value = builder.load(builder.inttoptr(arguments[0], block.as_pointer()), align=1)
        ones, twos = (ir.Constant(block, [number] * 64) for number in (1, 2))
        found = builder.icmp_unsigned("<", builder.sub(value, ones), twos)
        return builder.bitcast(found, _I64)

    return types.uint64(types.int64), code


separator_bits: Any = intrinsic(_separator_bits)
"""Of the 64 bytes at an address, a bit each, the first one lowest: set where the byte is 1 or 2,
which are what separates names, values and properties.
"""


@inline_kernel
def copy_short(target: int, source: int, count: int) -> None:
    """The same for a name or a short value, without the call that memcpy is."""
    if count >= 8:
        place = 0
        while place + 8 < count:
            store_word(target + place, load_word(source + place))
            place += 8
        store_word(target + count - 8, load_word(source + count - 8))
    elif count >= 4:
        store_word32(target, load_word32(source))
        store_word32(target + count - 4, load_word32(source + count - 4))
    else:
        for place in range(count):
            store_u8(target + place, load_u8(source + place))
