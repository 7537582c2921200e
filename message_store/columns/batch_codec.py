# SPDX-License-Identifier: Apache-2.0
"""Many messages ↔ the bytes of a log: the bulk codec, the one that is fast.

Law: for every batch the bytes are those of ``message_codec``, and what one of the two codecs
refuses the other refuses with the same error: the bulk codec asks the scalar one to say what is
wrong.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn, Bytes, Int64s, int64s
from message_store.columns.message_batch import StoredBatch
from message_store.files.store_root import COMMIT_LOG_FILE_BYTES
from message_store.format.layout import Buffer
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.format.record_layout import (
    BLANK_RECORD,
    BYTE_COLUMNS,
    END_OF_FILE_MIN_BYTES,
    HEAD_V4_V4,
    IPV4_BYTES,
    IPV6_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NUMBER_COLUMNS,
    PROPERTIES_MAX_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
    head_layout,
    runs,
)
from message_store.kernels.batch import (
    TABLE_LENGTH,
    fill_records,
    place_records,
    read_records,
    walk_records,
)
from message_store.kernels.raw_memory import address_of

_INT32_COLUMNS = tuple(
    field.name
    for field in HEAD_V4_V4.fields
    if field.kind == "i32" and field.name in NUMBER_COLUMNS and field.name != "body_crc"
)


@attrs.frozen(eq=False)
class Placement:
    """Where records go in a log: offset and size of each; ``end`` is one past the last byte."""

    start: int
    positions: Int64s
    sizes: Int64s
    end: int


def place_batch(
    batch: StoredBatch, start: int = 0, file_bytes: int = COMMIT_LOG_FILE_BYTES
) -> Placement:
    """Where the records of ``batch`` go in a log of files of ``file_bytes`` that ends at ``start``.

    A record goes to the next file where it would leave less than eight bytes behind it. Raises what
    the scalar codec raises for a row that cannot be a record, and BadFieldError for one that no
    file can hold.
    """
    room = file_bytes - start % file_bytes
    if start < 0 or room < END_OF_FILE_MIN_BYTES:
        raise ValueError(f"a log cannot end at {start} in files of {file_bytes} bytes")
    _refuse_impossible_rows(batch)
    sizes = _record_sizes(batch)
    positions = np.empty(len(batch), np.int64)
    end = place_records(sizes, start, file_bytes, positions)
    if end < 0:
        raise BadFieldError(
            "a record larger than a log file",
            expected=f"at most {file_bytes - END_OF_FILE_MIN_BYTES}",
            found=int(sizes[-1 - end]),
        )
    return Placement(start, positions, sizes, end)


def _record_sizes(batch: StoredBatch) -> Int64s:
    fixed = {
        magic: HEAD_V4_V4.size + sum(run.length.size for run in runs(magic))
        for magic in (MAGIC_V1, MAGIC_V2)
    }
    wider = head_layout(SYS_BORN_HOST_IPV6).size - HEAD_V4_V4.size
    sizes = batch.body.lengths + batch.topic.lengths
    sizes += batch.properties_text.lengths
    sizes += np.where(batch.magic == MAGIC_V2, fixed[MAGIC_V2], fixed[MAGIC_V1])
    for bit in (SYS_BORN_HOST_IPV6, SYS_STORE_HOST_IPV6):
        sizes += wider * (batch.sys_flag & bit != 0)
    return sizes


def _refuse_impossible_rows(batch: StoredBatch) -> None:
    """Let the scalar codec say what is wrong with the first row that does not fit the format."""
    suspect = np.zeros(len(batch), np.bool_)
    for magic in (MAGIC_V1, MAGIC_V2):
        kinds = zip(runs(magic), (batch.body, batch.topic, batch.properties_text), strict=True)
        for run, column in kinds:
            limit = 1 << (8 * run.length.size - 1)
            suspect |= (batch.magic == magic) & (column.lengths >= limit)
    suspect |= batch.properties_text.lengths > PROPERTIES_MAX_BYTES
    suspect |= (batch.magic != MAGIC_V1) & (batch.magic != MAGIC_V2)
    for name in _INT32_COLUMNS:
        column = getattr(batch, name)
        suspect |= column != column.astype(np.int32)
    for bit, column in ((SYS_BORN_HOST_IPV6, batch.born_ip), (SYS_STORE_HOST_IPV6, batch.store_ip)):
        suspect |= column.lengths != np.where(batch.sys_flag & bit != 0, IPV6_BYTES, IPV4_BYTES)
    for row in np.flatnonzero(suspect):
        encode_message(batch.message(int(row)))


def write_batch(batch: StoredBatch, placement: Placement, target: Bytes) -> None:
    """Write the records, and the blanks between files, into ``target``, which stands for the log
    from ``placement.start`` on.

    Each record gets the offset of its place. Raises ValueError when ``target`` is too small, and
    for the placement of another batch.
    """
    if target.size < placement.end - placement.start or not target.flags.c_contiguous:
        raise ValueError(f"{placement.end - placement.start} bytes do not fit {target.size}")
    if not np.array_equal(placement.sizes, _record_sizes(batch)):
        raise ValueError("this is the placement of another batch")
    table = batch.address_table()
    fill_records(table, placement.positions, placement.sizes, placement.start, address_of(target))


def find_records(buffer: Buffer | NDArray[np.uint8]) -> Int64s:
    """Where records begin in a buffer that holds them one behind another, blanks passed over.

    The last one may be followed by zeros (a file's unused space) or by a blank that goes on beyond
    the buffer. Raises FormatError, as the scalar codec does, where something else stands.
    """
    data = np.frombuffer(buffer, np.uint8)
    positions = np.empty(data.size // SMALLEST_RECORD_BYTES + 1, np.int64)
    count = walk_records(address_of(data), data.size, positions)
    _require_end(data, int(positions[count]))
    return positions[:count].copy()


def _require_end(data: Bytes, stop: int) -> None:
    rest = data[stop : stop + BLANK_RECORD.size]
    if not rest.any():
        return
    if len(rest) == BLANK_RECORD.size:
        blank = BLANK_RECORD.decode_at(rest.tobytes(), 0)
        if blank["magic"] == MAGIC_BLANK:
            if blank["size_bytes"] < BLANK_RECORD.size:
                found = blank["size_bytes"]
                raise BadFieldError("a blank smaller than itself", offset=stop, found=found)
            return
    decode_message_at(data.data, stop)
    raise AssertionError("the two codecs disagree about where a record begins")


def decode_batch(
    buffer: Buffer | NDArray[np.uint8],
    positions: Int64s | None = None,
    *,
    check_crc: bool = True,
) -> StoredBatch:
    """The records at these positions of a buffer, or all that lie in it one behind another.

    The byte columns point into the buffer. Raises FormatError, the scalar codec's own, for the
    first that is no record.
    """
    data = np.frombuffer(buffer, np.uint8)
    places = find_records(data) if positions is None else int64s(positions)
    columns = np.empty((len(NUMBER_COLUMNS) + 2 * len(BYTE_COLUMNS), len(places)), np.int64)
    table = np.zeros(TABLE_LENGTH, np.int64)
    rows = iter(columns)
    numbers: dict[str, Any] = {name: next(rows) for name in NUMBER_COLUMNS}
    spans = {name: (next(rows), next(rows)) for name in BYTE_COLUMNS}
    table[: len(NUMBER_COLUMNS)] = [address_of(column) for column in numbers.values()]
    for place, span in enumerate(spans.values()):
        base = len(NUMBER_COLUMNS) + 3 * place
        table[base + 1 : base + 3] = [address_of(column) for column in span]
    bad = read_records(address_of(data), data.size, places, table, check_crc)
    if bad >= 0:
        decode_message_at(data.data, int(places[bad]), check_crc=check_crc)
        raise AssertionError("the two codecs disagree about what a record is")
    found: dict[str, Any] = {name: ByteColumn(data, *span) for name, span in spans.items()}
    return StoredBatch(**found, **numbers)
