# SPDX-License-Identifier: Apache-2.0
"""What a store's surroundings do to it while it is open: its directory is moved, its process forks,
a record tells an absurd time. Nothing is lost without a word, and nobody writes beside another.
"""

from __future__ import annotations

import errno
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message, MessageBatch, Severity
from message_store.base.errors import BadFieldError, StoreClosedError, StoreLockedError, TargetError
from tests.faults.engines import (
    ENGINES,
    SMALL,
    abandon,
    open_hierarchy,
    open_levels,
    open_time_index,
    open_wheel,
)

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
_PATIENCE_S = 300
OPENED = {
    "levels": open_levels,
    "wheel": open_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}


def message(number: int) -> Message:
    return Message("orders", f"body {number}".encode(), unique_key=f"KEY{number:08X}")


def open_one(engine: str, folder: Path) -> DelayStore:
    return ENGINES[engine].open(folder, ManualClock(START_MS), False)


def fill_until_refused(store: DelayStore) -> set[str]:
    """The unique keys of what was taken until the disk refused."""
    taken = set()
    for number in range(2_000):
        try:
            taken.add(store.schedule(message(number), AfterMs(60_000)).unique_key)
        except TargetError:
            break
    return taken


@pytest.mark.parametrize("is_replaced", [False, True], ids=["moved", "moved and replaced"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_directory_that_is_moved_away_gets_no_second_half(
    tmp_path: Path, engine: str, is_replaced: bool
) -> None:
    folder, moved = tmp_path / "store", tmp_path / "moved"
    store = open_one(engine, folder)
    first = {store.schedule(message(5_000 + n), AfterMs(60_000)).unique_key for n in range(5)}
    folder.rename(moved)
    if is_replaced:
        folder.mkdir()
    taken = fill_until_refused(store)
    assert len(taken) < 2_000
    abandon(store)
    assert not (folder / "commitlog").exists()
    with open_one(engine, moved) as again:
        waiting = {each.unique_key for each in again.pending()}
    assert waiting >= first | taken
    assert len(waiting - first - taken) <= 1  # the refused one, of which the log has the record


def fails(call: Callable[[], object], error: type[Exception]) -> bool:
    try:
        call()
    except error:
        return True
    return False


def in_a_child(work: Callable[[], bool]) -> bool:
    """What a forked child says; False where it comes to no end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are idle here
        child = os.fork()
    if child == 0:
        answer = False
        try:
            signal.alarm(_PATIENCE_S)
            answer = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if answer else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_child_has_no_part_in_its_parent_s_store(tmp_path: Path, engine: str) -> None:
    store = open_one(engine, tmp_path / "store")
    for number in range(10):
        store.schedule(message(number), AfterMs(1_000))

    def use_it() -> bool:
        calls = [
            lambda: store.schedule(message(99), AfterMs(1_000)),
            lambda: store.advance(START_MS + 60_000),
            lambda: list(store.pending()),
            store.flush,
        ]
        is_refused = all(fails(call, StoreClosedError) for call in calls)
        store.close()
        abandon(store)
        return is_refused and fails(lambda: open_one(engine, tmp_path / "store"), StoreLockedError)

    assert in_a_child(use_it)
    store.schedule(message(10), AfterMs(1_000))
    store.close()
    with open_one(engine, tmp_path / "store") as again:
        assert len(again.advance(START_MS + 60_000)) == 11
        assert again.check() == []


def test_a_child_may_open_what_no_one_has_open(tmp_path: Path) -> None:
    open_one("levels", tmp_path / "store").close()

    def use_it() -> bool:
        with open_one("levels", tmp_path / "store") as store:
            store.schedule(message(1), AfterMs(1_000))
        return True

    assert in_a_child(use_it)
    with open_one("levels", tmp_path / "store") as store:
        assert len(list(store.pending())) == 1


def test_a_record_of_the_last_millisecond_of_all_keeps_nobody_out(tmp_path: Path) -> None:
    """The due time that its entry should have is none that 64 bits hold."""
    folder = tmp_path / "store"
    store = open_levels(folder, ManualClock(START_MS))
    receipt = store.schedule(message(1), AfterMs(1_000))
    store.schedule(message(2), AfterMs(1_000))
    abandon(store)
    with (folder / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(receipt.commit_log_offset + STORE_TIME_AT)
        file.write((2**63 - 1).to_bytes(8, "big"))
    for _ in range(2):
        with open_levels(folder, ManualClock(START_MS + 10_000)) as again:
            assert "KEY00000002" in {each.unique_key for each in again.pending()}


STORE_TIME_AT = 56
"""Of a record whose hosts have addresses of four bytes; see formats.md 1."""


def test_timer_log_files_too_small_for_a_unit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFieldError, match=r"timer_log_file_bytes.*from 68"):
        attrs.evolve(SMALL, timer_log_file_bytes=52 + 16 - 1)
    settings = attrs.evolve(SMALL, timer_log_file_bytes=52 + 16)
    open_wheel(tmp_path / "store", ManualClock(START_MS), settings).close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kept", ["commitlog", "consumequeue", "timerlog"])
def test_an_old_file_that_cannot_be_removed_keeps_no_message_from_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, kept: str
) -> None:
    """Somebody holds it, or has made it immutable. It is said, and goes once it can."""
    real, held = os.unlink, [True]

    def unlink(path: Any, **named: Any) -> None:
        if held[0] and f"/store/{kept}/" in str(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, **named)

    monkeypatch.setattr(os, "unlink", unlink)
    clock = ManualClock(START_MS)
    settings = attrs.evolve(SMALL, retention_ms=HOUR_MS)
    store = OPENED[engine](tmp_path / "store", clock, settings)
    came = 0
    for number in range(90):
        store.schedule(Message("orders", b"x" * 2_000, unique_key=f"KEY{number}"), AfterMs(1_000))
        clock.tick(200_000)
        came += len(store.advance(clock.now_ms()))
    found = [each for each in store.check() if each.where == "retention"]
    is_met = (tmp_path / "store" / kept).exists()
    assert len(found) == is_met
    assert all("Device or resource busy" in each.problem for each in found)
    assert [each.problem for each in store.check() if each.severity is Severity.ERROR] == []
    log = store.live.log  # type: ignore[attr-defined]
    assert (log.min_offset == 0) == (kept == "commitlog")
    held[0] = False
    clock.tick(60_000)
    came += len(store.advance(clock.now_ms()))
    assert came == 90
    assert [each for each in store.check() if each.where == "retention"] == []
    for directory in (tmp_path / "store" / kept).rglob("0*"):
        if directory.is_dir() and "orders" in str(directory):
            [_] = directory.iterdir()
    assert log.min_offset > 0
    store.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_batch", [False, True], ids=["one", "batch"])
def test_what_is_taken_fits_a_log_file_also_when_it_is_delivered(
    tmp_path: Path, engine: str, is_batch: bool
) -> None:
    """A topic's name and what delivery notes make a record longer than it was while it waited."""
    clock, taken = ManualClock(START_MS), 0
    refused: list[BadFieldError] = []
    topic = "%RETRY%" + "t" * 120
    store = OPENED[engine](tmp_path / "store", clock, SMALL)
    for body_bytes in range(SMALL.commit_log_file_bytes - 1_200, SMALL.commit_log_file_bytes, 40):
        message = Message(topic, b"x" * body_bytes)
        try:
            if is_batch:
                due_ms = np.full(2, clock.now_ms() + 1_000)
                store.schedule_batch(MessageBatch.of([Message("orders", b""), message]), due_ms)
            else:
                store.schedule(message, AfterMs(1_000))
            taken += 1
        except BadFieldError as error:
            refused.append(error)
    assert taken > 5
    assert len(refused) > 5
    assert all("larger than a log file" in str(error) for error in refused)
    assert {error.row for error in refused} == {1 if is_batch else None}
    clock.tick(5_000)
    assert len(store.advance(clock.now_ms())) == taken * (1 + is_batch)
    assert [each for each in store.check() if each.severity is not Severity.INFO] == []
    store.close()
