# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own jars, fetched once by Maven, and Java programs compiled against them, once.

They are kept in the user's cache. Maven needs no network for what it has fetched before.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

POM = Path(__file__).parent / "java" / "pom.xml"
DOWNLOAD_S = 900.0
COMPILE_S = 120.0
_SAID_CHARS = 4_000
OTHERS = {"5.5.1": "5.5.0"}
"""The version of client, name server and tools where those of a broker's own are not published."""


def missing_tools() -> str | None:
    """Say which tools are not there, or None when all are."""
    absent = [tool for tool in ("mvn", "java", "javac") if shutil.which(tool) is None]
    return f"needs {', '.join(absent)} on the PATH" if absent else None


def jars(version: str, pom: Path = POM, name: str = "jars") -> Path:
    """The folder with every jar of that version's store, broker, name server and client; with
    another ``pom``, which needs a ``name`` of its own, the jars that it asks for.

    Raises OSError, RuntimeError with what Maven said, and subprocess.TimeoutExpired.
    """
    return made_once(f"{name}-{version}", lambda target: _download(version, pom, target))


def classes(version: str, name: str, sources: Sequence[Path]) -> Path:
    """The folder with these sources' classes, compiled against that version; ``name`` tells them
    from other programs. Raises what ``jars`` does.
    """
    library = jars(version)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    place = f"{name}-{version}-{digest.hexdigest()[:12]}"
    return made_once(place, lambda target: _compile(library, sources, target))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "delaywheel" / "rocketmq"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name in the user's cache, which ``make`` fills when it is not there.

    It is made beside its place and renamed: never half there. One run after the other: Maven's own
    cache is not made for two at a time.
    """
    place = _cache() / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    turn = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if place.is_dir():
            return place
        staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
        try:
            make(staging)
            staging.rename(place)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(turn)
    return place


def _download(version: str, pom: Path, target: Path) -> None:
    command = [
        "mvn", "-q", "-B", "-f", str(pom), f"-Drocketmq.version={version}",
        f"-Dothers.version={OTHERS.get(version, version)}",
        "dependency:copy-dependencies", f"-DoutputDirectory={target}",
    ]  # fmt: skip
    _run(command, DOWNLOAD_S)


def _compile(library: Path, sources: Sequence[Path], target: Path) -> None:
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{library}/*"]
    _run([*command, "-d", str(target), *map(str, sources)], COMPILE_S)


def _run(command: list[str], timeout_s: float) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-_SAID_CHARS:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{output}")
