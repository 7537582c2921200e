# SPDX-License-Identifier: Apache-2.0
"""A commit log that ends before the end that was written down when it was last synced.

The end is written only after the log was synced, and brokers only append. So a shorter log is
damage and no loss of power: a file was removed, emptied or overwritten. Deliveries and delete
markers of that part are unknown: without them messages are delivered twice, or although they were
cancelled.
"""

from message_store.base.errors import SourceError
from message_store.files.segments import SegmentReader, segment_name
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import SMALLEST_RECORD_BYTES
from message_store.writing.losses import ENDS_NAME, StoreEnds

_HEAD_BYTES = 8
_PAGE_BYTES = 4_096


def cut_log(root: StoreRoot) -> str | None:
    """What the log of a store has lost of its end, in a sentence; None for nothing.

    Looks at the lengths of files and at two places of the log. Raises SourceError.
    """
    ends = StoreEnds.read(root)
    if ends is None or ends.log_end <= 0:
        return None
    with SegmentReader(root.commit_log) as log:
        last_byte = ends.log_end - 1
        segment = log.segment_at(last_byte)
        if segment is None:
            known = [each for each in log.segments if each.start_offset <= last_byte]
            if log.segments and not known:  # retention has taken it
                return None
            end = known[-1].start_offset + known[-1].length_bytes if known else 0
            return _sentence(root, log, ends.log_end, end)
        start = segment.start_offset
        # The last bytes of a record hold its topic or properties, and are never all zeros.
        tail_bytes = min(SMALLEST_RECORD_BYTES, ends.log_end - start)
        is_full = ends.log_end == start + log.file_bytes
        tail = log.read_at(ends.log_end - tail_bytes, tail_bytes)
        if any(log.read_at(start, _HEAD_BYTES)) and (is_full or any(tail)):
            return None
        return _sentence(root, log, ends.log_end, start)


def require_whole_log(root: StoreRoot) -> None:
    """Raise SourceError where the log ends before the end that was written down."""
    told = cut_log(root)
    if told is not None:
        raise SourceError(f"{told}; {way_out(root)}")


def refuse_cut_log(root: StoreRoot, log_end: int) -> None:
    """Raise SourceError where a log whose records end at ``log_end`` was longer when it was synced.

    To be called before anything is written to the store.
    """
    ends = StoreEnds.read(root)
    if ends is None or ends.log_end <= log_end:
        return
    with SegmentReader(root.commit_log) as log:
        told = _sentence(root, log, ends.log_end, log_end)
    raise SourceError(f"{told}; {way_out(root)}; nothing was changed")


def way_out(root: StoreRoot) -> str:
    """What an operator can do."""
    return (
        f"take the log from a backup; or remove {root.own / ENDS_NAME} to go on without these"
        " bytes: what was delivered or cancelled there is then delivered again"
    )


def _sentence(root: StoreRoot, log: SegmentReader, noted_end: int, log_end: int) -> str:
    start = (noted_end - 1) // log.file_bytes * log.file_bytes if log.file_bytes else 0
    path = root.commit_log / segment_name(start)
    if len(log.segments) == 1 and log.file_bytes % _PAGE_BYTES:  # the only file was itself cut
        path = log.segments[0].path
    return (
        f"{path}: the log ends at {log_end:,}, and {noted_end:,} was synced: its last"
        f" {noted_end - log_end:,} bytes are lost"
    )
