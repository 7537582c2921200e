# SPDX-License-Identifier: Apache-2.0
"""The commit log record as tables: its head for each kind of host address, its runs, magics and
flag bits.

A record is a fixed head, then three runs, each a length and that many bytes: body, topic,
properties. Both codecs and every kernel take their offsets from here (docs/FORMAT.md, commit log
record).
"""

import attrs

from message_store.format.layout import Field, Layout

MAGIC_V1 = 0xDAA320A7 - 2**32
MAGIC_V2 = 0xDAA320AB - 2**32
MAGIC_BLANK = 0xCBD43194 - 2**32

SYS_COMPRESSED = 0x1
SYS_MULTI_TAGS = 0x2
SYS_COMPRESSION_LZ4 = 0x100
SYS_COMPRESSION_ZSTD = 0x200
SYS_COMPRESSION_MASK = 0x700
"""Which kind of compression; 0 and 0x300 are zlib. RocketMQ: MessageSysFlag (5.0.0)."""

SYS_OF_BODY = SYS_COMPRESSED | SYS_MULTI_TAGS | SYS_COMPRESSION_MASK
"""Flags that say what a body is, compressed or of several tags: they stay with it."""

SYS_TRANSACTION_MASK = 0xC
SYS_COMMIT = 0x8
SYS_BORN_HOST_IPV6 = 0x10
SYS_STORE_HOST_IPV6 = 0x20

CRC_MASK = 0x7FFFFFFF
PROPERTIES_MAX_BYTES = 32767
TOPIC_MAX_CHARS_V1 = 127

BLANK_RECORD = Layout(
    "commit log blank",
    (
        Field("size_bytes", "i32", "bytes left in the file, these eight included"),
        Field("magic", "i32", "0xCBD43194"),
    ),
)
END_OF_FILE_MIN_BYTES = BLANK_RECORD.size
"""A record is appended only where so many bytes stay free, so that a full file ends in a blank."""


def _head(name: str, born_ip: str, store_ip: str) -> Layout:
    return Layout(
        name,
        (
            Field("size_bytes", "i32", "length of the whole record, these four bytes included"),
            Field(
                "magic",
                "i32",
                "0xDAA320A7 (V1: topic length in one byte) or 0xDAA320AB (V2: in two)",
            ),
            Field("body_crc", "i32", "CRC-32 of the stored body, highest bit cleared"),
            Field("queue_id", "i32", "queue within the topic"),
            Field("flag", "i32", "the user's own flag"),
            Field("queue_offset", "i64", "ordinal in the consume queue of (topic, queue id)"),
            Field(
                "commit_log_offset",
                "i64",
                "where this record begins in the log (Java: PHYSICALOFFSET)",
            ),
            Field(
                "sys_flag",
                "i32",
                "bit 0 compressed, 2-3 transaction, 4 born host IPv6, 5 store host IPv6",
            ),
            Field("born_timestamp_ms", "i64", "when the client made it"),
            Field("born_ip", born_ip, "address of the client"),
            Field("born_port", "i32", "port of the client"),
            Field("store_timestamp_ms", "i64", "when the broker stored it"),
            Field("store_ip", store_ip, "address of the broker"),
            Field("store_port", "i32", "port of the broker"),
            Field("reconsume_times", "i32", "how often a consumer gave it back"),
            Field(
                "prepared_transaction_offset",
                "i64",
                "log offset of the half message; in our copies ~ that of the first record; else 0",
            ),
        ),
    )


HEAD_V4_V4 = _head("commit log record head (IPv4)", "ip4", "ip4")
HEAD_V6_V4 = _head("commit log record head (born host IPv6)", "ip16", "ip4")
HEAD_V4_V6 = _head("commit log record head (store host IPv6)", "ip4", "ip16")
HEAD_V6_V6 = _head("commit log record head (both hosts IPv6)", "ip16", "ip16")

_HEADS = {
    0: HEAD_V4_V4,
    SYS_BORN_HOST_IPV6: HEAD_V6_V4,
    SYS_STORE_HOST_IPV6: HEAD_V4_V6,
    SYS_BORN_HOST_IPV6 | SYS_STORE_HOST_IPV6: HEAD_V6_V6,
}

IPV4_BYTES = HEAD_V4_V4.offset_of("born_port") - HEAD_V4_V4.offset_of("born_ip")
IPV6_BYTES = HEAD_V6_V4.offset_of("born_port") - HEAD_V6_V4.offset_of("born_ip")


def head_layout(sys_flag: int) -> Layout:
    """The head that a record with these flag bits has."""
    return _HEADS[sys_flag & (SYS_BORN_HOST_IPV6 | SYS_STORE_HOST_IPV6)]


@attrs.frozen
class Run:
    """A length and that many bytes; ``length`` holds nothing but the length field."""

    name: str
    length: Layout


def _run(name: str, kind: str, meaning: str) -> Run:
    return Run(name, Layout(f"{name} length", (Field("length", kind, meaning),)))


BODY_RUN = _run("body", "i32", "bytes of the body, stored as the client sent it")
TOPIC_RUN_V1 = _run("topic", "i8", "bytes of the topic name, UTF-8")
TOPIC_RUN_V2 = _run("topic", "i16", "bytes of the topic name, UTF-8")
PROPERTIES_RUN = _run("properties", "i16", "bytes of the properties text, UTF-8")


def runs(magic: int) -> tuple[Run, Run, Run]:
    """The three runs behind the head, in order, for a record of this magic."""
    return (BODY_RUN, TOPIC_RUN_V2 if magic == MAGIC_V2 else TOPIC_RUN_V1, PROPERTIES_RUN)


BYTE_COLUMNS = ("body", "topic", "properties_text", "born_ip", "store_ip")
"""The fields of a record that are bytes."""
NUMBER_COLUMNS = tuple(
    field.name for field in HEAD_V4_V4.fields if field.name not in ("size_bytes", *BYTE_COLUMNS)
)
"""The fields of a record that are numbers, its length apart."""

SMALLEST_RECORD_BYTES = HEAD_V4_V4.size + sum(run.length.size for run in runs(MAGIC_V1))
