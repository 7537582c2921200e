# SPDX-License-Identifier: Apache-2.0
"""What the index of a hierarchical wheel looks like: its column families, keys and values.

A value of a wheel is a block: the messages of one slot that came together, each ``WAITING_ROW``, in
order of the queue. Numbers are big-endian, so that keys sort by slot and then by queue offset. A
message stands in one block only. Its wheel is the finest that had come near its time when the block
was written (docs/FORMAT.md, hierarchical wheel).
"""

from collections.abc import Mapping

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.files.rocksdb.manifest import Manifest, ManifestNote
from message_store.format.layout import Field, Layout


@attrs.frozen
class Wheel:
    """One of the three: the column family that holds it, and how wide its slots are."""

    name: str
    slot_ms: int


HOURS = Wheel("hours", 3_600_000)
MINUTES = Wheel("minutes", 60_000)
SECONDS = Wheel("seconds", 1_000)
WHEELS = (SECONDS, MINUTES, HOURS)
"""Finest first."""

MARKS = "marks"
"""The column family of delete markers: blocks as in a wheel, in slots of a second."""

IDS = "ids"
"""The column family by unique key."""

FAMILIES = (*(wheel.name for wheel in WHEELS), MARKS, IDS)

BLOCK_KEY = Layout(
    "block key",
    (
        Field("slot_ms", "i64", "when the slot begins"),
        Field("queue_offset", "i64", "timer queue offset of the block's first message"),
    ),
)

WAITING_ROW = Layout(
    "waiting message",
    (
        Field("due_ms", "i64", "when it was promised for, to the millisecond"),
        Field("queue_offset", "i64", "its entry in the timer queue"),
        Field("commit_log_offset", "i64", "where its record begins"),
        Field("size_bytes", "i32", "how long the record is"),
        Field("topic_hash", "i32", "Java's hash of REAL_TOPIC"),
        Field("flags", "i32", "1 always, 2 rolled before retention deletes it, 4 delete marker"),
    ),
)

FLAG_ALWAYS = 1
FLAG_STORED_AGAIN = 2
FLAG_MARKER = 4

ID_KEY = Layout(
    "id key",
    (
        Field("era", "i32", "queue offsets of the block, divided by 16,777,216"),
        Field("bucket", "i32", "the lowest 12 bits of the hash"),
        Field("queue_offset", "i64", "the lowest queue offset of the block"),
    ),
)

ID_ROW = Layout(
    "id",
    (
        Field("key_hash", "i64", "64 bits of hash of UNIQ_KEY"),
        Field("queue_offset", "i64", "the message's entry in the timer queue"),
    ),
)

ERA_BITS = 24
BUCKET_BITS = 12

STATE_KEY = b"state"
"""Its place in the default column family; every batch of writes renews it."""

STATE = Layout(
    "index state",
    (
        Field("version", "i32", "1"),
        Field("precision_ms", "i32", "the width of a promise; 1 is to the millisecond"),
        Field("slot_precision_ms", "i32", "the width meant by out times that are multiples of 100"),
        Field("placed_end", "i64", "queue entries before it are in the index, or are done"),
        Field("log_end", "i64", "the end of the commit log then; what is behind it is not known"),
        Field("hand_ms", "i64", "the last time for which messages were delivered"),
        Field("minute_hand_ms", "i64", "what is due before it is in the second wheel"),
        Field("hour_hand_ms", "i64", "what is due before it is in the minute wheel, or finer"),
        Field("ids_end", "i64", "queue entries before it have their ids in the index"),
    ),
)
STATE_VERSION = 1

NEWEST_KEY = b"newest"
"""Beside the state, while nobody has waited for the log to be on disk as far as that says."""

NEWEST = Layout(
    "newest record",
    (
        Field("last_start", "i64", "where the last record begins before the state's `log_end`"),
        Field("last_head", "i64", "CRC-32 of its first 91 bytes"),
    ),
)

LAST_BATCH_KEY = b"\0"
"""Its place in each of ``FAMILIES``, before all blocks and ids."""

LAST_BATCH = Layout(
    "last batch", (Field("number", "i64", "the batch of writes that last changed the family"),)
)

BATCHES_KEY = b"batches"
"""Its place in the default column family; every batch of writes renews it."""

BATCHES = Layout(
    "batches",
    (
        *(
            Field(name, "i64", f"the `number` that stands in `{name}`; 0: none")
            for name in FAMILIES
        ),
        Field("manifest_number", "i64", "the number in the name of RocksDB's manifest"),
        Field("manifest_bytes", "i64", "how long that was before the batch was written"),
        Field("manifest_checksum", "i64", "CRC-32 of so many bytes"),
    ),
)
NO_BATCHES = {field.name: 0 for field in BATCHES.fields}
"""Before any batch, and in an index from before batches had numbers."""

NATIVE_ROW = WAITING_ROW.dtype.newbyteorder("=")
NATIVE_ID = ID_ROW.dtype.newbyteorder("=")

Rows = np.ndarray[tuple[int], np.dtype[np.void]]
"""Waiting messages or ids, a row each, in the machine's byte order."""


@attrs.frozen
class IndexState:
    """What holds of the index as a whole, by the names of its layout."""

    precision_ms: int
    slot_precision_ms: int
    placed_end: int
    log_end: int
    hand_ms: int
    minute_hand_ms: int
    hour_hand_ms: int
    ids_end: int
    version: int = STATE_VERSION


@attrs.frozen
class Newest:
    """The last record of the log that an index knew, by the names of its layout."""

    last_start: int
    last_head: int


def known_batches(content: bytes | None) -> dict[str, int] | None:
    """What the default family says of the batches, by the names of its layout; None for what says
    nothing.
    """
    if content is None:
        return NO_BATCHES
    return BATCHES.decode_at(content, 0) if len(content) == BATCHES.size else None


def family_apart(known: Mapping[str, int] | None, last: Mapping[str, bytes | None]) -> str | None:
    """A family that is not of the same moment as the default one, by its ``LAST_BATCH``; None where
    all are. A manifest that lost its end leads to an older form of some families, and says nothing.
    """
    for name in FAMILIES:
        content, number = last[name], 0
        if content is not None:
            is_whole = len(content) == LAST_BATCH.size
            number = LAST_BATCH.decode_at(content, 0)["number"] if is_whole else -1
        if known is None or known[name] != number:
            return name
    return None


def part_apart(
    known: Mapping[str, int] | None, last: Mapping[str, bytes | None], manifest: Manifest | None
) -> str | None:
    """What is not of that moment: the manifest, or a column family. None where all is.

    ``known`` is what the default family says of the batches, ``last`` the ``LAST_BATCH`` of each
    other one. No batch is written while changes are on their way into tables. So the manifest that
    a batch tells of has all tables of what came before it, and the log of changes has the rest. If
    that manifest is there, whole, nothing of an earlier batch is missing.
    """
    if known and known["manifest_number"]:
        keys = ("manifest_number", "manifest_bytes", "manifest_checksum")
        note = ManifestNote(*(known[key] for key in keys))
        if manifest is None or not manifest.goes_on_from(note):
            return "the manifest"
    return family_apart(known, last)


def slot_of(due_ms: Int64s, wheel: Wheel) -> Int64s:
    """When the slots begin in which these times lie."""
    return due_ms // wheel.slot_ms * wheel.slot_ms
