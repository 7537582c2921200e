# SPDX-License-Identifier: Apache-2.0
"""A process that ends when its parent process has ended, however that ended."""

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the system kill this process when its parent, of that process id, has ended; at once
    where that is so already. Only Linux can; elsewhere nothing is done.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
