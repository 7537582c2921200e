# SPDX-License-Identifier: Apache-2.0
"""A table and an index on its due times: the thirty lines that people write by hand."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peer_queues.interface import Handle, Stop, consume_by_hand


class SqliteQueue:
    """A message is deleted when it was handled."""

    def __init__(self, directory: Path, is_power_safe: bool) -> None:
        self._database = sqlite3.connect(
            directory / "queue.db", isolation_level=None, check_same_thread=False, timeout=30
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(f"PRAGMA synchronous={'FULL' if is_power_safe else 'NORMAL'}")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY, due_ms INTEGER, body BLOB)"
        )
        self._database.execute("CREATE INDEX IF NOT EXISTS by_due ON waiting (due_ms)")

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One transaction."""
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(
            "INSERT INTO waiting (due_ms, body) VALUES (?, ?)", ((due_ms, body) for body in bodies)
        )
        self._database.execute("COMMIT")

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Look for what is due, every two milliseconds where nothing is."""
        consume_by_hand(self._receive, self._delete, handle, stop, take)

    def _receive(self, take: int) -> list[tuple[int, bytes]]:
        return self._database.execute(
            "SELECT id, body FROM waiting WHERE due_ms <= ? ORDER BY due_ms LIMIT ?",
            (time.time_ns() // 1_000_000, take),
        ).fetchall()

    def _delete(self, names: Sequence[object]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("DELETE FROM waiting WHERE id = ?", ((name,) for name in names))
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def open_queue(directory: Path, is_power_safe: bool) -> SqliteQueue:
    """The queue in ``directory``."""
    return SqliteQueue(directory, is_power_safe)
