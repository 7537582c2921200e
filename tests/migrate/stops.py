# SPDX-License-Identifier: Apache-2.0
"""A process that ends before one of its changes to the disk, whichever that is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHANGES = (
    *("replace", "link", "unlink", "mkdir", "rmdir"),
    *("pwrite", "pwritev", "write", "ftruncate", "fsync", "fdatasync"),
)
"""All that changes what is on the disk, besides ``open`` that makes a file; a sync is one too, for
it changes what is there after a loss of power.
"""


class Stopped(BaseException):
    """The process ends here, as far as the code under test can tell."""


@contextlib.contextmanager
def stopping_before(root: Path, number: int | Callable[[list[str]], bool]) -> Iterator[list[str]]:
    """Every change below ``root`` from this one on (counted from 0) raises; gives those done.

    ``number`` may also be a question about those done: from the first change before which it is
    answered yes, in one run instead of one for each number.
    """
    done: list[str] = []
    real_open = os.open
    is_over = False

    def below(given: object, directory: int | None) -> bool:
        if isinstance(given, int):
            given = os.readlink(f"/proc/self/fd/{given}")
        path = Path(os.fspath(given))  # type: ignore[call-overload]
        if directory is not None:
            path = Path(os.readlink(f"/proc/self/fd/{directory}")) / path
        return path.is_relative_to(root)

    def step(name: str, real: Callable[..., Any], where: Any, *given: Any, **options: Any) -> Any:
        nonlocal is_over
        if below(where, options.get("dir_fd")):
            is_over = is_over or (number(done) if callable(number) else len(done) >= number)
            if is_over:
                raise Stopped
            done.append(f"{name} {where} {given[:1]}"[:200])
        return real(where, *given, **options)

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)
        return lambda where, *given, **options: step(name, real, where, *given, **options)

    def make_or_open(path: Any, flags: int, *more: Any, **options: Any) -> Any:
        if flags & os.O_CREAT and not os.path.lexists(path):
            return step("open", real_open, path, flags, *more, **options)
        return real_open(path, flags, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, counted(name))
        patch.setattr(os, "open", make_or_open)
        yield done
