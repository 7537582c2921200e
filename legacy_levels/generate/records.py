# SPDX-License-Identifier: Apache-2.0
"""Generated messages as columns → their records in a log, as fast as memory takes them.

Law: the bytes are those of ``message_codec``. All records share a head and the name of the system
topic; a row writes what is its own over them.
"""

import attrs
import numpy as np

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn, Int64s, int64s
from message_store.format import properties as names
from message_store.format.message import Host
from message_store.format.record_layout import (
    BODY_RUN,
    CRC_MASK,
    END_OF_FILE_MIN_BYTES,
    MAGIC_V1,
    PROPERTIES_MAX_BYTES,
    PROPERTIES_RUN,
)
from message_store.intake.records import RecordForm, topic_run
from message_store.kernels.cache import kernel
from message_store.kernels.crc import crc32
from message_store.kernels.log import (
    AT_BODY_CRC,
    AT_BORN_TIME,
    AT_LOG_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SIZE,
    AT_STORE_TIME,
)
from message_store.kernels.raw_memory import (
    address_of,
    copy_bytes,
    copy_short,
    load_native,
    store_i16,
    store_i32,
    store_i64,
)

_FORM = RecordForm(store_host=Host.of("127.0.0.1", 10_911), born_host=Host.of("10.1.2.3", 49_152))
_HEAD = np.frombuffer(_FORM.pack_head(0, MAGIC_V1, 0, 0, 0, 0, 0, _FORM.stamp(0, 0), 0), np.uint8)
_TOPIC = np.frombuffer(topic_run(names.LEVEL_TOPIC), np.uint8)
_BODY_LENGTH_BYTES = BODY_RUN.length.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_RUN.length.size
_AROUND_BYTES = len(_HEAD) + len(_TOPIC) + _PROPERTIES_LENGTH_BYTES
_QUEUE_ID, _QUEUE_OFFSET, _BORN_MS, _STORED_MS = range(4)
_BODY, _PROPERTIES = 4, 7


@attrs.frozen(eq=False, kw_only=True)
class Chunk:
    """Messages that are stored one behind another, and when each is due."""

    queue_id: Int64s
    queue_offset: Int64s
    born_ms: Int64s
    stored_ms: Int64s
    due_ms: Int64s
    body: ByteColumn
    properties_text: ByteColumn

    def record_sizes(self, file_bytes: int) -> Int64s:
        """The size of each record. Raises BadFieldError for one that a log file of so many bytes
        cannot hold, and for properties that no record can.
        """
        texts = self.properties_text.lengths
        sizes = _AROUND_BYTES + self.body.lengths + texts
        for what, most, found in (
            ("properties too long", PROPERTIES_MAX_BYTES, texts),
            (
                "a record larger than a log file (--body-bytes, --commit-log-file-bytes)",
                file_bytes - END_OF_FILE_MIN_BYTES,
                sizes,
            ),
        ):
            if int(found.max()) > most:
                raise BadFieldError(what, expected=f"at most {most}", found=int(found.max()))
        return sizes

    def fill(self, rows: slice, positions: Int64s, target: int) -> None:
        """Write the records of these rows, the first of them to the address ``target``, the others
        as far from it as their positions are.
        """
        numbers = (self.queue_id, self.queue_offset, self.born_ms, self.stored_ms)
        table = [*map(address_of, numbers), *self.body.addresses, *self.properties_text.addresses]
        _fill_records(int64s(table), positions, rows.start, rows.stop, target)


@kernel("void(int64[::1], int64[::1], int64, int64, int64)")
def _fill_records(table: Int64s, positions: Int64s, first: int, stop: int, target: int) -> None:
    for row in range(first, stop):
        record = target + positions[row] - positions[first]
        body = table[_BODY] + load_native(table[_BODY + 1] + 8 * row)
        body_bytes = load_native(table[_BODY + 2] + 8 * row)
        text = table[_PROPERTIES] + load_native(table[_PROPERTIES + 1] + 8 * row)
        text_bytes = load_native(table[_PROPERTIES + 2] + 8 * row)
        copy_bytes(record, _HEAD.ctypes.data, len(_HEAD))
        store_i32(record + AT_SIZE, _AROUND_BYTES + body_bytes + text_bytes)
        store_i32(record + AT_BODY_CRC, int(crc32(body, body_bytes)) & CRC_MASK)
        store_i32(record + AT_QUEUE_ID, load_native(table[_QUEUE_ID] + 8 * row))
        store_i64(record + AT_QUEUE_OFFSET, load_native(table[_QUEUE_OFFSET] + 8 * row))
        store_i64(record + AT_LOG_OFFSET, positions[row])
        store_i64(record + AT_BORN_TIME, load_native(table[_BORN_MS] + 8 * row))
        store_i64(record + AT_STORE_TIME, load_native(table[_STORED_MS] + 8 * row))
        record += len(_HEAD)
        store_i32(record - _BODY_LENGTH_BYTES, body_bytes)
        copy_bytes(record, body, body_bytes)
        record += body_bytes
        copy_short(record, _TOPIC.ctypes.data, len(_TOPIC))
        record += len(_TOPIC)
        store_i16(record, text_bytes)
        copy_bytes(record + _PROPERTIES_LENGTH_BYTES, text, text_bytes)
