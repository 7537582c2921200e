# SPDX-License-Identifier: Apache-2.0
"""One message ↔ the bytes of one commit log record: strict, without files, the codec that is
obviously right.

The bulk codec (``message_batch``) and every kernel are held equal to this module by property tests.
Limitations: inner batches (one record for many messages) are read as the one record that they are.
"""

import zlib

from message_store.base.errors import (
    BadFieldError,
    BadMagicError,
    ChecksumError,
    TruncatedRecordError,
)
from message_store.format.layout import Buffer
from message_store.format.message import Host, StoredMessage
from message_store.format.record_layout import (
    BLANK_RECORD,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX_BYTES,
    SMALLEST_RECORD_BYTES,
    head_layout,
    runs,
)


def body_crc(body: Buffer) -> int:
    """The checksum that a record keeps of its body: CRC-32 with the highest bit cleared."""
    return zlib.crc32(body) & CRC_MASK


def encode_message(message: StoredMessage) -> bytes:
    """The record of ``message``, byte for byte as a broker writes it.

    Raises BadFieldError when a topic or the properties are longer than their length field can say.
    """
    topic = message.topic.encode()
    if len(message.properties_text) > PROPERTIES_MAX_BYTES:
        raise BadFieldError(
            "properties too long",
            expected=f"at most {PROPERTIES_MAX_BYTES}",
            found=len(message.properties_text),
        )
    parts = []
    for run, data in zip(
        runs(message.magic), (message.body, topic, message.properties_text), strict=True
    ):
        if len(data) >= 1 << (8 * run.length.size - 1):
            raise BadFieldError(f"{run.name} too long for its length field", found=len(data))
        parts += [run.length.encode(length=len(data)), data]
    head = head_layout(message.sys_flag)
    return head.encode(
        size_bytes=head.size + sum(map(len, parts)),
        magic=message.magic,
        body_crc=message.body_crc,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=message.queue_offset,
        commit_log_offset=message.commit_log_offset,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_ip=message.born_host.ip,
        born_port=message.born_host.port,
        store_timestamp_ms=message.store_timestamp_ms,
        store_ip=message.store_host.ip,
        store_port=message.store_host.port,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    ) + b"".join(parts)


def record_size_at(buffer: Buffer, offset: int) -> int:
    """The length that the record at ``offset`` claims, checked against its magic and the end of the
    buffer.

    Raises BadMagicError where no record begins (a blank included) and TruncatedRecordError for one
    that is cut off.
    """
    view = memoryview(buffer)
    head = head_layout(0).decode_at(_padded_head(view, offset), 0)
    magic, size_bytes = head["magic"], head["size_bytes"]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadMagicError(
            "no message begins here", offset=offset, expected="0xDAA320A7", found=hex(magic % 2**32)
        )
    if size_bytes < SMALLEST_RECORD_BYTES:
        raise BadFieldError("a record smaller than any can be", offset=offset, found=size_bytes)
    if size_bytes > view.nbytes - offset:
        raise TruncatedRecordError(
            "a record is cut off", offset=offset, expected=size_bytes, found=view.nbytes - offset
        )
    return size_bytes


def _padded_head(view: memoryview, offset: int) -> bytes:
    head_bytes = head_layout(0).size
    if offset < 0 or offset + BLANK_RECORD.size > view.nbytes:
        raise TruncatedRecordError(
            "no room for a record", offset=offset, found=max(0, view.nbytes - offset)
        )
    return bytes(view[offset : offset + head_bytes]).ljust(head_bytes, b"\0")


def decode_message_at(buffer: Buffer, offset: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """The record that begins at ``offset`` of ``buffer``.

    Every length is checked before it is used. Raises FormatError, and nothing else, for bytes that
    are no record: BadMagicError, TruncatedRecordError, BadFieldError, or ChecksumError when the
    body is not what its CRC says.
    """
    view = memoryview(buffer)
    size_bytes = record_size_at(view, offset)
    record = view[offset : offset + size_bytes]
    short = head_layout(0)
    fields = short.decode_at(record, 0)
    if (head := head_layout(fields["sys_flag"])) is not short:
        fields = head.decode_at(record, 0)
    place = head.size
    parts: dict[str, bytes] = {}
    for run in runs(fields["magic"]):
        length = run.length.decode_at(record, place)["length"]
        place += run.length.size
        if not 0 <= length <= size_bytes - place:
            raise BadFieldError(f"{run.name} does not fit its record", offset=offset, found=length)
        parts[run.name] = bytes(record[place : place + length])
        place += length
    if place != size_bytes:
        raise BadFieldError(
            "the parts do not add up to the record", offset=offset, expected=size_bytes, found=place
        )
    # An empty body has no checksum that anybody looks at: Java stores and skips whatever is there.
    if check_crc and parts["body"] and body_crc(parts["body"]) != fields["body_crc"]:
        raise ChecksumError(
            "the body is damaged",
            offset=offset,
            expected=fields["body_crc"],
            found=body_crc(parts["body"]),
        )
    return _message(fields, parts, offset)


def _message(fields: dict[str, int], parts: dict[str, bytes], offset: int) -> StoredMessage:
    try:
        topic = parts["topic"].decode()
    except UnicodeDecodeError as error:
        raise BadFieldError(
            "the topic is not UTF-8", offset=offset, found=parts["topic"].hex()
        ) from error
    packed: dict[str, bytes] = fields  # type: ignore[assignment]  # the two addresses are the only bytes fields
    return StoredMessage(
        topic=topic,
        body=parts["body"],
        properties_text=parts["properties"],
        born_host=Host(packed["born_ip"], fields["born_port"]),
        store_host=Host(packed["store_ip"], fields["store_port"]),
        **{
            name: fields[name]
            for name in (
                "body_crc",
                "queue_id",
                "queue_offset",
                "commit_log_offset",
                "born_timestamp_ms",
                "store_timestamp_ms",
                "flag",
                "sys_flag",
                "reconsume_times",
                "prepared_transaction_offset",
                "magic",
            )
        },
    )
