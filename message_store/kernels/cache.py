# SPDX-License-Identifier: Apache-2.0
"""How the compiled kernels of this project are made: explicit signatures, no GIL, and a cache that
cannot go stale.

numba compares only the kernel's own source file with a cached kernel. A constant from a layout in
another module would keep its old value after that module changed. So the name of the cache
directory is a digest of every source that the kernel's module imports, directly or not. A process
whose sources are replaced while it runs may hold the old constants: it neither reads nor writes
what it compiles from then on. Cache files are executable code: the directory belongs to the user
alone.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from message_store.base.clock import BEGAN_MS

_PACKAGES = (
    "message_store", "legacy_levels", "time_index", "timer_wheel", "migrate", "compare",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


_HOME = Path(__file__).resolve().parents[2]
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n(]*))"
    r"|import[ \t]+([^\n]*))",
    re.MULTILINE,
)
_WORD = re.compile(r"[\w.]+")


@cache
def _imported_sources(source: Path) -> frozenset[Path]:
    """The project's own modules that a source file imports itself. To parse it would take each
    process that loads kernels a tenth of a second.
    """
    names = set()
    for module, several, one, plain in _IMPORT.findall(source.read_text(encoding="utf-8")):
        words = _WORD.findall(several or one or plain)
        names |= {module, *(f"{module}.{word}" for word in words)} if module else {*words}
    own = (name for name in names if name.partition(".")[0] in _PACKAGES)
    paths = (_HOME.joinpath(*name.split(".")).with_suffix(".py") for name in own)
    return frozenset(path for path in paths if path.is_file())


@cache
def _sources_digest(source: Path) -> str | None:
    """A digest of a source file and of all that it imports, however far away; None if one of them
    was replaced since this process began.
    """
    seen: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported_sources(path)
    digest = hashlib.sha256()
    for path in sorted(seen):
        if path.stat().st_ctime_ns // 1_000_000 >= BEGAN_MS:
            return None
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
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
    return next(filter(None, map(_own_directory, candidates)), None)


def kernel(*signatures: str) -> Callable[[F], F]:
    """A compiled function of exactly these numba signatures, without the GIL, cached where
    possible.

    Signatures are compiled when the module is imported: a wrong argument type is then a TypeError
    at the call, and never a crash of the interpreter. Kernels take raw addresses; whoever calls one
    has checked every length.
    """
    directory = cache_directory()

    def decorate(function: F) -> F:
        config: Any = numba.config
        applications = config.CACHE_DIR
        digest = _sources_digest(Path(function.__code__.co_filename).resolve())
        if directory is not None and digest is not None:
            config.CACHE_DIR = str(directory / digest)
        try:
            compiled: Any = numba.njit(
                list(signatures),
                nogil=True,
                cache=directory is not None and digest is not None,
                error_model="numpy",
                boundscheck=False,
            )(function)
        finally:
            config.CACHE_DIR = applications  # an application's own kernels go where it says
        return cast(F, compiled)

    return decorate


def inline_kernel(function: F) -> F:
    """A function that only kernels call, compiled into each of them."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy", boundscheck=False, inline="never")(
        function
    )
    return cast(F, compiled)
