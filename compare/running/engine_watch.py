# SPDX-License-Identifier: Apache-2.0
"""Holds the stopwatch while an engine runs: seconds in each call, deliveries, memory, disk."""

import os
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np

from compare.report.results import FaultSeen, Usage
from compare.running.observation import NOT_TAKEN, Costs, Observation, SeenRounds
from compare.running.work_files import disk_bytes, process_memory
from compare.workloads.workload import Workload
from message_store.base.clock import stopwatch_s
from message_store.columns.byte_column import Int64s

Progress = Callable[[str, int, int], object]
"""Stage, how much is done, of how much."""

SAMPLE_EVERY_S = 0.05
_SAY_EVERY_S = 0.25


def cpu_s() -> float:
    """Seconds of processor time that this process has used."""
    used = os.times()
    return used.user + used.system


@attrs.define(eq=False)
class Stopwatch:
    """Around calls of one kind, by ``with``: the time in all of them, in the longest one, and when
    the last one came back.
    """

    total_s: float = 0.0
    longest_s: float = 0.0
    last_s: float = 0.0
    _started_s: float = 0.0

    def begin(self) -> None:
        """Forget the longest call, and the last one."""
        self.longest_s = self.last_s = 0.0

    def __enter__(self) -> None:
        self._started_s = stopwatch_s()

    def __exit__(self, *_raised: object) -> None:
        self.took(self._started_s)

    def took(self, started_s: float) -> None:
        """A call that began then came back. A ``with`` around each takes longer."""
        self.last_s = stopwatch_s()
        took_s = self.last_s - started_s
        self.total_s += took_s
        if took_s > self.longest_s:
            self.longest_s = took_s


@attrs.define(eq=False)
class EngineWatch:
    """Everything that is noted about one run. ``where`` is the store's directory."""

    workload: Workload
    where: Path
    progress: Progress
    promised_ms: Int64s = attrs.field(init=False)
    puts: Stopwatch = attrs.field(factory=Stopwatch)
    drain_s: float = 0.0
    other_s: float = 0.0
    last_promise_ms: int = 0
    taken: int = 0
    delivered: int = 0
    faults: list[FaultSeen] = attrs.field(factory=list)
    _counts: list[int] = attrs.field(factory=list)
    _seen_ms: list[int] = attrs.field(factory=list)
    _samples: list[tuple[int, int, int]] = attrs.field(factory=list)
    _sampled_s: float = 0.0
    _said_s: float = 0.0
    _started: tuple[float, float] = (0.0, 0.0)
    _used: tuple[float, float] = (0.0, 0.0)

    def __attrs_post_init__(self) -> None:
        self.promised_ms = np.full(len(self.workload), NOT_TAKEN, np.int64)

    def begin(self) -> None:
        """From here on time counts."""
        self.puts.begin()
        self._started = stopwatch_s(), cpu_s()

    def finish(self) -> None:
        """Up to here time counts."""
        self._used = stopwatch_s() - self._started[0], cpu_s() - self._started[1]

    def advanced(self, took_s: float, count: int, seen_ms: int) -> None:
        """A call of ``advance`` came back with so many deliveries."""
        if count:
            self.drain_s += took_s
            self.delivered += count
            self._counts.append(count)
            self._seen_ms.append(seen_ms)
        else:
            self.other_s += took_s

    def was_killed(self, seen_ms: int) -> None:
        """A call of ``advance`` did not return; what it had delivered by then can be seen."""
        self._counts.append(0)
        self._seen_ms.append(seen_ms)

    def took(self, first: int, promised_ms: Int64s, last_ms: int) -> None:
        """The messages from number ``first`` on were taken, and promised for then; the last of them
        for ``last_ms``.
        """
        self.promised_ms[first : first + len(promised_ms)] = promised_ms
        self.taken += len(promised_ms)
        self.last_promise_ms = max(self.last_promise_ms, last_ms)

    def took_singly(self, first: int, promised_ms: list[int]) -> None:
        """The same of messages that were put one by one; of those that were not, NOT_TAKEN."""
        self.promised_ms[first : first + len(promised_ms)] = promised_ms
        self.taken += len(promised_ms) - promised_ms.count(NOT_TAKEN)
        self.last_promise_ms = max(self.last_promise_ms, *promised_ms, 0)

    def look(self, now_ms: int, *, always: bool = False) -> None:
        """Sample memory and disk, and say how far the race is, each now and then."""
        now_s = stopwatch_s()
        if always or now_s - self._sampled_s >= SAMPLE_EVERY_S:
            held = process_memory().private_bytes, disk_bytes(self.where)
            self._samples.append((now_ms - self.workload.start_ms, *held))
            self._sampled_s = stopwatch_s()
        self.say("racing", self.delivered, len(self.workload), always=always)

    def say(self, stage: str, done: int, total: int, *, always: bool = False) -> None:
        """Say how far a stage is, now and then."""
        now_s = stopwatch_s()
        if always or now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            self.progress(stage, done, total)

    def observation(self) -> Observation:
        """All of it; ``bytes_on_disk`` as of now."""
        elapsed_s, used_s = self._used
        return Observation(
            start_ms=self.workload.start_ms,
            promised_ms=self.promised_ms,
            rounds=SeenRounds(self._counts, self._seen_ms),
            costs=Costs(
                put_s=self.puts.total_s,
                drain_s=self.drain_s,
                other_s=self.other_s,
                elapsed_s=elapsed_s,
                cpu_s=used_s,
                peak_memory_bytes=process_memory().peak_bytes,
                bytes_on_disk=disk_bytes(self.where),
                longest_put_s=self.puts.longest_s,
                last_put_s=max(0.0, self.puts.last_s - self._started[0]),
            ),
            usage=Usage(*zip(*self._samples, strict=True)) if self._samples else Usage(),
            faults=tuple(self.faults),
        )
