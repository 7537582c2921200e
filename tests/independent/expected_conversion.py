# SPDX-License-Identifier: Apache-2.0
"""What a conversion must yield, said without the product, and what it yielded instead."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from tests.independent.level_messages import Item, level_delays_ms
from tests.independent.level_store_builder import BuiltStore
from tests.independent.raw_files import QueueUnit, queue_units_by_index, record_at
from tests.independent.raw_records import (
    SCHEDULE_TOPIC,
    Pair,
    RawRecord,
    body_sha1,
    decode_record,
)
from tests.independent.real_stores import TruthLine
from tests.independent.target_reader import TargetMessage, user_properties_of

MAY_DIFFER = frozenset(
    {
        "DELAY",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_ROLL_LABEL",
        "TIMER_DEL_UNIQKEY",
        "__CRC32#",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
    }
)
SHOWN_DIFFERENCES = 20


def out_ms_of(due_ms: int, precision_ms: int) -> int:
    """The slot a message due at `due_ms` waits in: delivered at its end, never before due."""
    return -(-due_ms // precision_ms) * precision_ms - precision_ms


@attrs.frozen(kw_only=True)
class ExpectedMessage:
    """What is known of a message without looking into the store. Equal and hashable by content."""

    unique_key: str | None
    topic: str
    queue_id: int
    tags: str | None
    keys: str | None
    user_properties: tuple[Pair, ...]
    body_sha1: str
    out_ms: int


def expected_of_truth(
    lines: Iterable[TruthLine],
    *,
    precision_ms: int = 1000,
    delays_ms: Mapping[int, int] | None = None,
) -> list[ExpectedMessage]:
    """The messages of these lines (all delayed by level), due by store time and level."""
    delays = level_delays_ms() if delays_ms is None else delays_ms
    messages = []
    for line in lines:
        assert line.store_timestamp_ms is not None
        assert line.level is not None
        due_ms = line.store_timestamp_ms + delays[line.level]
        messages.append(
            ExpectedMessage(
                unique_key=line.unique_key,
                topic=line.topic,
                queue_id=line.queue_id,
                tags=line.tags,
                keys=line.keys,
                user_properties=tuple(sorted(line.user_properties.items())),
                body_sha1=line.body_sha1,
                out_ms=out_ms_of(due_ms, precision_ms),
            )
        )
    return messages


def message_of(record: RawRecord, out_ms: int) -> ExpectedMessage:
    """The same view of a stored record that is waiting, in a level or in a wheel."""
    properties = record.effective
    return ExpectedMessage(
        unique_key=properties.get("UNIQ_KEY"),
        topic=properties["REAL_TOPIC"],
        queue_id=int(properties["REAL_QID"]),
        tags=properties.get("TAGS"),
        keys=properties.get("KEYS"),
        user_properties=tuple(sorted(user_properties_of(record).items())),
        body_sha1=body_sha1(record),
        out_ms=out_ms,
    )


def compare_with_truth(
    expected: Iterable[ExpectedMessage], found: Iterable[TargetMessage]
) -> list[str]:
    """Differences as text: what is missing, unexpected, or there with other content."""
    wanted = collections.Counter(expected)
    there = collections.Counter(message_of(message.record, message.out_ms) for message in found)
    missing = list((wanted - there).elements())
    unexpected = list((there - wanted).elements())
    problems = [f"missing {message}{_twin(message, unexpected)}" for message in missing]
    problems += [f"unexpected {message}" for message in unexpected]
    return _shortened(problems)


def _twin(message: ExpectedMessage, others: Sequence[ExpectedMessage]) -> str:
    """Which fields differ in a message of the same key and topic, where there is one."""
    for other in others:
        if (other.unique_key, other.topic) == (message.unique_key, message.topic):
            names = [
                field.name
                for field in attrs.fields(ExpectedMessage)
                if getattr(other, field.name) != getattr(message, field.name)
            ]
            return f" (there with another {', '.join(names)})"
    return ""


@attrs.frozen(kw_only=True)
class WaitingRecord:
    """A record of a level queue that is still to be delivered."""

    record: RawRecord
    due_ms: int


def waiting_records(
    root: Path, indexes: Mapping[int, Iterable[int]], commit_log_file_bytes: int
) -> list[WaitingRecord]:
    """The records at these indexes of the level queues, in the order of the commit log."""
    waiting = []
    for level, wanted in indexes.items():
        units = level_units(root, level)
        for index in wanted:
            record = record_at(
                root / "commitlog", commit_log_file_bytes, units[index].commit_log_offset
            )
            waiting.append(WaitingRecord(record=record, due_ms=units[index].tags_code))
    return sorted(waiting, key=lambda one: one.record.commit_log_offset)


def waiting_of(built: BuiltStore, items: Iterable[Item]) -> list[WaitingRecord]:
    """The records of these items of a hand-made store, in the order of the commit log."""
    placed = sorted((built.of(item) for item in items), key=lambda one: one.commit_log_offset)
    waiting = []
    for one in placed:
        assert one.due_ms is not None, "only level messages wait"
        waiting.append(WaitingRecord(record=decode_record(one.data), due_ms=one.due_ms))
    return waiting


def level_units(root: Path, level: int) -> dict[int, QueueUnit]:
    return queue_units_by_index(root / "consumequeue" / SCHEDULE_TOPIC / str(level - 1))


def survivors(record: RawRecord) -> tuple[object, ...]:
    """Every field that a conversion must leave as it was, comparable between both sides."""
    kept = attrs.evolve(
        record,
        topic="",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        store_timestamp_ms=0,
        prepared_transaction_offset=0,
        properties=b"",
        total_size=None,
        magic=None,
    )
    pairs = tuple(pair for pair in record.pairs if pair[0] not in MAY_DIFFER)
    return (*attrs.astuple(kept), pairs)


def compare_with_records(
    waiting: Sequence[WaitingRecord], found: Iterable[TargetMessage], *, precision_ms: int = 1000
) -> list[str]:
    """Every surviving field of every message, its OUT, and the order: that of the source's log.

    Overdue messages must also be delivered in the order they were due.
    """
    in_order = sorted(found, key=lambda message: message.record.queue_offset)
    wanted = [(survivors(one.record), out_ms_of(one.due_ms, precision_ms)) for one in waiting]
    there = [(survivors(message.record), message.out_ms) for message in in_order]
    if wanted != there:
        return _content_problems(wanted, there)
    write_time_ms = in_order[0].unit.write_time_ms if in_order else 0
    overdue = sorted(
        (one.due_ms, message.slot_time_ms)
        for one, message in zip(waiting, in_order, strict=True)
        if message.out_ms < write_time_ms
    )
    slots = [slot for _, slot in overdue]
    return [] if slots == sorted(slots) else ["overdue messages are not in the order of due times"]


def _content_problems(
    wanted: Sequence[tuple[object, int]], there: Sequence[tuple[object, int]]
) -> list[str]:
    missing = collections.Counter(wanted) - collections.Counter(there)
    unexpected = collections.Counter(there) - collections.Counter(wanted)
    problems = [f"missing {one}" for one in missing.elements()]
    problems += [f"unexpected {one}" for one in unexpected.elements()]
    return _shortened(problems) or ["the right messages, but not in the order of the source's log"]


def _shortened(problems: list[str]) -> list[str]:
    if len(problems) <= SHOWN_DIFFERENCES:
        return problems
    return [*problems[:SHOWN_DIFFERENCES], f"and {len(problems) - SHOWN_DIFFERENCES} more"]
