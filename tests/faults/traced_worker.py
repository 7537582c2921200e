# SPDX-License-Identifier: Apache-2.0
"""The process whose system calls are written down: works on a hierarchical wheel and dies.

It goes on alone, with a database that begins new files often: what RocksDB writes is no call of
Python's, and is seen by who looks at the process from outside only. Every step, and every flush
that came back, is a line in a file beside the store.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.engines import ENGINES, Engine
from tests.faults.kill_worker import Task, Worker
from timer_wheel.hierarchy import index_db

ENGINE = "hierarchy"
NOTES = "notes"
_CHANGES_BYTES = 2 << 10


class NotingWorker(Worker):
    """Notes in a file what is told of a recorded worker."""

    def __init__(self, task: Task, engine: Engine) -> None:
        self._notes = os.open(Path(task.folder) / NOTES, os.O_WRONLY | os.O_CREAT, 0o644)
        super().__init__(task, engine)

    def _say(self, facts: dict[str, Any]) -> None:
        os.write(self._notes, json.dumps(facts).encode() + b"\n")

    def _note(self, step: str, **facts: Any) -> None:
        super()._note(step, **facts)
        self._say({"step": step, **facts})

    def flush(self) -> None:
        super().flush()
        self._say({"step": "flushed"})

    def reopen(self) -> None:
        super().reopen()
        self._say({"step": "flushed"})


def main(folder: str, seed: int, steps: Sequence[int]) -> None:
    """Take so many steps, a flush after each row of them but the last."""
    index_db._CHANGES_BYTES = _CHANGES_BYTES
    worker = NotingWorker(Task(ENGINE, folder, seed), ENGINES[ENGINE])
    for number, count in enumerate(steps):
        worker.work(count)
        if number < len(steps) - 1:
            worker.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(count) for count in sys.argv[3:]])
