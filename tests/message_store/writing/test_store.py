# SPDX-License-Identifier: Apache-2.0
"""A store root open for writing: lock, abort, topics, durability, the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from message_store.base.clock import ManualClock
from message_store.base.errors import (
    BadFieldError,
    FormatError,
    SourceError,
    StoreClosedError,
    StoreLockedError,
    TargetError,
)
from message_store.files.config_files import TOPICS, read_topics
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect
from message_store.format.message import Host
from message_store.writing.queue import LiveQueue
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.helpers.descriptors import open_below
from tests.message_store.live_workload import (
    NOW_MS,
    SMALL,
    append,
    append_rows,
    neutralise,
    require_sound,
    stored,
)


def opened(path: Path, dialect: Dialect = Dialect.ROCKETMQ_5_5) -> LiveStore:
    return LiveStore.open(path, settings=SMALL, dialect=dialect)


# --- lock and abort -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "text"),
    [(Dialect.ROCKETMQ_4_9, ""), (Dialect.ROCKETMQ_5_3, "pid"), (Dialect.ROCKETMQ_5_5, "pid")],
)
def test_abort_is_there_while_the_store_is_open(
    tmp_path: Path, dialect: Dialect, text: str
) -> None:
    store = opened(tmp_path / "store", dialect)
    content = (tmp_path / "store/abort").read_text()
    assert content == (str(os.getpid()) if text else "")
    assert (tmp_path / "store/lock").read_bytes() == b"lock"
    store.close()
    assert not (tmp_path / "store/abort").exists()
    assert (tmp_path / "store/lock").read_bytes() == b"lock"
    store.close()


def try_to_lock(path: Path) -> str:
    """What another process gets when it asks for the lock as a broker does."""
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "    print('free')\n"
        "except OSError:\n"
        "    print('held')\n"
    )
    command = [sys.executable, "-c", program, str(path / "lock")]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_a_broker_cannot_start_while_the_store_is_open(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    assert try_to_lock(path) == "held"
    with pytest.raises(StoreLockedError, match="this process"):
        opened(path)
    with pytest.raises(StoreLockedError, match="this process"), StoreRoot(path).shared_lock():
        pass
    assert try_to_lock(path) == "held"
    store.close()
    assert try_to_lock(path) == "free"
    with StoreRoot(path).shared_lock():
        pass


def test_a_store_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    opened(path).close()
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match="another process"):
            opened(path)
        assert not (path / "abort").exists()
        holder.communicate(timeout=60)
    opened(path).close()


def test_after_an_opening_that_failed_the_store_is_free(tmp_path: Path) -> None:
    path = tmp_path / "store"
    opened(path).close()
    (path / "commitlog" / ("0" * 20)).write_bytes(bytes(16_384))
    (path / "commitlog" / f"{99:020d}").write_bytes(bytes(16_384))
    for _ in range(3):
        with pytest.raises(SourceError):
            opened(path)
    assert open_below(tmp_path) == []
    assert try_to_lock(path) == "free"


def test_a_flush_that_a_store_was_let_go_of_under_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have the store by then: nothing is opened or written any more."""
    store = opened(tmp_path / "store")
    append(store, stored(b"x"))
    append(store, stored(b"y", queue_id=1))
    store.remember_topic("orders", 1)
    real = store.sync_or_break

    def finish(work: Callable[[], None]) -> None:
        real(work)
        if any(not queue.segments.is_dirty for queue in store.queues):
            store.abandon()

    monkeypatch.setattr(store, "sync_or_break", finish)
    with pytest.raises(StoreClosedError):
        store.flush()
    assert not (tmp_path / "store/config").exists()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_store_that_was_let_go_of_takes_nothing_more(tmp_path: Path, end: str) -> None:
    store = opened(tmp_path / "store")
    append(store, stored(b"x"))
    assert open_below(tmp_path) != []
    store.close() if end == "close" else store.abandon()
    assert open_below(tmp_path) == []
    for use in (
        store.flush,
        store.sync_log,
        store.sync_queues,
        store.write_topics,
        store.write_checkpoint,
    ):
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises(StoreClosedError):
        store.topic("orders").read(0, 0)
    with pytest.raises(StoreClosedError):
        store.clean(NOW_MS, 0, lambda: None)
    with pytest.raises(TargetError):
        append(store, stored(b"y"))
    assert (tmp_path / "store/abort").exists() is (end == "abandon")
    store.close()
    store.abandon()


def test_files_that_are_there_decide_the_sizes_of_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"x"))
    store.close()
    again = LiveStore.open(path)
    append_rows(again, [stored(bytes(9_000), topic="other", queue_id=2) for _ in range(4)])
    assert len(require_sound(again)) == 5
    again.close()
    assert {file.stat().st_size for file in (path / "commitlog").iterdir()} == {16_384}
    assert (path / "consumequeue/other/2" / ("0" * 20)).stat().st_size == SMALL.queue_file_bytes


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_read_as_a_consumer_would(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for number in range(10):
        append(store, stored(b"%d" % number, queue_id=1))
    for taken_back in (0, 4, 5, 9):
        neutralise(store, "orders", 1, taken_back)
    topic = store.topic("orders")
    found = topic.read(1, 0)
    assert [(each.body, each.queue_offset) for each in found] == [
        (b"%d" % number, number) for number in (1, 2, 3, 6, 7, 8)
    ]
    assert [each.body for each in topic.read(1, 4, 2)] == [b"6", b"7"]
    assert [each.body for each in topic.read(1, -5, 1)] == [b"1"]
    assert topic.read(1, 9) == ()
    assert topic.read(1, 0, 0) == ()
    assert topic.read(0, 0) == ()
    store.close()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", "x" * 256])
def test_a_name_that_can_be_no_topic_reads_as_empty_and_takes_no_message(
    tmp_path: Path, name: str
) -> None:
    store = opened(tmp_path / "store")
    assert store.topic(name).read(0, 0) == ()
    with pytest.raises(BadFieldError, match="no queue"):
        store.queue(name, 0)
    with pytest.raises(BadFieldError, match="no queue"):
        store.queue("fine", -1)
    store.close()
    assert not list((tmp_path / "store").rglob("consumequeue/*"))


def test_a_damaged_record_is_an_error_to_its_reader(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    place = append(store, stored(b"x" * 50))
    store.log.segments.write_at(place + 90, b"damage")
    with pytest.raises(FormatError):
        store.topic("orders").read(0, 0)
    store.abandon()


@pytest.mark.parametrize("dialect", [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5])
def test_a_broker_that_takes_over_has_a_route_for_every_topic(
    tmp_path: Path, dialect: Dialect
) -> None:
    path = tmp_path / "store"
    store = opened(path, dialect)
    store.remember_topic("orders", 0)
    store.remember_topic("orders", 3)
    store.remember_topic("orders", 1)
    store.remember_topic("SCHEDULE_TOPIC_XXXX", 17)
    store.flush()
    assert {n: (t.read_queues, t.write_queues) for n, t in read_topics(path).items()} == {
        "orders": (4, 4)
    }
    store.remember_topic("invoices", 0)
    store.close()
    topics = read_topics(path)
    assert set(topics) == {"orders", "invoices"}
    assert topics["orders"].perm == 6
    assert ("attributes" in topics["orders"].members) is (dialect is not Dialect.ROCKETMQ_4_9)


def test_topics_that_are_there_keep_all_they_have(tmp_path: Path) -> None:
    path = tmp_path / "store"
    config = path / "config" / TOPICS
    config.parent.mkdir(parents=True)
    (path / "commitlog").mkdir()
    entry = {"topicName": "orders", "perm": 2, "readQueueNums": 8, "writeQueueNums": 2, "odd": [1]}
    other = {"topicName": "other", "perm": 4}
    table = {"orders": entry, "other": other}
    version = {"counter": 7, "timestamp": 5}
    text = json.dumps({"dataVersion": version, "topicConfigTable": table, "more": "x"})
    config.write_text(text)
    store = opened(path)
    store.remember_topic("orders", 1)
    store.flush()
    assert config.read_text() == text
    store.remember_topic("orders", 2)
    store.remember_topic("other", 15)
    store.remember_topic("new", 0)
    store.close()
    assert config.with_name(TOPICS + ".bak").read_text() == text
    written = json.loads(config.read_text())
    assert written["more"] == "x"
    assert written["dataVersion"] == version
    found = written["topicConfigTable"]
    assert found["other"] == other
    assert {name: found["orders"][name] for name in entry} == {**entry, "writeQueueNums": 3}
    assert found["new"]["readQueueNums"] == 1


# --- durability -----------------------------------------------------------------------------------


def test_flush_syncs_log_then_queues_and_their_ends_then_topics_then_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "store")
    append(store, stored(b"x"))
    append(store, stored(b"y", queue_id=1))
    store.remember_topic("orders", 1)
    synced: list[str] = []

    def watch(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append([*place.relative_to(tmp_path / "store").parts, "."][0])

    monkeypatch.setattr(os, "fdatasync", watch)
    monkeypatch.setattr(os, "fsync", watch)
    store.flush()
    order = list(dict.fromkeys(place for place in synced if place != "."))
    assert order == ["commitlog", "consumequeue", "delaywheel", "config", "checkpoint"]
    synced.clear()
    store.flush()
    assert synced == ["checkpoint"]
    store.close()


def test_a_failed_sync_is_the_end_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    append(store, stored(b"x"))

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(TargetError, match="Input/output"):
        store.flush()
    monkeypatch.undo()
    with pytest.raises(TargetError, match="open it again"):
        append(store, stored(b"y"))
    store.close()
    assert (path / "abort").exists()
    again = opened(path)
    assert require_sound(again) == [b"x"]
    again.close()


def test_threads_may_append_and_flush_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    group = store.group(store.flush)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                with store.lock:
                    append(store, stored(b"%d/%d" % (number, turn), queue_id=number))
                group.run()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(require_sound(store)) == 120
    assert not store.log.segments.is_dirty
    store.close()


def test_retention_takes_log_files_and_then_what_queues_say_of_them(tmp_path: Path) -> None:
    settings = StoreSettings(
        commit_log_file_bytes=16_384, queue_file_bytes=20 * 10, retention_ms=1_000
    )
    store = LiveStore.open(tmp_path / "store", settings=settings, clock=ManualClock(NOW_MS))
    for number in range(60):
        append(store, stored(bytes(1_500), store_ms=NOW_MS + number, queue_id=number % 2))
    needed = store.log.segments.starts[2] + 5
    known: list[bool] = []

    def make_known() -> None:
        is_unsynced = store.log.segments.is_dirty or any(
            queue.segments.is_dirty for queue in store.queues
        )
        known.append(not is_unsynced and (tmp_path / "store/commitlog" / f"{0:020d}").exists())

    assert store.clean(NOW_MS + 500, 10**12, make_known) == []
    assert store.log.segments.is_dirty, "nothing goes, and nobody waits for the disk"
    assert known == []
    gone = store.clean(NOW_MS + 5_000, needed, make_known)
    assert known == [True]
    assert store.log.min_offset == store.log.segments.starts[0] == 2 * 16_384
    assert [path.parent.parent.name for path in gone].count("orders") == 2
    for queue in store.queues:
        first = queue.units(queue.min_offset, queue.min_offset + 1)[0][0]
        assert store.log.min_offset <= first < store.log.min_offset + 2 * 1_700
        assert queue.min_offset >= 10
    reads = [store.topic("orders").read(number, 0, 100) for number in range(2)]
    store.close()
    again = LiveStore.open(tmp_path / "store", settings=settings)
    assert [again.topic("orders").read(number, 0, 100) for number in range(2)] == reads
    assert [queue.min_offset for queue in again.queues] == [
        again.queues.find("orders", queue.queue_id).min_offset  # type: ignore[union-attr]
        for queue in store.queues
    ]
    append(again, stored(b"more"))
    again.close()


@pytest.mark.parametrize("damaged", [[0], [1], [0, 1], [0, 1, 2, 3]], ids=str)
def test_a_file_is_no_older_than_anything_tells(tmp_path: Path, damaged: list[int]) -> None:
    settings = StoreSettings(commit_log_file_bytes=16_384, retention_ms=1_000)
    store = LiveStore.open(tmp_path / "store", settings=settings, clock=ManualClock(NOW_MS))
    for number in range(35):
        append(store, stored(bytes(1_500), store_ms=NOW_MS + number))
    assert len(store.log.segments.starts) == 4
    for start in damaged:
        store.log.segments.write_at(start * 16_384 + 4, b"\0\0\0\1")
    assert store.clean(NOW_MS + 900, 10**12, lambda: None) == []
    gone = store.clean(NOW_MS + 5_000, 10**12, lambda: None)
    assert len(gone) == (0 if len(damaged) == 4 else 3)
    store.close()


def test_the_log_s_names_are_on_the_disk_before_queue_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with files that its queues do not know any more is refused."""
    settings = StoreSettings(
        commit_log_file_bytes=16_384, queue_file_bytes=20 * 10, retention_ms=1_000
    )
    store = LiveStore.open(tmp_path / "store", settings=settings, clock=ManualClock(NOW_MS))
    for number in range(60):
        append(store, stored(bytes(1_500), store_ms=NOW_MS + number))
    dirty: list[bool] = []
    delete_before = LiveQueue.delete_before

    def watched(queue: LiveQueue, offset: int) -> list[Path]:
        dirty.append(store.log.segments.is_dirty)
        return delete_before(queue, offset)

    monkeypatch.setattr(LiveQueue, "delete_before", watched)
    gone = store.clean(NOW_MS + 5_000, 10**12, lambda: None)
    assert {path.parent.name for path in gone} == {"commitlog", "0"}
    assert dirty == [False]
    store.close()


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        partial(StoreSettings, queue_file_bytes=30),
        partial(StoreSettings, queue_file_bytes=0),
        partial(StoreSettings, commit_log_file_bytes=100),
    ],
)
def test_sizes_that_no_file_can_have_are_refused(settings: Callable[[], StoreSettings]) -> None:
    with pytest.raises(BadFieldError):
        settings()


def test_the_defaults_are_a_broker_s() -> None:
    settings = StoreSettings()
    assert (settings.commit_log_file_bytes, settings.queue_file_bytes) == (1 << 30, 6_000_000)
    assert settings.retention_ms == 72 * 3_600_000
    assert settings.store_host == Host.of("127.0.0.1", 0)


def test_dialects_differ_where_brokers_do() -> None:
    facts = {
        dialect.value: (
            dialect.closes_properties,
            dialect.topic_in_delete_key,
            len(dialect.checkpoint.fields),
            dialect.config.value,
            dialect.has_wheel,
            dialect.knows_long_topics,
        )
        for dialect in Dialect
    }
    assert facts == {
        "4.9": (False, False, 3, "4.9", False, False),
        "5.3": (True, True, 5, "5.3", True, True),
        "5.4": (True, False, 5, "5.4", True, True),
        "5.5": (True, False, 6, "5.5", True, True),
    }


@pytest.mark.parametrize("names", [["notes.txt"], ["src", "README.md"]])
def test_a_directory_of_something_else_does_not_become_a_store(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).write_text("theirs")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SourceError, match="no store, and not empty"):
        opened(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [".keep", "lost+found", "config"])
def test_a_new_store_may_have_what_says_nothing_of_another_use(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    opened(tmp_path).close()
    assert (tmp_path / "commitlog").is_dir()
