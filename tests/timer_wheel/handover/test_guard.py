# SPDX-License-Identifier: Apache-2.0
"""A hierarchical wheel's store becomes a wheel in files: brokers are kept out until the wheel is
whole, wherever that is stopped.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message
from message_store.base.errors import TargetError, UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import hierarchy_mark
from tests.faults.broker_view import found_by_a_broker
from tests.faults.engines import SMALL, abandon, open_hierarchy, open_wheel
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import WheelStore
from timer_wheel.handover import to_wheel as handing_over
from timer_wheel.hierarchy import opening as taking_over
from timer_wheel.reading.ownership import is_guarded, read_active, release
from timer_wheel.wheel import turn
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.log import LiveTimerLog

START_MS = 1_793_000_000_000
CAME = Counter(["K0", "K1", "K2", "K3"])
WAITS = Counter(["K4", "K5", "FAR"])


def filled(path: Path, clock: ManualClock) -> None:
    """A store of which a half was delivered."""
    with open_hierarchy(path, clock) as store:
        for number in range(6):
            store.schedule(
                Message("orders", b"x", unique_key=f"K{number}"), AfterMs(1_000 * (number + 1))
            )
        store.schedule(Message("orders", b"x", unique_key="FAR"), AfterMs(60 * 3_600_000))
        clock.tick(4_000)
        came = Counter(each.message.unique_key or "" for each in store.advance(clock.now_ms()))
        assert came == CAME


def handed_over(path: Path, clock: ManualClock, *, snapshots: bool = False) -> WheelStore:
    return WheelStore.open(path, clock=clock, settings=SMALL, snapshots=snapshots)


def assert_brokers_are_kept_out_or_find_what_waits(
    path: Path, clock: ManualClock, *, snapshots: bool = False
) -> None:
    root = StoreRoot(path)
    if is_guarded(root):
        assert read_active(root) is not None, "kept out for ever"
        return
    broker = path.with_name(f"{path.name}-broker")
    shutil.copytree(path, broker)
    release(StoreRoot(broker))  # of which a broker knows nothing
    assert found_by_a_broker(broker, clock.now_ms(), snapshots_on=snapshots) == WAITS
    shutil.rmtree(broker)


def assert_what_waits_comes_once(path: Path, clock: ManualClock) -> None:
    store = handed_over(path, clock)
    assert Counter(each.unique_key for each in store.pending()) == WAITS
    assert not is_guarded(StoreRoot(path))
    store.abandon()


@pytest.mark.check
@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("is_kill", [False, True], ids=["full disk", "killed"])
def test_wherever_it_is_stopped_brokers_are_kept_out_or_find_all_that_waits(
    tmp_path: Path, is_kill: bool, snapshots: bool
) -> None:
    then = ManualClock(START_MS)
    filled(tmp_path / "store", then)
    for number in itertools.count():
        path, clock = tmp_path / str(number), ManualClock(then.now_ms())
        shutil.copytree(tmp_path / "store", path)
        refused = Killed if is_kill else TargetError
        with full_disk(path, number, is_kill=is_kill) as disk, suppress(refused):
            handed_over(path, clock, snapshots=snapshots).abandon()
        assert_brokers_are_kept_out_or_find_what_waits(path, clock, snapshots=snapshots)
        assert_what_waits_comes_once(path, clock)
        shutil.rmtree(path)
        if not disk.refused:
            break
    assert number > 10


def interrupt(*_given: object, **_named: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", ["before the first unit", "before the wheel", "before the end"])
def test_the_guard_stands_until_the_wheel_is_whole(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    filled(tmp_path / "store", clock)
    stops: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
        "before the first unit": lambda p: p.setattr(LiveTimerLog, "append", interrupt),
        "before the wheel": lambda p: p.setattr(WheelFiles, "replace_guard", interrupt),
        "before the end": lambda p: p.setattr(handing_over, "release", interrupt),
    }
    with monkeypatch.context() as patch:
        stops[step](patch)
        with pytest.raises(Killed):
            handed_over(tmp_path / "store", clock)
    assert is_guarded(StoreRoot(tmp_path / "store")) == (step != "before the end")
    assert_brokers_are_kept_out_or_find_what_waits(tmp_path / "store", clock)
    assert_what_waits_comes_once(tmp_path / "store", clock)


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_broker_finds_all_that_waits_when_it_is_done(tmp_path: Path, snapshots: bool) -> None:
    clock = ManualClock(START_MS)
    filled(tmp_path / "store", clock)
    handed_over(tmp_path / "store", clock, snapshots=snapshots).abandon()
    assert found_by_a_broker(tmp_path / "store", clock.now_ms(), snapshots_on=snapshots) == WAITS
    with handed_over(tmp_path / "store", clock, snapshots=snapshots) as store:
        store.schedule(Message("orders", b"x", unique_key="NEW"), AfterMs(9_000))
    found = found_by_a_broker(tmp_path / "store", clock.now_ms(), snapshots_on=snapshots)
    assert found == WAITS + Counter(["NEW"])


def work_as_a_broker(path: Path, clock: ManualClock) -> None:
    """Deliver for some seconds, as one that knows nothing of ``delaywheel/``: its copies name no
    record.
    """
    assert not is_guarded(StoreRoot(path)), "it would refuse to start"
    own, aside = path / "delaywheel", path.with_name(f"{path.name}-own")
    own.rename(aside)
    redeliver: Callable[..., Any] = vars(turn)["redeliver"]

    def nameless(*given: Any, **named: Any) -> Any:
        named["prepared_offsets"] = np.zeros_like(named["prepared_offsets"])
        return redeliver(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn, "redeliver", nameless)
        with handed_over(path, clock) as broker:
            clock.tick(4_000)
            assert len(broker.advance(clock.now_ms())) == 4
    shutil.rmtree(own)
    aside.rename(own)
    for name in ("queue-ends.json", "log-end"):  # older than the broker's work
        (own / name).unlink(missing_ok=True)


@pytest.mark.parametrize("then", [open_wheel, open_hierarchy], ids=["wheel", "hierarchy"])
@pytest.mark.parametrize("direction", ["to the wheel", "to the hierarchical wheel"])
def test_a_broker_that_works_after_a_stopped_handover_repeats_nothing(
    tmp_path: Path,
    direction: str,
    then: Callable[[Path, ManualClock], DelayStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark is there, and nothing keeps brokers out: the wheel in files is in force."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    is_to_wheel = direction == "to the wheel"
    before, after = (open_hierarchy, open_wheel)[:: 1 if is_to_wheel else -1]
    with before(path, clock) as store:
        for number in range(6):
            message = Message("orders", b"x", unique_key=f"K{number}")
            store.schedule(message, AfterMs(1_000 * (number + 1)))
    with monkeypatch.context() as patch:
        where = (handing_over, "release") if is_to_wheel else (taking_over, "guard")
        patch.setattr(*where, interrupt)
        with pytest.raises(Killed):
            after(path, clock)
    work_as_a_broker(path, clock)
    for _ in range(2):
        with then(path, clock) as store:
            clock.tick(20_000)
            store.advance(clock.now_ms())
            queues = store.topic("orders").ranges().items()
            read = [store.topic("orders").read(each, first, end) for each, (first, end) in queues]
            keys = Counter(message.unique_key for messages in read for message in messages)
        assert keys == Counter(f"K{number}" for number in range(6))
    assert (read_active(StoreRoot(path)) is None) == (then is open_wheel)


@pytest.mark.parametrize("is_kill", [False, True], ids=["full disk", "killed"])
def test_a_mark_that_was_lost_counts_again_when_it_is_back(tmp_path: Path, is_kill: bool) -> None:
    """Without it a wheel in files is looked for, which may be refused, or stopped anywhere."""
    then = ManualClock(START_MS)
    filled(tmp_path / "store", then)
    refused = Killed if is_kill else TargetError
    for number in itertools.count():
        path, clock = tmp_path / str(number), ManualClock(then.now_ms())
        shutil.copytree(tmp_path / "store", path)
        mark = hierarchy_mark(StoreRoot(path))
        lost = mark.read_bytes()
        mark.unlink()
        with full_disk(path, number, is_kill=is_kill) as disk, suppress(refused):
            abandon(open_hierarchy(path, clock))
        assert is_guarded(StoreRoot(path))
        mark.write_bytes(lost)
        store = open_hierarchy(path, clock)
        assert Counter(each.unique_key for each in store.pending()) == WAITS
        abandon(store)
        shutil.rmtree(path)
        if not disk.refused:
            break
    assert number > 10


def test_a_refused_width_leaves_the_guard_that_it_found(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    with open_hierarchy(path, clock, precision_ms=200) as store:
        store.schedule(Message("orders", b"x"), AfterMs(900))
    mark = hierarchy_mark(StoreRoot(path))
    lost = mark.read_bytes()
    mark.unlink()
    with pytest.raises(UnsupportedStoreError):
        open_hierarchy(path, clock, precision_ms=100)
    assert is_guarded(StoreRoot(path))
    mark.write_bytes(lost)
    with open_hierarchy(path, clock, precision_ms=200) as store:
        assert len(list(store.pending())) == 1
