# SPDX-License-Identifier: Apache-2.0
"""RQ on a Valkey server: jobs with a time, moved to their queue once a second by its scheduler."""

import os
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rq import Queue, SimpleWorker

from benchmarks.peer_queues.interface import Handle, Stop, wait_for
from benchmarks.peer_queues.valkey import connect, serve

__all__ = ["open_queue", "serve"]

_HANDLES: list[Handle] = []


def handle_one(body: bytes) -> None:
    """The job of each message: jobs are found by their function's name."""
    _HANDLES[-1](body)


class Jobs:
    """A job for each message. Its worker does not fork for each, which would take longer."""

    def __init__(self, directory: Path) -> None:
        self._client = connect(directory)
        self._queue = Queue("peer", connection=self._client)

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one."""
        for body in bodies:
            self._queue.enqueue_at(
                datetime.fromtimestamp(due_ms / 1_000, UTC), handle_one, body, result_ttl=0
            )

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Its own worker with its scheduler, which a signal ends."""
        _HANDLES.append(handle)

        def end() -> None:
            wait_for(stop)
            os.kill(os.getpid(), signal.SIGINT)

        ending = threading.Thread(target=end)
        ending.start()
        SimpleWorker([self._queue], connection=self._client).work(
            with_scheduler=True, logging_level="ERROR"
        )
        ending.join()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def open_queue(directory: Path, is_power_safe: bool) -> Jobs:
    """The jobs of the server in ``directory``."""
    return Jobs(directory)
