# SPDX-License-Identifier: Apache-2.0
"""A kill in the middle of a call: what a process leaves that got so far and no further.

The call is made in a fork of this process, which kills itself at a chosen one of the Python calls
within. Its files are what it left; nothing here saw it happen, as nothing would on a real machine.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from compare.running.parent_process import end_with
from message_store.base.clock import SystemClock, stopwatch_s

_PATIENCE_S = 20


def run_until_killed(work: Callable[[], object], call: int) -> None:
    """Do ``work`` in a fork that dies at the ``call``-th function it enters, or at its end.

    A fork has no threads but this one: should it wait for another, it is killed where it waits.
    """
    parent = os.getpid()
    child = os.fork()
    if child:
        clock, started = SystemClock(), stopwatch_s()
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if stopwatch_s() - started > _PATIENCE_S:
                os.kill(child, signal.SIGKILL)
            clock.sleep_ms(1)
        return
    end_with(parent)
    left = call

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        if event == "call":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.setprofile(count)
        work()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
