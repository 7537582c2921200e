# SPDX-License-Identifier: Apache-2.0
"""A converted store in the race of its own backlog: what it really delivers is what counts."""

from pathlib import Path

import attrs
import pytest

from compare.report.results import RaceResults
from compare.running.converted_entrant import CONVERTED, ConvertedEntrant, require_converted
from compare.running.engine_process import run_engine
from compare.running.engine_watch import Progress
from compare.running.engines import ENGINES
from compare.running.observation import Observation, RaceSettings
from compare.running.race import Entrant, Race, needed_bytes, no_progress, run_race
from compare.running.work_files import read_workload
from delaywheel.terminal.render.progress import StageProgress
from delaywheel.terminal.verbs.compare_backlog import read_backlog_workload
from legacy_levels import LevelStore
from message_store.base.clock import ManualClock
from message_store.base.errors import SourceError, TargetError
from message_store.format.message import Message
from message_store.interface.delay_store import AtLevel, AtMs
from message_store.writing.settings import StoreSettings
from tests.compare.races import EXACT, Here, small
from timer_wheel import HierarchicalWheelStore, WheelStore

STORED_MS = 1_767_323_045_000
NOW_MS = STORED_MS + 30_000
SMALL = StoreSettings(commit_log_file_bytes=1 << 20)
MESSAGES = 20


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(
        name: str, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        return run_engine(ENGINES[name], read_workload(workload_file), settings, store, progress)

    monkeypatch.setattr("compare.running.converted_entrant.run_in_process", run)


def converted(path: Path, *, lost: int = 0) -> tuple[Path, Path]:
    """A level store in which messages wait for a minute, and a wheel with what was made of it."""
    clock = ManualClock(STORED_MS)
    with (
        LevelStore.open(path / "levels", clock=clock, settings=SMALL) as levels,
        WheelStore.open(path / "wheel", clock=ManualClock(NOW_MS), settings=SMALL) as wheel,
    ):
        for number in range(MESSAGES):
            message = Message("orders", b"a body of its own", unique_key=f"key-{number}")
            due_ms = levels.schedule(message, AtLevel(5)).due_ms
            if number >= lost:
                wheel.schedule(message, AtMs(due_ms))
            clock.tick(137)
    return path / "levels", path / "wheel"


def raced(path: Path, source: Path, target: Path, **settings: object) -> RaceResults:
    workload, keys = read_backlog_workload(source, NOW_MS, None, StageProgress(is_quiet=True))
    entrants: dict[str, Entrant] = {
        "levels": Here(ENGINES["levels"]),
        CONVERTED: ConvertedEntrant(target, keys, NOW_MS),
    }
    place = path / "race"
    place.mkdir()
    wanted = Race(
        workload=workload,
        engines=list(entrants),
        settings=attrs.evolve(EXACT, asleep_until_ms=NOW_MS, **settings),  # type: ignore[arg-type]
        directory=place,
    )
    return run_race(wanted, no_progress, entrants)


def test_it_delivers_every_message_at_the_end_of_its_slot(tmp_path: Path) -> None:
    source, target = converted(tmp_path)
    result = raced(tmp_path, source, target).engine(CONVERTED)
    assert (result.delivered, result.is_right, result.put_per_second) == (MESSAGES, True, None)
    assert result.lateness_ms is not None
    assert result.lateness_after_promise_ms is not None
    assert 0 < result.lateness_ms.max < 1_000
    assert result.lateness_after_promise_ms.max == 0


def test_what_a_conversion_lost_is_missing(tmp_path: Path) -> None:
    source, target = converted(tmp_path, lost=3)
    results = raced(tmp_path, source, target)
    assert (results.engine(CONVERTED).missing, results.engine("levels").missing) == (3, 0)
    assert results.first_difference is not None
    assert results.first_difference.kind == "delivered by some only"


def test_the_converted_store_itself_is_left_alone(tmp_path: Path) -> None:
    source, target = converted(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    raced(tmp_path, source, target)
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before
    assert not any((tmp_path / "race").iterdir())


def test_the_copy_needs_room_also_where_the_backlog_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "wheel"
    target.mkdir()
    few = small("burst", messages=1)
    entrants: dict[str, Entrant] = {
        "levels": Here(ENGINES["levels"]),
        CONVERTED: ConvertedEntrant(target, ("key",), NOW_MS),
    }
    wanted = Race(workload=few, engines=list(entrants), settings=EXACT, directory=tmp_path)
    kept = attrs.evolve(wanted, keeps_stores=True, repeat=2)
    alone, all_of_them = needed_bytes(wanted, entrants), needed_bytes(kept, entrants)
    (target / "log").write_bytes(b"x" * (8 << 20))
    assert needed_bytes(wanted, entrants) - alone >= 15 << 20
    assert needed_bytes(kept, entrants) - all_of_them >= 2 * (15 << 20)
    monkeypatch.setattr("compare.running.race.free_bytes", lambda _directory: alone)
    with pytest.raises(TargetError, match="are needed and"):
        run_race(wanted, no_progress, entrants)
    assert list(tmp_path.iterdir()) == [target]


def test_messages_that_cannot_be_told_apart_are_the_reason_why_it_does_not_run() -> None:
    entrant = ConvertedEntrant(Path("target"), ("a", "a"), NOW_MS)
    assert "cannot be told apart" in (entrant.lacks(EXACT, no_progress) or "")
    on_the_wall = RaceSettings(clock="wall")
    assert "virtual clock only" in (entrant.lacks(on_the_wall, no_progress) or "")


def test_a_store_on_a_hierarchical_wheel_has_no_due_times_for_a_wheel(tmp_path: Path) -> None:
    clock = ManualClock(1_793_000_000_000)
    with HierarchicalWheelStore.open(tmp_path / "store", clock=clock) as store:
        store.schedule(Message("orders", b"x"), AtMs(clock.now_ms() + 1_234))
    with pytest.raises(SourceError, match="on a hierarchical wheel"):
        require_converted(tmp_path / "store")


def test_a_store_without_a_wheel_was_not_converted(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no timer wheel"):
        require_converted(tmp_path)
