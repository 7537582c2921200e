# SPDX-License-Identifier: Apache-2.0
"""Files of the commit log are lost, alone or all to the end, and whoever owns the store does what
the refusal tells him. What the rest of the log says then holds for each message. One whose delivery
is still there is delivered no more; one that was not delivered, and whose record is still there, is
delivered once. So is what is stored from then on, where lost records lay before.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import DelayStoreError
from message_store.format.checkpoint import StoreCheckpoint
from message_store.writing.settings import StoreSettings
from tests.faults.damage import copy_store
from tests.faults.engines import OPEN, abandon
from tests.faults.test_whole_files_lost import destroy
from tests.independent.raw_files import commit_log_records

START_MS = 1_767_323_045_000
NOW_MS = START_MS + 35_000
SETTINGS = StoreSettings(commit_log_file_bytes=4_096, timer_log_file_bytes=10 * 52)
STATES = ("closed", "flushed", "killed")
KINDS = ("gone", "zero", "empty")
DELAYS_MS = (1_000, 5_000, 10_000, 30_000, 60_000, 120_000)
NEW = 40


@attrs.frozen
class Life:
    """The records of one message: in which file its first one lies, and that of its delivery."""

    first: int
    delivered: int | None


def opened(name: str, path: Path, now_ms: int) -> Any:
    rolls = {"roll_window_slots": 20} if name == "wheel" else {}
    return OPEN[name](path, ManualClock(now_ms), SETTINGS, **rolls)


def schedule(store: Any, letter: str, count: int) -> None:
    for number in range(count):
        message = Message("orders", b"x" * 100, unique_key=f"{letter}{number:02}")
        store.schedule(message, AfterMs(DELAYS_MS[number % len(DELAYS_MS)]))


def advance(store: Any, to_ms: int) -> Counter[str]:
    """What is delivered until then."""
    found: Counter[str] = Counter()
    store.clock.tick(to_ms - store.clock.now_ms())
    while deliveries := list(store.advance(to_ms)):
        found.update(str(each.message.unique_key) for each in deliveries)
    return found


def build(name: str, path: Path, state: str) -> None:
    store = opened(name, path, START_MS)
    schedule(store, "A", 24)
    store.flush()
    for letter, after_ms in (("B", 2_000), ("C", 11_000), ("D", 35_000)):
        advance(store, START_MS + after_ms)
        schedule(store, letter, 12)
    if state == "closed":
        store.close()
    else:
        if state == "flushed":
            store.flush()
        abandon(store)


def lives(path: Path) -> dict[str, Life]:
    """Of each message, by its key."""
    found: dict[str, Life] = {}
    for each in commit_log_records(path / "commitlog"):
        key = str(each.record.effective["UNIQ_KEY"])
        file = each.commit_log_offset - each.commit_log_offset % SETTINGS.commit_log_file_bytes
        if each.record.topic in ("orders", b"orders"):
            found[key] = attrs.evolve(found[key], delivered=file)
        else:
            found.setdefault(key, Life(file, None))
    return found


def obey(refusal: str) -> bool:
    """Do what a refusal gives as the way to go on without a backup; whether it gives one."""
    command = re.search(r"`(truncate -s \d+ [^`]+)`", refusal)
    if command:
        subprocess.run(command[1], shell=True, check=True)
    removed = re.search(r"remove (\S+)(?: and (\S+))? to go on", refusal)
    for path in filter(None, removed.groups() if removed else ()):
        Path(path).unlink()
    return bool(command or removed)


def opened_as_told(name: str, path: Path) -> Any:
    while True:
        try:
            return opened(name, path, NOW_MS)
        except DelayStoreError as error:
            if not obey(str(error)):
                raise


def require_account(name: str, copy: Path, known: dict[str, Life], lost: set[int]) -> None:
    """Open what is left, work on with it, and account for each message."""
    store = opened_as_told(name, copy)
    schedule(store, "N", NEW)
    store.close()
    store = opened(name, copy, NOW_MS)
    found = advance(store, NOW_MS) + advance(store, NOW_MS + 1_000_000)
    store.close()
    wrong: dict[str, object] = {}
    for key, life in known.items():
        if life.delivered is not None and life.delivered not in lost:
            fits = not found[key]
        elif life.delivered is None and life.first not in lost:
            fits = found[key] == 1
        else:
            fits = found[key] <= 1
        if not fits:
            wrong[key] = (life, found[key])
    wrong |= {key: found[key] for key in (f"N{n:02}" for n in range(NEW)) if found[key] != 1}
    assert not wrong, wrong


BUILT: dict[tuple[str, str], Path] = {}


def built_once(name: str, state: str, factory: pytest.TempPathFactory) -> Path:
    if (name, state) not in BUILT:
        BUILT[name, state] = factory.mktemp("lost-log") / f"{name}-{state}"
        build(name, BUILT[name, state], state)
    return BUILT[name, state]


def require_what_is_left(built: Path, kind: str, lost: list[str], copy: Path) -> None:
    """Lose these files of the log of a copy, and go on with it.

    Where a store was not closed, and a file is lost for which nobody waited, as far as its
    checkpoint knows, the log ends there: so it does after a loss of power.
    """
    known, (name, _, state) = lives(built), built.name.rpartition("-")
    copy_store(built, copy)
    for file in lost:
        destroy(copy / "commitlog" / file, kind)
    starts = set(map(int, lost))
    checkpoint = StoreCheckpoint.decode((built / "checkpoint").read_bytes())
    if state != "closed" and min(starts) >= checkpoint.queue_commit_log_offset:
        files = (int(path.name) for path in (built / "commitlog").iterdir())
        starts |= {each for each in files if each >= min(starts)}
    require_account(name, copy, known, starts)


@pytest.mark.parametrize("name", OPEN)
def test_a_log_that_lost_its_last_files_takes_new_records_where_they_lay(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    built = built_once(name, "closed", tmp_path_factory)
    files = sorted(path.name for path in (built / "commitlog").iterdir())
    require_what_is_left(built, "gone", files[-3:], tmp_path / "store")


@pytest.mark.check
@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tails", [False, True], ids=["one", "tail"])
def test_what_is_left_of_a_log_tells_what_is_done(
    name: str,
    state: str,
    kind: str,
    tails: bool,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    built = built_once(name, state, tmp_path_factory)
    files = sorted(path.name for path in (built / "commitlog").iterdir())
    wrong = []
    for index in range(tails, len(files)):
        lost = files[index:] if tails else files[index : index + 1]
        try:
            require_what_is_left(built, kind, lost, tmp_path / str(index))
        except (AssertionError, DelayStoreError) as error:
            wrong.append(f"{lost}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["levels", "wheel"])
@pytest.mark.parametrize("note", ["none", "without an offset"])
def test_what_queues_lead_to_counts_where_nobody_noted_what_was_synced(
    name: str, note: str, tmp_path: Path
) -> None:
    """Brokers before 5.5 write times alone."""
    store = opened(name, tmp_path / "store", START_MS)
    for number in range(5):
        advance(store, START_MS + 100_000 * number)
        schedule(store, "ABCDE"[number], 12)
        store.flush()
    abandon(store)
    checkpoint = tmp_path / "store" / "checkpoint"
    if note == "none":
        checkpoint.unlink()
    else:
        times = {"commit_log_timestamp_ms": START_MS + 1, "queue_timestamp_ms": START_MS + 1}
        known = StoreCheckpoint.decode(checkpoint.read_bytes())
        checkpoint.write_bytes(attrs.evolve(known, queue_commit_log_offset=0, **times).encode())
    known_lives = lives(tmp_path / "store")
    files = sorted((tmp_path / "store" / "commitlog").iterdir())
    lost = files[len(files) // 2]
    destroy(lost, "zero")
    require_account(name, tmp_path / "store", known_lives, {int(lost.name)})
