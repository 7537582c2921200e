# SPDX-License-Identifier: Apache-2.0
"""The index of a target for a hierarchical wheel, compared with the queue and the records.

It says which messages the engine would deliver, and what is wrong with blocks, ids and state. An
engine without an index rebuilds it from the records, so the index must say what they say.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import DelayStoreError
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.reading.consume_queue import QueueEntries
from migrate.report.marker import ConversionSettings
from migrate.settings import WHEEL
from migrate.verify.digests.entries import TARGET_ENTRY
from migrate.verify.report import OPENED, Problem
from migrate.verify.structure import (
    ReachedMessages,
    each_problem,
    log_problems,
    read_reached,
    read_target_queue,
    row_problems,
    some_of,
)
from timer_wheel.format.index_layouts import BUCKET_BITS, HOURS, slot_of
from timer_wheel.hierarchy.id_index import id_of
from timer_wheel.reading.hierarchy_reader import IndexContent, read_index
from timer_wheel.reading.ownership import is_guarded, read_active
from timer_wheel.reading.pending_timers import record_at

INDEX = "index"
SAMPLED_IDS = 200


def read_target(root: StoreRoot, settings: ConversionSettings) -> ReachedMessages:
    """What the engine that a target is for would deliver from it."""
    read = read_reached if settings.engine == WHEEL else read_reached_in_index
    return read(root, settings)


def read_reached_in_index(root: StoreRoot, settings: ConversionSettings) -> ReachedMessages:
    """Read queue and index: what stands in a slot is reached.

    Damage is a problem; only a disk that refuses raises (SourceError).
    """
    problems: list[Problem] = []
    queue = read_target_queue(root, settings, problems)
    with open_log(root, settings.commit_log_file_bytes) as log:
        problems += row_problems("commit log", log)
        problems += log_problems(log, queue)
        try:
            problems += _ownership_problems(root, settings)
            index = read_index(root)
        except DelayStoreError as error:
            problems.append(Problem(INDEX, str(error)))
            return ReachedMessages(np.empty(0, TARGET_ENTRY.dtype), tuple(problems))
        problems += _state_problems(index, queue, settings)
        problems += _row_problems(index, queue)
        problems += _id_problems(index, queue, log)
    return ReachedMessages(_entries(index, queue, settings.precision_ms), tuple(problems))


def _entries(index: IndexContent, queue: QueueEntries, precision_ms: int) -> NDArray[np.void]:
    """One row a message; the slot of its out time is what a promise comes from."""
    rows = index.waiting[np.argsort(index.waiting["commit_log_offset"], kind="stable")]
    number = rows["queue_offset"]
    is_there = (number >= 0) & (number < len(queue))
    entries = np.zeros(len(rows), TARGET_ENTRY.dtype)
    entries["queue_offset"] = np.where(is_there, number, -1)
    entries["tags_code"][is_there] = queue.units["tags_code"][number[is_there]]
    for name in ("commit_log_offset", "size_bytes", "flags", "topic_hash"):
        entries[name] = rows[name]
    entries["slot_time_ms"] = rows["due_ms"] - precision_ms
    return entries


def _ownership_problems(root: StoreRoot, settings: ConversionSettings) -> Iterator[Problem]:
    active = read_active(root)
    if active is None:
        yield Problem(INDEX, "nothing says that the store is a hierarchical wheel's")
    elif active.slot_precision_ms != settings.precision_ms:
        what = f"slots of {active.slot_precision_ms} ms, where out times mean"
        yield Problem(INDEX, f"{what} {settings.precision_ms}")
    if not is_guarded(root):
        yield Problem("timer wheel", "nothing keeps a broker from starting on this store")
    if is_present(root.timer_log):
        yield Problem("timer log", "a timer log beside an index: one of them is wrong")


def _state_problems(
    index: IndexContent, queue: QueueEntries, settings: ConversionSettings
) -> Iterator[Problem]:
    state = index.state
    if state is None:
        yield Problem(INDEX, "it does not say how far it goes")
        return
    if state.hand_ms:
        yield Problem(
            "files", f"{OPENED} ({INDEX}): what an engine has delivered since then is found missing"
        )
        return
    for name, wanted in (
        ("placed_end", len(queue)),
        ("ids_end", len(queue)),
        ("log_end", _log_end(queue)),
        ("slot_precision_ms", settings.precision_ms),
        ("minute_hand_ms", 0),
        ("hour_hand_ms", 0),
    ):
        if (value := getattr(state, name)) != wanted:
            yield Problem(INDEX, f"{name} is {value} and should be {wanted}")
    if len(index.marks):
        yield Problem(INDEX, "delete markers that nobody has put", len(index.marks))


def _log_end(queue: QueueEntries) -> int:
    if not len(queue):
        return 0
    return int(queue.commit_log_offset[-1]) + int(queue.size_bytes[-1])


def _row_problems(index: IndexContent, queue: QueueEntries) -> Iterator[Problem]:
    rows = index.waiting
    number = rows["queue_offset"]
    if len(rows) != len(queue):
        more = abs(len(rows) - len(queue))
        yield Problem(INDEX, f"{len(rows)} messages for {len(queue)} queue entries", more)
    is_there = (number >= 0) & (number < len(queue))
    entry = np.where(is_there, number, 0)
    again = np.zeros(len(rows), bool)
    again[1:] = number[1:] == number[:-1]
    tests = {"no such queue entry": ~is_there, "the same queue entry once more": again}
    if len(queue):
        offsets, sizes = queue.commit_log_offset[entry], queue.size_bytes[entry]
        tests |= {
            "not the record of its queue entry": is_there & (rows["commit_log_offset"] != offsets),
            "another size than the queue entry": is_there & (rows["size_bytes"] != sizes),
            "in a slot of another time": (
                index.slots_ms != slot_of(rows["due_ms"].astype(np.int64), HOURS)
            ),
        }
    yield from each_problem(INDEX, "message", len(rows), lambda some: some_of(tests, some))


def _id_problems(index: IndexContent, queue: QueueEntries, log: SegmentReader) -> Iterator[Problem]:
    """Each id where its hash belongs; of some entries, that the id is that of the record."""
    ids = index.ids
    number = ids["queue_offset"]
    again = np.zeros(len(ids), bool)
    again[1:] = number[1:] == number[:-1]
    tests = {
        "no such queue entry": (number < 0) | (number >= len(queue)),
        "the same queue entry once more": again,
        "in another bucket": index.buckets != ids["key_hash"] & ((1 << BUCKET_BITS) - 1),
    }
    yield from each_problem(INDEX, "id", len(ids), lambda some: some_of(tests, some))
    hashes = dict(zip(number.tolist(), ids["key_hash"].tolist(), strict=True))
    step = max(1, len(queue) // SAMPLED_IDS)
    for entry in range(0, len(queue), step):
        offset_and_size = int(queue.commit_log_offset[entry]), int(queue.size_bytes[entry])
        record = record_at(log, *offset_and_size)
        key = None if record is None else record.unique_key
        if record is not None and hashes.get(entry) != (None if key is None else id_of(key)):
            yield Problem(INDEX, f"queue entry {entry}: its id is not that of its record")
            return
