# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on loopback, started from the installed PySpark: a master and workers
whose processes a test may kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pyspark

from tests.source_laws import ROOT

PATIENCE_S = 240.0
_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_SLOW_RECEIPTS = """
import os, time
_replace = os.replace
def _slow(one, other, **more):
    if os.path.basename(os.path.dirname(other)) == "parts":
        time.sleep({seconds})
    return _replace(one, other, **more)
os.replace = _slow
"""
"""What makes the middle of a small conversion long enough to be found: on executors, a part's
receipt takes a while.
"""


def slow_receipts(directory: Path, seconds: float) -> None:
    """Make a directory which, on the PYTHONPATH of a Python worker, makes it slow."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_SLOW_RECEIPTS.format(seconds=seconds))


def count_parts(target: Path) -> int:
    """How many parts of an unfinished target are written, of whichever plan."""
    return len(list((target / "delaywheel/staging").glob("*/parts/*.json")))


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


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


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

    def have_workers(self, count: int) -> None:
        """Start those that are missing, and wait until the master knows them."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        for _ in range(count - len(self.workers)):
            self.started += 1
            words = ["--host", "127.0.0.1", "--cores", "1", "--memory", "600m"]
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
def standalone_cluster(directory: Path, *, receipt_seconds: float) -> Iterator[Cluster]:
    """A cluster for the length of a ``with`` block; its processes are ended by their pids."""
    slow_receipts(directory / "slow", receipt_seconds)
    port = _free_port()
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
