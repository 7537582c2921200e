# SPDX-License-Identifier: Apache-2.0
"""Spark's default master, and whether a master is this machine alone.

Kept apart so that the command line can show its defaults without loading Spark.
"""

from pathlib import Path

from message_store.base.errors import OptionsError

DEFAULT_MASTER = "local[*,4]"


def is_one_machine(master: str | None) -> bool:
    """Whether all workers of this master see the files of this machine."""
    return master is not None and master.startswith("local")


def require_shared_directory(master: str | None, directory: Path | None, flag: str) -> None:
    """Raise OptionsError for a cluster without a directory that all its workers see. Without a
    master there are no workers.
    """
    if master is not None and directory is None and not is_one_machine(master):
        raise OptionsError(
            f"--master {master} is not this machine alone: {flag} must name a directory that every"
            " worker sees under the same path"
        )
