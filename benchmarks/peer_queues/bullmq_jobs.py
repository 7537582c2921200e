# SPDX-License-Identifier: Apache-2.0
"""BullMQ on a Valkey server: delayed jobs, with a lock while a worker has them."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bullmq import Queue, Worker

from benchmarks.peer_queues.interface import Handle, Stop
from benchmarks.peer_queues.valkey import connect, serve, socket_of

__all__ = ["open_queue", "serve"]

_KEPT = {"removeOnComplete": True}


class Jobs:
    """A job for each message, removed when it was handled."""

    def __init__(self, directory: Path) -> None:
        connect(directory).close()  # when the server has started
        self._connection = f"unix://{socket_of(directory)}"
        self._runner = asyncio.Runner()
        self._queue = self._runner.run(self._opened())

    async def _opened(self) -> Any:
        return Queue("peer", {"connection": self._connection})

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one."""
        delay_ms = max(0, due_ms - time.time_ns() // 1_000_000)
        self._runner.run(self._put(bodies, _KEPT | {"delay": delay_ms}))

    async def _put(self, bodies: Sequence[bytes], wanted: dict[str, Any]) -> None:
        for body in bodies:
            await self._queue.add("message", {"body": body.decode()}, wanted)

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Its own worker, one job at a time."""
        self._runner.run(self._consume(handle, stop))

    async def _consume(self, handle: Handle, stop: Stop) -> None:
        async def run(job: Any, _token: str) -> None:
            handle(job.data["body"].encode())

        worker = Worker("peer", run, {"connection": self._connection})
        while not stop():
            await asyncio.sleep(0.01)
        await worker.close(force=True)

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._queue.close())
        self._runner.close()


def open_queue(directory: Path, is_power_safe: bool) -> Jobs:
    """The jobs of the server in ``directory``."""
    return Jobs(directory)
