# SPDX-License-Identifier: Apache-2.0
"""Messages come in and go out at a steady rate, with random delays: how late, and at what price.

One thread schedules one by one, so many each millisecond; one runs the store; one flushes. A body
begins with the time that was asked for, so that lateness can be told against it too.
"""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.engines.loads import OpenStore, bodies, fresh_store
from benchmarks.machine import process_cpu_s
from message_store import AtMs, DelayStore, Deliveries, Message, SystemClock, run_store
from message_store.base.clock import stopwatch_s
from message_store.columns.byte_column import Int64s

PERCENTILES = (0, 50, 90, 99, 99.9, 100)
_DUE_BYTES = 8
_LEFT_OUT_MS = 1_000
_AFTERWARDS_S = 2
_PATIENCE_S = 60
"""So much longer than the longest delay is waited for the last message: who lags loses nothing."""


@attrs.frozen
class Steady:
    """One run: messages a second for so many seconds, each due after a random delay.

    ``waits_for_all`` goes on until the last of them has come.
    """

    rate: int
    precision_ms: int
    seconds: float
    body_bytes: int = 1_024
    least_delay_ms: int = 1_200
    longest_delay_ms: int = 60_000
    flush_every_ms: int = 1_000
    waits_for_all: bool = True


@attrs.define
class Lateness:
    """What the running loop saw: for each delivery the time asked for, and how late it was."""

    precision_ms: int
    clock: SystemClock
    due_ms: list[Int64s] = attrs.field(factory=list)
    stored_ms: list[Int64s] = attrs.field(factory=list)
    seen_ms: list[Int64s] = attrs.field(factory=list)

    def __call__(self, deliveries: Deliveries) -> None:
        """Take in what one ``advance`` delivered."""
        now_ms = self.clock.now_ms()
        batch = deliveries.to_batch()
        places = batch.body.starts[:, None] + np.arange(_DUE_BYTES)
        due_ms = batch.body.data[places].view(">i8").ravel().astype(np.int64)
        self.due_ms.append(due_ms)
        self.stored_ms.append(batch.store_timestamp_ms.copy())
        self.seen_ms.append(np.full(len(due_ms), now_ms))

    def __len__(self) -> int:
        return sum(map(len, self.due_ms))

    def results(self, from_ms: int) -> dict[str, Any]:
        """Percentiles in milliseconds, the time until ``from_ms`` left out."""
        nothing = [np.empty(0, np.int64)]
        due_ms, stored_ms, seen_ms = (
            np.concatenate(nothing + part) for part in (self.due_ms, self.stored_ms, self.seen_ms)
        )
        later = due_ms >= from_ms
        due_ms, stored_ms, seen_ms = due_ms[later], stored_ms[later], seen_ms[later]
        promised_ms = -(-due_ms // self.precision_ms) * self.precision_ms
        late = {
            "seen - due": seen_ms - due_ms,
            "seen - promised": seen_ms - promised_ms,
            "stored - promised": stored_ms - promised_ms,
        }
        return {
            name: dict(zip(map(str, PERCENTILES), _percentiles(values), strict=True))
            for name, values in late.items()
        } | {"measured": int(later.sum()), "early": int((late["stored - promised"] < 0).sum())}


def _percentiles(values: Int64s) -> list[float]:
    return np.percentile(values, PERCENTILES).tolist() if len(values) else [0.0] * len(PERCENTILES)


class _Producer:
    """Schedules at a steady rate; behind its time it hurries."""

    def __init__(self, store: DelayStore, wanted: Steady, clock: SystemClock) -> None:
        self.store, self.wanted, self.clock = store, wanted, clock
        self.longest_s = 0.0
        self.sent = 0

    def run(self) -> None:
        wanted, schedule = self.wanted, self.store.schedule
        given = bodies(4_096, wanted.body_bytes - _DUE_BYTES)
        span = wanted.least_delay_ms, wanted.longest_delay_ms
        delays = np.random.default_rng(3).integers(*span, 1 << 16).tolist()
        started = stopwatch_s()
        total = int(wanted.rate * wanted.seconds)
        while self.sent < total:
            owed = min(total, int((stopwatch_s() - started) * wanted.rate) + 1)
            for number in range(self.sent, owed):
                due_ms = self.clock.now_ms() + delays[number & 0xFFFF]
                body = due_ms.to_bytes(_DUE_BYTES, "big") + given[number & 0xFFF]
                before = stopwatch_s()
                schedule(Message("OrderTimeout", body, "late", queue_id=number & 3), AtMs(due_ms))
                self.longest_s = max(self.longest_s, stopwatch_s() - before)
            self.sent = owed
            self.clock.sleep_ms(0.5)
        self.took_s = stopwatch_s() - started


def steady(open_store: OpenStore, directory: Path, wanted: Steady) -> dict[str, Any]:
    """One run; rates, lateness in ms, the longest ``schedule`` in ms, percent of one core."""
    clock = SystemClock()
    lateness = Lateness(wanted.precision_ms, clock)
    gc.collect()
    gc.freeze()
    with fresh_store(open_store, directory, clock, wanted.precision_ms) as store:
        producer, over, errors = _Producer(store, wanted, clock), threading.Event(), []

        def guarded(work: Callable[[], object]) -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                over.set()

        def deliver() -> None:
            run_store(store, clock, lateness, stop=over.is_set)

        def flush() -> None:
            while not over.wait(wanted.flush_every_ms / 1_000):
                store.flush()

        threads = [
            threading.Thread(target=guarded, args=(work,))
            for work in (producer.run, deliver, flush)
        ]
        started_ms, cpu_s, started = clock.now_ms(), process_cpu_s(), stopwatch_s()
        for thread in threads:
            thread.start()
        threads[0].join()
        if wanted.waits_for_all:
            until_s = stopwatch_s() + wanted.longest_delay_ms / 1_000 + _PATIENCE_S
            while len(lateness) < producer.sent and stopwatch_s() < until_s and not over.wait(0.1):
                continue
            over.wait(_AFTERWARDS_S)  # what is repeated would come behind
        cpu_percent = 100 * (process_cpu_s() - cpu_s) / (stopwatch_s() - started)
        over.set()
        for thread in threads[1:]:
            thread.join()
        if errors:
            raise errors[0]
    gc.unfreeze()
    first_ms = wanted.least_delay_ms if wanted.waits_for_all else 0  # else something waited before
    return {
        **attrs.asdict(wanted),
        **lateness.results(started_ms + first_ms + _LEFT_OUT_MS),
        "sent": producer.sent,
        "delivered": len(lateness),
        "reached a second": producer.sent / producer.took_s,
        "longest schedule ms": producer.longest_s * 1_000,
        "cpu percent": cpu_percent,
    }
