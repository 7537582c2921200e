# SPDX-License-Identifier: Apache-2.0
"""A source that already used a timer wheel: what still waits there is no level message, and would
be left behind.
"""

from message_store.base.errors import MigrationError
from message_store.base.printable import counted
from message_store.files.small_files import is_directory
from message_store.files.store_root import StoreRoot
from timer_wheel.format.checkpoint import read_timer_checkpoint
from timer_wheel.reading.wheel_reader import read_wheel_store


class WheelNotEmptyError(MigrationError):
    """The source's own wheel holds messages that a conversion of the levels would leave behind."""


def require_empty_wheel(source: StoreRoot) -> None:
    """Raise WheelNotEmptyError when messages wait in the source's wheel."""
    if waiting := waiting_in_wheel(source):
        told = counted(waiting, "message waits", "messages wait")
        raise WheelNotEmptyError(
            f"{source.path}: {told} in its timer wheel or timeline and would be left behind;"
            " --levels-only converts the levels alone"
        )


def waiting_in_wheel(source: StoreRoot) -> int:
    """How many messages wait in the source's own wheel, or in its RocksDB timeline.

    What counts is what the wheel had not delivered when its hand last moved: the store may have
    lain for longer than a wheel is, and a broker that starts today would no longer reach it all.
    """
    if not is_directory(source.timer_queue()):
        return 0
    wheel = read_wheel_store(
        source,
        now_ms=read_timer_checkpoint(source).last_read_time_ms,
        whole_log=True,
        topic_in_delete_key=None,
        after_crash=not source.was_stopped_cleanly,
    )
    return len(wheel.pending)
