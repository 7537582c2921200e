# SPDX-License-Identifier: Apache-2.0
"""Puts the consume queues of a store into RocksDB, as a broker with `storeType=defaultRocksDB` has
them; written from the bytes that were seen in stores of 5.5.1.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

from tests.independent.raw_files import parse_fastjson, read_range, segments

UNIT = struct.Struct(">qiq")
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
_STORE_TIME_AT = 56

Pairs = dict[bytes, bytes]


@attrs.frozen(order=True)
class Row:
    """A unit of a queue; in the order of the log."""

    commit_log_offset: int
    size_bytes: int
    tags_code: int
    topic: str
    queue_id: int
    queue_offset: int


def row_key(topic: str, queue_id: int, queue_offset: int) -> bytes:
    name = topic.encode()
    tail = struct.pack(">bibq", 1, queue_id, 1, queue_offset)
    return struct.pack(">ib", len(name), 1) + name + tail


def end_key(topic: str, queue_id: int, which: bytes = b"max") -> bytes:
    name = topic.encode()
    head = struct.pack(">ib", len(name), 1) + name
    return head + b"\1" + which + b"\1" + struct.pack(">i", queue_id)


def rows_in_files(root: Path) -> list[Row]:
    """All units of all queues that lie in files, in the order of the log."""
    rows = []
    for queue in (root / "consumequeue").glob("*/*"):
        for path in segments(queue):
            for number, unit in enumerate(UNIT.iter_unpack(path.read_bytes())):
                if unit[1]:
                    at = int(path.name) // UNIT.size + number
                    rows.append(
                        Row(unit[0], unit[1], unit[2], queue.parent.name, int(queue.name), at)
                    )
    return sorted(rows)


def move_queues(
    root: Path,
    *,
    place: str = "consumequeue",
    flushed: int | None = None,
    keep_files: bool = False,
) -> list[Row]:
    """Replace the queue files of a store by a database, or put one beside them.

    Only the first ``flushed`` units of the log are in it: what a broker that was killed then had
    flushed. Returns these.
    """
    rows = rows_in_files(root)[:flushed]
    if not keep_files:
        shutil.rmtree(root / "consumequeue")
    write_rows(root, rows, root / place)
    return rows


def write_rows(root: Path, rows: Iterable[Row], directory: Path) -> None:
    """A database with these rows, and the ends that follow from them."""
    units: Pairs = {}
    last: dict[tuple[str, int], Row] = {}
    end = 0
    for row in rows:
        stored = _store_time_ms(root, row.commit_log_offset)
        unit = UNIT.pack(row.commit_log_offset, row.size_bytes, row.tags_code)
        units[row_key(row.topic, row.queue_id, row.queue_offset)] = unit + struct.pack(">q", stored)
        last[row.topic, row.queue_id] = row
        end = max(end, row.commit_log_offset + row.size_bytes)
    ends = {
        end_key(topic, queue_id): struct.pack(">qq", row.commit_log_offset, row.queue_offset)
        for (topic, queue_id), row in last.items()
    }
    if last:
        ends[end_key(CHECKPOINT_TOPIC, 0)] = struct.pack(">q", end)
    write_database(directory, {"default": units, "offset": ends})


def _store_time_ms(root: Path, offset: int) -> int:
    log = root / "commitlog"
    file_bytes = segments(log)[0].stat().st_size
    content = read_range(log, file_bytes, offset + _STORE_TIME_AT, 8)
    return struct.unpack(">q", content)[0] if len(content) == 8 else 0


def write_database(directory: Path, families: Mapping[str, Pairs]) -> None:
    """A database with these families, flushed; one that is there gets these pairs besides."""
    directory.mkdir(parents=True, exist_ok=True)
    others = {name: _options() for name in families if name != "default"}
    database = Rdict(str(directory), _options(), others)
    for name, pairs in families.items():
        family = database.get_column_family(name)
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(database.get_column_family_handle(name))
        for key, value in pairs.items():
            batch.put(key, value)
        database.write(batch)
        family.flush()
        family.close()
    database.close()
    for trace in ("rocksdict-config.json", "LOG"):  # no broker makes them
        (directory / trace).unlink(missing_ok=True)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options


def remove_rows(directory: Path, keys: Iterable[bytes], family: str = "default") -> None:
    """Take rows out of a database."""
    names = Rdict.list_cf(str(directory))
    others = {name: _options() for name in names if name != "default"}
    database = Rdict(str(directory), _options(), others)
    rows = database.get_column_family(family)
    for key in keys:
        rows.delete(key)
    rows.flush()
    rows.close()
    database.close()


_TABLES = {
    "topics.json": ("topics", "topicConfigTable", None),
    "subscriptionGroup.json": ("subscriptionGroups", "subscriptionGroupTable", None),
    "consumerOffset.json": ("consumerOffsets", "offsetTable", "offsetTable"),
}


def move_config(root: Path, *, single: bool = False) -> None:
    """Put topics, groups and consumer offsets into RocksDB, and something else into the JSON."""
    families = {"topics": "topic", "subscriptionGroups": "subscriptionGroup"}
    families["consumerOffsets"] = "consumerOffset"
    in_one: dict[str, Pairs] = {"default": {}}
    for name, (directory, table, inner) in _TABLES.items():
        path = root / "config" / name
        entries: dict[str, Any] = parse_fastjson(path.read_text())[table]
        pairs = {
            key.encode(): json.dumps({inner: value} if inner else value).encode()
            for key, value in entries.items()
        }
        path.write_text(json.dumps({table: {}}))
        if single:
            in_one[families[directory]] = pairs
        else:
            version = {b"kvDataVersionKey": b'{"counter":1,"stateVersion":0,"timestamp":0}'}
            write_database(
                root / "config" / directory, {"default": pairs, "kvDataVersion": version}
            )
    if single:
        write_database(root / "config" / "metadata", in_one)
