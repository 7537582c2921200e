# SPDX-License-Identifier: Apache-2.0
"""What a converted store must tell a broker about its topics, groups and counts."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.independent.raw_files import read_config
from tests.independent.raw_records import RawRecord

DEFAULT_QUEUE_COUNT = 16
CONFIG_FILES = ["timermetrics", "topics.json", "consumerOffset.json", "subscriptionGroup.json"]


def check_config(path: Path, records: Sequence[RawRecord], source: Path | None) -> Iterator[str]:
    """Problems of timermetrics, topics.json, consumerOffset.json and subscriptionGroup.json."""
    queue_counts: dict[str, int] = {}
    for record in records:
        topic = record.effective.get("REAL_TOPIC", "")
        queue_id = record.effective.get("REAL_QID", "")
        least = int(queue_id) + 1 if queue_id.isdigit() else 1
        queue_counts[topic] = max(queue_counts.get(topic, 1), least)
    for name in CONFIG_FILES:
        try:
            read_config(path, name)
        except ValueError as error:
            yield f"{name}: cannot be read: {error}"
    yield from _metrics_problems(path, records)
    yield from _topic_problems(path, queue_counts)
    yield from _offset_problems(path, queue_counts, source)
    if source is not None:
        yield from _group_problems(path, source)


def _table(path: Path, file: str, key: str) -> dict[str, Any]:
    try:
        found = read_config(path, file)
    except ValueError:
        return {}
    table = found.get(key) if isinstance(found, dict) else None
    return table if isinstance(table, dict) else {}


def _metrics_problems(path: Path, records: Sequence[RawRecord]) -> Iterator[str]:
    if not _table(path, "timermetrics", "dataVersion"):
        yield "timermetrics: absent, or without dataVersion"
        return
    counts = {
        topic: entry.get("count") if isinstance(entry, dict) else entry
        for topic, entry in _table(path, "timermetrics", "timingCount").items()
    }
    right = collections.Counter(record.effective.get("REAL_TOPIC", "") for record in records)
    if counts != dict(right):
        yield f"timermetrics: counts {counts} instead of {dict(right)}"


def _topic_problems(path: Path, queue_counts: dict[str, int]) -> Iterator[str]:
    table = _table(path, "topics.json", "topicConfigTable")
    for topic, least in sorted(queue_counts.items()):
        entry = table.get(topic)
        if entry is None:
            yield f"topics.json: {topic} is absent"
            continue
        if entry.get("topicName") != topic:
            yield f"topics.json: {topic} is named {entry.get('topicName')}"
        for name in ("readQueueNums", "writeQueueNums"):
            if entry.get(name, DEFAULT_QUEUE_COUNT) < least:
                yield f"topics.json: {topic} has {name} {entry.get(name)}, {least} are used"


def _offset_problems(
    path: Path, queue_counts: dict[str, int], source: Path | None
) -> Iterator[str]:
    """Every group starts at 0 in every queue of a topic it is known on."""
    found = _table(path, "consumerOffset.json", "offsetTable")
    for key, offsets in sorted(found.items()):
        if any(offsets.values()):
            yield f"consumerOffset.json: {key} starts at {offsets}"
    if source is None:
        return
    topics = _table(path, "topics.json", "topicConfigTable")
    for key in sorted(_table(source, "consumerOffset.json", "offsetTable")):
        topic = key.partition("@")[0]
        if topic not in queue_counts:
            continue
        count = topics.get(topic, {}).get("readQueueNums", DEFAULT_QUEUE_COUNT)
        missing = {str(queue_id) for queue_id in range(count)} - found.get(key, {}).keys()
        if missing:
            yield f"consumerOffset.json: {key} has no 0 for queues {sorted(missing)}"


def _group_problems(path: Path, source: Path) -> Iterator[str]:
    key = "subscriptionGroupTable"
    missing = (
        _table(source, "subscriptionGroup.json", key).keys()
        - _table(path, "subscriptionGroup.json", key).keys()
    )
    if missing:
        yield f"subscriptionGroup.json: {sorted(missing)} are absent"
