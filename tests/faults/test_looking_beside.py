# SPDX-License-Identifier: Apache-2.0
"""Readers beside a program that works on the store all the time. They never fail, and they show a
moment: what waits all the time is there once, nothing is there twice, and nothing looks damaged.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from delaywheel.terminal.main import main
from legacy_levels.backlog import backlog, lost_queues
from legacy_levels.backlog.queues import LevelQueue, levels_with_queue, open_level_queues
from legacy_levels.copies import log_notes
from message_store import AfterMs, Message, Severity
from message_store.base.errors import SourceError, StoreLockedError
from message_store.files.store_root import StoreRoot
from message_store.reading.looking import looking_at
from message_store.reading.topic_listing import UnreadableMessage, list_topic
from migrate.changes.note import RETIRE
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.look import pending
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from migrate.table.pending_batches import pending_batches
from migrate.table.pending_table import KINDS, LEVELS, WHEEL, TableOptions, pending_rows
from tests.faults.busy_writer import OPENERS, START_MS, WAITING, BusyWriter
from tests.faults.engines import WINDOW_SLOTS
from tests.helpers.tiers import at_night
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store
from tests.independent.raw_files import segments
from tests.message_store.files.test_store_lock import as_a_broker_finds_it
from tests.source_laws import ROOT
from timer_wheel.reading import outstanding
from timer_wheel.reading.timer_queue import waiting_in_queue

WAITS = {f"W{number}" for number in range(WAITING)}


def require_a_moment(keys: Counter[str]) -> None:
    """Raise AssertionError unless what waits all the time is there, and nothing twice."""
    assert not WAITS - keys.keys()
    assert set(keys.values()) == {1}


def look_at_pending(path: Path, _engine: str, now_ms: int) -> None:
    keys = Counter[str]()
    for each in pending_messages(path, now_ms=now_ms):
        assert not isinstance(each, BadRecord)
        keys[str(each.unique_key)] += 1
    require_a_moment(keys)


def look_at_table(path: Path, engine: str, now_ms: int) -> None:
    """As the data sources do: rows are found first, and their records read later."""
    kind, options = engine if engine in KINDS else WHEEL, TableOptions(now_ms=now_ms)
    rows = pending_rows(path, kind, options)
    batches = [batch.to_pydict() for batch in pending_batches(StoreRoot(path), kind, rows, options)]
    assert not [why for batch in batches for why in batch["problem"] if why is not None]
    require_a_moment(Counter(key for batch in batches for key in batch["unique_key"]))


def look_at_topic(path: Path, _engine: str, _now_ms: int) -> None:
    listed = list(list_topic(path, "orders"))
    assert not [each for each in listed if isinstance(each, UnreadableMessage)]
    offsets = [each.queue_offset for each in listed if not isinstance(each, UnreadableMessage)]
    assert offsets == list(range(len(listed)))
    bodies = Counter(each.body for each in listed if not isinstance(each, UnreadableMessage))
    assert b"waits" not in bodies
    assert set(bodies.values()) <= {1}


def look_at_inspection(path: Path, engine: str, now_ms: int) -> None:
    seen = inspect_store(path, now_ms=now_ms)
    lost = (
        "lost",
        "crashed",
        "cannot be",
        "would not start",
        "hold nothing",
        "no record",
        "beyond the end",
    )
    assert not [each for each in seen.problems if any(words in each for words in lost)]
    waiting = [level.pending for level in seen.levels] if engine == "levels" else []
    timers = seen.time_index if engine == "time-index" else seen.wheel
    waiting += [timers.pending] if timers is not None and engine != "levels" else []
    assert None not in waiting
    assert sum(count or 0 for count in waiting) >= WAITING


def look_at_check(path: Path, _engine: str, now_ms: int) -> None:
    report = check_store(path, CheckOptions(now_ms=now_ms))
    assert report.is_running
    assert not [each for each in report.findings if each.severity is not Severity.INFO]


LOOKS = (look_at_pending, look_at_table, look_at_topic, look_at_inspection, look_at_check)


@contextmanager
def at_work(engine: str, path: Path, seed: int) -> Iterator[BusyWriter]:
    """A thread that works on a store."""
    writer = BusyWriter(engine, path, seed)
    is_over, problems = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            writer.run_until(is_over)
        except BaseException as error:  # told below
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield writer
        assert as_a_broker_finds_it(StoreRoot(path)) == "held"
    finally:
        is_over.set()
        thread.join()
    assert problems == []


@pytest.mark.parametrize(
    "times",
    [
        2,
        pytest.param(6, marks=pytest.mark.check),
        *at_night(200, parts=8),
    ],
)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("engine", OPENERS)
def test_a_look_beside_a_thread_that_works_shows_a_moment(
    tmp_path: Path, seed: int, engine: str, look: Callable[[Path, str, int], None], times: int
) -> None:
    path = tmp_path / "store"
    with at_work(engine, path, seed) as writer:
        for _ in range(times):
            look(path, engine, writer.clock.now_ms())
    with OPENERS[engine](path, writer.clock) as store:
        assert store.check() == []
        require_a_moment(Counter(str(each.unique_key) for each in store.pending()))


class StepsBetween:
    """A writer that works whenever this thread opens or reads a file: now and then, by chance."""

    def __init__(self, patch: pytest.MonkeyPatch, writer: BusyWriter, rng: random.Random) -> None:
        self.writer = writer
        self.rng = rng
        self.chance = rng.choice([0.2, 0.05, 0.01])
        self.left = 25  # a reader with a slower writer comes to its end
        self.lock = threading.Lock()  # readers have threads of their own
        for name in ("open", "preadv", "pread", "lseek", "scandir"):
            patch.setattr(os, name, self._before(getattr(os, name)))

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            is_chosen = self.left > 0 and self.rng.random() < self.chance
            if is_chosen and self.lock.acquire(blocking=False):
                self.left -= 1
                try:
                    for _ in range(self.rng.choice([1, 1, 2, 30])):
                        self.writer.step()
                finally:
                    self.lock.release()
            return call(*args, **options)

        return stepped


@pytest.mark.parametrize(
    "times",
    [
        1,
        pytest.param(4, marks=pytest.mark.check),
        *at_night(100, parts=4),
    ],
)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("engine", OPENERS)
def test_a_writer_that_works_between_two_reads_is_not_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    engine: str,
    look: Callable[[Path, str, int], None],
    times: int,
) -> None:
    for number in range(times):
        path = tmp_path / f"{number}"
        writer = BusyWriter(engine, path, seed + number)
        with monkeypatch.context() as patch:
            StepsBetween(patch, writer, random.Random(seed + number))
            look(path, engine, writer.clock.now_ms())
        writer.store.close()


def test_what_rolls_while_the_store_is_read_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that waits rolls right behind the reading of the queue."""
    writer = BusyWriter("wheel", tmp_path / "store")

    def held(*given: Any, **named: Any) -> Any:
        answer = waiting_in_queue(*given, **named)
        for _ in range(1_000):
            writer.step()
        return answer

    monkeypatch.setattr(outstanding, "waiting_in_queue", held)
    look_at_pending(tmp_path / "store", "wheel", writer.clock.now_ms())
    assert writer.clock.now_ms() > START_MS + WINDOW_SLOTS * 1_000
    writer.store.close()


def test_what_is_rescheduled_while_the_queues_are_read_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is rescheduled and flushed when the queues' ends are known, and not yet their units."""
    writer = BusyWriter("levels", tmp_path / "store")

    def held(*given: Any, **named: Any) -> Any:
        before = open_level_queues(*given, **named)
        for number in range(WAITING):
            writer.move(number)
        writer.store.flush()
        behind = open_level_queues(*given, **named)
        return tuple(up_to(queue, end) for queue, end in zip(behind, before, strict=True))

    def up_to(queue: LevelQueue, end: LevelQueue) -> LevelQueue:
        count = len(end)
        return attrs.evolve(
            queue,
            queue_max=end.queue_max,
            entries=queue.entries.slice(end.from_queue_offset, end.queue_max),
            due_ms=queue.due_ms[:count],
            due_is_unknown=queue.due_is_unknown[:count],
        )

    monkeypatch.setattr(backlog, "open_level_queues", held)
    look_at_pending(tmp_path / "store", "levels", writer.clock.now_ms())
    writer.store.close()


def test_a_level_queue_that_grows_meanwhile_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BusyWriter("levels", tmp_path / "store")

    def held(*given: Any, **named: Any) -> Any:
        queues = open_level_queues(*given)
        for _ in range(20):
            writer.step()
        writer.store.flush()
        return queues

    monkeypatch.setattr(lost_queues, "open_level_queues", held)
    assert lost_queues.cut_queues_of(StoreRoot(tmp_path / "store")) == ()
    writer.store.close()


def test_a_level_queue_that_is_made_meanwhile_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that has its directory, and no file yet."""
    writer, root = BusyWriter("levels", tmp_path / "store"), StoreRoot(tmp_path / "store")
    unused, half_made = 9, 10

    def held(path: Path) -> list[int]:
        levels = levels_with_queue(path)
        assert unused not in levels
        writer.store.schedule(Message("orders", b"late"), AfterMs(300_000))
        writer.clock.tick(400_000)
        writer.store.advance(writer.clock.now_ms())
        writer.store.flush()
        return levels

    root.level_queue(half_made).mkdir()
    monkeypatch.setattr(lost_queues, "levels_with_queue", held)
    assert lost_queues.gone_queues(root) == ()
    assert unused in levels_with_queue(root.path)
    writer.store.close()


VERBS = (
    ("pending", "--limit", "500"),
    ("read", "orders"),
    ("inspect",),
    ("check",),
    ("export", "out.parquet"),
)


@pytest.mark.check
@pytest.mark.parametrize("engine", OPENERS)
def test_each_verb_works_beside_another_process_and_names_it(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-m", "tests.faults.busy_writer", engine, str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        for number in range(3):
            for name, *rest in VERBS:
                out = [str(tmp_path / f"{number}-{each}") if "." in each else each for each in rest]
                result = CliRunner().invoke(main, [name, str(path), *out])
                assert result.exit_code == 0 or name == "check", (name, result.output)
                assert f"process {writer.pid} has the store open" in result.stderr
        assert as_a_broker_finds_it(StoreRoot(path)) == "held"
        writer.communicate(timeout=60)
    assert writer.returncode == 0


def test_nobody_looks_beside_a_change_in_place(tmp_path: Path) -> None:
    """Messages stand in two places then."""
    root = StoreRoot(tmp_path)
    lock = root.take_lock()
    with looking_at(root) as is_beside:
        assert is_beside
    note = root.own / "backup-1" / "change.json"
    note.parent.mkdir(parents=True)
    note.write_text(f'{{"state": "begun", "kind": "{RETIRE}"}}')
    with pytest.raises(StoreLockedError), looking_at(root):
        pass
    lock.release()
    with looking_at(root) as is_beside:
        assert not is_beside


ITEMS = [LevelMessage(level=3, store_timestamp_ms=T0 + number) for number in range(40)]


def without_first_file(path: Path) -> str:
    """What retention by a broker's rules does, while messages wait there; the file's name."""
    first = segments(path / "commitlog")[0]
    first.unlink()
    return first.name


@pytest.mark.parametrize("whole_log", [True, False], ids=["whole log", "tail"])
def test_a_log_file_that_retention_takes_from_a_reader_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_log: bool
) -> None:
    """Its records would be missing from what the log is said to hold."""
    built = build_level_store(tmp_path / "store", ITEMS, commit_log_file_bytes=2048, abort=True)
    if whole_log:
        shutil.rmtree(built.root / "consumequeue/SCHEDULE_TOPIC_XXXX")
    names = []

    def deleted_first(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        names.append(without_first_file(built.root))
        return list(map(work, items))

    module = log_notes if whole_log else backlog
    monkeypatch.setattr(module, "parallel_map", deleted_first)
    with pytest.raises(SourceError, match="it was deleted meanwhile") as raised:
        backlog.read_backlog(built.root, after_crash=True, whole_log=whole_log)
    assert names[0] in str(raised.value)


def test_what_waited_in_a_log_file_that_is_deleted_meanwhile_is_named_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are found, then a file is deleted, then the records are read."""
    build_level_store(tmp_path / "store", ITEMS, commit_log_file_bytes=2048)
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    options = TableOptions(now_ms=T0)
    rows = pending_rows(tmp_path / "store", LEVELS, options)
    name = without_first_file(tmp_path / "store")
    problems = [
        problem
        for batch in pending_batches(StoreRoot(tmp_path / "store"), LEVELS, rows, options)
        for problem in batch["problem"].to_pylist()
    ]
    assert len(problems) == len(ITEMS)
    told = [each for each in problems if each is not None]
    assert told
    assert all(name in each and "deleted meanwhile" in each for each in told)

    real = pending._all_rows

    def deleted_behind(*given: Any) -> Any:
        answer = real(*given)
        without_first_file(tmp_path / "other")
        return answer

    monkeypatch.setattr(pending, "_all_rows", deleted_behind)
    listed = list(pending_messages(tmp_path / "other", now_ms=T0))
    reasons = [each.reason for each in listed if isinstance(each, BadRecord)]
    assert (len(listed), len(reasons)) == (len(ITEMS), len(told))
    assert all(name in each and "deleted meanwhile" in each for each in reasons)
