# SPDX-License-Identifier: Apache-2.0
"""A store on a simulated disk, its clock and its ledger: what scenarios of the engines work on."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import numpy as np

from message_store import AtMs, Cancellation, DelayStore, ManualClock, MessageBatch
from message_store.base.errors import DelayStoreError
from message_store.format.java_numbers import LONG_MAX
from message_store.writing.settings import StoreSettings
from tests.faults import leeway
from tests.faults.broker_view import look_as_a_broker
from tests.faults.damage import copy_store
from tests.faults.engines import abandon
from tests.faults.kill_journal import History, Row
from tests.faults.kill_worker import message
from tests.faults.store_reading import delivered, disagreements
from tests.independent.raw_files import QUEUE_UNIT_BYTES
from tests.simulation.ledger import (
    AT,
    CAME,
    FLUSHED,
    Ledger,
    lost_to_a_broker,
    over,
    owed,
    told,
    wrong_with,
)
from tests.simulation.simulated_disk import Event, Killed, Note, SimulatedDisk, unsynced_files

START_MS = 1_793_000_000_000
_MAY_BE_LOST = {
    "lock",  # nobody reads what is in it
    "config/timermetrics",  # after a crash its messages are counted
    "config/delayOffset.json.bak",  # the other is on the disk
    "delaywheel/levels-latest.json",  # so is the mark of the flush
    "delaywheel/log-end",  # it then tells of an earlier end
}
FOLLOWS_FROM_THE_LOG = "delaywheel/time-index"
"""An index that is made again where a loss of power left out any of it."""
_TO_THE_END_MS = (0, 1_000, 20_000, 600_000, 86_400_000)


@attrs.frozen
class Setup:
    """How a store is opened: the engine and what can be set about it."""

    engine: str
    settings: StoreSettings
    precision_ms: int | None = None
    window_slots: int = 60
    snapshots: bool = False
    async_delivery: bool = False
    is_for_brokers: bool = True
    loses_index: bool = False

    def open(self, root: Path, clock: ManualClock) -> DelayStore:
        """The store there."""
        if self.engine == "levels":
            from legacy_levels import LevelRules, LevelStore

            rules = LevelRules(async_delivery=self.async_delivery)
            return LevelStore.open(root, clock=clock, settings=self.settings, rules=rules)
        if self.engine == "time-index":
            from time_index import TimeIndexStore

            return TimeIndexStore.open(root, clock=clock, settings=self.settings)
        if self.engine == leeway.LEVELS:
            from legacy_levels.engine.rules import AsyncRules
            from legacy_levels.reference.store import ReferenceLevelStore

            asynchronous = AsyncRules() if self.async_delivery else None
            return ReferenceLevelStore.open(
                root, clock=clock, settings=self.settings, async_rules=asynchronous
            )
        if self.engine == leeway.WHEEL:
            from timer_wheel.reference.store import ReferenceWheelStore
            from timer_wheel.wheel.settings import WheelSettings

            wheel_rules = WheelSettings.of_broker(
                "5.5.0",
                precision_ms=self.precision_ms or 1_000,
                roll_window_slots=self.window_slots,
                max_delay_ms=None,
            )
            return ReferenceWheelStore.open(
                root, clock=clock, settings=self.settings, rules=wheel_rules
            )
        from timer_wheel import HierarchicalWheelStore, WheelStore

        if self.engine == "hierarchy":
            return HierarchicalWheelStore.open(
                root,
                clock=clock,
                settings=attrs.evolve(self.settings, repeat_after_kill=False),
                precision_ms=self.precision_ms,
                max_delay_ms=None,
            )
        return WheelStore.open(
            root,
            clock=clock,
            settings=self.settings,
            precision_ms=self.precision_ms,
            roll_window_slots=self.window_slots,
            snapshots=self.snapshots,
            max_delay_ms=None,
            on_precision_change="rebuild",
        )


def _copy_database(source: Path, target: Path) -> None:
    """Copy a store whose database may take a file away meanwhile that it does not need."""
    while True:
        shutil.rmtree(target, ignore_errors=True)
        with suppress(FileNotFoundError):
            copy_store(source, target)
            return


class Bench:
    """The store, which may be closed; what it was told is noted among the changes of its disk."""

    def __init__(self, setup: Setup, root: Path, disk: SimulatedDisk) -> None:
        self.setup, self.root, self.disk = setup, root, disk
        self.clock = ManualClock(START_MS)
        self.ledger = Ledger(History(), [], START_MS)
        self._store: DelayStore | None = None

    def after_power(self, events: Sequence[Event], moment: int) -> Bench:
        """The store as a loss of power left it, and what it owes."""
        bench = Bench(self.setup, self.root, SimulatedDisk(self.root, records=False))
        bench.ledger, flushed = told(events, moment)
        bench.ledger.history = owed(bench.ledger.history, flushed)
        bench.ledger.seen = over(self.root, bench.ledger)  # the rest is there, or lost
        bench.clock.tick(bench.ledger.now_ms - START_MS)
        return bench

    @property
    def store(self) -> DelayStore:
        """The store, which is open."""
        assert self._store is not None
        return self._store

    @property
    def history(self) -> History:
        """What was asked and answered."""
        return self.ledger.history

    def _note(self, step: str, **facts: Any) -> None:
        self.disk.note(step=step, **facts)
        self.history.add({"step": step, **facts})

    def at(self, name: str, *, is_struck: bool) -> None:
        """The next step begins."""
        self.ledger.now_ms = self.clock.now_ms()
        self.disk.note(step=AT, name=name, is_struck=is_struck, now_ms=self.clock.now_ms())

    # --- what can be done -------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store, unless it is."""
        if self._store is None:
            self._note("begin", now_ms=self.clock.now_ms())
            self._store = self.setup.open(self.root, self.clock)
            self._note("opened", log_end=self._store.live.log.end)  # type: ignore[attr-defined]

    def reopen_with(self, precision_ms: int) -> None:
        """Open the store with slots of another width: a hierarchical wheel's may only be finer.
        Between the two widths no broker is set to find its way.
        """
        new_ms = 1 if self.setup.engine == "hierarchy" else precision_ms
        self.setup = attrs.evolve(self.setup, precision_ms=new_ms, is_for_brokers=False)
        self.open()

    def schedule(self, name: str, due_ms: int, body_bytes: int = 0) -> None:
        """One message; all of one name are alike."""
        row = self._row(name, due_ms, body_bytes)
        self._note("schedule", now_ms=self.clock.now_ms(), rows=[attrs.astuple(row)])
        receipt = self.store.schedule(message(row), AtMs(due_ms))
        answer = receipt.promised_ms, receipt.handle, receipt.commit_log_offset
        self._note("scheduled", receipts=[answer])

    def _row(self, name: str, due_ms: int, body_bytes: int) -> Row:
        kind = crc32(name.encode())
        topic = ("orders", "orders2")[kind % 2]
        return Row(name, topic, kind // 2 % 2, name + "x" * body_bytes, due_ms)

    def batch(self, names: Sequence[str], dues_ms: Sequence[int], body_bytes: int = 0) -> None:
        """Many at once: all of them or none."""
        rows = [
            self._row(name, due_ms, body_bytes) for name, due_ms in zip(names, dues_ms, strict=True)
        ]
        self._note("schedule", now_ms=self.clock.now_ms(), rows=[attrs.astuple(r) for r in rows])
        due_ms = np.array(dues_ms, np.int64)
        receipts = self.store.schedule_batch(MessageBatch.of(map(message, rows)), due_ms)
        found = [receipts.receipt(number) for number in range(len(rows))]
        answers = [(each.promised_ms, each.handle, each.commit_log_offset) for each in found]
        self._note("scheduled", receipts=answers)

    def cancel(self, name: str) -> None:
        """Take the last message of a name back."""
        lives = self.history.lives
        number = max(index for index, life in enumerate(lives) if life.row.name == name)
        receipt = lives[number].receipt
        if receipt is None:  # it was refused
            return
        self._note("cancel", number=number)
        self._note("cancelled", answer=self.store.cancel(receipt[1]).value)

    def advance(self, ahead_ms: int = 0) -> None:
        """Deliver what is due by a clock that may be ahead."""
        now_ms = self.clock.now_ms() + ahead_ms
        self._note("advance", now_ms=now_ms)
        self._note("advanced", count=len(self.store.advance(now_ms)))
        self.see()

    def flush(self) -> None:
        """As a timer would."""
        self.store.flush()
        self.disk.note(step=FLUSHED)

    def flush_if_open(self) -> None:
        """The same, unless an earlier step was the end."""
        if self._store is not None:
            self.flush()

    def close(self) -> None:
        """An orderly end."""
        self.store.close()
        self._store = None
        self.disk.note(step=FLUSHED)

    def kill(self) -> None:
        """Let go of the files as a kill does, and leave the disk as it is."""
        store, self._store = self._store, None
        if store is None:
            return
        copy = self.root.with_name("copy")
        is_database = self.setup.engine == "hierarchy"
        if is_database:  # whose close writes, unseen
            self.disk.pause()
            _copy_database(self.root, copy)
            self.disk.go_on()
        with suppress(Killed):
            abandon(store)
        if is_database:
            self.disk.pause()
            shutil.rmtree(self.root)
            copy.rename(self.root)
            self.disk.rebind()
            self.disk.go_on()

    def look(self) -> None:
        """What waits is asked for, which places what lies in the queue."""
        list(self.store.pending())

    def see(self) -> None:
        """Note what is in the topics, before retention takes it."""
        known = set(self.ledger.seen)
        found = [each for each in delivered(self.root) if each not in known]
        self.ledger.seen += found
        if found:
            self.disk.note(step=CAME, found=[attrs.astuple(each) for each in found])

    # --- what must hold ---------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """Everything that does not hold now."""
        if self._store is None:
            return []
        return wrong_with(
            self._store, self.root, self.ledger, may_repeat=self.setup.settings.repeat_after_kill
        )

    def wrong_to_a_broker(self, *, is_power_cut: bool = False) -> list[str]:
        """What a broker that takes the files over would lose. After a loss of power it believes the
        hand, which may be on the disk, while what was delivered or rolled by it is not.
        """
        is_wheel = self.setup.engine == "wheel" and self.setup.is_for_brokers
        if not is_wheel or not self._has_timer_queue:
            return []
        precision_ms = self.setup.precision_ms or 1_000
        lives, torn_from = self.history.lives, LONG_MAX
        if is_power_cut:
            kept = [each.receipt[2] for each in lives if each.receipt]
            torn_from = max(kept, default=-1) + 1
            near_ms = self.setup.window_slots * precision_ms // 2
            lives = [
                each
                for each in lives
                if each.row.due_ms > self.history.advanced_to_ms
                and each.row.due_ms - each.now_ms < near_ms
            ]
        return lost_to_a_broker(
            self.root,
            self.ledger,
            lives,
            precision_ms,
            torn_from,
            recovers_queues=is_power_cut,  # a flush may have synced the log alone
        )

    def wrong_at_the_end(self, rng: random.Random) -> list[str]:
        """Open what a fault left, twice, and deliver everything."""
        if self.setup.loses_index:
            shutil.rmtree(self.root / "delaywheel" / "hierarchy" / "index", ignore_errors=True)
        self.open()
        self.see()
        wrong = self.wrong() + self._left_behind_the_ends()
        if rng.random() < 0.5:
            self.kill()
        else:
            wrong += self._wrong_after_a_close()
        self.open()
        wrong += self.wrong()
        for step_ms in _TO_THE_END_MS:
            self.clock.tick(step_ms)
            self.advance()
        wrong += self.wrong()
        wrong += [f"still waits: {each}" for each in self.store.pending()]
        for life in self.history.lives:
            if life.answer == "cancelled" and life.receipt is not None:
                answer = self.store.cancel(life.receipt[1])
                if answer is not Cancellation.CANCELLED:
                    wrong.append(f"taken back, and now {answer}: {life}")
        wrong += self._wrong_after_a_close()
        return wrong + disagreements(self.root)

    def _left_behind_the_ends(self) -> list[str]:
        """What lies behind the ends of log and queues, where it might come to light."""
        live = self.store.live  # type: ignore[attr-defined]
        ends = [(live.log.segments, live.log.end)]
        ends += [(each.segments, each.max_offset * QUEUE_UNIT_BYTES) for each in live.queues]
        return [
            f"something lies behind {end} in {row.directory}"
            for row, end in ends
            if row.has_data_from(end)
        ]

    def _wrong_after_a_close(self) -> list[str]:
        """A broker that takes a closed wheel over finds all that waits, and nothing else."""
        waits = Counter(each.unique_key or "" for each in self.store.pending())
        self.close()
        if self.setup.engine != "wheel" or not self._has_timer_queue:
            return []
        precision_ms = self.setup.precision_ms or 1_000
        view = look_as_a_broker(self.root, self.clock.now_ms(), precision_ms=precision_ms)
        others = Counter(view.keys)
        is_same = others == waits
        return view.wrong + ([] if is_same else [f"a broker finds {others}, and {waits} wait"])

    @property
    def _has_timer_queue(self) -> bool:
        return (self.root / "consumequeue" / "rmq_sys_wheel_timer" / "0").exists()

    # --- what a fault is followed by --------------------------------------------------------------

    def wrong_after_a_kill(self, rng: random.Random) -> list[str]:
        """What is wrong with what a kill left."""
        self.ledger.now_ms = self.clock.now_ms()
        return self.wrong_to_a_broker() + self.wrong_at_the_end(rng)

    def live_again(self, rng: random.Random) -> list[str]:
        """A kill is over: the store is opened, works where it has time to, and is flushed."""
        self.at("live again", is_struck=False)
        self.open()
        self.see()
        wrong = self.wrong()
        if rng.random() < 0.7:
            self.clock.tick(rng.choice([0, 1_500, 70_000]))
            self.at("work again", is_struck=False)
            self.schedule("AGAIN", self.clock.now_ms() + rng.choice([-1, 2_000, 40_000]))
            self.advance()
        self.flush()
        return wrong + self.wrong()

    @property
    def flushed_at(self) -> int:
        """The moment of the last flush that came back."""
        return max(
            number + 1
            for number, event in enumerate(self.disk.events)
            if isinstance(event, Note) and event.facts["step"] == FLUSHED
        )

    def left_in_memory(self, moment: int) -> list[str]:
        """What a flush has not waited for, and somebody would rely on."""
        left = unsynced_files(self.disk.events, moment)
        return [
            f"nobody has synced {path}"
            for path in sorted(left - _MAY_BE_LOST)
            if not path.endswith(".new")  # a process was killed while it wrote that
            and not path.startswith(FOLLOWS_FROM_THE_LOG)
        ]

    def work_on(self) -> list[str]:
        """Some work that nobody flushes."""
        self.at("work on", is_struck=False)
        self.schedule("MORE", self.clock.now_ms() + 1_000)
        self.clock.tick(2_000)
        self.advance()
        return self.wrong()

    def wrong_after_power(self, rng: random.Random) -> list[str]:
        """What is wrong with what a loss of power left."""
        return self.wrong_to_a_broker(is_power_cut=True) + self.wrong_at_the_end(rng)

    def let_go_at_the_end(self) -> None:
        """The end of a run that nothing struck."""
        if self._store is not None:
            self.kill()

    def interrupted(self, rng: random.Random) -> list[str]:
        """Ctrl-C: the store is closed, or the process ends, and somebody goes on."""
        self.let_go(rng)
        self.open()
        return self.wrong()

    def refused(self, rng: random.Random, *, is_new: bool) -> list[str]:
        """There is room again: go on with the store if it goes on, or with what it left."""
        if is_new and self._store is not None and rng.random() < 0.5:
            try:
                self.flush()
            except DelayStoreError:
                pass
            else:
                return self.wrong()
        self.let_go(rng)
        self.open()
        return self.wrong()

    def let_go(self, rng: random.Random) -> None:
        """End what was interrupted or refused something."""
        store = self._store
        if store is not None and rng.random() < 0.7:
            with suppress(DelayStoreError):
                store.close()
        self.kill()


Action = Callable[[Bench], None]
