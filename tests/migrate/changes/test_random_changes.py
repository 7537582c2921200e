# SPDX-License-Identifier: Apache-2.0
"""Changes of one store in any order: in place, into targets and retired, rolled back, restored from
any quarantine into any store. After each of them every message waits in one place, or is in one
quarantine; refused or not.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store.base.clock import ManualClock
from message_store.base.errors import DelayStoreError
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Pending
from migrate.changes.note import IN_PLACE, RETIRE, changes_of
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert
from migrate.look.pending import pending_messages
from migrate.quarantine.kept import Quarantine
from migrate.quarantine.restore import RestoreOptions, restore_records
from migrate.settings import ENGINES
from migrate.verify.verify import verify
from tests.helpers.tiers import with_examples
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, SMALL, options_for
from tests.migrate.in_place_stores import do
from timer_wheel.wheel.store import WheelStore

LEVELS = (16, 17, 18)
MOST_BYTES = 700
SETTINGS = attrs.evolve(SMALL, max_message_bytes=MOST_BYTES)


class Changes:
    """One store, one other, and the targets that were made from the first so far."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.store, self.other = folder / "source", folder / "other"
        self.targets: list[Path] = []
        self.told: list[str] = []
        messages = [
            LevelMessage(
                level=rng.choice(LEVELS),
                unique_key=f"K{number}",
                body=b"b" * rng.choice([5, 5, 5, 900]),  # the last is too long for a wheel
                store_timestamp_ms=NOW_MS - 5_000 + number,
            )
            for number in range(rng.choice([3, 12, 40]))
        ]
        self.keys = {str(message.unique_key) for message in messages}
        build_level_store(self.store, messages)
        WheelStore.open(self.other, clock=ManualClock(NOW_MS)).close()

    @property
    def verbs(self) -> list[Callable[[], object]]:
        """What can be done, some of it more often."""
        into = [self.put_back_into_store, self.put_back_into_other, self.put_back_into_target]
        return [self.in_place, self.move, self.move, self.roll_back, self.roll_back, *into]

    def run(self) -> None:
        """Some changes, one after the other; a refusal is an answer."""
        for _ in range(self.rng.choice([3, 5, 8])):
            verb = self.rng.choice(self.verbs)
            try:
                self.told.append(f"{verb.__name__}: {verb()}")
            except DelayStoreError as error:
                self.told.append(f"{verb.__name__} is refused: {error}")
            assert self.found() == dict.fromkeys(self.keys, 1), "\n".join(self.told)

    def some_levels(self) -> tuple[int, ...]:
        return tuple(self.rng.sample(LEVELS, self.rng.choice([1, 1, 2, 3])))

    def in_place(self) -> object:
        how: dict[str, Any] = {"settings": SETTINGS, "on_bad_record": "quarantine"}
        return do(self.store, NOW_MS, only_levels=self.some_levels(), **how).state

    def move(self) -> object:
        target = self.folder / f"target-{len(self.targets)}"
        convert(
            options_for(
                self.folder,
                target=target,
                only_levels=self.some_levels(),
                levels_only=True,
                on_bad_record="quarantine",
                settings=SETTINGS,
                to=self.rng.choice(ENGINES),
            )
        )
        assert verify(self.store, target, spark=None).is_clean
        report = retire(self.store, target, execute=True)
        self.targets.append(target)
        return report.state

    def roll_back(self) -> object:
        return roll_back(StoreRoot(self.store), execute=True).state

    def put_back_into_store(self) -> object:
        return self.put_back(self.store, engine=self.rng.choice(["levels", "wheel"]))

    def put_back_into_other(self) -> object:
        return self.put_back(self.other, engine="wheel")

    def put_back_into_target(self) -> object:
        return self.put_back(None)

    def put_back(self, store: Path | None, **how: Any) -> object:
        backups = sorted((self.store / "delaywheel").glob("backup-*/delaywheel/quarantine"))
        if not (places := [*self.targets, *backups]):
            return "there is nothing"
        quarantine = self.rng.choice(places)
        options = RestoreOptions(quarantine=quarantine, store=store or quarantine, **how)
        report = restore_records(options, execute=True, clock=ManualClock(NOW_MS))
        return len(report.put_back), report.in_the_way

    def found(self) -> dict[str, int]:
        """How often each message waits, or is in the quarantine of a change that stands."""
        places, quarantines = [self.store, self.other], []
        for change in changes_of(StoreRoot(self.store)):
            if change.kind == RETIRE:
                places.append(Path(change.asked["target"]))
                quarantines.append(places[-1])
            if change.kind == IN_PLACE:
                quarantines.append(change.directory / "delaywheel/quarantine")
        counts = Counter(key for place in dict.fromkeys(places) for key in _waiting(place))
        for quarantine in dict.fromkeys(quarantines):
            if quarantine.exists():
                counts.update(str(e.message().unique_key) for e in Quarantine(quarantine).waiting)
        return dict(counts)


def _waiting(store: Path) -> Iterator[str]:
    for each in pending_messages(store, now_ms=NOW_MS):
        assert isinstance(each, Pending), each
        yield str(each.unique_key)


@pytest.mark.parametrize("seed", with_examples(range(200), range(12)))
def test_after_any_changes_each_message_is_in_one_place(tmp_path: Path, seed: int) -> None:
    Changes(tmp_path, random.Random(f"changes {seed}")).run()
