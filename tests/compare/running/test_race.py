# SPDX-License-Identifier: Apache-2.0
"""Races on the virtual clock: every engine through every workload, faults, and planted errors."""

from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np
import pytest

from compare.report.verdict import put_how, verdict
from compare.running.engine_process import EngineFailedError, run_engine, run_in_process
from compare.running.engines import ENGINES, Engine
from compare.running.faults import Fault, random_faults
from compare.running.observation import Observation, RaceSettings
from compare.running.race import Race, needed_bytes, no_progress, require_room
from compare.workloads.made_up import MADE_UP
from compare.workloads.workload import Workload
from legacy_levels import LevelStore
from message_store.base.clock import Clock
from message_store.base.errors import BadFieldError, TargetError
from message_store.interface.delay_store import DelayStore
from message_store.writing.settings import StoreSettings
from tests.compare.races import EXACT, Absent, Here, engines, race, small, twisted

ALL = ("levels", "wheel", "memory")


@pytest.mark.parametrize("name", MADE_UP)
def test_every_engine_delivers_every_workload_once_and_not_early(tmp_path: Path, name: str) -> None:
    results = race(small(name, messages=60), ENGINES, tmp_path)
    for engine in results.engines:
        assert (engine.taken, engine.delivered, engine.is_right) == (60, 60, True), engine.name
        assert engine.lateness_after_promise_ms is not None
        assert engine.lateness_after_promise_ms.max == 0
        assert sum(engine.traffic.put) == sum(engine.traffic.delivered) == 60
        assert engine.put_per_second
        assert engine.drain_per_second
        assert engine.through_per_second
        assert (engine.bytes_on_disk > 60 * 2 * 64) == (engine.name != "memory")


def test_lateness_against_the_time_asked_for_shows_slots_and_levels(tmp_path: Path) -> None:
    results = race(small("uniform"), engines(*ALL), tmp_path)
    late = {engine.name: engine.lateness_ms for engine in results.engines}
    assert late["memory"] is not None
    assert late["wheel"] is not None
    assert late["levels"] is not None
    assert late["memory"].max == 0
    assert 0 < late["wheel"].max < 1_000
    assert late["levels"].max > 60_000


def test_a_tick_shows_as_lateness_after_the_promise(tmp_path: Path) -> None:
    settings = attrs.evolve(EXACT, tick_ms=500)
    [result] = race(small("uniform"), engines("memory"), tmp_path, settings).engines
    assert result.lateness_after_promise_ms is not None
    assert 0 < result.lateness_after_promise_ms.max < 500


@pytest.mark.parametrize("name", ["levels", "wheel"])
def test_the_same_seed_gives_the_same_deliveries(tmp_path: Path, name: str) -> None:
    workload = small("tdmq", messages=100)
    settings = attrs.evolve(EXACT, faults=random_faults(3, 5, 600_000, ("kill", "clock-back")))
    several = engines(name) | {"again": ENGINES[name]}
    results = race(workload, several, tmp_path, settings)
    assert results.first_difference is None
    one, again = results.engines
    assert one.lateness_curve == again.lateness_curve
    assert one.traffic == again.traffic
    assert len(one.faults) == 3


def test_the_first_difference_is_told_with_all_that_befell_the_message(tmp_path: Path) -> None:
    workload = small("uniform")
    found = race(workload, engines(*ALL), tmp_path).first_difference
    assert found is not None
    assert (found.kind, found.number) == ("other times", 0)
    asked_ms = int(workload.due_ms[0])
    assert found.asked_ms == asked_ms
    assert found.engines["memory"].delivered_ms == (asked_ms,)
    slot_end_ms = -(-asked_ms // 1_000) * 1_000
    assert found.engines["wheel"].promised_ms == slot_end_ms
    assert found.engines["wheel"].delivered_ms == (slot_end_ms,)


@pytest.mark.parametrize("name", ["levels", "wheel", "memory"])
@pytest.mark.parametrize(
    ("fault", "figure", "kind"),
    [
        ("early", "early", "early"),
        ("repeated", "duplicates", "repeated"),
        ("missing", "missing", "delivered by some only"),
    ],
)
def test_what_an_engine_does_wrong_is_counted_in_its_topics(
    tmp_path: Path, name: str, fault: str, figure: str, kind: str
) -> None:
    # At 50 a second they are put one by one, which is where the fault is planted.
    workload = small("uniform", messages=50, rate_per_second=50.0, delay_min_ms=20_000)
    several = {"honest": ENGINES["memory"], "wrong": twisted(name, fault)}
    results = race(workload, several, tmp_path)
    honest, wrong = results.engines
    assert honest.is_right
    assert not results.is_right
    counts = {count: getattr(wrong, count) for count in ("early", "missing", "duplicates")}
    assert counts == {"early": 0, "missing": 0, "duplicates": 0} | {figure: counts[figure]}
    assert counts[figure] == 5
    assert results.first_difference is not None
    assert (results.first_difference.kind, results.first_difference.number) == (kind, 9)


def test_what_an_engine_cannot_keep_is_not_taken_and_not_missing(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    workload = small("uniform", delay_min_ms=hour_ms, delay_max_ms=3 * hour_ms)
    results = race(workload, engines("levels", "wheel"), tmp_path)
    levels, wheel = results.engines
    beyond = int((workload.due_ms - workload.arrival_ms > 2 * hour_ms).sum())
    assert 0 < beyond == levels.not_taken == 200 - levels.taken
    assert (levels.missing, levels.delivered, wheel.not_taken) == (0, levels.taken, 0)
    assert results.first_difference is not None
    assert results.first_difference.kind == "taken by some only"
    assert results.first_difference.messages == beyond


def test_an_engine_that_is_not_available_is_named_with_the_reason(tmp_path: Path) -> None:
    both: dict[str, Engine | Here] = {"absent": Absent(ENGINES["memory"]), **engines("memory")}
    results = race(small("burst"), both, tmp_path)
    assert results.engine("absent").unavailable == "nobody has built it"
    assert results.as_json()["engines"]["absent"] == {
        "unavailable": "nobody has built it",
        "has_failed": False,
    }
    assert results.is_right
    assert results.engine("memory").delivered == 200


def test_an_engine_that_fails_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    def fail(_path: Path, _clock: object, _settings: object) -> DelayStore:
        raise EngineFailedError("it fell over")

    failing = attrs.evolve(ENGINES["memory"], open_store=fail)
    results = race(small("burst"), {"failing": failing, **engines("memory")}, tmp_path, repeat=2)
    assert results.engine("failing").unavailable == "failed: it fell over"
    assert (results.is_right, results.engine("memory").is_right) == (False, True)
    assert verdict(results)[0] == "failing failed: it fell over"


def test_a_process_that_is_killed_says_by_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr("compare.running.engine_process._PROGRAM", program)
    with pytest.raises(EngineFailedError, match="its process ended by SIGKILL"):
        run_in_process("wheel", tmp_path / "workload.npz", EXACT, tmp_path / "store", no_progress)


def test_rounds_take_turns_and_each_is_kept(tmp_path: Path) -> None:
    results = race(small("burst"), engines("levels", "wheel"), tmp_path, repeat=3)
    for engine in results.engines:
        rates = sorted(one.put_per_second or 0 for one in engine.rounds)
        assert len(rates) == 3
        assert engine.put_per_second == rates[1]


def test_every_engine_is_once_first_and_a_warming_round_is_kept_but_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    class Noted(Here):
        def run(self, *given: Any) -> Observation:
            ran.append(given[2].name)
            return super().run(*given)

    monkeypatch.setattr("tests.compare.races.Here", Noted)
    monkeypatch.setattr("compare.running.race.prewarm", lambda _bytes: ran.append("warm"))
    facts = {"load before": "0.5", "cores": "2"}

    def looked_at() -> dict[str, str]:
        ran.append("facts")
        return facts

    monkeypatch.setattr("compare.running.race.machine_facts", looked_at)
    results = race(
        small("burst"),
        engines("levels", "wheel"),
        tmp_path,
        repeat=1,
        warming=1,
    )
    each_run = ("levels-1", "wheel-1", "wheel-2", "levels-2")
    assert ran == ["facts", *(each for run in each_run for each in ("warm", run))]
    assert results.machine == facts
    for engine in results.engines:
        assert (len(engine.warming_rounds), len(engine.rounds)) == (1, 1)
        assert engine.put_per_second == engine.rounds[0].put_per_second


def test_beside_rocketmq_s_engines_ours_put_one_by_one(tmp_path: Path) -> None:
    """Its store has no batches of delayed messages: a batch beside single puts says nothing."""
    batches: list[str] = []

    def unbatched(name: str) -> Engine:
        def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
            store: Any = ENGINES["wheel"].open_store(path, clock, settings)
            schedule_batch = store.schedule_batch

            def noted(*given: Any) -> Any:
                batches.append(name)
                return schedule_batch(*given)

            store.schedule_batch = noted
            return cast(DelayStore, store)

        return attrs.evolve(ENGINES["wheel"], open_store=open_store)

    wall = RaceSettings(clock="wall", precision_ms=100, commit_log_file_bytes=1 << 20)
    burst = small("burst", delay_max_ms=600)
    alone = race(burst, {"wheel": unbatched("alone")}, tmp_path, wall)
    beside = race(
        burst, {"wheel": unbatched("beside"), "java-wheel": unbatched("java-wheel")}, tmp_path, wall
    )
    assert {*batches} == {"alone"}
    assert [put_how(results) for results in (alone, beside)] == ["in batches", "one by one"]
    assert beside.is_right


def of_own_table(workload: Workload) -> Workload:
    """The messages with the levels 1 and 2 of a table of its own, `2s 3s ...`."""
    level = np.arange(len(workload)) % 2 + 1
    return attrs.evolve(workload, level=level, due_ms=workload.arrival_ms + (level + 1) * 1_000)


def test_levels_of_a_table_of_its_own_are_raced_by_that_table(tmp_path: Path) -> None:
    workload = of_own_table(small("burst"))
    assert (workload.level_table() or "").startswith("2s 3s 10s ")
    results = race(workload, engines("levels", "reference-levels"), tmp_path)
    assert results.is_right
    for engine in results.engines:
        assert engine.delivered == 200
        assert engine.lateness_ms is not None
        assert engine.lateness_ms.max == 0, engine.name


@pytest.mark.parametrize("keeps", [True, False])
def test_stores_stay_only_where_they_are_kept(tmp_path: Path, keeps: bool) -> None:
    race(small("burst"), engines("levels"), tmp_path, keeps_stores=keeps)
    assert (tmp_path / "levels" / "commitlog").is_dir() == keeps
    assert [path.name for path in tmp_path.iterdir()] == ["levels"] * keeps


def test_a_race_that_does_not_fit_the_disk_does_not_begin(tmp_path: Path) -> None:
    vast = attrs.evolve(small("burst"), body_bytes=np.full(200, 1 << 50))
    wanted = Race(workload=vast, engines=["levels"], settings=EXACT, directory=tmp_path)
    with pytest.raises(TargetError, match="are needed and"):
        require_room(wanted)


def test_a_small_race_asks_for_little_room(tmp_path: Path) -> None:
    few = attrs.evolve(small("burst"), body_bytes=np.full(200, 1_024))
    wanted = Race(workload=few, engines=["levels", "wheel"], settings=EXACT, directory=tmp_path)
    assert needed_bytes(wanted) < 128 << 20
    assert needed_bytes(attrs.evolve(wanted, keeps_stores=True)) > needed_bytes(wanted)


# --- faults ---------------------------------------------------------------------------------------


def after(workload: Workload, *faults: Fault) -> RaceSettings:
    return attrs.evolve(EXACT, faults=faults)


@pytest.mark.parametrize("name", ["levels", "wheel"])
def test_a_kill_loses_and_repeats_nothing(tmp_path: Path, name: str) -> None:
    workload = small("uniform")
    settings = after(workload, *(Fault("kill", minute * 60_000) for minute in (1, 50, 51, 90)))
    [result] = race(workload, engines(name), tmp_path, settings).engines
    assert result.is_right
    assert [fault.answer for fault in result.faults] == ["opened again"] * 4


ENDS = ("restart", "kill", "reboot")


@pytest.mark.check
@pytest.mark.parametrize("name", ["levels", "wheel", "hierarchy", "time-index"])
def test_every_end_is_measured_by_the_opening_behind_it(tmp_path: Path, name: str) -> None:
    workload = small("uniform", messages=400)
    ends = (Fault(kind, minute * 60_000) for minute, kind in zip((1, 50, 90), ENDS, strict=True))
    [result] = race(workload, engines(name), tmp_path, after(workload, *ends)).engines
    assert result.is_right
    assert [fault.kind for fault in result.faults] == list(ENDS)
    openings = [fault.opening for fault in result.faults]
    waiting = []
    for opening in openings:
        assert opening is not None
        waiting.append(opening.waiting)
        assert opening.open_s > 0
        assert opening.first_messages > 0
        assert opening.first_s > 0
    assert 400 >= waiting[0] > waiting[1] > waiting[2] > 0
    assert "nothing in the page cache" in result.faults[2].answer


def test_what_has_no_files_loses_what_waits_at_any_end(tmp_path: Path) -> None:
    workload = small("uniform")
    settings = after(workload, Fault("restart", 3_600_000))
    [result] = race(workload, engines("memory"), tmp_path, settings).engines
    [fault] = result.faults
    assert fault.opening is not None
    assert fault.opening.waiting == result.missing > 0
    assert (fault.opening.first_messages, fault.opening.first_s) == (0, 0.0)


class Recorded:
    """A store that notes how it is flushed and ended, and when."""

    def __init__(self, store: DelayStore, clock: Clock, calls: list[tuple[str, int]]) -> None:
        self._store, self._clock, self._calls = store, clock, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("flush", "close", "abandon"):
            return found

        def noted() -> None:
            self._calls.append((name, self._clock.now_ms()))
            found()

        return noted


@pytest.mark.check
def test_an_end_without_a_last_word_comes_a_second_after_a_flush(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        store = ENGINES["levels"].open_store(path, clock, settings)
        return cast(DelayStore, Recorded(store, clock, calls))

    workload = small("uniform")
    ends = [Fault(kind, 10_000 * number) for number, kind in enumerate(ENDS, start=1)]
    recorded = {"recorded": attrs.evolve(ENGINES["levels"], open_store=open_store)}
    [result] = race(workload, recorded, tmp_path, after(workload, *ends)).engines
    assert result.is_right
    told = [(name, time_ms - workload.start_ms) for name, time_ms in calls]
    assert told[:-1] == [
        ("close", 10_000),
        ("flush", 19_000),
        ("abandon", 20_000),
        ("flush", 29_000),
        ("abandon", 30_000),
    ]


@pytest.mark.check
def test_a_restart_while_the_disk_refused_has_no_last_word(tmp_path: Path) -> None:
    workload = small("uniform", rate_per_second=5.0, delay_max_ms=60_000)
    settings = after(workload, Fault("disk-full", 5_000, 20_000), Fault("restart", 15_000))
    [result] = race(workload, engines("levels"), tmp_path, settings).engines
    assert result.is_right
    assert [fault.kind for fault in result.faults] == ["disk-full", "restart"]


def test_many_messages_at_once_say_how_many_are_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.running.putting.PUT_AT_ONCE", 50)
    monkeypatch.setattr("compare.running.engine_watch._SAY_EVERY_S", 0)
    said: list[tuple[str, int, int]] = []
    workload = small("burst")
    run_engine(ENGINES["memory"], workload, EXACT, tmp_path, lambda *words: said.append(words))
    putting = [(done, total) for stage, done, total in said if stage == "putting"]
    assert putting == [(50, 200), (100, 200), (150, 200), (200, 200)]


def test_a_fault_that_comes_too_late_is_told_as_not_reached(tmp_path: Path) -> None:
    workload = small("burst")
    settings = after(workload, Fault("kill", 10**9), Fault("kill-inside", 10**9 + 1))
    [result] = race(workload, engines("levels"), tmp_path, settings).engines
    assert [fault.answer for fault in result.faults] == ["came after everything was delivered"] * 2


@pytest.mark.parametrize("name", ["levels", "memory"])
def test_every_fault_is_told_in_order_also_where_several_fall_together(
    tmp_path: Path, name: str
) -> None:
    # Two kills wait for one delivery, the disk is full twice at once, and one kill comes too late.
    faults = (
        Fault("kill-inside", 58_000),
        Fault("disk-full", 59_000, 100),
        Fault("kill-inside", 58_500),
        Fault("disk-full", 59_050, 100),
        Fault("clock-forward", 58_700, 10),
        Fault("kill-inside", 10**9),
    )
    several = engines(name)
    [result] = race(small("burst"), several, tmp_path, after(small("burst"), *faults)).engines
    asked = sorted((fault.at_ms, fault.kind) for fault in faults)
    assert [(seen.at_ms, seen.kind) for seen in result.faults] == asked
    assert result.is_right == several[name].has_files
    inside = [seen.answer for seen in result.faults if seen.kind == "kill-inside"]
    if several[name].has_files:
        assert inside[:2] == ["killed in the middle of a delivery, and opened again"] * 2


def test_an_engine_that_repeats_after_a_kill_is_found_out(tmp_path: Path) -> None:
    def open_store(path: Path, clock: Clock, settings: RaceSettings) -> DelayStore:
        return LevelStore.open(path, clock=clock, settings=StoreSettings(repeat_after_kill=True))

    workload = small("burst")
    settings = after(workload, Fault("kill", 60_500))
    # A message an hour later keeps the race going until then.
    due_ms = np.where(np.arange(200) == 0, workload.start_ms + 3_600_000, workload.due_ms)
    workload = attrs.evolve(workload, due_ms=due_ms)
    faithful = {"faithful": attrs.evolve(ENGINES["levels"], open_store=open_store)}
    [result] = race(workload, faithful, tmp_path, settings).engines
    assert result.duplicates > 0
    assert (result.early, result.missing) == (0, 0)


def test_what_has_no_files_loses_what_waits_when_it_is_killed(tmp_path: Path) -> None:
    workload = small("uniform")
    settings = after(workload, Fault("kill", 3_600_000))
    [result] = race(workload, engines("memory"), tmp_path, settings).engines
    waiting = int((workload.due_ms > workload.start_ms + 3_600_000).sum())
    assert 0 < waiting == result.missing
    assert (result.early, result.duplicates) == (0, 0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", ["clock-back", "clock-forward"])
def test_a_clock_that_leaps_hurries_and_loses_nothing(tmp_path: Path, name: str, kind: str) -> None:
    # After a leap back, what asks for two hours is beyond the longest level.
    workload = small("uniform", rate_per_second=1.0, delay_max_ms=3_600_000)
    settings = after(workload, Fault(kind, 100_000, 600_000))
    [result] = race(workload, engines(name), tmp_path, settings).engines
    assert result.is_right
    assert result.delivered == 200
    [fault] = result.faults
    assert fault.answer == f"its clock leapt {kind.removeprefix('clock-')} by 10.0 min"


@pytest.mark.parametrize("sleeps_ms", [3_600_000, 86_400_000])
def test_an_engine_that_sleeps_delivers_what_is_overdue_when_it_wakes(
    tmp_path: Path, sleeps_ms: int
) -> None:
    """It wakes within the backlog, or a day behind it."""
    workload = small("uniform")
    wakes_ms = workload.start_ms + sleeps_ms
    settings = attrs.evolve(EXACT, asleep_until_ms=wakes_ms)
    [result] = race(workload, engines("memory"), tmp_path, settings).engines
    assert result.is_right
    assert result.lateness_ms is not None
    assert result.lateness_ms.max == wakes_ms - int(workload.due_ms.min())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill@10m", Fault("kill", 600_000)),
        ("clock-back@90s+2h", Fault("clock-back", 90_000, 7_200_000)),
        ("disk-full@250ms+1s", Fault("disk-full", 250, 1_000)),
        ("restart@2h", Fault("restart", 7_200_000)),
        ("reboot@1d", Fault("reboot", 86_400_000)),
        ("kill@2h30m", Fault("kill", 9_000_000)),
        ("clock-back@1h30m+1m30s", Fault("clock-back", 5_400_000, 90_000)),
    ],
)
def test_a_fault_is_read_as_it_is_written(text: str, fault: Fault) -> None:
    assert Fault.parse(text) == fault


@pytest.mark.parametrize("text", ["kill", "flood@10m", "kill@10", "kill@-1m", "kill@1m+", ""])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(BadFieldError, match="no fault"):
        Fault.parse(text)


def test_random_faults_are_the_same_for_the_same_seed() -> None:
    assert random_faults(5, 1, 10**6) == random_faults(5, 1, 10**6) != random_faults(5, 2, 10**6)
    assert [fault.at_ms for fault in random_faults(9, 1, 10**6)] == sorted(
        fault.at_ms for fault in random_faults(9, 1, 10**6)
    )


def test_engines_are_one_line_each_in_one_table() -> None:
    assert set(ALL) <= set(ENGINES)
    assert all(isinstance(engine, Engine) for engine in ENGINES.values())
