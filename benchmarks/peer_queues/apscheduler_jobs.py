# SPDX-License-Identifier: Apache-2.0
"""APScheduler 3 with its store of jobs in SQLite, which syncs every commit."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.peer_queues.interface import Handle, Stop, wait_for

_HANDLES: list[Handle] = []


def handle_one(body: bytes) -> None:
    """The job of each message: jobs are found by their function's name."""
    _HANDLES[-1](body)


class Jobs:
    """A job with a date for each message."""

    def __init__(self, directory: Path) -> None:
        self._scheduler = BackgroundScheduler(timezone=UTC)
        self._scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{directory / 'jobs.db'}")
        self._scheduler.start(paused=True)

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one."""
        for body in bodies:
            self._scheduler.add_job(
                handle_one,
                "date",
                run_date=datetime.fromtimestamp(due_ms / 1_000, UTC),
                args=[body],
                misfire_grace_time=None,
            )

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Its own scheduler with its pool of ten threads."""
        _HANDLES.append(handle)
        self._scheduler.resume()
        wait_for(stop)
        self._scheduler.pause()

    def close(self) -> None:
        """Wait for what runs."""
        self._scheduler.shutdown()


def open_queue(directory: Path, is_power_safe: bool) -> Jobs:
    """The jobs in ``directory``; they are safe from a loss of power in any case."""
    return Jobs(directory)
