# SPDX-License-Identifier: Apache-2.0
"""What a driver makes of its library: a queue that is put into and consumed from.

A driver is a module with ``open_queue(directory, is_power_safe)``, and ``serve(directory,
is_power_safe)`` where the library needs a server: it prepares the directory, and its command is
then run until it is ended.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

Handle = Callable[[bytes], None]
Stop = Callable[[], bool]
POLL_S = 0.002
"""How often a queue by hand looks for what is due."""


class PeerQueue(Protocol):
    """A queue as the benchmark sees it."""

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """Store messages for one due time. Returns when they are as durable as was asked for."""

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Handle each message that is due, and acknowledge it afterwards, ``take`` at a time; until
        ``stop``.
        """

    def close(self) -> None:
        """End cleanly."""


def consume_by_hand(
    receive: Callable[[int], Sequence[tuple[object, bytes]]],
    acknowledge: Callable[[Sequence[object]], None],
    handle: Handle,
    stop: Stop,
    take: int,
) -> None:
    """The loop of a consumer that asks for what is due: (name, body) pairs, at most ``take``."""
    while not stop():
        received = receive(take)
        for _, body in received:
            handle(body)
        if received:
            acknowledge([name for name, _ in received])
        else:
            time.sleep(POLL_S)


def wait_for(stop: Stop) -> None:
    """Until told to stop, while a library's own worker is at work."""
    while not stop():
        time.sleep(0.01)
