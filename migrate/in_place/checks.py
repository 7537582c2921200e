# SPDX-License-Identifier: Apache-2.0
"""Which stores can be changed in place: whatever would lose or duplicate messages is refused.

Nothing is put on the wheel. The broker places the appended records, and continues behind the entry
that it placed last. So everything depends on where that entry is.
"""

import hashlib
from collections.abc import Mapping

import attrs
import numpy as np

from legacy_levels.backlog.lost_queues import cut_queues_of
from legacy_levels.backlog.queues import levels_with_queue
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError, OptionsError, SourceError, UnsupportedStoreError
from message_store.base.printable import counted
from message_store.files.dledger import refuse_member
from message_store.files.log_row import open_log
from message_store.files.rocksdb.queues import refuse_queue_database
from message_store.files.segments import (
    SegmentReader,
    holds_queues,
    list_segments,
    require_appendable,
)
from message_store.files.small_files import is_present, read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import BLANK_RECORD
from message_store.reading.commit_log import find_log_end, first_store_times
from message_store.reading.consume_queue import read_last_entry, read_queue
from message_store.reading.indexed_end import find_indexed_end
from message_store.writing.losses import require_whole_log
from message_store.writing.queue_set import usual_queue_bytes
from message_store.writing.settings import StoreSettings
from migrate.changes.note import Ends
from migrate.settings import TargetSettings
from timer_wheel.format.checkpoint import (
    TIMER_CHECKPOINT_NAME,
    read_last_flush,
    read_timer_checkpoint,
)
from timer_wheel.format.timer_log import read_units
from timer_wheel.format.wheel_file import all_slots, snapshots
from timer_wheel.reading.timeline import refuse_waiting_timeline
from timer_wheel.reading.timer_queue import noted_queue_offset
from timer_wheel.reading.wheel_reader import guess_precision

Conf = Mapping[str, str]

_REPLICAS = "an append to one copy alone takes the copies apart"
_REFUSED_SETTINGS = {
    "brokerRole": ("SLAVE", "a slave's store: change its master's, and copy that anew"),
    "enableDLegerCommitLog": ("true", f"a DLedger group: {_REPLICAS}"),
    "enableControllerMode": ("true", f"a group with a controller: {_REPLICAS}"),
    "duplicationEnable": ("true", f"a broker that duplicates: {_REPLICAS}"),
    "storeType": ("defaultRocksDB", "consume queues in RocksDB, which cannot be appended to"),
    "enableConsumeQueueExt": ("true", "queues with extension units, which cannot be appended to"),
    "timerWheelEnable": ("false", "a broker without a wheel: nothing would be delivered"),
    "timerStopEnqueue": ("true", "a broker that places nothing: nothing would be delivered"),
    "timerStopDequeue": ("true", "a broker whose wheel stands still: nothing would be delivered"),
    "timerRocksDBEnable": (
        "true",
        "a timeline in RocksDB, which takes two messages with one key for one",
    ),
}
_RECOVERED_FILES = 3
"""So many log files a broker looks through after a clean stop, older versions most."""
_MOST_READ_BYTES = 64 << 20
"""So much is read at most to say what is wrong with a record: a damaged length may say anything."""
_INSTEAD = (
    "do not start a broker here, and convert into a fresh store with --on-bad-record quarantine"
)
_REPLICA_FILES = {
    "epochFileCheckpoint": f"a group with a controller: {_REPLICAS}",
    "brokerIdentity": f"a group with a controller: {_REPLICAS}",
}
_REFUSED_QUEUES = {
    "consumequeue_ext": "extension units of consume queues (enableConsumeQueueExt)",
    "batchconsumequeue": "batch consume queues",
}


def refuse_settings(conf: Conf, root: StoreRoot) -> None:
    """Raise UnsupportedStoreError for a broker with which a change in place would lose or repeat
    messages, OptionsError for one that would not start on this store.
    """
    for key, (value, reason) in _REFUSED_SETTINGS.items():
        if conf.get(key, "").strip().lower() == value.lower():
            raise UnsupportedStoreError(f"{key}={value}: {reason}; {root.path} was not changed")
    sizes = file_sizes(root)
    for key, size in (
        ("mappedFileSizeCommitLog", sizes.commit_log_file_bytes),
        ("mappedFileSizeConsumeQueue", sizes.queue_file_bytes),
    ):
        stated = conf.get(key)
        if stated is not None and stated.strip() != str(size):
            raise OptionsError(
                f"{key}={stated}, where {root.path} has files of {size}: a broker with this"
                " setting would not start on it"
            )


def refuse_store(root: StoreRoot) -> None:
    """Raise SourceError, mostly UnsupportedStoreError, for a directory that cannot be changed in
    place.
    """
    refuse_queue_database(
        root.path,
        "what is appended to the log alone leaves a hole there, which no consumer gets past;"
        " convert into a fresh store",
    )
    root.require_readable()
    refuse_member(
        root.path,
        "what is appended to one member alone takes it apart from the others, and a broker without"
        " the group deletes its consume queues; convert into a fresh store",
    )
    for directory in root.places.elsewhere:
        raise UnsupportedStoreError(
            f"{directory}: a part of the store in another place; only a store with all of its parts"
            " in its root is changed in place. Convert into a fresh store"
        )
    root.require_log()
    require_whole_log(root)
    for cut in cut_queues_of(root):
        raise SourceError(
            f"{cut}; open it with `delaywheel run` first, which takes them from the log, or convert"
            " into a fresh store"
        )
    for name, reason in _REPLICA_FILES.items():
        if is_present(root.path / name):
            raise UnsupportedStoreError(f"{root.path / name}: {reason}")
    for name, what in _REFUSED_QUEUES.items():
        if holds_queues(root.path / name):
            raise UnsupportedStoreError(f"{root.path / name}: {what}: cannot be changed in place")
    file_sizes(root)


def file_sizes(root: StoreRoot) -> StoreSettings:
    """The sizes of the store's files, a broker's defaults where it has none.

    Raises SourceError for a row that cannot be appended to.
    """
    defaults = StoreSettings()
    log_bytes = require_appendable(list_segments(root.commit_log), defaults.commit_log_file_bytes)
    return StoreSettings(
        commit_log_file_bytes=log_bytes,
        queue_file_bytes=usual_queue_bytes(root) or defaults.queue_file_bytes,
    )


def _problem_at(log: SegmentReader, offset: int) -> str:
    """Why no record can be read at an offset, in the words of ``pending`` and ``convert``."""
    segment = log.segment_at(offset)
    room = 0 if segment is None else segment.start_offset + segment.length_bytes - offset
    try:
        head = BLANK_RECORD.decode_at(log.read_at(offset, min(room, BLANK_RECORD.size)), 0)
        size_bytes = min(max(head["size_bytes"], BLANK_RECORD.size), room, _MOST_READ_BYTES)
        decode_message_at(log.read_at(offset, size_bytes))
    except FormatError as error:
        return error.problem
    return "a record that belongs elsewhere"


def refuse_damage(root: StoreRoot) -> None:
    """Raise SourceError for a log that a starting broker cuts off within what its queues know: all
    that is appended would go with the rest.
    """
    with open_log(root) as log:
        indexed = find_indexed_end(root.path, log).log_offset
        start = _recovered_from(root, log)
        scan = find_log_end(log, from_offset=start, known_end=indexed)
        if scan.damaged_places:
            damaged_offset = scan.damaged_places[0]
            raise SourceError(
                f"{root.commit_log}: log offset {damaged_offset} cannot be read:"
                f" {_problem_at(log, damaged_offset)}."
                " A broker takes that for the log's end when it starts, and cuts off"
                f" what is behind it, what would be appended too; {_INSTEAD}"
            )
    if not root.was_stopped_cleanly:
        return  # what queues have beyond the log is then cut off before anything is planned
    queues = [root.timer_queue(), *map(root.level_queue, levels_with_queue(root.path))]
    for queue in queues:
        unit = read_last_entry(queue).units
        ends = unit["commit_log_offset"].astype(np.int64) + unit["size_bytes"]
        if int(ends[is_message(unit)].max(initial=0)) > scan.log_end:
            raise SourceError(
                f"{queue}: leads behind the end of the log, {scan.log_end:,}: a broker cuts such"
                f" entries off when it starts; {_INSTEAD}"
            )


def _recovered_from(root: StoreRoot, log: SegmentReader) -> int:
    """The offset from which a starting broker scans the log, at the earliest.

    RocketMQ: CommitLog#recoverNormally, #recoverAbnormally.
    """
    if not log.segments:
        return log.min_offset
    start = log.segments[-_RECOVERED_FILES:][0].start_offset
    if root.was_stopped_cleanly:
        return start
    checkpoint = StoreCheckpoint.decode(read_small_file(root.checkpoint) or b"")
    passed = [at for at, ms in first_store_times(log) if ms <= checkpoint.recover_from_ms]
    return min(start, max(passed, default=log.min_offset))


def read_ends(root: StoreRoot) -> Ends:
    """The ends of log and timer queue, and a digest of what the wheel has placed."""
    with open_log(root) as log:
        log_end = find_log_end(log).log_end
    queue = read_queue(root.timer_queue(), from_queue_offset=LONG_MAX)
    digest = hashlib.sha256(
        read_small_file(root.config_file(TIMER_CHECKPOINT_NAME)) or b"\0" * 4096
    )
    with SegmentReader(root.timer_log) as timer_log:
        last = timer_log.segments[-1].start_offset if timer_log.segments else 0
        digest.update(str(read_units(timer_log, last).end_position).encode())
    return Ends(log_end=log_end, timer_queue_end=queue.queue_max, wheel=digest.hexdigest())


@attrs.frozen
class OwnWheel:
    """The store's own wheel: appended messages must not be due before ``read_time_ms``."""

    read_time_ms: int
    warnings: tuple[str, ...]


def check_wheel(
    root: StoreRoot, settings: TargetSettings, ends: Ends, *, is_ours_and_unopened: bool
) -> OwnWheel:
    """Raise UnsupportedStoreError when appended messages would be lost or others repeated.

    ``is_ours_and_unopened``: the queue was filled by us, and no broker has looked at it since.
    """
    refuse_waiting_timeline(root)
    checkpoint = read_timer_checkpoint(root)
    with SegmentReader(root.timer_log) as timer_log, open_log(root) as log:
        units = read_units(timer_log)
        resume = noted_queue_offset(root, log, units, checkpoint)
    queue_end = ends.timer_queue_end
    if queue_end and not len(units) and not is_ours_and_unopened:
        entries = counted(queue_end, "entry", "entries")
        raise UnsupportedStoreError(
            f"{root.timer_log}: has no units, where {root.timer_queue()} has {entries}:"
            " a broker would deliver duplicates, or nothing;"
            " convert its levels into a fresh store (--levels-only)"
        )
    if len(units) and checkpoint.master_queue_offset == 0:
        raise UnsupportedStoreError(
            f"{root.config_file(TIMER_CHECKPOINT_NAME)}: is missing or empty, where the timer log"
            " has units: a broker would deliver duplicates;"
            " convert its levels into a fresh store (--levels-only)"
        )
    if resume > queue_end:
        raise UnsupportedStoreError(
            f"{root.timer_queue()}: ends at {queue_end:,}, where the wheel took in {resume:,}"
            " entries: it would skip appended records;"
            " convert its levels into a fresh store (--levels-only)"
        )
    warnings = []
    precision_ms = read_last_flush(root).precision_ms
    if len(units):
        precision_ms = precision_ms or guess_precision(units, all_slots(root))
        if snapshots(root):
            warnings.append("the wheel is kept in snapshots: keep timerWheelSnapshotFlush=true")
    if precision_ms not in (0, settings.precision_ms):
        raise OptionsError(
            f"the store's own wheel has a precision of {precision_ms} ms, not"
            f" {settings.precision_ms}: --precision-ms, or timerPrecisionMs of --target-conf"
        )
    return OwnWheel(checkpoint.last_read_time_ms, tuple(warnings))
