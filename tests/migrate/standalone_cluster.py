# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on loopback, started from the installed PySpark: a master and workers
whose processes a test may kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pyspark

from tests.helpers.ports import free_ports
from tests.source_laws import ROOT

PATIENCE_S = 240.0
_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_NOTES = """
import errno, os, time
_here = os.path.dirname(__file__)
_replace = os.replace
def _orders(kind):
    names = sorted(os.listdir(_here))
    return [os.path.join(_here, name) for name in names if name.startswith(kind)]
def _note_attempt():
    from pyspark import TaskContext
    context = TaskContext.get()
    name = f"attempt-{{context.partitionId()}}-{{context.attemptNumber()}}"
    open(os.path.join(_here, name), "w").close()
def _slow(one, other, **more):
    if os.path.basename(other) == "note.json":
        _note_attempt()
        for order in _orders("fail-"):
            try:
                if not order.endswith("-always"):
                    os.unlink(order)
            except FileNotFoundError:
                continue
            raise OSError(errno.EIO, os.strerror(errno.EIO), other)
        is_slow = any(os.path.basename(each)[5:] in os.getcwd() for each in _orders("slow-"))
        time.sleep(10 if is_slow else {seconds})
    return _replace(one, other, **more)
os.replace = _slow
"""
"""What makes the middle of a small conversion long enough to be found: on executors, a log file's
note takes a while, ten seconds on a worker that is named by a file ``slow-``. A file ``fail-`` is
an error of the disk at one note. Of each attempt of a task that comes so far a file is left.
"""


def slow_notes(directory: Path, seconds: float) -> None:
    """Make a directory which, on the PYTHONPATH of a Python worker, makes it slow."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_NOTES.format(seconds=seconds))


def count_files(target: Path) -> int:
    """How many log files of an unfinished target are written, by whichever attempts."""
    return len(list((target / "delaywheel/staging").glob("*/attempts/*/note.json")))


def wait_for(what: str, is_there: Callable[[], bool]) -> None:
    """Until a condition holds; a test that waits too long says for what."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """The living processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def kill_with_all_below(process: subprocess.Popen[bytes]) -> list[int]:
    """SIGKILL for a process and what it has started; returns the pids."""
    pids = [process.pid, *descendants(process.pid)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return pids


@attrs.define
class Cluster:
    """One master and its workers, each with one core."""

    directory: Path
    port: int
    master: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    started: int = 0

    @property
    def url(self) -> str:
        """For ``--master``."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def conf(self) -> dict[str, str]:
        """What a driver on this machine needs, and executors that stay small."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _SMALL_JVM,
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(
                [str(self.directory / "slow"), str(ROOT)]
            ),
        }

    @property
    def orders(self) -> Path:
        """The directory of files that say what goes wrong on executors."""
        return self.directory / "slow"

    @contextlib.contextmanager
    def disturbed(self, *names: str) -> Iterator[None]:
        """Have these orders for a ``with`` block, and no trace of earlier attempts."""
        for path in self.orders.glob("attempt-*"):
            path.unlink()
        for name in names:
            (self.orders / name).touch()
        try:
            yield
        finally:
            for name in names:
                (self.orders / name).unlink(missing_ok=True)

    def repeated(self) -> list[str]:
        """The later attempts of tasks that came as far as a receipt."""
        attempts = sorted(path.name for path in self.orders.glob("attempt-*"))
        return [name for name in attempts if not name.endswith("-0")]

    def have_workers(self, count: int) -> None:
        """Start those that are missing, and wait until the master knows them."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        for _ in range(count - len(self.workers)):
            self.started += 1
            # An address each: Spark repeats no slow task on the host that it runs on.
            words = ["--host", f"127.0.0.{self.started + 1}", "--cores", "1", "--memory", "600m"]
            words += ["--work-dir", str(self.directory / f"worker-{self.started}")]
            worker = _start(
                self.directory, f"worker-{self.started}", "worker.Worker",
                *words, "--webui-port", "0", self.url,
            )  # fmt: skip
            self.workers.append(worker)
        log = self.directory / "master.log"
        wait_for("the workers", lambda: log.read_text().count("Registering wor") >= self.started)


def _start(directory: Path, name: str, role: str, *words: str) -> subprocess.Popen[bytes]:
    """A daemon of the cluster. `spark-class` ends in an exec: the pid is that of its JVM."""
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [home / "bin/spark-class", f"org.apache.spark.deploy.{role}", *words],
            env=environment,
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextlib.contextmanager
def standalone_cluster(directory: Path, *, note_seconds: float) -> Iterator[Cluster]:
    """A cluster for the length of a ``with`` block; its processes are ended by their pids."""
    slow_notes(directory / "slow", note_seconds)
    port = free_ports()[0]
    words = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    master = _start(directory, "master", "master.Master", *words)
    cluster = Cluster(directory, port, master)
    try:
        log = directory / "master.log"
        wait_for("the master", lambda: "I have been elected leader" in log.read_text())
        yield cluster
    finally:
        for process in (*cluster.workers, master):
            kill_with_all_below(process)
