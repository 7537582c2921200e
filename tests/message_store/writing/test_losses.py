# SPDX-License-Identifier: Apache-2.0
"""What was removed from a closed store is noticed when it is opened; what was not is not."""

import os
import shutil
from pathlib import Path

import pytest

from message_store import ManualClock, Severity
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from message_store.writing.findings import queue_findings
from message_store.writing.losses import LOG_END_NAME, LogEndNote, StoreEnds, StoreLosses
from message_store.writing.queue_set import ENDS_NAME
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import NOW_MS, SMALL, append, append_rows, stored

ENTRIES = 5


def opened(path: Path) -> LiveStore:
    return LiveStore.open(path, clock=ManualClock(NOW_MS), settings=SMALL)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    store = opened(tmp_path)
    for topic in ("orders", "payments"):
        for _ in range(ENTRIES):
            append(store, stored(b"body", topic=topic))
    store.close()
    return tmp_path


def losses_of(path: Path) -> StoreLosses:
    store = opened(path)
    store.abandon()
    return store.losses


def test_nothing_is_missed_in_a_store_that_is_whole(closed: Path) -> None:
    assert losses_of(closed) == StoreLosses()


def read_all(store: LiveStore, topic: str) -> list[tuple[int, bytes]]:
    return [(each.queue_offset, each.body) for each in store.topic(topic).read(0, 0, 2 * ENTRIES)]


@pytest.mark.parametrize("kind", ["gone", "empty", "zeros", "directory"])
@pytest.mark.parametrize("was_killed", [False, True], ids=["closed", "killed"])
def test_a_queue_that_was_removed_is_rebuilt_from_the_log(
    closed: Path, kind: str, was_killed: bool
) -> None:
    store = opened(closed)
    wanted = {topic: read_all(store, topic) for topic in ("orders", "payments")}
    if was_killed:
        store.flush()
        store.abandon()
    else:
        store.close()
    [file] = (closed / "consumequeue/orders/0").iterdir()
    size_bytes = file.stat().st_size
    file.unlink()
    if kind in ("empty", "zeros"):
        file.touch()
        os.truncate(file, size_bytes if kind == "zeros" else 0)
    if kind == "directory":
        shutil.rmtree(closed / "consumequeue/orders")
    store = opened(closed)
    lacked = {("orders", 0): ENTRIES}
    assert store.losses == StoreLosses(lacked, lacked)
    [finding] = queue_findings(store)
    assert (finding.severity, finding.where) == (Severity.WARNING, "consumequeue orders/0")
    assert {topic: read_all(store, topic) for topic in wanted} == wanted
    append(store, stored(b"later", topic="orders"))
    store.close()
    again = opened(closed)
    assert again.losses == StoreLosses()
    assert read_all(again, "orders") == [*wanted["orders"], (ENTRIES, b"later")]
    again.abandon()


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("kind", ["gone", "empty", "zeros"])
def test_a_queue_that_lost_one_of_its_files_is_rebuilt_or_refused(
    tmp_path: Path, kind: str, index: int
) -> None:
    bodies = [b"%d" % number for number in range(600)]
    store = opened(tmp_path)
    append_rows(store, [stored(body, topic="orders") for body in bodies])
    store.close()
    directory = tmp_path / "consumequeue/orders/0"
    file = sorted(directory.iterdir())[index]
    size_bytes = file.stat().st_size
    file.unlink()
    if kind != "gone":
        file.touch()
        os.truncate(file, size_bytes if kind == "zeros" else 0)
    if kind != "zeros" and index < 2:
        with pytest.raises(SourceError, match=str(directory)):
            opened(tmp_path)
        shutil.rmtree(directory)
    store = opened(tmp_path)
    read: list[tuple[int, bytes]] = []
    while messages := store.topic("orders").read(0, len(read), 100):
        read += [(each.queue_offset, each.body) for each in messages]
    assert read == list(enumerate(bodies))
    assert len(list(queue_findings(store))) == 1
    store.close()


def test_first_files_that_retention_removed_are_not_lost(tmp_path: Path) -> None:
    store = opened(tmp_path)
    append_rows(store, [stored(b"%d" % number, topic="orders") for number in range(600)])
    store.close()
    store = opened(tmp_path)
    removed = store.clean(NOW_MS + 2 * SMALL.retention_ms, store.log.end, lambda: None)
    assert tmp_path / "consumequeue/orders/0" / f"{0:020}" in removed
    store.abandon()  # the note still has the old beginning
    opened(tmp_path).close()


def test_entries_whose_records_the_log_has_lost_too_are_told(closed: Path) -> None:
    ends = StoreEnds.read(StoreRoot(closed))
    assert ends is not None
    StoreEnds(ends.log_end, {**ends.queues, ("refunds", 0): 3}).write(StoreRoot(closed))
    store = opened(closed)
    assert store.losses == StoreLosses({("refunds", 0): 3}, {("refunds", 0): 0})
    [finding] = queue_findings(store)
    assert (finding.severity, finding.where) == (Severity.ERROR, "consumequeue refunds/0")
    store.abandon()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log_end": 1}', '{"log_end": 1, "queues": [1]}'])
def test_ends_that_cannot_be_read_tell_nothing(closed: Path, text: str) -> None:
    (closed / "delaywheel" / ENDS_NAME).write_text(text)
    assert StoreEnds.read(StoreRoot(closed)) is None
    assert losses_of(closed) == StoreLosses()


@pytest.fixture
def killed(tmp_path: Path) -> LiveStore:
    """A store that was killed behind a flush that synced the log alone."""
    store = opened(tmp_path)
    group = store.group(store.flush)
    for _ in range(2):
        append(store, stored(b"body"))
        group.run()
    store.abandon()
    return store


def test_a_killed_log_that_ends_before_what_a_flush_synced_is_refused(killed: LiveStore) -> None:
    """Nothing else tells: the checkpoint names what has its entries on the disk, too."""
    path, last = killed.root.path, killed.log.last_start
    with (path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(last + 100)
        file.write(b"?")
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    told = f"ends at {last:,}, and {killed.log.end:,} was synced.*{LOG_END_NAME}"
    with pytest.raises(SourceError, match=told):
        opened(path)
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before
    for name in (ENDS_NAME, LOG_END_NAME):
        (path / "delaywheel" / name).unlink()
    opened(path).close()
    assert not (path / "delaywheel" / LOG_END_NAME).exists()


def test_a_log_end_of_which_a_part_is_damaged_tells_nothing(killed: LiveStore) -> None:
    note = killed.root.own / LOG_END_NAME
    content = note.read_bytes()
    assert LogEndNote.read(killed.root) == killed.log.end
    for at in range(len(content)):
        note.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert LogEndNote.read(killed.root) is None
    note.write_bytes(content[:-1])
    assert LogEndNote.read(killed.root) is None
    opened(killed.root.path).close()
