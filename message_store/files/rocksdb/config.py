# SPDX-License-Identifier: Apache-2.0
"""Topics, groups and consumer offsets that a broker keeps in RocksDB, as the JSON files beside it
would have them.

Brokers with their queues in RocksDB do so. A JSON file of the same name was then read at most once,
and is no truth. Each row is one entry of the table: its name, and its value as JSON.
RocketMQ: RocksDBConfigManager (5.5.1).
"""

from pathlib import Path

import attrs

from message_store.base.errors import SourceError
from message_store.files.rocksdb.queues import queue_database
from message_store.files.rocksdb.view import has_database, open_families
from message_store.format.broker_json import JsonObject, examine

_ONE_FOR_ALL = "metadata"
"""The one database of all tables, with `useSingleRocksDBForAllConfigs`."""


@attrs.frozen
class _Table:
    """Where a table is: its own database, or its family in the one of all; its name in JSON.
    ``inner`` is a member of each value that holds the entry itself.
    """

    database: str
    family: str
    name: str
    inner: str | None = None


_TABLES = {
    "topics.json": _Table("topics", "topic", "topicConfigTable"),
    "subscriptionGroup.json": _Table(
        "subscriptionGroups", "subscriptionGroup", "subscriptionGroupTable"
    ),
    "consumerOffset.json": _Table(
        "consumerOffsets", "consumerOffset", "offsetTable", "offsetTable"
    ),
}


def config_in_rocksdb(root: Path, name: str) -> tuple[JsonObject, tuple[str, ...]] | None:
    """What a JSON file under ``config/`` would say, and what was wrong; None where it counts
    itself.
    """
    if name not in _TABLES or queue_database(root) is None:
        return None
    table, config = _TABLES[name], root / "config"
    places = (config / table.database, "default"), (config / _ONE_FOR_ALL, table.family)
    for database, family in places:
        if has_database(database):
            entries, problems = _read(database, family, table.inner)
            return {table.name: entries}, problems
    return None


def _read(database: Path, family: str, inner: str | None) -> tuple[JsonObject, tuple[str, ...]]:
    entries: JsonObject = {}
    problems = []
    try:
        with open_families(database, family) as [rows]:
            for key, content in rows.entries(b""):
                reading = examine(content, path=database)
                value = reading.value
                if inner is not None and isinstance(value, dict):
                    value = value.get(inner)
                name = key.decode("utf-8", "replace")
                if reading.damage is not None or not isinstance(value, dict):
                    problems.append(f"{database}: {name!r}: {reading.damage or 'not an object'}")
                else:
                    entries[name] = value
    except SourceError as error:
        problems.append(str(error))
    return entries, tuple(problems)
