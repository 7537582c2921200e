# SPDX-License-Identifier: Apache-2.0
"""What waits in the RocksDB timeline of 5.4 and newer is found, and the store is left as it was.

The real stores are of 5.4.0, rolled four times, and of 5.5.0.
"""

import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from message_store.base.errors import BadFieldError, SourceError, UnsupportedStoreError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from tests.independent.real_stores import (
    LEVELS_55_CLEAN,
    TIMELINE_54_CLEAN,
    TIMELINE_54_CRASH,
    TIMELINE_55_CLEAN,
    TIMELINE_55_CRASH,
    RealStore,
    unpack,
)
from tests.timer_wheel.timeline_database import Entry, write_pairs, write_timeline
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder
from timer_wheel import PendingTimers, WheelStore, pending_records, read_wheel_store
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.timeline import (
    DELIVERED_UNTIL_KEY,
    SCAN_OFFSET_KEY,
    TIMELINE_CHECKPOINT,
    TIMELINE_KEY,
    TIMELINE_PLACE,
    read_timeline,
    timeline_directory,
)

LATER_MS = NOW_MS + 60_000


ENTRIES = {
    TIMELINE_54_CLEAN: 102,
    TIMELINE_54_CRASH: 72,
    TIMELINE_55_CLEAN: 106,
    TIMELINE_55_CRASH: 89,
}
"""What each database says that waits."""
DELIVERED_AND_FORGOTTEN = {TIMELINE_54_CRASH: 12, TIMELINE_55_CRASH: 8}


@pytest.fixture(scope="module", params=[TIMELINE_54_CLEAN, TIMELINE_55_CLEAN])
def clean(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(request.param, tmp_path_factory.mktemp("timeline"))


@pytest.fixture(scope="module", params=[TIMELINE_54_CRASH, TIMELINE_55_CRASH])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(request.param, tmp_path_factory.mktemp("timeline-crash"))


@pytest.fixture
def builder(tmp_path: Path) -> WheelStoreBuilder:
    return WheelStoreBuilder(tmp_path / "store")


def read(root: StoreRoot, now_ms: int = NOW_MS) -> WheelState:
    return read_wheel_store(
        root, now_ms=now_ms, topic_in_delete_key=None, after_crash=not root.was_stopped_cleanly
    )


def keys_of(root: StoreRoot, timers: PendingTimers) -> list[str | None]:
    with SegmentReader(root.commit_log) as log:
        return [record.unique_key if record else None for record in pending_records(log, timers)]


def messages(root: StoreRoot, timers: PendingTimers) -> Counter[tuple[str | None, str]]:
    with SegmentReader(root.commit_log) as log:
        records = [record for record in pending_records(log, timers) if record is not None]
    return Counter((record.unique_key, record.real_topic) for record in records)


def truth(store: RealStore, state: str) -> Counter[tuple[str | None, str]]:
    lines = [x for x in store.truth if x.state == state and x.timer_out_ms is not None]
    return Counter((line.unique_key, line.topic) for line in lines)


def digest(directory: Path) -> str:
    """Names, lengths, times of change and contents of all that lies in a directory."""
    seen = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        facts = path.lstat()
        seen.update(f"{path} {facts.st_size} {facts.st_mtime_ns} {facts.st_mode}\n".encode())
        if path.is_file():
            seen.update(path.read_bytes())
    return seen.hexdigest()


# --- the bytes ------------------------------------------------------------------------------------


def test_an_entry_has_the_bytes_that_a_broker_writes() -> None:
    key = TIMELINE_KEY.encode(out_ms=1_700_003_600_000) + b"0A0102030001"
    assert key.hex() == "0000018bd01c5680304130313032303330303031"
    value = TIMELINE_PLACE.encode(size_bytes=203, commit_log_offset=5678)
    assert value.hex() == "000000cb000000000000162e"


def test_the_checkpoints_have_the_bytes_that_a_broker_writes() -> None:
    assert SCAN_OFFSET_KEY.hex() == (
        "7379735f746f7069635f7363616e5f6f66667365745f636865636b706f696e74"
    )
    assert DELIVERED_UNTIL_KEY.hex() == "74696d656c696e655f636865636b706f696e74"
    assert TIMELINE_CHECKPOINT.encode(checkpoint=43).hex() == "000000000000002b"


# --- real stores ----------------------------------------------------------------------------------


def test_what_waits_after_a_clean_stop_is_the_truth(clean: RealStore) -> None:
    root = StoreRoot(clean.root)
    state = read(root, clean.stopped_ms)
    assert messages(root, state.pending) == truth(clean, "pending")
    assert len(state.pending) == ENTRIES[clean.name]
    assert state.pending.is_in_timeline.all()
    assert state.done_already_count == 0


def test_a_killed_brokers_database_is_behind_and_what_waits_is_the_truth(
    crashed: RealStore,
) -> None:
    root = StoreRoot(crashed.root)
    state = read(root, crashed.stopped_ms)
    assert state.timeline is not None
    assert len(state.timeline) == ENTRIES[crashed.name]
    assert messages(root, state.pending) == truth(crashed, "pending")
    # What it has delivered and still holds; what it has put round again is not counted as done.
    assert state.done_already_count == DELIVERED_AND_FORGOTTEN[crashed.name]
    assert len(state.pending) + state.done_already_count == ENTRIES[crashed.name]


def test_a_database_that_was_lost_with_its_memory_is_made_good_by_queue_and_log(
    crashed: RealStore, tmp_path: Path
) -> None:
    shutil.copytree(crashed.root, tmp_path / "store")
    root = StoreRoot(tmp_path / "store")
    shutil.rmtree(timeline_directory(root))
    state = read(root, crashed.stopped_ms)
    assert state.timeline is None
    assert messages(root, state.pending) == truth(crashed, "pending")
    assert messages(root, state.cancelled) == truth(crashed, "recalled")
    # All that was delivered and, for each message that was recalled, a marker that has its unit.
    done = truth(crashed, "delivered") + truth(crashed, "recalled")
    assert state.done_already_count == done.total()


@pytest.mark.parametrize("name", [TIMELINE_54_CLEAN, TIMELINE_54_CRASH])
def test_what_a_live_timeline_has_rolled_again_and_again_waits_once(
    name: str, tmp_path: Path
) -> None:
    """The database of the killed one does not know of all its rolls; the queue does."""
    store = unpack(name, tmp_path)
    root = StoreRoot(store.root)
    rolled = {line.unique_key: line.rolls for line in store.truth if line.rolls}
    assert max(rolled.values()) == 4
    waits = Counter(keys_of(root, read(root, store.stopped_ms).pending))
    live = [line.unique_key for line in store.truth if line.rolls and line.state == "pending"]
    assert len(live) > 30
    assert {waits[key] for key in live} == {1}


def test_reading_leaves_no_trace(clean: RealStore, crashed: RealStore) -> None:
    for store in (clean, crashed):
        before = digest(store.root)
        read(StoreRoot(store.root), store.stopped_ms)
        assert digest(store.root) == before


def test_an_engine_refuses_a_store_whose_messages_wait_in_a_timeline(clean: RealStore) -> None:
    before = digest(clean.root)
    with pytest.raises(UnsupportedStoreError, match=f"{ENTRIES[clean.name]} messages wait"):
        WheelStore.open(clean.root)
    assert digest(clean.root) == before


# --- where rocksdict is needed --------------------------------------------------------------------


def test_without_rocksdict_nothing_is_said_about_a_timeline(
    clean: RealStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(UnsupportedStoreError, match="rocksdict is not installed"):
        read(StoreRoot(clean.root), clean.stopped_ms)


def test_a_database_that_was_never_used_needs_no_rocksdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = unpack(LEVELS_55_CLEAN, tmp_path)
    assert timeline_directory(StoreRoot(real.root)).is_dir()
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert read_timeline(StoreRoot(real.root)) is None


# --- damage ---------------------------------------------------------------------------------------


def entries(count: int) -> Iterable[Entry]:
    return (
        Entry(NOW_MS + number, hashlib.sha256(str(number).encode()).hexdigest(), number, 200)
        for number in range(count)
    )


def test_a_damaged_block_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    directory = timeline_directory(StoreRoot(tmp_path))
    write_timeline(directory, entries(2_000), scan_offset=2_000)
    timeline = read_timeline(StoreRoot(tmp_path))
    assert timeline is not None
    assert timeline.commit_log_offset.tolist() == list(range(2_000))
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = bytes(8)
    table.write_bytes(data)
    with pytest.raises(SourceError, match="rocksdbstore: RocksDB cannot read it"):
        read_timeline(StoreRoot(tmp_path))


@pytest.mark.parametrize(
    ("key", "value"), [(b"new_checkpoint", bytes(8)), (bytes(8), bytes(12)), (bytes(20), bytes(13))]
)
def test_an_entry_of_a_kind_that_is_not_known_is_an_error(
    key: bytes, value: bytes, tmp_path: Path
) -> None:
    write_pairs(timeline_directory(StoreRoot(tmp_path)), [(key, value)])
    with pytest.raises(BadFieldError, match="an entry that is none"):
        read_timeline(StoreRoot(tmp_path))


def test_a_database_without_its_manifest_is_an_error(tmp_path: Path) -> None:
    directory = timeline_directory(StoreRoot(tmp_path))
    write_timeline(directory, entries(1))
    for path in directory.glob("MANIFEST-*"):
        path.unlink()
    with pytest.raises(SourceError, match="RocksDB cannot read it"):
        read_timeline(StoreRoot(tmp_path))


@pytest.mark.parametrize("name", ["", "CURRENT"])
def test_links_in_the_place_of_the_database_are_not_followed(name: str, tmp_path: Path) -> None:
    directory = timeline_directory(StoreRoot(tmp_path / "store"))
    write_timeline(tmp_path / "elsewhere", entries(1))
    if name:
        directory.mkdir(parents=True)
        (directory / name).symlink_to(tmp_path / "elsewhere" / name)
    else:
        directory.parent.mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="in the place of a store's own"):
        read_timeline(StoreRoot(tmp_path / "store"))


# --- what a timeline means ------------------------------------------------------------------------


def timeline_of(builder: WheelStoreBuilder, *numbers: int, until_ms: int | None = None) -> None:
    """The timeline that has read the whole queue and kept only these messages of it."""
    kept = []
    for number in numbers:
        unit = builder.queue[number]
        out_ms = builder.out_ms(number)
        kept.append(Entry(out_ms, f"K{number}", unit.commit_log_offset, unit.size_bytes))
    write_timeline(
        builder.path / "rocksdbstore",
        kept,
        scan_offset=len(builder.queue),
        delivered_until_ms=until_ms,
    )


def test_entries_before_the_checkpoint_are_delivered(builder: WheelStoreBuilder) -> None:
    for out_ms in (NOW_MS - 1, NOW_MS, NOW_MS + 1):
        builder.put(out_ms)
    timeline_of(builder, 0, 1, 2, until_ms=NOW_MS)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    assert keys_of(root, read(root).pending) == ["K1", "K2"]


def test_what_comes_behind_the_scan_offset_waits_in_the_queue(builder: WheelStoreBuilder) -> None:
    builder.put(LATER_MS)
    timeline_of(builder, 0, until_ms=NOW_MS)
    builder.put(LATER_MS)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    state = read(root)
    assert keys_of(root, state.pending) == ["K1", "K0"]
    assert state.pending.is_in_timeline.tolist() == [False, True]
    assert state.resume_queue_offset == 1


def test_what_still_waits_on_the_wheel_waits_too(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(LATER_MS)
    builder.put(LATER_MS)
    timeline_of(builder, 1, until_ms=NOW_MS)
    root = builder.stop(last_queue_offset=1, master_queue_offset=1)
    assert keys_of(root, read(root).pending) == ["K0", "K1"]


def test_what_is_on_the_wheel_and_in_the_timeline_waits_once(builder: WheelStoreBuilder) -> None:
    """As the wheel leaves it that was switched on again by configuration."""
    builder.put_and_place(LATER_MS)
    timeline_of(builder, 0, until_ms=NOW_MS)
    root = builder.stop()
    state = read(root)
    assert keys_of(root, state.pending) == ["K0"]
    assert not state.pending.is_in_timeline.any()


def test_what_was_overdue_at_the_end_of_the_queue_and_delivered_does_not_wait(
    builder: WheelStoreBuilder,
) -> None:
    """A timeline does not write down that it has read these, and repeats them at every start."""
    builder.put(LATER_MS)
    timeline_of(builder, 0, until_ms=NOW_MS)
    builder.put(NOW_MS - 5_000, stored_ms=NOW_MS)
    builder.put(NOW_MS - 5_000, stored_ms=NOW_MS)
    builder.deliver_from_timeline(1, stored_ms=NOW_MS + 10)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    state = read(root)
    assert keys_of(root, state.pending) == ["K2", "K0"]
    assert state.done_already_count == 1


def test_what_the_timeline_has_put_again_waits_once(builder: WheelStoreBuilder) -> None:
    builder.put(LATER_MS)
    timeline_of(builder, 0, until_ms=NOW_MS)
    builder.put(LATER_MS, key="K0", labelled=True)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    state = read(root)
    assert keys_of(root, state.pending) == ["K0"]
    assert state.pending.queue_offset.tolist() == [1]


def test_what_the_timeline_has_put_again_and_delivered_does_not_wait(
    builder: WheelStoreBuilder,
) -> None:
    """The copy in the topic is that of the message which was put again, not of the first."""
    builder.put(NOW_MS + 5_000)
    timeline_of(builder, 0, until_ms=NOW_MS)
    builder.put(NOW_MS + 5_000, key="K0", labelled=True)
    builder.deliver_from_timeline(1, stored_ms=NOW_MS + 5_010)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    state = read(root)
    assert keys_of(root, state.pending) == []
    assert state.done_already_count == 1


def test_of_two_messages_with_one_key_neither_is_forgotten(builder: WheelStoreBuilder) -> None:
    """A timeline that reads the second loses the first; as long as it has not, both wait."""
    builder.put(LATER_MS)
    timeline_of(builder, 0, until_ms=NOW_MS)
    builder.put(LATER_MS, key="K0")
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    assert keys_of(root, read(root).pending) == ["K0", "K0"]


@pytest.mark.parametrize("text", ["K0", "TopicA+K0"])
def test_a_marker_that_was_not_read_yet_takes_an_entry_away(
    text: str, builder: WheelStoreBuilder
) -> None:
    builder.put(LATER_MS)
    timeline_of(builder, 0, until_ms=NOW_MS)
    builder.put(LATER_MS, deletes=text)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    state = read(root)
    assert keys_of(root, state.pending) == []
    assert keys_of(root, state.cancelled) == ["K0"]


def test_an_entry_whose_record_is_gone_is_expired(builder: WheelStoreBuilder) -> None:
    for _ in range(30):
        builder.put(LATER_MS)
    timeline_of(builder, 0, 29, until_ms=NOW_MS)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    min(root.commit_log.iterdir()).unlink()
    state = read(root)
    assert keys_of(root, state.pending) == ["K29"]
    assert state.expired_count == 1
