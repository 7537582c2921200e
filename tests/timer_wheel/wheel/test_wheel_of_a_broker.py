# SPDX-License-Identifier: Apache-2.0
"""A wheel that a real broker left, opened for writing: what waits, what comes, what stays."""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from message_store import Cancellation, ManualClock, Severity
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from message_store.format.recall_handle import RecallHandle
from message_store.writing.settings import StoreSettings
from tests.faults.damage import copy_store
from tests.faults.test_whole_files_lost import destroy
from tests.helpers.tiers import with_examples
from tests.independent.raw_files import read_timer_check
from tests.independent.real_stores import WHEEL_55_CLEAN, WHEEL_551_POP, RealStore, unpack
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import HierarchicalWheelStore, WheelStore, read_wheel_store

DAY_MS = 86_400_000
Row = tuple[str | None, str, int]


@pytest.fixture
def real(tmp_path: Path) -> RealStore:
    return unpack(WHEEL_55_CLEAN, tmp_path)


@pytest.fixture
def store(real: RealStore) -> Iterator[WheelStore]:
    with WheelStore.open(real.root, clock=ManualClock(real.stopped_ms)) as store:
        yield store


def truth(real: RealStore, state: str) -> Counter[Row]:
    return Counter(
        (line.unique_key, line.topic, line.timer_out_ms + 1000)
        for line in real.truth
        if line.state == state and line.timer_out_ms is not None
    )


def test_what_waits_is_the_truth(real: RealStore, store: WheelStore) -> None:
    found = Counter((each.unique_key, each.topic, each.due_ms) for each in store.pending())
    assert found == truth(real, "pending")


@pytest.mark.check
def test_what_waits_comes_once_and_in_time_over_seven_days(
    real: RealStore, store: WheelStore
) -> None:
    found: Counter[Row] = Counter()
    clock = store.live.clock
    assert isinstance(clock, ManualClock)
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(next_ms - clock.now_ms(), 0))
        now_ms = clock.now_ms()
        for each in store.advance(now_ms):
            assert now_ms - 2 * DAY_MS < each.promised_ms <= now_ms
            found[each.message.unique_key, each.message.topic, each.promised_ms] += 1
    assert found == truth(real, "pending")
    assert list(store.pending()) == []


def test_what_was_recalled_stays_recalled(real: RealStore, store: WheelStore) -> None:
    broker_name = store.live.settings.broker_name
    for unique_key, topic, promised_ms in truth(real, "recalled"):
        assert unique_key is not None
        handle = RecallHandle(topic, broker_name, promised_ms, unique_key)
        assert store.cancel(handle.text()) is Cancellation.CANCELLED


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
def test_a_message_of_the_broker_can_be_recalled(real: RealStore, engine: Any) -> None:
    with engine.open(real.root, clock=ManualClock(real.stopped_ms)) as store:
        before = sorted(store.pending(), key=lambda each: each.commit_log_offset)
        broker_name = store.live.settings.broker_name
        for number, each in enumerate(before[::50]):
            out_ms = each.due_ms - 1000
            due_ms = out_ms + 1 if number % 2 else each.due_ms  # as a broker says it, or we
            handle = RecallHandle(each.topic, broker_name, due_ms, each.unique_key)
            for _ in range(2):
                assert store.cancel(handle.text()) is Cancellation.CANCELLED
        assert len(list(store.pending())) == len(before) - len(before[::50])


@pytest.mark.parametrize("lost", ["first file", "second half"])
def test_a_timer_queue_that_is_lost_is_made_again_from_the_log(real: RealStore, lost: str) -> None:
    queue = real.root / "consumequeue" / "rmq_sys_wheel_timer" / "0"
    first, last = sorted(queue.iterdir())
    if lost == "first file":
        first.unlink()
    else:
        last.write_bytes(bytes(last.stat().st_size))
        half = first.stat().st_size // 40 * 20
        first.write_bytes(first.read_bytes()[:half] + bytes(first.stat().st_size - half))
    with WheelStore.open(real.root, clock=ManualClock(real.stopped_ms)) as store:
        found = Counter((each.unique_key, each.topic, each.due_ms) for each in store.pending())
        assert found == truth(real, "pending")
        told = [] if lost == "first file" else ["consumequeue"]
        assert [each.where for each in store.check()] == told


@pytest.mark.parametrize(
    ("name", "kind", "lost", "is_killed"),
    with_examples(
        itertools.product(
            [WHEEL_55_CLEAN, WHEEL_551_POP], ["gone", "zero"], range(3), [False, True]
        ),
        [
            (WHEEL_55_CLEAN, "gone", 0, False),
            (WHEEL_55_CLEAN, "zero", 1, True),
            (WHEEL_551_POP, "zero", 0, True),
            (WHEEL_551_POP, "gone", 2, False),
        ],
    ),
)
def test_a_timer_log_that_lost_a_file_hides_and_repeats_nothing(
    tmp_path: Path, name: str, kind: str, lost: int, is_killed: bool
) -> None:
    """The queue and the log have what its units were made from."""
    found = unpack(name, tmp_path / "store")
    files = sorted((found.root / "timerlog").iterdir())
    with WheelStore.open(unpack(name, tmp_path / "whole").root, clock=clock_of(found)) as whole:
        waits = Counter(each.unique_key for each in whole.pending())
    file = files[: lost + 1][-1]
    destroy(file, kind)
    if is_killed:
        (found.root / "abort").touch()
    how: dict[str, Any] = {"now_ms": found.stopped_ms, "after_crash": is_killed}
    state = read_wheel_store(StoreRoot(found.root), **how)
    is_whole = len(state.pending) == sum(waits.values())
    # Of a killed broker's last file a loss of power may leave zeros; then it passes those over.
    assert state.doubts or is_whole or (is_killed and kind == "zero" and file == files[-1])
    if kind == "gone" and file not in (files[0], files[-1]):
        with pytest.raises(SourceError, match="this file is missing"):
            WheelStore.open(found.root, clock=clock_of(found))
        file.write_bytes(bytes(files[0].stat().st_size))
    with WheelStore.open(found.root, clock=clock_of(found)) as store:
        assert Counter(each.unique_key for each in store.pending()) == waits
        assert [each for each in store.check() if each.severity is Severity.ERROR] == []


@pytest.mark.check
def test_a_stop_while_all_is_placed_again_repeats_nothing_of_before(tmp_path: Path) -> None:
    """Also by an engine that repeats what it delivered since its last flush, as brokers do."""
    found = unpack(WHEEL_551_POP, tmp_path / "store")
    with WheelStore.open(unpack(WHEEL_551_POP, tmp_path / "whole").root, clock=clock_of(found)) as (
        whole
    ):
        waits = Counter(each.unique_key for each in whole.pending())
    min((found.root / "timerlog").iterdir()).unlink()
    settings = StoreSettings(repeat_after_kill=True)
    for number in itertools.count(0, 5):
        path = tmp_path / str(number)
        copy_store(found.root, path)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            WheelStore.open(path, clock=clock_of(found), settings=settings).abandon()
        store = WheelStore.open(path, clock=clock_of(found), settings=settings)
        assert Counter(each.unique_key for each in store.pending()) == waits, number
        store.abandon()
        if not disk.refused:
            break
    assert number > 10


def clock_of(real: RealStore) -> ManualClock:
    return ManualClock(real.stopped_ms)


def test_nothing_is_wrong_with_it(store: WheelStore) -> None:
    assert store.check() == []


def test_a_broker_finds_the_same_after_us(real: RealStore) -> None:
    before = read_wheel_store(StoreRoot(real.root), now_ms=real.stopped_ms)
    WheelStore.open(real.root, clock=ManualClock(real.stopped_ms)).close()
    after = read_wheel_store(StoreRoot(real.root), now_ms=real.stopped_ms)
    assert sorted(after.pending.commit_log_offset) == sorted(before.pending.commit_log_offset)
    assert after.resume_queue_offset == before.resume_queue_offset
    check = read_timer_check(real.root / "config" / "timercheck")
    assert check.last_read_time_ms == before.checkpoint.last_read_time_ms
