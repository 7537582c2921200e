# SPDX-License-Identifier: Apache-2.0
"""One table of fields gives a byte layout its struct, NumPy dtype, offsets and documentation.

Every fixed-size structure of a RocketMQ store is declared once, as a :class:`Layout`. The scalar
codecs, the bulk kernels' constants and ``docs/FORMAT.md`` are all derived from it. Byte order and
signedness belong to the layout and not to its fields: big-endian and signed, because Java wrote
these files.
"""

import struct
from collections.abc import Container
from functools import cached_property

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, TruncatedRecordError

Buffer = bytes | bytearray | memoryview

_STRUCT_CODES = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "ip4": "4s", "ip16": "16s"}
_DTYPE_CODES = {"i8": "i1", "i16": ">i2", "i32": ">i4", "i64": ">i8", "ip4": "V4", "ip16": "V16"}


@attrs.frozen
class Field:
    """One field: its name, its kind (``i8 i16 i32 i64 ip4 ip16``) and what it means."""

    name: str
    kind: str = attrs.field(validator=attrs.validators.in_(_STRUCT_CODES))
    meaning: str


@attrs.frozen(slots=False)
class Layout:
    """A fixed-size, packed, big-endian structure.

    >>> entry = Layout(
    ...     "queue entry", (Field("offset", "i64", "where"), Field("size_bytes", "i32", "how long"))
    ... )
    >>> entry.size, entry.offset_of("size_bytes")
    (12, 8)
    >>> entry.decode_at(entry.encode(offset=7, size_bytes=-1), 0)
    {'offset': 7, 'size_bytes': -1}
    """

    name: str
    fields: tuple[Field, ...]

    @cached_property
    def packer(self) -> struct.Struct:
        """The precompiled struct, in field order."""
        return struct.Struct(">" + "".join(_STRUCT_CODES[field.kind] for field in self.fields))

    def part(self, first: str, last: str) -> "Layout":
        """The fields from one to another, both included."""
        names = [field.name for field in self.fields]
        fields = self.fields[names.index(first) : names.index(last) + 1]
        return Layout(f"{self.name}, {first} to {last}", fields)

    def without(self, name: str, names: Container[str]) -> "Layout":
        """The same without some fields, and with a name of its own."""
        return Layout(name, tuple(field for field in self.fields if field.name not in names))

    def packer_around(self, part: "Layout") -> struct.Struct:
        """The struct that takes a part's bytes in place of its fields, which seldom change."""
        codes = [_STRUCT_CODES[field.kind] for field in self.fields]
        begin = self.fields.index(part.fields[0])
        codes[begin : begin + len(part.fields)] = [f"{part.size}s"]
        return struct.Struct(">" + "".join(codes))

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The same table as a packed structured NumPy dtype."""
        return np.dtype([(field.name, _DTYPE_CODES[field.kind]) for field in self.fields])

    @cached_property
    def size(self) -> int:
        """Length in bytes."""
        return self.packer.size

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @cached_property
    def _offsets(self) -> dict[str, int]:
        prefix = ">"
        offsets = {}
        for field in self.fields:
            offsets[field.name] = struct.calcsize(prefix)
            prefix += _STRUCT_CODES[field.kind]
        return offsets

    def offset_of(self, name: str) -> int:
        """Byte position of a field within the structure."""
        return self._offsets[name]

    def encode(self, **values: int | bytes) -> bytes:
        """The bytes of one structure; every field must be given by name.

        Raises BadFieldError for a number that its field has no room for.
        """
        try:
            return self.packer.pack(*(values[field.name] for field in self.fields))
        except struct.error as error:
            raise BadFieldError(f"{self.name}: {error}") from error

    def decode_at(self, buffer: Buffer, offset: int) -> dict[str, int]:
        """The fields at ``offset`` of ``buffer``, by name.

        Raises TruncatedRecordError when the buffer ends before the structure does.
        """
        view = memoryview(buffer)
        if offset < 0 or offset + self.size > view.nbytes:
            raise TruncatedRecordError(
                f"{self.name} is cut off",
                offset=offset,
                expected=self.size,
                found=max(0, view.nbytes - offset),
            )
        return dict(zip(self._names, self.packer.unpack_from(view, offset), strict=True))

    def markdown(self) -> str:
        """The table that ``docs/FORMAT.md`` shows for this structure."""
        rows = [
            f"| {self.offset_of(field.name)} | {field.kind} | `{field.name}` | {field.meaning} |"
            for field in self.fields
        ]
        title = f"**{self.name}**, {self.size} bytes, big-endian, signed"
        head = f"{title}\n\n| offset | kind | field | meaning |"
        return "\n".join([head, "|---|---|---|---|", *rows])
