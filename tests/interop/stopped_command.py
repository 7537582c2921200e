# SPDX-License-Identifier: Apache-2.0
"""Runs one delaywheel command in this process and dies, as by a crash, before one chosen rename.

A program: ``python -m tests.interop.stopped_command PATH VERB ARGUMENT…`` kills itself when PATH is
about to be renamed, or about to be replaced; PATH may be a pattern, as of a shell.
"""

import os
import signal
import sys
from fnmatch import fnmatchcase
from typing import Any

from cli import main


def die_before(path: str) -> None:
    """Let the rename from or to this path be the last thing this process tries."""
    rename = os.replace

    def dying(source: Any, target: Any) -> None:
        if any(fnmatchcase(os.fspath(name), path) for name in (source, target)):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.replace = dying  # type: ignore[assignment]


if __name__ == "__main__":
    die_before(sys.argv[1])
    main(sys.argv[2:])
