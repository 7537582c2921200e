# SPDX-License-Identifier: Apache-2.0
"""How long a conversion takes next to ``cp`` and ``sync`` of the same commit log, in the same run.

For each number of messages: make the store, read it once, then take turns, round by round. A
conversion runs with a Spark session that is up and kernels that were compiled before; what a cold
start costs is measured once and reported apart, and so is memory, in a round that is not timed.
Verifications have rounds of their own, each behind the conversion whose target it reads.
The empty tail of the last log file is cut off for ``cp``: a conversion does not copy it either.
Everything happens in a directory of its own, which is removed; rounds end when time is up.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql import SparkSession

from benchmarks.machine import (
    RESULTS,
    descendants,
    direct_write_bytes_per_s,
    facts,
    is_python,
    keeping,
    prewarm,
    private_bytes,
    process_cpu_s,
    tell,
)
from legacy_levels.generate.store import generate_level_store
from message_store.base.clock import SystemClock, stopwatch_s
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.settings import ConvertOptions
from migrate.spark.session import spark_session
from migrate.verify.verify import verify

WARM_UP_MESSAGES = 20_000
_SAMPLE_EVERY_S = 0.02
_DISK_BYTES_A_MESSAGE = 1_400
"""Source, the last file of it once more, and a target or a copy."""
_ALL_SIZES_MINUTES = 9.0


class MemoryWatch:
    """The most private memory that any Python worker, and that this process, had meanwhile."""

    def __init__(self) -> None:
        self.worker_bytes = 0
        self.driver_bytes = 0
        self._stop = threading.Event()

    def _look(self) -> None:
        own = os.getpid()
        while not self._stop.wait(_SAMPLE_EVERY_S):
            workers = [private_bytes(each) for each in descendants(own) if is_python(each)]
            self.worker_bytes = max(self.worker_bytes, *workers, 0)
            self.driver_bytes = max(self.driver_bytes, private_bytes(own))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every so often while the block runs."""
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def make_source(path: Path, messages: int) -> dict[str, float]:
    """A store, and the log to copy beside it: the same files, the last one without its tail."""
    started = stopwatch_s()
    made = generate_level_store(path / "source", messages=messages, now_ms=SystemClock().now_ms())
    took = stopwatch_s() - started
    to_copy = path / "to_copy"
    to_copy.mkdir()
    files = sorted(StoreRoot(path / "source").commit_log.iterdir())
    for file in files:
        os.link(file, to_copy / file.name)
    last = to_copy / files[-1].name
    last.unlink()
    used = made.commit_log_bytes - int(last.name)
    with last.open("wb") as target, files[-1].open("rb") as source:
        while used and (piece := source.read(min(used, 1 << 24))):
            used -= target.write(piece)
    return {"generate_s": took, "commit_log_bytes": made.commit_log_bytes}


def read_once(path: Path) -> None:
    """Have the files in the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as content:
                while content.read(1 << 24):
                    pass


def settle() -> None:
    """Let nothing that was written before be paid for later, and warm the guest's memory."""
    os.sync()
    prewarm()


def children_cpu_s() -> float:
    """Seconds of processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copy_round(path: Path) -> dict[str, float]:
    """``cp`` and ``sync``, seconds."""
    target = path / "copied"
    target.mkdir()
    settle()
    cpu = children_cpu_s()
    started = stopwatch_s()
    command = ["cp", "--reflink=never", "--sparse=never"]
    subprocess.run([*command, *map(str, sorted((path / "to_copy").iterdir())), target], check=True)
    copied = stopwatch_s()
    os.sync()
    ended = stopwatch_s()
    shutil.rmtree(target)
    return {
        "cp": copied - started,
        "sync": ended - copied,
        "total": ended - started,
        "cpu": children_cpu_s() - cpu,
    }


def cpu_by_role() -> dict[str, float]:
    """Seconds of processor time so far: of Spark's Python workers, of its JVM, of this process."""
    below = descendants(os.getpid())
    python = [each for each in below if is_python(each)]
    return {
        "workers": sum(process_cpu_s(each) for each in python),
        "jvm": sum(process_cpu_s(each) for each in below if each not in python),
        "driver": process_cpu_s(),
    }


def convert_round(
    path: Path,
    spark: SparkSession,
    *,
    watched: bool = False,
    verified: bool = False,
    on_bad_record: str = "fail",
) -> dict[str, float]:
    """One conversion: seconds a stage, and of processor time; memory instead when ``watched``. The
    target is removed, when ``verified`` after a verification.
    """
    target = path / "target"
    settle()
    options = ConvertOptions(source=path / "source", target=target, on_bad_record=on_bad_record)
    watch = MemoryWatch()
    before, started = cpu_by_role(), stopwatch_s()
    if watched:
        with watch.watching():
            report = convert(options, spark=spark)
    else:
        report = convert(options, spark=spark)
    took, after = stopwatch_s() - started, cpu_by_role()
    size = sum(file.stat().st_blocks * 512 for file in target.rglob("*") if file.is_file())
    checked = {"verify": verify_s(path, spark)} if verified else {}
    shutil.rmtree(target)
    return {
        **attrs.asdict(report.seconds),
        "total": took,
        "converted": report.total("converted"),
        "target_bytes": size,
        **{f"{role}_cpu": after[role] - before[role] for role in after},
        "worker_private_bytes": watch.worker_bytes,
        "driver_private_bytes": watch.driver_bytes,
        **checked,
    }


def verify_s(path: Path, spark: SparkSession) -> float:
    """Seconds of a verification, which has to find that nothing is wrong."""
    settle()
    started = stopwatch_s()
    report = verify(path / "source", path / "target", spark=spark)
    took = stopwatch_s() - started
    if not report.is_clean:
        raise RuntimeError(f"the conversion was not right: {report}")
    return took


def measure(
    path: Path, messages: int, rounds: int, spark: SparkSession, until_s: float
) -> dict[str, Any]:
    """All rounds for one number of messages, one at least; who goes first changes each time."""
    path.mkdir()
    found: dict[str, Any] = {"messages": messages, "copy": [], "convert": [], "verified": []}
    tell(f"{messages:,} messages: making the store")
    found |= make_source(path, messages)
    read_once(path)
    for number in range(rounds + 1):
        if number > 1 and stopwatch_s() > until_s:
            break
        tell(f"{messages:,} messages: round {number} of {rounds}")
        turns = ("copy", "convert") if number % 2 else ("convert", "copy")
        for turn in turns:
            took = copy_round(path) if turn == "copy" else convert_round(path, spark)
            if number:  # the first round is thrown away
                found[turn].append(took)
    for number in range(len(found["convert"]) + 1):  # apart: what a target fills in memory stays
        tell(f"{messages:,} messages: verification {number} of {len(found['convert'])}")
        took = convert_round(path, spark, verified=True)
        if number:
            found["verified"].append(took)
    tell(f"{messages:,} messages: its memory")
    found["memory"] = convert_round(path, spark, watched=True)
    shutil.rmtree(path)
    return found


def cold_start(path: Path) -> tuple[float, float]:
    """Seconds of the first conversion with a session that is just up, and of the one after it."""
    make_source(path, WARM_UP_MESSAGES)
    session = SparkSession.getActiveSession()
    assert session is not None
    first, second = (convert_round(path, session)["total"] for _ in range(2))
    shutil.rmtree(path)
    return first, second


def require_room(place: Path, messages: int, bytes_a_message: int = _DISK_BYTES_A_MESSAGE) -> None:
    """End here, with a sentence, when the disk has no room for the largest store and its copies."""
    needed, free = messages * bytes_a_message + (1 << 30), shutil.disk_usage(place).free
    if needed > free:
        sys.exit(
            f"{place}: {needed:,} bytes are needed for {messages:,} messages, {free:,} are free;"
            " take fewer --messages, or another --directory"
        )


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [1_000_000, 4_000_000, 16_000_000]
    parser.add_argument("--messages", type=int, nargs="+", default=sizes)
    parser.add_argument("--rounds", type=int, default=5, help="at most, for each size")
    parser.add_argument("--minutes", type=float, default=_ALL_SIZES_MINUTES)
    parser.add_argument("--directory", type=Path, help="where to work; 23 GB for 16 million")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    started = stopwatch_s()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        require_room(place, max(options.messages))
        measured: dict[str, Any] = {"facts": facts(place), "runs": []}
        measured["direct_bytes_per_s"] = direct_write_bytes_per_s(place)
        starting_s = stopwatch_s()
        with spark_session() as spark:
            measured["spark_start_s"] = stopwatch_s() - starting_s
            tell("a cold start")
            measured["cold_s"] = cold_start(place / "cold")
            with keeping("convert", measured, options.results):
                for count in options.messages:
                    # what a size may take grows with it, so that the largest has its rounds as well
                    share = sum(each for each in options.messages if each <= count)
                    until_s = started + options.minutes * 60 * share / sum(options.messages)
                    found = measure(place / str(count), count, options.rounds, spark, until_s)
                    measured["runs"].append(found)


if __name__ == "__main__":
    main()
