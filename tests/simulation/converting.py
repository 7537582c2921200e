# SPDX-License-Identifier: Apache-2.0
"""What a random run of levels left behind is moved to a wheel, in a copy: into a new store, whose
source is retired, or in place. Then all that an opening of the levels shows comes from the wheel,
once and not too early, and nothing is left in the levels; after a rollback all is in them again.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from message_store import Severity
from message_store.base.clock import ManualClock
from message_store.base.errors import DelayStoreError, OtherEngineWarning
from message_store.files.store_root import StoreRoot
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.settings import ConvertOptions, TargetSettings
from migrate.verify.verify import verify
from tests.faults.damage import copy_store
from tests.faults.engines import OPEN

if TYPE_CHECKING:
    from tests.simulation.bench import Setup

IN_PLACE = "in place"
WAYS = (IN_PLACE, "wheel", "hierarchy")
"""In place, or into a new store of that engine."""
REFUSED = (
    "the times of a log must not go back",
    "a broker would skip slots",
    "converted from the log alone",
    "was rescheduled; open it once",
    "that their queues did not know",
    "has no units, where",
    "own wheel has a precision of",
    "A broker takes that for the log's end",
)
"""Parts of sentences with which a conversion or a retirement is refused: what the run did to the
clock or the disk.
"""
_SETTINGS = TargetSettings(
    commit_log_file_bytes=1 << 17, queue_file_bytes=400, timer_log_file_bytes=436
)
_MOST_SLOTS = 600


def _opened(open_store: Callable[..., Any], path: Path, clock: ManualClock) -> Any:
    with catch_warnings():
        simplefilter("ignore", OtherEngineWarning)
        return open_store(path, clock)


def _in_levels(owner: Setup, path: Path, now_ms: int) -> dict[str, list[int]]:
    """When those of each key are due that an opening shows; it is closed again."""
    due_ms = defaultdict(list)
    with _opened(owner.open, path, ManualClock(now_ms)) as store:
        for each in store.pending():
            due_ms[str(each.unique_key)].append(each.due_ms)
    return due_ms


def _counts(due_ms: dict[str, list[int]]) -> Counter[str]:
    return Counter({key: len(times) for key, times in due_ms.items()})


def _difference(what: str, found: Counter[str], wanted: Counter[str]) -> list[str]:
    if found == wanted:
        return []
    return [f"{what}: {dict(found - wanted)} too many, {dict(wanted - found)} missing"]


def _come(engine: str, path: Path, now_ms: int, due_ms: dict[str, list[int]]) -> list[str]:
    """What is wrong with what a wheel delivers, whose messages are due then."""
    clock, came, wrong = ManualClock(now_ms), Counter[str](), []
    with _opened(OPEN[engine], path, clock) as store:
        for _ in range(_MOST_SLOTS):
            next_ms = store.next_due_ms()
            if next_ms is None:
                break
            clock.tick(max(0, next_ms - clock.now_ms()))
            for each in store.advance(clock.now_ms()):
                key = str(each.message.unique_key)
                came[key] += 1
                if clock.now_ms() < min(due_ms.get(key, [0])):
                    wrong.append(f"{key} comes too early, at {clock.now_ms()}")
        wrong += [str(each) for each in store.check() if each.severity is Severity.ERROR]
    return wrong + _difference("comes from the wheel", came, _counts(due_ms))


def wrong_if_converted(
    root: Path, folder: Path, owner: Setup, now_ms: int, rng: random.Random
) -> list[str]:
    """What is wrong if the store is moved to a wheel, in copies below ``folder``."""
    opened, source, target = (folder / f"converted-{name}" for name in ("opened", "from", "to"))
    for each in (opened, source, target):
        shutil.rmtree(each, ignore_errors=True)
    copy_store(root, opened)
    try:
        due_ms = _in_levels(owner, opened, now_ms)
    except DelayStoreError:
        return []
    copy_store(opened if rng.random() < 0.5 else root, source)  # recovered, or as it was left
    after_crash = not StoreRoot(source).was_stopped_cleanly
    way = rng.choice(WAYS)
    options = ConvertOptions(
        source=source,
        target=source if way == IN_PLACE else target,
        now_ms=now_ms,
        settings=TargetSettings() if way == IN_PLACE else _SETTINGS,
        after_crash=after_crash,
        on_bad_record="quarantine",
        levels_only=way != IN_PLACE,
        to="wheel" if way == IN_PLACE else way,
    )
    try:
        if way == IN_PLACE:
            report = convert_in_place(options, execute=True).conversion
        else:
            report = convert(options)
            if problems := verify(source, target, spark=None).problems:
                return [f"verify finds {problems}"]
            retire(source, target, execute=True)
    except DelayStoreError as error:
        return [] if any(part in str(error) for part in REFUSED) else [f"refused: {error}"]
    if report.bad_records:  # an opening cuts them off, with all behind them
        return []
    if rng.random() < 0.4:
        roll_back(StoreRoot(source), execute=True)
        left = _counts(_in_levels(owner, source, now_ms))
        return _difference("in the levels after the rollback", left, _counts(due_ms))
    left = _counts(_in_levels(owner, source, now_ms))
    wrong = _difference("still in the levels", left, Counter())
    engine = "wheel" if way == IN_PLACE else way
    if due_ms or target.exists():
        wrong += _come(engine, options.target, now_ms, due_ms)
    return wrong
