# SPDX-License-Identifier: Apache-2.0
"""A store with a wheel, made step by step as a broker makes it: put, place, stop."""

from __future__ import annotations

import copy
import struct
from pathlib import Path

import attrs

from message_store.files.store_root import StoreRoot
from tests.independent.raw_files import (
    SLOT_COUNT,
    WHEEL_BYTES,
    QueueUnit,
    Slot,
    TimerUnit,
    encode_slot,
    encode_timer_unit,
)
from tests.independent.raw_records import (
    MAGIC_BLANK,
    TIMER_TOPIC,
    Pair,
    RawRecord,
    decode_record,
    encode_record,
    java_hash,
    join_properties,
)
from tests.independent.store_file_writer import encode_queue_unit, write_log, write_segments

NOW_MS = 1_700_000_000_000
#: Four units and a blank of twenty bytes.
TIMER_FILE_BYTES = 4 * 52 + 20
LOG_FILE_BYTES = 4096
QUEUE_FILE_BYTES = 200


@attrs.define
class WheelStoreBuilder:
    """Holds what a broker holds in memory; `stop` writes it down."""

    path: Path
    precision_ms: int = 1000
    records: dict[int, bytes] = attrs.field(factory=dict)
    queue: list[QueueUnit] = attrs.field(factory=list)
    log: bytes = b""
    slots: dict[int, Slot] = attrs.field(factory=dict)
    log_end: int = 0

    def put(
        self,
        out_ms: int | str | None,
        *,
        key: str | None = None,
        topic: str = "TopicA",
        deletes: str | None = None,
        queue_offset: int | None = None,
        stored_ms: int = 0,
        rolled: bool = False,
        labelled: bool = False,
    ) -> int:
        """Store one timed message (or delete marker, or one that a wheel has ``rolled``, or that a
        timeline has put again, ``labelled``); its queue offset. An empty key is none.
        """
        number = len(self.queue)
        pairs: list[tuple[str, str | None]] = [
            ("REAL_TOPIC", topic),
            ("REAL_QID", "0"),
            ("UNIQ_KEY", (f"K{number}" if key is None else key) or None),
            ("TIMER_OUT_MS", None if out_ms is None else str(out_ms)),
            ("TIMER_DEL_UNIQKEY", deletes),
            *(_dealt_with(stored_ms) if rolled else []),
            ("TIMER_ROLL_TIMES", "1" if rolled else None),
            ("TIMER_ROLL_LABEL", "R" if labelled else None),
        ]
        record = RawRecord(
            topic=TIMER_TOPIC,
            body=b"body",
            properties=join_properties([(n, v) for n, v in pairs if v is not None], ending=True),
            queue_offset=number if queue_offset is None else queue_offset,
            store_timestamp_ms=stored_ms,
        )
        self.queue.append(QueueUnit(*self._append(record), 0))
        return number

    def deliver(self, number: int, *, stored_ms: int, body: bytes = b"body") -> None:
        """Put a copy of a message into its topic, whose queue nobody here reads."""
        offset = self.queue[number].commit_log_offset
        waiting = decode_record(self.records[offset])
        pairs = [*waiting.pairs, *_dealt_with(stored_ms)]
        record = RawRecord(
            topic=waiting.effective["REAL_TOPIC"],
            body=body,
            properties=join_properties(pairs, ending=True),
            store_timestamp_ms=stored_ms,
        )
        self._append(record)

    def deliver_from_timeline(self, number: int, *, stored_ms: int) -> None:
        """The same as a timeline does it: nothing is left of the real topic and the label."""
        waiting = decode_record(self.records[self.queue[number].commit_log_offset])
        names = ("REAL_TOPIC", "REAL_QID", "TIMER_ROLL_LABEL")
        record = RawRecord(
            topic=waiting.effective["REAL_TOPIC"],
            body=b"body",
            properties=join_properties(
                [p for p in waiting.pairs if p[0] not in names], ending=True
            ),
            queue_id=int(waiting.effective["REAL_QID"]),
            store_timestamp_ms=stored_ms,
        )
        self._append(record)

    def _append(self, record: RawRecord) -> tuple[int, int]:
        """Append a record to the log; its place and size."""
        size = len(encode_record(record))
        left = LOG_FILE_BYTES - self.log_end % LOG_FILE_BYTES
        self.log_end += left if size + 8 > left else 0
        placed = attrs.evolve(record, commit_log_offset=self.log_end)
        self.records[self.log_end] = encode_record(placed)
        self.log_end += size
        return placed.commit_log_offset, size

    def place(
        self, number: int, slot_time_ms: int, *, flags: int = 1, write_time_ms: int = NOW_MS
    ) -> int:
        """Append the unit of a queue entry and hang it on its slot; the unit's position."""
        left = TIMER_FILE_BYTES - len(self.log) % TIMER_FILE_BYTES
        if left < 52 + 16:
            self.log += struct.pack(">iqi", left, 0, MAGIC_BLANK).ljust(left, b"\0")
        time_units = slot_time_ms // self.precision_ms
        index = time_units % SLOT_COUNT
        old = self.slots.get(index)
        if old is not None and old.time_units != time_units:
            old = None
        position = len(self.log)
        entry = self.queue[number]
        self.log += encode_timer_unit(
            TimerUnit(
                position=position,
                size_bytes=52,
                previous_position=old.last_position if old else -1,
                magic=flags,
                write_time_ms=write_time_ms,
                delay_ms=slot_time_ms - write_time_ms,
                commit_log_offset=entry.commit_log_offset,
                record_size_bytes=entry.size_bytes,
                topic_hash=java_hash("TopicA"),
                reserved=0,
            )
        )
        first, count = (old.first_position, old.unit_count + 1) if old else (position, 1)
        self.slots[index] = Slot(index, time_units, first, position, count, 0)
        return position

    def put_and_place(self, slot_time_ms: int, *, flags: int = 1, key: str | None = None) -> int:
        number = self.put(slot_time_ms, key=key)
        self.place(number, slot_time_ms, flags=flags)
        return number

    def out_ms(self, number: int) -> int:
        """The time that a message was put for."""
        record = decode_record(self.records[self.queue[number].commit_log_offset])
        return int(record.effective["TIMER_OUT_MS"])

    def remembered(self) -> dict[int, Slot]:
        """The slots as they are now: what a wheel file that is not written again will say."""
        return copy.copy(self.slots)

    def stop(
        self,
        *,
        last_read_ms: int = NOW_MS,
        flush_position: int | None = None,
        last_queue_offset: int | None = None,
        master_queue_offset: int | None = None,
        slots: dict[int, Slot] | None = None,
        queued: int | None = None,
        wheel_name: str = "timerwheel",
    ) -> StoreRoot:
        """Write everything down; what is not given is what a clean stop would leave.

        Only the first ``queued`` messages have reached their queue.
        """
        write_log(self.path / "commitlog", self.records, self.log_end, LOG_FILE_BYTES)
        queue = b"".join(encode_queue_unit(unit) for unit in self.queue[:queued])
        write_segments(self.path / "consumequeue" / TIMER_TOPIC / "0", queue, QUEUE_FILE_BYTES)
        if self.log:
            write_segments(self.path / "timerlog", self.log, TIMER_FILE_BYTES)
        write_wheel(self.path / wheel_name, self.slots if slots is None else slots)
        count = len(self.queue)
        check = (
            last_read_ms,
            len(self.log) if flush_position is None else flush_position,
            count if last_queue_offset is None else last_queue_offset,
            count if master_queue_offset is None else master_queue_offset,
            0,
            NOW_MS,
            1,
        )
        (self.path / "config").mkdir()
        (self.path / "config" / "timercheck").write_bytes(
            struct.pack(">7q", *check).ljust(4096, b"\0")
        )
        return StoreRoot(self.path)


def _dealt_with(at_ms: int) -> list[Pair]:
    return [("TIMER_ENQUEUE_MS", str(at_ms - 1)), ("TIMER_DEQUEUE_MS", str(at_ms))]


def write_wheel(path: Path, slots: dict[int, Slot]) -> None:
    """A wheel file of the right length that holds just these slots."""
    with path.open("wb") as file:
        file.truncate(WHEEL_BYTES)
        for slot in slots.values():
            file.seek(slot.index * 32)
            file.write(encode_slot(slot))
