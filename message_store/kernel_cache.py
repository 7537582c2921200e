# SPDX-License-Identifier: Apache-2.0
"""How the compiled kernels of this project are made: explicit signatures, no GIL, and a cache that
cannot go stale.

numba checks only the kernel's own source file before it trusts a cached one, so a constant derived
from a layout in another module would keep its old value after that module changed. The cache
directory is therefore named by a digest of every source of the project. Cache files are executable
code: the directory belongs to the user alone.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_PACKAGES = ("message_store", "legacy_levels", "timer_wheel", "migrate", "compare")

F = TypeVar("F", bound=Callable[..., Any])


def _sources_digest() -> str:
    home = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for source in sorted((home / package).glob("*.py")):
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _own_directory(base: Path) -> Path | None:
    """``base`` as a directory that only this user can write to, or None."""
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = base.stat(follow_symlinks=False)
    except OSError:
        return None
    mine = facts.st_uid == os.getuid() and not facts.st_mode & 0o022
    return base if mine and os.access(base, os.W_OK | os.X_OK) else None


@cache
def cache_directory() -> Path | None:
    """Where compiled kernels are kept, or None when no place of the user's own is writable."""
    candidates = []
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        candidates.append(Path(chosen))
    home_cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    candidates.append(Path(home_cache) / "delaywheel" / "kernels")
    candidates.append(Path(tempfile.gettempdir()) / f"delaywheel-{os.getuid()}")
    for candidate in candidates:
        if _own_directory(candidate) and (
            directory := _own_directory(candidate / _sources_digest())
        ):
            return directory
    return None


def kernel(*signatures: str) -> Callable[[F], F]:
    """A compiled function of exactly these numba signatures, without the GIL, cached where
    possible.

    Signatures are compiled when the module is imported: a wrong argument type is then a TypeError
    at the call, and never a crash of the interpreter. Kernels take raw addresses; whoever calls one
    has checked every length.
    """
    directory = cache_directory()
    if directory is not None:
        numba.config.CACHE_DIR = str(directory)  # type: ignore[attr-defined]

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(
            list(signatures),
            nogil=True,
            cache=directory is not None,
            error_model="numpy",
            boundscheck=False,
        )(function)
        return cast(F, compiled)

    return decorate


def inline_kernel(function: F) -> F:
    """A function that only kernels call, compiled into each of them."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy", boundscheck=False, inline="never")(
        function
    )
    return cast(F, compiled)
