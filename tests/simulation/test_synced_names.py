# SPDX-License-Identifier: Apache-2.0
"""What nobody waited for when a store or a plan says that it is on the disk, and what an interrupt
leaves of files and locks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from message_store.live_segments import LiveSegments
from message_store.live_store import LiveStore
from migrate.convert import convert
from tests.message_store.live_workload import SMALL, append, stored
from tests.migrate.stopped_conversions import made
from tests.simulation.simulated_disk import Name, Write, loose, recording

ROWS = ("commitlog", "consumequeue")


def test_a_flush_after_a_kill_waits_for_the_names_that_the_killed_process_made(
    tmp_path: Path,
) -> None:
    """Its files are synced, and were gone with the power all the same."""
    root = tmp_path / "store"
    with recording(root) as disk:
        store = LiveStore.open(root, settings=SMALL)
        for number in range(60):
            append(store, stored(bytes(900), queue_id=number % 3))
        store.abandon()
        store = LiveStore.open(root, settings=SMALL)
        store.flush()
        moment = len(disk.events)
        store.abandon()
    names = [disk.events[index] for index in loose(disk.events, moment).names]
    left = [each.path for each in names if isinstance(each, Name) and each.path.startswith(ROWS)]
    assert left == []


def test_an_interrupt_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file before it was taken back, it was a gap, and the store could not be opened."""
    row = LiveSegments(tmp_path, 4096)
    row.make_file(0)

    def interrupt(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            row.make_file(4096)
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020d}"]
    row.make_file(4096)
    assert row.starts == [0, 4096]
    row.close()


def test_a_plan_that_is_there_is_on_the_disk(tmp_path: Path) -> None:
    """Else a loss of power left an empty one, with which nobody could go on."""
    options = made(tmp_path)
    with recording(options.target) as disk:
        convert(options)
    moment, file = next(
        (index + 1, event.file)
        for index, event in enumerate(disk.events)
        if isinstance(event, Name) and event.path.endswith("/plan.json")
    )
    left = [disk.events[index] for index in loose(disk.events, moment).data]
    assert [each for each in left if isinstance(each, Write) and each.file == file] == []


def test_an_interrupt_while_a_store_is_locked_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock belongs to the open file, and nobody had it any more to close it."""
    LiveStore.open(tmp_path / "store", settings=SMALL).close()

    def interrupt(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupt)
        with pytest.raises(KeyboardInterrupt):
            LiveStore.open(tmp_path / "store", settings=SMALL)
    LiveStore.open(tmp_path / "store", settings=SMALL).close()
