# SPDX-License-Identifier: Apache-2.0
"""Numbers in the files of a wheel that no wheel has, files that are missing, and the files of a
wheel of another precision: reading and opening end with the project's own errors, or work.
"""

import contextlib
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, AtMs, ManualClock, Message
from message_store.base.errors import DelayStoreError
from message_store.files.store_root import StoreRoot
from message_store.writing.settings import StoreSettings
from tests.faults.damage import copy_store
from timer_wheel import WheelStore, read_wheel_store

START_MS = 1_793_000_000_000
PRECISIONS_MS = (100, 200, 500, 1000)
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 16, queue_file_bytes=1000, timer_log_file_bytes=20 * 52 + 30
)
NUMBERS = [0, 1, -1, 52, 2**31 - 1, -(2**31), START_MS, 1000 * START_MS, 2**62, 2**63 - 1, -(2**63)]
UNIT_FIELDS = [(0, 4), (4, 8), (12, 4), (16, 8), (24, 4), (28, 8), (36, 4), (40, 4), (44, 8)]
CHECK_PLACES = [*range(0, 56, 8), *range(64, 120, 8)]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """For each precision a store with some of everything, left by a kill."""
    return {ms: built(tmp_path_factory.mktemp("wheel"), ms) for ms in PRECISIONS_MS}


def built(path: Path, precision_ms: int) -> Path:
    clock = ManualClock(START_MS)
    store = WheelStore.open(
        path, clock=clock, settings=SMALL, precision_ms=precision_ms, roll_window_slots=60
    )
    receipts = [
        store.schedule(Message("orders", b"%d" % number), AfterMs(precision_ms * number * 3))
        for number in range(60)
    ]
    clock.tick(precision_ms * 40)
    store.advance(clock.now_ms())
    for receipt in receipts[-4:]:
        store.cancel(receipt)
    store.flush()
    store.schedule(Message("orders", b"overdue"), AtMs(0))
    store.advance(clock.now_ms())
    store.abandon()
    return path


def put_number(path: Path, chance: random.Random) -> None:
    """Write a number into a field of some unit, or of the checkpoint."""
    if chance.randrange(2):
        path = chance.choice(sorted((path / "timerlog").iterdir()))
        place, width = chance.choice(UNIT_FIELDS)
        place += 52 * chance.randrange(20)
    else:
        path, place, width = path / "config" / "timercheck", chance.choice(CHECK_PLACES), 8
    number = chance.choice(NUMBERS)
    content = bytearray(path.read_bytes())
    content[place : place + width] = struct.pack(">q", number)[8 - width :]
    path.write_bytes(content)


def lose_the_log(path: Path, _chance: random.Random) -> None:
    shutil.rmtree(path / "timerlog")


def make_a_hole(path: Path, chance: random.Random) -> None:
    files = sorted((path / "timerlog").iterdir())
    chance.choice(files[:-1]).unlink()


def take_another_ones(name: str) -> Callable[[Path, random.Random], None]:
    def take(path: Path, chance: random.Random) -> None:
        other = path.with_name(f"{path.name}-other")
        built(other, chance.choice(PRECISIONS_MS))
        shutil.copy(other / name, path / name)

    return take


DAMAGES = {
    **{f"a number, {seed}": put_number for seed in range(16)},
    "the timer log lost": lose_the_log,
    "a hole in the timer log": make_a_hole,
    "another wheel": take_another_ones("timerwheel"),
    "another checkpoint": take_another_ones("config/timercheck"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_wheel_is_our_own_error_or_works(
    pristine: dict[int, Path], tmp_path: Path, name: str
) -> None:
    chance = random.Random(name)
    path = tmp_path / "store"
    copy_store(pristine[chance.choice(PRECISIONS_MS)], path)
    DAMAGES[name](path, chance)
    for after_crash in (False, True):
        with contextlib.suppress(DelayStoreError):
            read_wheel_store(StoreRoot(path), now_ms=START_MS + 60_000, after_crash=after_crash)
    asked: dict[str, Any] = {
        "precision_ms": chance.choice(PRECISIONS_MS),
        "on_precision_change": "rebuild",
    }
    nothing: dict[str, Any] = {}
    for options in (nothing, asked, nothing):
        clock = ManualClock(START_MS + chance.choice([0, 60_000, 10**9]))
        with (
            contextlib.suppress(DelayStoreError),
            WheelStore.open(path, clock=clock, settings=SMALL, **options) as store,
        ):
            store.check()
            list(store.pending())
            store.next_due_ms()
            store.cancel(store.schedule(Message("orders", b""), AfterMs(50_000)))
            len(store.advance(clock.now_ms() + 1_000))
