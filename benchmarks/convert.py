# SPDX-License-Identifier: Apache-2.0
"""How long a conversion takes next to ``cp`` and ``sync`` of the same commit log, in the same run.

For each number of messages: make the store, read it once, then take turns, round by round. A
conversion runs with a Spark session that is up and kernels that were compiled before; what a cold
start costs is measured once and reported apart. The empty tail of the last log file is cut off for
``cp``: a conversion does not copy it either.
"""

import argparse
import os
import shutil
import statistics
import subprocess
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
    facts,
    facts_text,
    is_python,
    keep,
    prewarm,
    private_bytes,
    spread,
    table,
)
from legacy_levels.generate import generate_level_store
from message_store.clock import SystemClock, stopwatch_s
from message_store.store_root import StoreRoot
from migrate.convert import convert
from migrate.session import spark_session
from migrate.settings import ConvertOptions

_STAGES = ("plan", "write", "seal", "total")
_SAMPLE_EVERY_S = 0.02
_WARM_UP_MESSAGES = 20_000


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


def copy_round(path: Path) -> dict[str, float]:
    """``cp`` and ``sync``, seconds."""
    target = path / "copied"
    target.mkdir()
    settle()
    started = stopwatch_s()
    command = ["cp", "--reflink=never", "--sparse=never"]
    subprocess.run([*command, *map(str, sorted((path / "to_copy").iterdir())), target], check=True)
    copied = stopwatch_s()
    os.sync()
    ended = stopwatch_s()
    shutil.rmtree(target)
    return {"cp": copied - started, "sync": ended - copied, "total": ended - started}


def convert_round(path: Path, spark: SparkSession) -> dict[str, float]:
    """One conversion, seconds a stage, and memory."""
    target = path / "target"
    settle()
    watch = MemoryWatch()
    started = stopwatch_s()
    with watch.watching():
        options = ConvertOptions(source=path / "source", target=target)
        report = convert(options, spark=spark)
    took = stopwatch_s() - started
    size = sum(file.stat().st_blocks * 512 for file in target.rglob("*") if file.is_file())
    shutil.rmtree(target)
    stages = {name: getattr(report.seconds, name) for name in _STAGES}
    return {
        **attrs.asdict(report.seconds),
        **stages,
        "total": took,
        "converted": report.total("converted"),
        "target_bytes": size,
        "worker_private_bytes": watch.worker_bytes,
        "driver_private_bytes": watch.driver_bytes,
    }


def measure(path: Path, messages: int, rounds: int, spark: SparkSession) -> dict[str, Any]:
    """All rounds for one number of messages; who goes first changes each time."""
    path.mkdir()
    found: dict[str, Any] = {"messages": messages, "copy": [], "convert": []}
    found |= make_source(path, messages)
    read_once(path)
    for number in range(rounds + 1):
        turns = ("copy", "convert") if number % 2 else ("convert", "copy")
        for turn in turns:
            took = copy_round(path) if turn == "copy" else convert_round(path, spark)
            if number:  # the first round is thrown away
                found[turn].append(took)
    shutil.rmtree(path)
    return found


def cold_start(path: Path) -> tuple[float, float]:
    """Seconds of the first conversion with a session that is just up, and of the one after it."""
    make_source(path, _WARM_UP_MESSAGES)
    session = SparkSession.getActiveSession()
    assert session is not None
    first, second = (convert_round(path, session)["total"] for _ in range(2))
    shutil.rmtree(path)
    return first, second


def report_text(measured: dict[str, Any]) -> str:
    """What was measured, for people."""
    rows = []
    for found in measured["runs"]:
        copies = [each["total"] for each in found["copy"]]
        totals = [each["total"] for each in found["convert"]]
        ratios = [ours / theirs for ours, theirs in zip(totals, copies, strict=True)]
        stages = [spread([each[name] for each in found["convert"]]) for name in _STAGES[:3]]
        rows.append(
            (
                f"{found['messages']:,}",
                spread(copies),
                *stages,
                spread(totals),
                f"**{spread(ratios)}**",
                f"{statistics.median(totals) / found['messages'] * 1e6:.2f}",
            )
        )
    head = ("messages", "cp + sync s", "plan s", "write s", "seal s", "total s", "ratio", "µs each")
    last = measured["runs"][-1]
    conversions = [each for found in measured["runs"] for each in found["convert"]]
    worker_mib = max(each["worker_private_bytes"] for each in conversions) / 2**20
    driver_mib = max(each["driver_private_bytes"] for each in conversions) / 2**20
    first, second = measured["cold_s"]
    target_gb = last["convert"][-1]["target_bytes"] / 1e9
    return f"""# Conversion next to cp + sync

{facts_text(measured["facts"])}

{measured["rounds"]} rounds in turns after one that is thrown away, memory warmed before each;
median (least–most). Ratios are round by round.

{table(head, rows)}

Private memory: a worker at most {worker_mib:.0f} MiB, the driver {driver_mib:.0f} MiB.

The Spark session took {measured["spark_start_s"]:.1f} s to start; the first conversion in it, of
{_WARM_UP_MESSAGES:,} messages, {first:.1f} s, the next {second:.1f} s.

At {last["messages"]:,} messages cp copied {last["commit_log_bytes"] / 1e9:.2f} GB, the target takes
{target_gb:.2f} GB, and generating the source took {last["generate_s"]:.1f} s."""


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to work; needs 8 GB for 4 million")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        measured: dict[str, Any] = {"facts": facts(place), "rounds": options.rounds}
        started = stopwatch_s()
        with spark_session() as spark:
            measured["spark_start_s"] = stopwatch_s() - started
            measured["cold_s"] = cold_start(place / "cold")
            measured["runs"] = [
                measure(place / str(count), count, options.rounds, spark)
                for count in options.messages
            ]
    keep("convert", report_text(measured), measured, options.results)


if __name__ == "__main__":
    main()
