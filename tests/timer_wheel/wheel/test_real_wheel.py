# SPDX-License-Identifier: Apache-2.0
"""The wheel that a real 5.5.0 broker left behind, rolled many times over, with recalls."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from tests.independent.raw_files import commit_log_records
from tests.independent.real_stores import WHEEL_55_CLEAN, RealStore, unpack
from timer_wheel import PendingTimers, WheelState, pending_records, read_wheel_store
from timer_wheel.format.checkpoint import encode_timer_checkpoint
from timer_wheel.format.metrics import decode_timer_metrics, encode_timer_metrics

Row = tuple[str | None, str, int]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(WHEEL_55_CLEAN, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def state(store: RealStore) -> WheelState:
    return read_wheel_store(StoreRoot(store.root), now_ms=store.stopped_ms)


def records_of(store: RealStore, timers: PendingTimers) -> list[StoredMessage]:
    with SegmentReader(store.root / "commitlog") as log:
        return [record for record in pending_records(log, timers) if record is not None]


def rows_of(records: Iterable[StoredMessage]) -> Counter[Row]:
    return Counter(
        (record.unique_key, record.real_topic, int(record.properties["TIMER_OUT_MS"]))
        for record in records
    )


def truth(store: RealStore, state: str) -> Counter[Row]:
    return Counter(
        (line.unique_key, line.topic, line.timer_out_ms)
        for line in store.truth
        if line.state == state and line.timer_out_ms is not None
    )


def test_what_is_pending_is_the_truth(store: RealStore, state: WheelState) -> None:
    found = rows_of(records_of(store, state.pending))
    assert found == truth(store, "pending")
    assert found.total() == len(state.pending) == 1066


def test_what_was_recalled_is_not_pending(store: RealStore, state: WheelState) -> None:
    assert rows_of(records_of(store, state.cancelled)) == truth(store, "recalled")
    assert len(state.markers) == 117


def test_the_live_record_of_each_message_is_its_last(store: RealStore, state: WheelState) -> None:
    last = {
        placed.record.effective.get("UNIQ_KEY"): placed.commit_log_offset
        for placed in commit_log_records(store.root / "commitlog")
        if placed.record.topic == "rmq_sys_wheel_timer"
        and "TIMER_DEL_UNIQKEY" not in placed.record.effective
    }
    records = records_of(store, state.pending)
    assert [record.commit_log_offset for record in records] == [
        last[record.unique_key] for record in records
    ]
    assert state.pending.commit_log_offset.tolist() == [r.commit_log_offset for r in records]


def test_the_store_was_stopped_with_everything_placed(state: WheelState) -> None:
    assert state.precision_ms == 1000
    assert state.resume_queue_offset == state.unit_count == 3950
    assert (state.pending.position >= 0).all()
    assert state.expired_count == len(state.shared_positions) == 0
    assert state.blocking == ()


def test_the_whole_log_says_the_same_without_the_wheel_file(
    store: RealStore, state: WheelState, tmp_path: Path
) -> None:
    root = StoreRoot(tmp_path)
    for name in ("commitlog", "consumequeue", "timerlog", "config"):
        (tmp_path / name).symlink_to(store.root / name)
    everything = read_wheel_store(root, now_ms=store.stopped_ms, whole_log=True)
    assert everything.pending.position.tolist() == state.pending.position.tolist()
    assert everything.cancelled.position.tolist() == state.cancelled.position.tolist()


def test_the_brokers_own_files_are_written_back_byte_for_byte(
    store: RealStore, state: WheelState
) -> None:
    config = store.root / "config"
    assert encode_timer_checkpoint(state.checkpoint) == (config / "timercheck").read_bytes()
    text = (config / "timermetrics").read_text("ascii")
    metrics = decode_timer_metrics(text.encode())
    assert encode_timer_metrics(metrics) == text
    topics = Counter(record.real_topic for record in records_of(store, state.pending))
    assert topics.keys() == metrics.topics.keys()
