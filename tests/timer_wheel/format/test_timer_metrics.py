# SPDX-License-Identifier: Apache-2.0
"""timermetrics: the text a broker writes, and what is no such text."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, FormatError
from timer_wheel.format.metrics import (
    TimerMetrics,
    TopicCount,
    decode_timer_metrics,
    encode_timer_metrics,
)

BROKER_TEXT = (
    '{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":1795253194091},'
    '"timingCount":{"TopicA":{"count":0,"timeStamp":1795253194091}}}'
)
METRICS = TimerMetrics({"TopicA": TopicCount(0, 1_795_253_194_091)}, 4, 0, 1_795_253_194_091)

numbers = st.integers(-(2**63), 2**63 - 1)


def test_the_text_is_what_a_broker_writes() -> None:
    assert encode_timer_metrics(METRICS) == BROKER_TEXT
    assert decode_timer_metrics(BROKER_TEXT.encode()) == METRICS


def test_only_ascii_is_written() -> None:
    text = encode_timer_metrics(TimerMetrics({"主题": TopicCount(1, 2)}))
    assert r'"\u4e3b\u9898":{"count":1' in text
    assert decode_timer_metrics(text.encode()).topics == {"主题": TopicCount(1, 2)}


@pytest.mark.parametrize("text", [b"{}", b'{"timingCount":{}}', b'{"dataVersion":{}}'])
def test_what_is_missing_is_nothing(text: bytes) -> None:
    assert decode_timer_metrics(text) == TimerMetrics({})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'{"timingCount":[]}',
        b'{"timingCount":{"A":7}}',
        b'{"timingCount":{"A":{"count":"7"}}}',
        b'{"timingCount":{"A":{"count":true}}}',
        b'{"timingCount":{"A":{"count":1.5}}}',
        b'{"dataVersion":{"counter":NaN}}',
        b'{"dataVersion":{"counter":null}}',
        BROKER_TEXT.encode() + b"}",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(BadFieldError):
        decode_timer_metrics(text)


@given(st.dictionaries(st.text(), st.builds(TopicCount, numbers, numbers)), numbers, numbers)
def test_metrics_come_back_as_they_were(
    topics: dict[str, TopicCount], counter: int, timestamp_ms: int
) -> None:
    metrics = TimerMetrics(topics, counter, 0, timestamp_ms)
    text = encode_timer_metrics(metrics)
    assert text.isascii()
    assert decode_timer_metrics(text.encode()) == metrics


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_format_error_or_nothing(content: bytes) -> None:
    with contextlib.suppress(FormatError):
        decode_timer_metrics(content)
