# SPDX-License-Identifier: Apache-2.0
"""A Spark table, written as a wheel and opened by a real broker: each message once, at its time."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from migrate import register_data_sources
from migrate.spark.session import spark_session
from tests.interop.account import once, user_properties
from tests.interop.broker import FRAGMENT
from tests.interop.conftest import MakeBroker
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.stages import SMALL_FILES, now_ms

MESSAGES: Final = 600
TOPICS: Final = ("Invoices", "coupon-expire")
ROLL_WINDOW_SLOTS: Final = 10
SPREAD_MS: Final = 10_000
LEAD_MS: Final = 14_000
COLUMNS: Final = (
    "topic string, body binary, due_ms long, queue_id int, tags string, keys array<string>,"
    " unique_key string, properties map<string,string>, flag int, sys_flag int"
)

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def table_of(base_ms: int) -> list[dict[str, Any]]:
    """Overdue, due while the broker starts, due later, and beyond the roll window; some packed."""
    rows = []
    for number in range(MESSAGES):
        text = f"{number} 发票 ".encode() * (number % 30 + 1)
        is_packed = number % 10 == 0
        rows.append(
            {
                "topic": TOPICS[number % 2],
                "body": zlib.compress(text) if is_packed else text,
                "due_ms": base_ms - 5_000 + number * (SPREAD_MS + 5_000) // MESSAGES,
                "queue_id": number % 3,
                "tags": f"tag{number % 4}" if number % 4 else None,
                "keys": [f"k{number}", "all"],
                "unique_key": f"WRITTEN{number:06d}",
                "properties": {"城市": "上海", "n": str(number)} if number % 3 else {},
                "flag": number,
                "sys_flag": int(is_packed),
            }
        )
    return rows


@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.interop(version)) for version in (NEWEST, LAST)],
)
def test_a_written_wheel_is_served_by_a_broker(
    version: str, make_broker: MakeBroker, scratch: Path
) -> None:
    target = scratch / f"written-{version}"
    with spark_session("local[2,4]") as spark:
        register_data_sources(spark)
        spark.range(1).count()  # the first job takes its time, which is not to make all overdue
        written_ms = now_ms()
        rows = table_of(written_ms + LEAD_MS)
        frame = spark.createDataFrame([tuple(row.values()) for row in rows], COLUMNS)
        writing = frame.repartition(4).write.format("rocketmq_wheel").mode("append")
        # a write that takes its time on a busy machine places by the same now
        options = {**SMALL_FILES, "timerRollWindowSlot": ROLL_WINDOW_SLOTS, "now": written_ms}
        writing.options(**options).save(str(target))  # type: ignore[arg-type]
    assert (target / FRAGMENT).is_file()
    broker = make_broker(version, target, settings={"autoCreateTopicEnable": "false"})
    judge = Judge(broker, scratch / f"judge-{version}")
    with (
        broker,
        judge.consume(TOPICS, "readers", expect=MESSAGES, deadline_s=180, settle_s=3) as consumer,
    ):
        received = once(consumer.wait())
    by_key = {row["unique_key"]: row for row in rows}
    assert Counter(each.unique_key for each in received) == dict.fromkeys(by_key, 1)
    for each in received:
        row = by_key[each.unique_key or ""]
        body = zlib.decompress(row["body"]) if row["sys_flag"] else row["body"]
        assert (each.topic, each.queue_id) == (row["topic"], row["queue_id"])
        assert (each.tags, each.keys) == (row["tags"], " ".join(row["keys"]))
        assert each.body_sha1 == hashlib.sha1(body).hexdigest()
        assert user_properties(each.properties) == row["properties"]
        assert each.stored_ms >= row["due_ms"]
    assert sum("TIMER_ROLL_TIMES" in each.properties for each in received) > 0
