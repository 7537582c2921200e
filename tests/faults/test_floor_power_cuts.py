# SPDX-License-Identifier: Apache-2.0
"""Log and queues after a kill at every write, and after a loss of power with any part of what
nobody had synced: what was acknowledged (or flushed) is there, and nothing is torn.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from message_store.dialect import Dialect
from message_store.live_store import LiveStore
from message_store.message import StoredMessage
from message_store.properties import LEVEL_TOPIC, encode_properties
from message_store.store_settings import StoreSettings
from tests.faults.disk_events import Event, Note, Write, recording
from tests.faults.power_cut import Cut, any_choice, every_choice, make_disk
from tests.message_store.live_workload import (
    NOW_MS,
    append,
    append_rows,
    log_records,
    neutralise,
    require_sound,
    stored,
)

SETTINGS = StoreSettings(commit_log_file_bytes=16_384, queue_file_bytes=20 * 205)
PAGE_BYTES = 4096


@attrs.frozen
class Run:
    """What a disk was told, and the messages that were appended, in order."""

    events: list[Event]
    messages: list[StoredMessage]

    def told(self, moment: int) -> dict[str, int]:
        """How many messages were appended, flushed and begun, and taken back, before a moment."""
        facts = {"appended": 0, "flushed": 0, "begun": 0, "taken_back": 0}
        for event in self.events[:moment]:
            if isinstance(event, Note):
                facts |= event.facts
        return facts


def some_message(chance: random.Random, number: int) -> StoredMessage:
    """Sizes and lengths of properties that let every part of a record meet a page's end."""
    body = b"%d " % number + bytes([chance.randrange(1, 256)]) * chance.choice([0, 30, 700, 3_000])
    extra = "v" * chance.choice([1, 50, 900])
    if chance.random() < 0.5:
        level = chance.randrange(1, 19)
        message = stored(body, topic=LEVEL_TOPIC, queue_id=level % 3, level=level)
    else:
        message = stored(body, queue_id=chance.randrange(2), tags=f"tag{number}")
    text = message.properties_text + encode_properties([("extra", extra)])
    store_ms = NOW_MS + chance.randrange(-(10**7), 10**7)
    return attrs.evolve(message, properties_text=text, store_timestamp_ms=store_ms)


def work(root: Path, dialect: Dialect, seed: int, steps: int) -> Run:
    """Open a store, append one by one and in rows, take back, flush, close and open again."""
    chance = random.Random(seed)
    messages: list[StoredMessage] = []
    with recording(root) as recorder:
        store = LiveStore.open(root, settings=SETTINGS, dialect=dialect)
        for _ in range(steps):
            count = chance.choice([1, 1, 1, 12, 40])
            fresh = [some_message(chance, len(messages) + row) for row in range(count)]
            recorder.note(begun=len(messages) + count)
            append(store, fresh[0]) if count == 1 else append_rows(store, fresh)
            messages += fresh
            recorder.note(appended=len(messages))
            if chance.random() < 0.2:
                queue = chance.choice(store.queues())
                neutralise(store, queue.topic, queue.queue_id, queue.max_offset - 1)
            if chance.random() < 0.3:
                store.flush()
                recorder.note(flushed=len(messages))
            if chance.random() < 0.1:
                store.close()
                recorder.note(flushed=len(messages))
                store = LiveStore.open(root, settings=SETTINGS, dialect=dialect)
        store.abandon()
    shutil.rmtree(root)
    return Run(recorder.events, messages)


def found_in(root: Path, dialect: Dialect) -> list[StoredMessage]:
    """What is there after opening, going on, closing and opening again."""
    store = LiveStore.open(root, settings=SETTINGS, dialect=dialect)
    require_sound(store)
    found = [message for message, _ in log_records(store)]
    append_rows(store, [stored(b"after " * 40, queue_id=number % 2) for number in range(9)])
    store.abandon()
    again = LiveStore.open(root, settings=SETTINGS, dialect=dialect)
    assert (again.recovery.dispatched, again.recovery.repaired, again.recovery.cut) == (0, 0, 0)
    assert len(require_sound(again)) == len(found) + 9
    again.close()
    return found


def require_prefix(found: list[StoredMessage], run: Run, at_least: int) -> None:
    """These are the first messages of the run, every byte of them, and so many at least."""
    assert len(found) >= at_least
    for message, wanted in zip(found, run.messages, strict=False):
        places = {name: getattr(message, name) for name in ("queue_offset", "commit_log_offset")}
        assert message == attrs.evolve(wanted, **places)
    assert len(found) <= len(run.messages)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Put a disk there, open what it holds; syncing is left out, the disk is thrown away."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)

    def check(run: Run, cut: Cut, dialect: Dialect) -> list[StoredMessage]:
        root = tmp_path / "disk"
        make_disk(run.events, cut, root)
        try:
            return found_in(root, dialect)
        finally:
            shutil.rmtree(root)

    return check


def page_cuts(run: Run, moment: int) -> Iterator[Cut]:
    """A kill before the event at a moment; and one in the midst of it, between two pages."""
    yield Cut(moment, frozenset())
    event = run.events[moment] if moment < len(run.events) else None
    if isinstance(event, Write):
        first = PAGE_BYTES - event.offset % PAGE_BYTES
        for size_bytes in range(first, len(event.data), PAGE_BYTES):
            yield Cut(moment + 1, frozenset(), moment, size_bytes)


@pytest.mark.parametrize("dialect", [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_kill_at_any_write_loses_nothing_and_tears_nothing(
    tmp_path: Path, checked: Callable[..., list[StoredMessage]], dialect: Dialect, seed: int
) -> None:
    run = work(tmp_path / "work", dialect, seed, 8)
    for moment in range(len(run.events) + 1):
        told = run.told(moment)
        for cut in page_cuts(run, moment):
            found = checked(run, cut, dialect)
            require_prefix(found, run, told["appended"])
            assert len(found) in (told["appended"], told["begun"])


@pytest.mark.parametrize("dialect", [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5])
@pytest.mark.parametrize("seed", [3, *(pytest.param(s, marks=pytest.mark.nightly) for s in (4, 5))])
def test_a_loss_of_power_takes_back_nothing_that_was_flushed_and_tears_nothing(
    tmp_path: Path, checked: Callable[..., list[StoredMessage]], dialect: Dialect, seed: int
) -> None:
    run = work(tmp_path / "work", dialect, seed, 20)
    chance = random.Random(seed)
    for moment in sorted(chance.sample(range(len(run.events) + 1), 12)):
        told = run.told(moment)
        cuts = [*every_choice(run.events, moment, 3)]
        cuts += [any_choice(run.events, moment, chance) for _ in range(8)]
        for cut in cuts:
            require_prefix(checked(run, cut, dialect), run, told["flushed"])
