# SPDX-License-Identifier: Apache-2.0
"""When the power goes, what was flushed is there, whatever part of what RocksDB wrote is: the
database of a hierarchical wheel on the recorded disk, its every write and sync among the store's.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from message_store import ManualClock, Severity
from tests.faults.disk_trace import Call, TracedDisk, calls, is_installed, traced, why_not
from tests.faults.engines import ENGINES
from tests.faults.kill_account import early, faults
from tests.faults.kill_worker import START_MS, warm_up
from tests.faults.store_reading import delivered, disagreements
from tests.faults.traced_worker import ENGINE
from tests.simulation.ledger import owed, told
from tests.simulation.simulated_disk import (
    Cut,
    Event,
    Name,
    Sync,
    Write,
    any_choice,
    every_choice,
    loose,
    make_disk,
)

_STEPS_TO_THE_END_MS = (0, 1_000, 20_000, 600_000, 86_400_000)
INDEX = "delaywheel/hierarchy/index/"


@pytest.fixture(autouse=True)
def _needs_strace() -> None:
    assert is_installed() or not os.environ.get("CI")
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


def wrong_after(events: Sequence[Event], cut: Cut, root: Path) -> list[str]:
    """What is wrong with the store that comes up again."""
    make_disk(events, cut, root)
    ledger, flushed = told(events, cut.moment)
    history = owed(ledger.history, flushed)
    clock = ManualClock(max(START_MS, history.now_ms))
    with ENGINES[ENGINE].open(root, clock, False) as store:
        wrong = [f"found: {each}" for each in store.check() if each.severity is Severity.ERROR]
        for step_ms in _STEPS_TO_THE_END_MS:
            clock.tick(step_ms)
            store.advance(clock.now_ms())
        wrong += [f"still waits: {each}" for each in store.pending()]
    found = list(delivered(root))
    wrong += faults(history, found)
    history.advanced_to_ms = clock.now_ms()
    wrong += early(history, found) + disagreements(root)
    shutil.rmtree(root)
    return wrong


def assert_survived(events: Sequence[Event], cuts: Iterable[Cut], place: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _: None)  # nobody cuts the power again
        for number, cut in enumerate(cuts):
            assert wrong_after(events, cut, place / str(number)) == [], cut


@pytest.mark.check
def test_the_recorded_disk_has_what_the_database_wrote_and_waited_for(tmp_path: Path) -> None:
    events = traced(tmp_path / "recorded", 1, [20, 20, 20])
    named = {event.path: event.file for event in events if isinstance(event, Name)}
    endings = {Path(path).suffix for path in named if path.startswith(INDEX)}
    assert {".log", ".sst"} <= endings
    logs, tables, manifests = (
        {file for path, file in named.items() if path.startswith(INDEX) and kind in path}
        for kind in (".log", ".sst", "MANIFEST")
    )
    written = {event.file for event in events if isinstance(event, Write)}
    synced = {event.file for event in events if isinstance(event, Sync)}
    assert logs & written
    # Whether a log is waited for as well hangs on when its rows have become a table: by themselves.
    assert tables & written & synced
    assert manifests & written & synced


def test_a_sync_takes_along_what_had_come_back_before_it_was_called(tmp_path: Path) -> None:
    root = tmp_path / "store"
    log = hexadecimal(root / "log")
    here, text = f"3<{log}>", f'"{hexadecimal("text")}"'
    lines = [
        f'7  openat(AT_FDCWD<{hexadecimal("/")}>, "{log}", O_RDWR|O_CREAT, 0644) = {here}',
        f"7  write({here}, {text}, 4) = 4",
        f"8  pwrite64({here}, {text}, 4, 100 <unfinished ...>",
        f"7  fsync({here} <unfinished ...>",
        "8  <... pwrite64 resumed>) = 4",
        "7  <... fsync resumed>) = 0",
        f"7  write({here}, {text}, 4) = -1 ENOSPC (No space left on device)",
    ]
    disk = TracedDisk(root, tmp_path / "notes")
    for call in calls(lines):
        disk.take_in(call)
    writes = [event for event in disk.events if isinstance(event, Write)]
    assert [(write.offset, write.data) for write in writes] == [(0, b"text"), (100, b"text")]
    [left] = loose(disk.events, len(disk.events)).data
    assert disk.events[left] == writes[1]


def test_a_change_that_cannot_be_replayed_is_an_error(tmp_path: Path) -> None:
    disk = TracedDisk(tmp_path, tmp_path / "notes")
    path = hexadecimal(tmp_path / "log")
    with pytest.raises(AssertionError, match="not known here"):
        disk.take_in(Call("truncate", [f'"{path}"', "0"], 0, begun=0, ended=0))
    given = ["NULL", "4096", "PROT_READ|PROT_WRITE", "MAP_SHARED", f"3<{path}>", "0"]
    with pytest.raises(AssertionError, match="written through memory"):
        disk.take_in(Call("mmap", given, 0, begun=0, ended=0))


def hexadecimal(text: Path | str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in str(text).encode())


@pytest.mark.check
@pytest.mark.parametrize("last", [4, pytest.param(8, marks=pytest.mark.nightly)])
def test_every_choice_among_the_last_writes_keeps_what_was_flushed(
    tmp_path: Path, last: int
) -> None:
    warm_up(ENGINES[ENGINE])
    events = traced(tmp_path / "recorded", last, [12, 12, 7])
    cuts = every_choice(events, len(events), last)
    assert_survived(events, cuts, tmp_path)


@pytest.mark.check
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_any_part_of_what_nobody_waited_for_may_be_missing(tmp_path: Path, rounds: int) -> None:
    warm_up(ENGINES[ENGINE])
    rng = random.Random(rounds)
    for _ in range(rounds):
        steps = [rng.randint(1, 15) for _ in range(rng.randint(2, 6))]
        events = traced(tmp_path / "recorded", rng.getrandbits(32), steps)
        first = next(index for index, event in enumerate(events) if isinstance(event, Write))
        chosen = (any_choice(events, rng.randint(first, len(events)), rng) for _ in range(20))
        assert_survived(events, chosen, tmp_path)
