# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own engines in the race: the stock store in a Java process of its own, the same
messages, by the wall clock.

The process is told where the workload lies and leaves a store behind, which is read afterwards by
the code that reads ours. It ends by itself, at a deadline, or with this process.
"""

import json
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from compare.report.delivered_topics import read_delivered
from compare.report.results import Usage
from compare.rocketmq.jars import classes, jars, missing_tools
from compare.running.engine_watch import SAMPLE_EVERY_S, Progress
from compare.running.observation import Costs, Delivered, Observation, RaceSettings, SeenRounds
from compare.running.work_files import (
    disk_bytes,
    make_directory,
    process_memory,
    read_workload,
    remove,
    store_bytes,
)
from compare.workloads.workload import Workload
from message_store.base.clock import SystemClock
from message_store.base.errors import DelayStoreError
from message_store.columns.byte_column import Int64s
from message_store.files.small_files import read_small_file, replace_file

WARMUP_MESSAGES = 50_000
WALL_CLOCK_ONLY = "races on the wall clock only: it asks the machine what time it is"
_NOTES = (
    "deliveries are timed by the store time in the record, before a consumer could see them",
    "it also maintains a key index and flushes by itself",
)
_AFTER_MS = 60_000
_AROUND_MS = 120_000
_TOLD = "race: "
_PAUSE_MS = 20
JAVA_ROOT = Path(__file__).parent / "java"
_NO_LOG = b'<configuration><root level="OFF"/></configuration>\n'
# 4.9's shutdown unmaps files by reflection; without these it dies on the way.
_PACKAGES = "java.nio sun.nio.ch java.lang java.util jdk.internal.ref jdk.internal.misc"
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES.split()),
)
_MEMORY = ("-Xms2g", "-Xmx2g", "-XX:+AlwaysPreTouch")
"""Memory that is there from the start, as a broker's start script does."""


class JavaRunError(DelayStoreError):
    """The Java process did not come to an end as it should; the text is what it said."""


@attrs.frozen
class JavaEntrant:
    """One of RocketMQ's engines, as the race calls it: which version, and the program that runs
    it. ``warmup`` messages go through another store first, so that what is measured is compiled.
    """

    name: str
    version: str
    program: str
    warmup: int = WARMUP_MESSAGES

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        """Why it cannot run; what it needs is fetched, once."""
        if settings.clock != "wall":
            return WALL_CLOCK_ONLY
        if (absent := missing_tools()) is not None:
            return f"not available: {absent}"
        progress(f"{self.name}: finding RocketMQ {self.version} (at first by Maven)", 0, 0)
        try:
            self._classes()
        except (OSError, RuntimeError, subprocess.SubprocessError) as failure:
            why = str(failure).splitlines()[0]
            return f"not available: RocketMQ {self.version} cannot be had: {why}"
        return None

    def store_bytes(self, workload: Workload) -> int:
        """Room for the messages as they wait and as they are delivered."""
        return store_bytes(workload)

    def _classes(self) -> Path:
        sources = [JAVA_ROOT / "Entrant.java", JAVA_ROOT / f"{self.program}.java"]
        return classes(self.version, "race", sources)

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        """Run it in a Java process. Raises JavaRunError, and what ``rocketmq_jars`` does."""
        workload = read_workload(workload_file)
        scratch = make_directory(store.with_name(f"{store.name}.java"))
        replace_file(scratch / "logback.xml", _NO_LOG, is_durable=False)
        arguments: dict[str, object] = {
            "workload": workload_file,
            "store": store,
            "scratch": scratch,
            "out": scratch / "out.json",
            "promises": scratch / "promises",
            "afterMs": _AFTER_MS,
            "deadlineMs": workload.end_ms - workload.start_ms + _AFTER_MS + _AROUND_MS,
            "warmup": self.warmup,
            "precisionMs": settings.precision_ms,
            "maxDelayMs": settings.max_delay_ms,
        }
        if settings.level_table is not None:
            arguments["levelTable"] = settings.level_table
        progress(f"{self.name}: getting ready", 0, 0)
        run = _JavaRun(self.name, len(workload), store, progress)
        run.watch(self._command(scratch, arguments), scratch)
        results = json.loads(read_small_file(scratch / "out.json") or b"{}")
        promised_ms = np.frombuffer(read_small_file(scratch / "promises") or b"", ">i8")
        if not results or len(promised_ms) != len(workload):
            raise JavaRunError(f"{self.name}: its process ended with {run.code}: {run.said()}")
        remove(scratch)
        return self._observation(results, promised_ms, run, read_delivered(store, workload.topics))

    def _command(self, scratch: Path, arguments: Mapping[str, object]) -> list[str]:
        quiet = scratch / "logback.xml"
        return [
            "java", *_MEMORY, *OPENED, f"-Duser.home={scratch}",
            f"-Dlogback.configurationFile={quiet}", f"-Drmq.logback.configurationFile={quiet}",
            "-cp", f"{self._classes()}:{jars(self.version)}/*",
            self.program, *(f"{key}={value}" for key, value in arguments.items()),
        ]  # fmt: skip

    def _observation(
        self, results: Mapping[str, Any], promised_ms: Int64s, run: "_JavaRun", delivered: Delivered
    ) -> Observation:
        return Observation(
            start_ms=results["start_ms"],
            promised_ms=promised_ms,
            rounds=SeenRounds([], []),
            costs=Costs(
                put_s=results["put_s"],
                drain_s=busy_s(delivered),
                other_s=0.0,
                elapsed_s=results["seconds"],
                cpu_s=results["cpu_s"],
                peak_memory_bytes=run.peak_bytes,
                bytes_on_disk=disk_bytes(run.store),
            ),
            delivered=delivered,
            usage=run.usage(results["start_ms"]),
            version=f"RocketMQ {self.version}, Java {results['java']}",
            notes=(f"its JVM has {' '.join(_MEMORY)}", *_NOTES),
            put_failures=results.get("failures", {}),
        )


JAVA_ENTRANTS: dict[str, JavaEntrant] = {
    entrant.name: entrant
    for entrant in (
        JavaEntrant("java-levels", "4.9.7", "LevelsEntrant"),
        JavaEntrant("java-wheel", "5.5.0", "WheelEntrant"),
    )
}


def busy_s(delivered: Delivered, pause_ms: int = _PAUSE_MS) -> float:
    """Seconds in which deliveries were stored, pauses of more than ``pause_ms`` left out: what
    ``advance`` would have taken, had somebody called it.
    """
    moments: Int64s = np.unique(delivered.stored_ms)
    between = np.diff(moments)
    return float(between[between <= pause_ms].sum() + (between > pause_ms).sum() + 1) / 1_000


@attrs.define(eq=False)
class _JavaRun:
    """The process while it runs: what it says, what it holds."""

    name: str
    messages: int
    store: Path
    progress: Progress
    code: int | None = None
    peak_bytes: int = 0
    _samples: list[tuple[int, int, int]] = attrs.field(factory=list)
    _lines: deque[str] = attrs.field(factory=lambda: deque(maxlen=20))

    def watch(self, command: list[str], scratch: Path) -> None:
        """Start it and stay with it until it has ended."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            text=True,
            errors="replace",
        )
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        try:
            while self.code is None:
                self._sample(process.pid)
                try:
                    self.code = process.wait(SAMPLE_EVERY_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
            listener.join()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            if not line.startswith(_TOLD):
                self._lines.append(line.rstrip())
                continue
            what, number = line.removeprefix(_TOLD).split()
            if what == "start":
                self._samples.clear()
            elif what == "delivered":
                self.progress(f"{self.name}: racing", int(number), self.messages)

    def _sample(self, process: int) -> None:
        memory = process_memory(process)
        self.peak_bytes = max(self.peak_bytes, memory.peak_bytes)
        held = memory.private_bytes, disk_bytes(self.store)
        self._samples.append((SystemClock().now_ms(), *held))

    def usage(self, start_ms: int) -> Usage:
        """What it held, from the start of the race."""
        later = [
            (at - start_ms, *held) for at, *held in self._samples if at >= start_ms and held[0]
        ]
        return Usage(*zip(*later, strict=True)) if later else Usage()

    def said(self) -> str:
        """The end of its output in one line, without where in Java that was."""
        lines = [line for line in self._lines if not line.startswith("\tat ")]
        return " | ".join(lines) or "nothing said"
