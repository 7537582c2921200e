# SPDX-License-Identifier: Apache-2.0
"""Makes figures of what was seen of an engine: lateness, early, missing, repeated, speeds.

The same code for every engine. What was delivered is what stands in the topics.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compare.report.results import (
    EngineResult,
    FaultSeen,
    FirstDifference,
    Lateness,
    LatenessCurve,
    MessageTimes,
    Round,
    Traffic,
)
from compare.running.observation import NOT_TAKEN, Costs, Observation
from compare.workloads.workload import Workload
from message_store.columns.byte_column import Int64s

_BUCKETS = 240
_BUCKET_CHOICES_MS = (
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000,
)  # fmt: skip


_SPEEDS = ("put_per_second", "drain_per_second", "through_per_second")
_MOST = ("peak_memory_bytes", "peak_private_bytes", "bytes_on_disk")
_WRONG = ("early", "missing", "duplicates")


@attrs.frozen(eq=False)
class Account:
    """What became of each message, a row each. ``first_seen_ms`` and ``first_stored_ms`` are those
    of its first delivery, and mean nothing where ``count`` is 0.
    """

    asked_ms: Int64s
    promised_ms: Int64s
    count: Int64s
    first_seen_ms: Int64s
    first_stored_ms: Int64s

    @property
    def taken(self) -> NDArray[np.bool_]:
        """Which messages the engine took."""
        return np.asarray(self.promised_ms != NOT_TAKEN)

    @property
    def was_early(self) -> NDArray[np.bool_]:
        """Which messages bear a time before the one asked for."""
        return np.asarray((self.count > 0) & (self.first_stored_ms < self.asked_ms))

    @property
    def was_missed(self) -> NDArray[np.bool_]:
        """Which messages were taken and never delivered."""
        return np.asarray(self.taken & (self.count == 0))

    @property
    def repeats(self) -> Int64s:
        """Deliveries beyond the first; for a refused message every delivery counts."""
        return np.maximum(0, self.count - self.taken)


def account(workload: Workload, seen: Observation) -> Account:
    """What was asked, promised and seen of each message of a workload, a row each by its number.

    Deliveries with numbers that the workload does not have are left out.
    """
    delivered = seen.delivered
    seen_ms = seen.rounds.of(delivered)
    count = len(workload)
    ours = (delivered.number >= 0) & (delivered.number < count)
    number = delivered.number[ours]
    first_seen, first_stored = (
        _first_of(number, times[ours], count) for times in (seen_ms, delivered.stored_ms)
    )
    return Account(
        asked_ms=workload.due_ms + (seen.start_ms - workload.start_ms),
        promised_ms=seen.promised_ms,
        count=np.bincount(number, minlength=count).astype(np.int64),
        first_seen_ms=first_seen,
        first_stored_ms=first_stored,
    )


def _first_of(number: Int64s, times: Int64s, count: int) -> Int64s:
    first = np.zeros(count, np.int64)
    first[number[::-1]] = times[::-1]  # the first of several is written last
    return first


def measure(name: str, workload: Workload, seen: Observation, messages: Account) -> EngineResult:
    """The figures of one engine's run: rates in messages a second, lateness in ms, counts."""
    once = messages.taken & (messages.count > 0)
    late_ms = (messages.first_seen_ms - messages.asked_ms)[once]
    after_promise_ms = (messages.first_seen_ms - messages.promised_ms)[once]
    costs = seen.costs
    taken = int(messages.taken.sum())
    delivered = int(once.sum())
    # Where nobody saw an engine deliver, what its files say is all that is known.
    drained = int(seen.rounds.counts.sum()) or len(seen.delivered)
    after_promise = Lateness.of(after_promise_ms)
    figures = _round(costs, taken, drained, after_promise)
    shared = ("cpu_percent", "peak_memory_bytes", "bytes_on_disk", *_SPEEDS)
    return EngineResult(
        name=name,
        **{each: getattr(figures, each) for each in shared},
        lateness_ms=Lateness.of(late_ms),
        lateness_after_promise_ms=after_promise,
        early=int(messages.was_early.sum()),
        missing=int(messages.was_missed.sum()),
        duplicates=int(messages.repeats.sum()),
        not_taken=len(workload) - taken,
        taken=taken,
        delivered=delivered,
        woken=int(np.count_nonzero(seen.rounds.counts)),
        peak_private_bytes=max(seen.usage.memory_bytes, default=0),
        lateness_curve=LatenessCurve.of(late_ms),
        lateness_after_promise_curve=LatenessCurve.of(after_promise_ms),
        traffic=_traffic(workload, seen, messages, once),
        usage=seen.usage,
        rounds=(figures,),
        faults=seen.faults,
        version=seen.version,
        notes=seen.notes,
        put_failures=dict(seen.put_failures),
    )


def _round(costs: Costs, taken: int, delivered: int, after_promise: Lateness | None) -> Round:
    inside_s = costs.put_s + costs.drain_s + costs.other_s
    return Round(
        put_per_second=_per_second(taken, costs.put_s),
        drain_per_second=_per_second(delivered, costs.drain_s),
        through_per_second=_per_second(delivered, inside_s),
        cpu_percent=100 * costs.cpu_s / costs.elapsed_s if costs.elapsed_s > 0 else 0.0,
        peak_memory_bytes=costs.peak_memory_bytes,
        bytes_on_disk=costs.bytes_on_disk,
        after_promise_p999_ms=None if after_promise is None else after_promise.p999,
    )


def _per_second(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None


def _traffic(
    workload: Workload, seen: Observation, messages: Account, once: NDArray[np.bool_]
) -> Traffic:
    """In and out over time, in a readable number of buckets of a readable width."""
    out_ms = messages.first_seen_ms[once] - seen.start_ms
    in_ms = (workload.arrival_ms - workload.start_ms)[messages.taken]
    last_ms = int(max(out_ms.max(initial=0), in_ms.max(initial=0)))
    width_ms = next((w for w in _BUCKET_CHOICES_MS if last_ms < w * _BUCKETS), last_ms + 1)
    buckets = last_ms // width_ms + 1
    put, out = (
        np.bincount(np.maximum(0, times) // width_ms, minlength=buckets).tolist()
        for times in (in_ms, out_ms)
    )
    return Traffic(width_ms, tuple(put), tuple(out))


def of_rounds(runs: Sequence[EngineResult], warming: int = 0) -> EngineResult:
    """One result of several runs: the speeds of the middle run, the faults of all.

    Counts of what is wrong are those of the worst run. Lateness is that of the run in the middle by
    its median. Of the first ``warming`` runs speed and lateness do not count; what they did wrong
    does.
    """
    results = runs[warming:]
    rounds = tuple(figures for result in results for figures in result.rounds)
    ranked = sorted(results, key=lambda each: each.lateness_ms.p50 if each.lateness_ms else 0)
    merged: dict[str, Any] = {
        **{name: _middle([getattr(figures, name) for figures in rounds]) for name in _SPEEDS},
        **{name: max(getattr(each, name) for each in results) for name in _MOST},
        **{name: max(getattr(each, name) for each in runs) for name in _WRONG},
    }
    return attrs.evolve(
        ranked[len(ranked) // 2],
        **merged,
        cpu_percent=statistics.median(figures.cpu_percent for figures in rounds),
        rounds=rounds,
        warming_rounds=tuple(figures for run in runs[:warming] for figures in run.rounds),
        faults=tuple(
            map(_middle_opening, zip(*(result.faults for result in results), strict=True))
        ),
    )


def _middle_opening(seen: Sequence[FaultSeen]) -> FaultSeen:
    """One fault of several runs: that of the run which took the middle time to open again."""
    opened = [(each.opening.open_s, each) for each in seen if each.opening is not None]
    ranked = sorted(opened, key=lambda timed: timed[0])
    return ranked[len(ranked) // 2][1] if ranked else seen[-1]


def _middle(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None


OTHER_TIMES = "other times"


def _differing(accounts: Sequence[Account]) -> dict[str, NDArray[np.bool_]]:
    """Which messages engines treated differently, by the kind of difference, the graver first."""

    def of_all(name: str) -> NDArray[Any]:
        return np.stack([getattr(each, name) for each in accounts])

    taken, came, stored_ms = of_all("taken"), of_all("count") > 0, of_all("first_stored_ms")
    return {
        "delivered by some only": taken.all(axis=0) & ~came.all(axis=0),
        "repeated": (of_all("repeats") > 0).any(axis=0),
        "early": of_all("was_early").any(axis=0),
        "taken by some only": taken.any(axis=0) & ~taken.all(axis=0),
        OTHER_TIMES: came.all(axis=0) & (stored_ms != stored_ms[0]).any(axis=0),
    }


def first_difference(
    workload: Workload,
    accounts: Mapping[str, Account],
    seen: Mapping[str, Observation],
    *,
    with_times: bool = True,
) -> FirstDifference | None:
    """The first message, by arrival, with the gravest kind of difference; None where all engines
    did the same, or only one ran.

    ``with_times``: other times are a difference too, as they are where time is not left to chance.
    """
    if len(accounts) < 2:
        return None
    for kind, differs in _differing([*accounts.values()]).items():
        rows = np.flatnonzero(differs)
        if len(rows) and (with_times or kind != OTHER_TIMES):
            number = int(rows[0])
            return FirstDifference(
                kind=kind,
                messages=len(rows),
                number=number,
                topic=workload.topics[int(workload.topic[number])],
                arrival_ms=int(workload.arrival_ms[number]),
                asked_ms=int(workload.due_ms[number]),
                engines={
                    name: _times(workload, seen[name], number, accounts[name]) for name in accounts
                },
            )
    return None


def _times(workload: Workload, seen: Observation, number: int, messages: Account) -> MessageTimes:
    """By the workload's time, also where it really ran at another."""
    shift_ms = seen.start_ms - workload.start_ms
    promised_ms = int(messages.promised_ms[number])
    stored_ms = seen.delivered.stored_ms[seen.delivered.number == number]
    return MessageTimes(
        None if promised_ms == NOT_TAKEN else promised_ms - shift_ms,
        tuple(int(time_ms) - shift_ms for time_ms in stored_ms),
    )
