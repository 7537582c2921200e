# SPDX-License-Identifier: Apache-2.0
"""Every invariant of a converted store with a ready wheel, checked without the product's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from tests.independent.raw_files import (
    CHECKPOINT_BYTES,
    SLOT_COUNT,
    WHEEL_BYTES,
    PlacedRecord,
    QueueUnit,
    Slot,
    TimerUnit,
    read_timer_check,
    wheel_slots,
)
from tests.independent.raw_records import (
    TIMER_TOPIC,
    TRANSACTION_COMMIT,
    java_hash,
    tags_code_of,
)
from tests.independent.target_reader import ROLL, TargetMessage, read_target
from tests.independent.variant_b_config import check_config
from tests.independent.variant_b_log import read_commit_log, read_queue, read_timer_log

__all__ = ["TargetMessage", "check_target", "read_target"]

DEFAULT_UNIT = 1
OVERDUE_SLOTS = 3600
HALF_WHEEL_SLOTS = 302_400
MAX_PROPERTIES_BYTES = 32_767
DELIVERY_GROWTH_BYTES = 68
ROLL_GROWTH_BYTES = 20
READ_BUFFER_EXTRA_BYTES = 100
FORBIDDEN_PROPERTIES = [
    "DELAY",
    "TIMER_ROLL_TIMES",
    "TIMER_ROLL_LABEL",
    "TIMER_DEL_UNIQKEY",
    "__CRC32#",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
]
FORBIDDEN_FILES = ["abort", "checkpoint", "config/delayOffset.json", "config/delayOffset.json.bak"]


@attrs.frozen(kw_only=True)
class _Rules:
    now_ms: int
    precision_ms: int
    roll_window_slots: int
    max_message_bytes: int

    @property
    def write_time_ms(self) -> int:
        return self.now_ms // self.precision_ms * self.precision_ms

    def after(self, slots: int) -> int:
        return self.write_time_ms + slots * self.precision_ms


def check_target(
    path: Path,
    *,
    now_ms: int,
    precision_ms: int = 1000,
    roll_window_slots: int = 172_800,
    commit_log_file_bytes: int = 1 << 30,
    queue_file_bytes: int = 6_000_000,
    timer_log_file_bytes: int = 100 << 20,
    max_message_bytes: int = 4 << 20,
    source: Path | None = None,
) -> list[str]:
    """All problems of a store converted at `now_ms`; an empty list means a correct one.

    With `source`, its groups and their topics are what the target must know too.
    """
    rules = _Rules(
        now_ms=now_ms,
        precision_ms=precision_ms,
        roll_window_slots=roll_window_slots,
        max_message_bytes=max_message_bytes,
    )
    problems = list(_strays(path))
    records = read_commit_log(path / "commitlog", commit_log_file_bytes, problems)
    for index, placed in enumerate(records):
        at = f"commit log {placed.commit_log_offset}"
        problems += [f"{at}: {problem}" for problem in _record_problems(index, placed, rules)]
    queue = path / "consumequeue" / TIMER_TOPIC / "0"
    problems += _queue_problems(read_queue(queue, queue_file_bytes, problems), records)
    units = read_timer_log(path / "timerlog", timer_log_file_bytes, problems)
    slots, unit_problems = _check_units(units, records, rules)
    problems += unit_problems
    problems += _wheel_problems(path / "timerwheel", slots)
    problems += _check_problems(path / "config" / "timercheck", units, len(records), rules)
    problems += check_config(path, [placed.record for placed in records], source)
    return problems


def _strays(path: Path) -> Iterator[str]:
    for name in FORBIDDEN_FILES:
        if (path / name).exists():
            yield f"{name}: must not exist"
    for entry in sorted(path.glob("timerwheel.*")):
        yield f"{entry.name}: a snapshot would win over the wheel"
    queues = path / "consumequeue"
    for entry in sorted(queues.glob("*/*")) if queues.is_dir() else []:
        if entry != queues / TIMER_TOPIC / "0":
            yield f"{entry}: a queue of something that is not in the log"


def _out_ms(placed: PlacedRecord) -> int | None:
    text = placed.record.effective.get("TIMER_OUT_MS", "")
    return int(text) if re.fullmatch(r"\d+", text) else None


def _record_problems(index: int, placed: PlacedRecord, rules: _Rules) -> Iterator[str]:
    record = placed.record
    names = [name for name, _ in record.pairs]
    if record.topic != TIMER_TOPIC:
        yield f"topic {record.topic}"
    if record.queue_id != 0:
        yield f"queue id {record.queue_id}"
    if record.queue_offset != index:
        yield f"QUEUEOFFSET {record.queue_offset}, it is record {index}"
    if record.store_timestamp_ms != rules.now_ms:
        yield f"store timestamp {record.store_timestamp_ms}, now is {rules.now_ms}"
    if record.prepared_transaction_offset != 0:
        yield f"prepared transaction offset {record.prepared_transaction_offset}"
    if record.transaction_type not in (0, TRANSACTION_COMMIT):
        yield f"transaction type {record.transaction_type}: it is never indexed"
    for name in FORBIDDEN_PROPERTIES:
        if name in names:
            yield f"property {name}"
    if names.count("TIMER_OUT_MS") != 1:
        yield f"property TIMER_OUT_MS stands {names.count('TIMER_OUT_MS')} times"
    if not record.effective.get("REAL_TOPIC"):
        yield "REAL_TOPIC is absent or empty"
    if not re.fullmatch(r"\d+", record.effective.get("REAL_QID", "")):
        yield "REAL_QID is no number"
    out_ms = _out_ms(placed)
    if out_ms is None or out_ms % rules.precision_ms:
        yield f"TIMER_OUT_MS is no multiple of {rules.precision_ms}"
    if placed.size_bytes > rules.max_message_bytes + READ_BUFFER_EXTRA_BYTES:
        yield f"{placed.size_bytes} bytes: too long for the wheel's reader"
    is_rolled = (out_ms or 0) >= rules.after(rules.roll_window_slots)
    room = DELIVERY_GROWTH_BYTES + (ROLL_GROWTH_BYTES if is_rolled else 0)
    if len(record.properties) > MAX_PROPERTIES_BYTES - room:
        yield f"{len(record.properties)} bytes of properties: no room for what delivery adds"


def _queue_problems(units: Sequence[QueueUnit], records: Sequence[PlacedRecord]) -> Iterator[str]:
    if len(units) != len(records):
        yield f"timer queue: {len(units)} units for {len(records)} records"
    for index, (unit, placed) in enumerate(zip(units, records, strict=False)):
        tags_code = tags_code_of(placed.record.effective.get("TAGS"))
        right = QueueUnit(placed.commit_log_offset, placed.size_bytes, tags_code)
        if unit != right:
            yield f"timer queue {index}: {unit} instead of {right}"


def _check_units(
    units: Sequence[TimerUnit], records: Sequence[PlacedRecord], rules: _Rules
) -> tuple[dict[int, Slot], list[str]]:
    """The slots that follow from the units (by slot time), and what is wrong with the units."""
    problems = []
    if len(units) != len(records):
        problems.append(f"timer log: {len(units)} units for {len(records)} records")
    slots: dict[int, Slot] = {}
    overdue: list[tuple[int, int]] = []
    for number, (unit, placed) in enumerate(zip(units, records, strict=False)):
        at = f"timer log {unit.position} (unit {number})"
        slot_time = unit.slot_time_ms
        units_of_time = slot_time // rules.precision_ms
        before = slots.get(slot_time)
        right = attrs.evolve(
            unit,
            size_bytes=52,
            previous_position=before.last_position if before else -1,
            write_time_ms=rules.write_time_ms,
            commit_log_offset=placed.commit_log_offset,
            record_size_bytes=placed.size_bytes,
            topic_hash=java_hash(placed.record.effective.get("REAL_TOPIC", "")),
            reserved=0,
        )
        if unit != right:
            problems.append(f"{at}: {unit} instead of {right}")
        out_ms = _out_ms(placed)
        if out_ms is not None:
            problems += [f"{at}: {problem}" for problem in _placing_problems(unit, out_ms, rules)]
            if out_ms < rules.write_time_ms:
                overdue.append((out_ms, slot_time))
        index = units_of_time % SLOT_COUNT
        first = before.first_position if before else unit.position
        count = before.unit_count + 1 if before else 1
        slots[slot_time] = Slot(index, units_of_time, first, unit.position, count, 0)
    problems += _overdue_order_problems(overdue)
    return slots, problems


def _placing_problems(unit: TimerUnit, out_ms: int, rules: _Rules) -> Iterator[str]:
    slot_time = unit.slot_time_ms
    window = rules.roll_window_slots
    is_rolled = out_ms >= rules.after(window)
    if unit.magic != (DEFAULT_UNIT | ROLL if is_rolled else DEFAULT_UNIT):
        yield f"magic {unit.magic}, OUT is {out_ms - rules.write_time_ms} ms away"
    if slot_time % rules.precision_ms:
        yield f"slot time {slot_time} is no multiple of {rules.precision_ms}"
    if is_rolled:
        if not rules.after(window // 2) <= slot_time < rules.after(window):
            yield f"slot time {slot_time} of a roll unit outside the window's second half"
    elif out_ms < rules.write_time_ms:
        if not rules.after(-OVERDUE_SLOTS) <= slot_time < rules.write_time_ms:
            yield f"slot time {slot_time} of an overdue unit outside the last {OVERDUE_SLOTS} slots"
    elif slot_time != out_ms:
        yield f"slot time {slot_time}, but OUT {out_ms}"


def _overdue_order_problems(overdue: list[tuple[int, int]]) -> Iterator[str]:
    """`overdue` holds (OUT, slot time): a later OUT must not have an earlier slot."""
    latest_slot = latest_out = -1
    for out_ms, slot_time in sorted(overdue):
        if slot_time < latest_slot:
            yield f"overdue OUT {out_ms} in slot {slot_time}, but {latest_out} in {latest_slot}"
        if slot_time > latest_slot:
            latest_slot, latest_out = slot_time, out_ms


def _wheel_problems(path: Path, slots: dict[int, Slot]) -> Iterator[str]:
    if not path.is_file() or path.stat().st_size != WHEEL_BYTES:
        yield f"timerwheel: not a file of {WHEEL_BYTES} bytes"
        return
    right = {slot.index: slot for slot in slots.values()}
    if len(right) != len(slots):
        yield "timerwheel: two slot times share an index"
    found = {slot.index: slot for slot in wheel_slots(path)}
    for index in sorted(right.keys() | found.keys()):
        if found.get(index) != right.get(index):
            yield f"timerwheel {index}: {found.get(index)} instead of {right.get(index)}"


def _check_problems(
    path: Path, units: Sequence[TimerUnit], record_count: int, rules: _Rules
) -> Iterator[str]:
    if not path.is_file() or path.stat().st_size != CHECKPOINT_BYTES:
        yield f"timercheck: not a file of {CHECKPOINT_BYTES} bytes"
        return
    if any(path.read_bytes()[56:]):
        yield "timercheck: bytes after the seven fields"
    check = read_timer_check(path)
    first_slot = min((unit.slot_time_ms for unit in units), default=check.last_read_time_ms)
    if check.last_read_time_ms > first_slot:
        yield f"timercheck: lastReadTimeMs {check.last_read_time_ms} after slot {first_slot}"
    if not 0 < check.last_read_time_ms <= rules.after(-HALF_WHEEL_SLOTS):
        yield f"timercheck: lastReadTimeMs {check.last_read_time_ms} not half a wheel before now"
    if check.last_read_time_ms % rules.precision_ms:
        yield f"timercheck: lastReadTimeMs is no multiple of {rules.precision_ms}"
    end = units[-1].position + units[-1].size_bytes if units else 0
    if check.flush_position != end:
        yield f"timercheck: flush position {check.flush_position}, the timer log ends at {end}"
    if (check.last_queue_offset, check.master_queue_offset) != (record_count, record_count):
        yield (
            f"timercheck: queue offsets {check.last_queue_offset} and "
            f"{check.master_queue_offset}, {record_count} records"
        )
    if (check.state_version, check.timestamp_ms) != (0, rules.now_ms) or check.counter < 1:
        yield f"timercheck: data version of {check}"
