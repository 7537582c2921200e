# SPDX-License-Identifier: Apache-2.0
"""What RocketMQ's own timeline in RocksDB does wrong, each as a test that ours passes; and what
becomes of an index that is older than the log, younger, damaged or gone.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from message_store import AfterMs, AtMs, Cancellation, DelayStore, ManualClock, Message, Severity
from message_store.base.errors import BadFieldError, TargetError
from message_store.files.store_root import StoreRoot
from message_store.format.message import LOCAL_HOST, StoredMessage
from message_store.format.message_codec import body_crc, encode_message
from message_store.format.properties import TIMER_TOPIC
from message_store.redelivery.lineage import Names
from message_store.writing.log import LiveLog
from message_store.writing.queue import LiveQueue
from message_store.writing.queue_set import ENDS_NAME
from message_store.writing.settings import StoreSettings
from tests.faults.engines import SMALL, open_hierarchy
from tests.simulation.simulated_disk import Name, Write, loose, recording
from timer_wheel import HierarchicalWheelStore
from timer_wheel.hierarchy import timer_index, waiting_rows
from timer_wheel.hierarchy import turn as hierarchy_turn
from timer_wheel.hierarchy.index_db import IndexDb
from timer_wheel.hierarchy.recall_marks import HierarchyMarks
from timer_wheel.hierarchy.timer_index import Batch, TimerIndex
from timer_wheel.hierarchy.waiting_rows import no_rows
from timer_wheel.reading.hierarchy_reader import read_hierarchy
from timer_wheel.reading.ownership import index_path
from timer_wheel.reading.record_kernel import FACT_COLUMNS
from timer_wheel.reading.wheel_reader import read_wheel_store
from timer_wheel.timers.rows import TimerFacts

START_MS = 1_793_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(folder: Path, clock: ManualClock, precision_ms: int = 1) -> HierarchicalWheelStore:
    store = open_hierarchy(folder, clock, precision_ms=precision_ms)
    assert isinstance(store, HierarchicalWheelStore)
    return store


def consumed(store: DelayStore) -> Counter[bytes]:
    return Counter(each.body for each in store.topic("orders").read(0, 0, 100_000))


def bodies(first: int, last: int) -> Counter[bytes]:
    return Counter(b"body %d" % number for number in range(first, last))


def put(store: DelayStore, first: int, last: int, step_ms: int = 700) -> None:
    for number in range(first, last):
        store.schedule(Message("orders", b"body %d" % number), AfterMs(step_ms * (number - first)))


def run_to_the_end(store: DelayStore, clock: ManualClock) -> None:
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        store.advance(clock.now_ms())


# --- what the timeline of 5.4 and newer does wrong ------------------------------------------------


@pytest.mark.parametrize("precision_ms", [1, 1_000])
@pytest.mark.parametrize("delay_ms", [1, 28, 999, 1_000, 2_500, 2_999, 61_437])
def test_nothing_comes_early_by_up_to_a_second(
    folder: Path, clock: ManualClock, delay_ms: int, precision_ms: int
) -> None:
    with opened(folder, clock, precision_ms=precision_ms) as store:
        receipt = store.schedule(Message("orders", b"x"), AfterMs(delay_ms))
        assert 0 <= receipt.promised_ms - START_MS - delay_ms < max(precision_ms, 3)
        for now_ms in (START_MS + delay_ms - 1, receipt.promised_ms - 1):
            clock.tick(now_ms - clock.now_ms())
            assert len(store.advance(now_ms)) == 0
        [delivered] = store.advance(receipt.promised_ms)
        assert delivered.message.store_timestamp_ms >= START_MS + delay_ms


def test_a_message_without_a_unique_key_is_not_lost(folder: Path, clock: ManualClock) -> None:
    with opened(folder, clock) as store:
        for number in range(2):
            store_without_key(store, b"body %d" % number, out_ms=START_MS + 5_000)
        store.schedule(Message("orders", b"body 2"), AfterMs(5_000))
        assert {each.unique_key is None for each in store.pending()} == {True, False}
    with opened(folder, clock) as store:
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 3)


def store_without_key(store: HierarchicalWheelStore, body: bytes, out_ms: int) -> None:
    """A record as a broker stores one that came without UNIQ_KEY."""
    live = store.live
    queue = live.queue(TIMER_TOPIC, 0)
    text = f"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{out_ms}\x02"

    def record(position: int) -> bytes:
        return encode_message(
            StoredMessage(
                topic=TIMER_TOPIC,
                body=body,
                body_crc=body_crc(body),
                properties_text=text.encode(),
                queue_id=0,
                queue_offset=queue.max_offset,
                commit_log_offset=position,
                born_timestamp_ms=START_MS,
                born_host=LOCAL_HOST,
                store_timestamp_ms=START_MS,
                store_host=LOCAL_HOST,
            )
        )

    size_bytes = len(record(0))
    queue.append_one(live.log.append(size_bytes, record), size_bytes, 0)


@pytest.mark.parametrize("precision_ms", [1, 1_000])
def test_messages_of_one_time_and_key_all_come(
    folder: Path, clock: ManualClock, precision_ms: int
) -> None:
    with opened(folder, clock, precision_ms=precision_ms) as store:
        for number in range(5):
            message = Message("orders", b"body %d" % number, unique_key="0A0102030001")
            store.schedule(message, AtMs(START_MS + 5_000))
        assert len(list(store.pending(unique_key="0A0102030001"))) == 5
        store.flush()
        store.abandon()
    with opened(folder, clock, precision_ms=precision_ms) as store:
        assert len(store.advance(START_MS + 5_000)) == 5
        assert consumed(store) == bodies(0, 5)


@pytest.mark.parametrize("is_kill", [False, True], ids=["closed", "killed"])
def test_overdue_messages_at_the_end_of_the_queue_come_once_whatever_starts(
    folder: Path, clock: ManualClock, is_kill: bool
) -> None:
    store = opened(folder, clock)
    put(store, 0, 3, step_ms=3_600_000)
    for number in range(3, 6):
        store.schedule(Message("orders", b"body %d" % number), AtMs(START_MS - 60_000))
    for _ in range(4):
        clock.tick(1_000)
        store.advance(clock.now_ms())
        if is_kill:
            store.abandon()
        else:
            store.close()
        store = opened(folder, clock)
    assert consumed(store) == bodies(3, 6) + bodies(0, 1)
    store.close()


def test_a_crash_forgets_nothing_however_long_ago_the_last_flush_was(
    folder: Path, clock: ManualClock
) -> None:
    """A timeline's WAL is empty after a kill: five minutes of entries and places are forgotten, and
    what was delivered in them comes again.
    """
    store = opened(folder, clock)
    store.flush()
    handles = []
    for minute in range(10):
        put(store, 100 * minute, 100 * minute + 100)
        named = store.schedule(Message("orders", b"taken back"), AfterMs(7_200_000))
        handles.append(named.handle)
        clock.tick(60_000)
        store.advance(clock.now_ms())
    assert store.cancel(handles[3]) is Cancellation.CANCELLED
    before = consumed(store)
    store.abandon()
    with opened(folder, clock) as store:
        assert consumed(store) == before
        assert len(store.advance(clock.now_ms())) == 0
        assert store.cancel(handles[3]) is Cancellation.CANCELLED
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 1_000) + Counter({b"taken back": 9})


# --- an index of another time than the log --------------------------------------------------------


def remember(folder: Path, place: Path) -> None:
    """Keep the index as it is now on the disk."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(index_path(StoreRoot(folder)), place)


def put_back(folder: Path, place: Path) -> None:
    """What a loss of power does that takes the index back, or does not take it along."""
    path = index_path(StoreRoot(folder))
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(place, path)


def test_an_index_older_than_the_log_is_brought_up_to_it(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """A power cut that keeps the log and loses what the database wrote since some flush."""
    store = opened(folder, clock)
    put(store, 0, 40)
    store.flush()
    remember(folder, tmp_path / "index")
    for first in (40, 80):
        clock.tick(9_000)
        store.advance(clock.now_ms())
        put(store, first, first + 40)
        store.flush()
    store.abandon()
    put_back(folder, tmp_path / "index")
    with opened(folder, clock) as store:
        assert [each for each in store.check() if each.severity is Severity.ERROR] == []
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 120)


def test_an_index_ahead_of_the_log_is_made_again_from_the_queue(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """A power cut that loses the log's end, and not what the database wrote after it."""
    store = opened(folder, clock)
    put(store, 0, 40)
    clock.tick(9_000)
    store.advance(clock.now_ms())
    store.flush()
    shutil.copytree(folder, tmp_path / "then", ignore=shutil.ignore_patterns("index"))
    clock.tick(9_000)
    lost = len(store.advance(clock.now_ms()))
    put(store, 40, 80)
    store.flush()
    store.abandon()
    remember(folder, tmp_path / "index")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "then", folder)
    put_back(folder, tmp_path / "index")
    assert lost > 5
    with opened(folder, clock) as store:
        assert len(store.advance(clock.now_ms())) == lost
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 40)


def cut_tables(path: Path) -> None:
    for table in path.glob("*.sst"):
        table.write_bytes(table.read_bytes()[:-20])


def cut_manifest(path: Path) -> None:
    for manifest in path.glob("MANIFEST-*"):
        manifest.write_bytes(b"nothing that is a manifest")


def no_current(path: Path) -> None:
    (path / "CURRENT").unlink()


@pytest.mark.parametrize("harm", [shutil.rmtree, cut_tables, cut_manifest, no_current])
@pytest.mark.parametrize("is_kill", [False, True], ids=["closed", "killed"])
def test_a_damaged_index_is_made_again_and_nothing_is_lost_or_repeated(
    folder: Path, clock: ManualClock, harm: Callable[[Path], None], is_kill: bool
) -> None:
    store = opened(folder, clock)
    put(store, 0, 60)
    handle = store.schedule(Message("orders", b"taken back"), AfterMs(30_000)).handle
    assert store.cancel(handle) is Cancellation.CANCELLED
    clock.tick(9_000)
    store.advance(clock.now_ms())
    if is_kill:
        store.flush()
        store.abandon()
    else:
        store.close()
    harm(index_path(StoreRoot(folder)))
    with opened(folder, clock) as store:
        assert store.cancel(handle) is Cancellation.CANCELLED
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 60)


def test_a_torn_end_of_the_write_ahead_log_costs_nothing(folder: Path, clock: ManualClock) -> None:
    store = opened(folder, clock)
    for first in range(0, 60, 20):
        put(store, first, first + 20)
        store.flush()
    store.abandon()
    for log in index_path(StoreRoot(folder)).glob("*.log"):
        log.write_bytes(log.read_bytes()[:-7])
    with opened(folder, clock) as store:
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 60)


def test_what_was_delivered_long_before_a_kill_is_known_without_a_flush(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody flushes, and yet the log need not be looked through from its beginning."""
    monkeypatch.setattr(timer_index, "_MUCH_LOG_BYTES", 20_000)
    looked_through: list[int] = []
    since = Names.since

    def counted(log: LiveLog, begin: int) -> Names:
        looked_through.append(log.end - begin)
        return since(log, begin)

    monkeypatch.setattr(Names, "since", counted)
    store = opened(folder, clock)
    for first in range(0, 1_000, 50):
        put(store, first, first + 50)
        clock.tick(20_000)
        store.advance(clock.now_ms())
    before = consumed(store)
    log_bytes = store.live.log.end
    store.abandon()
    with opened(folder, clock) as store:
        assert looked_through[-1] < 60_000 < log_bytes
        assert consumed(store) == before
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 1_000)


def test_many_messages_of_one_slot_stand_in_blocks_of_a_bounded_size(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_rows, "BLOCK_ROWS", 16)
    store = opened(folder, clock)
    for number in range(100):
        store.schedule(Message("orders", b"body %d" % number), AtMs(START_MS + 7_200_000))
    handle = store.schedule(Message("orders", b"taken back"), AtMs(START_MS + 7_200_000)).handle
    store.advance(START_MS)
    store.flush()
    db = store._index.db
    assert [len(block.rows) for block in db.blocks("hours")] == [16] * 6 + [5]
    assert store.cancel(handle) is Cancellation.CANCELLED
    store.abandon()
    with opened(folder, clock) as store:
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 100)


@pytest.mark.check
def test_what_was_stored_again_right_before_a_kill_comes_once(
    folder: Path, clock: ManualClock
) -> None:
    settings = StoreSettings(
        commit_log_file_bytes=16 << 10,
        queue_file_bytes=SMALL.queue_file_bytes,
        retention_ms=6 * 3_600_000,
    )
    store = HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
    put(store, 0, 60, step_ms=3_600_000)
    clock.tick(5 * 3_600_000)
    put(store, 60, 300, step_ms=3_600_000)
    store.flush()
    clock.tick(2 * 3_600_000)
    came = Counter(each.message.body for each in store.advance(clock.now_ms()))
    stored_again = store.live.queue(TIMER_TOPIC, 0).max_offset - 300
    assert 20 < stored_again < 80
    store.abandon()
    store = HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        came += Counter(each.message.body for each in store.advance(clock.now_ms()))
    assert came == bodies(0, 300)
    store.close()


def test_a_brokers_way_to_repeat_is_refused(folder: Path, clock: ManualClock) -> None:
    settings = StoreSettings(repeat_after_kill=True)
    with pytest.raises(BadFieldError, match="a hierarchical wheel never repeats"):
        HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
    assert not folder.exists()


def test_check_notices_an_index_that_says_otherwise_than_the_queue(
    folder: Path, clock: ManualClock
) -> None:
    with opened(folder, clock) as store:
        put(store, 0, 20, step_ms=700_000)
    db = IndexDb(index_path(StoreRoot(folder)))
    state = db.state()
    assert state is not None
    block = next(db.blocks("hours"))
    wrong = np.concatenate([block.rows, block.rows[:1]])
    wrong["commit_log_offset"][0] += 8
    batch = db.batch()
    batch.put_block("hours", block.slot_ms, wrong)
    db.write(batch, state)
    db.close()
    with pytest.raises(BadFieldError, match="stands there twice"):
        read_hierarchy(StoreRoot(folder), after_crash=False)
    with opened(folder, clock) as store:
        problems = [each.problem for each in store.check() if each.severity is Severity.ERROR]
        assert "a message that stands in the index twice" in problems
        assert "a message that the timer queue does not have at its place" in problems


def test_check_notices_entries_that_went_before_they_were_looked_at(
    folder: Path, clock: ManualClock
) -> None:
    store = opened(folder, clock)
    put(store, 0, 120)
    store.abandon()
    (folder / "delaywheel" / ENDS_NAME).unlink()  # which would tell, and the store be refused
    first = min((folder / "consumequeue" / TIMER_TOPIC / "0").iterdir())
    first.unlink()
    with opened(folder, clock) as store:
        assert "50 entries are gone that were never looked at" in {
            each.problem for each in store.check()
        }


# --- a disk that refuses --------------------------------------------------------------------------


def test_a_database_that_cannot_write_closes_the_store_to_more(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise TargetError("IO error: No space left on device")

    store = opened(folder, clock)
    put(store, 0, 20)
    with monkeypatch.context() as patch:
        patch.setattr(IndexDb, "write", full)
        with pytest.raises(TargetError, match="No space left"):
            store.flush()
    with pytest.raises(TargetError, match="an earlier write failed"):
        store.schedule(Message("orders", b"refused"), AfterMs(1))
    store.close()
    with opened(folder, clock) as store:
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 20)


# --- what waits long ------------------------------------------------------------------------------


def test_what_waits_for_weeks_outlives_its_file_and_keeps_order_and_handle(
    folder: Path, clock: ManualClock
) -> None:
    settings = StoreSettings(
        commit_log_file_bytes=16 << 10,
        queue_file_bytes=SMALL.queue_file_bytes,
        retention_ms=6 * 3_600_000,
    )
    due_ms = START_MS + 20 * 86_400_000
    with HierarchicalWheelStore.open(folder, clock=clock, settings=settings) as store:
        kept = [
            store.schedule(Message("far", b"body %d" % number), AtMs(due_ms))
            for number in range(40)
        ]
        first_file = store.live.log.segments.starts[0]
        for day in range(20):
            put(store, 100 * day, 100 * day + 50)
            clock.tick(86_000_000)
            store.advance(clock.now_ms())
            if day == 9:
                assert store.cancel(kept[7]) is Cancellation.CANCELLED
                store.flush()
            if day == 12:
                store.abandon()
                store = HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
        assert store.live.log.segments.starts[0] > first_file
        waiting = [each for each in store.pending() if each.topic == "far"]
        assert {each.due_ms for each in waiting} == {due_ms}
        assert len(waiting) == 39
        assert store.cancel(kept[7]) is Cancellation.CANCELLED
        assert store.cancel(kept[9]) is Cancellation.CANCELLED
        clock.tick(due_ms - clock.now_ms())
        store.advance(clock.now_ms())
        came = [each.body for each in store.topic("far").read(0, 0, 100)]
        assert came == [b"body %d" % number for number in range(40) if number not in (7, 9)]
        store.close()


def test_a_log_file_goes_when_what_was_in_it_is_on_the_disk_elsewhere(
    folder: Path, clock: ManualClock
) -> None:
    """Else a loss of power could take the copy as well; and an index that leads to what is gone
    would tell of losses that are none.
    """
    settings = StoreSettings(
        commit_log_file_bytes=16 << 10,
        queue_file_bytes=SMALL.queue_file_bytes,
        retention_ms=6 * 3_600_000,
    )
    with recording(folder) as recorder:
        store = HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
        put(store, 0, 150, step_ms=600_000)
        store.flush()
        for _ in range(6):
            clock.tick(5 * 3_600_000)
            store.advance(clock.now_ms())
        store.abandon()
    events = recorder.events
    in_log = {
        event.file
        for event in events
        if isinstance(event, Name) and event.path.startswith("commitlog/")
    }
    removals = [
        moment
        for moment, event in enumerate(events)
        if isinstance(event, Name) and event.path.startswith("commitlog/") and event.file is None
    ]
    assert removals
    for moment in removals:
        waiting = [events[index] for index in loose(events, moment).data]
        assert [each for each in waiting if isinstance(each, Write) and each.file in in_log] == []
    store = HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
    run_to_the_end(store, clock)
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    store.close()


def test_a_reader_finds_what_was_stored_again_before_a_kill_once(
    folder: Path, clock: ManualClock
) -> None:
    settings = StoreSettings(commit_log_file_bytes=16 << 10, retention_ms=6 * 3_600_000)
    store = HierarchicalWheelStore.open(folder, clock=clock, settings=settings)
    store.schedule(Message("orders", b"body 0"), AfterMs(7 * 3_600_000 + 60_000))
    for number in range(1, 100):
        store.schedule(Message("orders", b"body %d" % number), AfterMs(20 * 3_600_000 + number))
    store.flush()
    end = store.live.log.end
    clock.tick(7 * 3_600_000)
    store.advance(clock.now_ms())
    assert store.live.log.end > end, "it was stored again"
    assert store.live.log.min_offset == 0, "one that is due soon keeps its file, the index is old"
    offsets = sorted(each.commit_log_offset for each in store.pending())
    store.abandon()
    state = read_wheel_store(StoreRoot(folder), now_ms=clock.now_ms(), after_crash=True)
    assert sorted(state.pending.commit_log_offset.tolist()) == offsets
    assert state.pending.position.tolist() == [0] * len(offsets)


# --- an interrupt in the middle -------------------------------------------------------------------


def interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


def test_a_turn_that_is_interrupted_before_it_stored_anything_is_done_after_an_opening(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder, clock)
    put(store, 0, 20)
    clock.tick(9_000)
    with monkeypatch.context() as patch:
        patch.setattr(hierarchy_turn, "store_times_ms", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.advance(clock.now_ms())
    with pytest.raises(TargetError, match="open it again"):
        store.advance(clock.now_ms())
    store.close()
    with opened(folder, clock) as store:
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 20)


def test_a_turn_that_is_interrupted_behind_the_log_is_found_there_when_the_store_is_opened_again(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder, clock)
    put(store, 0, 20)
    clock.tick(9_000)
    with monkeypatch.context() as patch:
        patch.setattr(LiveQueue, "append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.advance(clock.now_ms())
    with pytest.raises(TargetError, match="open it again"):
        store.schedule(Message("orders", b"refused"), AfterMs(1))
    store.close()
    with opened(folder, clock) as store:
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 20)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_flush_that_is_interrupted_around_the_database_can_be_done_again(
    folder: Path, clock: ManualClock, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder, clock)
    put(store, 0, 40)
    handle = store.schedule(Message("orders", b"taken back"), AfterMs(30_000)).handle
    clock.tick(1_000)
    store.advance(clock.now_ms())
    write = TimerIndex.write

    def interrupted(index: TimerIndex, batch: Batch, *, durably: bool) -> None:
        if is_written:
            write(index, batch, durably=durably)
        interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(TimerIndex, "write", interrupted)
        patch.setattr(timer_index, "SPILL", 1)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    clock.tick(4_000)
    store.advance(clock.now_ms())
    store.flush()
    store.close()
    with opened(folder, clock) as store:
        assert store.cancel(handle) is Cancellation.CANCELLED
        run_to_the_end(store, clock)
        assert consumed(store) == bodies(0, 40)


def test_properties_say_when_as_brokers_clients_do(folder: Path, clock: ManualClock) -> None:
    with opened(folder, clock) as store:
        wanted = {"TIMER_DELIVER_MS": str(START_MS + 1_437)}
        receipt = store.put(Message("orders", b"body 0", properties=wanted))
        assert receipt.promised_ms == START_MS + 1_437
        assert len(store.advance(START_MS + 1_437)) == 1


# --- a disk that was full -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "abandon"])
def test_a_database_that_the_disk_refused_is_let_go_of(
    folder: Path, clock: ManualClock, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder, clock)
    put(store, 0, 3)
    store.flush()
    database = store._index.db._db

    class Refused:
        """The database as it is once a write of its own failed: closing says so, and closes."""

        def __getattr__(self, name: str) -> object:
            return getattr(database, name)

        def close(self) -> None:
            database.close()
            raise Exception("IO error: No space left on device: While appending to file")

    monkeypatch.setattr(store._index.db, "_db", Refused())
    if how == "close":
        with pytest.raises(TargetError, match="No space left on device"):
            store.close()
    else:
        store.abandon()
    with opened(folder, clock) as again:
        run_to_the_end(again, clock)
        assert consumed(again) == bodies(0, 3)


def test_behind_a_broken_log_nothing_is_said_to_be_done(folder: Path, clock: ManualClock) -> None:
    """Also where nothing is due: empty would say that the store goes on."""
    store = open_hierarchy(folder, clock)
    store.live.log.break_off()  # type: ignore[attr-defined]
    with pytest.raises(TargetError, match="open it again"):
        store.advance(clock.now_ms())
    store.close()


def test_marks_that_are_dropped_before_they_are_written_leave_the_others_to_be_written(
    tmp_path: Path,
) -> None:
    """A write that failed left them; the count of what is to be written fell behind the rows."""
    marks, db = HierarchyMarks(), IndexDb(tmp_path / "index")
    rows = no_rows(5)
    rows["due_ms"] = [0, 0, 0, 10**6, 10**6]
    marks.take_in(rows, TimerFacts(np.zeros((FACT_COLUMNS, 5), np.int64), {}, 1))
    batch = db.batch()
    marks.drop_old(batch, 500_000)
    assert marks.put_new(batch) == len(marks.rows) == 2
    db.close()
