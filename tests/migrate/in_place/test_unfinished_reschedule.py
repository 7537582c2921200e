# SPDX-License-Identifier: Apache-2.0
"""A change in place appends: it buries no reschedule that a kill left unfinished."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legacy_levels import LevelStore
from message_store import AfterMs, AtLevel, Due, ManualClock, Message
from message_store.base.errors import SourceError
from message_store.interface.delay_store import DelayStore
from message_store.writing.settings import StoreSettings
from migrate.in_place.convert import convert_in_place
from migrate.settings import ConvertOptions
from tests.migrate.in_place_stores import tree
from timer_wheel import WheelStore

NOW_MS = 1_793_000_000_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 16, queue_file_bytes=40_000, timer_log_file_bytes=52_000
)


class KilledError(BaseException):
    """The end of a process, as far as one process can tell."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Due], Path]:
    """Levels that were killed between the new record and the end of the older entry."""

    def killed(_self: LevelStore, _entries: object) -> None:
        raise KilledError

    def made(due: Due) -> Path:
        path, clock = tmp_path / "store", ManualClock(NOW_MS)
        store = LevelStore.open(path, clock=clock, settings=SMALL)
        store.schedule(Message("orders", b"other", unique_key="O"), AtLevel(4))
        receipt = store.schedule(Message("orders", b"moved", unique_key="K"), AtLevel(5))
        store.flush()
        monkeypatch.setattr(LevelStore, "_neutralise_waiting", killed)
        with pytest.raises(KilledError):
            store.reschedule(receipt, due)
        monkeypatch.undo()
        store.abandon()
        return path

    return made


def bodies(store: DelayStore) -> list[bytes]:
    store.advance(NOW_MS + 3_600_000)
    store.advance(NOW_MS + 3_602_000)
    queue = store.topic("orders")
    return sorted(
        each.body
        for queue_id, (first, end) in queue.ranges().items()
        for each in queue.read(queue_id, first, end - first)
    )


@pytest.mark.parametrize(
    ("due", "only_levels", "is_refused"),
    [
        (AtLevel(7), (), True),
        (AtLevel(7), (5,), False),
        (AtLevel(7), (7,), True),
        (AtLevel(5), (), True),
        (AtLevel(5), (5,), True),
        (AfterMs(0), (), True),
        (AfterMs(0), (5,), False),
        (AfterMs(0), (1,), True),
    ],
    ids=str,
)
def test_it_is_finished_before_levels_are_converted(
    store: Callable[[Due], Path], due: Due, only_levels: Any, is_refused: bool
) -> None:
    path, clock = store(due), ManualClock(NOW_MS)
    options = ConvertOptions(
        source=path, target=path, now_ms=NOW_MS, after_crash=True, only_levels=only_levels
    )
    before = tree(path)
    if is_refused:
        with pytest.raises(SourceError, match="open it once with the engine that did that"):
            convert_in_place(options, execute=True)
    else:  # nothing of the older level waits, so nothing is appended
        assert convert_in_place(options, execute=True).conversion.total("converted") == 0
    assert tree(path) == before
    LevelStore.open(path, clock=clock, settings=SMALL).close()
    convert_in_place(ConvertOptions(source=path, target=path, now_ms=NOW_MS), execute=True)
    clock.tick(3_600_000)
    with LevelStore.open(path, clock=clock, settings=SMALL) as levels:
        assert bodies(levels) == []
    with WheelStore.open(path, clock=clock, settings=SMALL) as wheel:
        assert bodies(wheel) == [b"moved", b"other"]
