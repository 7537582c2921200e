# SPDX-License-Identifier: Apache-2.0
"""procrastinate on a PostgreSQL server: jobs with a time, in its own tables."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.peer_queues.interface import Handle, Stop
from benchmarks.peer_queues.postgres import connect, conninfo, serve

__all__ = ["open_queue", "serve"]

_POLL_S = 0.1
"""Its default of five seconds would be the lateness."""


class Jobs:
    """A job for each message, deleted when it was handled."""

    def __init__(self, directory: Path) -> None:
        self._handle: Handle | None = None
        connection = connect(directory)
        self._conninfo = conninfo(directory)
        self._app = App(connector=SyncPsycopgConnector(conninfo=self._conninfo))
        self._task = self._app.task(name="handle")(self._run)
        self._app.open()
        found = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
        if found == (None,):
            self._app.schema_manager.apply_schema()
        connection.close()

    def _run(self, body: str) -> None:
        if self._handle is not None:
            self._handle(body.encode())

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one."""
        due = datetime.fromtimestamp(due_ms / 1_000, UTC)
        for body in bodies:
            self._task.configure(schedule_at=due).defer(body=body.decode())

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Its own worker, one job at a time."""
        self._handle = handle
        asyncio.run(self._consume(stop))

    async def _consume(self, stop: Stop) -> None:
        connector = PsycopgConnector(conninfo=self._conninfo)
        app = self._app.with_connector(connector)
        async with app.open_async():
            working = asyncio.ensure_future(
                app.run_worker_async(
                    fetch_job_polling_interval=_POLL_S,
                    install_signal_handlers=False,
                    delete_jobs="always",
                )
            )
            while not stop() and not working.done():
                await asyncio.sleep(0.01)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def close(self) -> None:
        """Close the connections."""
        self._app.close()


def open_queue(directory: Path, is_power_safe: bool) -> Jobs:
    """The jobs of the server in ``directory``."""
    return Jobs(directory)
