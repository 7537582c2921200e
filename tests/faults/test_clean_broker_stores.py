# SPDX-License-Identifier: Apache-2.0
"""A broker's store that was stopped cleanly, and lost a file since: no note of ours says so."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from legacy_levels import LevelStore
from message_store import ManualClock
from message_store.base.errors import SourceError
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from migrate.look.pending import PendingFilter, pending_messages
from migrate.settings import TargetSettings
from tests.independent.real_stores import (
    LEVELS_49_CLEAN,
    LEVELS_55_CLEAN,
    WHEEL_55_CLEAN,
    RealStore,
    unpack,
)
from tests.migrate.conversions import options_for
from timer_wheel import WheelStore

DAY_MS = 86_400_000


def last_log_file(store: RealStore) -> Path:
    return max((store.root / "commitlog").iterdir())


def removed(path: Path) -> None:
    path.unlink()


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("lose", [removed, zeroed])
@pytest.mark.parametrize(
    ("name", "engine"), [(LEVELS_49_CLEAN, LevelStore), (WHEEL_55_CLEAN, WheelStore)]
)
def test_a_log_that_lost_its_end_is_not_opened_in_silence(
    name: str, engine: type[LevelStore | WheelStore], lose: Callable[[Path], None], tmp_path: Path
) -> None:
    """Its queues lead behind the end; a broker cuts them, and says nothing."""
    store = unpack(name, tmp_path / "store")
    path = last_log_file(store)
    lose(path)
    before = {each: each.read_bytes() for each in store.root.rglob("*") if each.is_file()}
    with pytest.raises(SourceError, match="its last bytes are lost") as told:
        engine.open(store.root, clock=ManualClock(store.stopped_ms))
    after = {each: each.read_bytes() for each in store.root.rglob("*") if each.is_file()}
    after.pop(store.root / "lock", None)
    before.pop(store.root / "lock", None)
    assert after == before
    [abort] = re.findall(r"`touch (\S+)`", str(told.value))
    Path(abort).touch()
    engine.open(store.root, clock=ManualClock(store.stopped_ms)).close()


@pytest.mark.parametrize("name", [LEVELS_49_CLEAN, LEVELS_55_CLEAN])
@pytest.mark.parametrize("lost", [(".json",), (".json", ".json.bak")], ids=str)
@pytest.mark.parametrize("content", [None, b"", b'{"offsetTable":{1:'], ids=repr)
def test_a_store_without_its_newest_offsets_repeats_nothing(
    name: str, lost: tuple[str, ...], content: bytes | None, tmp_path: Path
) -> None:
    """The log knows what was delivered since the `.bak`."""
    store = unpack(name, tmp_path / "store")
    for ending in lost:
        path = store.root / "config" / f"delayOffset{ending}"
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
    now_ms = store.stopped_ms + 400 * DAY_MS
    if content and len(lost) == 2:  # a broker does not start: somebody has to choose
        with pytest.raises(SourceError, match="a broker would not start"):
            LevelStore.open(store.root, clock=ManualClock(now_ms))
        return
    with LevelStore.open(store.root, clock=ManualClock(now_ms)) as levels:
        came = Counter(each.message.unique_key for each in levels.advance(now_ms))
    assert came == Counter(line.unique_key for line in store.pending_in_levels())


def test_an_inspection_counts_what_a_log_of_a_clean_stop_lost(tmp_path: Path) -> None:
    store = unpack(LEVELS_49_CLEAN, tmp_path / "store")
    last_log_file(store).unlink()
    problems = inspect_store(store.root, now_ms=store.stopped_ms).problems
    assert any("beyond the end of the log" in each for each in problems)
    assert not [each for each in problems if re.search(r"(?<!\w)-\d", each) or "9223372" in each]


def test_messages_whose_log_file_is_gone_are_told_of(tmp_path: Path) -> None:
    """By who lists, and by who converts: both leave them out, as brokers do."""
    store = unpack(LEVELS_49_CLEAN, tmp_path / "store")
    min((store.root / "commitlog").iterdir()).unlink()
    told: list[str] = []
    wanted = PendingFilter()
    listed = list(pending_messages(store.root, wanted, now_ms=store.stopped_ms, warn=told.append))
    lost = len(store.pending) - len(listed)
    assert lost > 0
    assert [each for each in told if f"{lost} messages are no longer in the log" in each]
    asked = {"source": store.root, "now_ms": store.stopped_ms, "settings": TargetSettings()}
    report = convert(options_for(tmp_path, **asked))
    assert report.total("converted") == len(listed)
    assert any(f"{lost} messages are no longer in the log" in each for each in report.warnings)
