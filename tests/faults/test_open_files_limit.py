# SPDX-License-Identifier: Apache-2.0
"""A process that may open too few files gets an error that names the limit, at whatever step."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from message_store import AtMs, ManualClock, Message
from message_store.base.errors import DelayStoreError
from message_store.reading.topic_listing import list_topic
from tests.faults.engines import abandon, open_hierarchy, open_levels, open_wheel

START_MS = 1_767_323_045_000
OPEN: dict[str, Any] = {"levels": open_levels, "wheel": open_wheel, "hierarchy": open_hierarchy}
ENOUGH = 40


@contextmanager
def only(more_files: int) -> Iterator[None]:
    """Let this process open so many files more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]  # no gaps below the highest
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + more_files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def work(name: str, path: Path) -> None:
    clock = ManualClock(START_MS)
    store = OPEN[name](path, clock)
    try:
        for number in range(5):
            store.schedule(Message(f"topic{number}", b"body"), AtMs(START_MS + 1_000))
        store.flush()
        clock.tick(5_000)
        store.advance(clock.now_ms())
        store.topic("topic1").read(0, 0)
        store.check()
        store.close()
    finally:
        with suppress(DelayStoreError):
            abandon(store)
    assert len(list(list_topic(path, "topic1"))) == 1


@pytest.mark.check
@pytest.mark.parametrize("name", OPEN)
def test_too_few_open_files_are_an_error_that_names_the_limit(name: str, tmp_path: Path) -> None:
    work(name, tmp_path / "first")  # loads and compiles what is loaded late
    said = []
    for more_files in range(ENOUGH):
        try:
            with only(more_files):
                work(name, tmp_path / str(more_files))
        except DelayStoreError as error:
            said.append(str(error))
    assert 3 < len(said) < ENOUGH
    assert [each for each in said if "ulimit -n" not in each] == []
