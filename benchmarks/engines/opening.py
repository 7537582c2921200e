# SPDX-License-Identifier: Apache-2.0
"""How long a store with much in it takes to open in a fresh process, after an orderly end and after
a kill; and what a waiting message costs on the disk and in memory.

``main`` is such a process: it fills or opens a store, says what that took, and then ends or is
killed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.engines.loads import START_MS, messages_table
from benchmarks.machine import private_bytes
from delaywheel import open_store
from message_store import ManualClock, MessageBatch
from message_store.base.clock import stopwatch_s
from message_store.reading.engine_choice import EngineName

_PIECE = 500_000
_BODY_BYTES = 256
_SPREAD_MS = 7_000_000
_PROGRAM = "from benchmarks.engines.opening import main; main()"
_ROOT = Path(__file__).resolve().parents[2]


def fill(engine: EngineName, path: Path, count: int) -> dict[str, float]:
    """Put so many messages there, due over two hours, and place them."""
    rng = np.random.default_rng(4)
    started = stopwatch_s()
    with open_store(path, engine=engine, clock=ManualClock(START_MS)) as store:
        for done in range(0, count, _PIECE):
            rows = min(_PIECE, count - done)
            table = messages_table(rows, _BODY_BYTES)
            due_ms = START_MS + 60_000 + rng.integers(0, _SPREAD_MS, rows)
            store.schedule_batch(MessageBatch.from_arrow(table), due_ms)
        store.advance(START_MS)
        return {"fill s": stopwatch_s() - started}


def open_once(engine: EngineName, path: Path, end: str) -> dict[str, float]:
    """Open it, advance to now, and end as told: "close" or "kill"."""
    before = private_bytes(os.getpid())
    started = stopwatch_s()
    store = open_store(path, engine=engine, clock=ManualClock(START_MS))
    opened = stopwatch_s()
    next_ms = store.next_due_ms()
    advanced = stopwatch_s()
    grown = private_bytes(os.getpid()) - before
    if next_ms is None:
        raise AssertionError("nothing waits in a store that was filled")
    if end == "close":
        store.close()
    return {"open s": opened - started, "next due s": advanced - opened, "private bytes": grown}


def in_a_process(task: str, engine: EngineName, path: Path, argument: str) -> dict[str, float]:
    """What such a process has to say before it ends, and its whole time until then."""
    command = [sys.executable, "-c", _PROGRAM, task, engine, str(path), argument]
    started = stopwatch_s()
    run = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"{' '.join(command)} ended with {run.returncode}")
    said: dict[str, float] = json.loads(run.stdout)
    return said | {"process s": stopwatch_s() - started}


def disk_bytes(path: Path) -> dict[str, int]:
    """What lies on the disk, by the store's first directories and files."""
    found: dict[str, int] = {}
    for file in path.rglob("*"):
        if file.is_file():
            part = file.relative_to(path).parts[0]
            found[part] = found.get(part, 0) + file.stat().st_blocks * 512
    return found


def opening(engine: EngineName, directory: Path, count: int, rounds: int) -> dict[str, Any]:
    """All rounds of one number of messages; the first of each kind is printed with the others."""
    path = directory / "store"
    found: dict[str, Any] = {"messages": count, "engine": engine}
    found |= in_a_process("fill", engine, path, str(count))
    found["disk bytes"] = disk_bytes(path)
    for kind, end in (("clean", "close"), ("killed", "kill")):
        in_a_process("open", engine, path, end)  # the first one finds what another kind left
        found[kind] = [in_a_process("open", engine, path, end) for _ in range(rounds)]
    return found


def main() -> None:
    """Do what the arguments say, print it as JSON, end."""
    task, name, path, argument = sys.argv[1:]
    engine = cast(EngineName, name)
    if task == "fill":
        said = fill(engine, Path(path), int(argument))
    else:
        said = open_once(engine, Path(path), argument)
    print(json.dumps(said), flush=True)
    if argument == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
