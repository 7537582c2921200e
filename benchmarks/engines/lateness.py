# SPDX-License-Identifier: Apache-2.0
"""Messages come in and go out at a steady rate, with random delays: how late, and at what price.

It is a race with one engine, on the wall clock, in which messages are scheduled one by one.
"""

from pathlib import Path
from typing import Any

import attrs
import numpy as np

from compare.report.measure import account
from compare.running.observation import RaceSettings
from compare.running.race import ENTRANTS, no_progress
from compare.running.work_files import WORKLOAD_FILE, remove, write_workload
from compare.workloads.made_up import Recipe, make_workload
from compare.workloads.workload import Workload

PERCENTILES = (0, 50, 90, 99, 99.9, 100)
_LEFT_OUT_MS = 1_000
_PUT_A_SECOND = 200_000
"""At least so many are put a second where a batch is put before the start."""


@attrs.frozen(kw_only=True)
class Steady:
    """One run: messages a second for so many seconds, each due after a random delay.

    With ``begins_full`` there is before the start what a long run at this rate would have left
    pending. With ``leaves_pending`` it ends with the last message put.
    """

    rate: int
    precision_ms: int
    seconds: float
    body_bytes: int = 1_024
    least_delay_ms: int = 1_200
    longest_delay_ms: int = 60_000
    begins_full: bool = False
    leaves_pending: bool = False

    def workload(self) -> Workload:
        """Its messages."""
        recipe = Recipe(
            messages=int(self.rate * self.seconds),
            rate_per_second=self.rate,
            body_bytes=self.body_bytes,
            topics=1,
            delay_min_ms=self.least_delay_ms,
            delay_max_ms=self.longest_delay_ms,
        )
        made = make_workload("uniform", recipe)
        return self._behind_a_backlog(made) if self.begins_full else made

    def _behind_a_backlog(self, made: Workload) -> Workload:
        rng = np.random.default_rng(5)
        least, longest = self.least_delay_ms, self.longest_delay_ms
        # Of those sent before, so many are due at a time as have a delay that reaches beyond it.
        count = int(self.rate * (least + longest) / 2_000)
        delays = rng.uniform(least, longest, 3 * count)
        sent_before = rng.uniform(0, longest, 3 * count)
        left_ms = (delays - sent_before)[delays > sent_before][:count].astype(np.int64)
        arrival_ms = made.start_ms - 1_000 - 1_000 * len(left_ms) // _PUT_A_SECOND
        none = np.zeros(len(left_ms), np.int64)
        return attrs.evolve(
            made,
            arrival_ms=np.concatenate([none + arrival_ms, made.arrival_ms]),
            due_ms=np.concatenate([left_ms + made.start_ms, made.due_ms]),
            level=np.concatenate([none, made.level]),
            topic=np.concatenate([none, made.topic]),
            body_bytes=np.concatenate([none + self.body_bytes, made.body_bytes]),
        )


def steady(engine: str, directory: Path, wanted: Steady) -> dict[str, Any]:
    """One run; rates, lateness in ms, the longest ``schedule`` in ms, percent of one core.

    Lateness is that of the messages due a second or more after the first could be.
    """
    workload, file, store = wanted.workload(), directory / WORKLOAD_FILE, directory / "store"
    settings = RaceSettings(
        clock="wall",
        precision_ms=wanted.precision_ms,
        puts_one_by_one=True,
        leaves_pending=wanted.leaves_pending,
    )
    try:
        write_workload(file, workload)
        seen = ENTRANTS[engine].run(file, settings, store, no_progress)
    finally:
        remove(file)
        remove(store)
    messages, costs = account(workload, seen), seen.costs
    from_ms = max(seen.start_ms, int(messages.asked_ms.min())) + _LEFT_OUT_MS
    later = (messages.count > 0) & (messages.asked_ms >= from_ms)
    seen_ms, stored_ms = messages.first_seen_ms[later], messages.first_stored_ms[later]
    late = {
        "seen - due": seen_ms - messages.asked_ms[later],
        "seen - promised": seen_ms - messages.promised_ms[later],
        "stored - promised": stored_ms - messages.promised_ms[later],
    }
    sent = int(messages.taken[workload.arrival_ms >= workload.start_ms].sum())
    return {
        **attrs.asdict(wanted),
        **{
            name: dict(zip(map(str, PERCENTILES), _percentiles(values), strict=True))
            for name, values in late.items()
        },
        "measured": int(later.sum()),
        "early": int(messages.was_early.sum()),
        "repeated": int(messages.repeats.sum()),
        "sent": sent,
        "delivered": int(np.count_nonzero(messages.count)),
        "reached a second": sent / costs.last_put_s if costs.last_put_s else 0.0,
        "longest schedule ms": costs.longest_put_s * 1_000,
        "cpu percent": 100 * costs.cpu_s / costs.elapsed_s,
    }


def _percentiles(values: "np.ndarray[Any, np.dtype[np.int64]]") -> list[float]:
    return np.percentile(values, PERCENTILES).tolist() if len(values) else [0.0] * len(PERCENTILES)
