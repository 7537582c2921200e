# SPDX-License-Identifier: Apache-2.0
"""What the properties of many messages ask for is what those of each one do."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store import AfterMs, AtLevel, AtMs, DelayLevels, Due, Message, MessageBatch
from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn
from message_store.format import properties as names
from message_store.intake.asked import STEERING, asked_by, asked_of_no_wheel, asks
from message_store.intake.asked_batch import asked_by_batch

NOW_MS = 1_793_000_000_123
LEVELS = DelayLevels.parse()
BATCHED = sorted(STEERING - {names.TIMER_DELETE_UNIQUE_KEY})

numbers = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.integers(0, 10**6).map("+{}".format),
    st.sampled_from(["", "0", "007", "9" * 18, "9" * 19, "-", "1 ", "x", "٣", "0x1F", "1e3"]),
)
properties = st.dictionaries(
    st.sampled_from([*BATCHED, names.START_DELIVER_TIME, "mine", "DELAYED", "TIMER_DELAY"]),
    numbers.filter(bool),
    max_size=4,
)


def due_ms(due: Due) -> int:
    match due:
        case AtLevel(level):
            return NOW_MS + LEVELS.delay_ms(LEVELS.clamp(level))
        case AfterMs(delay_ms):
            return NOW_MS + delay_ms
        case AtMs(time_ms):
            return time_ms


def scalar(given_: Mapping[str, str], alias: bool) -> tuple[int, bytes] | str:
    try:
        asked = asked_by(
            Message("t", b"", properties=given_), NOW_MS, start_deliver_time_alias=alias
        )
    except BadFieldError as error:
        return error.problem
    kept = [*asked.message.properties.items(), *asked.kept]
    return due_ms(asked.due), names.encode_properties(kept)


@given(rows=st.lists(properties, max_size=6), alias=st.booleans())
def test_each_row_asks_for_what_it_would_ask_for_alone(
    rows: list[dict[str, str]], alias: bool
) -> None:
    batch = MessageBatch.of([Message("t", b"", properties=row) for row in rows])
    expected = [scalar(row, alias) for row in rows]
    problems = [each for each in expected if isinstance(each, str)]
    if problems:
        with pytest.raises(BadFieldError, match=r"row \d: .* is no whole number"):
            asked_by_batch(batch, NOW_MS, LEVELS, start_deliver_time_alias=alias, keeps_times=True)
        return
    asked = asked_by_batch(batch, NOW_MS, LEVELS, start_deliver_time_alias=alias, keeps_times=True)
    found = list(zip(asked.due_ms.tolist(), asked.batch.user_properties, strict=True))
    limited = [(min(each[0], 2**62), each[1]) for each in expected if not isinstance(each, str)]
    assert [(min(due, 2**62), text) for due, text in found] == limited
    assert asked.asks.tolist() == [asks(row, start_deliver_time_alias=alias) for row in rows]
    plain = asked_by_batch(batch, NOW_MS, LEVELS, start_deliver_time_alias=alias)
    for text, row in zip(plain.batch.user_properties, rows, strict=True):
        left = [(name, value) for name, value in row.items() if name not in STEERING]
        assert text == names.encode_properties(left)


def test_of_equal_names_the_last_counts_and_all_are_taken_out() -> None:
    text = b"DELAY\x013\x02a\x01b\x02DELAY\x012\x02DELAY\x011\x02TIMER_OUT_MS\x015\x02c\x01d\x02"
    batch = MessageBatch(
        body=ByteColumn.of([b"x", b"y"]),
        topic=ByteColumn.of(["t", "t"]),
        user_properties=ByteColumn.of([text, b"a\x01b\x02"]),
    )
    asked = asked_by_batch(batch, NOW_MS, LEVELS)
    assert list(asked.batch.user_properties) == [b"a\x01b\x02c\x01d\x02", b"a\x01b\x02"]
    assert asked.due_ms.tolist() == [NOW_MS + 1_000, NOW_MS]
    assert np.flatnonzero(asked.asks).tolist() == [0]


def test_an_engine_without_a_wheel_says_why_it_takes_no_delete_marker() -> None:
    marker = {names.TIMER_DELETE_UNIQUE_KEY: "K", names.TIMER_DELAY_SEC: "5"}
    with pytest.raises(BadFieldError, match="only a wheel takes; `cancel`"):
        asked_of_no_wheel(Message("t", b"", properties=marker), NOW_MS)
    due_by_level = {**marker, names.DELAY: "2"}  # brokers read no further
    asked = asked_of_no_wheel(Message("t", b"", properties=due_by_level), NOW_MS)
    assert asked.due == AtLevel(2)
