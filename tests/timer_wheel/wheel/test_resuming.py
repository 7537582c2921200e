# SPDX-License-Identifier: Apache-2.0
"""Where our engine goes on placing in a store that a killed broker left."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from message_store import ManualClock
from message_store.files.store_root import StoreRoot
from tests.independent.real_stores import TIMELINE_54_CRASH, TIMELINE_55_CRASH, unpack
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.reading.timeline import timeline_directory

LATER_MS = NOW_MS + 60_000


@pytest.fixture
def builder(tmp_path: Path) -> WheelStoreBuilder:
    return WheelStoreBuilder(tmp_path / "store")


def what_comes(builder: WheelStoreBuilder) -> Counter[str]:
    """The keys of what is delivered once the store was opened, after a look at what waits."""
    builder.path.joinpath("abort").touch()
    with WheelStore.open(builder.path, clock=ManualClock(NOW_MS + 2_000)) as store:
        waiting = Counter(each.unique_key or "" for each in store.pending())
        came = Counter(each.message.unique_key or "" for each in store.advance(LATER_MS + 10_000))
    assert came == waiting
    return came


@pytest.mark.parametrize("was_delivered", [False, True])
def test_what_a_broker_had_in_its_hands_without_a_unit_comes_unless_it_came(
    builder: WheelStoreBuilder, was_delivered: bool
) -> None:
    """A broker delivers what is overdue at once, from the queue, and notes its place there once a
    second; what it has placed behind it says nothing of that.
    """
    builder.put_and_place(LATER_MS, key="A")
    overdue = builder.put(NOW_MS - 5_000, key="OVERDUE", stored_ms=NOW_MS)
    builder.put_and_place(LATER_MS, key="B")
    if was_delivered:
        builder.deliver(overdue, stored_ms=NOW_MS + 1_000)
    builder.stop(last_queue_offset=1, master_queue_offset=1)
    assert what_comes(builder) == Counter("AB") + Counter(["OVERDUE"] * (not was_delivered))


def test_what_a_broker_noted_as_placed_is_not_looked_at_again(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(LATER_MS, key="A")
    builder.put(NOW_MS - 5_000, key="DROPPED", stored_ms=NOW_MS)
    builder.put_and_place(LATER_MS, key="B")
    builder.stop(last_queue_offset=2, master_queue_offset=2)
    assert what_comes(builder) == Counter("AB")


def test_a_checkpoint_behind_the_units_makes_nothing_come_twice(
    builder: WheelStoreBuilder,
) -> None:
    for key in "ABC":
        builder.put_and_place(LATER_MS, key=key)
    builder.stop(last_queue_offset=0, master_queue_offset=0)
    assert what_comes(builder) == Counter("ABC")


def test_the_place_in_the_queue_is_found_where_a_rebuilt_queue_has_moved_entries(
    builder: WheelStoreBuilder,
) -> None:
    """Their records say that they stand one farther up, or far beyond its end."""
    for key, queue_offset in (("A", 1), ("B", 2), ("C", 10_000)):
        builder.place(builder.put(LATER_MS, key=key, queue_offset=queue_offset), LATER_MS)
    builder.put(LATER_MS, key="D", queue_offset=4)
    builder.stop(last_queue_offset=3, master_queue_offset=3)
    assert what_comes(builder) == Counter("ABCD")


@pytest.mark.parametrize("name", [TIMELINE_54_CRASH, TIMELINE_55_CRASH])
@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
def test_an_engine_goes_on_where_a_timeline_was_lost_with_its_memory(
    tmp_path: Path, engine: type[WheelStore], name: str
) -> None:
    """The wheel has the delete markers of a timeline and nothing else: its last unit says nothing
    of the messages before it. The deliveries and rolls of a timeline count as those of a wheel.
    """
    real = unpack(name, tmp_path)
    shutil.rmtree(timeline_directory(StoreRoot(real.root)))
    waits = Counter(
        (line.unique_key, line.topic)
        for line in real.truth
        if line.state == "pending" and line.timer_out_ms is not None
    )
    with engine.open(real.root, clock=ManualClock(real.stopped_ms)) as store:
        assert Counter((each.unique_key, each.topic) for each in store.pending()) == waits
        came = store.advance(real.stopped_ms + 8 * 86_400_000)
        assert Counter((each.message.unique_key, each.message.topic) for each in came) == waits


def test_what_a_lost_timeline_has_put_again_comes_once(builder: WheelStoreBuilder) -> None:
    builder.put(LATER_MS, key="A")
    builder.put(LATER_MS, key="B")
    for stored_ms in (NOW_MS - 2_000, NOW_MS - 1_000):
        builder.put(LATER_MS, key="A", labelled=True, stored_ms=stored_ms)
    builder.deliver_from_timeline(1, stored_ms=NOW_MS)
    builder.stop(last_queue_offset=0, master_queue_offset=0)
    assert what_comes(builder) == Counter("A")
