# SPDX-License-Identifier: Apache-2.0
"""What moves a backlog, as scenarios: a run that a fault struck is gone on with or rolled back, to
the same bytes as if nothing had happened, and at no moment does a message wait nowhere.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from migrate.quarantine.restore import NOTHING, RestoreOptions, RestoreReport, restore_records
from migrate.verify.verify import verify
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.independent.raw_files import WHEEL_BYTES
from tests.migrate.conversions import broker_files, checked_target, options_for
from tests.migrate.in_place_stores import do, timer_records, tree
from tests.migrate.stopped_conversions import ITEMS as CONVERTED_ITEMS
from tests.migrate.stopped_conversions import MARKER
from tests.simulation.scenarios import Step
from tests.simulation.simulated_disk import Event, SimulatedDisk
from timer_wheel.wheel.store import WheelStore

NOW_MS = T0 + 500
ITEMS: list[Item] = [
    OrdinaryMessage(topic="Plain"),
    *(LevelMessage(level=number % 3 + 3, body=bytes(number * 90 + 1)) for number in range(9)),
    LevelMessage(level=18, topic="TopicB"),
]
_AT = "at"


class Migration:
    """One run that changes what lies below ``root``. ``prepared`` is that directory before it."""

    engines: ClassVar[Sequence[str]] = ("wheel",)
    name: ClassVar[str]
    items: ClassVar[Sequence[Item]] = ITEMS
    """What lies in the store that it begins with."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.root, self.prepared = folder / "run", folder / "prepared"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.prepare()
        self.reset()

    def reset(self) -> None:
        """Put the directory there as it was before the run, on a new disk."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self.prepared.exists():
            shutil.copytree(self.prepared, self.root)
            for path in self.root.rglob("*"):  # notes hold times of files
                os.utime(path, ns=(NOW_MS * 1_000_000,) * 2)
        self.disk = SimulatedDisk(self.root)
        self.disk.take_over()

    def steps(self, _rng: random.Random) -> list[Step]:
        """The run is one step."""
        return [Step(self.name, lambda _world: self.act(), is_struck=True)]

    def at(self, name: str, *, is_struck: bool) -> None:
        """The next step begins."""
        self.disk.note(step=_AT, name=name, is_struck=is_struck, now_ms=NOW_MS)

    # --- what each does in its own way ------------------------------------------------------------

    def prepare(self) -> None:
        """Make what the run begins with, and what it ends in when nothing stops it."""
        raise NotImplementedError

    def act(self) -> None:
        """The run itself."""
        raise NotImplementedError

    def wrong(self) -> list[str]:
        """What does not hold, at any moment."""
        raise NotImplementedError

    def wrong_at_the_end(self) -> list[str]:
        """What is wrong when the run is finished, or undone."""
        raise NotImplementedError

    # --- faults -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """Nothing is open between the steps."""

    def let_go_at_the_end(self) -> None:
        """Nor at the end."""

    def interrupted(self, _rng: random.Random) -> list[str]:
        """Ctrl-C."""
        return self.wrong()

    def refused(self, _rng: random.Random, *, is_new: bool) -> list[str]:
        """The disk refused a change, and the run said so."""
        return self.wrong()

    def after_power(self, _events: Sequence[Event], _moment: int) -> Migration:
        """The same, with what a loss of power left in its place."""
        return self

    def wrong_after_a_kill(self, _rng: random.Random) -> list[str]:
        """What is wrong now, and with what the same command makes of it."""
        return self.wrong() + self.wrong_at_the_end()

    def wrong_after_power(self, rng: random.Random) -> list[str]:
        """The same."""
        return self.wrong_after_a_kill(rng)

    def both(self, finish: Callable[[], list[str]], undo: Callable[[], list[str]]) -> list[str]:
        """Do the run again on a copy of what is there, and undo it on another."""
        aside = self.folder / "aside"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(self.root, aside)
        wrong = finish()
        shutil.rmtree(self.root)
        aside.rename(self.root)
        return wrong + undo()


def contents(store: Path) -> dict[str, str]:
    """Digests alone: a disk that is put together anew has no file's own permissions."""
    return {name: digest for name, (digest, _mode) in tree(store).items()}


def differences(found: dict[str, str], wanted: dict[str, str], when: str) -> list[str]:
    """Files that are not what they should be."""
    names = sorted(name for name in found | wanted if found.get(name) != wanted.get(name))
    return [f"{when}: other bytes in {names}"] if names else []


def in_levels(store: Path) -> Counter[int]:
    """The records that a level still delivers, by where they are."""
    return Counter(read_backlog(store, after_crash=True).commit_log_offset.tolist())


class InPlace(Migration):
    """A store is converted in place; small files, many steps."""

    name = "in-place"

    def prepare(self) -> None:
        build_level_store(
            self.prepared, self.items, commit_log_file_bytes=4096, queue_file_bytes=100
        )
        self.before, self.keys = contents(self.prepared), in_levels(self.prepared)
        whole = inspect_store(self.prepared, now_ms=NOW_MS)
        self.counts = whole.pending, whole.overdue
        self.reset()
        do(self.root, NOW_MS)
        self.right = contents(self.root)

    def act(self) -> None:
        do(self.root, NOW_MS)

    def wrong(self) -> list[str]:
        levels, on_wheel = in_levels(self.root), len(timer_records(self.root))
        wrong = []
        if levels != self.keys and (levels or on_wheel != self.keys.total()):
            wrong.append(f"waits nowhere: {levels.total()} in levels, {on_wheel} on the wheel")
        found = inspect_store(self.root, now_ms=NOW_MS)
        if (found.pending, found.overdue) != self.counts:
            wrong.append(f"counted {found.pending} and {found.overdue} overdue, not {self.counts}")
        return wrong

    def wrong_at_the_end(self) -> list[str]:
        return self.both(self.finish, self.undo)

    def finish(self) -> list[str]:
        """The same command."""
        do(self.root, NOW_MS)
        return differences(contents(self.root), self.right, "gone on with")

    def undo(self) -> list[str]:
        """Rolling back."""
        roll_back(StoreRoot(self.root), execute=True)
        return differences(contents(self.root), self.before, "rolled back")


class Rollback(InPlace):
    """What was converted in place is rolled back."""

    name = "rollback"

    def reset(self) -> None:
        super().reset()
        do(self.root, NOW_MS)
        self.disk = SimulatedDisk(self.root)
        self.disk.take_over()

    def act(self) -> None:
        roll_back(StoreRoot(self.root), execute=True)

    def wrong_at_the_end(self) -> list[str]:
        return self.undo()


class Retire(Migration):
    """A source is retired whose messages wait in another store."""

    name = "retire"

    def prepare(self) -> None:
        build_level_store(
            self.prepared, self.items, commit_log_file_bytes=4096, queue_file_bytes=100
        )
        self.reset()
        self.times_ns = {
            path.name: path.stat().st_mtime_ns for path in (self.root / "commitlog").iterdir()
        }
        self.options = options_for(self.folder, source=self.root, now_ms=NOW_MS)
        self.before = contents(self.root)
        convert(self.options)
        self.act()
        self.right = contents(self.root)

    def reset(self) -> None:
        super().reset()
        self.keys = in_levels(self.root)

    def act(self) -> None:
        retire(self.root, self.options.target, execute=True)

    def wrong(self) -> list[str]:
        left = in_levels(self.root)
        return [] if not left or left == self.keys else [f"{left.total()} are left in levels"]

    def wrong_at_the_end(self) -> list[str]:
        # A disk that is put together anew has no file's own times.
        for name, modified_ns in self.times_ns.items():
            os.utime(self.root / "commitlog" / name, ns=(modified_ns, modified_ns))
        return self.both(self.finish, self.undo)

    def finish(self) -> list[str]:
        """The same command."""
        self.act()
        wrong = differences(contents(self.root), self.right, "gone on with")
        return wrong + [f"still in levels: {each}" for each in in_levels(self.root)]

    def undo(self) -> list[str]:
        """Rolling back."""
        roll_back(StoreRoot(self.root), execute=True)
        return differences(contents(self.root), self.before, "rolled back")


class PutBack(Migration):
    """What a conversion set aside goes back, onto the wheel or into the levels of a store."""

    name = "put-back"
    engines = ("wheel", "levels")
    wanted = ("level-18-1.record", "level-18-4.record")

    def prepare(self) -> None:
        other = "REAL_TOPIC\x01T\x02UNIQ_KEY\x01{}\x02DELAY\x017\x02REAL_QID\x011\x02"
        texts = {number: other.format(f"K{number}").encode() for number in (2, 5)}
        items = [
            LevelMessage(level=18, body=b"body %d" % number, raw_properties=texts.get(number))
            for number in range(1, 7)
        ]
        build_level_store(self.prepared / "source", items)
        options = options_for(self.prepared, now_ms=NOW_MS, on_bad_record="quarantine")
        convert(options)
        build_level_store(self.prepared / "levels", [LevelMessage(level=18)], queue_file_bytes=2000)
        self.waiting = 6 if self.engine == "wheel" else 3

    def act(self) -> None:
        self.again()

    def again(self) -> RestoreReport:
        """The command."""
        store = self.root / ("target" if self.engine == "wheel" else "levels")
        request = RestoreOptions(quarantine=self.root / "target", store=store)
        return restore_records(request, execute=True, clock=ManualClock(NOW_MS))

    def wrong(self) -> list[str]:
        return []

    def wrong_at_the_end(self) -> list[str]:
        report = self.again()
        went = {*(row.file for row in report.put_back), *report.before}
        wrong = [] if went == {*self.wanted} else [f"went back: {sorted(went)}"]
        if self.again().state != NOTHING:
            wrong.append("went back again")
        at_ms = NOW_MS + 7_200_000 + 3_600_000
        name, kind = ("target", WheelStore) if self.engine == "wheel" else ("levels", LevelStore)
        with kind.open(self.root / name, clock=ManualClock(at_ms)) as opened:
            bodies = Counter(each.message.body for each in opened.advance(at_ms))
        if bodies.total() != self.waiting or max(bodies.values()) > 1:
            wrong.append(f"came: {bodies}")
        return wrong


def is_bad(message: LevelMessage) -> bool:
    """Whether nobody can convert a message of this: it is damaged, or names no topic."""
    return bool(message.damage or message.record_fields or message.without)


class Convert(Migration):
    """A conversion: stopped anywhere it is no store yet, and the same command goes on."""

    name = "convert"
    items = CONVERTED_ITEMS

    def prepare(self) -> None:
        build_level_store(self.folder / "source", self.items)
        self.options = options_for(
            self.folder,
            target=self.root,
            on_bad_record="quarantine",
            to=self.engine,
        )
        self.act()
        self.right = broker_files(self.root)
        self.found = len(checked_target(self.options))

    def act(self) -> None:
        self.report = convert(self.options)

    def miscounted(self) -> list[str]:
        """What a finished conversion and its verification count otherwise than what was made."""
        waits = [each for each in self.items if isinstance(each, LevelMessage)]
        bad = sum(map(is_bad, waits))
        verified = verify(self.options.source, self.root, spark=None)
        counts = {
            "queued": (self.report.total("queued"), len(waits)),
            "pending": (self.report.total("pending"), len(waits)),
            "converted": (self.report.total("converted"), len(waits) - bad),
            "quarantined": (self.report.total("quarantined"), bad),
            "kept aside": (len(self.report.bad_records), bad),
            "in the target": (self.found, len(waits) - bad),
            "verified": (verified.converted, len(waits) - bad),
            "verified as quarantined": (verified.quarantined, bad),
            "missing": (verified.missing, 0),
            "unexpected": (verified.unexpected, 0),
            "different": (verified.different, 0),
        }
        wrong = [
            f"{name}: {told}, not {right}"
            for name, (told, right) in counts.items()
            if told != right
        ]
        return wrong + ([] if verified.is_clean else [f"verify finds {verified.problems}"])

    @property
    def is_finished(self) -> bool:
        """Whether it says so."""
        return (self.root / MARKER).exists()

    def wrong(self) -> list[str]:
        """A target that is not finished is refused by a broker, unless it has every byte."""
        if self.is_finished:
            return differences(broker_files(self.root), self.right, "finished")
        stub = self.root / "timerwheel"
        published = {path.name for path in self.root.glob("[!.]*")} - {"delaywheel"}
        if not published or broker_files(self.root) == self.right:
            return []
        size_bytes = stub.stat().st_size if stub.is_file() else 0
        return ["a broker starts on it"] if size_bytes in (0, WHEEL_BYTES) else []

    def wrong_at_the_end(self) -> list[str]:
        if self.is_finished:
            try:
                self.act()
            except TargetError:
                return self.miscounted()
            return ["a finished conversion is begun again"]
        self.act()
        return self.miscounted() + differences(broker_files(self.root), self.right, "gone on with")


MIGRATIONS: dict[str, type[Migration]] = {
    each.name: each for each in (InPlace, Rollback, Retire, PutBack, Convert)
}
