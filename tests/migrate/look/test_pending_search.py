# SPDX-License-Identifier: Apache-2.0
"""``pending`` with a filter decodes few records, and lists what decoding all of them would."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store.base.clock import ManualClock
from message_store.base.errors import SourceError
from message_store.format.message import Message
from message_store.format.message_codec import decode_message_at
from message_store.interface.delay_store import AfterMs, AtMs, Pending
from message_store.reading import record_reader as source_reader
from message_store.writing.settings import StoreSettings
from migrate.look import pending
from migrate.look.pending import PendingFilter, pending_messages
from migrate.report.report import BadRecord
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from timer_wheel.hierarchy.store import HierarchicalWheelStore
from timer_wheel.wheel.store import WheelStore

NOW_MS = T0 + 20_000
DAY_MS = 86_400_000
TOPICS = ("Orders", "Order", "%RETRY%group_a", "取消")
KEYS = ("k1", "k", "1", "取消", "a\u3000b", "\ufffd", "k1 k", "\udc80")
SEEDS = pytest.mark.parametrize(
    "run", [0, *(pytest.param(n, marks=pytest.mark.check) for n in (1, 2))]
)


def all_of(path: Path, wanted: PendingFilter) -> list[Pending | BadRecord]:
    return list(pending_messages(path, wanted, now_ms=NOW_MS))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one to three records, so that damage in one leaves others to the bulk search."""
    monkeypatch.setattr(source_reader, "BUFFER_BYTES", 700)
    monkeypatch.setattr(pending, "_FIRST_ROWS", 2)
    monkeypatch.setattr(pending, "_GROWTH", 2)


def filters(chance: random.Random, count: int) -> Iterator[PendingFilter]:
    def maybe(value: Any) -> Any:
        return value if chance.random() < 0.4 else None

    days = (0, DAY_MS + 1_000, 2 * DAY_MS)
    times = [T0 + day + chance.randrange(-2, 4) * 1_000 for day in days for _ in range(3)]
    times += [T0 + chance.randrange(0, 400) * 1_000 for _ in range(6)]
    for _ in range(count):
        yield PendingFilter(
            topic=maybe(chance.choice(TOPICS)),
            key=maybe(chance.choice((*KEYS, "U3", "U4"))),
            level=maybe(3) if chance.random() < 0.3 else None,
            due_after_ms=maybe(chance.choice(times)),
            due_before_ms=maybe(chance.choice(times)),
            limit=maybe(chance.randrange(0, 8)),
        )


def lists_what_decoding_all_would(
    path: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wanted in filters(chance, 20):
        fast = all_of(path, wanted)
        with monkeypatch.context() as patched:
            patched.setattr(pending, "_may_pass", lambda _log, rows, *_: np.arange(len(rows)))
            slow = all_of(path, wanted)
        assert fast == slow, wanted


def damage_log(path: Path, chance: random.Random, times: int) -> None:
    """Other bytes at some places of the log: in bodies, lengths, and properties."""
    log = sorted((path / "commitlog").iterdir())[0]
    data = bytearray(log.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    for _ in range(times):
        data[chance.randrange(end)] = chance.choice(b"\x00\x01\x02\xff9")
    log.write_bytes(data)


def odd_message(chance: random.Random, number: int) -> LevelMessage:
    pairs = [
        (chance.choice(["REAL_QID", "KEYS", "UNIQ_KEY", "REAL_TOPIC"]), chance.choice(values))
        for values in (("", "x", "+1", "12345678901", "k1", "٣"),)
        if chance.random() < 0.3
    ]
    return LevelMessage(
        level=chance.choice([3, 4, 7]),
        topic=chance.choice(TOPICS),
        keys=chance.choice([None, "k1", "k1 k", "取消 x", "a\u3000b", "k12"]),
        unique_key=chance.choice([None, f"U{number}", "k1"]),
        body=chance.randbytes(chance.randrange(0, 200)),
        store_timestamp_ms=T0 + number * 100,
        extra_pairs=pairs,
        without=chance.choice([(), (), (), ("REAL_QID",), ("REAL_TOPIC",)]),
        unit_fields=chance.choice([{}, {}, {}, {"size_bytes": 120}, {"commit_log_offset": 3}]),
    )


@SEEDS
@pytest.mark.usefixtures("small_pieces")
def test_of_levels(run: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(f"{seed} {run}")
    items = [odd_message(chance, number) for number in range(60)]
    build_level_store(tmp_path / "store", items)
    damage_log(tmp_path / "store", chance, times=run * 12)
    lists_what_decoding_all_would(tmp_path / "store", chance, monkeypatch)


@SEEDS
@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
@pytest.mark.usefixtures("small_pieces")
def test_of_wheels(
    engine: type[WheelStore | HierarchicalWheelStore],
    run: int,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(f"{seed} {run}")
    settings = StoreSettings(commit_log_file_bytes=1 << 18)
    with engine.open(tmp_path / "store", clock=ManualClock(T0), settings=settings) as store:
        for number in range(50):
            keys = chance.choice([(), ("k1",), ("k1", "k"), ("取消",)])
            message = Message(chance.choice(TOPICS), b"x" * 100, keys=keys, unique_key=f"U{number}")
            days = chance.choice([0, 0, 0, 2])  # two days are beyond the roll window
            due = AfterMs(days * DAY_MS + chance.randrange(0, 400_000))
            store.schedule(message, due if chance.random() < 0.5 else AtMs(T0 - 5_000))
    damage_log(tmp_path / "store", chance, times=run * 10)
    lists_what_decoding_all_would(tmp_path / "store", chance, monkeypatch)


def test_a_disk_that_refuses_the_search_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_level_store(tmp_path / "store", [LevelMessage(level=3, keys="k1")] * 1)

    def refuse(*_: object) -> None:
        raise SourceError("Input/output error")

    monkeypatch.setattr(pending, "read_chunks", refuse)
    assert len(all_of(tmp_path / "store", PendingFilter(key="k1"))) == 1


@pytest.mark.parametrize(
    ("wanted", "decoded"),
    [
        (PendingFilter(key="k7"), 1),
        (PendingFilter(key="U8"), 1),
        (PendingFilter(topic="Order"), 0),
        (PendingFilter(topic="Orders", limit=2), 4),
        (PendingFilter(due_before_ms=T0 + 10_500), 5),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_only_records_that_may_be_meant_are_decoded(
    wanted: PendingFilter, decoded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [
        LevelMessage(
            level=3,
            topic="Orders" if number % 2 else "Payments",
            keys=f"k{number}",
            unique_key=f"U{number}",
            store_timestamp_ms=T0 + number * 100,
        )
        for number in range(40)
    ]
    build_level_store(tmp_path / "store", items)
    calls = 0

    def counted(data: bytes) -> object:
        nonlocal calls
        calls += 1
        return decode_message_at(data)

    monkeypatch.setattr(pending, "decode_message_at", counted)
    found = all_of(tmp_path / "store", wanted)
    assert len(found) == min(decoded, wanted.limit or decoded)
    assert calls <= decoded
