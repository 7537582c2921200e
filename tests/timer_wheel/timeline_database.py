# SPDX-License-Identifier: Apache-2.0
"""A timeline's database as a 5.4 or newer broker makes it, from the bytes that were seen there."""

import struct
from collections.abc import Iterable
from pathlib import Path

import attrs
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

SCAN_OFFSET = b"sys_topic_scan_offset_checkpoint"
DELIVERED_UNTIL = b"timeline_checkpoint"


@attrs.frozen
class Entry:
    """One message of the timeline."""

    out_ms: int
    key: str
    commit_log_offset: int
    size_bytes: int

    @property
    def pair(self) -> tuple[bytes, bytes]:
        key = struct.pack(">q", self.out_ms) + self.key.encode()
        return key, struct.pack(">iq", self.size_bytes, self.commit_log_offset)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_compression_type(DBCompressionType.zstd())
    table = BlockBasedOptions()
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options


def write_pairs(directory: Path, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """A database with these pairs in its column family ``timer``."""
    families = {name: _options() for name in ("timer", "trans")}
    database = Rdict(str(directory), _options(), families)
    batch = WriteBatch(raw_mode=True)
    batch.set_default_column_family(database.get_column_family_handle("timer"))
    for key, value in pairs:
        batch.put(key, value)
    database.write(batch)
    timer = database.get_column_family("timer")
    timer.flush()
    timer.close()
    database.close()


def write_timeline(
    directory: Path,
    entries: Iterable[Entry] = (),
    *,
    scan_offset: int | None = None,
    delivered_until_ms: int | None = None,
) -> None:
    """The database of a timeline that has read and delivered so far."""
    pairs = [entry.pair for entry in entries]
    for key, number in ((SCAN_OFFSET, scan_offset), (DELIVERED_UNTIL, delivered_until_ms)):
        if number is not None:
            pairs.append((key, struct.pack(">q", number)))
    write_pairs(directory, pairs)
