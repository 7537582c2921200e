# SPDX-License-Identifier: Apache-2.0
"""The records of generated messages are those that the codec of one message writes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.generate.records import Chunk
from message_store.columns.byte_column import ByteColumn
from message_store.format.message import Host, StoredMessage
from message_store.format.message_codec import body_crc, encode_message

ROWS = st.tuples(
    st.binary(max_size=200),
    st.binary(max_size=100),
    st.integers(0, 17),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 50),
)


@given(st.lists(ROWS, min_size=1, max_size=8), st.integers(0, 1 << 40), st.data())
def test_a_chunk_is_written_as_the_codec_writes_each_message(
    rows: list[tuple[bytes, bytes, int, int, int, int, int]], start: int, data: st.DataObject
) -> None:
    bodies, texts, queue_ids, offsets, born_ms, stored_ms, gaps = zip(*rows, strict=True)
    chunk = Chunk(
        queue_id=np.array(queue_ids, np.int64),
        queue_offset=np.array(offsets, np.int64),
        born_ms=np.array(born_ms, np.int64),
        stored_ms=np.array(stored_ms, np.int64),
        due_ms=np.array(stored_ms, np.int64),
        body=ByteColumn.of(bodies),
        properties_text=ByteColumn.of(texts),
    )
    sizes = chunk.record_sizes(1 << 20)
    positions = start + np.cumsum(sizes + np.array(gaps)) - sizes
    first = data.draw(st.integers(0, len(rows) - 1))
    target = np.zeros(int(positions[-1] + sizes[-1] - positions[first]), np.uint8)
    chunk.fill(slice(first, len(rows)), positions, target.ctypes.data)
    for row in range(first, len(rows)):
        begin = int(positions[row] - positions[first])
        expected = encode_message(
            StoredMessage(
                topic="SCHEDULE_TOPIC_XXXX",
                body=bodies[row],
                body_crc=body_crc(bodies[row]),
                properties_text=texts[row],
                queue_id=queue_ids[row],
                queue_offset=offsets[row],
                commit_log_offset=int(positions[row]),
                born_timestamp_ms=born_ms[row],
                born_host=Host.of("10.1.2.3", 49_152),
                store_timestamp_ms=stored_ms[row],
                store_host=Host.of("127.0.0.1", 10_911),
            )
        )
        assert target[begin : begin + sizes[row]].tobytes() == expected
        target[begin : begin + sizes[row]] = 0
    assert not target.any()
