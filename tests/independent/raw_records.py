# SPDX-License-Identifier: Apache-2.0
"""One commit log record, field by field, for tests that must not trust the product."""

from __future__ import annotations

import hashlib
import ipaddress
import struct
import zlib
from collections.abc import Iterable

import attrs

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124

COMPRESSED = 0x1
TRANSACTION_BITS = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20
COMPRESSION_TYPE_BITS = 0x700
COMPRESSION_ZLIB = 0x300

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"

Pair = tuple[str, str]


class BadRecordError(ValueError):
    """Bytes that are not one whole record."""


@attrs.frozen(kw_only=True)
class RawRecord:
    """Every field of a record. `body_crc`, `magic`, `total_size` of None mean: the right one."""

    topic: str
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_ip: bytes = bytes([10, 1, 2, 3])
    born_port: int = 4567
    store_timestamp_ms: int = 0
    store_ip: bytes = bytes([127, 0, 0, 1])
    store_port: int = 10911
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int | None = None
    magic: int | None = None
    total_size: int | None = None

    @property
    def pairs(self) -> list[Pair]:
        return parse_properties(self.properties)

    @property
    def effective(self) -> dict[str, str]:
        return effective_properties(self.pairs)

    @property
    def transaction_type(self) -> int:
        return self.sys_flag & TRANSACTION_BITS


def body_crc_of(body: bytes) -> int:
    """CRC-32 without its sign bit; an empty body gives 0."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_record(record: RawRecord) -> bytes:
    """The record's bytes; hosts are 4 or 16 bytes long, as the IPv6 bits of sys_flag say."""
    assert len(record.born_ip) == (16 if record.sys_flag & BORN_HOST_IPV6 else 4)
    assert len(record.store_ip) == (16 if record.sys_flag & STORE_HOST_IPV6 else 4)
    topic = record.topic.encode("utf-8")
    magic = record.magic
    if magic is None:
        magic = MAGIC_V2 if java_length(record.topic) > 127 else MAGIC_V1
    crc = body_crc_of(record.body) if record.body_crc is None else record.body_crc
    tail = b"".join(
        [
            struct.pack(">iiiq", crc, record.queue_id, record.flag, record.queue_offset),
            struct.pack(
                ">qiq", record.commit_log_offset, record.sys_flag, record.born_timestamp_ms
            ),
            record.born_ip + struct.pack(">i", record.born_port),
            struct.pack(">q", record.store_timestamp_ms),
            record.store_ip + struct.pack(">i", record.store_port),
            struct.pack(">iq", record.reconsume_times, record.prepared_transaction_offset),
            struct.pack(">i", len(record.body)) + record.body,
            struct.pack(">h" if magic == MAGIC_V2 else ">b", len(topic)) + topic,
            struct.pack(">h", len(record.properties)) + record.properties,
        ]
    )
    size = 8 + len(tail) if record.total_size is None else record.total_size
    return struct.pack(">ii", size, magic) + tail


class _Reader:
    """Takes fields off the front of bytes; running out of bytes is a BadRecordError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if count < 0 or len(piece) != count:
            raise BadRecordError(f"{count} bytes wanted at {self.position} of {len(self.data)}")
        self.position += count
        return piece

    def number(self, code: str) -> int:
        (value,) = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))
        return int(value)

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRecordError(f"not UTF-8: {error}") from error


def decode_record(data: bytes, *, check_crc: bool = True) -> RawRecord:
    """The record that fills `data` from its first to its last byte; BadRecordError otherwise."""
    reader = _Reader(data)
    size, magic = reader.number("i"), reader.number("i")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecordError(f"magic {magic & 0xFFFFFFFF:08x}")
    if size != len(data):
        raise BadRecordError(f"size {size}, but {len(data)} bytes")
    crc, queue_id, flag = reader.number("i"), reader.number("i"), reader.number("i")
    queue_offset, commit_log_offset = reader.number("q"), reader.number("q")
    sys_flag, born_ms = reader.number("i"), reader.number("q")
    born_ip = reader.take(16 if sys_flag & BORN_HOST_IPV6 else 4)
    born_port, store_ms = reader.number("i"), reader.number("q")
    store_ip = reader.take(16 if sys_flag & STORE_HOST_IPV6 else 4)
    store_port, reconsume_times = reader.number("i"), reader.number("i")
    prepared = reader.number("q")
    body = reader.take(reader.number("i"))
    topic = reader.text(reader.number("h" if magic == MAGIC_V2 else "b"))
    properties = reader.take(reader.number("h"))
    if reader.position != len(data):
        raise BadRecordError(f"fields end at {reader.position}, size says {len(data)}")
    if check_crc and crc != body_crc_of(body):
        raise BadRecordError(f"body CRC {crc}, body has {body_crc_of(body)}")
    return RawRecord(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_ip=born_ip,
        born_port=born_port,
        store_timestamp_ms=store_ms,
        store_ip=store_ip,
        store_port=store_port,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body_crc=crc,
        magic=magic,
        total_size=size,
    )


def parse_properties(data: bytes) -> list[Pair]:
    """All entries in order, useless ones too; an entry without 0x01 is (text, "")."""
    entries = data.decode("utf-8", "surrogateescape").split("\x02")
    if entries[-1] == "":
        entries.pop()
    return [(name, value) for name, _, value in (entry.partition("\x01") for entry in entries)]


def ends_with_separator(data: bytes) -> bool:
    return data.endswith(b"\x02")


def join_properties(pairs: Iterable[Pair], *, ending: bool) -> bytes:
    """Entries joined by 0x02, with one more at the end when `ending` (and there is any entry)."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    return (text + "\x02" if ending and text else text).encode("utf-8", "surrogateescape")


def effective_properties(pairs: Iterable[Pair]) -> dict[str, str]:
    """What a broker's map holds: empty names and empty values are dropped, the last one wins.

    Bytes that are no UTF-8 are signs of replacement there, as Java reads them.
    """
    return {_as_java_reads(name): _as_java_reads(value) for name, value in pairs if name and value}


def _as_java_reads(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def java_length(text: str) -> int:
    return len(text.encode("utf-16-be")) // 2


def java_hash(text: str) -> int:
    """Java's String.hashCode, over UTF-16 units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (value * 31 + units[index] * 256 + units[index + 1]) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def tags_code_of(tags: str | None) -> int:
    return java_hash(tags) if tags else 0


def ip_bytes(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def plain_body(record: RawRecord) -> bytes:
    """The body as the producer gave it; only zlib, the clients' default, is understood."""
    if not record.sys_flag & COMPRESSED:
        return record.body
    if record.sys_flag & COMPRESSION_TYPE_BITS not in (0, COMPRESSION_ZLIB):
        raise BadRecordError(f"compression type of sys_flag {record.sys_flag:#x}")
    return zlib.decompress(record.body)


def body_sha1(record: RawRecord) -> str:
    return hashlib.sha1(plain_body(record)).hexdigest()
