# SPDX-License-Identifier: Apache-2.0
"""Keys that are used twice, and cancelled, on a wheel whose slots get other widths: what a cancel
took back, and nothing beside it, stays away.
"""

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import permutations
from pathlib import Path

import attrs
import pytest

from message_store import AtMs, Cancellation, DelayStore, ManualClock, Message, Receipt
from message_store.base.errors import SourceError, TargetError, UnsupportedStoreError
from tests.faults.broker_view import look_as_a_broker
from tests.faults.engines import SMALL, open_hierarchy
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.older_slots import MOST_WIDTHS
from timer_wheel.format.timer_log import FLAG_DELETE, TIMER_UNIT
from timer_wheel.format.wheel_math import DAY_MS, PRECISIONS_MS
from timer_wheel.timers.rows import TimerRows
from timer_wheel.timers.store import TimerStore
from timer_wheel.wheel.files import WheelFiles

START_MS = 1_793_000_000_000
QUICK = ((100, 1_000), (1_000, 100), (200, 500), (100, 1_000, 500), (200, 500, 200))
SLOW = [
    *permutations(PRECISIONS_MS, 2),
    *permutations(PRECISIONS_MS, 3),
    (100, 200, 500, 1_000, 500),
    (500, 200, 500, 200, 500),
]
WIDTHS = [
    *QUICK,
    *(pytest.param(each, marks=pytest.mark.nightly) for each in SLOW if each not in QUICK),
]
ENDS = ("closed", "killed", "killed in between", "timer log lost")


@attrs.define
class Twin:
    """A message and when it is promised for by now."""

    receipt: Receipt
    body: bytes
    promised_ms: int
    is_taken: bool = False


class History:
    """What was scheduled and taken back, by the rule: a handle takes what has its topic, key and
    slot, of the width of its day.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.twins: list[Twin] = []

    def work(self, store: WheelStore, width_ms: int) -> None:
        """Messages, most of them with a key that others have, of which some are taken back."""
        for twin in self.twins:
            twin.promised_ms += -twin.promised_ms % width_ms
        for _ in range(6):
            body, key = b"%d" % len(self.twins), self.rng.choice("KKKL")
            due_ms = START_MS + 1_000 + self.rng.randrange(2_600)
            receipt = store.schedule(Message("orders", body, unique_key=key), AtMs(due_ms))
            self.twins.append(Twin(receipt, body, receipt.promised_ms))
            if self.rng.random() < 0.5:
                self.cancel(store, self.rng.choice(self.twins))

    def cancel(self, store: WheelStore, chosen: Twin) -> None:
        """Take one back by its handle, and all that shares its slot."""
        how = chosen.receipt if chosen.is_taken else chosen.receipt.handle
        assert store.cancel(how) is Cancellation.CANCELLED
        if chosen.is_taken:
            return
        alike = [
            twin
            for twin in self.twins
            if not twin.is_taken and twin.receipt.unique_key == chosen.receipt.unique_key
        ]
        # A wheel that had this width before gave the same handle for what is in another slot now,
        # and a listing says that time of what came to that slot from another width.
        handle, said_ms = chosen.receipt.handle, chosen.receipt.promised_ms
        slots = {
            twin.promised_ms
            for twin in alike
            if twin.receipt.handle == handle or twin.promised_ms == said_ms
        }
        for twin in alike:
            twin.is_taken = twin.promised_ms in slots

    @property
    def waiting(self) -> list[Twin]:
        """What was not taken back."""
        return [twin for twin in self.twins if not twin.is_taken]


def open_with(path: Path, clock: ManualClock, width_ms: int | None) -> WheelStore:
    return WheelStore.open(
        path, clock=clock, precision_ms=width_ms, settings=SMALL, on_precision_change="rebuild"
    )


def require_waiting(store: WheelStore, history: History) -> None:
    """What waits is what should, and what was taken back is said to be."""
    found = sorted((each.commit_log_offset, each.due_ms) for each in store.pending())
    assert found == sorted(
        (twin.receipt.commit_log_offset, twin.promised_ms) for twin in history.waiting
    )
    require_taken(store, history)


def with_all_widths(
    path: Path, clock: ManualClock, history: History, widths_ms: Sequence[int]
) -> None:
    for width_ms in widths_ms:
        with open_with(path, clock, width_ms) as store:
            store.advance(START_MS)
            history.work(store, width_ms)
            require_waiting(store, history)
        view = look_as_a_broker(path, START_MS, precision_ms=width_ms)
        assert view.wrong == []


def test_a_handle_takes_no_later_message_from_before_narrower_slots(tmp_path: Path) -> None:
    """1,500 + 100 is the promise of the other, and 500 is a multiple of 100."""
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 500) as store:
        kept = store.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + 1_715))
    with open_with(tmp_path, clock, 200) as store:
        taken = store.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + 1_572))
        assert store.cancel(taken.handle) is Cancellation.CANCELLED
        assert [each.commit_log_offset for each in store.pending()] == [kept.commit_log_offset]


def test_a_handle_of_a_hierarchy_takes_no_later_message_from_before(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 500) as store:
        kept = store.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + 1_715))
    with HierarchicalWheelStore.open(tmp_path, clock=clock, precision_ms=1) as store:
        taken = store.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + 1_600))
        assert store.cancel(taken.handle) is Cancellation.CANCELLED
        assert [each.commit_log_offset for each in store.pending()] == [kept.commit_log_offset]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("widths_ms", WIDTHS)
def test_what_was_taken_back_stays_so_and_nothing_beside_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    widths_ms: tuple[int, ...],
    end: str,
    seed: int,
) -> None:
    rng, clock, path = random.Random(seed), ManualClock(START_MS), tmp_path / "store"
    history, last_ms = History(rng), widths_ms[-1]
    with_all_widths(path, clock, history, widths_ms[:-1])
    for twin in history.twins:
        twin.promised_ms += -twin.promised_ms % last_ms
    if end == "killed in between":
        stop_while_it_is_made_anew(path, clock, last_ms, rng, monkeypatch)
    store = open_with(path, clock, last_ms)
    require_waiting(store, history)
    if end == "killed":
        store.flush()
        store.abandon()
    else:
        store.close()
    view = look_as_a_broker(path, START_MS, precision_ms=last_ms)
    assert view.wrong == []
    assert Counter(view.keys) == Counter(twin.receipt.unique_key for twin in history.waiting)
    if end == "timer log lost":
        shutil.rmtree(path / "timerlog")
    with open_with(path, clock, last_ms) as store:
        require_waiting(store, history)
        came = deliver_all(store, clock)
        assert came == {twin.body: twin.promised_ms for twin in history.waiting}


@pytest.mark.parametrize("widths_ms", WIDTHS)
def test_a_hierarchical_wheel_takes_over_what_waits_and_gives_it_back(
    tmp_path: Path, widths_ms: tuple[int, ...], seed: int
) -> None:
    """It knows times to the millisecond, and not the slots by which the wheel took back."""
    history, clock, path = History(random.Random(seed)), ManualClock(START_MS), tmp_path / "store"
    with_all_widths(path, clock, history, widths_ms)
    waits = sorted(twin.receipt.commit_log_offset for twin in history.waiting)
    with open_hierarchy(path, clock) as hierarchy:
        assert sorted(each.commit_log_offset for each in hierarchy.pending()) == waits
    with open_with(path, clock, None) as store:
        assert sorted(each.commit_log_offset for each in store.pending()) == waits
        came = deliver_all(store, clock)
    assert came.keys() == {twin.body for twin in history.waiting}
    assert all(twin.receipt.promised_ms <= came[twin.body] for twin in history.waiting)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("widths_ms", WIDTHS)
def test_what_a_wheel_took_back_stays_so_however_often_the_index_is_lost(
    tmp_path: Path, widths_ms: tuple[int, ...], seed: int, *, is_killed: bool
) -> None:
    """And where the timer log is lost of the wheel that it is given back to."""
    history, clock, path = History(random.Random(seed)), ManualClock(START_MS), tmp_path / "store"
    with_all_widths(path, clock, history, widths_ms)
    waits, is_remembered = {twin.body for twin in history.waiting}, len(widths_ms) < MOST_WIDTHS
    came: Counter[bytes] = Counter()
    for number in range(3):
        store = open_fine(path, clock)
        assert bodies_of(store) == waits
        for body, key, delay_ms in (("on", "K", 1_700), ("off", "OFF", 2_600)):
            message = Message("orders", f"{body}{number}".encode(), unique_key=key)
            receipt = store.schedule(message, AtMs(START_MS + delay_ms + number))
        assert store.cancel(receipt) is Cancellation.CANCELLED
        waits |= {f"on{number}".encode()}
        clock.tick(600)
        came += Counter(each.message.body for each in store.advance(clock.now_ms()))
        waits -= came.keys()
        if is_remembered:
            require_taken(store, history)
        if is_killed:
            store.abandon()
        else:
            store.close()
        shutil.rmtree(path / "delaywheel" / "hierarchy" / "index")
    with open_with(path, clock, None) as wheel:
        assert bodies_of(wheel) == waits
        if is_remembered:
            require_taken(wheel, history)
    if is_remembered:
        shutil.rmtree(path / "timerlog")
    with open_with(path, clock, None) as wheel:
        assert bodies_of(wheel) == waits
        came += Counter(deliver_all(wheel, clock).keys())
    new = [b"on0", b"on1", b"on2"]
    assert came == Counter([*(twin.body for twin in history.waiting), *new])


def test_a_promise_to_the_millisecond_and_a_cancel_of_it_outlive_wheels_in_between(
    tmp_path: Path,
) -> None:
    """A lost timer log is made anew from records that were stored on the way."""
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 100) as wheel:
        off = wheel.schedule(Message("orders", b"off", unique_key="K"), AtMs(START_MS + 9_150))
    open_with(tmp_path, clock, 1_000).close()
    with open_fine(tmp_path, clock) as fine:
        assert fine.cancel(off) is Cancellation.CANCELLED
        fine.schedule(Message("orders", b"on", unique_key="K"), AtMs(START_MS + 9_037))
    open_with(tmp_path, clock, 1_000).close()
    open_fine(tmp_path, clock).close()
    for _ in range(2):
        with open_with(tmp_path, clock, 100) as wheel:
            assert [each.due_ms for each in wheel.pending()] == [START_MS + 9_100]
            assert bodies_of(wheel) == {b"on"}
            assert wheel.cancel(off) is Cancellation.CANCELLED
        shutil.rmtree(tmp_path / "timerlog")


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("is_kill", [False, True], ids=["full disk", "killed"])
@pytest.mark.check
def test_wherever_the_change_of_hands_stops_what_a_wheel_took_back_stays_so(
    tmp_path: Path, seed: int, *, is_kill: bool, is_back: bool
) -> None:
    """The index that is there by then is lost, and the store goes to either wheel."""
    history, then, made = History(random.Random(seed)), ManualClock(START_MS), tmp_path / "made"
    with_all_widths(made, then, history, (100, 1_000))
    waits = {twin.body for twin in history.waiting}
    if is_back:
        open_fine(made, then).close()
    for number in itertools.count():
        path, clock = tmp_path / str(number), ManualClock(START_MS)
        shutil.copytree(made, path)
        refused = Killed if is_kill else TargetError
        with full_disk(path, number, is_kill=is_kill) as disk, suppress(refused):
            (open_with(path, clock, None) if is_back else open_fine(path, clock)).abandon()
        for is_wheel in (number % 2 == 0, False):
            shutil.rmtree(path / "delaywheel" / "hierarchy" / "index", ignore_errors=True)
            opened = open_with(path, clock, None) if is_wheel else open_fine(path, clock)
            with opened as store:
                assert bodies_of(store) == waits
                require_taken(store, history)
        with open_fine(path, clock) as last:
            came = Counter(each.message.body for each in last.advance(START_MS + 60_000))
        assert came == Counter(waits)
        shutil.rmtree(path)
        if not disk.refused:
            break
    assert number > 10


@pytest.mark.parametrize("by_way_of_a_wheel", [False, True])
@pytest.mark.parametrize("place", [8, 40, 100, -1])
def test_damage_to_what_a_wheel_had_settled_is_told_and_put_right_by_way_of_a_wheel(
    tmp_path: Path, place: int, *, by_way_of_a_wheel: bool
) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 100) as wheel:
        wheel.schedule(Message("orders", b"it"), AtMs(START_MS + 1_500))
        gone = wheel.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + 1_500))
        assert wheel.cancel(gone) is Cancellation.CANCELLED
    open_fine(tmp_path, clock).close()
    home = tmp_path / "delaywheel" / "hierarchy"
    content = bytearray((home / "taken-over").read_bytes())
    content[place] ^= 4
    (home / "taken-over").write_bytes(content)
    with open_fine(tmp_path, clock) as store:
        assert bodies_of(store) == {b"it"}
        assert ["taken-over: damaged" in each.problem for each in store.check()] == [True]
    if by_way_of_a_wheel:
        open_with(tmp_path, clock, None).close()
        for _ in range(2):
            with open_fine(tmp_path, clock) as store:
                assert bodies_of(store) == {b"it"}
                assert store.check() == []
            shutil.rmtree(home / "index")
        return
    shutil.rmtree(home / "index")
    with pytest.raises(SourceError, match="taken-over: damaged"):
        open_fine(tmp_path, clock)
    (home / "taken-over").unlink()
    with open_fine(tmp_path, clock) as store:
        assert bodies_of(store) == {b"it"}


def test_a_log_that_lost_its_end_leaves_what_a_wheel_had_settled_before_it(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 100) as wheel:
        gone = wheel.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + 1_500))
    with open_with(tmp_path, clock, 1_000) as wheel:
        assert wheel.cancel(gone) is Cancellation.CANCELLED
        wheel.schedule(Message("orders", b"first"), AtMs(START_MS + 9_000))
        end = wheel.schedule(Message("orders", b"lost"), AtMs(START_MS + 9_000)).commit_log_offset
    open_fine(tmp_path, clock).close()
    (log,) = (tmp_path / "commitlog").iterdir()
    content = log.read_bytes()
    log.write_bytes(content[:end] + bytes(len(content) - end))
    (tmp_path / "delaywheel" / "queue-ends.json").unlink()  # go on without these bytes
    for number in range(3):
        with open_fine(tmp_path, clock) as store:
            assert bodies_of(store) == {b"first", *(b"new%d" % each for each in range(number))}
            assert store.cancel(gone) is Cancellation.CANCELLED
            store.schedule(Message("orders", b"new%d" % number), AtMs(START_MS + 9_000))
        shutil.rmtree(tmp_path / "delaywheel" / "hierarchy" / "index")


@pytest.mark.parametrize("to_hierarchy", [False, True])
def test_a_marker_that_lost_its_flag_takes_back_what_is_made_anew(
    tmp_path: Path, *, to_hierarchy: bool
) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 100) as wheel:
        gone, _ = (
            wheel.schedule(Message("orders", key.encode(), unique_key=key), AtMs(START_MS + 9_145))
            for key in "KL"
        )
    with open_with(tmp_path, clock, 500) as wheel:
        assert wheel.cancel(gone) is Cancellation.CANCELLED
    (log,) = (tmp_path / "timerlog").iterdir()
    content = bytearray(log.read_bytes())
    flags = 2 * TIMER_UNIT.size + TIMER_UNIT.offset_of("magic") + 3
    assert content[flags] & FLAG_DELETE
    content[flags] ^= FLAG_DELETE
    log.write_bytes(content)
    (tmp_path / "timerwheel").unlink()  # which counts markers against their targets
    opened = open_fine(tmp_path, clock) if to_hierarchy else open_with(tmp_path, clock, 1_000)
    with opened as store:
        assert bodies_of(store) == {b"L"}
        assert store.cancel(gone) is Cancellation.CANCELLED
        came = [each.message.body for each in store.advance(START_MS + 60_000)]
        assert came == [b"L"]


def test_more_changes_than_are_remembered_are_refused_while_what_is_so_old_waits(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, clock, 500) as store:
        gone, _ = (
            store.schedule(Message("orders", b"", unique_key=key), AtMs(START_MS + delay_ms))
            for key, delay_ms in (("K", 9_700), ("L", 2_300))
        )
        store.cancel(gone)
    for width_ms in (200, 500, 200, 500):
        open_with(tmp_path, clock, width_ms).close()
    with pytest.raises(UnsupportedStoreError, match="before the last 3 changes"):
        open_with(tmp_path, clock, 200)
    with open_with(tmp_path, clock, None) as store:
        clock.tick(4_000)
        assert len(store.advance(clock.now_ms())) == 1
        assert store.cancel(gone) is Cancellation.CANCELLED
    open_with(tmp_path, clock, 200).close()
    shutil.rmtree(tmp_path / "timerlog")
    with open_with(tmp_path, clock, None) as store:
        assert list(store.pending()) == []
        assert store.cancel(gone) is Cancellation.CANCELLED


def test_what_became_of_a_message_is_answered_after_any_number_of_changes(tmp_path: Path) -> None:
    """More changes than widths are remembered, while one message waits from before all of them."""
    clock = ManualClock(START_MS)

    def scheduled(store: DelayStore, key: str, delay_ms: int) -> Receipt:
        return store.schedule(Message("orders", b"", unique_key=key), AtMs(START_MS + delay_ms))

    with open_fine(tmp_path, clock) as fine:
        scheduled(fine, "W", 32_400_000)
    with open_with(tmp_path, clock, 1_000) as wheel:
        taken = [scheduled(wheel, "K", 9_437), scheduled(wheel, "L", 60_437)]
        came = [scheduled(wheel, "L", 300), scheduled(wheel, "K", 700)]
        clock.tick(2_000)
        assert len(wheel.advance(clock.now_ms())) == 2
    with open_with(tmp_path, clock, 200) as wheel:
        assert {wheel.cancel(each) for each in taken} == {Cancellation.CANCELLED}
    for _ in range(3):
        for open_one in (open_fine, partial(open_with, width_ms=1_000)):
            with open_one(tmp_path, clock) as store:
                assert [each.unique_key for each in store.pending()] == ["W"]
                assert {store.cancel(each) for each in taken} == {Cancellation.CANCELLED}
                assert {store.cancel(each) for each in came} == {Cancellation.ALREADY_DELIVERED}


@pytest.mark.parametrize("days", [2, 8])
def test_what_waits_beyond_a_round_of_finer_slots_is_not_lost(tmp_path: Path, days: int) -> None:
    """Nobody advanced the store for days, and its hand is where it was."""
    clock, finer_ms = ManualClock(START_MS), 100
    with open_with(tmp_path, clock, 1_000) as store:
        store.schedule(Message("orders", b"overdue"), AtMs(START_MS + 1_000))
        store.flush()
        clock.tick(days * DAY_MS)
        store.schedule(Message("orders", b"later"), AtMs(clock.now_ms() + 60_000))
    with pytest.raises(UnsupportedStoreError, match="advance it first"):
        open_with(tmp_path, clock, finer_ms)
    with open_with(tmp_path, clock, 1_000) as store:
        assert bodies_of(store) == {b"overdue", b"later"}
        assert len(store.advance(clock.now_ms())) == 1
    with open_with(tmp_path, clock, finer_ms) as store:
        assert bodies_of(store) == {b"later"}
        clock.tick(60_000)
        assert [each.message.body for each in store.advance(clock.now_ms())] == [b"later"]


def files_below(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def open_otherwise(path: Path, clock: ManualClock, refused_for: str) -> DelayStore:
    if refused_for == "another engine":
        return open_hierarchy(path, clock, precision_ms=200)
    return open_with(path, clock, 100 if refused_for == "finer slots" else 200)


@pytest.mark.parametrize("refused_for", ["too many changes", "finer slots", "another engine"])
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "a marker without its flag"])
def test_a_change_that_is_refused_leaves_every_byte(
    tmp_path: Path, refused_for: str, *, is_damaged: bool
) -> None:
    clock = ManualClock(START_MS)
    is_far = refused_for == "finer slots"
    changes_ms = (200, 500, 200, 500) if refused_for == "too many changes" else ()
    delay_ms = 90_000_000 if is_far else 9_145
    with open_with(tmp_path, clock, 500) as store:
        receipts = [
            store.schedule(Message("orders", key.encode(), unique_key=key), AtMs(START_MS + ms))
            for key, ms in (("K", 9_145), ("L", 9_145), ("M", delay_ms))
        ]
    for width_ms in changes_ms:
        open_with(tmp_path, clock, width_ms).close()
    with open_with(tmp_path, clock, None) as store:
        assert store.cancel(receipts[0]) is Cancellation.CANCELLED
    log = max((tmp_path / "timerlog").iterdir())
    if is_damaged:
        content = bytearray(log.read_bytes())
        flags = range(TIMER_UNIT.offset_of("magic") + 3, len(content), TIMER_UNIT.size)
        (marker,) = (place for place in flags if content[place] & FLAG_DELETE)
        content[marker] ^= FLAG_DELETE
        log.write_bytes(content)
        (tmp_path / "timerwheel").unlink()  # which counts markers against their targets
    before = files_below(tmp_path)
    with pytest.raises(
        UnsupportedStoreError, match=r"changes of prec|delivered early|promised for"
    ):
        open_otherwise(tmp_path, clock, refused_for)
    assert files_below(tmp_path) == before
    if not is_damaged:  # at the latest a turn reads the record of such a marker
        with open_with(tmp_path, clock, None) as store:
            assert bodies_of(store) == {b"L", b"M"}


@pytest.mark.parametrize("widths_ms", QUICK)
def test_a_receipt_of_a_wheel_of_any_width_is_good_for_a_hierarchical_wheel(
    tmp_path: Path, widths_ms: tuple[int, ...]
) -> None:
    clock, receipts = ManualClock(START_MS), []
    for number, width_ms in enumerate(widths_ms):
        with open_with(tmp_path, clock, width_ms) as store:
            receipts += [
                store.schedule(
                    Message("orders", b"", unique_key=f"{number}-{delay_ms}"),
                    AtMs(START_MS + delay_ms),
                )
                for delay_ms in (2_150, 2_801, 3_000)
            ]
    with open_hierarchy(tmp_path, clock) as hierarchy:
        for number, receipt in enumerate(receipts):
            asked = receipt.handle if number % 2 else receipt
            assert hierarchy.cancel(asked) is Cancellation.CANCELLED
        assert list(hierarchy.pending()) == []


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
def test_a_hierarchical_wheel_takes_over_what_a_wheel_did_not_take_back(
    tmp_path: Path, precision_ms: int
) -> None:
    """Though it was promised to the millisecond, by the hierarchical wheel before the wheel."""
    clock = ManualClock(START_MS)
    with open_hierarchy(tmp_path, clock) as first:
        one, other, waits = (
            first.schedule(Message("orders", b"", unique_key="K"), AtMs(START_MS + delay_ms))
            for delay_ms in (9_005, 9_045, 12_007)
        )
    with open_with(tmp_path, clock, precision_ms) as store:
        assert store.cancel(one) is store.cancel(other) is Cancellation.CANCELLED
    with open_hierarchy(tmp_path, clock) as last:
        (left,) = last.pending()
        assert left.commit_log_offset == waits.commit_log_offset
        assert len(last.advance(START_MS + 60_000)) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_made_anew_with_its_markers_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """As earlier versions did, whose store a broker would read so too."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    with open_with(path, clock, 100) as store:
        gone, *stay = (
            store.schedule(Message("orders", b"", unique_key=key), AtMs(START_MS + delay_ms))
            for key, delay_ms in (("K", 1_500), ("K", 1_700), ("L", 1_700))
        )
        store.cancel(gone)
    with monkeypatch.context() as patch:
        patch.setattr(
            "timer_wheel.wheel.opening._waiting",
            lambda timers: (timers.in_slots(timers.wheel.used_slots()), TimerRows.empty()),
        )
        patch.setattr("timer_wheel.wheel.opening.apply_older_markers", lambda _timers: None)
        open_with(path, clock, 1_000).close()
    assert look_as_a_broker(path, START_MS).keys == ["L"]
    for _ in range(2):
        store = open_with(path, clock, 1_000)
        found = [each.commit_log_offset for each in store.pending()]
        assert found == [each.commit_log_offset for each in stay]
        assert store.cancel(gone) is Cancellation.CANCELLED
        assert store.check() == []
        if is_killed:
            store.flush()
            store.abandon()
        else:
            store.close()
    open_with(path, clock, 1_000).close()
    assert look_as_a_broker(path, START_MS).keys == ["K", "L"]


def stop_while_it_is_made_anew(
    path: Path,
    clock: ManualClock,
    width_ms: int,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before or after the checkpoint that says where the new log begins."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WheelFiles, rng.choice(["sync_checkpoint", "forget_wheel"]), stopped)
        with pytest.raises(KeyboardInterrupt):
            open_with(path, clock, width_ms)


def open_fine(path: Path, clock: ManualClock) -> HierarchicalWheelStore:
    return HierarchicalWheelStore.open(path, clock=clock, settings=SMALL)


def bodies_of(store: TimerStore) -> set[bytes]:
    """What waits, each once."""
    log = store.live.log
    bodies = [log.record(each.commit_log_offset, each.size_bytes).body for each in store.pending()]
    assert len(bodies) == len(set(bodies))
    return set(bodies)


def require_taken(store: TimerStore, history: History) -> None:
    """What was taken back is said to be."""
    for twin in history.twins:
        if twin.is_taken:
            assert store.cancel(twin.receipt) is Cancellation.CANCELLED
    assert [each for each in store.check() if each.severity.name == "ERROR"] == []


def deliver_all(store: WheelStore, clock: ManualClock) -> dict[bytes, int]:
    """When each message came; none may come twice."""
    came: dict[bytes, int] = {}
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        for each in store.advance(clock.now_ms()):
            assert each.message.body not in came
            came[each.message.body] = clock.now_ms()
    return came
