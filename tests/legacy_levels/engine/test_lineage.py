# SPDX-License-Identifier: Apache-2.0
"""Which of many equal messages was delivered before a kill: each delivery names its record, and the
copies of a broker, or of an earlier version, are counted.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legacy_levels import LevelRules, LevelStore
from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.engine.rules import LevelTimings
from message_store import AfterMs, AtMs, ManualClock, Message
from tests.independent.level_store_builder import DeliveredCopy, LevelMessage, build_level_store
from tests.independent.raw_files import commit_log_records
from tests.independent.raw_records import SCHEDULE_TOPIC
from tests.legacy_levels.level_stores import START_MS, Bench, deliveries_without_names
from tests.simulation.simulated_disk import Killed, full_disk

HOUR_MS = 3_600_000
TWIN = Message("TopicA", b"equal", unique_key="TWIN")
"""Equal in topic, body, key and time of birth: only the log can tell one from another."""


def in_levels_and_named(root: Path) -> tuple[set[int], Counter[int]]:
    """Where records wait that were stored for a level, and which places are named how often."""
    waiting, named = set(), Counter[int]()
    for placed in commit_log_records(root / "commitlog"):
        if placed.record.topic == SCHEDULE_TOPIC:
            waiting.add(placed.commit_log_offset)
        else:
            named[~placed.record.prepared_transaction_offset] += 1
    return waiting, named


def assert_known_exactly(bench: Bench, folder: Path, *, whole_log: bool = False) -> None:
    """Reader and engine say that those wait which nothing names; then each is delivered once."""
    stored, named = in_levels_and_named(bench.root)
    waits = sorted(stored - named.keys())
    backlog = read_backlog(bench.root, after_crash=True, whole_log=whole_log)
    assert backlog.commit_log_offset.tolist() == waits
    copy = Bench(folder / "copy", ManualClock(bench.clock.now_ms()))
    shutil.rmtree(copy.root, ignore_errors=True)
    shutil.copytree(bench.root, copy.root)
    with copy.open() as store:
        assert sorted(each.commit_log_offset for each in store.pending()) == waits
        copy.advance(store, 3 * HOUR_MS)
    assert in_levels_and_named(copy.root) == (stored, Counter(dict.fromkeys(stored, 1)))


def _waiting(number: int, **fields: object) -> LevelMessage:
    given: dict[str, object] = {"store_timestamp_ms": START_MS, "body": b"body %d" % number}
    return LevelMessage(**(given | fields))  # type: ignore[arg-type]


# --- killed at each write -------------------------------------------------------------------------


def _stored_twins(root: Path) -> Bench:
    """Nine equal messages: in turn, out of turn, in two levels; offsets are saved each second."""
    bench = Bench(root)
    store = _opened(bench)
    for _ in range(3):
        store.schedule(TWIN, AfterMs(1_000))
        store.schedule(TWIN, AtMs(0))
        store.schedule(TWIN, AfterMs(5_000))
    store.flush()
    store.abandon()
    return bench


def _opened(bench: Bench) -> LevelStore:
    return bench.open(rules=LevelRules(timings=LevelTimings(persist_offsets_ms=1_000)))


def _deliver_some(bench: Bench) -> None:
    store = _opened(bench)
    try:
        for step_ms in (0, 0, 600, 500):
            bench.advance(store, step_ms)
        store.schedule(TWIN, AfterMs(1_000))
        store.schedule(TWIN, AtMs(0))
        bench.advance(store)
        store.flush()
        bench.advance(store, 1_000)
        store.close()
    except Killed:
        store.abandon()


def _each_kill(folder: Path, prepared: Bench, do: Callable[[Bench], None]) -> list[Bench]:
    """The stores that a kill before each of its changes leaves, one after the other."""
    benches = []
    for number in range(1_000):
        bench = Bench(folder / str(number), ManualClock(prepared.clock.now_ms()))
        shutil.copytree(prepared.root, bench.root)
        with full_disk(bench.root, number, is_kill=True) as disk, suppress(Killed):
            do(bench)
        benches.append(bench)
        if not disk.refused:
            return benches
    raise AssertionError("it has no end")


@pytest.mark.check
def test_which_of_equal_messages_was_delivered_is_known_whichever_write_a_kill_comes_before(
    tmp_path: Path,
) -> None:
    prepared = _stored_twins(tmp_path / "store")
    benches = _each_kill(tmp_path, prepared, _deliver_some)
    assert len(benches) > 50
    for bench in benches:
        assert_known_exactly(bench, tmp_path)


def test_which_of_equal_messages_was_delivered_is_known_before_any_offset_is_saved(
    tmp_path: Path,
) -> None:
    bench = _stored_twins(tmp_path / "store")
    store = bench.open()
    assert len(bench.advance(store)) == 3
    store.schedule(TWIN, AtMs(0))
    assert len(bench.advance(store, 1_500)) == 4
    store.abandon()
    assert_known_exactly(bench, tmp_path)


@pytest.mark.parametrize("is_async", [False, True])
def test_every_delivery_names_its_record(tmp_path: Path, is_async: bool) -> None:
    bench = Bench(tmp_path / "store")
    with bench.open(rules=LevelRules(async_delivery=is_async)) as store:
        for number in range(12):
            store.schedule(Message("Topic" + "A" * (number % 3), b"", queue_id=number), AtMs(0))
        bench.advance(store)
    stored, named = in_levels_and_named(bench.root)
    assert len(stored) == 12
    assert named == Counter(dict.fromkeys(stored, 1))


@pytest.mark.check
@given(
    seed=st.integers(0, 2**32),
    delays_ms=st.lists(st.sampled_from([0, 1_000, 5_000, 10_000]), min_size=1, max_size=12),
    steps_ms=st.lists(st.sampled_from([0, 600, 1_000, 4_000, -2_000]), max_size=8),
)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_killed_store_of_equal_messages_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, seed: int, delays_ms: list[int], steps_ms: list[int]
) -> None:
    """Time runs ahead and back, offsets are saved or not, and each message is itself."""
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("twins")
    bench = Bench(folder / "store")
    store = _opened(bench)
    for delay_ms in delays_ms:
        store.schedule(TWIN, AtMs(0) if delay_ms == 0 else AfterMs(delay_ms))
    for step_ms in steps_ms:
        bench.advance(store, step_ms)
        store.schedule(TWIN, AfterMs(chance.choice([0, 1_000, 5_000])))
        store.advance(bench.clock.now_ms() + chance.choice([0, 0, 3_000]))
        if chance.random() < 0.2:
            store.flush()
        if chance.random() < 0.2:
            store.abandon()
            store = _opened(bench)
    store.abandon()
    assert_known_exactly(bench, folder)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_queue_that_is_made_anew_repeats_nothing_that_was_delivered_out_of_turn(
    tmp_path: Path, how: str
) -> None:
    """Its entries said so; now only the log does, far in front of the last mark."""
    bench = Bench(tmp_path / "store")
    store = bench.open()
    for due in (AfterMs(1_000), AtMs(0), AfterMs(1_000), AtMs(0)):
        store.schedule(TWIN, due)
    assert len(bench.advance(store)) == 2
    store.close()
    store = bench.open()
    store.schedule(TWIN, AtMs(0))
    store.flush()
    store.close() if how == "closed" else store.abandon()
    shutil.rmtree(bench.root / "consumequeue" / SCHEDULE_TOPIC)
    assert_known_exactly(bench, tmp_path, whole_log=True)


# --- copies without a name ------------------------------------------------------------------------


def _left_without_names(root: Path) -> Bench:
    """Killed with deliveries that nobody has noted and no copy names, out of turn among them."""
    bench = _stored_twins(root)
    with deliveries_without_names():
        store = bench.open()
        assert len(bench.advance(store)) == 3
        store.abandon()
    return bench


def test_what_an_earlier_version_delivered_is_counted_beside_what_is_named(tmp_path: Path) -> None:
    bench = _left_without_names(tmp_path / "store")
    store = bench.open()
    assert store.state.already_delivered == 3
    store.schedule(TWIN, AtMs(0))
    assert len(bench.advance(store)) == 1
    store.abandon()
    with deliveries_without_names():
        store = bench.open()
        assert store.state.already_delivered == 1
        assert len(bench.advance(store, 1_000)) == 3
        store.abandon()
    with bench.open() as store:
        assert len(bench.advance(store, HOUR_MS)) == 3
    assert len(bench.bodies("TopicA")) == 10


def _open_and_abandon(bench: Bench) -> None:
    with suppress(Killed):
        bench.open().abandon()


@pytest.mark.parametrize("is_named", [False, pytest.param(True, marks=pytest.mark.check)])
def test_an_opening_that_is_killed_gives_no_copy_to_an_equal_message(
    tmp_path: Path, is_named: bool
) -> None:
    """The broker had not delivered the first message, and one of the twins behind it. The opening
    makes that neutral, and its copy lies behind the last mark that the kill has left.
    """
    first, one, twin = _waiting(1), *(_waiting(2, unique_key="T") for _ in range(2))
    copy = DeliveredCopy(of=one, names=one if is_named else None)
    build_level_store(tmp_path / "store", [first, one, twin, copy], abort=True)
    prepared = Bench(tmp_path / "store", ManualClock(START_MS + HOUR_MS))
    benches = _each_kill(tmp_path, prepared, _open_and_abandon)
    assert len(benches) > 8
    for bench in benches:
        with bench.open() as store:
            assert bench.advance(store) == [b"body 1", b"body 2"]


# --- whose copy it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("stored_ms", [START_MS, START_MS + 60_000], ids=["too early", "in time"])
@pytest.mark.parametrize("is_equal", [False, True])
def test_a_named_copy_is_of_the_record_that_it_names_and_of_no_other(
    tmp_path: Path, is_equal: bool, stored_ms: int
) -> None:
    first, twin, third = (_waiting(1, unique_key="T", level=4) for _ in range(3))
    other = first if is_equal else _waiting(2, level=4)
    items = [first, twin, third] if is_equal else [first, twin, third, other]
    copy = DeliveredCopy(of=other, names=twin, store_timestamp_ms=stored_ms)
    built = build_level_store(tmp_path / "store", [*items, copy], abort=True)
    expected = [built.of(each).commit_log_offset for each in items if each is not twin]
    bench = Bench(tmp_path / "store", ManualClock(START_MS + HOUR_MS))
    backlog = read_backlog(bench.root, after_crash=True)
    assert backlog.commit_log_offset.tolist() == expected
    if stored_ms > START_MS:  # nobody but a mark sends an engine to what was stored too early
        with bench.open() as store:
            assert [each.commit_log_offset for each in store.pending()] == expected


def test_a_copy_that_names_what_is_no_pending_message_counts_for_none(tmp_path: Path) -> None:
    """Its message was delivered before, or taken back: no equal one is taken for it."""
    first, twin = (_waiting(1, unique_key="T") for _ in range(2))
    items = [first, twin, DeliveredCopy(of=first, names=first)]
    build_level_store(tmp_path / "store", items, offsets={3: 1}, abort=True)
    bench = Bench(tmp_path / "store", ManualClock(START_MS + HOUR_MS))
    assert len(read_backlog(bench.root, after_crash=True)) == 1
    with bench.open() as store:
        assert bench.advance(store) == [b"body 1"]


def test_what_was_delivered_before_its_time_is_known_by_its_name(tmp_path: Path) -> None:
    """As brokers do whose clock was set back."""
    bench = Bench(tmp_path / "store")
    with bench.open() as store:
        for delay_ms in (10_000, 10_000, 5_000):
            store.schedule(TWIN, AfterMs(delay_ms))
    bench.clock.tick(-HOUR_MS)
    store = bench.open(rules=LevelRules(beyond_level="deliver"))
    assert len(bench.advance(store)) == 3
    store.schedule(TWIN, AfterMs(10_000))
    store.abandon()
    bench.clock.tick(HOUR_MS)
    assert_known_exactly(bench, tmp_path)
