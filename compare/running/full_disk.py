# SPDX-License-Identifier: Apache-2.0
"""A disk that takes nothing more: this process may not write to any file until there is room again.

By the system's own limit on the size of files, so that the engine meets a real refusal and no
imitation. What is mapped into memory already has its room, as on a real full disk. Only for a
process that does nothing else.
"""

import resource


def fill_disk() -> None:
    """From here on every write to a file is refused."""
    _most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


def make_room() -> None:
    """Writes go through again."""
    _most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
