# SPDX-License-Identifier: Apache-2.0
"""Which files a process has open, of those that a test is about: sockets of others come and go."""

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """The files and folders below ``folder`` that are open, once for each handle."""
    places = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own handle, or one that another thread closed
            places.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(each for each in places if each.startswith(str(folder.resolve())))
