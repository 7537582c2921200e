# SPDX-License-Identifier: Apache-2.0
"""What of a directory a loss of power could still take: what was changed and not waited for.

A file or directory is safe when the last fsync of it saw the time of change that it has now. That
holds for whoever writes, a library in another language as well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class DiskWatch:
    """Which inodes were waited for, and in which state."""

    def __init__(self) -> None:
        self._synced: dict[tuple[int, int], tuple[int, int]] = {}

    def note(self, descriptor: int) -> None:
        """This one is on the disk as it is now."""
        facts = os.fstat(descriptor)
        self._synced[facts.st_dev, facts.st_ino] = facts.st_mtime_ns, facts.st_size

    def loose(self, root: Path, *, but: Path) -> list[str]:
        """Names of what below ``root``, itself with it, is not safe; ``but`` is left alone."""
        found = [path for path in (root, *root.rglob("*")) if not path.is_relative_to(but)]
        return sorted(
            path.relative_to(root).as_posix() for path in found if not self._is_safe(path)
        )

    def _is_safe(self, path: Path) -> bool:
        facts = path.lstat()
        known = self._synced.get((facts.st_dev, facts.st_ino))
        return known == (facts.st_mtime_ns, facts.st_size)


@contextlib.contextmanager
def watching(before_rename: Callable[[DiskWatch, Path], None]) -> Iterator[DiskWatch]:
    """Watch this process; ``before_rename`` is called with the new name before each rename."""
    watch = DiskWatch()
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        watch.note(descriptor)

    def replace(one: Any, other: Any) -> None:
        before_rename(watch, Path(other))
        real_replace(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "replace", replace)
        yield watch
