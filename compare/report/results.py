# SPDX-License-Identifier: Apache-2.0
"""What came out of a race: values that a table, a report and a program read, and their JSON.

Times are milliseconds, of the race's clock where they are points in time. Nothing here measures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

CURVE_FRACTIONS = tuple(
    np.unique(
        np.concatenate(
            [np.linspace(0, 1, 201), 1 - np.logspace(-2, -6, 81), [0.5, 0.9, 0.99, 0.999]]
        ).round(9)
    ).tolist()
)
"""Where a lateness curve is sampled: evenly, and ever closer towards the latest message."""

_PERCENTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


def _quantiles(values: Int64s, fractions: Sequence[float]) -> list[float]:
    values_there = np.quantile(values, fractions, method="inverted_cdf")
    return [float(value) for value in values_there]


@attrs.frozen
class Lateness:
    """How late messages were: each figure is the lateness of a message that was really seen."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, lateness_ms: Int64s) -> "Lateness | None":
        """The percentiles of these; None of nothing."""
        if not len(lateness_ms):
            return None
        values = _quantiles(lateness_ms, list(_PERCENTS.values()))
        return cls(**dict(zip(_PERCENTS, values, strict=True)))


@attrs.frozen
class LatenessCurve:
    """The whole distribution: ``late_ms[i]`` is not exceeded by the share ``fractions[i]`` of the
    messages. Both rise; ``fractions`` lies closer together towards 1.
    """

    fractions: tuple[float, ...] = ()
    late_ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, lateness_ms: Int64s) -> "LatenessCurve":
        """The curve of these; empty of nothing."""
        if not len(lateness_ms):
            return cls()
        return cls(CURVE_FRACTIONS, tuple(_quantiles(lateness_ms, CURVE_FRACTIONS)))


@attrs.frozen
class Traffic:
    """Messages a bucket of ``bucket_ms``, the first of which begins with the race."""

    bucket_ms: int = 1_000
    put: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()


@attrs.frozen
class Usage:
    """What the engine's process held, sampled: ``at_ms`` counts from the race's beginning.

    ``memory_bytes`` is what it shares with no file (RssAnon; Java: the same). ``disk_bytes`` is
    what its store takes on the disk, not how long its files say they are.
    """

    at_ms: tuple[int, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    disk_bytes: tuple[int, ...] = ()


@attrs.frozen
class Round:
    """One run of an engine: speed and cost, and what 999 of 1000 were not later than after their
    promise. None where there was nothing to divide by.
    """

    put_per_second: float | None
    drain_per_second: float | None
    through_per_second: float | None
    cpu_percent: float
    peak_memory_bytes: int
    bytes_on_disk: int
    after_promise_p999_ms: float | None = None


@attrs.frozen(kw_only=True)
class Opening:
    """What it cost to open a store again, while ``waiting`` messages were still to come, and to
    come to the first delivery.

    ``open_s`` is until the engine knew what is due next, ``first_s`` what it then spent in
    ``advance`` until it had delivered its first messages: ``first_messages`` at once, 0 where none
    came before the next opening. ``read_bytes`` came from the disk and not out of the page cache.
    """

    waiting: int
    open_s: float = 0.0
    read_bytes: int = 0
    first_messages: int = 0
    first_s: float = 0.0
    first_read_bytes: int = 0


@attrs.frozen
class FaultSeen:
    """One fault and what the engine did about it; ``at_ms`` counts from the race's beginning.

    ``answer`` is for people: "opened again", "refused, and opened again when there was room", ...
    ``opening`` is what that cost; None where the fault did not end the store.
    """

    kind: str
    at_ms: int
    answer: str
    opening: Opening | None = None


@attrs.frozen(kw_only=True)
class EngineResult:
    """How one engine did; the names of the figures are those of the JSON.

    ``put_per_second`` is messages through ``schedule`` a second spent there, ``drain_per_second``
    messages through those ``advance`` calls that delivered any, ``through_per_second`` messages in
    and out a second spent in the engine altogether. ``lateness_ms`` counts from the time asked for,
    ``lateness_after_promise_ms`` from the time the engine promised. ``early``, ``missing`` and
    ``duplicates`` are messages, counted in the delivered topics. ``not_taken`` were refused when
    they were put, and count nowhere else; of them ``put_failures`` failed, by the store's reason,
    and the others were due later than the engine can keep. With several rounds the speeds are those
    of the middle one, ``rounds`` has each; ``warming_rounds`` were run before and do not count.
    ``woken`` is in how many calls of ``advance`` it
    delivered something, 0 where that is not known. ``peak_private_bytes`` is the most of what is
    shared with no file, as sampled. ``unavailable`` says in one sentence why an engine did not run,
    or ``has_failed`` on the way; then nothing else is set.
    """

    name: str
    put_per_second: float | None = None
    drain_per_second: float | None = None
    through_per_second: float | None = None
    lateness_ms: Lateness | None = None
    lateness_after_promise_ms: Lateness | None = None
    early: int = 0
    missing: int = 0
    duplicates: int = 0
    not_taken: int = 0
    taken: int = 0
    delivered: int = 0
    woken: int = 0
    cpu_percent: float = 0.0
    peak_memory_bytes: int = 0
    peak_private_bytes: int = 0
    bytes_on_disk: int = 0
    lateness_curve: LatenessCurve = LatenessCurve()
    lateness_after_promise_curve: LatenessCurve = LatenessCurve()
    traffic: Traffic = Traffic()
    usage: Usage = Usage()
    rounds: tuple[Round, ...] = ()
    warming_rounds: tuple[Round, ...] = ()
    faults: tuple[FaultSeen, ...] = ()
    version: str = ""
    notes: tuple[str, ...] = ()
    put_failures: Mapping[str, int] = attrs.field(factory=dict)
    unavailable: str | None = None
    has_failed: bool = False

    @property
    def is_right(self) -> bool:
        """Nothing was delivered early, twice or not at all, and it came to its end."""
        return not (self.early or self.missing or self.duplicates or self.has_failed)


@attrs.frozen(kw_only=True)
class WorkloadFacts:
    """What was asked of the engines. Delays and the span of arrivals are in ms. ``overdue`` is how
    many messages are due before they arrive; then ``delay_min_ms`` is negative.
    """

    name: str
    messages: int
    body_bytes: int
    topics: int
    seed: int
    start_ms: int
    arrival_span_ms: int
    delay_min_ms: int
    delay_max_ms: int
    rate_per_second: float | None = None
    source: str | None = None
    overdue: int = 0


@attrs.frozen
class MessageTimes:
    """When one engine promised and delivered a message; several deliveries are repeats.

    ``promised_ms`` is None where the engine refused it.
    """

    promised_ms: int | None
    delivered_ms: tuple[int, ...]


@attrs.frozen(kw_only=True)
class FirstDifference:
    """The first message that the engines treated differently, and everything that befell it.

    ``kind`` is "delivered by some only", "repeated", "early", "taken by some only" or "other
    times"; the graver kinds are looked for first. ``messages`` is how many differ in that way.
    Times are epoch ms of the workload, ``delivered_ms`` those in the delivered records.
    """

    kind: str
    messages: int
    number: int
    topic: str
    arrival_ms: int
    asked_ms: int
    engines: Mapping[str, MessageTimes]


def is_busy(load: str, cores: str) -> bool:
    """Whether other work had more than half of a machine; both as its facts have them."""
    return float(load) > float(cores) / 2


@attrs.frozen(kw_only=True)
class RaceResults:
    """A whole race. ``clock`` is "virtual" or "wall"; ``engines`` in the order asked for.
    ``puts_one_by_one``: no engine was given batches.
    """

    workload: WorkloadFacts
    clock: str
    engines: tuple[EngineResult, ...]
    first_difference: FirstDifference | None = None
    precision_ms: int = 1_000
    machine: Mapping[str, str] = attrs.field(factory=dict)
    command: str = ""
    puts_one_by_one: bool = False

    @property
    def busy_load(self) -> float | None:
        """The load of the machine before the race, where other work had more than half of it."""
        load, cores = (self.machine.get(name, "0") for name in ("load before", "cores"))
        return float(load) if is_busy(load, cores) else None

    @property
    def is_right(self) -> bool:
        """Some engine ran, and none that did brought anything early, twice or not at all."""
        has_run = any(engine.unavailable is None for engine in self.engines)
        return has_run and all(engine.is_right for engine in self.engines)

    def engine(self, name: str) -> EngineResult:
        """One engine's result; raises KeyError where it was not asked for."""
        for result in self.engines:
            if result.name == name:
                return result
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """The race as JSON has it: all figures; curves and what was sampled are for reports."""
        engines = {result.name: _engine_json(result) for result in self.engines}
        return attrs.asdict(attrs.evolve(self, engines=())) | {"engines": engines}


_NOT_IN_JSON = frozenset(
    {"name", "lateness_curve", "lateness_after_promise_curve", "traffic", "usage"}
)


def _engine_json(result: EngineResult) -> dict[str, Any]:
    if result.unavailable is not None:
        return {"unavailable": result.unavailable, "has_failed": result.has_failed}
    facts = attrs.asdict(result)
    return {name: value for name, value in facts.items() if name not in _NOT_IN_JSON}
