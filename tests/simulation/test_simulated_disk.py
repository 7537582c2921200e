# SPDX-License-Identifier: Apache-2.0
"""The disk of the power cut tests: what was waited for is there, and the rest in every choice."""

from __future__ import annotations

import os
from pathlib import Path

from message_store.files.small_files import replace_file
from tests.helpers.descriptors import open_below
from tests.simulation.simulated_disk import (
    Cut,
    SimulatedDisk,
    Write,
    every_choice,
    loose,
    make_disk,
    recording,
)


def test_what_was_synced_is_never_missing_and_the_rest_in_every_choice(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with recording(root) as recorder:
        root.mkdir()
        descriptor = os.open(root / "log", os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, 100)
        os.pwrite(descriptor, b"first", 0)
        os.fsync(descriptor)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.pwrite(descriptor, b"second", 10)
        os.pwrite(descriptor, b"third", 20)
        os.close(descriptor)
        os.close(directory)
    events = recorder.events
    contents = set()
    for number, cut in enumerate(every_choice(events, len(events), 10)):
        copy = tmp_path / str(number)
        make_disk(events, cut, copy)
        content = (copy / "log").read_bytes()
        assert len(content) == 100
        contents.add(content.replace(b"\0", b""))
    assert contents == {b"first", b"firstsecond", b"firstthird", b"firstsecondthird"}


def test_a_disk_that_nobody_watches_gives_its_handles_back(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}").write_bytes(b"x")
    disk = SimulatedDisk(tmp_path)
    disk.take_over()
    assert len(open_below(tmp_path)) >= 8
    del disk
    assert open_below(tmp_path) == []


def test_nothing_missing_is_the_directory_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with recording(root) as recorder:
        root.mkdir()
        (root / "config").mkdir()
        for text in (b"old", b"new"):
            replace_file(root / "config/a.json", text)
        descriptor = os.open(root / "gone", os.O_RDWR | os.O_CREAT)
        os.close(descriptor)
        os.unlink(root / "gone")
    events = recorder.events
    make_disk(events, Cut(len(events), frozenset()), tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").rglob("*")] == ["config", "a.json"]
    assert (tmp_path / "copy/config/a.json").read_bytes() == b"new"
    assert loose(events, len(events)).data == ()


def test_a_write_may_be_there_in_part(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with recording(root) as recorder:
        root.mkdir()
        descriptor = os.open(root / "log", os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, b"x" * 2_000, 0)
        os.close(descriptor)
    events = recorder.events
    [torn] = [index for index, event in enumerate(events) if isinstance(event, Write)]
    make_disk(events, Cut(len(events), frozenset(), torn, 512), tmp_path / "copy")
    assert (tmp_path / "copy/log").read_bytes() == b"x" * 512
