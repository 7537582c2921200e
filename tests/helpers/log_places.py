# SPDX-License-Identifier: Apache-2.0
"""Puts the files of a log into several directories, as a broker with a list of paths does."""

from collections.abc import Sequence
from pathlib import Path

from tests.independent.raw_files import segments


def scatter(log: Path, *directories: Path) -> None:
    """Move the files of a log to these directories in turn; the log's own directory goes."""
    for directory in directories:
        directory.mkdir(parents=True)
    for number, file in enumerate(segments(log)):
        file.rename(directories[number % len(directories)] / file.name)
    log.rmdir()


def broker_conf(path: Path, root: Path, key: str, directories: Sequence[Path]) -> Path:
    """A broker's configuration with a list of paths."""
    paths = ",".join(map(str, directories))
    path.write_text(f"storePathRootDir={root}\n{key}={paths}\n", "utf-8")
    return path
