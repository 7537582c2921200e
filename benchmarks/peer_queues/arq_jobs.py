# SPDX-License-Identifier: Apache-2.0
"""arq on a Valkey server: deferred jobs, and a worker that looks twice a second by default."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arq.connections import RedisSettings, create_pool
from arq.worker import Worker, func

from benchmarks.peer_queues.interface import Handle, Stop
from benchmarks.peer_queues.valkey import connect, serve, socket_of

__all__ = ["open_queue", "serve"]

_JOB_S = 10


class Jobs:
    """A job may take ten seconds: then one whose worker was killed is run again."""

    def __init__(self, directory: Path) -> None:
        connect(directory).close()  # when the server has started
        self._settings = RedisSettings(unix_socket_path=socket_of(directory))
        self._runner = asyncio.Runner()
        self._pool = self._runner.run(create_pool(self._settings))

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one."""
        self._runner.run(self._put(bodies, datetime.fromtimestamp(due_ms / 1_000, UTC)))

    async def _put(self, bodies: Sequence[bytes], due: datetime) -> None:
        for body in bodies:
            await self._pool.enqueue_job("handle", body, _defer_until=due)

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Its own worker."""
        self._runner.run(self._consume(handle, stop))

    async def _consume(self, handle: Handle, stop: Stop) -> None:
        async def run(_context: Any, body: bytes) -> None:
            handle(body)

        worker = Worker(
            [func(run, name="handle", keep_result=0)],
            redis_settings=self._settings,
            handle_signals=False,
            job_timeout=_JOB_S,
        )
        running = asyncio.ensure_future(worker.async_run())
        while not stop():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.close()

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._pool.aclose())
        self._runner.close()


def open_queue(directory: Path, is_power_safe: bool) -> Jobs:
    """The jobs of the server in ``directory``."""
    return Jobs(directory)
