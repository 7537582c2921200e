# SPDX-License-Identifier: Apache-2.0
"""Opening a store that was not closed: the log's end, torn entries, lost queues, damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.base.errors import SourceError, UnsupportedStoreError
from message_store.files.live_segments import LiveSegments
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.dialect import Dialect
from message_store.format.message_codec import encode_message
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.record_layout import SYS_TRANSACTION_MASK
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import (
    NOW_MS,
    SMALL,
    append,
    append_log_only,
    append_rows,
    log_records,
    neutralise,
    require_sound,
    stored,
)

FILE_BYTES = SMALL.commit_log_file_bytes


def opened(path: Path, dialect: Dialect = Dialect.ROCKETMQ_5_5) -> LiveStore:
    return LiveStore.open(path, settings=SMALL, dialect=dialect)


def sound_bodies(path: Path) -> list[bytes]:
    """What an opening finds; and a second one, after a close, finds the same and has no work."""
    store = opened(path)
    bodies = require_sound(store)
    store.close()
    again = opened(path)
    assert again.was_clean
    assert (again.recovery.dispatched, again.recovery.repaired, again.recovery.cut) == (0, 0, 0)
    assert require_sound(again) == bodies
    again.abandon()
    return bodies


def change(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def log_file(path: Path, index: int = 0) -> Path:
    return path / "commitlog" / f"{index * FILE_BYTES:020d}"


def queue_file(path: Path, topic: str = "orders", queue_id: int = 0) -> Path:
    return path / "consumequeue" / topic / str(queue_id) / ("0" * 20)


def test_records_that_no_queue_knows_get_their_entries(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"0"))
    append(store, stored(b"1", queue_id=3))
    for number in range(4):
        message = stored(b"level", topic=LEVEL_TOPIC, queue_id=number, level=number + 1)
        append_log_only(store, message)
    append_log_only(store, stored(b"no tag", tags=None, topic="ünïcode"))
    append_log_only(store, stored(b"tag", tags="дом", topic="ünïcode", queue_id=1))
    store.abandon()
    again = opened(path)
    assert again.recovery.dispatched == 6
    assert len(require_sound(again)) == 8
    again.abandon()


def test_a_file_is_lost_by_what_it_holds_and_not_by_what_the_disk_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(60):
        append(store, stored(bytes([number]) * 900))
    before = require_sound(store)
    store.close()
    monkeypatch.setattr(LiveSegments, "holes", lambda row: list(row.starts))  # no blocks yet
    again = opened(path)
    assert (again.recovery.lost_files, again.has_lost_records) == ((), False)
    assert require_sound(again) == before
    again.close()


@pytest.mark.parametrize("clean", [False, True])
def test_queues_that_were_lost_are_made_again_from_the_whole_log(
    tmp_path: Path, clean: bool
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(60):
        append(store, stored(bytes([number]) * 900, queue_id=number % 3))
        if number == 50:
            store.flush()
    before = require_sound(store)
    store.close() if clean else store.abandon()
    shutil.rmtree(path / "consumequeue")
    assert sound_bodies(path) == before


def test_one_lost_queue_is_made_again_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(60):
        append(store, stored(bytes([number]) * 900, queue_id=number % 3))
    store.flush()
    append(store, stored(b"last", queue_id=1))
    before = require_sound(store)
    store.abandon()
    shutil.rmtree(path / "consumequeue/orders/1")
    assert sound_bodies(path) == before


@pytest.mark.parametrize("kept", range(20))
@pytest.mark.parametrize("from_end", [False, True])
def test_a_torn_last_entry_is_written_again(tmp_path: Path, kept: int, from_end: bool) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(4):
        append(store, stored(b"x" * 90, topic=LEVEL_TOPIC, level=number + 3))
        append(store, stored(b"another queue", topic=LEVEL_TOPIC, queue_id=1, level=2))
    before = require_sound(store)
    unit = store.queue(LEVEL_TOPIC, 0).segments.read_at(60, 20)
    store.abandon()
    torn = bytes(20 - kept) + unit[20 - kept :] if from_end else unit[:kept] + bytes(20 - kept)
    change(queue_file(path, LEVEL_TOPIC), 60, torn)
    again = opened(path)
    assert again.recovery.repaired + again.recovery.dispatched == (0 if torn == unit else 1)
    assert require_sound(again) == before
    again.abandon()


def test_a_torn_entry_between_whole_ones_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(5):
        append(store, stored(bytes([number]) * 50))
    before = require_sound(store)
    unit = store.queue("orders", 0).segments.read_at(40, 20)
    store.abandon()
    change(queue_file(path), 40, bytes(8) + unit[8:])
    again = opened(path)
    assert again.recovery.repaired == 1
    assert require_sound(again) == before
    again.abandon()


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_neutralised_entry_stays_neutralised(tmp_path: Path, place: int, end: str) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(5):
        append(store, stored(b"body %d" % number, topic=LEVEL_TOPIC, queue_id=1, level=2))
    neutralise(store, LEVEL_TOPIC, 1, place)
    units = store.queue(LEVEL_TOPIC, 1).units(0, 5).tolist()
    store.close() if end == "closed" else store.abandon()
    again = opened(path)
    assert again.queue(LEVEL_TOPIC, 1).units(0, 6).tolist() == units
    assert (again.recovery.dispatched, again.recovery.repaired) == (0, 0)
    require_sound(again)
    append(again, stored(b"more", topic=LEVEL_TOPIC, queue_id=1, level=2))
    require_sound(again)
    again.abandon()


@pytest.mark.parametrize("record_bytes", [256 + 2, 512 + 2, 300])
@pytest.mark.parametrize("size_bytes", [1, 2])
def test_a_neutralised_entry_stays_what_it_is_whatever_bytes_its_record_has_in_common_with_it(
    tmp_path: Path, size_bytes: int, record_bytes: int
) -> None:
    """Else one that was delivered would become one that was taken back."""
    path = tmp_path / "store"
    store = opened(path)
    for _ in range(3):
        append(store, stored(bytes(record_bytes - len(encode_message(stored(b""))))))
    store.queue("orders", 0).neutralise(np.array([1]), size_bytes)
    units = store.queue("orders", 0).units(0, 3).tolist()
    assert [size for _, size, _ in units] == [record_bytes, size_bytes, record_bytes]
    store.abandon()
    again = opened(path)
    assert again.queue("orders", 0).units(0, 3).tolist() == units
    assert again.recovery.repaired == 0
    again.abandon()


@pytest.mark.parametrize("byte", range(8))
def test_a_byte_that_is_by_chance_that_of_a_neutral_entry_hides_no_message(
    tmp_path: Path, byte: int
) -> None:
    """Within one sector no write leaves a field in two halves: the byte is damaged."""
    path = tmp_path / "store"
    store = opened(path)
    for _ in range(3):
        append(store, stored(bytes(513)))
    [unit] = store.queue("orders", 0).units(1, 2).tolist()
    offset, size_bytes, code = unit
    content = bytearray(offset.to_bytes(8, "big"))
    neutral = (offset + size_bytes - 1).to_bytes(8, "big")
    assert sum(one != other for one, other in zip(content, neutral, strict=True)) > 1
    content[byte] = neutral[byte]
    store.queue("orders", 0).overwrite(1, int.from_bytes(content, "big"), size_bytes, code)
    store.abandon()
    again = opened(path)
    assert again.queue("orders", 0).units(1, 2).tolist() == [unit]
    require_sound(again)
    again.abandon()


@pytest.mark.parametrize("size_first", [False, True])
def test_a_half_neutralised_entry_is_finished(tmp_path: Path, size_first: bool) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(3):
        append(store, stored(b"body %d" % number))
    [(offset, size_bytes, code)] = store.queue("orders", 0).units(1, 2).tolist()
    half = (offset, 1, code) if size_first else (offset + size_bytes - 1, size_bytes, code)
    store.queue("orders", 0).overwrite(1, *half)
    store.abandon()
    again = opened(path)
    assert again.queue("orders", 0).units(1, 2).tolist() == [(offset + size_bytes - 1, 1, code)]
    require_sound(again)
    again.abandon()


def unpublished_rows(store: LiveStore) -> None:
    """A batch as a kill leaves it: all but the first eight bytes."""
    end = store.log.end
    append_rows(store, [stored(b"row %d" % number) for number in range(30)])
    store.log.segments.write_at(end, bytes(8))
    store.queue("orders", 0).cut(end)


def half_a_body(store: LiveStore) -> None:
    place = append(store, stored(b"torn" * 200))
    store.log.segments.write_at(place + 300, bytes(400))


def wrong_place(store: LiveStore) -> None:
    record = store.log.segments.read_at(0, store.log.last_start or store.log.end)
    store.log.segments.write_at(store.log.end, record)


def noise(store: LiveStore) -> None:
    store.log.segments.write_at(store.log.end, bytes(range(1, 256)) * 10)


def later_file(store: LiveStore) -> None:
    unpublished_rows(store)
    store.log.segments.make_file(FILE_BYTES)
    store.log.segments.write_at(FILE_BYTES + 50, b"left over")


def short_file(store: LiveStore) -> None:
    store.log.segments.make_file(FILE_BYTES)
    log_file(store.root.path, 1).write_bytes(b"")


def blank_only(store: LiveStore) -> None:
    store.log.write_blank(store.log.end)
    store.log.segments.make_file(FILE_BYTES)


@pytest.mark.parametrize(
    "damage",
    [unpublished_rows, half_a_body, wrong_place, noise, later_file, short_file, blank_only],
)
@pytest.mark.parametrize("dialect", [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5])
def test_what_lies_behind_the_log_s_end_is_cut_and_made_zeros(
    tmp_path: Path, damage: Callable[[LiveStore], None], dialect: Dialect
) -> None:
    path = tmp_path / "store"
    store = opened(path, dialect)
    for number in range(3):
        append(store, stored(b"kept %d" % number))
    kept = require_sound(store)
    damage(store)
    store.abandon()
    again = opened(path, dialect)
    assert require_sound(again) == kept
    append_rows(again, [stored(b"after %d" % number) for number in range(40)])
    assert len(require_sound(again)) == 43
    again.abandon()
    assert len(sound_bodies(path)) == 43


def test_the_rest_of_a_torn_batch_never_comes_to_light(tmp_path: Path) -> None:
    """A record that ends exactly where a row of the torn batch begins."""
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"kept"))
    unpublished_rows(store)
    store.abandon()
    again = opened(path)
    append(again, stored(b"row 0"))
    again.abandon()
    assert sound_bodies(path) == [b"kept", b"row 0"]


def test_entries_of_records_that_never_reached_the_disk_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(9):
        append(store, stored(b"body %d" % number, queue_id=number % 2))
    end = store.log.last_start
    store.abandon()
    change(log_file(path), end, bytes(50))
    again = opened(path)
    assert again.recovery.cut == 1
    assert require_sound(again) == [b"body %d" % number for number in range(8)]
    again.abandon()


def test_a_lost_page_of_a_queue_is_filled_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(600):
        append(store, stored(b"%d" % number))
    before = require_sound(store)
    store.abandon()
    change(queue_file(path).with_name(f"{5_000:020d}"), 1_000, bytes(2_000))
    assert sound_bodies(path) == before


def test_a_clean_store_with_a_hole_in_a_queue_is_repaired_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(200):
        append(store, stored(b"%d" % number, queue_id=number % 2))
    before = require_sound(store)
    store.close()
    change(queue_file(path), 500, bytes(40))
    again = opened(path)
    assert require_sound(again) == before
    again.close()


def test_a_queue_of_multi_dispatch_is_not_doubted_for_being_filled_with_others_records(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"0"))
    place = append(store, stored(b"1", queue_id=3))
    store.queue("%LMQ%orders", 0).append_one(place, store.log.end - place, 0)
    append(store, stored(b"2"))
    store.close()
    again = opened(path)
    assert again.was_clean
    assert again.recovery.start == again.recovery.end > 0
    again.close()
    change(queue_file(path, "%LMQ%orders"), 8, (1).to_bytes(4, "big"))
    with_damage = opened(path)
    assert with_damage.recovery.start == 0
    with_damage.abandon()


def test_half_messages_and_rolled_back_ones_get_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"seen"))
    for sys_flag in (0x4, SYS_TRANSACTION_MASK):
        append_log_only(store, stored(b"unseen", sys_flag=sys_flag))
    append_log_only(store, stored(b"committed", sys_flag=0x8))
    store.abandon()
    again = opened(path)
    assert again.recovery.dispatched == 1
    assert [message.body for message in again.topic("orders").read(0, 0)] == [b"seen", b"committed"]
    assert again.recovery.end == again.log.end > again.queue("orders", 0).units(1, 2)[0][0]
    again.abandon()


def test_a_record_whose_topic_can_be_no_directory_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"good"))
    record = stored(b"bad", topic="../../evil")
    store.log.append(
        len(encode_message(record)),
        lambda place: encode_message(attrs.evolve(record, commit_log_offset=place)),
    )
    store.abandon()
    again = opened(path)
    assert again.recovery.dispatched == 0
    assert [queue.topic for queue in again.queues] == ["orders"]
    assert sorted(tmp_path.iterdir()) == [path]
    again.abandon()


@pytest.mark.parametrize(
    ("lost_from", "is_torn"),
    [(1023, True), (1024, True), (1025, False), (1535, False), (1536, True), (1537, False)],
)
def test_properties_that_are_zeros_from_a_sector_on_were_lost_with_the_power(
    tmp_path: Path, lost_from: int, is_torn: bool
) -> None:
    """No checksum covers them; a client's own zeros hardly ever fill a sector, or begin where the
    last one does.
    """
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"kept"))
    long = attrs.evolve(stored(b"long"), properties_text=b"name\x01" + b"v" * 1_500)
    place = append(store, long)
    size_bytes = store.log.end - place
    append(store, stored(b"behind"))
    store.abandon()
    change(log_file(path), lost_from, bytes(place + size_bytes - lost_from))
    again = opened(path)
    bodies = [message.body for message, _ in log_records(again)]
    assert bodies == ([b"kept"] if is_torn else [b"kept", b"long", b"behind"])
    again.abandon()


# --- where it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", list(Dialect))
def test_after_a_kill_the_log_is_read_from_the_last_synced_record_on(
    tmp_path: Path, dialect: Dialect
) -> None:
    path = tmp_path / "store"
    _, synced = killed_store(path, dialect)
    assert synced % FILE_BYTES
    again = opened(path, dialect)
    assert again.recovery.start == synced
    assert len(require_sound(again)) == 40
    again.abandon()


def killed_store(path: Path, dialect: Dialect) -> tuple[LiveStore, int]:
    """A store of forty messages, and where the last one begins that was flushed."""
    store = opened(path, dialect)
    synced = 0
    for number in range(40):
        append(store, stored(bytes([number]) * 2_000, store_ms=NOW_MS - 1_000 * number))
        if number == 20:
            store.flush()
            synced = store.log.last_start
    store.abandon()
    return store, synced


def test_a_checkpoint_of_a_broker_names_a_file_and_no_record_to_begin_at(tmp_path: Path) -> None:
    """It says what was put into queues, and not that all before it is on disk."""
    path = tmp_path / "store"
    store, synced = killed_store(path, Dialect.ROCKETMQ_5_5)
    said = StoreCheckpoint(NOW_MS, NOW_MS, queue_commit_log_offset=synced)
    store.root.checkpoint.write_bytes(said.encode())
    again = opened(path)
    assert again.recovery.start == synced - synced % FILE_BYTES
    assert len(require_sound(again)) == 40
    again.abandon()


def test_brokers_before_5_5_find_times_from_before_what_was_not_synced(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(30):
        append(store, stored(bytes(2_000), store_ms=NOW_MS + 10_000 * number))
    store.flush()
    synced = store.log.last_start
    for _ in range(30):  # nothing of this is synced
        append(store, stored(bytes(2_000), store_ms=NOW_MS))
    store.write_checkpoint()
    store.abandon()
    checkpoint = StoreCheckpoint.decode((path / "checkpoint").read_bytes())
    first_of_file = store.log.file_bytes * (synced // store.log.file_bytes)
    assert checkpoint.queue_commit_log_offset == synced
    index = first_of_file // FILE_BYTES
    head = log_file(path, index).read_bytes()[56:64]
    assert checkpoint.commit_log_timestamp_ms == int.from_bytes(head, "big")
    assert checkpoint.queue_timestamp_ms == checkpoint.commit_log_timestamp_ms
    assert (path / "checkpoint").stat().st_size == 4096


@pytest.mark.parametrize(
    ("dialect", "kept"),
    [(Dialect.ROCKETMQ_4_9, False), (Dialect.ROCKETMQ_5_3, False), (Dialect.ROCKETMQ_5_5, True)],
)
def test_a_closed_store_s_checkpoint_is_a_broker_s_own(
    tmp_path: Path, dialect: Dialect, kept: bool
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    (path / "commitlog").mkdir()
    (path / "checkpoint").write_bytes(StoreCheckpoint(1, 2, 3, 4, 5, 6).encode())
    store = opened(path, dialect)
    for number in range(3):
        append(store, stored(b"x", store_ms=NOW_MS + number))
    last = store.log.last_start
    store.close()
    content = (path / "checkpoint").read_bytes()
    found = StoreCheckpoint.decode(content)
    assert (found.commit_log_timestamp_ms, found.queue_timestamp_ms) == (NOW_MS + 2, NOW_MS + 2)
    assert found.index_timestamp_ms == 3
    assert found.queue_commit_log_offset == (last if kept else 0)
    assert (found.master_flushed_offset, found.confirm_offset) == (
        (0, 0) if dialect is Dialect.ROCKETMQ_4_9 else (4, 5)
    )
    assert not (path / "abort").exists()


# --- what is refused ------------------------------------------------------------------------------


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("clean", [False, True])
def test_a_log_that_is_damaged_where_it_was_synced_is_not_cut(tmp_path: Path, clean: bool) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(40):
        append(store, stored(bytes([number]) * 1_000))
    store.flush()
    synced_file = log_file(path, store.log.last_start // FILE_BYTES)
    if clean:
        store.close()
        shutil.rmtree(path / "consumequeue")
        synced_file = log_file(path)
    else:
        store.abandon()
    if clean:
        (path / "consumequeue/orders/0").mkdir(parents=True)
        store_unit = (0).to_bytes(8, "big") + (2_000).to_bytes(4, "big") + bytes(8)
        queue_file(path).write_bytes(store_unit.ljust(SMALL.queue_file_bytes, b"\0"))
        (path / "checkpoint").unlink()
    change(synced_file, 0, b"damage")
    before = tree(path)
    with pytest.raises(SourceError, match=r"damaged at \d+.*nothing was changed"):
        opened(path)
    after = tree(path)
    after.pop("lock")
    before.pop("lock")
    assert after == before


@pytest.mark.parametrize("name", ["consumequeue_ext", "batchconsumequeue"])
def test_queues_that_we_cannot_keep_are_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store"
    opened(path).close()
    directory = path / name / "orders" / "0"
    directory.mkdir(parents=True)
    (directory / ("0" * 20)).write_bytes(bytes(100))
    with pytest.raises(UnsupportedStoreError, match="not appended to"):
        opened(path)


def test_queues_without_a_log_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "store/consumequeue/orders/0").mkdir(parents=True)
    with pytest.raises(SourceError, match="no commitlog"):
        opened(tmp_path / "store")


def test_a_log_with_a_file_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for _ in range(40):
        append(store, stored(bytes(1_000)))
    store.close()
    log_file(path, 1).unlink()
    with pytest.raises(SourceError, match="missing"):
        opened(path)
    assert not (path / "abort").exists()


@pytest.mark.parametrize("hole", [3, 4, 9])
def test_holes_in_log_and_queue_at_once_cost_no_record_before_the_log_s_end(
    tmp_path: Path, hole: int
) -> None:
    """A loss of power leaves any part of what nobody waited for: an entry behind the hole leads to
    a whole record behind the log's end, and says nothing of the entries that are missing before.
    """
    settings = attrs.evolve(SMALL, queue_file_bytes=5 * 20)
    store = LiveStore.open(tmp_path / "store", settings=settings)
    places = [append(store, stored(b"%d" % number)) for number in range(43)]
    store.abandon()
    for number in range(1, hole):
        copy = tmp_path / f"hole at {number}"
        shutil.copytree(tmp_path / "store", copy)
        change(log_file(copy), places[hole], bytes(places[hole + 1] - places[hole]))
        directory = queue_file(copy).parent
        for entry in (*range(number, hole), 40):
            change(directory / f"{entry // 5 * 100:020d}", entry % 5 * 20, bytes(20))
        assert sound_bodies(copy) == [b"%d" % each for each in range(hole)]
