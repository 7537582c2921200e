# SPDX-License-Identifier: Apache-2.0
"""A whole file of a closed store is removed, emptied or zeroed: no message is delivered twice, none
that was cancelled is delivered, and a message that is lost is told by whoever opens or reads it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store import AfterMs, AtMs, ManualClock, Message, Severity
from message_store.base.errors import DelayStoreError, SourceError
from message_store.files.store_root import StoreRoot
from message_store.writing.losses import cut_log
from message_store.writing.settings import StoreSettings
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.in_place.checks import refuse_store
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from migrate.source.condition import loss_warnings, source_warnings
from migrate.table.pending_table import LEVELS, TableOptions, pending_rows
from tests.faults.damage import copy_store
from tests.faults.engines import (
    abandon,
    open_hierarchy,
    open_levels,
    open_time_index,
    open_wheel,
)
from timer_wheel.reading.before_us import DEALT_WITH_NAME

START_MS = 1_767_323_045_000
HALF_MS = START_MS + 20_000
END_MS = START_MS + 86_400_000
COUNT = 300
TOPICS = ("orders", "payments", "refunds")
SETTINGS = StoreSettings(
    commit_log_file_bytes=1 << 16, queue_file_bytes=100 * 20, timer_log_file_bytes=100 * 52
)
OPEN: dict[str, Any] = {
    "levels": open_levels,
    "wheel": open_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}
FILES = ("commitlog/*", "timerlog/*", "consumequeue/SCHEDULE*/*/*", "consumequeue/rmq*/*/*")
KINDS = ("gone", "empty", "zero")


@attrs.frozen
class Built:
    """A closed store: which messages are delivered, cancelled and pending, and what ``check`` and
    ``inspect`` say of it.
    """

    path: Path
    delivered: frozenset[int]
    cancelled: frozenset[int]
    told: frozenset[str]


def opened(name: str, path: Path, now_ms: int) -> Any:
    rolls = {"roll_window_slots": 3_600} if name == "wheel" else {}
    return OPEN[name](path, ManualClock(now_ms), SETTINGS, **rolls)


def build(name: str, path: Path, *, is_killed: bool = False) -> Built:
    """The store; one that is killed was flushed then, and when it had its first messages."""
    store = opened(name, path, START_MS)
    receipts = []
    for number in range(COUNT):
        receipts.append(
            store.schedule(
                Message(TOPICS[number % 3], b"body %d." % number * 5, unique_key=f"KEY{number}"),
                AtMs(START_MS + 1_000 + number * 7 % 100 * 1_000),
            )
        )
        if is_killed and number < 3:
            store.flush()
    end(store, is_killed=is_killed)
    store = opened(name, path, HALF_MS)
    while len(store.advance(HALF_MS)):
        if is_killed:
            store.flush()
    end(store, is_killed=is_killed)
    delivered = frozenset(in_topics(name, path))
    store = opened(name, path, HALF_MS)
    waiting = sorted(set(range(COUNT)) - delivered)
    cancelled = frozenset(waiting[:5])
    for number in cancelled:
        store.cancel(receipts[number])
    end(store, is_killed=is_killed)
    return Built(path, delivered, cancelled, frozenset(told_by_readers(path)))


def end(store: Any, *, is_killed: bool) -> None:
    if is_killed:
        store.flush()
        abandon(store)
    else:
        store.close()


def in_topics(name: str, path: Path) -> Counter[int]:
    """What the topics of a store hold, with multiplicity."""
    store = opened(name, path, HALF_MS)
    try:
        return topics_of(store)
    finally:
        abandon(store)


def topics_of(store: Any) -> Counter[int]:
    found: Counter[int] = Counter()
    for topic in TOPICS:
        for queue_offset in range(COUNT):
            with suppress(DelayStoreError):  # a delivered record that is lost hides no other
                for message in store.topic(topic).read(0, queue_offset, 1):
                    if message.queue_offset == queue_offset:
                        found[int(message.body.split(b".")[0].split()[1])] += 1
    return found


def told_by_readers(path: Path, now_ms: int = HALF_MS) -> Iterator[str]:
    """What ``check`` and ``inspect`` complain of."""
    for finding in check_store(path, CheckOptions(now_ms=now_ms)).findings:
        if finding.severity is not Severity.INFO:
            yield f"{finding.code} {finding.where}"
    try:
        yield from inspect_store(path, now_ms=now_ms).problems
    except DelayStoreError as error:
        yield str(error)


def pending_of(path: Path, *, is_told: bool = False) -> Counter[int] | None:
    """Which messages wait, as ``pending`` lists them; None where it refuses, cannot read some, or
    says, unless that ``is_told`` has to be, that some are missing.
    """
    found: Counter[int] = Counter()
    warnings: list[str] = []
    try:
        for each in pending_messages(path, now_ms=HALF_MS, warn=warnings.append):
            if isinstance(each, BadRecord):
                return None
            found[int(str(each.unique_key).removeprefix("KEY"))] += 1
    except DelayStoreError:
        return None
    return found if bool(warnings) is is_told else None


def destroy(file: Path, kind: str) -> None:
    size = file.stat().st_size
    file.unlink()
    if kind != "gone":
        file.touch()
    if kind == "zero":
        with file.open("r+b") as target:
            target.truncate(size)


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.stat().st_size < 1 << 20
    }


def require_told(name: str, built: Built, copy: Path) -> None:
    """Read and open a store that lost a file, deliver everything, and account for each message."""
    told = set(told_by_readers(copy)) - built.told
    wanted = set(range(COUNT)) - built.cancelled
    waiting, wait = pending_of(copy), Counter(wanted - built.delivered)
    assert waiting in (None, wait), ("listed in silence", waiting, told)
    before = contents(copy)
    try:
        store = opened(name, copy, HALF_MS)
    except DelayStoreError:
        assert contents(copy) == before, "a refused open changed the store"
        return
    said = [str(one) for one in store.check() if one.severity is not Severity.INFO]
    for now_ms in (HALF_MS, END_MS):
        while len(store.advance(now_ms)):
            pass
    said += [str(one) for one in store.check() if one.severity is not Severity.INFO]
    delivered = topics_of(store)
    store.close()
    lost, came_back = wanted - delivered.keys(), delivered.keys() & built.cancelled
    doubled = {number for number, times in delivered.items() if times > 1}
    assert not doubled, ("twice", doubled)
    assert not came_back or said, ("cancelled", came_back)
    assert not lost or said, ("lost", lost, told)


STORES: dict[tuple[str, bool], Built] = {}


def built_once(
    name: str, tmp_path_factory: pytest.TempPathFactory, *, is_killed: bool = False
) -> Built:
    """A store of this engine, in a folder that outlives the test."""
    if (name, is_killed) not in STORES:
        folder = tmp_path_factory.mktemp("lost") / name
        STORES[name, is_killed] = build(name, folder, is_killed=is_killed)
    return STORES[name, is_killed]


@pytest.fixture(params=OPEN)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built_once(request.param, tmp_path_factory)


@pytest.mark.check
@pytest.mark.parametrize("files_of", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_lost_loses_nothing_without_a_word(
    built: Built, kind: str, files_of: str, tmp_path: Path
) -> None:
    assert_no_loss_is_silent(built, kind, files_of, tmp_path)


@pytest.mark.check
@pytest.mark.parametrize("files_of", FILES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", OPEN)
def test_nor_does_a_file_that_a_killed_store_had_synced(
    engine: str,
    kind: str,
    files_of: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    built = built_once(engine, tmp_path_factory, is_killed=True)
    assert_no_loss_is_silent(built, kind, files_of, tmp_path)


def assert_no_loss_is_silent(built: Built, kind: str, files_of: str, tmp_path: Path) -> None:
    name = built.path.name
    files = [path.relative_to(built.path) for path in sorted(built.path.glob(files_of))]
    wrong = []
    for file in files:
        if not (built.path / file).is_file() or file.name == "lock":
            continue
        copy = tmp_path / str(file).replace("/", "-")
        copy_store(built.path, copy)
        destroy(copy / file, kind)
        try:
            require_told(name, built, copy)
        except (AssertionError, DelayStoreError) as error:
            wrong.append((str(file), str(error).splitlines()[0]))
    assert not wrong, "\n".join(f"{file}: {what}" for file, what in wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_s_queue_that_is_lost_is_rebuilt_from_the_log(
    built: Built, kind: str, tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    copy_store(built.path, copy)
    [file] = (copy / "consumequeue/orders/0").iterdir()
    destroy(file, kind)
    store = opened(built.path.name, copy, HALF_MS)
    assert set(topics_of(store)) == built.delivered
    [told] = [each for each in store.check() if each.where == "consumequeue orders/0"]
    assert told.severity is Severity.WARNING
    assert "rebuilt from the log" in told.effect
    while len(store.advance(END_MS)):
        pass
    assert topics_of(store) == Counter(set(range(COUNT)) - built.cancelled)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_ends_before_its_synced_end_is_refused_and_told(
    built: Built, kind: str, tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    copy_store(built.path, copy)
    last = max((copy / "commitlog").iterdir())
    destroy(last, kind)
    before = contents(copy)
    report = check_store(copy, CheckOptions(now_ms=HALF_MS))
    [told] = [each for each in report.findings if each.code == "log-cut-short"]
    assert told.severity is Severity.ERROR
    assert last.name in told.problem
    assert any(last.name in each for each in inspect_store(copy, now_ms=HALF_MS).problems)
    assert any(last.name in each for each in loss_warnings(StoreRoot(copy)))
    with pytest.raises(SourceError, match=f"{last.name}.*queue-ends.json.*nothing was changed"):
        opened(built.path.name, copy, HALF_MS)
    with pytest.raises(SourceError, match=f"{last.name}.*queue-ends.json"):
        pending_rows(copy, LEVELS, TableOptions(now_ms=HALF_MS))
    assert contents(copy) == before
    (copy / "delaywheel" / "queue-ends.json").unlink()
    abandon(opened(built.path.name, copy, HALF_MS))


@pytest.mark.parametrize("kind", KINDS)
def test_so_is_one_that_was_flushed_once_and_killed(
    built: Built, kind: str, tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    copy_store(built.path, copy)
    store = opened(built.path.name, copy, HALF_MS)
    for number in range(SETTINGS.commit_log_file_bytes // 1_000):
        message = Message("orders", b"x" * 1_000, unique_key=f"NEW{number}")
        store.schedule(message, AtMs(HALF_MS + 60_000))
    store.flush()
    abandon(store)
    last = max((copy / "commitlog").iterdir())
    destroy(last, kind)
    assert any(last.name in each for each in loss_warnings(StoreRoot(copy)))
    with pytest.raises(SourceError, match=f"{last.name}.*nothing was changed"):
        opened(built.path.name, copy, HALF_MS)


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_a_log_whose_unsynced_tail_is_lost_is_no_damage(tmp_path: Path, kind: str) -> None:
    """A loss of power may take what nobody had synced."""
    store = opened("wheel", tmp_path, START_MS)
    store.schedule(Message("orders", b"synced"), AtMs(START_MS + 1_000))
    store.flush()
    end = store.live.log.end
    if kind == "closed":
        store.close()
        store = opened("wheel", tmp_path, START_MS)
    store.schedule(Message("orders", b"not synced"), AtMs(START_MS + 1_000))
    abandon(store)
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.truncate(end)
        file.truncate(1 << 16)
    assert cut_log(StoreRoot(tmp_path)) is None
    store = opened("wheel", tmp_path, START_MS)
    assert store.live.log.end == end
    store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(4))
def test_a_wheel_without_a_file_of_its_timer_log_delivers_all_or_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str, index: int
) -> None:
    """The queue and the log have what the units were made from."""
    built, copy = built_once("wheel", tmp_path_factory), tmp_path / "store"
    copy_store(built.path, copy)
    destroy(sorted((copy / "timerlog").iterdir())[index], kind)
    try:
        store = opened("wheel", copy, HALF_MS)
    except DelayStoreError:
        assert kind == "empty" or (kind, index) in {("gone", 1), ("gone", 2)}
        return
    for _ in range(2):  # what was placed again stays so
        store.close()
        store = opened("wheel", copy, HALF_MS)
    while len(store.advance(END_MS)):
        pass
    assert topics_of(store) == Counter(set(range(COUNT)) - built.cancelled)
    store.close()


@pytest.mark.parametrize("name", ["wheel", "hierarchy"])
@pytest.mark.parametrize("damage", ["a file of the timer log is gone", "a damaged note"])
def test_what_a_wheel_refuses_it_refuses_before_log_and_queues_are_recovered(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str, damage: str
) -> None:
    """A killed store has zeros to write behind its log's end, and entries to make."""
    built, copy = built_once("wheel", tmp_path_factory), tmp_path / "store"
    copy_store(built.path, copy)
    store = opened("wheel", copy, HALF_MS)
    store.schedule(Message("orders", b"killed"), AtMs(HALF_MS + 1_000))
    abandon(store)
    with max((copy / "consumequeue/rmq_sys_wheel_timer/0").iterdir()).open("r+b") as queue:
        entries = queue.read()
        place = max(place for place in range(0, len(entries), 20) if any(entries[place:][:20]))
        queue.seek(place)
        queue.write(bytes(20))
    if damage == "a damaged note":
        (copy / "delaywheel" / DEALT_WITH_NAME).write_text("{")
    else:
        sorted((copy / "timerlog").iterdir())[1].unlink()
    before = contents(copy)
    with pytest.raises(SourceError, match=r"this file is missing|Take it from a backup"):
        opened(name, copy, HALF_MS)
    assert contents(copy) == before


def test_retention_of_the_timer_log_places_nothing_again(tmp_path: Path) -> None:
    """The checkpoint says where the timer log begins since; what is gone before that was over."""
    settings = attrs.evolve(
        SETTINGS, commit_log_file_bytes=4_096, timer_log_file_bytes=10 * 52, retention_ms=3_600_000
    )
    clock = ManualClock(START_MS)
    store = open_wheel(tmp_path, clock, settings)
    for _ in range(40):
        store.schedule(Message("orders", b"x" * 900), AfterMs(1_000))
        clock.tick(3_600_000)
        store.advance(clock.now_ms())
        store.flush()
    store.close()
    files = sorted(path.name for path in (tmp_path / "timerlog").iterdir())
    assert int(files[0]) > 0, "nothing was deleted"
    places = [file.read_bytes() for file in sorted((tmp_path / "timerlog").iterdir())]
    open_wheel(tmp_path, clock, settings).close()
    assert [file.read_bytes() for file in sorted((tmp_path / "timerlog").iterdir())] == places


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_level_queue_without_a_file_is_read_from_the_log_and_told(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str, is_first: bool
) -> None:
    built, copy = built_once("levels", tmp_path_factory), tmp_path / "store"
    copy_store(built.path, copy)
    [queue] = [
        queue
        for queue in sorted((copy / "consumequeue/SCHEDULE_TOPIC_XXXX").iterdir())
        if len(list(queue.iterdir())) > 1
    ]
    destroy((min if is_first else max)(queue.iterdir()), kind)
    report = check_store(copy, CheckOptions(now_ms=HALF_MS))
    [told] = [each for each in report.findings if each.code == "level-queue-cut"]
    assert told.severity is Severity.ERROR
    for said in (loss_warnings(StoreRoot(copy)), source_warnings(StoreRoot(copy), whole_log=False)):
        assert any("from the log" in each and queue.name in each for each in said)
    with pytest.raises(SourceError, match="fresh store"):
        refuse_store(StoreRoot(copy))
    wanted = set(range(COUNT)) - built.delivered - built.cancelled
    assert len(read_backlog(copy)) >= len(wanted)
    assert pending_of(copy, is_told=True) == Counter(wanted)
    before = contents(copy)
    if is_first and kind != "zero":
        with pytest.raises(SourceError, match=queue.name):
            opened("levels", copy, HALF_MS)
        assert contents(copy) == before
        if kind == "empty":
            return
        shutil.rmtree(queue)
    store = opened("levels", copy, HALF_MS)
    while len(store.advance(END_MS)):
        pass
    delivered = topics_of(store)
    assert max(delivered.values()) == 1
    assert set(range(COUNT)) - built.cancelled <= delivered.keys()
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_in_a_queue_that_lost_its_first_file_is_honoured(
    tmp_path: Path, kind: str
) -> None:
    """The second file has the entry of the message that was cancelled."""
    store = opened("levels", tmp_path, START_MS)
    messages = [Message("orders", b"x", unique_key=f"KEY{number}") for number in range(150)]
    receipts = [store.schedule(message, AfterMs(10_000)) for message in messages]
    for number in (100, 120):
        store.cancel(receipts[number])
    store.close()
    destroy(tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX/2" / f"{0:020}", kind)
    assert pending_of(tmp_path, is_told=True) == Counter(set(range(150)) - {100, 120})


@pytest.mark.parametrize("kind", ["gone", "zero"])
def test_messages_lost_with_the_first_log_file_are_undelivered_and_noted(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    built, copy = built_once("levels", tmp_path_factory), tmp_path / "store"
    copy_store(built.path, copy)
    destroy(min((copy / "commitlog").iterdir()), kind)
    store = opened("levels", copy, HALF_MS)
    while len(store.advance(END_MS)):
        pass
    lost = set(range(COUNT)) - built.cancelled - built.delivered - topics_of(store).keys()
    assert len(store.state.skipped) == len(lost) > 0
    assert len(store.undelivered()) > 1
    store.close()
    report = check_store(copy, CheckOptions(now_ms=HALF_MS))
    assert any(each.code == "undelivered" for each in report.findings)


def test_of_very_many_lost_messages_the_last_note_says_how_many_follow(tmp_path: Path) -> None:
    store = opened("levels", tmp_path, START_MS)
    for _ in range(1_200):
        store.schedule(Message("orders", b"x"), AfterMs(10_000))
    store.close()
    shutil.rmtree(tmp_path / "delaywheel")  # as in a broker's store
    files = sorted((tmp_path / "commitlog").iterdir())
    (tmp_path / "config/delayOffset.json").write_text('{"offsetTable":{1:0}}')
    for file in files[:-1]:
        file.unlink()
    store = opened("levels", tmp_path, START_MS)
    lost = store.state.cursors[3].head
    assert lost > 1_000
    assert f"and those of {lost - 1_000} messages behind it" in store.state.skipped.all()[-1].reason
    store.close()
    before = (tmp_path / "delaywheel/levels-skipped.json").read_bytes()
    opened("levels", tmp_path, START_MS).close()
    assert (tmp_path / "delaywheel/levels-skipped.json").read_bytes() == before
