# SPDX-License-Identifier: Apache-2.0
"""What the stores of a race take on the disk at most, told before anything is written.

Files of a log are as long as a broker's from the beginning, but take only what is written.
"""

from pathlib import Path

from compare.running.work_files import disk_bytes
from compare.workloads.workload import Workload

_RECORD_BESIDES_BODY_BYTES = 350
_BESIDES_BYTES = 20 + 20 + 53
_STORE_BYTES = 96 << 20
"""The slots of a wheel that are all in use, an index and its log, RocketMQ's own logs."""


def store_bytes(workload: Workload) -> int:
    """A store that is given these messages: each twice, as it waits and as it is delivered, and
    what belongs to it.
    """
    sizes = workload.body_bytes
    each = 2 * (int(sizes.sum()) + len(sizes) * _RECORD_BESIDES_BODY_BYTES)
    return each + len(sizes) * _BESIDES_BYTES + _STORE_BYTES


def copied_store_bytes(store: Path) -> int:
    """A copy of this store that then delivers whatever waits in it."""
    return 2 * disk_bytes(store) + _STORE_BYTES
