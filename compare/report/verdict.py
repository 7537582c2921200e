# SPDX-License-Identifier: Apache-2.0
"""The answer of a race in a few sentences: who is right, who is fast, who comes close in time."""

from collections.abc import Iterator, Sequence

from compare.report.results import EngineResult, Opening, RaceResults, WorkloadFacts
from message_store.base.printable import DURATION_UNITS_MS, counted, duration, listed, size

NOTHING = "–"
_MS = 1_000


def opening_rows(ran: Sequence[EngineResult]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Two rows for each time that engines were opened again: title, meaning, a cell an engine."""
    for kind, at_ms, openings in each_opening(ran):
        yield (
            f"opened again, {kind} after {duration(at_ms)}",
            "until it knew what is due next; what came from the disk",
            tuple(map(_opened, openings)),
        )
        delivered = tuple(map(_delivered, openings))
        yield "… its first delivery", "so long for so many messages", delivered


def each_opening(
    ran: Sequence[EngineResult],
) -> Iterator[tuple[str, int, tuple[Opening | None, ...]]]:
    """Kind and time of each fault after which an engine was opened again, and every opening."""
    openings_of = [
        {(fault.at_ms, fault.kind): fault.opening for fault in engine.faults} for engine in ran
    ]
    for at_ms, kind in sorted({fault for faults in openings_of for fault in faults}):
        openings = tuple(faults.get((at_ms, kind)) for faults in openings_of)
        if any(openings):
            yield kind, at_ms, openings


def _opened(opening: Opening | None) -> str:
    if opening is None:
        return NOTHING
    return duration(opening.open_s * _MS) + _read(opening.read_bytes)


def _delivered(opening: Opening | None) -> str:
    if opening is None or not opening.first_messages:
        return NOTHING
    took = f"{duration(opening.first_s * _MS)} for {opening.first_messages:,}"
    return took + _read(opening.first_read_bytes)


def _read(length: int) -> str:
    """What came from the disk, where anything did."""
    return f", {size(length)} read" if length else ""


_FAIR_FACTOR, _NO_TIME_MS = 2, 100
_SAME_TIME, _SAME_SPEED = 0.05, 0.10
"""Shares within which times, and speeds and costs, are as good as equal: one run is no proof."""


def verdict(results: RaceResults) -> tuple[str, ...]:
    """What a reader wants to know first; each a whole sentence."""
    ran = [engine for engine in results.engines if engine.unavailable is None]
    failed = [f"{one.name} {one.unavailable}" for one in results.engines if one.has_failed]
    if not ran:
        return (*failed, "no engine could run")
    # To be fast, or near, is no merit of an engine that loses messages.
    ranked = [engine for engine in ran if engine.is_right and not _took_nothing(engine)]
    return (
        *failed,
        *_busy(results),
        *_wrong(ran),
        *_not_taken(ran),
        *_right(ran),
        *_beside_java(ranked),
        *_nearest(ranked),
        *_fastest(ranked, results.clock),
        *_soonest_open(ranked),
    )


def _busy(results: RaceResults) -> Iterator[str]:
    """Figures of a busy machine say more about the other work than about the engines."""
    if (load := results.busy_load) is not None and results.clock == "wall":
        cores = counted(int(results.machine["cores"]), "core")
        said = f"the machine was busy before the race, with a load of {load:g} on {cores}"
        yield f"{said}: run it again"


def _soonest_open(ran: Sequence[EngineResult]) -> Iterator[str]:
    """Who was soonest open again, once for each kind of end; nobody where all took no time."""
    longest: dict[str, dict[str, float]] = {}
    for kind, _at_ms, openings in each_opening(ran):
        for engine, opening in zip(ran, openings, strict=True):
            if opening is not None:
                took_ms = longest.setdefault(kind, {})
                took_ms[engine.name] = max(took_ms.get(engine.name, 0), opening.open_s * 1_000)
    for kind, took_ms in longest.items():
        (first, least_ms), *others = ranked = sorted(took_ms.items(), key=lambda timed: timed[1])
        if not others or others[-1][1] < _NO_TIME_MS:
            continue
        times = ", ".join(f"{name} {duration(each_ms)}" for name, each_ms in others)
        near = [name for name, each_ms in others if _as_soon(least_ms, each_ms)]
        if len(near) == len(others):
            times = ", ".join(f"{name} {duration(each_ms)}" for name, each_ms in ranked)
            yield f"all are about as soon open again after a {kind}: {times}"
            continue
        soon = f"as soon as {listed(near)}" if near else "soonest"
        yield f"{first} is {soon} open again after a {kind}: {duration(least_ms)} ({times})"


def _as_soon(least_ms: float, other_ms: float) -> bool:
    """Whether an opening is as good as the shortest; each was measured once."""
    return other_ms <= least_ms * (1 + _SAME_SPEED) or same_time(least_ms, other_ms)


def _took_nothing(engine: EngineResult) -> bool:
    return engine.not_taken > 0 and not engine.taken


def _wrong(ran: Sequence[EngineResult]) -> Iterator[str]:
    for engine in ran:
        if not engine.is_right:
            yield (
                f"{engine.name} is wrong: {engine.early:,} early, {engine.missing:,} missing,"
                f" {engine.duplicates:,} repeated"
            )


def _right(ran: Sequence[EngineResult]) -> Iterator[str]:
    right = [engine for engine in ran if engine.is_right and not _took_nothing(engine)]
    if right:
        who = "every engine" if len(right) == len(ran) > 1 else listed([e.name for e in right])
        yield f"{who} delivered all that was taken once, and nothing early"


def _beside_java(ran: Sequence[EngineResult]) -> Iterator[str]:
    """Each of our engines next to RocketMQ's own of the same kind."""
    by_name = {engine.name: engine for engine in ran}
    for ours in ran:
        theirs = by_name.get(f"java-{ours.name}")
        if theirs is None:
            continue
        clauses = []
        if ours.drain_per_second and theirs.drain_per_second:
            faster, slower = sorted((ours, theirs), key=lambda e: -(e.drain_per_second or 0))
            times = ours.drain_per_second / theirs.drain_per_second
            clauses.append(
                "drains as fast as RocketMQ's own"
                if same_speed(faster, slower, "drain_per_second")
                else f"drains {times:,.1f} times what RocketMQ's own does in a second"
            )
        late = ours.lateness_after_promise_ms, theirs.lateness_after_promise_ms
        if late[0] is not None and late[1] is not None:
            clauses.append(
                f"has 999 of 1000 within {duration(late[0].p999)} of its promise, RocketMQ's own"
                f" within {duration(late[1].p999)}"
            )
        if clauses:
            yield f"{ours.name} {' and '.join(clauses)}"


def _fastest(ran: Sequence[EngineResult], clock: str) -> Iterator[str]:
    """By messages in and out; on the wall clock, where the schedule sets the pace, by CPU."""
    if clock == "wall":
        yield from _cheapest(ran)
        return
    measured = sorted(
        ((engine.through_per_second, engine) for engine in ran if engine.through_per_second),
        key=lambda timed: -timed[0],
    )
    if len(measured) > 1:
        best, first = measured[0]
        others = ", ".join(f"{best / speed:,.1f} × {other.name}" for speed, other in measured[1:])
        near = [e for _speed, e in measured[1:] if same_speed(first, e, "through_per_second")]
        what = f"as fast as {listed([e.name for e in near])}" if near else "the fastest"
        yield f"{first.name} is {what}, {best:,.0f} messages a second in and out: {others}"
        yield from _woken([engine for engine in ran if engine.woken])


def _cheapest(ran: Sequence[EngineResult]) -> Iterator[str]:
    ranked = sorted(ran, key=lambda engine: engine.cpu_percent)
    if len(ranked) < 2 or ranked[0].cpu_percent <= 0:
        return
    first, least = ranked[0], ranked[0].cpu_percent
    near = [
        other
        for other in ranked[1:]
        if round(other.cpu_percent) - round(least) <= 1
        or (
            other.cpu_percent <= least * (1 + _SAME_SPEED)
            and not _apart(first, other, "cpu_percent")
        )
    ]
    what = f"as little of a core as {listed([e.name for e in near])}" if near else ""
    others = ", ".join(f"{e.name} {e.cpu_percent:,.0f} %" for e in ranked[1:])
    yield f"{first.name} needs {what or 'the least of a core'}: {least:,.0f} % ({others})"


def same_speed(first: EngineResult, other: EngineResult, figure: str) -> bool:
    """Whether another engine's speed is as good: near the highest, and not beaten in every run."""
    best, speed = getattr(first, figure), getattr(other, figure)
    return bool(best <= speed * (1 + _SAME_SPEED)) and not _apart(first, other, figure)


def _apart(one: EngineResult, other: EngineResult, figure: str) -> bool:
    """Whether both ran several times, and each run of one beat each of the other."""
    first, second = (_rounds(engine, figure) for engine in (one, other))
    if min(len(first), len(second)) < 2:
        return False
    return min(first) > max(second) or max(first) < min(second)


def _rounds(engine: EngineResult, figure: str) -> list[float]:
    return [value for each in engine.rounds if (value := getattr(each, figure)) is not None]


def _woken(ran: Sequence[EngineResult]) -> Iterator[str]:
    """Where engines had to get up for few messages, speeds are the price of getting up."""
    times = [engine.woken for engine in ran]
    if times and max(times) > _FAIR_FACTOR * min(times):
        looks = ", ".join(f"{engine.name} {counted(engine.woken, 'time')}" for engine in ran)
        yield f"speeds hold the price of looking, too, and they did not look equally often: {looks}"


def _nearest(ran: Sequence[EngineResult]) -> Iterator[str]:
    measured = [
        (engine.lateness_ms, engine.name) for engine in ran if engine.lateness_ms is not None
    ]
    if len(measured) < 2:
        return
    ranked = sorted(measured, key=lambda timed: (timed[0].p99, timed[0].p50))
    late, name = ranked[0]
    near = [other for each, other in ranked[1:] if same_time(late.p99, each.p99)]
    if len({duration(each.p99) for each, _name in ranked}) == 1:
        yield f"all are equally close to the time asked for: 99 of 100 within {duration(late.p99)}"
        return
    others = ", ".join(f"{other} {duration(each.p99)}" for each, other in ranked[1:])
    comes = f"comes as close as {listed(near)}" if near else "comes closest"
    yield f"{name} {comes} to the time asked for: 99 of 100 within {duration(late.p99)} ({others})"


def same_time(one_ms: float, other_ms: float) -> bool:
    """Whether two durations are as good as equal: by their share, or as people read them."""
    unit_ms = next((unit / 10 for _name, unit in DURATION_UNITS_MS if abs(other_ms) >= unit), 1)
    return abs(one_ms - other_ms) <= max(_SAME_TIME * abs(other_ms), unit_ms)


def _not_taken(ran: Sequence[EngineResult]) -> Iterator[str]:
    """Who did not take everything; who took nothing first."""
    for engine in sorted(ran, key=lambda engine: not _took_nothing(engine)):
        total = engine.taken + engine.not_taken
        late = engine.not_taken - sum(engine.put_failures.values())
        if engine.put_failures:
            reasons = ", ".join(f"{count:,} {why}" for why, count in engine.put_failures.items())
            others = f"; {late:,} more were due later than it can keep" if late else ""
            some = counted(total, "message")
            yield f"{engine.name} failed to put some of {some}: {reasons}{others}"
        elif _took_nothing(engine):
            yield (
                f"{engine.name} took none of {counted(total, 'message')}: all were due"
                " later than it can keep"
            )
        elif engine.not_taken:
            yield (
                f"{engine.name} took {engine.taken:,} of {counted(total, 'message')}: the others"
                " were due later than it can keep"
            )


def put_how(results: RaceResults) -> str:
    """How messages were put, for the title of that figure."""
    return "one by one" if results.puts_one_by_one else "in batches"


def how_judged(results: RaceResults) -> str:
    """What counts, where engines ran several times; nothing where each ran once."""
    ran = next((engine for engine in results.engines if len(engine.rounds) > 1), None)
    if ran is None:
        return ""
    thrown_away = len(ran.warming_rounds)
    before = counted(thrown_away, "round before them is", "rounds before them are")
    judged = f"{len(ran.rounds)} rounds in turns, judged by the median and the worst"
    return f"{judged}; {before} kept and not judged" if thrown_away else judged


def what_was_asked(results: RaceResults) -> str:
    """The workload and the clock, in one sentence."""
    facts = results.workload
    source = f" of {facts.source}" if facts.source else ""
    span_ms = facts.arrival_span_ms
    pace = f"within {duration(span_ms)}" if span_ms else "all at once"
    return (
        f"{facts.name}{source}: {counted(facts.messages, 'message')} of {size(facts.body_bytes)}"
        f" for {counted(facts.topics, 'topic')}, put {pace}, {when_due(facts)};"
        f" {results.clock} clock, slots of {results.precision_ms} ms, seed {facts.seed}"
    )


def when_due(facts: WorkloadFacts) -> str:
    """How long after their arrival messages are due, and how many should have come before."""
    if not facts.overdue:
        return f"due {duration(facts.delay_min_ms)} to {duration(facts.delay_max_ms)} later"
    words = counted(facts.overdue, "of them was", "of them were")
    overdue = f"{words} overdue already when put, by {duration(-facts.delay_min_ms)} at most"
    if facts.overdue == facts.messages:
        return overdue
    return f"due up to {duration(facts.delay_max_ms)} later; {overdue}"
