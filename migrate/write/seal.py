# SPDX-License-Identifier: Apache-2.0
"""Seals a written target: slots, checkpoint, counts and configuration are synced and published."""

from collections.abc import Iterable, Mapping, Sequence

from message_store.files.small_files import replace_file
from message_store.files.store_root import StoreRoot
from migrate.plan.target_rows import TargetRows
from migrate.settings import WHEEL
from migrate.write.hierarchy_index import seal_index
from migrate.write.large_files import write_sparse
from migrate.write.log_file import SourceShare
from migrate.write.publishing import is_publishing, publish
from migrate.write.staging import Staging, sync_tree
from migrate.write.target_config import TopicDemand, config_files, sum_demands
from timer_wheel.format.checkpoint import (
    TIMER_CHECKPOINT_NAME,
    TimerCheckpoint,
    encode_timer_checkpoint,
)
from timer_wheel.format.metrics import (
    TIMER_METRICS_NAME,
    TimerMetrics,
    TopicCount,
    encode_timer_metrics,
)
from timer_wheel.format.timer_log import log_end_position, unit_position
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES, encode_slots
from timer_wheel.format.wheel_math import SLOTS_TOTAL


def topic_demands(shares: Iterable[SourceShare]) -> dict[str, TopicDemand]:
    """Messages and highest queue of every real topic, over all files, in order of name."""
    return sum_demands(
        (text.encode("latin-1").decode("utf-8", "replace"), count, queue_id)
        for share in shares
        for text, count, queue_id in share.topics
    )


def seal(
    rows: TargetRows,
    staging: Staging,
    sources: Sequence[StoreRoot],
    demands: Mapping[str, TopicDemand],
) -> None:
    """Write what depends on all messages, sync everything, and publish it.

    Order: small files and slots (or the index of a hierarchical wheel), fsync of all files and
    directories, renames, and the wheel last. Notes are synced too: a stopped publishing needs them
    to continue. The plan's arrays are not: a continued run computes them. Where the renames had
    begun, small files are written again: a broker that was started by mistake has written its own
    before it gave up. Raises TargetError.
    """
    files = config_files(sources, demands, rows.settings.topic_type)
    if rows.engine == WHEEL:
        files |= _wheel_files(rows, demands)
    for name, content in files.items():
        path = staging.store.config_file(name)
        replace_file(path, content, is_durable=False)  # all of it is synced below
    if rows.engine == WHEEL:
        _write_slots(rows, staging.store)
    elif not is_publishing(staging):  # else it is whole, and the log may be in its place
        seal_index(rows, staging)
    sync_tree(staging.path, exclude=staging.plan_arrays)
    publish(staging)


def _wheel_files(rows: TargetRows, demands: Mapping[str, TopicDemand]) -> dict[str, bytes]:
    return {
        TIMER_CHECKPOINT_NAME: encode_timer_checkpoint(_checkpoint(rows)),
        TIMER_METRICS_NAME: encode_timer_metrics(_metrics(rows, demands)).encode(),
    }


def _write_slots(rows: TargetRows, store: StoreRoot) -> None:
    timer_log_bytes = rows.settings.timer_log_file_bytes
    slots = encode_slots(
        rows.slots.slot_time_ms,
        unit_position(rows.slots.first_index, timer_log_bytes),
        unit_position(rows.slots.last_index, timer_log_bytes),
        rows.slots.counts,
        precision_ms=rows.settings.precision_ms,
    )
    write_sparse(store.timer_wheel, WHEEL_FILE_BYTES, slots)


def _checkpoint(rows: TargetRows) -> TimerCheckpoint:
    """The hand is half a wheel before now, so a broker whose clock is behind loses nothing."""
    half_wheel_ms = SLOTS_TOTAL // 2 * rows.settings.precision_ms
    return TimerCheckpoint(
        last_read_time_ms=rows.write_time_ms - half_wheel_ms,
        flush_position=log_end_position(len(rows), rows.settings.timer_log_file_bytes),
        last_queue_offset=len(rows),
        master_queue_offset=len(rows),
        timestamp_ms=rows.now_ms,
        counter=1,
    )


def _metrics(rows: TargetRows, demands: Mapping[str, TopicDemand]) -> TimerMetrics:
    """The true counts: a broker that finds none counts below zero."""
    topics = {name: TopicCount(demand.count, rows.now_ms) for name, demand in demands.items()}
    return TimerMetrics(topics, counter=1, timestamp_ms=rows.now_ms)
