# SPDX-License-Identifier: Apache-2.0
"""``check`` names what an engine passed over when it was due, as the engine itself does."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_store import AfterMs, ManualClock, Message
from tests.faults.engines import ENGINES, abandon
from tests.migrate.check_case import look

START_MS = 1_793_000_000_000
NOTES = {
    "levels": "levels-skipped.json",
    "wheel": "wheel-lost.json",
    "hierarchy": "wheel-lost.json",
    "time-index": "time-index-lost.json",
}
BODIES = [bytes([65 + number]) * 100 for number in range(30)]


def passed_over(folder: Path, engine: str, count: int, *, killed: bool = False) -> list[str]:
    """Let an engine meet ``count`` damaged bodies; where it says that they are."""
    clock = ManualClock(START_MS)
    with ENGINES[engine].open(folder, clock, False) as store:
        for number, body in enumerate(BODIES):
            store.schedule(Message("orders", body, unique_key=f"K{number}"), AfterMs(5_000))
    for log in (folder / "commitlog").iterdir():
        data = log.read_bytes()
        for body in BODIES[:count]:
            data = data.replace(body, body[:-1] + b"\0")
        log.write_bytes(data)
    clock.tick(60_000)
    store = ENGINES[engine].open(folder, clock, False)
    assert len(store.advance(clock.now_ms())) == len(BODIES) - count
    named = [one.where for one in store.undelivered()]  # type: ignore[attr-defined]
    abandon(store) if killed else store.close()
    return named


def found(folder: Path) -> list[str]:
    report = look(folder, now_ms=START_MS + 60_000)
    undelivered = [one.where for one in report.findings if one.code == "undelivered"]
    assert not (undelivered and report.is_healthy)
    return undelivered


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_check_names_what_the_engine_names(engine: str, killed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    named = passed_over(folder, engine, 3, killed=killed)
    assert len(named) == 3
    assert sorted(found(folder)) == sorted(named)


@pytest.mark.parametrize("engine", ENGINES)
def test_of_many_some_are_named_and_the_rest_counted(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    passed_over(folder, engine, 25)
    *named, rest = found(folder)
    assert len(named) == 20
    assert rest == f"delaywheel/{NOTES[engine]}"
    problems = [one.problem for one in look(folder).findings if one.where == rest]
    assert problems == ["5 more messages could not be delivered"]


@pytest.mark.parametrize("engine", ENGINES)
def test_notes_that_are_damaged_are_said_to_be(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    passed_over(folder, engine, 1)
    (folder / "delaywheel" / NOTES[engine]).write_text('[{"reason"')
    assert found(folder) == [f"delaywheel/{NOTES[engine]}"]


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_said_where_all_was_delivered_or_the_notes_were_removed(
    engine: str, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    passed_over(folder, engine, 0)
    assert found(folder) == []
    passed_over(tmp_path / "harmed", engine, 1)
    (tmp_path / "harmed" / "delaywheel" / NOTES[engine]).unlink()
    assert found(tmp_path / "harmed") == []
