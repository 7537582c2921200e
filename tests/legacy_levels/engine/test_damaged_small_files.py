# SPDX-License-Identifier: Apache-2.0
"""Whatever becomes of one of the levels' small files, each message is delivered once: flipped bit
by bit, torn, empty, missing, or as it was one session before; after a close and after a kill.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from legacy_levels import LevelRules
from message_store import AtLevel, AtMs, DelayLevels
from message_store.interface.delay_store import Severity
from tests.legacy_levels.level_stores import START_MS, Bench, deliveries_without_names, message

TABLE = DelayLevels.parse("1s 5s 1m")
SMALL_FILES = (
    "config/delayOffset.json",
    "config/delayOffset.json.bak",
    "delaywheel/levels-latest.json",
    "delaywheel/levels-flushed.json",
)
ENDS = ("closed", "killed")
LATER_MS = START_MS + 3_600_000


class _TwoSessions:
    """A store with small files as they were after its first and after its second session."""

    def __init__(self, folder: Path, how: str) -> None:
        self.root = folder / "store"
        self.before = folder / "before"
        bench = Bench(self.root)
        with bench.open(levels=TABLE) as store:
            for number in range(3):
                store.schedule(message(number), AtLevel(1))
            bench.advance(store, 1_000)
            store.schedule(message(3), AtLevel(2))
        for name in SMALL_FILES:
            target = self.before / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (self.root / name).exists():
                shutil.copy(self.root / name, target)
        store = bench.open(levels=TABLE)
        store.schedule(message(4), AtLevel(1))
        store.schedule(message(5), AtLevel(3))
        store.schedule(message(6), AtMs(0))
        bench.advance(store, 1_000)
        bench.advance(store, 10_000)  # the interval is over: offsets are saved
        store.schedule(message(7), AtLevel(1))
        bench.advance(store, 1_000)
        store.schedule(message(8), AtLevel(1))
        if how == "closed":
            store.close()
        else:
            store.abandon()
        self.now_ms = bench.clock.now_ms()
        self.expected = Counter(f"body {number}".encode() for number in range(9))

    def deliver_all(self, copy: Path) -> tuple[Counter[bytes], list[str]]:
        """Open a copy, and deliver what waits; what its topic has then, and the problems found."""
        bench = Bench(copy)
        bench.clock.tick(self.now_ms - START_MS)
        with bench.open(levels=TABLE) as store:
            problems = [each.problem for each in store.check()]
            bench.clock.tick(LATER_MS - self.now_ms)
            store.advance(LATER_MS)
            found = store.topic("TopicA").read(0, 0, 100)
        return Counter(each.body for each in found), problems


@pytest.fixture(scope="module", params=ENDS)
def sessions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> _TwoSessions:
    return _TwoSessions(tmp_path_factory.mktemp(request.param), request.param)


def _copy(sessions: _TwoSessions, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sessions.root, folder)
    return folder


@pytest.mark.parametrize("name", SMALL_FILES)
@pytest.mark.parametrize(
    "damage", ["none", "missing", "empty", "zeros", "{}", "torn", "older", "garbled name"]
)
def test_each_message_is_delivered_once_whatever_became_of_a_small_file(
    sessions: _TwoSessions, tmp_path: Path, name: str, damage: str
) -> None:
    path = _copy(sessions, tmp_path / "store") / name
    text = path.read_bytes()
    older = sessions.before / name
    if damage == "missing" or (damage == "older" and not older.exists()):
        path.unlink()
    elif damage != "none":
        texts = {
            "empty": b"",
            "zeros": bytes(len(text)),
            "{}": b"{}",
            "torn": text[: len(text.strip()) // 2],
            "garbled name": text.replace(b"offset", b"offseu"),
        }
        path.write_bytes(older.read_bytes() if damage == "older" else texts[damage])
    found, problems = sessions.deliver_all(path.parent.parent)
    assert found == sessions.expected
    if name == SMALL_FILES[0] and damage in ("{}", "older", "garbled name"):
        assert any("not believed" in problem for problem in problems)


def _flip_each(
    sessions: _TwoSessions, folder: Path, name: str, rng: random.Random, step: int
) -> None:
    text = (sessions.root / name).read_bytes()
    for place in range(rng.randrange(step), len(text.rstrip()) + 1, step):
        copy = _copy(sessions, folder / "store")
        garbled = bytearray(text.ljust(place + 1))
        garbled[place] ^= 1 << rng.randrange(8)
        (copy / name).write_bytes(garbled)
        found, _ = sessions.deliver_all(copy)
        assert found == sessions.expected, (place, bytes(garbled))


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_flipped_bit_in_a_small_file_loses_and_repeats_nothing(
    sessions: _TwoSessions, tmp_path: Path, name: str, seed: int
) -> None:
    _flip_each(sessions, tmp_path, name, random.Random(seed), step=29)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_flipped_bit_in_any_byte_of_a_small_file_loses_and_repeats_nothing(
    sessions: _TwoSessions, tmp_path: Path, name: str, seed: int
) -> None:
    _flip_each(sessions, tmp_path, name, random.Random(seed), step=1)


# --- owners by turns ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_early", [False, True], ids=["in time", "early"])
@pytest.mark.parametrize("how", ENDS)
def test_what_a_broker_delivered_between_two_sessions_of_ours_does_not_come_again(
    tmp_path: Path, how: str, is_early: bool
) -> None:
    """A broker leaves our marks as they were, and delivers early when its clock was set back."""
    bench = Bench(tmp_path / "store")
    with bench.open() as store:
        for number in range(6):
            store.schedule(message(number), AtLevel(18 if number % 2 else 1))
        bench.advance(store, 1_000)
    shutil.copytree(bench.root / "delaywheel", tmp_path / "marks")
    bench.clock.tick(-86_400_000 if is_early else 7_200_000)
    broker = bench.open(rules=LevelRules(beyond_level="deliver"))
    with deliveries_without_names():
        assert len(bench.advance(broker)) == 3
    broker.schedule(message(6), AtLevel(2))
    broker.close()
    if how == "killed":
        (bench.root / "abort").touch()
    shutil.rmtree(bench.root / "delaywheel")
    shutil.copytree(tmp_path / "marks", bench.root / "delaywheel")
    bench.clock.tick(86_400_000 if is_early else 0)
    with bench.open() as store:
        assert bench.advance(store, 7_200_000) == [b"body 6"]
    assert Counter(bench.bodies("TopicA")) == Counter(b"body %d" % number for number in range(7))


def test_levels_that_were_moved_past_what_was_converted_stay_there(tmp_path: Path) -> None:
    """`retire` writes one text to both files, and nothing to the log."""
    bench = Bench(tmp_path / "store")
    with bench.open() as store:
        for number in range(4):
            store.schedule(message(number), AtLevel(1 + number % 2))
    for name in SMALL_FILES[:2]:
        (bench.root / name).write_bytes(b'{"offsetTable":{2:2}}')
    with bench.open() as store:
        assert bench.advance(store, 60_000) == [b"body 0", b"body 2"]


# --- level queues ---------------------------------------------------------------------------------


def _lose_queue(queue: Path, older: Path, kind: str) -> None:
    if kind == "gone":
        shutil.rmtree(queue)
    elif kind == "older":
        shutil.rmtree(queue)
        shutil.copytree(older, queue)
    else:
        for path in queue.iterdir():
            text = path.read_bytes()
            kept = 0 if kind == "zeroed" else 20
            path.write_bytes(text[:kept] + bytes(len(text) - kept))


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("kind", "sessions"),
    [("gone", 1), ("gone", 2), ("zeroed", 1), ("zeroed", 2), ("shortened", 2), ("older", 2)],
)
@pytest.mark.parametrize("level", [1, 3, 18])
def test_a_level_queue_that_lost_entries_after_sessions_that_only_scheduled_is_made_anew(
    tmp_path: Path, level: int, kind: str, sessions: int, how: str
) -> None:
    bench = Bench(tmp_path / "store")
    older = tmp_path / "older"
    queue = bench.root / f"consumequeue/SCHEDULE_TOPIC_XXXX/{level - 1}"
    for session in range(sessions):
        if queue.exists():
            shutil.copytree(queue, older)
        store = bench.open()
        for number, each in enumerate((level, level, level, 2)):
            store.schedule(message(10 * session + number), AtLevel(each))
        if how == "closed" or session == 0 < sessions - 1:
            store.close()
        else:
            store.flush()
            store.abandon()
    _lose_queue(queue, older, kind)
    with bench.open() as store:
        if how == "closed":
            problems = [each for each in store.check() if each.severity is Severity.ERROR]
            assert [problem.where.split()[1] for problem in problems] == [str(level)]
        assert len(list(store.pending())) == 4 * sessions
        assert len(bench.advance(store, 7_200_000)) == 4 * sessions
