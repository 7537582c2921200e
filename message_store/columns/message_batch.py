# SPDX-License-Identifier: Apache-2.0
"""Many messages as columns: :class:`MessageBatch` is to ``Message``, and :class:`StoredBatch` to
``StoredMessage``, what many are to one.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn, Int64s, int64s
from message_store.columns.property_column import find_property_column
from message_store.format import properties as names
from message_store.format.layout import Buffer
from message_store.format.message import Host, Message, StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import BYTE_COLUMNS, NUMBER_COLUMNS
from message_store.kernels.batch import TABLE_LENGTH, read_records
from message_store.kernels.raw_memory import address_of

_ZEROS: Any = attrs.Factory(lambda batch: np.zeros(len(batch.body), np.int64), takes_self=True)
_ABSENT: Any = attrs.Factory(
    lambda batch: ByteColumn.repeat(None, len(batch.body)), takes_self=True
)


@attrs.frozen(eq=False, kw_only=True)
class MessageBatch:
    """Messages as an application hands them over, a column for each field of ``Message``.

    ``keys`` are separated by spaces, as a record keeps them; an absent tag, key or unique key is
    the empty string; ``user_properties`` are ready properties texts, each entry closed by 0x02.
    """

    body: ByteColumn
    topic: ByteColumn
    tags: ByteColumn = _ABSENT
    keys: ByteColumn = _ABSENT
    unique_key: ByteColumn = _ABSENT
    user_properties: ByteColumn = _ABSENT
    queue_id: Int64s = attrs.field(default=_ZEROS, converter=int64s)
    flag: Int64s = attrs.field(default=_ZEROS, converter=int64s)

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(MessageBatch):
            column = getattr(self, field.name)
            if len(column) != len(self.body):
                raise ValueError(f"{field.name} has {len(column)} rows, body {len(self.body)}")

    def __len__(self) -> int:
        return len(self.body)

    @classmethod
    def of(cls, messages: Iterable[Message]) -> "MessageBatch":
        """The columns of these messages. Raises BadFieldError for a property that does not fit."""
        rows = list(messages)
        texts = []
        for row, message in enumerate(rows):
            try:
                texts.append(names.encode_properties(message.properties.items()))
            except BadFieldError as error:
                raise error.of_row(row) from None
        return cls(
            body=ByteColumn.of(message.body for message in rows),
            topic=ByteColumn.of(message.topic for message in rows),
            tags=ByteColumn.of(message.tags for message in rows),
            keys=ByteColumn.of(" ".join(message.keys) for message in rows),
            unique_key=ByteColumn.of(message.unique_key for message in rows),
            user_properties=ByteColumn.of(texts),
            queue_id=int64s([message.queue_id for message in rows]),
            flag=int64s([message.flag for message in rows]),
        )

    def message(self, row: int) -> Message:
        """One row as a value."""
        return Message(
            topic=self.topic[row].decode(),
            body=self.body[row],
            tags=self.tags[row].decode() or None,
            keys=tuple(self.keys[row].decode().split()),
            properties=names.decode_properties(self.user_properties[row]),
            queue_id=int(self.queue_id[row]),
            flag=int(self.flag[row]),
            unique_key=self.unique_key[row].decode() or None,
        )

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> "MessageBatch":
        """The columns of an Arrow table: ``topic`` and ``body``, and any of ``tags``, ``keys``,
        ``unique_key`` (strings, dictionaries too), ``properties`` (a map of strings), ``queue_id``,
        ``flag``.

        Other columns are left alone. Raises KeyError without topic or body, TypeError for a column
        of another type, BadFieldError for a property that cannot be stored.
        """
        present = set(table.schema.names)
        texts = ("body", "topic", *(present & {"tags", "keys", "unique_key"}))
        columns: dict[str, Any] = {
            name: ByteColumn.from_arrow(table.column(name)) for name in texts
        }
        if "properties" in present:
            columns["user_properties"] = _texts_of_maps(table.column("properties"))
        for name in present & {"queue_id", "flag"}:
            columns[name] = int64s(pc.fill_null(table.column(name), 0))
        return cls(**columns)


def _texts_of_maps(column: pa.Array | pa.ChunkedArray) -> ByteColumn:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)
    if not pa.types.is_map(column.type):
        raise TypeError(f"expected properties as a map of strings, found {column.type}")
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys, values = (
        part.slice(first, last - first).cast(pa.binary()) for part in (column.keys, column.items)
    )
    for part in (keys, values):
        marked = pc.or_(pc.match_substring(part, b"\x01"), pc.match_substring(part, b"\x02"))
        bad = pc.fill_null(pc.or_(marked, pc.equal(pc.binary_length(part), 0)), True)
        if pc.any(bad).as_py():
            row = pc.index(bad, True).as_py()
            found = f"{keys[row].as_py()!r}={values[row].as_py()!r}"
            raise BadFieldError("a property that cannot be stored", found=found)
    closed = pc.binary_join_element_wise(keys, values, b"\x01")
    closed = pc.binary_join_element_wise(closed, b"", b"\x02")
    entries = ByteColumn.from_arrow(closed)
    places = np.append(entries.starts, entries.starts[-1:] + entries.lengths[-1:])
    texts = places[offsets - first] if len(entries) else np.zeros(len(offsets), np.int64)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    return ByteColumn(entries.data, texts[:-1], np.where(present, np.diff(texts), 0))


@attrs.frozen(eq=False, kw_only=True)
class StoredBatch:
    """Commit log records, a column for each field of ``StoredMessage``.

    Numbers are int64 whatever their width in the record; an address has 4 or 16 bytes, and the IPv6
    bits of ``sys_flag`` agree with it.
    """

    body: ByteColumn
    topic: ByteColumn
    properties_text: ByteColumn
    born_ip: ByteColumn
    store_ip: ByteColumn
    magic: Int64s
    body_crc: Int64s
    queue_id: Int64s
    flag: Int64s
    queue_offset: Int64s
    commit_log_offset: Int64s
    sys_flag: Int64s
    born_timestamp_ms: Int64s
    born_port: Int64s
    store_timestamp_ms: Int64s
    store_port: Int64s
    reconsume_times: Int64s
    prepared_transaction_offset: Int64s

    def __len__(self) -> int:
        return len(self.body)

    @classmethod
    def of(cls, messages: Sequence[StoredMessage]) -> "StoredBatch":
        """The columns of these messages."""
        ports = {
            "born_port": int64s([message.born_host.port for message in messages]),
            "store_port": int64s([message.store_host.port for message in messages]),
        }
        numbers = {
            name: int64s([getattr(message, name) for message in messages])
            for name in NUMBER_COLUMNS
            if name not in ports
        }
        return cls(
            body=ByteColumn.of(message.body for message in messages),
            topic=ByteColumn.of(message.topic for message in messages),
            properties_text=ByteColumn.of(message.properties_text for message in messages),
            born_ip=ByteColumn.of(message.born_host.ip for message in messages),
            store_ip=ByteColumn.of(message.store_host.ip for message in messages),
            **numbers,
            **ports,
        )

    def message(self, row: int) -> StoredMessage:
        """One row as a value."""
        numbers = {name: int(getattr(self, name)[row]) for name in NUMBER_COLUMNS}
        return StoredMessage(
            topic=self.topic[row].decode(),
            body=self.body[row],
            properties_text=self.properties_text[row],
            born_host=Host(self.born_ip[row], numbers.pop("born_port")),
            store_host=Host(self.store_ip[row], numbers.pop("store_port")),
            **numbers,
        )

    def property(self, name: str) -> ByteColumn:
        """The values of one property, as a broker reads them; empty where a record has none."""
        return find_property_column(self.properties_text, name)


def decode_batch(buffer: Buffer | NDArray[np.uint8], positions: Int64s) -> StoredBatch:
    """The records at these byte positions (int64, one dimension) of a buffer.

    The byte columns point into the buffer. Raises FormatError, as the scalar codec does, for the
    first position without a record.
    """
    data = np.frombuffer(buffer, np.uint8)
    places = int64s(positions)
    columns = np.empty((len(NUMBER_COLUMNS) + 2 * len(BYTE_COLUMNS), len(places)), np.int64)
    table = np.zeros(TABLE_LENGTH, np.int64)
    rows = iter(columns)
    numbers: dict[str, Any] = {name: next(rows) for name in NUMBER_COLUMNS}
    spans = {name: (next(rows), next(rows)) for name in BYTE_COLUMNS}
    table[: len(NUMBER_COLUMNS)] = [address_of(column) for column in numbers.values()]
    for place, span in enumerate(spans.values()):
        base = len(NUMBER_COLUMNS) + 3 * place
        table[base + 1 : base + 3] = [address_of(column) for column in span]
    bad = read_records(address_of(data), data.size, places, table)
    if bad >= 0:
        decode_message_at(data.data, int(places[bad]))
        raise AssertionError("the two codecs disagree about what a record is")
    found: dict[str, Any] = {name: ByteColumn(data, *span) for name, span in spans.items()}
    return StoredBatch(**found, **numbers)
