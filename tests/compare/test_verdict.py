# SPDX-License-Identifier: Apache-2.0
"""The answer of a race stands in its sentences."""

import attrs

from compare.results import EngineResult, Lateness, RaceResults, WorkloadFacts
from compare.verdict import verdict

FACTS = WorkloadFacts(
    name="burst",
    messages=10,
    body_bytes=8,
    topics=1,
    seed=1,
    start_ms=0,
    arrival_span_ms=0,
    delay_min_ms=0,
    delay_max_ms=0,
)


def an_engine(name: str, drained: float, late_ms: float) -> EngineResult:
    late = Lateness(p50=0, p90=0, p99=late_ms, p999=late_ms, max=late_ms)
    return EngineResult(
        name=name,
        drain_per_second=drained,
        lateness_ms=late,
        lateness_after_promise_ms=late,
        cpu_percent=10.0,
    )


def said(*engines: EngineResult) -> tuple[str, ...]:
    return verdict(RaceResults(workload=FACTS, clock="wall", engines=engines))


def test_ours_stands_beside_rocketmqs_own_of_the_same_kind() -> None:
    ours, theirs = an_engine("wheel", 900.0, 30.0), an_engine("java-wheel", 100.0, 4_200.0)
    assert (
        "wheel drains 9.0 times what RocketMQ's own does in a second and has 999 of 1000 within"
        " 30 ms of its promise, RocketMQ's own within 4.2 s"
    ) in said(ours, theirs)


def test_engines_of_different_kinds_are_not_set_side_by_side() -> None:
    told = said(an_engine("levels", 900.0, 30.0), an_engine("java-wheel", 100.0, 40.0))
    assert not any("RocketMQ's own" in sentence for sentence in told)


def test_what_was_not_measured_is_left_out() -> None:
    nothing = attrs.evolve(
        an_engine("java-wheel", 1.0, 1.0), drain_per_second=None, lateness_after_promise_ms=None
    )
    told = said(an_engine("wheel", 900.0, 30.0), nothing)
    assert not any("RocketMQ's own" in sentence for sentence in told)
