# SPDX-License-Identifier: Apache-2.0
"""The report of a race: true numbers, all escaped, nothing fetched, and a browser shows it."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import numpy as np
import pytest

from compare.report.html import draw_lateness, draw_traffic, draw_usage, render_report, write_report
from compare.report.results import (
    EngineResult,
    FaultSeen,
    FirstDifference,
    Lateness,
    LatenessCurve,
    MessageTimes,
    RaceResults,
    Round,
    Traffic,
    Usage,
    WorkloadFacts,
)
from message_store.base.errors import TargetError
from tests.html_pages import (
    EVIL,
    browser,
    require_harmless,
    require_whole_in_itself,
    seen_in_a_browser,
)

START_MS = 1_793_000_000_000


def an_engine(name: str, late_ms: int, **changes: object) -> EngineResult:
    late = np.arange(1_000) * late_ms // 1_000
    result = EngineResult(
        name=name,
        put_per_second=1_234_567.0,
        drain_per_second=7_654_321.0 / late_ms,
        through_per_second=1_000_000.0,
        lateness_ms=Lateness.of(late),
        lateness_after_promise_ms=Lateness.of(late // 2),
        taken=1_000,
        delivered=1_000,
        cpu_percent=12.0,
        peak_memory_bytes=300 << 20,
        bytes_on_disk=3 << 30,
        lateness_curve=LatenessCurve.of(late),
        lateness_after_promise_curve=LatenessCurve.of(late // 2),
        traffic=Traffic(100, (500, 500, 0, 0), (0, 0, 900, 100)),
        usage=Usage((0, 200, 400), (1 << 20, 2 << 20, 3 << 20), (0, 1 << 20, 2 << 20)),
        version=f"{name} 1.0",
    )
    return attrs.evolve(result, **changes)  # type: ignore[arg-type]


def a_race(*engines: EngineResult, **changes: object) -> RaceResults:
    results = RaceResults(
        workload=WorkloadFacts(
            name="burst",
            messages=1_000,
            body_bytes=1_024,
            topics=4,
            seed=1,
            start_ms=START_MS,
            arrival_span_ms=0,
            delay_min_ms=1_000,
            delay_max_ms=2_000,
        ),
        clock="wall",
        engines=engines or (an_engine("wheel", 40), an_engine("java-wheel", 4_000)),
        machine={"cores": "2"},
        command="delaywheel compare --workload burst",
    )
    return attrs.evolve(results, **changes)  # type: ignore[arg-type]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a page's time."""
    for name in ("lateness", "traffic", "usage"):
        monkeypatch.setattr(f"compare.report.html.draw_{name}", lambda engines: "<svg></svg>")


@pytest.mark.usefixtures("undrawn")
def test_the_page_tells_the_numbers() -> None:
    page = render_report(a_race())
    assert "1,000 messages through 2 engines: burst" in page
    assert page.count("<td>1,234,567</td>") == 2  # nobody is better
    assert '<td class="best">191,358</td>' in page
    assert '<td class="best">39 ms</td>' in page
    assert "<td>4.0 s</td>" in page
    assert "<td>3.0 GiB</td>" in page
    assert "<dt>cores</dt><dd>2</dd>" in page
    assert "<pre>delaywheel compare --workload burst</pre>" in page
    assert page.count("<svg") == 3


@pytest.mark.usefixtures("undrawn")
def test_an_engine_that_did_not_run_has_a_column_that_says_why() -> None:
    absent = EngineResult(name="java-levels", unavailable="races on the wall clock only")
    page = render_report(a_race(an_engine("levels", 40), absent, an_engine("wheel", 50)))
    assert "<th>java-levels</th>" in page
    assert page.count("races on the wall clock only") == 1
    assert page.index("39 ms") < page.index("49 ms")


def test_a_race_that_nobody_ran_is_still_a_page() -> None:
    page = render_report(a_race(EngineResult(name="java-wheel", unavailable="no Java")))
    assert "No engine could run" in page
    assert "no Java" in page
    assert "<svg" not in page


@pytest.mark.usefixtures("undrawn")
def test_what_is_wrong_stands_out() -> None:
    page = render_report(a_race(an_engine("wheel", 40, missing=3, early=2, duplicates=1)))
    assert re.findall(r'<td class="wrong">(\d)</td>', page) == ["2", "3", "1"]


@pytest.mark.usefixtures("undrawn")
def test_an_engine_that_loses_messages_is_the_best_at_nothing() -> None:
    page = render_report(a_race(an_engine("memory", 1, missing=3), an_engine("wheel", 40)))
    assert '<td class="best">39 ms</td>' in page
    assert '<td class="best">0 ms</td>' not in page


@pytest.mark.usefixtures("undrawn")
def test_nobody_wins_within_the_noise() -> None:
    near = [an_engine("levels", 4_000), an_engine("wheel", 4_050), an_engine("memory", 9_000)]
    page = render_report(a_race(*near))
    assert page.count('<td class="best">4.0 s</td>') == 6
    assert re.findall(r'<td class="best">(1,9..|1,8..)</td>', page) == ["1,914", "1,890"]
    assert 'class="best"' not in render_report(a_race(*near[:2]))


@pytest.mark.usefixtures("undrawn")
def test_whoever_wins_every_run_wins() -> None:
    one = Round(1_000.0, 2_000.0, 500.0, 10.0, 1 << 30, 1 << 30)
    first, other = (
        an_engine(
            name,
            40,
            put_per_second=speed,
            rounds=(
                attrs.evolve(one, put_per_second=speed - 1),
                attrs.evolve(one, put_per_second=speed),
            ),
        )
        for name, speed in (("levels", 1_000.0), ("wheel", 950.0))
    )
    page = render_report(a_race(first, other))
    assert re.findall(r'<td class="best">([^<]*)<', page) == ["1,000"]


@pytest.mark.usefixtures("undrawn")
def test_faults_and_the_first_difference_are_told() -> None:
    seen = (FaultSeen("kill", 600_000, "opened again"), FaultSeen("disk-full", 660_000, EVIL))
    times = {"wheel": MessageTimes(START_MS + 1, (START_MS + 2, START_MS + 3)),
             "levels": MessageTimes(None, ())}  # fmt: skip
    found = FirstDifference(
        kind="repeated",
        messages=17,
        number=4_711,
        topic="race-1",
        arrival_ms=START_MS,
        asked_ms=START_MS,
        engines=times,
    )
    page = render_report(a_race(an_engine("wheel", 40, faults=seen), first_difference=found))
    assert "<td>10.0 min</td><td" in page
    assert "opened again" in page
    assert "number 4,711, for race-1" in page
    assert "not taken" in page
    assert "never" in page
    assert "2026-10-26T07:33:20.002Z, 2026-10-26T07:33:20.003Z" in page


@pytest.mark.usefixtures("undrawn")
def test_a_put_refused_for_load_is_not_called_too_late() -> None:
    late = an_engine("wheel", 40, not_taken=3)
    assert "due later than it can keep</span>" in render_report(a_race(late))
    busy = attrs.evolve(late, put_failures={"OS_PAGECACHE_BUSY": 2})
    page = render_report(a_race(busy))
    assert "refused, some of them for load</span>" in page
    assert "due later than it can keep</span>" not in page


@pytest.mark.usefixtures("undrawn")
def test_rounds_show_how_far_they_lie_apart() -> None:
    one = Round(1_000.0, 2_000.0, 500.0, 10.0, 1 << 30, 1 << 30, after_promise_p999_ms=7.0)
    rounds = (one, attrs.evolve(one, put_per_second=3_000.0, after_promise_p999_ms=90.0))
    page = render_report(a_race(an_engine("wheel", 40, rounds=rounds, warming_rounds=(one,))))
    assert "<small>1,000 – 3,000</small>" in page
    assert "<small>7 ms – 90 ms</small>" in page
    assert page.count("<small>") == 2
    assert "seed 1; 2 rounds in turns, judged by the median and the worst; 1 round before" in page


@pytest.mark.usefixtures("undrawn")
def test_nothing_of_a_workload_becomes_markup_or_control() -> None:
    facts = attrs.evolve(a_race().workload, source=EVIL, name=EVIL)
    engine = an_engine("wheel", 40, version=EVIL, notes=(EVIL,))
    page = render_report(a_race(engine, workload=facts, command=EVIL, machine={EVIL: EVIL}))
    require_harmless(page, times=9)


def test_nothing_is_fetched() -> None:
    require_whole_in_itself(render_report(a_race()))


@pytest.mark.check
def test_pictures_are_the_same_each_time_and_well_formed() -> None:
    engines = a_race().engines
    for draw in (draw_lateness, draw_traffic, draw_usage):
        assert draw(engines) == draw(engines)
        assert ElementTree.fromstring(draw(engines)).tag.endswith("svg")


def test_an_engine_that_delivered_nothing_can_be_drawn() -> None:
    nothing = EngineResult(name="wheel", missing=5, taken=5)
    page = render_report(a_race(nothing))
    assert "5 missing" in page


@pytest.mark.usefixtures("undrawn")
def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="cannot be written"):
        write_report(a_race(), tmp_path / "file" / "report.html")


# --- in a browser ---------------------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.skipif(browser() is None, reason="needs Chromium to look at the page")
def test_a_browser_shows_the_page_and_complains_of_nothing(tmp_path: Path) -> None:
    page = tmp_path / "race.html"
    write_report(a_race(), page)
    is_white = (seen_in_a_browser(page, 1600) > 0.99).all(axis=2)
    assert 0.5 < is_white.mean() < 0.99
    # Something is drawn in every part of the page, down to the last picture.
    assert [not rows.all() for rows in np.array_split(is_white, 8)] == [True] * 8
