# SPDX-License-Identifier: Apache-2.0
"""The commit log of a store that is only read, wherever its files lie: the one place that knows.

Queues name the offset and the size of each record, whatever stands in front of it. So whoever looks
bytes up by their offsets does not learn whether a store is a DLedger member's.
"""

from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot


def open_log(store: StoreRoot, file_bytes: int | None = None) -> SegmentReader:
    """The files of a store's log in a row; ``file_bytes`` is the size that each should have.

    Raises SourceError for a directory that cannot be read.
    """
    first, *more = store.commit_logs
    return SegmentReader(first, file_bytes, more=tuple(more), entries=store.entries)
