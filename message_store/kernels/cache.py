# SPDX-License-Identifier: Apache-2.0
"""How the compiled kernels of this project are made: explicit signatures, no GIL, and a cache that
cannot go stale.

numba compares only the kernel's own source file with a cached kernel. A constant from a layout in
another module would keep its old value after that module changed. So the name of the cache
directory is a digest of every source that the kernel's module imports, directly or not. Where the
sources lie does not count: a copied environment finds what the first one compiled. A process whose
sources are replaced while it runs may hold the old constants: it neither reads nor writes what it
compiles from then on. Cache files are executable code: the directory belongs to the user
alone.
"""

import hashlib
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.compiler_lock import global_compiler_lock

from message_store.base.clock import BEGAN_MS, stopwatch_s

_PACKAGES = (
    "message_store", "legacy_levels", "time_index", "timer_wheel", "migrate", "compare",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


class Compiled:
    """How long this process compiled kernels that were not in the cache, ``seconds``, and whether
    the next process finds them, ``is_kept``: not where no place of the user's own is writable, or
    sources are newer than this process.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_kept = True

    def add(self, seconds: float, *, is_kept: bool) -> None:
        """Count a kernel that took so long to compile."""
        self.seconds += seconds
        self.is_kept &= is_kept


COMPILED = Compiled()


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
def _content_digest(source: Path, _changed_ns: int) -> bytes:
    return hashlib.sha256(source.read_bytes()).digest()


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
        changed_ns = path.stat().st_ctime_ns
        if changed_ns // 1_000_000 >= BEGAN_MS:
            return None
        digest.update(path.name.encode())
        digest.update(_content_digest(path, changed_ns))
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


@cache
def _names_in(directory: Path) -> list[str]:
    """What lies in a directory when it is first asked for."""
    return os.listdir(directory) if directory.is_dir() else []


class KernelLocator:
    """Where numba keeps the kernels of one module: by its name. numba itself goes by the path of
    the source, and would compile everything anew in each copy of an environment.
    """

    def __init__(self, directory: Path, line: int) -> None:
        self._directory = directory
        self._line = line

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> "KernelLocator | None":
        """The place for a function of a source file; None for one that is none of ours."""
        path = Path(source).resolve()
        if not path.is_relative_to(_HOME):
            return None
        name = ".".join(path.parent.relative_to(_HOME).parts)
        config: Any = numba.config
        return cls(Path(config.CACHE_DIR, name), function.__code__.co_firstlineno)

    def has(self, function: Callable[..., Any]) -> bool:
        """Whether something was compiled of a function, on any machine with this directory."""
        module = function.__module__.rpartition(".")[2]
        begin = f"{module}.{function.__qualname__}-{self._line}."
        return any(name.startswith(begin) for name in _names_in(self._directory))

    def ensure_cache_path(self) -> None:
        """Make the directory, which belongs to the user as the one around it does."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """The directory."""
        return str(self._directory)

    def get_source_stamp(self) -> str:
        """Nothing: the directory around it is named by all sources."""
        return ""

    def get_disambiguator(self) -> str:
        """What tells functions of one name apart."""
        return str(self._line)


_LOCATOR = f"{KernelLocator.__module__}.{KernelLocator.__qualname__}"


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for what is within. LLVM runs Python in between, where an
    exception is lost: a compilation without its result follows, or a crash at the end.
    """
    came: list[int] = []

    def later(number: int, _frame: object) -> None:
        came.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, later)
        yield
    finally:
        for stopped, handler in before.items():
            if signal.getsignal(stopped) == later:  # else somebody has changed it since
                signal.signal(stopped, handler)
        if came:
            signal.raise_signal(came[0])


class _LaterCode:
    """Stands in a kernel for its code until somebody calls it: the command of a verb imports some
    fifty kernels and calls a few, and each takes 5 ms to load.
    """

    def __init__(self, compiled: Any, signatures: tuple[str, ...], *, is_kept: bool) -> None:
        self._compiled, self._signatures, self._is_kept = compiled, signatures, is_kept
        self._is_loaded = False
        # numba asks these two for code that it lacks: of a call, and of a kernel that calls this.
        compiled._compile_for_args = self._call
        compiled.get_call_template = self._template

    def load(self) -> Any:
        """The kernel with its code, loaded or compiled."""
        compiled = self._compiled
        with global_compiler_lock:
            if not self._is_loaded:
                began_s = stopwatch_s()
                with interrupted_later():
                    for signature in self._signatures:
                        compiled.compile(signature)
                compiled.disable_compile()
                self._is_loaded = True
                if not self._is_kept or compiled.stats.cache_misses:
                    COMPILED.add(stopwatch_s() - began_s, is_kept=self._is_kept)
        return compiled

    def _call(self, *_arguments: Any) -> Any:
        return self.load()  # which numba calls

    def _template(self, *arguments: Any) -> Any:
        return type(self.load()).get_call_template(self._compiled, *arguments)


def kernel(*signatures: str) -> Callable[[F], F]:
    """A compiled function of exactly these numba signatures, without the GIL, cached where
    possible.

    Signatures are compiled when the module is imported, so that nothing else waits for it later;
    what the cache has is loaded at the first call. A wrong argument type is a TypeError at the
    call, and never a crash of the interpreter. Kernels take raw addresses; whoever calls one
    has checked every length.
    """
    directory = cache_directory()

    def decorate(function: F) -> F:
        config: Any = numba.config
        applications = config.CACHE_DIR
        locators = getattr(config, "CACHE_LOCATOR_CLASSES", None)  # numba 0.61 cannot be told
        digest = _sources_digest(Path(function.__code__.co_filename).resolve())
        if directory is not None and digest is not None:
            config.CACHE_DIR = str(directory / digest)
            if locators is not None:
                config.CACHE_LOCATOR_CLASSES = _LOCATOR
        is_kept = directory is not None and digest is not None
        try:
            compiled: Any = numba.njit(
                nogil=True, cache=is_kept, error_model="numpy", boundscheck=False
            )(function)
            later = _LaterCode(compiled, signatures, is_kept=is_kept)
            where = KernelLocator.from_function(function, function.__code__.co_filename)
            if locators is None or not is_kept or where is None or not where.has(function):
                later.load()
        finally:
            config.CACHE_DIR = applications  # an application's own kernels go where it says
            if locators is not None:
                config.CACHE_LOCATOR_CLASSES = locators
        return cast(F, compiled)

    return decorate


def inline_kernel(function: F) -> F:
    """A function that only kernels call, compiled into each of them."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy", boundscheck=False, inline="never")(
        function
    )
    return cast(F, compiled)


# A child that is forked while another thread loads a kernel would wait for it for ever.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)
