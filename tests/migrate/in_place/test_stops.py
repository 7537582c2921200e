# SPDX-License-Identifier: Apache-2.0
"""A change in place that was stopped: who may go on with it, and what must not be gone on with.
That each stop can be gone on with is shown by the simulation.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from message_store.base.errors import PlanError, TargetError, UncleanStoreError
from message_store.files.store_root import StoreRoot
from migrate.changes.undo import roll_back
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.migrate.in_place_stores import do, plan, timer_records, tree
from tests.migrate.stops import Stopped, stopping_before

NOW_MS = T0 + 500
ITEMS: list[Item] = [
    OrdinaryMessage(topic="Plain"),
    *(LevelMessage(level=number % 3 + 3, body=bytes(number * 90 + 1)) for number in range(9)),
    LevelMessage(level=18, topic="TopicB"),
]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A store whose log and timer queue will need new files; small files, many steps."""
    store = tmp_path / "original"
    build_level_store(store, ITEMS, commit_log_file_bytes=4096, queue_file_bytes=100)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def renew(original: Path, store: Path) -> Path:
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(original, store)
    return store


def test_a_convert_after_a_stopped_rollback_is_told_to_finish_that(
    original: Path, store: Path
) -> None:
    note = Path(str(do(renew(original, store), NOW_MS).backup)) / "change.json"

    def state() -> object:
        return json.loads(note.read_text())["state"]

    with pytest.raises(Stopped), stopping_before(store, lambda _: state() != "done"):
        roll_back(StoreRoot(store), execute=True)
    assert state() == "rolling back"
    with pytest.raises(PlanError, match=r"stopped while it was rolling back.*`delaywheel rollback"):
        do(store, NOW_MS)
    roll_back(StoreRoot(store), execute=True)
    assert tree(store) == tree(original)
    assert do(store, NOW_MS).state == "done"


def test_a_directory_that_cannot_be_written_is_met_before_anything_changes(
    original: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(original, store)
    closed = store / "config"
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, how: path != closed and real(path, how))
    with pytest.raises(TargetError, match="config: cannot be written; nothing was changed"):
        do(store, NOW_MS)
    assert tree(store) == tree(original)


def test_an_error_between_records_and_offsets_says_how_to_go_on(
    original: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(original, store)

    def refuse(root: StoreRoot, _change: object) -> None:
        raise TargetError(f"{root.path}: cannot be written: Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("migrate.in_place.convert.put_offsets", refuse)
        with pytest.raises(TargetError, match=r"denied.*finish it with.*rollback.*no broker"):
            do(store, NOW_MS)
    assert do(store, NOW_MS).state == "continued and done"


# --- what must not be gone on with ----------------------------------------------------------------


def stop_late(original: Path, store: Path) -> None:
    """Leave all records and entries in place and no offset moved."""

    def is_kept(done: list[str]) -> bool:
        return len(done) >= 40 and "delayOffset" in done[-1] and ".bak" in done[-1]

    renew(original, store)
    with pytest.raises(Stopped), stopping_before(store, is_kept):
        do(store, NOW_MS)


def test_an_unfinished_change_shows_in_the_plan(original: Path, store: Path) -> None:
    stop_late(original, store)
    before = tree(store)
    report = plan(store, NOW_MS)
    assert (report.state, report.conversion.total("converted")) == ("unfinished", 10)
    assert tree(store) == before
    assert roll_back(StoreRoot(store)).state == "planned"
    assert tree(store) == before


def test_another_command_is_refused(original: Path, store: Path) -> None:
    stop_late(original, store)
    before = tree(store)
    with pytest.raises(PlanError, match="differs in: only_levels"):
        do(store, NOW_MS, only_levels=[3])
    assert tree(store) == before
    assert do(store, NOW_MS).state == "continued and done"


def move_the_offsets(store: Path) -> None:
    (store / "config/delayOffset.json").write_bytes(b'{\n\t"offsetTable":{3:2\n\t}\n}')


def place_messages(store: Path) -> None:
    (store / "config/timercheck").write_bytes(T0.to_bytes(8, "big").ljust(4096, b"\0"))


def append_a_record(store: Path) -> None:
    """What a broker leaves: here, a copy of a whole store's log with one record more."""
    log = sorted((store / "commitlog").iterdir())
    data = log[0].read_bytes()
    size = int.from_bytes(data[:4], "big")
    last = log[-1]
    content = bytearray(last.read_bytes())
    end = len(content.rstrip(b"\0"))
    record = bytearray(data[:size])
    start = int(last.name) + end
    record[28:36] = start.to_bytes(8, "big")
    content[end : end + size] = record
    last.write_bytes(content)


@pytest.mark.parametrize("write", [move_the_offsets, place_messages, append_a_record])
@pytest.mark.parametrize("is_done", [True, False])
def test_after_a_broker_has_written_nothing_is_finished_or_undone(
    original: Path, store: Path, write: object, is_done: bool
) -> None:
    if is_done:
        do(renew(original, store), NOW_MS)
    else:
        stop_late(original, store)
    write(store)  # type: ignore[operator]
    before = tree(store)
    for execute in (False, True):
        with pytest.raises(PlanError, match="a broker has written to it since"):
            roll_back(StoreRoot(store), execute=execute)
    if not is_done:
        with pytest.raises(PlanError, match="a broker has written to it since"):
            do(store, NOW_MS)
    assert tree(store) == before


def test_what_a_broker_appended_after_an_early_stop_is_not_taken_for_ours(
    original: Path, store: Path
) -> None:
    """Nothing of ours was in the log yet: its end lies where it would lie in the middle of ours."""
    renew(original, store)
    with (
        pytest.raises(Stopped),
        stopping_before(store, lambda _: any(store.glob("delaywheel/backup-*/change.json"))),
    ):
        do(store, NOW_MS)
    append_a_record(store)
    before = tree(store)
    with pytest.raises(PlanError, match="did not append"):
        do(store, NOW_MS)
    for execute in (False, True):
        with pytest.raises(PlanError, match="did not append"):
            roll_back(StoreRoot(store), execute=execute)
    assert tree(store) == before


def test_a_crash_of_the_broker_after_a_change_is_not_taken_for_ours(
    original: Path, store: Path
) -> None:
    do(renew(original, store), NOW_MS)
    append_a_record(store)
    (store / "abort").touch()
    with pytest.raises(UncleanStoreError):
        do(store, NOW_MS + 1)
    assert (store / "abort").exists()


def test_everything_is_on_the_disk_before_the_offsets_move(
    original: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(original, store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    synced: set[int] = set()
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def note(descriptor: int, real: object = real) -> None:
            synced.add(os.fstat(descriptor).st_ino)
            real(descriptor)  # type: ignore[operator]

        monkeypatch.setattr(os, name, note)
    real_replace, looked = os.replace, []

    def look(one: Path, other: Path) -> None:
        if Path(other).parent == store / "config":
            written = [
                path
                for path in store.rglob("*")
                if path.is_file() and before.get(path) != path.stat().st_mtime_ns
            ]
            # What a flush notes of the queues is for `check`; nobody relies on it being there.
            not_waited_for = {"lock", "abort", "queue-ends.json"}
            ours = [path for path in written if path.name not in not_waited_for]
            assert [path for path in ours if path.stat().st_ino not in synced] == []
            looked.append(len(timer_records(store)))
        real_replace(one, other)

    monkeypatch.setattr(os, "replace", look)
    do(store, NOW_MS)
    assert looked == [10, 10]


def test_the_record_of_a_new_file_that_went_with_the_power_is_written_again(
    original: Path, store: Path
) -> None:
    """The blank that ends the file before it is on the disk: nothing of another's lies behind."""
    do(renew(original, store), NOW_MS)
    newest, wanted = max((store / "commitlog").iterdir()).name, timer_records(store)
    renew(original, store)
    queue = store / "consumequeue" / "rmq_sys_wheel_timer" / "0"
    with pytest.raises(Stopped), stopping_before(store, lambda _: queue.exists()):
        do(store, NOW_MS)  # all records are in the log
    last = store / "commitlog" / newest
    last.write_bytes(bytes(last.stat().st_size))
    assert do(store, NOW_MS).state == "done"
    assert timer_records(store) == wanted


def test_consumer_offsets_behind_the_end_of_their_queue_are_left_alone(tmp_path: Path) -> None:
    """An engine lowers them; a change and its rollback leave every file as it was."""
    store = tmp_path / "store"
    build_level_store(store, ITEMS, consumer_offsets={"Plain@billing": {0: 7}})
    before = tree(store)
    do(store, NOW_MS)
    roll_back(StoreRoot(store), execute=True)
    assert tree(store) == before
