# SPDX-License-Identifier: Apache-2.0
"""The kernel that fills queue entries and timer units writes what their layouts encode."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.raw_memory import address_of
from migrate.write.index_files import fill_entries, fill_units
from timer_wheel.format.timer_log import NO_POSITION, TIMER_UNIT, unit_position, units_per_file

INT32 = st.integers(-(2**31), 2**31 - 1)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**62),  # log offset
        st.integers(1, 2**31 - 1),  # size
        INT32,  # tags hash
        INT32,  # topic hash
        st.integers(0, 9),  # distance to the one before in its slot
        INT32,  # flags
        st.integers(0, 2**31 - 1),  # from writing to the slot
    ),
    max_size=30,
)


@given(ROWS, st.integers(9, 2**40), st.integers(2 * TIMER_UNIT.size, 999))
def test_units_are_what_their_layouts_encode(
    rows: list[tuple[int, ...]], first: int, file_bytes: int
) -> None:
    write_ms = 1_700_000_000_000
    offsets, sizes, tags, topics, distances, flags, delays = (
        np.array([row[at] for row in rows], kind)
        for at, kind in enumerate(["int64", "int32", "int32", "int32", "int32", "int32", "int64"])
    )
    queue = np.zeros(len(rows) * QUEUE_UNIT.size, np.uint8)
    units = np.zeros(len(rows) * TIMER_UNIT.size, np.uint8)
    fill_entries(address_of(queue), offsets, sizes, tags)
    fill_units(
        address_of(units), first, units_per_file(file_bytes), file_bytes, write_ms,
        offsets, sizes, topics, distances, flags, delays + write_ms,
    )  # fmt: skip
    entries, timers = b"", b""
    for number, (offset, size, tag, topic, distance, flag, delay_ms) in enumerate(rows, first):
        previous = unit_position(number - distance, file_bytes) if distance else NO_POSITION
        entries += QUEUE_UNIT.encode(commit_log_offset=offset, size_bytes=size, tags_code=tag)
        timers += TIMER_UNIT.encode(
            size_bytes=TIMER_UNIT.size,
            previous_position=previous,
            magic=flag,
            write_time_ms=write_ms,
            delay_ms=delay_ms,
            commit_log_offset=offset,
            record_size_bytes=size,
            topic_hash=topic,
            reserved=0,
        )
    assert (queue.tobytes(), units.tobytes()) == (entries, timers)
