# SPDX-License-Identifier: Apache-2.0
"""Stores with a wheel and one thing wrong each: slots, chains, queue, checkpoint, records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs

from message_store import AfterMs, ManualClock, Message
from message_store.format.java_numbers import string_hash
from message_store.format.message import Host
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.record_layout import SYS_BORN_HOST_IPV6
from tests.faults.damage import flip
from tests.independent.raw_files import SLOT_COUNT, Slot
from tests.migrate.check_case import Case
from tests.timer_wheel import wheel_store_builder
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder, write_wheel
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore
from timer_wheel.format.timer_log import TIMER_UNIT

DAY_MS = 86_400_000
SOON_MS = NOW_MS + 60_000
Change = Callable[[WheelStoreBuilder], object]


def wheel(
    change: Change = lambda builder: None, count: int = 3, **stop: Any
) -> Callable[[Path], object]:
    """A wheel with some messages, a minute from now and a second apart; then what is wrong."""

    def make(root: Path) -> object:
        builder = WheelStoreBuilder(root)
        for number in range(count):
            builder.put_and_place(SOON_MS + number * 1000)
        change(builder)
        return builder.stop(**stop)

    return make


def then(
    make: Callable[[Path], object], change: Callable[[Path], object]
) -> Callable[[Path], object]:
    def both(root: Path) -> None:
        make(root)
        change(root)

    return both


def dead_slot(builder: WheelStoreBuilder) -> None:
    time_units = SOON_MS // 1000 + 500
    index = time_units % SLOT_COUNT
    builder.slots[index] = Slot(index, time_units, 90 * 52, 90 * 52, 1, 0)


def changed_bytes(old: bytes, new: bytes) -> Change:
    """Other bytes, as many, in the record of the second message."""
    assert len(old) == len(new)

    def change(builder: WheelStoreBuilder) -> None:
        offset = builder.queue[1].commit_log_offset
        assert old in builder.records[offset]
        builder.records[offset] = builder.records[offset].replace(old, new)

    return change


def half(builder: WheelStoreBuilder) -> None:
    """The second message is half of a transaction that was never committed."""
    offset = builder.queue[1].commit_log_offset
    record = builder.records[offset]
    builder.records[offset] = record[:36] + struct.pack(">i", 4) + record[40:]


def disguised(builder: WheelStoreBuilder) -> None:
    """The address of a producer says in sixteen bytes what Java takes for four."""
    number = builder.put(SOON_MS + 5000, key="K" * 13)
    offset = builder.queue[number].commit_log_offset
    whole = decode_message_at(builder.records[offset])
    born_host = Host.of("::ffff:10.1.2.3", 7)
    text = whole.properties_text.replace(b"K" * 13, b"K")
    builder.records[offset] = encode_message(
        attrs.evolve(whole, properties_text=text, born_host=born_host, sys_flag=SYS_BORN_HOST_IPV6)
    )
    builder.place(number, SOON_MS + 5000)


def with_body(builder: WheelStoreBuilder, number: int, body: bytes) -> None:
    """A message has another body; its key makes good for the length."""
    offset, key = builder.queue[number].commit_log_offset, b"K%d" % number
    whole = decode_message_at(builder.records[offset])
    text = whole.properties_text.replace(key, key + b"k" * (len(whole.body) - len(body)))
    builder.records[offset] = encode_message(
        attrs.evolve(whole, properties_text=text, body=body, body_crc=body_crc(body))
    )


def nameless_marker(builder: WheelStoreBuilder) -> None:
    """A broker's delete marker waits in the queue without key and tags; its entry knows of them."""
    number = builder.put(SOON_MS + 9_000)
    with_body(builder, number, b"0")
    code = string_hash("_RECALL_TAG_")
    builder.queue[number] = attrs.evolve(builder.queue[number], tags_code=code)


def recalled(builder: WheelStoreBuilder) -> None:
    """Message 1 was recalled in the form of 5.3.2."""
    builder.place(builder.put(SOON_MS + 1000, deletes="TopicA+K1"), SOON_MS + 1000, flags=5)


def blocked(builder: WheelStoreBuilder) -> None:
    builder.put(None)
    builder.put(SOON_MS)


def unlinked(root: Path) -> None:
    """The fourth unit, which is in the slot of the first, leads nowhere."""
    log = root / "timerlog" / ("0" * 20)
    content = log.read_bytes()
    place = 3 * TIMER_UNIT.size + TIMER_UNIT.offset_of("previous_position")
    log.write_bytes(content[:place] + b"\xff" * 8 + content[place + 8 :])


def garbled(root: Path) -> None:
    log = root / "commitlog" / ("0" * 20)
    log.write_bytes(log.read_bytes().replace(b"body", b"bodz", 1))


def skipped(builder: WheelStoreBuilder) -> None:
    builder.put(SOON_MS)
    builder.put_and_place(SOON_MS + 9_000)


def put_behind(builder: WheelStoreBuilder) -> None:
    builder.put(SOON_MS)


def astray(root: Path) -> None:
    """A bit of the last entry's offset is wrong."""
    flip(root / "consumequeue/rmq_sys_wheel_timer/0" / ("0" * 20), 3 * 20 + 6, 0)


def long_key(root: Path) -> object:
    with patch.object(wheel_store_builder, "LOG_FILE_BYTES", 1 << 16):
        builder = WheelStoreBuilder(root)
        builder.put_and_place(SOON_MS, key="K" * 32_640)
        return builder.stop()


def hierarchical(root: Path) -> None:
    with HierarchicalWheelStore.open(root, clock=ManualClock(NOW_MS)) as store:
        store.schedule(Message("orders", b"waits"), AfterMs(60_000))


def time_index(root: Path) -> None:
    with TimeIndexStore.open(root, clock=ManualClock(NOW_MS)) as store:
        store.schedule(Message("orders", b"waits"), AfterMs(60_000))


def torn(name: str, content: bytes = b'{"timingCount":{') -> Callable[[Path], object]:
    return lambda root: (root / "config" / name).write_bytes(content)


def conf(**settings: str) -> dict[str, Any]:
    return {"conf": settings}


CASES = [
    Case(
        code="wheel-unreadable",
        says="not the length of a timer wheel",
        make=then(wheel(), lambda root: (root / "timerwheel").write_bytes(bytes(320))),
    ),
    Case(code="hierarchical-wheel", make=hierarchical, says="1 message waits"),
    Case(code="time-index", make=time_index, says="1 message waits there, the next due"),
    Case(
        code="time-index-unread",
        make=then(time_index, lambda root: flip(min((root / "commitlog").iterdir()), 8, 0)),
        says="1 message cannot be read",
    ),
    Case(
        code="taken-over-damaged",
        make=then(
            hierarchical,
            lambda root: (root / "delaywheel/hierarchy/taken-over").write_bytes(b"torn"),
        ),
        says="taken-over: damaged",
    ),
    Case(
        code="hierarchy-unguarded",
        make=then(hierarchical, lambda root: (root / "timerwheel").unlink()),
    ),
    Case(
        code="wheel-stale", make=wheel(count=20, slots={}), says="12 messages are in the timer log"
    ),
    Case(code="slot-points-nowhere", make=wheel(dead_slot), says="1 slot leads"),
    Case(
        code="timer-expired",
        says="before the log's beginning",
        make=then(wheel(count=30), lambda root: (root / "commitlog" / ("0" * 20)).unlink()),
    ),
    Case(
        code="timer-link-broken",
        make=then(wheel(lambda builder: builder.put_and_place(SOON_MS)), unlinked),
        says="1 unit is",
    ),
    Case(code="timer-body-damaged", make=then(wheel(), garbled), says="1 record: timer log 0"),
    Case(
        code="timer-queue-blocked",
        make=wheel(blocked, last_queue_offset=3),
        says="queue offset 3 has no due time; 1",
    ),
    Case(
        code="timer-queue-blocked",
        make=then(wheel(blocked, queued=3), lambda root: (root / "abort").touch()),
        says="queue offset 3 has no due time; 1 entry is behind",
    ),
    Case(
        code="timer-queue-astray",
        make=then(wheel(put_behind, last_queue_offset=3, queued=4), astray),
        says="1 entry that is to be placed leads to no record",
    ),
    Case(code="timer-queue-lost", make=wheel(skipped), says="to 1 message before queue offset 5"),
    Case(code="timer-placed-again", make=wheel(master_queue_offset=0), says="3 entries from 0 on"),
    Case(
        code="timercheck-beyond-queue",
        make=wheel(last_queue_offset=99, master_queue_offset=99),
        says="99",
    ),
    Case(
        code="timercheck-ahead",
        make=wheel(last_read_ms=NOW_MS + 3_600_000),
        says="3 units lie before that",
    ),
    Case(
        code="slots-beyond-reach",
        make=wheel(),
        options={"now_ms": NOW_MS + 8 * DAY_MS},
        says="3 messages",
    ),
    Case(code="open-soon", make=wheel(), options={"now_ms": NOW_MS + 6 * DAY_MS + DAY_MS // 2}),
    Case(code="open-before", make=wheel(), says="(in 7d)"),
    Case(
        code="precision-changed",
        make=wheel(),
        options=conf(timerPrecisionMs="100"),
        says="timerPrecisionMs=1000",
    ),
    Case(
        code="snapshots-left",
        says="position 52",
        make=then(wheel(), lambda root: write_wheel(root / "timerwheel.52", {})),
    ),
    Case(
        code="timer-record-missing",
        says="log offset",
        make=wheel(lambda builder: builder.records.pop(builder.queue[1].commit_log_offset)),
    ),
    Case(
        code="timer-record-missing",
        says="of topic",
        make=wheel(changed_bytes(b"rmq_sys_wheel_timer", b"another_topic_of_19")),
    ),
    Case(
        code="timer-no-destination",
        make=wheel(changed_bytes(b"REAL_QID", b"REAL_QIX")),
        says="no REAL_QID",
    ),
    Case(
        code="timer-no-destination",
        make=wheel(changed_bytes(b"REAL_TOPIC", b"REAL_TOPIX")),
        says="no REAL_TOPIC",
    ),
    Case(code="timer-bad-topic", make=wheel(changed_bytes(b"TopicA", b"Topi/A")), says="Topi/A"),
    Case(
        code="timer-no-body",
        make=wheel(lambda builder: with_body(builder, 1, b"")),
        says="1 record: timer log 52",
    ),
    Case(
        code="timer-delay-left",
        make=wheel(changed_bytes(b"UNIQ_KEY\x01K1", b"DELAY\x0100005")),
        says="DELAY=00005",
    ),
    Case(
        code="timer-out-elsewhere",
        says="in the slot of",
        make=wheel(lambda builder: builder.place(builder.put(SOON_MS), SOON_MS + 60_000)),
    ),
    Case(
        code="timer-out-missing",
        make=wheel(changed_bytes(b"TIMER_OUT_MS", b"TIMER_OUT_XX")),
        says="None",
    ),
    Case(
        code="timer-deletes",
        make=wheel(
            lambda builder: builder.place(builder.put(SOON_MS + 5000, deletes="K1"), SOON_MS + 5000)
        ),
        says="TIMER_DEL_UNIQKEY",
    ),
    Case(
        code="delete-marker-damaged",
        make=wheel(nameless_marker),
        says="1 record: queue offset 3, log offset 546 (a delete marker that names no message)",
    ),
    Case(code="timer-transaction", make=wheel(half), says="a prepared or rolled back transaction"),
    Case(code="timer-hosts", make=wheel(disguised), says="IPv4 address in the form of an IPv6 one"),
    Case(
        code="timer-too-large", make=wheel(), options=conf(maxMessageSize="10"), says="110 are read"
    ),
    Case(code="timer-properties-full", make=long_key, says="bytes of properties"),
    Case(
        code="roll-window-retention", make=wheel(), options=conf(fileReservedTime="48"), says="2d"
    ),
    Case(
        code="wheel-switched-off",
        make=wheel(),
        options=conf(timerWheelEnable="false"),
        says="3 messages wait",
    ),
    Case(code="wheel-switched-off", make=wheel(), options=conf(timerStopDequeue="true")),
    Case(code="discard-after-three", make=wheel(), options=conf(brokerName="a")),
    Case(code="recall-ignored", make=wheel(recalled), says="1 recalled message would"),
    Case(code="timermetrics-damaged", make=then(wheel(), torn("timermetrics"))),
    Case(
        code="timermetrics-unreadable",
        make=then(then(wheel(), torn("timermetrics")), torn("timermetrics.bak")),
    ),
]
"""Everything about a wheel, and what a broker's settings do to one."""

CASES = [
    case
    if "now_ms" in case.options
    else Case(
        code=case.code, make=case.make, says=case.says, options={"now_ms": NOW_MS, **case.options}
    )
    for case in CASES
]
