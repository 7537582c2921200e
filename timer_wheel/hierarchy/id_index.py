# SPDX-License-Identifier: Apache-2.0
"""Messages by unique key: a hash of the key leads to entries of the timer queue.

The newest ids are in memory. When they are many they go to the database, a block for each bucket of
the hash. So a message costs a part of a write. What they lead to has to be looked at: hashes may be
equal, and the message may be gone.
"""

import itertools

import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.kernels.raw_memory import address_of
from message_store.kernels.text import hash_bytes
from timer_wheel.format.index_layouts import BUCKET_BITS, ERA_BITS, NATIVE_ID, Rows
from timer_wheel.hierarchy.index_db import IndexBatch, IndexDb
from timer_wheel.reading.record_kernel import ID_SEED

SPILL = 1 << 18
_BUCKETS = 1 << BUCKET_BITS
_MANY_PARTS = 256
_NONE = np.empty(0, NATIVE_ID)


def id_of(unique_key: str) -> int:
    """The hash of a unique key, as the kernels tell it."""
    content = np.frombuffer(unique_key.encode(errors="surrogatepass"), np.uint8)
    return int(np.uint64(hash_bytes(address_of(content), len(content), ID_SEED)).astype(np.int64))


class IdIndex:
    """The ids of a store: in the database before ``stored_end``, a queue offset; then in memory."""

    def __init__(self, db: IndexDb, stored_end: int) -> None:
        self.stored_end = stored_end
        self._db = db
        self._new: list[Rows] = []
        self._being_written: list[Rows] = []
        self._eras: list[int] | None = None

    def add(self, hashes: Int64s, queue_offsets: Int64s) -> None:
        """Remember entries that are the next of the queue; 0 is the hash of no key."""
        known = hashes != 0
        ids = np.empty(int(known.sum()), NATIVE_ID)
        ids["key_hash"], ids["queue_offset"] = hashes[known], queue_offsets[known]
        self._new.append(ids)
        if len(self._new) > _MANY_PARTS:
            self._new = [np.concatenate(self._new)]

    @property
    def in_memory(self) -> int:
        """How many ids are not in the database."""
        return sum(map(len, self._new))

    def find(self, unique_key: str) -> Int64s:
        """The queue offsets of all entries that may have this key, in order."""
        wanted = id_of(unique_key)
        if self._eras is None:
            self._eras = self._db.eras()
        bucket = wanted & (_BUCKETS - 1)
        stored = (self._db.ids(era, bucket) for era in self._eras)
        parts = [*stored, *self._being_written, *self._new]
        found = [part["queue_offset"][part["key_hash"] == wanted] for part in parts]
        return np.unique(int64s(np.concatenate([np.empty(0, np.int64), *found])))

    def put_all(self, batch: IndexBatch) -> None:
        """Let a batch take all that is in memory to the database; ``written`` says that it did."""
        # What an interrupt left of an earlier batch, of which nobody knows if it was written, too.
        ids = np.concatenate([_NONE, *self._being_written, *self._new])
        self._being_written, self._new = [ids], []
        buckets = ids["key_hash"] & (_BUCKETS - 1)
        eras = ids["queue_offset"] >> ERA_BITS
        order = np.lexsort((ids["queue_offset"], buckets, eras))
        ids, buckets, eras = ids[order], buckets[order], eras[order]
        is_new = (buckets[1:] != buckets[:-1]) | (eras[1:] != eras[:-1])
        begins = [0, *(np.flatnonzero(is_new) + 1).tolist()] if len(ids) else []
        for begin, end in itertools.pairwise([*begins, len(ids)]):
            batch.put_ids(int(eras[begin]), int(buckets[begin]), ids[begin:end])

    def written(self, end: int) -> None:
        """The batch was written: all entries before this queue offset have their ids there."""
        self.stored_end, self._being_written, self._eras = end, [], None

    @staticmethod
    def drop_before(queue_offset: int, batch: IndexBatch) -> None:
        """Let a batch take away what leads only to entries that retention took."""
        if queue_offset >> ERA_BITS:
            batch.drop_eras(queue_offset >> ERA_BITS)
