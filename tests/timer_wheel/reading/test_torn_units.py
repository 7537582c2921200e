# SPDX-License-Identifier: Apache-2.0
"""A loss of power left only the first bytes of a timer log unit. A broker takes what is left for a
unit, finds no record by it, and places the queue again: nothing is lost to it, and readers and the
engine must see the same.
"""

from collections import Counter
from pathlib import Path

import pytest

from message_store import AfterMs, ManualClock, Message
from tests.faults.broker_view import look_as_a_broker
from tests.faults.damage import copy_store
from tests.faults.engines import abandon, open_wheel
from tests.faults.store_reading import delivered
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder
from timer_wheel import read_wheel_store
from timer_wheel.format.timer_log import TIMER_UNIT

LEFT_BYTES = range(0, TIMER_UNIT.size + 1, 4)
"""Units and files have lengths that are multiples of four, so that a sector ends nowhere else."""
START_MS = 1_793_000_000_000


def test_each_message_is_found_once_however_much_is_left_of_the_last_unit(tmp_path: Path) -> None:
    for placed in range(3):
        for left_bytes in LEFT_BYTES:
            builder = WheelStoreBuilder(tmp_path / f"{placed}-{left_bytes}")
            for ahead_s in range(1, 4):
                builder.put(NOW_MS + ahead_s * 1_000)
            for number in range(placed):
                builder.place(number, NOW_MS + (number + 1) * 1_000)
            known = builder.remembered()
            begin = builder.place(placed, NOW_MS + (placed + 1) * 1_000)
            builder.log = builder.log[: begin + left_bytes].ljust(len(builder.log), b"\0")
            root = builder.stop(
                slots=known,
                flush_position=begin,
                last_queue_offset=placed,
                master_queue_offset=placed,
            )
            state = read_wheel_store(root, now_ms=NOW_MS, after_crash=True)
            whole = state.pending.size_bytes > 0  # what leads to no byte delivers nothing
            offsets = state.pending.commit_log_offset[whole].tolist()
            wanted = [each.commit_log_offset for each in builder.queue]
            assert sorted(offsets) == wanted, (placed, left_bytes)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A wheel that was killed when its messages had units of which no checkpoint knows."""
    clock = ManualClock(START_MS)
    store = open_wheel(tmp_path / "killed", clock)
    for number in range(3):
        store.schedule(Message("orders", b"", unique_key=f"K{number}"), AfterMs(9_000))
    store.advance(START_MS)
    abandon(store)
    return tmp_path / "killed"


def test_reader_and_engine_agree_about_what_power_left_of_a_unit(
    tmp_path: Path, killed: Path
) -> None:
    [name] = [each.name for each in (killed / "timerlog").iterdir()]
    units = (killed / "timerlog" / name).read_bytes()
    wanted = Counter(f"K{number}" for number in range(3))
    for left_bytes in LEFT_BYTES:
        path = tmp_path / str(left_bytes)
        copy_store(killed, path)
        (path / "timerlog" / name).write_bytes(units[:left_bytes].ljust(len(units), b"\0"))
        view = look_as_a_broker(path, START_MS, recovers_queues=True)
        assert Counter(filter(None, view.keys)) == wanted, left_bytes
        with open_wheel(path, ManualClock(START_MS)) as store:
            assert Counter(each.unique_key for each in store.pending()) == wanted, left_bytes
            store.advance(START_MS + 20_000)
        assert Counter(each.name for each in delivered(path)) == wanted, left_bytes
