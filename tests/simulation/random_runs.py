# SPDX-License-Identifier: Apache-2.0
"""Runs of random stores: ``python -m tests.simulation.random_runs --seeds 200 --first 1``.

A seed is a number and gives everything: the owner, its settings, the workload, the clock, and what
fails. With ``--focus every`` the focuses take turns with plain runs. The end is a table of what was
run and what failed; the exit code is 1 when anything did, with the command that repeats each seed.
``--seeds 1 --first N --trace`` prints what happens in one, ``--shorten`` the same with as few of
its steps as still fail.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import attrs
import pytest

from message_store.base import parallel
from migrate.write import staging
from tests.simulation.draws import (
    DAMAGE,
    ENGINES,
    FOCUSES,
    GROUPS,
    INDEX,
    KILLS,
    MOVES,
    REFERENCES,
    Drawn,
)
from tests.simulation.failed_once import (
    FAILED_ONCE,
    FAILED_ONCE_IN_GROUPS,
    FAILED_ONCE_IN_MOVES,
    FAILED_ONCE_IN_REFERENCES,
)
from tests.simulation.group_strikes import StruckGroupRun
from tests.simulation.random_migration import run_migration
from tests.simulation.random_run import Outcome, RandomRun
from timer_wheel.wheel import waiting

MIGRATION_EVERY = 5
"""Every fifth seed is a verb of migration."""

MIGRATION = "migration"
EVERY = "every"
"""Runs without a focus, and of each focus by turns."""

_FOCUS_AT = {1: DAMAGE, 4: KILLS, 7: INDEX, 11: GROUPS, 13: REFERENCES}
_TURN = 15
assert all(at % MIGRATION_EVERY for at in _FOCUS_AT)
assert _TURN % MIGRATION_EVERY == 0
_SEEDS_A_TASK = 10
_MEMORY = Path("/dev/shm")


@attrs.frozen
class Told:
    """What is told of a run to another process."""

    seed: int
    kind: str
    wrong: str
    struck: Counter[str]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the stores of runs, in memory where there is any."""
    where = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="delaywheel-runs-", dir=where) as folder:
        yield Path(folder) / "run"


def focus_of(seed: int, focus: str | None) -> str | None:
    """The focus of a run, where the focuses may take turns."""
    return _FOCUS_AT.get(seed % _TURN) if focus == EVERY else focus


def run_seed(
    seed: int,
    folder: Path,
    skipped: frozenset[int] = frozenset(),
    *,
    focus: str | None = None,
) -> Outcome:
    """One run, in one thread also where it only reads: there is a process for each core."""
    focus = focus_of(seed, focus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "core_count", lambda: 1)
        patch.setattr(staging, "_SYNCED_AT_ONCE", 1)
        if focus == KILLS:  # a listing stops between two slots
            patch.setattr(waiting, "_SLOTS_AT_ONCE", 1)
        if focus is None and seed % MIGRATION_EVERY == 0:
            return run_migration(seed, folder)
        return run_of(seed, folder, skipped, focus).run()


def run_of(
    seed: int, folder: Path, skipped: frozenset[int] = frozenset(), focus: str | None = None
) -> RandomRun:
    """The run of a store by its seed, which has not begun."""
    focus = focus_of(seed, focus)
    if focus == GROUPS:
        return StruckGroupRun(seed, folder, skipped)
    return RandomRun(seed, folder, skipped, focus)


def kinds_of(seed: int, focus: str | None = None) -> frozenset[str]:
    """What a run is about, by which runs are chosen: its engine, or a migration; damage."""
    focus = focus_of(seed, focus)
    if focus is None and seed % MIGRATION_EVERY == 0:
        return frozenset({MIGRATION})
    return Drawn.of(seed, focus).kinds


def seeds_of(first: int, count: int, kinds: Sequence[str], focus: str | None) -> list[int]:
    """So many seeds from one on, of any of these kinds."""
    numbers: Iterator[int] = itertools.count(first)
    if kinds:
        numbers = (each for each in numbers if kinds_of(each, focus) & set(kinds))
    return list(itertools.islice(numbers, count))


def run_some(seeds: Sequence[int], focus: str | None = None) -> list[Told]:
    """Runs in this process."""
    with scratch() as folder:
        outcomes = (run_seed(seed, folder, focus=focus) for seed in seeds)
        return [
            Told(each.seed, focus_of(each.seed, focus) or each.kind, each.wrong, each.struck)
            for each in outcomes
        ]


def shorten(seed: int, folder: Path, focus: str | None) -> tuple[frozenset[int], Outcome]:
    """As many steps as can be left out of a run that fails, for it to fail in the same way."""
    whole = run_of(seed, folder, focus=focus)
    count, wanted = whole.count, whole.run().wrong[:12]
    skipped: frozenset[int] = frozenset()
    size = max(1, count // 2)
    while size and wanted:
        for first in range(0, count, size):
            more = skipped | frozenset(range(first, min(count, first + size)))
            if more != skipped and run_seed(seed, folder, more, focus=focus).wrong[:12] == wanted:
                skipped = more
        size //= 2
    return skipped, run_seed(seed, folder, skipped, focus=focus)


def command_of(seed: int, focus: str | None) -> str:
    """What repeats a run."""
    focus = focus_of(seed, focus)
    words = f"--seeds 1 --first {seed} --trace" + (f" --focus {focus}" if focus else "")
    return f".venv/bin/python -m tests.simulation.random_runs {words}"


def say(*lines: object, end: str = "\n") -> None:
    """Print."""
    sys.stdout.writelines(f"{line}{end}" for line in lines)
    sys.stdout.flush()


@attrs.define
class Tally:
    """What was run so far."""

    began_s: float
    wanted: int
    runs: Counter[str] = attrs.field(factory=Counter)
    struck: Counter[str] = attrs.field(factory=Counter)
    failed: list[Told] = attrs.field(factory=list)

    def add(self, each: Told) -> None:
        """Count a run."""
        self.runs[each.kind] += 1
        self.struck += each.struck
        if each.wrong:
            self.failed.append(each)

    def progress(self, now_s: float) -> str:
        """A line that is written over the one before."""
        done = self.runs.total()
        rate = done / max(0.001, now_s - self.began_s)
        faults = self.struck.total()
        return (
            f"{done:,} of {self.wanted:,} runs, {rate:.1f} a second, {faults:,} faults,"
            f" {len(self.failed)} failed"
        )

    def table(self) -> list[str]:
        """Counts of each kind."""
        wrong = Counter(each.kind for each in self.failed)
        lines = [f"{'run':12} {'runs':>8} {'failed':>8}"]
        lines += [
            f"{kind:12} {count:8,} {wrong[kind]:8,}" for kind, count in sorted(self.runs.items())
        ]
        lines += [f"{'all':12} {self.runs.total():8,} {len(self.failed):8,}", ""]
        lines += [f"{'fault':12} {'struck':>8}"]
        lines += [f"{fault:12} {count:8,}" for fault, count in sorted(self.struck.items())]
        return [*lines, f"{'all':12} {self.struck.total():8,}"]


def run_all(seeds: Sequence[int], processes: int, focus: str | None = None) -> Iterable[list[Told]]:
    """Runs of all seeds, in their order."""
    run = partial(run_some, focus=focus)
    parts = [seeds[at : at + _SEEDS_A_TASK] for at in range(0, len(seeds), _SEEDS_A_TASK)]
    if processes < 2:
        yield from map(run, parts)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, parts)


def trace_one(seed: int, focus: str | None, *, shortened: bool, with_events: bool) -> int:
    """Print a run."""
    with scratch() as folder:
        if shortened and (focus_of(seed, focus) or seed % MIGRATION_EVERY):
            skipped, outcome = shorten(seed, folder, focus)
            say(f"without the steps {sorted(skipped)}:")
        else:
            outcome = run_seed(seed, folder, focus=focus)
    say(*outcome.trace, *(outcome.events if with_events else ()))
    say(f"WRONG: {outcome.wrong}" if outcome.wrong else "nothing is wrong")
    return 1 if outcome.wrong else 0


def asked_for() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.random_runs", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print what happens in each run")
    parser.add_argument("--until-wrong", action="store_true", help="end with the first that fails")
    parser.add_argument("--events", action="store_true", help="and every change of its disk")
    parser.add_argument("--shorten", action="store_true", help="leave out what is not needed")
    parser.add_argument(
        "--focus", choices=[*FOCUSES, EVERY], help="other runs, with more of one thing"
    )
    kinds = [*ENGINES, MIGRATION, DAMAGE, MOVES]
    parser.add_argument("--kinds", nargs="*", choices=kinds, default=[],
                        help="of these alone: what a run begins with, or is about")  # fmt: skip
    parser.add_argument("--failed-once", action="store_true",
                        help="begin with the runs that failed once")  # fmt: skip
    return parser.parse_args()


def main() -> int:
    """Run the seeds that are asked for, and tell of them."""
    asked = asked_for()
    seeds = seeds_of(asked.first, asked.seeds, asked.kinds, asked.focus)
    if asked.failed_once:
        failed_once = {
            None: {**FAILED_ONCE, **FAILED_ONCE_IN_MOVES},
            GROUPS: FAILED_ONCE_IN_GROUPS,
            REFERENCES: FAILED_ONCE_IN_REFERENCES,
        }
        seeds = [*failed_once.get(asked.focus, {}).values(), *seeds]
    if asked.trace or asked.shorten:
        return max(
            trace_one(seed, asked.focus, shortened=asked.shorten, with_events=asked.events)
            for seed in seeds
        )
    tally = Tally(time.monotonic(), len(seeds))
    end = "\r" if sys.stdout.isatty() else "\n"
    said_s = tally.began_s
    for each in chain.from_iterable(run_all(seeds, asked.processes, asked.focus)):
        tally.add(each)
        if each.wrong:
            command = command_of(each.seed, asked.focus)
            say(f"seed {each.seed} ({each.kind}): {each.wrong}", f"  {command}")
            if asked.until_wrong:
                say(f"it was run {tally.runs.total()}")
                break
        if time.monotonic() - said_s > (1 if end == "\r" else 30):
            said_s = time.monotonic()
            say(tally.progress(said_s), end=end)
    say(tally.progress(time.monotonic()), "", *tally.table())
    say(*(command_of(each.seed, asked.focus) for each in tally.failed))
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
