# SPDX-License-Identifier: Apache-2.0
"""The JSON files under config/ as the text each broker version writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Dialect = Literal["4.9", "5.3", "5.4", "5.5"]

CONFIG_TIMESTAMP_MS = 1_700_000_000_123


def to_fastjson(value: Any, dialect: Dialect, depth: int = 0) -> str:
    """Pretty text: tabs, whole-number keys unquoted (before 5.4 a map of these on one line)."""
    if isinstance(value, Mapping):
        return _map_text(value, dialect, depth)
    if isinstance(value, list):
        lines = ",".join(_line(to_fastjson(entry, dialect, depth + 1), depth) for entry in value)
        return f"[{lines}{_end(depth)}]" if value else "[]"
    return json.dumps(value, ensure_ascii=False)


def _map_text(value: Mapping[Any, Any], dialect: Dialect, depth: int) -> str:
    if not value:
        return "{" + _line("", depth) + _end(depth) + "}" if dialect == "5.4" else "{}"
    entries = [
        f"{key if isinstance(key, int) else json.dumps(key, ensure_ascii=False)}"
        f":{to_fastjson(entry, dialect, depth + 1)}"
        for key, entry in value.items()
    ]
    if dialect in ("4.9", "5.3") and all(isinstance(key, int) for key in value):
        return "{" + ",".join(entries) + _end(depth) + "}"
    return "{" + ",".join(_line(entry, depth) for entry in entries) + _end(depth) + "}"


def _line(text: str, depth: int) -> str:
    return "\n" + "\t" * (depth + 1) + text


def _end(depth: int) -> str:
    return "\n" + "\t" * depth


def _data_version(dialect: Dialect) -> dict[str, Any]:
    if dialect == "4.9":
        return {"counter": 1, "timestamp": CONFIG_TIMESTAMP_MS}
    return {"counter": 1, "stateVersion": 0, "timestamp": CONFIG_TIMESTAMP_MS}


def delay_offset_text(offsets: Mapping[int, int], dialect: Dialect) -> str:
    """delayOffset.json: level to the next queue index to look at."""
    table: dict[str, Any] = {"offsetTable": dict(offsets)}
    if dialect != "4.9":
        table = {"dataVersion": _data_version(dialect)} | table
    return to_fastjson(table, dialect)


def topics_text(queue_counts: Mapping[str, int], dialect: Dialect) -> str:
    """topics.json: topic to its number of read and write queues."""
    topics = {}
    for name, count in queue_counts.items():
        entry: dict[str, Any] = {} if dialect == "4.9" else {"attributes": {}}
        topics[name] = entry | {
            "order": False,
            "perm": 6,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
    return to_fastjson({"dataVersion": _data_version(dialect), "topicConfigTable": topics}, dialect)


def consumer_offset_text(offsets: Mapping[str, Mapping[int, int]], dialect: Dialect) -> str:
    """consumerOffset.json: "topic@group" to queue id to consumed offset."""
    table: dict[str, Any] = {"offsetTable": {key: dict(row) for key, row in offsets.items()}}
    if dialect != "4.9":
        table = {"dataVersion": _data_version(dialect)} | table
    return to_fastjson(table, dialect)


def subscription_group_text(groups: list[str], dialect: Dialect) -> str:
    """subscriptionGroup.json with the default settings of each group."""
    table = {}
    for name in groups:
        entry: dict[str, Any] = {} if dialect == "4.9" else {"attributes": {}}
        entry |= {"brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True}
        entry |= {"consumeFromMinEnable": True}
        if dialect != "4.9":
            entry |= {"consumeMessageOrderly": False, "consumeTimeoutMinute": 15}
        entry |= {"groupName": name}
        if dialect != "4.9":
            entry |= {"groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0}
        table[name] = entry | {
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": 16,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
    whole: dict[str, Any] = {"dataVersion": _data_version(dialect)}
    if dialect != "4.9":
        whole |= {"forbiddenTable": {}}
    return to_fastjson(whole | {"subscriptionGroupTable": table}, dialect)


def write_config(
    directory: Path,
    queue_lengths: Mapping[tuple[str, int], int],
    *,
    dialect: Dialect,
    level_count: int,
    topics: Mapping[str, int] | None,
    consumer_offsets: Mapping[str, Mapping[int, int]] | None,
    groups: Sequence[str] | None,
) -> None:
    """topics.json, consumerOffset.json, subscriptionGroup.json for these real queues.

    What is None follows from the queues: 4 queues a topic (1 for %RETRY%), more where more are
    used; everything delivered is consumed by `group_a`, and %RETRY%g by g.
    """
    counts: dict[str, int] = {}
    consumed: dict[str, dict[int, int]] = {}
    for (topic, queue_id), length in queue_lengths.items():
        least = 1 if topic.startswith("%RETRY%") else 4
        counts[topic] = max(counts.get(topic, least), queue_id + 1)
        group = topic.removeprefix("%RETRY%") if topic.startswith("%RETRY%") else "group_a"
        consumed.setdefault(f"{topic}@{group}", {})[queue_id] = length
    if topics is None:
        topics = counts
    if consumer_offsets is None:
        consumer_offsets = consumed
    if groups is None:
        groups = sorted({key.partition("@")[2] for key in consumer_offsets})
    directory.mkdir(parents=True)
    queue_counts = {"SCHEDULE_TOPIC_XXXX": level_count} | dict(topics)
    for name, text in [
        ("topics.json", topics_text(queue_counts, dialect)),
        ("consumerOffset.json", consumer_offset_text(consumer_offsets, dialect)),
        ("subscriptionGroup.json", subscription_group_text(list(groups), dialect)),
    ]:
        (directory / name).write_text(text, encoding="utf-8")
