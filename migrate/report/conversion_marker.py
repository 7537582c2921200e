# SPDX-License-Identifier: Apache-2.0
"""The report that a finished target keeps, ``delaywheel/conversion.json``, and which part of it is
about one source where several were merged.
"""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

from message_store.base.errors import BadFieldError, SourceError
from message_store.files.segments import Segment, SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import HEAD_V4_V4

CONVERSION_NAME = "conversion.json"


def read_marker(root: StoreRoot) -> dict[str, Any]:
    """The whole report. Raises SourceError where there is none, FormatError for a damaged one."""
    path = root.own / CONVERSION_NAME
    content = read_small_file(path)
    if content is None:
        raise SourceError(f"{path}: not there; expected the target of a finished conversion")
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadFieldError("not JSON", path=path) from error
    if not isinstance(table, dict):
        raise BadFieldError("no table 'conversion' in it", path=path)
    return table


def log_fingerprint(source: StoreRoot) -> list[list[Any]]:
    """Names, lengths, times and first heads of a store's log files: what tells that it is still
    the same. The head of a file's first record, as a checksum (0: no record yet), says which store
    it is, whatever became of the times.
    """
    with SegmentReader(source.commit_log) as log:
        return [
            [each.path.name, each.length_bytes, each.modified_ns, _first_head(log, each)]
            for each in log.segments
        ]


def _first_head(log: SegmentReader, segment: Segment) -> int:
    head = bytearray(HEAD_V4_V4.size)
    log.read_into(segment.start_offset, memoryview(head))
    return crc32(head) if any(head) else 0


def share_of(marker: dict[str, Any], source: StoreRoot, path: Path) -> dict[str, Any]:
    """The report of ``source`` alone, in a marker that may be of several; ``is_share`` is in it
    then.

    A source is known by its log files, or else, when they have other times now, or are those of
    several, by its place.
    Raises SourceError for a store that is none of them, FormatError for a damaged report.
    """
    listed = marker.get("sources")
    if not listed:
        return marker
    try:
        found = log_fingerprint(source)
        same = [one for one in listed if one["request"]["source_log"] == found]
        if len(same) != 1:  # stores without a log are all alike
            place = str(source.path.absolute())
            same = [one for one in same or listed if one["request"]["source"] == place]
        if len(same) == 1:
            return {**same[0], "is_share": True}
        names = ", ".join(str(one["request"]["source"]) for one in listed)
    except (KeyError, TypeError) as error:
        raise BadFieldError(f"'sources' is damaged: {error!r}", path=path) from error
    raise SourceError(f"{source.path}: {path.parent.parent} was made from {names}, and not from it")
