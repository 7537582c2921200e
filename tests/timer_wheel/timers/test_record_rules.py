# SPDX-License-Identifier: Apache-2.0
"""Whatever an engine is given, each record of the timer topic that it writes is one that a stock
broker places and delivers: one that is not would stop the broker's wheel for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import BadFieldError, DelayStoreError
from message_store.format.message import Host
from message_store.format.properties import TIMER_TOPIC
from message_store.format.timer_record_rules import TimerFault, timer_record_faults
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from timer_wheel import HierarchicalWheelStore, WheelStore

NOW_MS = 1_700_000_000_500
READ_BYTES = (4 << 20) + 100
ENGINES = [WheelStore, HierarchicalWheelStore]

_STEERED: list[dict[str, str]] = [
    {},
    {"DELAY": "5"},
    {"DELAY": "0"},
    {"DELAY": "-1", "TIMER_DELAY_MS": "7"},
    {"TIMER_OUT_MS": "soon"},
    {"TIMER_OUT_MS": str(NOW_MS)},
    {"TIMER_DELIVER_MS": str(NOW_MS + 5000)},
    {"TIMER_DELAY_SEC": "+9"},
    {"TIMER_DELAY_MS": "60000", "TIMER_DEL_UNIQKEY": "K"},
    {"TIMER_DELAY_MS": "60000", "TIMER_DEL_UNIQKEY": "K\x02REAL_QID\x01-1"},
    {"TIMER_DELAY_MS": "60000", "REAL_QID": "-1"},
    {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX"},
    {"__CRC32#": "1"},
    {"a": "b\x02REAL_TOPIC\x01.."},
]
_TOPICS = ["orders", "%RETRY%group", "a b", "..", "rmq_sys_wheel_timer", "t" * 128]
MESSAGES = [
    *(Message("orders", b"x", properties=properties) for properties in _STEERED),
    *(Message(topic, b"x", queue_id=65_536) for topic in _TOPICS),
    *(Message(topic, b"x", tags="a\x01b") for topic in _TOPICS),
    *(Message(topic, b"x", unique_key="k k") for topic in _TOPICS),
    *(Message(topic, b"x") for topic in _TOPICS),
    Message("orders", b"x" * (4 << 20)),
    Message("orders", b"", properties={"long": "v" * 32_500}),
]


def assert_all_deliverable(live: LiveStore) -> int:
    """Hold every record of the timer topic to the rules, but for that of the body; how many there
    are. No delete marker breaks any.
    """
    queue = live.queue(TIMER_TOPIC, 0)
    units = queue.units(0, queue.max_offset)
    for unit in units:
        size_bytes = int(unit["size_bytes"])
        message = live.log.record(int(unit["commit_log_offset"]), size_bytes)
        is_marker = "TIMER_DEL_UNIQKEY" in message.properties
        faults = timer_record_faults(message, size_bytes, READ_BYTES, is_marker=is_marker)
        broken = [what for fault, what in faults if is_marker or fault is not TimerFault.NO_BODY]
        assert broken == [], message
    return len(units)


@pytest.mark.parametrize("now_ms", [NOW_MS, 5, 0])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_put_or_scheduled_is_refused_or_deliverable(
    engine: Any, now_ms: int, tmp_path: Path
) -> None:
    taken = 0
    with engine.open(tmp_path / "store", clock=ManualClock(now_ms)) as store:
        for message in MESSAGES:
            for due in (None, AfterMs(0), AfterMs(90_000)):
                try:
                    _ = store.put(message) if due is None else store.schedule(message, due)
                    taken += 1
                except DelayStoreError:
                    continue
        store.cancel(store.schedule(Message("orders", b"", unique_key="K9"), AfterMs(90_000)))
        assert assert_all_deliverable(store.live) == taken + 2 > 12


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_whose_address_brokers_cannot_store_anew_is_not_opened(
    engine: Any, tmp_path: Path
) -> None:
    settings = StoreSettings(store_host=Host.of("::ffff:10.1.2.3", 7))
    with pytest.raises(BadFieldError, match="in the form of an IPv6 one"):
        engine.open(tmp_path / "store", clock=ManualClock(NOW_MS), settings=settings)


def test_no_rule_has_a_digit_in_its_words() -> None:
    """A summary of many bad records puts N in place of every number, to count equal reasons."""
    assert [fault for fault in TimerFault if any(map(str.isdigit, fault.value))] == []
