# SPDX-License-Identifier: Apache-2.0
"""What every benchmark shares: the machine's facts, warm guest memory, medians, result files."""

import json
import mmap
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from compare.report.results import is_busy
from compare.running.work_files import prewarm as prewarm

RESULTS = Path(__file__).parent / "results"
_LIBRARIES = ("numpy", "numba", "pyarrow", "pyspark")
_NUMBERS = re.compile(r"\[[-+.\de,\s]+\]")
"""A list of nothing else stands on one line."""
_DIRECT_BYTES = 1 << 20
_TELL_EVERY_S = 10.0


def facts(directory: Path) -> dict[str, str]:
    """What was run, on which machine with which software, and the file system that ``directory``
    lies on.
    """
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "command": shlex.join([_benchmark_name(), *_without_places(sys.argv[1:])]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu[0].split(":")[1].strip() if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_bytes('MemTotal') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "file system": _file_system(directory),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "a step of plain Python": f"{python_step_ns():.0f} ns",
        **{name: version(name) for name in _LIBRARIES},
    }


def _benchmark_name() -> str:
    program = Path(sys.argv[0])
    return program.parent.name if program.stem == "__main__" else program.stem


def _without_places(flags: Sequence[str]) -> list[str]:
    """The flags that say what is measured, without those that say in which directory.

    >>> _without_places(["--results", "a", "--rounds", "3", "--directory=b"])
    ['--rounds', '3']
    """
    places = ("--results", "--directory")
    return [
        flag
        for before, flag in zip(["", *flags], flags, strict=False)
        if before not in places and flag.partition("=")[0] not in places
    ]


def python_step_ns() -> float:
    """How long this machine takes for a turn of a loop with a little arithmetic, the best of five.

    It tells a slow hour: within one night the same machine took 0.1 and 0.3 µs. What single calls
    cost follows it only in part (benchmarks/results/README.md).
    """
    turns, took = 200_000, []
    for _ in range(5):
        total, started = 0, time.perf_counter()
        for each in range(turns):
            total += each * each % 7
        took.append(time.perf_counter() - started)
    return min(took) / turns * 1e9


def _file_system(directory: Path) -> str:
    command = ["stat", "--file-system", "--format=%T", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def memory_bytes(name: str) -> int:
    """A line of /proc/meminfo, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def settle(patience_s: float = 90.0) -> None:
    """Wait, at most so long, until the load of what ran just now has gone: else the next run would
    be marked as one on a busy machine.
    """
    until_s, cores = time.monotonic() + patience_s, str(len(os.sched_getaffinity(0)))
    while is_busy(f"{os.getloadavg()[0]:.1f}", cores) and time.monotonic() < until_s:
        time.sleep(1)


def descendants(root: int) -> list[int]:
    """All processes below one, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _status(int(entry.name)).get("PPid")
            if parent:
                children.setdefault(int(parent), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _status(process: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def private_bytes(process: int) -> int:
    """Memory that a process shares with no file (RssAnon); 0 for one that is gone."""
    return int(_status(process).get("RssAnon", "0 kB").split()[0]) * 1024


def process_cpu_s(process: int | None = None) -> float:
    """Seconds of processor time that a process, this one if none is named, has used in all its
    threads; 0 for one that is gone. A named one's with those of its children that have ended: Spark
    ends workers that have nothing to do.
    """
    if process is None:
        used = os.times()
        return used.user + used.system
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def direct_write_bytes_per_s(directory: Path, size_bytes: int = 1 << 30) -> float:
    """How fast the disk takes bytes past the page cache, from two writers; the best of three."""

    def write(path: Path) -> None:
        with mmap.mmap(-1, _DIRECT_BYTES) as block:
            block.write(os.urandom(_DIRECT_BYTES))
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
            try:
                for place in range(0, size_bytes // 2, _DIRECT_BYTES):
                    os.pwrite(descriptor, block, place)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
                path.unlink()

    paths = [directory / f"direct.{number}" for number in range(2)]
    took = []
    for _ in range(3):
        started = time.perf_counter()
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(write, paths))
        took.append(time.perf_counter() - started)
    return size_bytes / min(took)


def is_python(process: int) -> bool:
    """Whether a process runs Python, by its name."""
    return _status(process).get("Name", "").startswith(("python", "pyspark"))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and where there are several in brackets the least and the most.

    >>> spread([1.0, 3.0, 2.0]), spread([1234.5], 0)
    ('2.00 (1.00–3.00)', '1,234')
    """
    middle, least, most = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return middle if len(values) == 1 else f"{middle} ({least}–{most})"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tell(what: str) -> None:
    """Say what begins now, and when, on stderr."""
    print(f"{datetime.now():%H:%M:%S} {what}", file=sys.stderr, flush=True)


class Telling:
    """How far something is, on stderr, a line now and then."""

    def __init__(self) -> None:
        self._stage, self._told_s = "", 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Tell it, if it is another stage or was not told for a while."""
        now_s = time.monotonic()
        if stage != self._stage or now_s - self._told_s >= _TELL_EVERY_S:
            self._stage, self._told_s = stage, now_s
            tell(f"{stage}: {done:,} of {total:,}" if total else stage)


def keep(name: str, measured: Mapping[str, Any], directory: Path) -> None:
    """Write ``name.json``, and say where."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    text = _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(measured, indent=1))
    path.write_text(text + "\n", "utf-8")
    print(f"{path}: python -m tools.generate_performance shows it on docs/PERFORMANCE.md")


@contextmanager
def keeping(name: str, measured: dict[str, Any], directory: Path) -> Iterator[None]:
    """Keep what was measured when the block ends, also when it is interrupted or fails on the way:
    ``measured``, which grows inside, then says so. SIGTERM interrupts as Ctrl-C does.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    at_first, before = json.dumps(measured), signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException as error:
        if json.dumps(measured) != at_first:  # else what the last run left is worth more
            measured["ended early"] = repr(error)
            keep(name, measured, directory)
        raise
    else:
        keep(name, measured, directory)
    finally:
        signal.signal(signal.SIGTERM, before)
