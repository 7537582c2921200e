# SPDX-License-Identifier: Apache-2.0
"""Fetches one RocketMQ version's jars by Maven and compiles the judge against them, once."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

VERSIONS: Final = ("4.9.7", "5.3.3", "5.4.0", "5.5.0")
NEWEST: Final = VERSIONS[-1]

_HERE: Final = Path(__file__).parent
_JUDGE: Final = _HERE / "java" / "Judge.java"
_DOWNLOAD_S: Final = 900
_COMPILE_S: Final = 120


def missing_tools() -> str | None:
    """Say why no broker can be run here, or None if one can."""
    absent = [tool for tool in ("mvn", "java", "javac") if shutil.which(tool) is None]
    return f"needs {', '.join(absent)} on the PATH" if absent else None


def jars(version: str) -> Path:
    """Return the folder with every jar of that version's broker, name server and client."""
    return _made_once(f"jars-{version}", lambda target: _download(version, target))


def judge_classes(version: str) -> Path:
    """Return the folder with the judge's classes, compiled against that version."""
    library = jars(version)
    digest = hashlib.sha256(_JUDGE.read_bytes()).hexdigest()[:12]
    return _made_once(f"judge-{version}-{digest}", lambda target: _compile(library, target))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "delaywheel" / "rocketmq"


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Make a folder beside its place and rename it: never half there, also for two runs."""
    place = _cache() / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        make(staging)
        try:
            staging.rename(place)
        except OSError:
            if not place.is_dir():  # else another run was first, with the same content
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return place


def _download(version: str, target: Path) -> None:
    command = [
        "mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), f"-Drocketmq.version={version}",
        "dependency:copy-dependencies", f"-DoutputDirectory={target}",
    ]  # fmt: skip
    _run(command, _DOWNLOAD_S)


def _compile(library: Path, target: Path) -> None:
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{library}/*"]
    _run([*command, "-d", str(target), str(_JUDGE)], _COMPILE_S)


def _run(command: list[str], timeout_s: float) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
