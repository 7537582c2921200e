# SPDX-License-Identifier: Apache-2.0
"""A lock that is held while something is open."""

import threading
from collections.abc import Callable


class LockedWhileOpen:
    """For ``with``: holds ``lock``, of something for which ``require_open`` did not raise.

    A class, because a generator with ``contextmanager`` takes three times as long.
    """

    __slots__ = ("_lock", "_require_open")

    def __init__(self, lock: "threading.RLock", require_open: Callable[[], None]) -> None:
        self._lock = lock
        self._require_open = require_open

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._require_open()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
