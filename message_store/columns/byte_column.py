# SPDX-License-Identifier: Apache-2.0
"""A column of byte strings for kernels: where each one lies in a block of memory.

Nothing is copied to make one: Arrow columns, dictionaries and records in a log buffer are all
"starts and lengths within a block". A record cannot tell an absent value from an empty one, nor can
a column: a null becomes the empty string.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from message_store.kernels.batch import gather
from message_store.kernels.raw_memory import address_of

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Text = bytes | str | None


def int64s(values: ArrayLike) -> Int64s:
    """These numbers as a kernel takes them: one row of int64, without gaps."""
    return np.ascontiguousarray(values, np.int64)


@attrs.frozen
class TableColumn:
    """One column of a class that keeps its rows as a ``table`` of numbers, by its number there."""

    number: int

    def __get__(self, owner: Any, _kind: object = None) -> Int64s:
        return np.asarray(owner.table[self.number])


@attrs.frozen(eq=False)
class Fresh:
    """Numbers as a kernel takes them, in an array that nobody else writes to."""

    numbers: Int64s


def _of_its_own(values: "ArrayLike | Fresh") -> Int64s:
    """These numbers if they are fresh, or a copy: kernels read at the places that were checked,
    whatever becomes of the array that was given.
    """
    return values.numbers if isinstance(values, Fresh) else np.array(values, np.int64, order="C")


@attrs.frozen(eq=False)
class ByteColumn:
    """Many byte strings: ``data[starts[i] : starts[i] + lengths[i]]`` is the one at ``i``.

    Raises ValueError when one does not lie within ``data``: kernels rely on it.

    >>> colours = ByteColumn.choose(["red", "blue"], [1, 0, 1])
    >>> list(colours), len(colours)
    ([b'blue', b'red', b'blue'], 3)
    """

    data: Bytes
    starts: Int64s = attrs.field(converter=_of_its_own)
    lengths: Int64s = attrs.field(converter=_of_its_own)

    def __attrs_post_init__(self) -> None:
        if self.data.dtype != np.uint8 or not self.data.flags.c_contiguous:
            raise ValueError("the block of a byte column is one row of uint8")
        if self.starts.shape != self.lengths.shape:
            raise ValueError("a byte column has as many starts as lengths")
        if len(self.starts) and (
            min(self.starts.min(), self.lengths.min()) < 0
            or self.lengths.max() > self.data.size
            or (self.starts > self.data.size - self.lengths).any()  # their sum may overflow
        ):
            raise ValueError("a byte column reaches beyond its block")

    @classmethod
    def of(cls, values: Iterable[Text]) -> "ByteColumn":
        """A column of these values, copied into a block of its own."""
        pieces = [text.encode() if isinstance(text, str) else text or b"" for text in values]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        return cls(np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def repeat(cls, value: Text, count: int) -> "ByteColumn":
        """The same value ``count`` times."""
        return cls.choose([value], np.zeros(count, np.int64))

    @classmethod
    def choose(cls, values: Sequence[Text], codes: ArrayLike) -> "ByteColumn":
        """``values[code]`` for each of the codes."""
        return cls.of(values).take(codes)

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray) -> "ByteColumn":
        """A column over an Arrow array of strings or binaries, of any kind, dictionaries too.

        The array's own memory is used where it lies in one piece. Raises TypeError for other types.
        """
        if isinstance(array, pa.ChunkedArray):
            array = _in_one_piece(array)
        if pa.types.is_dictionary(array.type):
            codes = pc.fill_null(array.indices.cast(pa.int64()), len(array.dictionary))
            values = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
            return cls.from_arrow(values).take(numbers_of(codes))
        if not _is_bytes(array.type):
            if not (pa.types.is_fixed_size_binary(array.type) or str(array.type).endswith("_view")):
                raise TypeError(f"expected a column of strings or bytes, found {array.type}")
            array = array.cast(pa.large_binary())
        if array.null_count:
            array = pc.fill_null(array, "" if "string" in str(array.type) else b"")
        _validity, offsets_buffer, data_buffer = array.buffers()
        kind = np.int64 if str(array.type).startswith("large") else np.int32
        ends = np.zeros(1, np.int64)
        if offsets_buffer is not None and offsets_buffer.size:
            whole = np.frombuffer(offsets_buffer, kind)
            ends = whole[array.offset : array.offset + len(array) + 1].astype(np.int64)
        data = np.frombuffer(data_buffer or b"", np.uint8)
        return cls(data, Fresh(ends[:-1]), Fresh(np.diff(ends)))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def take(self, rows: ArrayLike | slice) -> "ByteColumn":
        """The same strings at these rows, in this order; nothing is copied."""
        chosen = rows if isinstance(rows, slice) else int64s(rows)
        starts, lengths = int64s(self.starts[chosen]), int64s(self.lengths[chosen])
        return ByteColumn(self.data, Fresh(starts), Fresh(lengths))

    def to_arrow(self, kind: pa.DataType | None = None) -> pa.Array:
        """The column copied into an Arrow array: ``large_binary``, or what ``kind`` says.

        As a string type it is checked to be UTF-8 (pyarrow.ArrowInvalid).
        """
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        packed = np.empty(int(offsets[-1]), np.uint8)
        gather(*self.addresses, len(self), address_of(packed), packed.size)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
        array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)
        return array if kind is None else array.cast(kind)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Where the block, the starts and the lengths lie, for a kernel; keep the column alive."""
        return address_of(self.data), address_of(self.starts), address_of(self.lengths)


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """The numbers of an Arrow array without nulls, where they lie.

    Arrow's own ``to_numpy`` imports pandas where that is installed, which takes a third of a second
    of whatever a store is opened for.
    """
    _validity, numbers = array.buffers()
    whole = np.frombuffer(numbers or b"", array.type.to_pandas_dtype())
    return whole[array.offset : array.offset + len(array)]


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """The only chunk as it lies, which joining would copy; several are joined."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _is_bytes(kind: Any) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )
