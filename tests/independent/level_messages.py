# SPDX-License-Identifier: Apache-2.0
"""What a hand-made level store is asked to hold: delayed, ordinary and delivered messages."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tests.independent.config_text import Dialect
from tests.independent.raw_records import (
    BORN_HOST_IPV6,
    COMPRESSED,
    SCHEDULE_TOPIC,
    STORE_HOST_IPV6,
    TRANSACTION_COMMIT,
    Pair,
    RawRecord,
    effective_properties,
    join_properties,
)

DEFAULT_LEVEL_TABLE = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
T0 = 1_700_000_000_000
AUTO = "auto"

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def level_delays_ms(table: str = DEFAULT_LEVEL_TABLE) -> dict[int, int]:
    """Level (from 1) to delay of a well-formed table."""
    return {
        level: int(entry[:-1]) * _UNIT_MS[entry[-1]]
        for level, entry in enumerate(table.split(" "), start=1)
    }


class Item:
    """Anything that takes place in the commit log."""


@attrs.frozen(kw_only=True, eq=False)
class Message(Item):
    """Fields all messages share. Two messages are the same only if they are one object."""

    topic: str = "TopicA"
    queue_id: int = 0
    store_timestamp_ms: int = T0
    body: bytes = b"hello"
    tags: str | None = "TagA"
    keys: str | None = None
    user_properties: Mapping[str, str] = attrs.Factory(dict)
    unique_key: str | None = AUTO
    """`AUTO` makes one from the message's place in the list."""
    born_timestamp_ms: int | None = None
    """None: 7 ms before it was stored."""
    born_host: tuple[str, int] = ("10.1.2.3", 4567)
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    flag: int = 0
    sys_flag: int = 0
    """The IPv6 bits follow from the hosts, the compression bits from `compress_body`."""
    compress_body: bool = False
    """The stored body is the zlib form of `body` (compression type 0, as 4.9 clients say it)."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait: bool = True
    ends_with_separator: bool | None = None
    """None: as the dialect does."""
    extra_pairs: Sequence[Pair] = ()
    """Added at the end of the properties as they are: duplicates, empty values, foreign names."""
    without: Sequence[str] = ()
    """Names of properties to leave out although the message would have them."""
    raw_properties: bytes | None = None
    """These bytes instead of all properties."""
    record_fields: Mapping[str, Any] = attrs.Factory(dict)
    """Wrong fields: RawRecord names and values set last (body_crc, magic, total_size, ...)."""
    damage: Callable[[bytes], bytes] | None = None
    """Changes the finished record's bytes; the length must stay."""
    indexed: bool = True
    """False: in the commit log only."""
    unit_fields: Mapping[str, int] = attrs.Factory(dict)
    """Wrong fields of the queue unit: commit_log_offset, size_bytes, tags_code."""


@attrs.frozen(kw_only=True, eq=False)
class LevelMessage(Message):
    """A message waiting in a level: `topic` and `queue_id` are the real ones."""

    level: int = 3


@attrs.frozen(kw_only=True, eq=False)
class OrdinaryMessage(Message):
    """A message without delay, or (by `sys_flag`) half of a transaction, which is not indexed."""


@attrs.frozen(kw_only=True, eq=False)
class DeliveredCopy(Item):
    """What a broker appended to the real topic when `of` was due; or delaywheel, which names the
    record that it takes the place of.
    """

    of: LevelMessage
    names: LevelMessage | None = None
    store_timestamp_ms: int | None = None
    """None: 5 ms after it was due."""
    indexed: bool = True
    damage: Callable[[bytes], bytes] | None = None


@attrs.frozen(eq=False)
class RawBytes(Item):
    """Bytes put into the log as they are: garbage, or the front of a torn record."""

    data: bytes


def retry_message(
    *, group: str = "group_a", original_topic: str = "TopicA", **fields: object
) -> LevelMessage:
    """What a consumer group gave back: it waits in a level for %RETRY%group."""
    pairs = [("RETRY_TOPIC", original_topic), ("ORIGIN_MESSAGE_ID", "7F00000100002A9F" + "0" * 16)]
    given: dict[str, object] = {
        "topic": f"%RETRY%{group}",
        "wait": False,
        "reconsume_times": 1,
        "extra_pairs": pairs,
    }
    return LevelMessage(**(given | fields))  # type: ignore[arg-type]


def _properties(message: Message, unique_key: str | None, dialect: Dialect) -> bytes:
    if message.raw_properties is not None:
        return message.raw_properties
    delayed = isinstance(message, LevelMessage)
    values = {
        "REAL_TOPIC": message.topic if delayed else None,
        "REAL_QID": str(message.queue_id) if delayed else None,
        "DELAY": str(message.level) if isinstance(message, LevelMessage) else None,
        "KEYS": message.keys,
        "TAGS": message.tags,
        "UNIQ_KEY": unique_key,
        "CLUSTER": "DefaultCluster",
        "WAIT": "true" if message.wait else "false",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if dialect == "4.9":
        first, rest = ["REAL_TOPIC"], "KEYS UNIQ_KEY CLUSTER DELAY WAIT TAGS REAL_QID"
    else:
        first = []
        rest = "MSG_REGION UNIQ_KEY CLUSTER DELAY TAGS KEYS WAIT TRACE_ON REAL_TOPIC REAL_QID"
    pairs = [(name, values[name]) for name in first]
    pairs += list(message.user_properties.items())
    pairs += [(name, values[name]) for name in rest.split()]
    pairs += list(message.extra_pairs)
    ending = message.ends_with_separator
    return join_properties(
        [
            (name, value)
            for name, value in pairs
            if value is not None and name not in message.without
        ],
        ending=dialect != "4.9" if ending is None else ending,
    )


def record_of(message: Message, number: int, dialect: Dialect) -> RawRecord:
    """The record of the message that stands at place `number`, still without its offsets."""
    unique_key = message.unique_key
    if unique_key == AUTO:
        unique_key = f"0A0102030001{number:020X}"
    born_ip = ipaddress.ip_address(message.born_host[0]).packed
    store_ip = ipaddress.ip_address(message.store_host[0]).packed
    sys_flag = message.sys_flag
    sys_flag |= BORN_HOST_IPV6 if len(born_ip) == 16 else 0
    sys_flag |= STORE_HOST_IPV6 if len(store_ip) == 16 else 0
    sys_flag |= COMPRESSED if message.compress_body else 0
    born_ms = message.born_timestamp_ms
    level = message.level if isinstance(message, LevelMessage) else None
    return RawRecord(
        topic=message.topic if level is None else SCHEDULE_TOPIC,
        queue_id=message.queue_id if level is None else level - 1,
        body=zlib.compress(message.body) if message.compress_body else message.body,
        properties=_properties(message, unique_key, dialect),
        flag=message.flag,
        sys_flag=sys_flag,
        born_timestamp_ms=message.store_timestamp_ms - 7 if born_ms is None else born_ms,
        born_ip=born_ip,
        born_port=message.born_host[1],
        store_timestamp_ms=message.store_timestamp_ms,
        store_ip=store_ip,
        store_port=message.store_host[1],
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def delivered_record(waiting: RawRecord, store_timestamp_ms: int, dialect: Dialect) -> RawRecord:
    """The delivered record a broker makes of a waiting one; DELAY and REAL_* stay in it."""
    properties = effective_properties(waiting.pairs)
    return attrs.evolve(
        waiting,
        topic=properties["REAL_TOPIC"],
        queue_id=int(properties["REAL_QID"]),
        properties=join_properties(properties.items(), ending=dialect != "4.9"),
        store_timestamp_ms=store_timestamp_ms,
        prepared_transaction_offset=0,
        body_crc=None,
        magic=None,
        total_size=None,
    )


def is_dispatched(record: RawRecord) -> bool:
    return record.transaction_type in (0, TRANSACTION_COMMIT)
