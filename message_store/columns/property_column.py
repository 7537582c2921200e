# SPDX-License-Identifier: Apache-2.0
"""Columns of properties texts: made from a column for each property, and searched for one."""

from collections.abc import Sequence

import numpy as np

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn, Fresh, Int64s, int64s
from message_store.format.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from message_store.kernels.properties import (
    NUMBER_MAX_BYTES,
    PIECE_NUMBER,
    PIECE_READY,
    PIECE_TEXT,
    fill_hex_keys,
    find_property,
    join_pieces,
)
from message_store.kernels.raw_memory import address_of

Piece = tuple[str, ByteColumn | Int64s] | ByteColumn
"""A property by name with its column of text or of whole numbers; or ready entries, each closed."""


def join_property_columns(pieces: Sequence[Piece], *, closed: bool = True) -> ByteColumn:
    """The properties texts of many records: the pieces of each row, in this order.

    An empty value leaves its property out. ``closed`` writes the last separator (5.2 and later do).
    Equal to ``properties.encode_properties`` of each row. Raises BadFieldError for a value that
    holds a separator.

    >>> levels = np.array([3, 18])
    >>> texts = join_property_columns([("DELAY", levels), ("TAGS", ByteColumn.of(["a", None]))])
    >>> list(texts)
    [b'DELAY\\x013\\x02TAGS\\x01a\\x02', b'DELAY\\x0118\\x02']
    """
    columns = [piece if isinstance(piece, ByteColumn) else piece[1] for piece in pieces]
    count = len(columns[0])
    if any(len(column) != count for column in columns):
        raise ValueError("the columns of properties differ in length")
    table = []
    kept: list[object] = []
    room = 0
    for piece, column in zip(pieces, columns, strict=True):
        label = b"" if isinstance(piece, ByteColumn) else piece[0].encode() + NAME_VALUE_SEPARATOR
        name = np.frombuffer(label, np.uint8)
        if isinstance(column, ByteColumn):
            kind = PIECE_READY if isinstance(piece, ByteColumn) else PIECE_TEXT
            addresses = column.addresses
            room += int(column.lengths.sum())
        else:
            column = int64s(column)
            kind, addresses = PIECE_NUMBER, (address_of(column), 0, 0)
            room += count * NUMBER_MAX_BYTES
        room += count * (name.size + len(PROPERTY_SEPARATOR))
        kept += [name, column]
        table.append((kind, address_of(name), name.size, *addresses))
    block = np.empty(room, np.uint8)
    starts, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    bad = join_pieces(int64s(table), closed, address_of(block), starts, lengths)
    if bad >= 0:
        raise BadFieldError(f"row {bad}: a property value that holds a separator")
    return ByteColumn(block, Fresh(starts), Fresh(lengths))


def find_property_column(texts: ByteColumn, name: str) -> ByteColumn:
    """The value of one property in each text, in place, as a broker reads it: empty values dropped,
    the last of equal names; empty where there is none.

    >>> list(find_property_column(ByteColumn.of([b"a\\x011\\x02TAGS\\x01x", b""]), "TAGS"))
    [b'x', b'']
    """
    wanted = np.frombuffer(name.encode(), np.uint8)
    starts, lengths = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
    find_property(*texts.addresses, address_of(wanted), wanted.size, starts, lengths)
    return ByteColumn(texts.data, Fresh(starts), Fresh(lengths))


def hex_key_column(prefix: bytes, numbers: Int64s, digits: int) -> ByteColumn:
    """Keys of one width: ``prefix``, then each number in ``digits`` upper-case hexadecimal digits.

    >>> list(hex_key_column(b"7F000001", np.array([10, 255]), 4))
    [b'7F000001000A', b'7F00000100FF']
    """
    width = len(prefix) + digits
    block = np.empty(width * len(numbers), np.uint8)
    head = np.frombuffer(prefix, np.uint8)
    fill_hex_keys(address_of(block), address_of(head), head.size, int64s(numbers), digits)
    starts = np.arange(len(numbers), dtype=np.int64) * width
    lengths = np.full(len(numbers), width, np.int64)
    return ByteColumn(block, Fresh(starts), Fresh(lengths))
