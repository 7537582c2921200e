# SPDX-License-Identifier: Apache-2.0
"""Level stores with one thing wrong each: offsets, queues, due times, records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from message_store.format.delay_levels import DelayLevels
from migrate.settings import TargetSettings
from tests.independent.level_messages import DEFAULT_LEVEL_TABLE, DeliveredCopy, Item
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    build_level_store,
    retry_message,
)
from tests.migrate.check_case import NOW_MS, Case

LATER_MS = T0 + 1_000
HOUR_MS = 3_600_000
REAL = [("REAL_TOPIC", "T"), ("REAL_QID", "0")]
LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"


def store(*items: Item, **arguments: Any) -> Callable[[Path], object]:
    """A store of these messages; three ordinary ones in levels 5 and 18 when none is given."""

    def make(root: Path) -> object:
        some: list[Item] = [
            LevelMessage(level=5),
            LevelMessage(level=18),
            LevelMessage(level=5, store_timestamp_ms=LATER_MS),
        ]
        return build_level_store(root, list(items) or some, **({"offsets": {5: 0}} | arguments))

    return make


def one_of_five(**wrong: Any) -> Callable[[Path], object]:
    """Level 5 with a good message, a wrong one, and a good one."""
    good = [LevelMessage(level=5), LevelMessage(level=5, store_timestamp_ms=LATER_MS + 1)]
    return store(
        good[0], LevelMessage(**({"level": 5, "store_timestamp_ms": LATER_MS} | wrong)), good[1]
    )


def delivered(**arguments: Any) -> Callable[[Path], object]:
    """The first message of level 3 was delivered, which is in the log."""
    first = LevelMessage(level=3)
    items = [first, LevelMessage(level=18, store_timestamp_ms=LATER_MS), DeliveredCopy(of=first)]
    return store(*items, **arguments)


def many(count: int = 60, **arguments: Any) -> Callable[[Path], object]:
    """A level queue of several files."""
    items = [LevelMessage(level=18, store_timestamp_ms=T0 + n) for n in range(count)]
    return store(*items, **({"offsets": {18: 0}, "queue_file_bytes": 10 * 20} | arguments))


def then(
    make: Callable[[Path], object], change: Callable[[Path], object]
) -> Callable[[Path], object]:
    """A store, and what happens to it."""

    def both(root: Path) -> None:
        make(root)
        change(root)

    return both


def queue_file(level: int, number: int, per_file: int = 10) -> str:
    return f"consumequeue/{LEVEL_TOPIC}/{level - 1}/{number * per_file * 20:020d}"


def without_queue(level: int) -> Callable[[Path], object]:
    return lambda root: shutil.rmtree((root / queue_file(level, 0)).parent)


def zero_unit(root: Path) -> None:
    with (root / queue_file(18, 0)).open("r+b") as file:
        file.seek(5 * 20)
        file.write(bytes(20))


def aged(hours: float, count: int = 30) -> Callable[[Path], object]:
    """Several log files, the first changed so long before now."""

    def age(root: Path) -> None:
        first = min((root / "commitlog").iterdir())
        changed_s = NOW_MS / 1000 - hours * 3600
        os.utime(first, (changed_s, changed_s))

    return then(many(count, commit_log_file_bytes=4096), age)


def text(*pairs: tuple[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def due_at(*due_ms: int) -> list[LevelMessage]:
    return [
        LevelMessage(level=3, store_timestamp_ms=T0 + n, unit_fields={"tags_code": due})
        for n, due in enumerate(due_ms)
    ]


OFFSETS = [
    Case(
        code="offsets-torn",
        make=delivered(offsets=b'{"offsetTable":{3:1,18:', backup_offsets={3: 1}),
        says="main: 1, bak: 1, none: 2",
    ),
    Case(code="offsets-torn", make=delivered(offsets=b"\xff\xfe{}", backup_offsets={3: 1})),
    Case(
        code="offsets-stale-tail",
        make=delivered(offsets=b'{"offsetTable":{3:1}}}', backup_offsets={3: 0}),
        says="main: 1, bak: 2, none: 2",
    ),
    Case(
        code="offsets-empty",
        make=delivered(offsets=b"", backup_offsets={3: 1}),
        says="bak: 1, none: 2",
    ),
    Case(
        code="offsets-empty", make=delivered(offsets=bytes(40), backup_offsets={3: 1}), says="NUL"
    ),
    Case(
        code="offsets-empty", make=delivered(offsets=None, backup_offsets={3: 1}), says="not there"
    ),
    Case(code="offsets-missing", make=delivered(offsets=None, backup_offsets=None), says="none: 2"),
    Case(
        code="offsets-backup-damaged",
        make=delivered(offsets={3: 1}, backup_offsets=b'{"offsetTable":'),
        says="truncated",
    ),
    Case(
        code="offsets-unreadable",
        make=delivered(offsets=b"{", backup_offsets=bytes(9)),
        says="none: 2",
    ),
    Case(
        code="offset-beyond-queue",
        make=store(offsets={5: 77}),
        says="77, where the queue ends at 2",
    ),
    Case(
        code="offset-below-queue",
        says="offset 2, where the queue begins at 10",
        make=then(many(offsets={18: 2}), lambda root: (root / queue_file(18, 0)).unlink()),
    ),
    Case(
        code="offset-below-queue",
        says="no offset, and the queue begins at 10",
        make=then(many(offsets={5: 0}), lambda root: (root / queue_file(18, 0)).unlink()),
    ),
    Case(
        code="offset-negative",
        make=store(offsets={5: -3}),
        says="offset -3, where the queue begins at 0",
    ),
    Case(code="offsets-behind", make=delivered(offsets={3: 0}), says="1 of its messages was"),
    Case(code="offset-missing", make=delivered(offsets={18: 0}), says="does not name it"),
    Case(code="offsets-ahead", make=store(offsets={18: 1, 5: 0}), says="1 message before offset 1"),
]

QUEUES = [
    Case(
        code="level-queue-unreadable",
        says="missing",
        make=then(many(), lambda root: (root / queue_file(18, 2)).unlink()),
    ),
    Case(
        code="level-queue-gone",
        make=then(store(), lambda root: (root / queue_file(18, 0)).unlink()),
        says="level 18 has no file left",
    ),
    Case(
        code="level-queue-gone",
        make=then(store(), without_queue(18)),
        says="level 18 is gone, where the log has records of it",
    ),
    Case(
        code="level-queue-gone",
        make=then(store(offsets={5: 1, 18: 0}), without_queue(5)),
        says="level 5 is gone, where delayOffset.json has its offset 1",
    ),
    Case(code="level-queue-hole", make=then(many(), zero_unit), says="hold nothing"),
    Case(
        code="entries-beyond-log",
        make=one_of_five(unit_fields={"commit_log_offset": 60_000}),
        says="1 entry leads behind the end",
    ),
    Case(
        code="entries-of-others",
        make=one_of_five(unit_fields={"commit_log_offset": 0}),
        says="1 entry does not lead",
    ),
    Case(
        code="entries-expired",
        make=many(30, commit_log_file_bytes=4096, drop_log_files=1),
        says="before the log",
    ),
    Case(
        code="level-due-bogus",
        make=one_of_five(unit_fields={"tags_code": 65}),
        says="1 entry holds",
    ),
    Case(
        code="pending-untold",
        says="changed while messages waited",
        make=store(*due_at(T0 + 60_000, T0 + 60_001, T0 + 10_002, T0 + 10_003)),
    ),
    Case(
        code="level-table-differs",
        make=store(),
        says="delay of 1m, and the table says 2m",
        options={"level_table": DelayLevels.parse("1s 5s 10s 30s 2m " + DEFAULT_LEVEL_TABLE[17:])},
    ),
    Case(
        code="level-table-early",
        make=store(),
        says="1 message is due later than 1s from now",
        options={"level_table": DelayLevels.parse(DEFAULT_LEVEL_TABLE.replace("2h", "1s"))},
    ),
    Case(
        code="level-table-never",
        make=store(),
        says="has no level 18",
        options={"level_table": DelayLevels.parse("1s 5s 10s 30s 1m")},
    ),
    Case(
        code="level-table-late", make=store(*due_at(T0 + 90_000, T0 + 30_001)), says="1 message is"
    ),
]

RECORDS = [
    Case(
        code="record-unreadable",
        make=one_of_five(damage=lambda data: bytes(len(data))),
        says="queue offset 1",
    ),
    Case(
        code="record-unreadable",
        make=one_of_five(record_fields={"body_crc": 7}),
        says="body is damaged",
    ),
    Case(
        code="record-unreadable",
        make=one_of_five(unit_fields={"size_bytes": 2**31 - 1}),
        says="the log ends before",
    ),
    Case(
        code="record-of-another", make=one_of_five(record_fields={"queue_id": 7}), says="of queue 7"
    ),
    Case(
        code="record-of-another",
        make=one_of_five(record_fields={"topic": "Elsewhere"}),
        says="Elsewhere",
    ),
    Case(
        code="record-of-another",
        make=one_of_five(record_fields={"commit_log_offset": 5}),
        says="lies at 5",
    ),
    Case(
        code="record-of-another",
        make=one_of_five(unit_fields={"size_bytes": 900}),
        says="where the queue says 900",
    ),
    Case(
        code="record-no-destination", make=one_of_five(without=["REAL_TOPIC"]), says="no REAL_TOPIC"
    ),
    Case(code="record-no-destination", make=one_of_five(without=["REAL_QID"]), says="no REAL_QID"),
    Case(
        code="record-no-destination",
        says="REAL_QID '-1'",
        make=one_of_five(
            raw_properties=text(("REAL_TOPIC", "T"), ("REAL_QID", "-1"), ("DELAY", "5"))
        ),
    ),
    Case(code="record-half", make=one_of_five(topic="RMQ_SYS_TRANS_HALF_TOPIC")),
    Case(code="record-loops", make=one_of_five(topic=LEVEL_TOPIC), says=LEVEL_TOPIC),
    Case(code="record-loops", make=one_of_five(topic="rmq_sys_wheel_timer")),
    Case(code="record-bad-topic", make=one_of_five(topic="a/b"), says="a/b"),
    Case(code="record-no-body", make=one_of_five(body=b""), says="(no body)"),
    Case(
        code="record-too-large",
        make=one_of_five(body=b"x" * 1200),
        options={"conf": {"maxMessageSize": "1000"}},
        says="maxMessageSize 1,000",
    ),
    Case(
        code="record-large",
        make=one_of_five(body=b"x" * 900),
        options={"conf": {"maxMessageSize": "1000"}},
    ),
    Case(
        code="record-large-for-wheel",
        make=one_of_five(body=b"x" * 1200),
        says="1,100 are read",
        options={"target": TargetSettings(max_message_bytes=1000)},
    ),
    Case(
        code="delay-beyond-table",
        make=one_of_five(raw_properties=text(*REAL, ("DELAY", "1959"))),
        says="DELAY=1959",
    ),
    Case(
        code="delay-disagrees",
        make=one_of_five(raw_properties=text(*REAL, ("DELAY", "6"))),
        says="DELAY=6",
    ),
    Case(code="delay-disagrees", make=one_of_five(without=["DELAY"]), says="no DELAY"),
    Case(
        code="delay-and-timer",
        make=one_of_five(extra_pairs=[("TIMER_DELAY_MS", "9")]),
        says="TIMER_DELAY_MS=9",
    ),
    Case(
        code="retry-share", make=store(retry_message(level=5), LevelMessage(level=5)), says="1 of 2"
    ),
    Case(
        code="retry-storm",
        says="%RETRY%group_a",
        make=store(
            *(retry_message(level=5, store_timestamp_ms=T0 + n) for n in range(1000)),
            LevelMessage(level=18),
        ),
    ),
]

TIME = [
    Case(code="retention-deletes-now", make=aged(hours=100), says="wait in 1 log file for"),
    Case(code="retention-deletes-waiting", make=aged(hours=71.9), says="fileReservedTime 72 h"),
    Case(
        code="retention-deletes-waiting",
        make=aged(hours=0),
        options={"conf": {"fileReservedTime": "1"}},
        says="fileReservedTime 1 h",
    ),
    Case(
        code="peak-over-capacity",
        options={"capacity": 1},
        says="5 messages are due in the second",
        make=store(*(LevelMessage(level=5, store_timestamp_ms=T0 + n) for n in range(5))),
    ),
    Case(
        code="overdue",
        make=store(LevelMessage(level=3), offsets={3: 0}),
        says="1 message is overdue",
    ),
]

CASES = [*OFFSETS, *QUEUES, *RECORDS, *TIME]
