# SPDX-License-Identifier: Apache-2.0
"""The lock file of a store, held for reading or for writing, and who holds it."""

import ctypes
import fcntl
import itertools
import os
from contextlib import suppress
from pathlib import Path

from message_store.base.errors import StoreLockedError, StoreOpenError
from message_store.base.forks import belongs_to_this_process

_OF_AN_OPEN_FILE = -1
"""Linux gives this in place of a process id for a lock of an open file, as ours are."""


def _names(directory: str) -> list[str]:
    """The names in a directory; none where it is missing or may not be read."""
    with suppress(OSError):
        return os.listdir(directory)
    return []


class _Flock(ctypes.Structure):
    """C's struct flock: a lock of the first byte, or who is in its way."""

    _fields_ = (
        ("l_type", ctypes.c_short),
        ("l_whence", ctypes.c_short),
        ("l_start", ctypes.c_int64),
        ("l_len", ctypes.c_int64),
        ("l_pid", ctypes.c_int),
    )


class StoreLock:
    """A store's lock file, until ``release``.

    The lock belongs to this open file (Linux: F_OFD_SETLK), and not to the process as with plain
    POSIX locks: a second opening in this process is refused, and closing another handle of the file
    gives nothing up. Holders of plain POSIX locks, as brokers are, see it and are seen.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        belongs_to_this_process(self)

    def take(self, kind: int) -> None:
        """Lock it: F_RDLCK together with other readers, F_WRLCK alone. Raises OSError."""
        self._call(fcntl.F_OFD_SETLK, kind)

    def blocking_pid(self, kind: int) -> int:
        """Whose plain POSIX lock is in the way; -1 where an open file has the lock, 0 where nothing
        is in the way any more, or its process cannot be seen from here.
        """
        with suppress(OSError):
            found = self._call(fcntl.F_OFD_GETLK, kind)
            return 0 if found.l_type == fcntl.F_UNLCK else int(found.l_pid)
        return 0

    def holder(self) -> int | None:
        """A process with an open file that has a lock on this one, this process first; None where
        Linux shows none to this user.
        """
        assert self._descriptor is not None
        own = os.fstat(self._descriptor)
        others = (int(name) for name in _names("/proc") if name.isdigit())
        for pid in itertools.chain([os.getpid()], others):
            for name in _names(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    other = os.stat(f"/proc/{pid}/fd/{name}")
                    is_it = (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino)
                    if is_it and b"\nlock:" in Path(f"/proc/{pid}/fdinfo/{name}").read_bytes():
                        return pid
        return None

    def refusal(self, path: Path, kind: int) -> StoreLockedError:
        """What to say where the lock file at ``path`` is held: by whom if known, what to do."""
        blocking_pid = self.blocking_pid(kind)
        if blocking_pid != _OF_AN_OPEN_FILE:  # plain POSIX locks, which delaywheel does not take
            who = f"another process (pid {blocking_pid})" if blocking_pid else "another process"
            return StoreLockedError(
                f"{path}: held by {who}; stop the broker first, or whatever program that is",
                blocking_pid or None,
            )
        pid = self.holder()
        if pid == os.getpid():
            return StoreOpenError(
                f"{path}: the store is open in this process; close it there first", pid
            )
        if pid is not None:
            return StoreOpenError(
                f"{path}: held by another process (pid {pid}) that runs delaywheel; wait until"
                " it ends, or stop it",
                pid,
            )
        return StoreOpenError(
            f"{path}: open in this process, or held by another process that runs delaywheel;"
            " close it there, or wait for the command that has the store open"
        )

    def _call(self, command: int, kind: int) -> _Flock:
        assert self._descriptor is not None
        wanted = bytes(_Flock(kind, os.SEEK_SET, 0, 1, 0))
        return _Flock.from_buffer_copy(fcntl.fcntl(self._descriptor, command, wanted))

    def release(self) -> None:
        """Let others in; twice is fine."""
        if self._descriptor is not None:
            with suppress(OSError):  # before closing: a forked child may still have the file
                self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
            os.close(self._descriptor)
            self._descriptor = None

    def leave_to_parent(self) -> None:
        """In a forked child: give the file back and leave the lock to the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
