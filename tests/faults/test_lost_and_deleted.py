# SPDX-License-Identifier: Apache-2.0
"""What an engine says of messages that nobody can deliver, of deliveries whose log file retention
took; and a timer queue from an older backup.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message
from message_store.base.errors import TruncatedRecordError
from tests.faults.engines import ENGINES, SMALL, Engine, open_hierarchy, open_levels, open_wheel
from timer_wheel import HierarchicalWheelStore, WheelStore

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000
WHEELS = pytest.mark.parametrize(
    "engine", [ENGINES["wheel"], ENGINES["hierarchy"]], ids=["wheel", "hierarchy"]
)
OPEN = {"levels": open_levels, "wheel": open_wheel, "hierarchy": open_hierarchy}


def overwrite(store: WheelStore | HierarchicalWheelStore, old: bytes, new: bytes) -> None:
    """Damage a record in the log's first file."""
    with store.live.log.segments.path_of(0).open("r+b") as file:
        file.seek(file.read().index(old))
        file.write(new)


@WHEELS
@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_message_that_cannot_be_delivered_is_named_after_every_reopening(
    tmp_path: Path, engine: Engine, end: str
) -> None:
    clock = ManualClock(START_MS)
    store = engine.open(tmp_path, clock, False)
    assert isinstance(store, WheelStore | HierarchicalWheelStore)
    store.schedule(Message("orders", b"x"), AfterMs(1_000))
    overwrite(store, b"REAL_TOPIC", b"LOST_TOPIC")
    clock.tick(5_000)
    assert len(store.advance(clock.now_ms())) == 0
    told = [found.where for found in store.check() if "cannot be delivered" in found.problem]
    assert len(told) == 1
    for _ in range(2):
        getattr(store, end)()
        store = engine.open(tmp_path, clock, False)
        assert [f.where for f in store.check() if "cannot be delivered" in f.problem] == told
    store.close()


@pytest.mark.parametrize("open_store", OPEN.values(), ids=OPEN)
def test_deliveries_say_that_retention_took_their_log_file(
    tmp_path: Path, open_store: Callable[..., WheelStore]
) -> None:
    clock = ManualClock(START_MS)
    settings = attrs.evolve(SMALL, commit_log_file_bytes=4_096, retention_ms=DAY_MS)
    with open_store(tmp_path, clock, settings) as store:
        store.schedule(Message("orders", b"x" * 900), AfterMs(1_000))
        clock.tick(2_000)
        kept = store.advance(clock.now_ms())
        batch = kept.to_batch()
        for _ in range(8):
            store.schedule(Message("orders", b"x" * 900), AfterMs(1_000))
            clock.tick(DAY_MS)
            store.advance(clock.now_ms())
            store.flush()
        looks: list[Callable[[], object]] = [
            lambda: kept[0], lambda: list(kept), kept.to_batch,
        ]  # fmt: skip
        for look in looks:
            with pytest.raises(TruncatedRecordError, match="retention has deleted"):
                look()
        assert len(batch) == 1


@WHEELS
@pytest.mark.parametrize("end", ["close", "abandon"])
@pytest.mark.parametrize("later", [0, 150], ids=["one log file", "several"])
def test_a_timer_queue_of_an_older_backup_is_completed_from_the_log(
    tmp_path: Path, engine: Engine, end: str, later: int
) -> None:
    """The marker of what was cancelled since is not in it, but in the log."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    queue = path / "consumequeue/rmq_sys_wheel_timer"
    with engine.open(path, clock, False) as store:
        receipt = store.schedule(Message("orders", b"x"), AfterMs(60_000))
    shutil.copytree(queue, tmp_path / "older")
    store = engine.open(path, clock, False)
    assert store.cancel(receipt) is Cancellation.CANCELLED
    for _ in range(later):
        store.schedule(Message("orders", b"y" * 900), AfterMs(60_000))
    store.flush()
    getattr(store, end)()
    shutil.rmtree(queue)
    shutil.copytree(tmp_path / "older", queue)
    with engine.open(path, clock, False) as store:
        assert len(list(store.pending())) == later
        assert store.cancel(receipt) is Cancellation.CANCELLED
        assert len(store.advance(START_MS + DAY_MS)) == later
