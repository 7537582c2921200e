# SPDX-License-Identifier: Apache-2.0
"""The answer of a race stands in its sentences."""

import attrs
import pytest

from compare.report.results import (
    EngineResult,
    FaultSeen,
    Lateness,
    Opening,
    RaceResults,
    Round,
    WorkloadFacts,
)
from compare.report.verdict import verdict, when_due

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


def test_a_busy_machine_is_said_first() -> None:
    """A race beside other work stood on a page once, and nothing told how little it meant."""
    results = RaceResults(workload=FACTS, clock="wall", engines=(an_engine("wheel", 900.0, 30.0),))
    machine = {"cores": "2", "load before": "1.1"}
    busy = attrs.evolve(results, machine=machine)
    assert verdict(busy)[0] == (
        "the machine was busy before the race, with a load of 1.1 on 2 cores: run it again"
    )
    quiet = attrs.evolve(results, machine=machine | {"load before": "1.0"})
    assert verdict(busy)[1:] == verdict(quiet) == verdict(attrs.evolve(busy, clock="virtual"))


def test_puts_that_failed_are_not_called_due_too_late() -> None:
    engine = attrs.evolve(an_engine("java-wheel", 100.0, 30.0), taken=90, not_taken=10)
    assert "java-wheel took 90 of 100 messages: the others were due later than it can keep" in said(
        engine
    )
    busy = attrs.evolve(engine, put_failures={"OS_PAGECACHE_BUSY": 7, "SERVICE_NOT_AVAILABLE": 1})
    assert (
        "java-wheel failed to put some of 100 messages: 7 OS_PAGECACHE_BUSY,"
        " 1 SERVICE_NOT_AVAILABLE; 2 more were due later than it can keep"
    ) in said(busy)


@pytest.mark.parametrize("theirs_per_second", [95.0, 105.0])
def test_within_the_noise_neither_ours_nor_rocketmqs_own_is_faster(
    theirs_per_second: float,
) -> None:
    told = said(an_engine("wheel", 100.0, 30.0), an_engine("java-wheel", theirs_per_second, 40.0))
    assert any(each.startswith("wheel drains as fast as RocketMQ's own and has") for each in told)


def test_engines_of_different_kinds_are_not_set_side_by_side() -> None:
    told = said(an_engine("levels", 900.0, 30.0), an_engine("java-wheel", 100.0, 40.0))
    assert not any("RocketMQ's own" in sentence for sentence in told)


def test_what_was_not_measured_is_left_out() -> None:
    nothing = attrs.evolve(
        an_engine("java-wheel", 1.0, 1.0), drain_per_second=None, lateness_after_promise_ms=None
    )
    told = said(an_engine("wheel", 900.0, 30.0), nothing)
    assert not any("RocketMQ's own" in sentence for sentence in told)


@pytest.mark.parametrize(
    ("late_ms", "beginning"),
    [
        (992.0, "all are equally close to the time asked for: 99 of 100 within 992 ms"),
        (996.0, "hierarchy comes as close as wheel to the time asked for: 99 of 100 within 992 ms"),
        (993.4, "hierarchy comes as close as wheel to"),
        (1_100.0, "hierarchy comes closest to the time asked for: 99 of 100 within 992 ms"),
    ],
)
def test_times_within_the_noise_have_no_winner(late_ms: float, beginning: str) -> None:
    told = said(an_engine("hierarchy", 900.0, 992.0), an_engine("wheel", 900.0, late_ms))
    assert told[1].startswith(beginning)


@pytest.mark.parametrize(
    ("percent", "sentence"),
    [
        (4.4, "wheel needs as little of a core as levels: 3 % (levels 4 %)"),
        (6.0, "wheel needs the least of a core: 3 % (levels 6 %)"),
    ],
)
def test_costs_within_a_percent_of_a_core_have_no_winner(percent: float, sentence: str) -> None:
    one, other = an_engine("wheel", 900.0, 30.0), an_engine("levels", 900.0, 30.0)
    assert sentence in said(
        attrs.evolve(one, cpu_percent=2.6), attrs.evolve(other, cpu_percent=percent)
    )


def ran_at(name: str, *speeds: float) -> EngineResult:
    one = Round(None, None, None, 1.0, 0, 0)
    rounds = tuple(attrs.evolve(one, through_per_second=speed) for speed in speeds)
    engine = an_engine(name, 1.0, 30.0)
    return attrs.evolve(engine, through_per_second=sorted(speeds)[len(speeds) // 2], rounds=rounds)


@pytest.mark.parametrize(
    ("wheel", "levels", "what"),
    [
        ((105.0,), (100.0,), "as fast as levels"),
        ((115.0,), (100.0,), "the fastest"),
        ((105.0, 106.0, 104.0), (100.0, 99.0, 101.0), "the fastest"),
        ((105.0, 106.0, 100.0), (100.0, 99.0, 101.0), "as fast as levels"),
    ],
)
def test_a_speed_within_a_tenth_wins_only_where_all_its_rounds_do(
    wheel: tuple[float, ...], levels: tuple[float, ...], what: str
) -> None:
    engines = (ran_at("wheel", *wheel), ran_at("levels", *levels))
    told = verdict(RaceResults(workload=FACTS, clock="virtual", engines=engines))
    assert [one for one in told if one.startswith(f"wheel is {what}, 1")]


def opened(name: str, *seconds: float) -> EngineResult:
    """An engine that was killed again and again, and took so long to open each time."""
    seen = tuple(
        FaultSeen("kill", at_ms, "opened again", Opening(waiting=1, open_s=open_s, read_bytes=0))
        for at_ms, open_s in enumerate(seconds)
    )
    return attrs.evolve(an_engine(name, 900.0, 30.0), faults=seen)


@pytest.mark.parametrize(
    ("wheel", "sentence"),
    [
        ((2.0, 1.0), "levels is soonest open again after a kill: 1.2 s (wheel 2.0 s)"),
        ((1.21, 0.1), "all are about as soon open again after a kill: levels 1.2 s, wheel 1.2 s"),
        ((1.31, 0.1), "all are about as soon open again after a kill: levels 1.2 s, wheel 1.3 s"),
    ],
)
def test_who_is_soonest_open_again_is_told_by_the_longest_opening(
    wheel: tuple[float, ...], sentence: str
) -> None:
    assert said(opened("wheel", *wheel), opened("levels", 0.5, 1.2))[-1] == sentence


def test_openings_that_take_no_time_have_no_winner() -> None:
    told = said(opened("wheel", 0.05), opened("levels", 0.01))
    assert not any("open again" in sentence for sentence in told)


def test_who_did_not_take_all_comes_before_who_delivered_what_was_taken() -> None:
    levels, wheel = an_engine("levels", 900.0, 30.0), an_engine("wheel", 900.0, 30.0)
    levels, wheel = attrs.evolve(levels, taken=9, not_taken=1), attrs.evolve(wheel, not_taken=10)
    assert said(levels, attrs.evolve(wheel, lateness_ms=None, cpu_percent=1.0)) == (
        "wheel took none of 10 messages: all were due later than it can keep",
        "levels took 9 of 10 messages: the others were due later than it can keep",
        "levels delivered all that was taken once, and nothing early",
    )


@pytest.mark.parametrize(
    ("overdue", "least_ms", "longest_ms", "words"),
    [
        (0, 0, 5_200, "due 0 ms to 5.2 s later"),
        (1, -15, 5_200, "due up to 5.2 s later; 1 of them was overdue already when put, by 15 ms"),
        (10, -2_000, -15, "10 of them were overdue already when put, by 2.0 s at most"),
    ],
)
def test_what_is_due_before_it_arrives_is_called_overdue(
    overdue: int, least_ms: int, longest_ms: int, words: str
) -> None:
    facts = attrs.evolve(FACTS, overdue=overdue, delay_min_ms=least_ms, delay_max_ms=longest_ms)
    assert when_due(facts).startswith(words)
