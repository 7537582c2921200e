# SPDX-License-Identifier: Apache-2.0
"""Ports for servers: below those that the system hands out to connections, in blocks of ten that no
other process of a run is given, and no test before in this one.
"""

import itertools
import os
import random
import socket
from typing import Final

BLOCK: Final = 10
_PROCESSES: Final = 8


def _blocks() -> "itertools.cycle[int]":
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
    ours = [*range(20_000, 32_000, BLOCK)][worker::_PROCESSES]
    begin = random.SystemRandom().randrange(len(ours))  # another run begins elsewhere
    return itertools.cycle(ours[begin:] + ours[:begin])


_BLOCKS = _blocks()


def free_ports() -> range:
    """The ten ports of the next block in which nobody listens."""
    for first in itertools.islice(_BLOCKS, 200):
        if all(map(_is_free, block := range(first, first + BLOCK))):
            return block
    raise RuntimeError("no free ports between 20000 and 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
