# SPDX-License-Identifier: Apache-2.0
"""``config/timermetrics``: how many messages of each topic are on the wheel, as compact JSON.

A broker starts without the file, but then counts below zero as it delivers. One that cannot be
decoded, with a ``.bak`` that cannot be either, keeps a broker from starting.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from message_store.base.errors import BadFieldError

TIMER_METRICS_NAME = "timermetrics"


@attrs.frozen
class TopicCount:
    """Messages of one topic on the wheel, and when that was last true."""

    count: int
    timestamp_ms: int


@attrs.frozen
class TimerMetrics:
    """The counts by real topic, and the version of the table that they are."""

    topics: Mapping[str, TopicCount]
    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0


def encode_timer_metrics(metrics: TimerMetrics) -> str:
    r"""The text as a broker writes it: no spaces, ASCII only; topics in the order given.

    >>> encode_timer_metrics(TimerMetrics({"é": TopicCount(2, 5)}, 1, 0, 7))[60:]
    '"timingCount":{"\\u00e9":{"count":2,"timeStamp":5}}}'
    """
    table = {
        "dataVersion": {
            "counter": metrics.counter,
            "stateVersion": metrics.state_version,
            "timestamp": metrics.timestamp_ms,
        },
        "timingCount": {
            topic: {"count": known.count, "timeStamp": known.timestamp_ms}
            for topic, known in metrics.topics.items()
        },
    }
    return json.dumps(table, separators=(",", ":"))


def decode_timer_metrics(content: bytes) -> TimerMetrics:
    """The counts in a file; what is missing is 0.

    Raises BadFieldError for anything that is not such a table.
    """
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadFieldError("not JSON", path=TIMER_METRICS_NAME) from error
    table = _table(table, "the whole")
    version = _table(table.get("dataVersion", {}), "dataVersion")
    counts = _table(table.get("timingCount", {}), "timingCount")
    rows = {topic: _table(row, topic) for topic, row in counts.items()}
    return TimerMetrics(
        {
            topic: TopicCount(_number(row, "count"), _number(row, "timeStamp"))
            for topic, row in rows.items()
        },
        counter=_number(version, "counter"),
        state_version=_number(version, "stateVersion"),
        timestamp_ms=_number(version, "timestamp"),
    )


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadFieldError(f"{name} is not a table", path=TIMER_METRICS_NAME)
    return value


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadFieldError(f"{name} is not a whole number", path=TIMER_METRICS_NAME)
    return value
