# SPDX-License-Identifier: Apache-2.0
"""The log that is read file by file at once, and only for what no queue leads to, says what a plain
reading of every record says.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.backlog.log_tail import Known, read_tail
from legacy_levels.backlog.queues import LevelQueue, open_level_queues
from legacy_levels.copies import log_notes
from legacy_levels.copies.kernels import DIGEST_1
from legacy_levels.copies.log_notes import NOTHING_EXPECTED, LogNotes
from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from message_store.base.errors import FormatError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.indexed_end import find_indexed_end
from tests.faults.damage import flip
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.independent.raw_files import segments

LOG_FILE_BYTES = 2048
QUEUE_FILE_BYTES = 5 * 20
STORES = 100
QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX"


def is_whole(queue: LevelQueue, notes: LogNotes) -> bool:
    """Plainly: the queue's units are its newest records, one by one, and none lies before them."""
    records = notes.level_records
    rows = np.flatnonzero(records.queue_id == queue.level - 1)
    if not len(rows):
        return True
    units = [
        *zip(
            *(
                np.concatenate([part.units for part in (queue.history, queue.entries)])[
                    name
                ].tolist()
                for name in ("commit_log_offset", "size_bytes")
            ),
            strict=True,
        )
    ]
    if len(units) > len(rows) or max(queue.stored_offset or 0, 0) < queue.queue_min:
        return False
    places = [
        *zip(
            records.commit_log_offset[rows].tolist(), records.size_bytes[rows].tolist(), strict=True
        )
    ]
    return places[len(places) - len(units) :] == units


def items_of(rng: random.Random) -> list[Item]:
    items: list[Item] = []
    for number in range(rng.randint(1, 40)):
        stored_ms = T0 + number * 1000
        message = LevelMessage(level=rng.choice([1, 2, 18]), store_timestamp_ms=stored_ms)
        items.append(message)
        if rng.random() < 0.2:
            items.append(DeliveredCopy(of=message, store_timestamp_ms=stored_ms + 500))
        if rng.random() < 0.2:
            items.append(OrdinaryMessage(store_timestamp_ms=stored_ms + 600))
    return items


def damage(store: Path, rng: random.Random) -> None:
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        log = segments(store / "commitlog")
        queues = [file for level in (0, 1, 17) for file in segments(store / QUEUE / str(level))]
        kind = rng.choice(["log", "queue", "queue", "lost queue file", "lost log file"])
        if kind in ("log", "queue"):
            file = rng.choice(log if kind == "log" else queues or log)
            flip(file, rng.randrange(file.stat().st_size), rng.randrange(8))
        elif kind == "lost log file" and len(log) > 1:
            rng.choice(log[:-1]).unlink()
        elif queues:
            rng.choice(queues).unlink()


def test_what_queues_lead_to_is_only_counted(tmp_path: Path) -> None:
    whole = damaged = 0
    for seed in range(STORES):
        rng = random.Random(seed)
        built = build_level_store(
            tmp_path / str(seed),
            items_of(rng),
            commit_log_file_bytes=LOG_FILE_BYTES,
            queue_file_bytes=QUEUE_FILE_BYTES,
            offsets={level: rng.randrange(8) for level in (1, 2, 18) if rng.random() < 0.5},
        )
        damage(built.root, rng)
        store = StoreRoot(built.root)
        offsets = read_delay_offsets(built.root, OffsetsChoice.AUTO)
        try:
            queues = open_level_queues(built.root, offsets, queue_file_bytes=QUEUE_FILE_BYTES)
        except FormatError:
            continue  # a file in the row is missing: no queue can be told
        with SegmentReader(store.commit_log, LOG_FILE_BYTES) as log:
            known = Known.now(store, log, queue_file_bytes=QUEUE_FILE_BYTES)
            tail = read_tail(log, queues, known, whole_log=True)
            known_end = find_indexed_end(built.root, log, queue_file_bytes=QUEUE_FILE_BYTES)
            plain = log_notes._notes_of_file(
                log, log.min_offset, known_end.log_offset, LONG_MAX, NOTHING_EXPECTED
            )
        assert tail.damaged_levels == {each.level for each in queues if not is_whole(each, plain)}
        assert tail.notes.damaged_places == plain.damaged_places, seed
        assert tail.notes.newest_store_ms == plain.newest_store_ms
        assert tail.notes.log_end == plain.log_end
        copies = tail.notes.delivered_copies
        assert copies.rows.tolist() == plain.delivered_copies.rows.tolist(), seed
        if tail.damaged_levels:
            records = tail.notes.level_records.rows[:, :DIGEST_1]
            assert records.tolist() == plain.level_records.rows[:, :DIGEST_1].tolist(), seed
        whole += not tail.damaged_levels
        damaged += bool(tail.damaged_levels)
    assert min(whole, damaged) > STORES // 5


def test_a_directory_with_a_strange_number_costs_nothing(tmp_path: Path) -> None:
    built = build_level_store(tmp_path / "store", [LevelMessage(level=3)])
    (built.root / QUEUE / "999999998").mkdir()
    assert len(read_backlog(built.root, whole_log=True)) == 1


def test_a_writer_beside_leaves_no_hole_in_what_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk over a file ends where the writer is; it must not go on in the next file."""
    items = [LevelMessage(level=3, store_timestamp_ms=T0 + number) for number in range(24)]
    built = build_level_store(tmp_path / "store", items, commit_log_file_bytes=LOG_FILE_BYTES)
    full = {file: file.read_bytes() for file in segments(built.root / "commitlog")}
    offsets = [placed.commit_log_offset for placed in built.placed]
    written = [offset for offset in offsets if offset > LOG_FILE_BYTES][2]

    def write(end: int) -> None:
        for number, (file, data) in enumerate(full.items()):
            file.write_bytes(data[: max(0, end - number * LOG_FILE_BYTES)].ljust(len(data), b"\0"))

    real = log_notes._notes_of_file

    def go_on_behind(reader: SegmentReader, begin: int, *more: Any) -> LogNotes:
        notes = real(reader, begin, *more)
        if begin == LOG_FILE_BYTES:
            write(sum(map(len, full.values())))
        return notes

    write(written)
    monkeypatch.setattr(log_notes, "_notes_of_file", go_on_behind)
    monkeypatch.setattr(log_notes, "parallel_map", lambda work, items: list(map(work, items)))
    with SegmentReader(built.root / "commitlog", LOG_FILE_BYTES) as log:
        notes = log_notes.take_notes(log, 0)
    noted = notes.commit_log_offset.tolist()
    assert noted == offsets[: len(noted)]
    assert notes.log_end == offsets[len(noted)]
