# SPDX-License-Identifier: Apache-2.0
"""A process that converts, or merges, and is killed at a random moment: so many changes of the
disk, and then some microseconds, after it began.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrate.convert import convert, convert_merged
from tests.migrate.stopped_conversions import asked_merge

CHANGES = ("replace", "pwrite", "ftruncate", "unlink", "fsync", "mkdir")


def count_changes(after: int, then: Callable[[], None]) -> list[int]:
    """Call ``then`` once so many changes of the disk are done; gives how many are, as it grows."""
    done = [0]

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **options: Any) -> Any:
            done[0] += 1
            if done[0] == after:
                then()
            return operation(*given, **options)

        return step

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    return done


def die_in(microseconds: int) -> None:
    """SIGKILL, soon, while the work goes on in the meantime."""

    def die() -> None:
        time.sleep(microseconds / 1e6)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


if __name__ == "__main__":
    place, sources, engine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    after, microseconds = int(sys.argv[4]), int(sys.argv[5])
    changes = count_changes(after, lambda: die_in(microseconds))
    members = asked_merge(place, sources, engine=engine)
    convert_merged(members) if sources > 1 else convert(members[0])
    sys.stdout.write(str(changes[0]))
