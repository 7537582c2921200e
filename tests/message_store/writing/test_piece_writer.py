# SPDX-License-Identifier: Apache-2.0
"""A large append and its thread: where there may be none, and when somebody stops it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store.base.parallel import parallel_map
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import SMALL, append, append_rows, require_sound, stored

MANY = [stored(bytes([number]) * 5_000) for number in range(30)]

LATE = """
import concurrent.futures.thread, sys, threading, time
from pathlib import Path
from message_store.writing.store import LiveStore
from message_store.base.parallel import parallel_map
from tests.message_store.live_workload import SMALL, append_rows, require_sound, stored

def late():
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.01)
    with_rows = LiveStore.open(Path(sys.argv[1]), settings=SMALL)
    append_rows(with_rows, [stored(bytes([number]) * 5_000) for number in range(30)])
    print(len(require_sound(with_rows)), parallel_map(len, ["a", "bcd"]), flush=True)
    with_rows.close()

threading.Thread(target=late).start()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    opened = LiveStore.open(tmp_path / "store", settings=SMALL)
    yield opened
    opened.abandon()


@pytest.mark.check
def test_a_program_whose_main_thread_has_ended_goes_on_appending(tmp_path: Path) -> None:
    """What a runner in a thread of its own does: no pool of threads takes anything then."""
    run = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    assert run.stdout == "30 [1, 3]\n", run.stderr


def test_a_process_that_may_have_no_more_threads_writes_by_itself(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    append_rows(store, MANY)
    assert require_sound(store) == [message.body for message in MANY]
    assert parallel_map(len, ["a", "bcd"]) == [1, 3]
    with pytest.raises(RuntimeError, match="of the work"):
        parallel_map(_refuse, ["a", "bcd"])


def _refuse(_: str) -> int:
    raise RuntimeError("of the work")


@pytest.mark.check
def test_an_interrupt_takes_nothing_away_before_the_last_write_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would come to light behind the next record."""
    one_file = attrs.evolve(SMALL, commit_log_file_bytes=16 << 20)
    store = LiveStore.open(tmp_path / "store", settings=one_file)
    append(store, stored(b"kept"))
    end, real_write, real_join = store.log.end, os.pwrite, threading.Thread.join
    interrupts, others = iter([KeyboardInterrupt]), {*threading.enumerate()}

    def slow_write(descriptor: int, data: Any, place: int) -> int:
        if threading.current_thread() not in others:
            time.sleep(0.1)
        return real_write(descriptor, data, place)

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        for interrupt in interrupts:
            raise interrupt
        real_join(thread, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", slow_write)
        patch.setattr(threading.Thread, "join", join)
        with pytest.raises(KeyboardInterrupt):
            append_rows(store, [stored(bytes(200_000)) for _ in range(30)])
        for thread in {*threading.enumerate()} - others:
            real_join(thread)
    assert store.log.end == end
    assert not store.log.segments.has_data_from(end)
    append(store, stored(b"after"))
    assert require_sound(store) == [b"kept", b"after"]
    store.abandon()
