# SPDX-License-Identifier: Apache-2.0
"""``config/timercheck``: how far the wheel's hand, its log and its queue have come.

It is written once a second and lags behind by that much. A missing file is a file of zeros, which
to a broker means: place every message of the timer queue again.
"""

import attrs

from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.layout import Field, Layout

TIMER_CHECKPOINT_NAME = "timercheck"
TIMER_CHECKPOINT_FILE_BYTES = 4096

TIMER_CHECKPOINT = Layout(
    "timer checkpoint",
    (
        Field("last_read_time_ms", "i64", "slots before it are done (lastReadTimeMs)"),
        Field("flush_position", "i64", "timer log position that was durable by then"),
        Field("last_queue_offset", "i64", "timer queue entries placed (lastTimerQueueOffset)"),
        Field("master_queue_offset", "i64", "the same on the master; resuming never goes beyond"),
        Field("state_version", "i64", "dataVersion.stateVersion"),
        Field("timestamp_ms", "i64", "dataVersion.timestamp"),
        Field("counter", "i64", "dataVersion.counter"),
    ),
)


@attrs.frozen
class TimerCheckpoint:
    """The seven numbers of the file, by the names of its layout."""

    last_read_time_ms: int = 0
    flush_position: int = 0
    last_queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """The whole file: the numbers, then zeros."""
    numbers = TIMER_CHECKPOINT.encode(**attrs.asdict(checkpoint))
    return numbers.ljust(TIMER_CHECKPOINT_FILE_BYTES, b"\0")


def decode_timer_checkpoint(content: bytes) -> TimerCheckpoint:
    """The numbers of a file of any length: a broker fills up a short one with zeros."""
    padded = content[: TIMER_CHECKPOINT.size].ljust(TIMER_CHECKPOINT.size, b"\0")
    return TimerCheckpoint(**TIMER_CHECKPOINT.decode_at(padded, 0))


def read_timer_checkpoint(root: StoreRoot) -> TimerCheckpoint:
    """The checkpoint of a store; zeros when there is none. Raises SourceError."""
    content = read_small_file(root.config_file(TIMER_CHECKPOINT_NAME))
    return decode_timer_checkpoint(content or b"")
