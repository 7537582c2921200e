# SPDX-License-Identifier: Apache-2.0
"""How long a command takes to start, and the first run after installation: with kernels to compile.

Each is a process of its own. A first run has an empty kernel cache; what it says meanwhile on
stderr is looked at too, since nobody should wait in silence. And how long a conversion of the
sample takes from the shell, in its process and with Spark, once its kernels are compiled.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, facts, keeping, tell
from migrate.demo import unpack_sample

_ROOT = Path(__file__).resolve().parent.parent
_HELP = ("--help",)
COMMANDS = ("help", "first", "later", "convert --in-process", "convert")
_MESSAGES = "1000"
_SAMPLE_NOW = ("--now", "2026-11-21T13:42:27.629Z")
"""When the sample's broker was stopped."""


def command_s(arguments: tuple[str, ...], kernel_cache: Path) -> tuple[float, float]:
    """Seconds that a command takes, and until it first says anything."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernel_cache), "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "cli", *arguments]
    started = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        assert child.stdout is not None  # asked for above
        child.stdout.read(1)
        first = time.perf_counter() - started
        child.stdout.read()
    took = time.perf_counter() - started
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {child.returncode}")
    return took, first


def conversion_s(directory: Path, sample: Path, *flags: str) -> tuple[float, float]:
    """As :func:`command_s`, of a conversion of the sample; the target is removed. Its kernels are
    in a cache that all of them share.
    """
    cache = directory / "kernels"
    cache.mkdir(mode=0o700, exist_ok=True)
    target = directory / "target"
    took = command_s(("convert", str(sample), str(target), *_SAMPLE_NOW, *flags), cache)
    shutil.rmtree(target, ignore_errors=True)
    return took


def measure(directory: Path, rounds: int, found: dict[str, list[dict[str, float]]]) -> None:
    """Every command so often, after one that is thrown away."""
    sample = unpack_sample(directory)
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}")
        cache = directory / f"kernels-{number}"
        cache.mkdir(mode=0o700)
        unknown, known = (
            ("generate", str(directory / f"{name}-{number}"), "--messages", _MESSAGES)
            for name in ("new", "again")
        )
        took = {
            "help": command_s(_HELP, cache),
            "first": command_s(unknown, cache),
            "later": command_s(known, cache),
            "convert --in-process": conversion_s(directory, sample, "--in-process"),
            "convert": conversion_s(directory, sample),
        }
        if number:
            for name, (whole_s, word_s) in took.items():
                found[name].append({"s": whole_s, "first word s": word_s})


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured: dict[str, Any] = {
            "facts": facts(Path(name)),
            "rounds": options.rounds,
            "commands": {name: [] for name in COMMANDS},
        }
        with keeping("start", measured, options.results):
            measure(Path(name), options.rounds, measured["commands"])


if __name__ == "__main__":
    main()
