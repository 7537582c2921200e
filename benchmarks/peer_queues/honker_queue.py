# SPDX-License-Identifier: Apache-2.0
"""honker: a queue on SQLite with claims; due times are whole seconds, rounded up here."""

from collections.abc import Sequence
from pathlib import Path

import honker

from benchmarks.peer_queues.interface import Handle, Stop, consume_by_hand

_WORKER = "worker"
_CLAIM_S = 10


class HonkerQueue:
    """A claim ends after ten seconds; a benchmark cannot wait for the default of 300."""

    def __init__(self, directory: Path) -> None:
        self._database = honker.open(str(directory / "honker.db"))
        self._queue = self._database.queue("peer", visibility_timeout_s=_CLAIM_S)

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One transaction."""
        with self._database.transaction() as transaction:
            for body in bodies:
                self._queue.enqueue(body.decode(), tx=transaction, run_at=-(-due_ms // 1_000))

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Claim what is due, every two milliseconds where nothing is."""
        consume_by_hand(self._receive, self._ack, handle, stop, take)

    def _receive(self, take: int) -> list[tuple[int, bytes]]:
        jobs = self._queue.claim_batch(_WORKER, take)
        return [(job.id, job.payload.encode()) for job in jobs]

    def _ack(self, names: Sequence[object]) -> None:
        self._queue.ack_batch(names, _WORKER)

    def close(self) -> None:
        """It has nothing to be closed."""


def open_queue(directory: Path, is_power_safe: bool) -> HonkerQueue:
    """The queue in ``directory``; it has no setting that syncs each transaction."""
    return HonkerQueue(directory)
