# SPDX-License-Identifier: Apache-2.0
"""huey on SQLite: a task with a time, dequeued before it is run."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from huey import SqliteHuey

from benchmarks.peer_queues.interface import Handle, Stop, wait_for


class HueyQueue:
    """A task for each message. Its scheduler looks once a second, which is its least."""

    def __init__(self, directory: Path, is_power_safe: bool) -> None:
        self._handle: Handle | None = None
        self._huey = SqliteHuey(
            "peer", filename=str(directory / "huey.db"), fsync=is_power_safe, results=False
        )
        self._task = self._huey.task(name="handle")(self._run)

    def _run(self, body: bytes) -> None:
        if self._handle is not None:
            self._handle(body)

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one; an aware time keeps its fraction of a second."""
        for body in bodies:
            self._task.schedule((body,), eta=datetime.fromtimestamp(due_ms / 1_000, UTC))

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Its own consumer with one worker thread."""
        self._handle = handle
        consumer = self._huey.create_consumer(
            workers=1, periodic=False, initial_delay=0.002, max_delay=0.01
        )
        consumer.start()
        wait_for(stop)
        consumer.stop(graceful=True)

    def close(self) -> None:
        """Close its connection."""
        self._huey.storage.close()


def open_queue(directory: Path, is_power_safe: bool) -> HueyQueue:
    """The tasks in ``directory``."""
    return HueyQueue(directory, is_power_safe)
