# SPDX-License-Identifier: Apache-2.0
"""A sync fails once: the disk has lost what was written, says so once, and then syncs well. From
then on a store deletes nothing and writes down nothing as durable, until it is opened again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message
from message_store.base.errors import StoreClosedError, TargetError
from tests.faults.engines import (
    SMALL,
    abandon,
    open_hierarchy,
    open_levels,
    open_time_index,
    open_wheel,
)

START_MS = 1_793_000_000_000
SETTINGS = attrs.evolve(SMALL, commit_log_file_bytes=1 << 14, retention_ms=60_000)
OPENERS = {
    "levels": open_levels,
    "wheel": open_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}
PROMISES = ("checkpoint", "config/timercheck", "delaywheel/levels-flushed.json", "timercheckpoint")


class OneFailure:
    """Lets one sync of a file fail, counted from when it is armed, and all others succeed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for name in ("fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._instead_of(getattr(os, name)))

    def _instead_of(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def counted(descriptor: int) -> None:
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.EIO, "Input/output error")
            sync(descriptor)

        return counted


def filled(engine: str, path: Path, clock: ManualClock) -> DelayStore:
    """A store with old files that retention would take, and with messages that are not synced."""
    store = OPENERS[engine](path, clock, SETTINGS)
    for _ in range(60):
        store.schedule(Message("orders", bytes(300)), AfterMs(1_000))
    clock.tick(5_000)
    store.advance(clock.now_ms())
    store.close()
    store = OPENERS[engine](path, clock, SETTINGS)
    for _ in range(60):
        store.schedule(Message("orders", bytes(300)), AfterMs(1_000))
    return store


def promises(path: Path) -> dict[str, bytes]:
    """What the store says is durable, and which log files it keeps."""
    said = {name: (path / name).read_bytes() for name in PROMISES if (path / name).exists()}
    return said | {file.name: b"" for file in (path / "commitlog").iterdir()}


@pytest.mark.parametrize("engine", OPENERS)
@pytest.mark.parametrize("number", range(6))
def test_nothing_is_deleted_or_promised_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, number: int
) -> None:
    clock = ManualClock(START_MS)
    store = filled(engine, tmp_path / "store", clock)
    failure = OneFailure(monkeypatch)
    failure.left = number
    try:
        store.flush()
    except TargetError:
        pass
    else:
        store.close()
        return  # so many syncs a flush has not
    failure.left = -1
    before = promises(tmp_path / "store")
    clock.tick(120_000)
    for call in (
        lambda: store.advance(clock.now_ms()),
        lambda: store.schedule(Message("orders", b"x"), AfterMs(1_000)),
        store.flush,
        lambda: store.advance(clock.now_ms()),
    ):
        with pytest.raises(TargetError):
            call()
    assert promises(tmp_path / "store") == before
    try:
        store.close()
    except TargetError:
        abandon(store)
    assert promises(tmp_path / "store") == before
    assert (tmp_path / "store" / "abort").exists()
    again = OPENERS[engine](tmp_path / "store", clock, SETTINGS)
    again.advance(clock.now_ms())
    again.close()


@pytest.mark.parametrize("engine", OPENERS)
def test_a_retention_beside_a_flush_that_fails_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Both have handles of one open file, of which the disk tells only one that it failed."""
    clock = ManualClock(START_MS)
    store = filled(engine, tmp_path / "store", clock)
    clock.tick(120_000)
    is_inside, goes_on = threading.Event(), threading.Event()
    sync = os.fdatasync

    def failing(descriptor: int) -> None:
        if threading.current_thread().name == "flusher" and not is_inside.is_set():
            is_inside.set()
            goes_on.wait(20)
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", failing)
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except (TargetError, StoreClosedError) as error:
            errors.append(error)

    flusher = threading.Thread(target=run, args=(store.flush,), name="flusher")
    advancer = threading.Thread(target=run, args=(lambda: store.advance(clock.now_ms()),))
    flusher.start()
    assert is_inside.wait(20)
    before = promises(tmp_path / "store")
    advancer.start()
    advancer.join(0.2)
    goes_on.set()
    for thread in (flusher, advancer):
        thread.join()
    assert errors
    # A hierarchy leaves retention for later while it writes, and delivers into new files.
    assert before.items() <= promises(tmp_path / "store").items()
    abandon(store)
