# SPDX-License-Identifier: Apache-2.0
"""A log file that retention takes is gone at once. What was delivered or stored again out of it
must be on the disk by then: the power may go right behind it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, Clock, DelayStore, ManualClock, Message, Severity
from tests.faults.engines import SMALL, abandon, open_hierarchy, open_levels, open_wheel
from tests.faults.kill_worker import START_MS
from tests.simulation.simulated_disk import (
    Cut,
    Event,
    Name,
    Note,
    SimulatedDisk,
    loose,
    make_disk,
    recording,
)

SHORT = attrs.evolve(SMALL, commit_log_file_bytes=16 << 10, retention_ms=60_000)
FOR_EVER = attrs.evolve(SHORT, retention_ms=10**12)
OPEN: dict[str, Callable[[Path, Clock], DelayStore]] = {
    "levels": lambda folder, clock: open_levels(folder, clock, SHORT),
    "wheel": lambda folder, clock: open_wheel(folder, clock, SHORT),
    "hierarchy": lambda folder, clock: open_hierarchy(folder, clock, SHORT),
}
OPEN_AGAIN: dict[str, Callable[[Path, Clock], DelayStore]] = {
    "levels": lambda folder, clock: open_levels(folder, clock, FOR_EVER),
    "wheel": lambda folder, clock: open_wheel(folder, clock, FOR_EVER),
    "hierarchy": lambda folder, clock: open_hierarchy(folder, clock, FOR_EVER),
}


def work(store: DelayStore, clock: ManualClock, recorder: SimulatedDisk, rounds: int) -> None:
    """Messages for the next minutes, all the time, and a flush now and then."""
    for turn in range(rounds):
        for number in range(10):
            key = f"KEY{turn:04X}{number:04X}"
            store.schedule(
                Message("orders", key.encode(), unique_key=key), AfterMs(11_000 * number + 500)
            )
        if turn % 7 == 0:
            store.flush()
            recorder.note(flushed=turn, now_ms=clock.now_ms())
        clock.tick(10_000)
        for each in store.advance(clock.now_ms()):
            name = each.message.body.decode()
            recorder.note(delivered=name, place=each.message.commit_log_offset)
        recorder.note(now_ms=clock.now_ms())


def removals(events: Sequence[Event]) -> Iterator[int]:
    """The moments right behind the removals of log files."""
    for moment, event in enumerate(events, 1):
        if isinstance(event, Name) and event.path.startswith("commitlog/") and event.file is None:
            yield moment


def wrong_after(engine: str, events: Sequence[Event], moment: int, root: Path) -> list[str]:
    """What is wrong when nothing survives that nobody waited for, but for the names."""
    make_disk(events, Cut(moment, frozenset(loose(events, moment).data)), root)
    notes = [event.facts for event in events[:moment] if isinstance(event, Note)]
    flushed = max(facts["flushed"] for facts in notes if "flushed" in facts)
    clock = ManualClock(max(facts["now_ms"] for facts in notes if "now_ms" in facts))
    begin = min(int(path.name) for path in (root / "commitlog").iterdir())
    over = {facts["delivered"] for facts in notes if facts.get("place", begin) < begin}
    with OPEN_AGAIN[engine](root, clock) as store:
        wrong = [f"found: {each}" for each in store.check() if each.severity is Severity.ERROR]
        for step_ms in (0, 20_000, 600_000):
            clock.tick(step_ms)
            store.advance(clock.now_ms())
        wrong += [f"still waits: {each}" for each in store.pending()]
        wrong += [f"found: {each}" for each in store.check() if each.severity is Severity.ERROR]
        found = store.topic("orders").read(0, 0, 10_000)
    came = Counter(each.body.decode() for each in found)
    for turn in range(flushed + 1):
        for number in range(10):
            name = f"KEY{turn:04X}{number:04X}"
            if came[name] + (name in over) != 1:
                wrong.append(f"{name} came {came[name]} times, is over: {name in over}")
    wrong += [f"{name} came {count} times" for name, count in came.items() if count > 1]
    return wrong


@pytest.mark.parametrize("engine", OPEN)
def test_no_flushed_message_goes_with_a_log_file(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock = tmp_path / "recorded", ManualClock(START_MS)
    with recording(folder) as recorder:
        store = OPEN[engine](folder, clock)
        work(store, clock, recorder, 60)
        abandon(store)
    events = recorder.events
    moments = list(removals(events))
    assert len(moments) > 5
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)  # nobody cuts the power again
    for moment in moments:
        assert wrong_after(engine, events, moment, tmp_path / str(moment)) == []


@pytest.mark.parametrize(
    ("waiting", "working"),
    [("levels", "wheel"), ("wheel", "levels"), ("levels", "hierarchy"), ("hierarchy", "levels")],
)
def test_retention_of_one_engine_spares_what_waits_in_the_other(
    tmp_path: Path, waiting: str, working: str
) -> None:
    """No engine knows what of the other's came; so what the other's queue leads to stays."""
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    wanted = Counter(f"waits {number}" for number in range(30))
    with OPEN[waiting](folder, clock) as store:
        for text in wanted:
            store.schedule(Message("patient", text.encode()), AfterMs(7_200_000))
    with OPEN[working](folder, clock) as store:
        for number in range(200):
            store.schedule(Message("orders", bytes(1_000)), AfterMs(1_000))
            clock.tick(5_000)
            assert len(store.advance(clock.now_ms())) <= number + 1
    with OPEN[waiting](folder, clock) as store:
        clock.tick(7_200_000 + 1_000)
        store.advance(clock.now_ms())
        found = store.topic("patient").read(0, 0, 100)
    assert Counter(message.body.decode() for message in found) == wanted
