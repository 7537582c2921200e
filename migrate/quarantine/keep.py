# SPDX-License-Identifier: Apache-2.0
"""Quarantines records that cannot be converted: raw bytes and reasons, in a private directory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from legacy_levels.backlog.backlog import LevelBacklog
from message_store.base.errors import FormatError
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.small_files import PRIVATE_MODE, is_directory, replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import BLANK_RECORD
from message_store.reading.commit_log import NO_TIME
from migrate.report.accounting import bad_record
from migrate.write.staging import sync_tree

QUARANTINE_NAME = "quarantine"
REASONS_NAME = "reasons.jsonl"
RAW_MAX_BYTES = 64 << 20
MISFIT_MAX_BYTES = 64 << 10
"""So much is kept where entry and record disagree about the size; it bounds what we copy."""


def quarantine_directory(target: StoreRoot) -> Path:
    """Where a target keeps what could not be converted."""
    return target.own / QUARANTINE_NAME


def keep_bad_records(
    source: StoreRoot,
    target: StoreRoot,
    backlog: LevelBacklog,
    bad: Mapping[int, str],
    *,
    prefix: str = "",
) -> list[str]:
    """Write one raw file a record, named by ``prefix``, level and queue offset; mode 0600. Returns
    the lines about them for ``list_bad_records``, which waits for the disk.

    Where nothing is left of a record no file is written: a missing log file leaves millions. A
    raw file holds what lies at the entry's place, as long as the entry says, cut where the log
    ends. ``bad`` maps indexes into the backlog to reasons. Raises TargetError.
    """
    directory = quarantine_directory(target)
    lines = []
    with open_log(source) as log:
        for at in sorted(bad):
            record = bad_record(backlog, at, bad[at])
            raw = _raw(log, record.commit_log_offset, int(backlog.size_bytes[at]))
            name = f"{prefix}level-{record.level:02d}-{record.queue_offset}.record"
            if raw:
                replace_file(directory / name, raw, mode=PRIVATE_MODE, is_durable=False)
            due_ms = int(backlog.due_ms[at])
            table = backlog.level_table
            is_known = 1 <= record.level <= table.max_level
            facts = {
                "due_ms": None if due_ms == NO_TIME else due_ms,
                "delay_ms": table.delay_ms(record.level) if is_known else None,
                "file": name,
            }
            where = {"bytes": len(raw), "source": str(source.path.resolve())}
            lines.append(json.dumps({**attrs.asdict(record), **facts, **where}))
    return lines


def list_bad_records(target: StoreRoot, lines: Sequence[str]) -> None:
    """Wait for the raw files, then write ``reasons.jsonl``, which makes a quarantine of them;
    nothing for no lines. Raises TargetError.
    """
    if lines:
        if is_directory(quarantine_directory(target)):
            sync_tree(quarantine_directory(target))
        text = "\n".join([*lines, ""])
        path = quarantine_directory(target) / REASONS_NAME
        replace_file(path, text.encode(), mode=PRIVATE_MODE)


def _raw(log: SegmentReader, offset: int, size: int) -> bytes:
    wanted = max(0, min(size, RAW_MAX_BYTES))
    head = bytearray(BLANK_RECORD.size)
    log.read_into(offset, memoryview(head))
    if BLANK_RECORD.decode_at(head, 0)["size_bytes"] != size:
        wanted = min(wanted, MISFIT_MAX_BYTES)
    try:
        return log.read_at(offset, wanted)
    except FormatError:
        buffer = bytearray(wanted)
        return bytes(buffer[: log.read_into(offset, memoryview(buffer))])
