# SPDX-License-Identifier: Apache-2.0
"""A source that already used a timer wheel: what still waits there is no level message, and would
be left behind.
"""

from message_store.errors import MigrationError
from message_store.store_root import StoreRoot
from timer_wheel.wheel_reader import read_wheel_store


class WheelNotEmptyError(MigrationError):
    """The source's own wheel holds messages that a conversion of the levels would leave behind."""


def require_empty_wheel(source: StoreRoot, now_ms: int) -> None:
    """Raise WheelNotEmptyError when messages wait in the source's wheel."""
    if not source.timer_queue().is_dir():
        return
    wheel = read_wheel_store(
        source,
        now_ms=now_ms,
        whole_log=True,
        topic_in_delete_key=None,
        after_crash=not source.was_stopped_cleanly,
    )
    if waiting := len(wheel.pending):
        raise WheelNotEmptyError(
            f"{source.path}: {waiting} messages wait in its timer wheel and would be left behind;"
            " --levels-only converts the levels alone"
        )
