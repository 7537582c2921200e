# SPDX-License-Identifier: Apache-2.0
"""A hierarchical wheel opened with another precision: refused only where a pending message would
come at another time than promised; nothing comes early, twice or never.
"""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from message_store import AtMs, Cancellation, DelayStore, ManualClock, Message, Receipt, Severity
from message_store.base.errors import UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from tests.contract.durable_store_contract import require_handles_of_one_key_apart
from tests.faults.engines import abandon, open_hierarchy, open_wheel
from tests.helpers.tiers import by_turns
from timer_wheel.format.timer_due import HIERARCHY_PRECISIONS_MS, TO_THE_MILLISECOND
from timer_wheel.format.wheel_math import PRECISIONS_MS
from timer_wheel.reading.ownership import Active, claim, index_path, read_active

START_MS = 1_793_000_000_437
DELAYS_MS = (7, 150, 963, 1_000, 2_250, 3_663, 61_002, 3_700_000)
QUICK = ((1, 1_000), (1_000, 100), (200, 500))


def close(store: DelayStore) -> None:
    store.close()


def lose_index(store: DelayStore) -> None:
    """A close, and an index that is gone afterwards: the queue has to tell everything."""
    folder = store.live.root.path  # type: ignore[attr-defined]
    store.close()
    for path in index_path(StoreRoot(folder)).iterdir():
        path.unlink()


ENDS = [close, abandon, lose_index]
Ending = Callable[[DelayStore], None]
each_change = pytest.mark.parametrize(
    ("first", "then", "end"), by_turns(permutations(HIERARCHY_PRECISIONS_MS, 2), ENDS, QUICK)
)


def put_all(store: DelayStore, name: str, now_ms: int) -> list[Receipt]:
    return [
        store.schedule(
            Message("orders", name.encode(), unique_key=f"{name}-{delay_ms}"),
            AtMs(now_ms + delay_ms),
        )
        for delay_ms in DELAYS_MS
    ]


def deliver_all(store: DelayStore, clock: ManualClock) -> dict[str, int]:
    """When each message came; none may come twice."""
    came: dict[str, int] = {}
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        for each in store.advance(clock.now_ms()):
            key = each.message.unique_key or ""
            assert key not in came
            came[key] = clock.now_ms()
    return came


def assert_kept(receipts: list[Receipt], came: dict[str, int]) -> None:
    """Each message came when its receipt says."""
    assert came == {receipt.unique_key: receipt.promised_ms for receipt in receipts}


@each_change
def test_an_empty_store_takes_any_other_precision(
    tmp_path: Path, first: int, then: int, end: Ending
) -> None:
    clock = ManualClock(START_MS)
    end(open_hierarchy(tmp_path, clock, precision_ms=first))
    store = open_hierarchy(tmp_path, clock, precision_ms=then)
    receipts = put_all(store, "then", START_MS)
    assert sorted(each.due_ms for each in store.pending()) == sorted(
        receipt.promised_ms for receipt in receipts
    )
    cancelled = receipts.pop(3)
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    end(store)
    store = open_hierarchy(tmp_path, clock, precision_ms=then)
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    assert_kept(receipts, deliver_all(store, clock))
    store.close()


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
def test_a_handle_takes_no_neighbour_of_its_key(tmp_path: Path, precision_ms: int) -> None:
    """An out time means other promises in slots of other widths. Found by random runs."""
    clock = ManualClock(START_MS)
    with open_hierarchy(tmp_path, clock, precision_ms=precision_ms) as store:
        require_handles_of_one_key_apart(store, START_MS + 9_000)


@each_change
def test_where_nothing_waits_any_precision_is_taken_and_nothing_comes_again(
    tmp_path: Path, first: int, then: int, end: Ending
) -> None:
    """Also what was cancelled does not wait, and what the first width delivered stays delivered
    where everything is to be found out from the queue with the second.
    """
    clock = ManualClock(START_MS)
    store = open_hierarchy(tmp_path, clock, precision_ms=first)
    receipts = put_all(store, "first", START_MS)
    cancelled = store.schedule(Message("orders", b"", unique_key="no"), AtMs(START_MS + 4_000_000))
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    assert_kept(receipts, deliver_all(store, clock))
    end(store)
    now_ms = clock.now_ms()
    store = open_hierarchy(tmp_path, clock, precision_ms=then)
    receipts = put_all(store, "then", now_ms)
    end(store)
    store = open_hierarchy(tmp_path, clock, precision_ms=then)
    assert_kept(receipts, deliver_all(store, clock))
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    store.close()


@each_change
def test_what_waits_comes_when_it_was_promised_or_the_change_is_refused(
    tmp_path: Path, first: int, then: int, end: Ending
) -> None:
    clock = ManualClock(START_MS)
    store = open_hierarchy(tmp_path, clock, precision_ms=first)
    receipts = put_all(store, "first", START_MS)
    end(store)
    is_refused = TO_THE_MILLISECOND not in (first, then)
    if is_refused:
        before = read_active(StoreRoot(tmp_path))
        with pytest.raises(UnsupportedStoreError, match=f"slots of {first} ms, not {then}"):
            open_hierarchy(tmp_path, clock, precision_ms=then)
        assert read_active(StoreRoot(tmp_path)) == before
        then = first
    store = open_hierarchy(tmp_path, clock, precision_ms=then)
    receipts += put_all(store, "then", START_MS)
    end(store)
    store = open_hierarchy(tmp_path, clock, precision_ms=then)
    assert_kept(receipts, deliver_all(store, clock))
    store.close()


def test_a_refused_precision_leaves_every_byte_of_a_closed_index(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_hierarchy(tmp_path, clock, precision_ms=1_000) as store:
        put_all(store, "first", START_MS)
    index = index_path(StoreRoot(tmp_path))
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    with pytest.raises(UnsupportedStoreError, match="slots of 1000 ms, not 100"):
        open_hierarchy(tmp_path, clock, precision_ms=100)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before


@pytest.mark.parametrize("claimed_ms", PRECISIONS_MS[:-1])
def test_a_width_that_was_set_before_the_index_knew_counts_for_all(
    tmp_path: Path, claimed_ms: int
) -> None:
    """As after a kill in between, and in stores that mixed the two up."""
    clock = ManualClock(START_MS)
    open_hierarchy(tmp_path, clock, precision_ms=1_000).close()
    claim(StoreRoot(tmp_path), Active(claimed_ms, claimed_ms))
    with open_hierarchy(tmp_path, clock, precision_ms=claimed_ms) as store:
        assert_kept(put_all(store, "then", START_MS), deliver_all(store, clock))


@pytest.mark.check
@pytest.mark.parametrize("end", [close, abandon])
@pytest.mark.parametrize("wheel_ms", PRECISIONS_MS)
@pytest.mark.parametrize("first", HIERARCHY_PRECISIONS_MS)
def test_a_wheel_of_any_width_takes_what_it_does_not_hurry(
    tmp_path: Path, first: int, wheel_ms: int, end: Ending
) -> None:
    clock = ManualClock(START_MS)
    store = open_hierarchy(tmp_path, clock, precision_ms=first)
    receipts = put_all(store, "first", START_MS)
    end(store)
    if wheel_ms % first:  # 500 too, where promises are for every 200 ms
        with pytest.raises(UnsupportedStoreError, match="come early"):
            open_wheel(tmp_path, clock, precision_ms=wheel_ms)
        wheel_ms = first
    store = open_wheel(tmp_path, clock, precision_ms=wheel_ms)
    came = deliver_all(store, clock)
    store.close()
    assert came.keys() == {receipt.unique_key for receipt in receipts}
    for receipt in receipts:
        assert 0 <= came[receipt.unique_key] - receipt.promised_ms < wheel_ms


@pytest.mark.check
@pytest.mark.parametrize("wheel_ms", PRECISIONS_MS)
@pytest.mark.parametrize("then", PRECISIONS_MS)
def test_a_wheel_where_nothing_waits_is_taken_over_with_any_width(
    tmp_path: Path, wheel_ms: int, then: int
) -> None:
    clock = ManualClock(START_MS)
    with open_wheel(tmp_path, clock, precision_ms=wheel_ms) as store:
        receipts = put_all(store, "first", START_MS)
        assert deliver_all(store, clock).keys() == {each.unique_key for each in receipts}
    with open_hierarchy(tmp_path, clock, precision_ms=then) as store:
        assert_kept(put_all(store, "then", clock.now_ms()), deliver_all(store, clock))


@pytest.mark.parametrize("then", PRECISIONS_MS)
def test_promises_to_the_millisecond_that_were_on_a_wheel_keep_no_width(
    tmp_path: Path, then: int
) -> None:
    clock = ManualClock(START_MS)
    with open_hierarchy(tmp_path, clock) as store:
        receipts = put_all(store, "first", START_MS)
    open_wheel(tmp_path, clock).close()
    with open_hierarchy(tmp_path, clock, precision_ms=then) as store:
        assert_kept(receipts, deliver_all(store, clock))
