# SPDX-License-Identifier: Apache-2.0
"""A random history of one store with many equal messages, that is killed before some of its writes.

Equal messages have the same key, body and time of birth: only their number tells whether one was
lost or came twice, and what became of one is easily taken for what became of the other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs

from message_store import AtMs, Cancellation, DelayStore, ManualClock, Message, Severity
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.reading.consume_queue import read_queue
from message_store.writing.settings import StoreSettings
from tests.faults.broker_view import look_as_a_broker
from tests.faults.engines import abandon, open_hierarchy, open_levels
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import WheelStore
from timer_wheel.reading.pending_timers import record_at

START_MS = 1_793_000_000_000
UNIT_BYTES = 52
MOVING_CLOCK, RETENTION, RECALL, DAMAGE, SNAPSHOTS = (
    "moving clock",
    "retention",
    "recall",
    "damage",
    "snapshots",
)
_DELAYS_MS = (1, 900, 1_500, 2_000, 5_000, 20_000, 40_000, 70_000, 127_000, 200_000, 256_000)
_CHANGES = (3, 10, 30, 60)


@attrs.define
class Group:
    """Equal messages: how many were stored, less those that were recalled, and how many came."""

    key: str
    due_ms: int
    born_ms: int
    stored: int = 0
    delivered: int = 0
    handle: str = ""
    is_recalled: bool = False

    @property
    def waiting(self) -> int:
        """How many are yet to come."""
        return self.stored - self.delivered


class History:
    """What happens to one store, and what of it must hold; every assertion tells the steps."""

    def __init__(self, path: Path, engine: str, modes: frozenset[str], seed: int) -> None:
        self.chance = random.Random(seed)
        self.path, self.engine, self.modes = path, engine, modes
        self.clock = ManualClock(START_MS + self.chance.choice([0, 437]))
        self.groups: dict[str, Group] = {}
        self.steps: list[str] = [f"{engine}, {sorted(modes)}, seed {seed}"]
        self._seen = 0
        self._window_slots = self.chance.choice([10, 60, 100])
        self._settings = StoreSettings(
            commit_log_file_bytes=4096 if RETENTION in modes else 1 << 20,
            queue_file_bytes=1000,
            timer_log_file_bytes=self.chance.choice([6, 20, 40]) * UNIT_BYTES + 30,
            retention_ms=30_000 if RETENTION in modes else 72 * 3_600_000,
        )
        self._store: DelayStore | None = self._opened()

    def _opened(self) -> DelayStore:
        if self.engine != "wheel":
            opened = {"levels": open_levels, "hierarchy": open_hierarchy}[self.engine]
            return opened(self.path, self.clock, self._settings)
        return WheelStore.open(
            self.path,
            clock=self.clock,
            settings=self._settings,
            roll_window_slots=self._window_slots,
            snapshots=SNAPSHOTS in self.modes,
        )

    @property
    def store(self) -> DelayStore:
        """The store, which is open."""
        assert self._store is not None
        return self._store

    # --- what holds -------------------------------------------------------------------------------

    def _expect(self, holds: bool, what: object) -> None:
        assert holds, "\n".join([*self.steps, str(what)])

    def _count_what_came(self) -> None:
        root = StoreRoot(self.path)
        directory = root.consume_queue("orders", 0)
        if not directory.exists():
            return
        units = read_queue(directory)
        offsets, sizes = units.commit_log_offset.tolist(), units.size_bytes.tolist()
        with SegmentReader(root.commit_log) as log:
            for index in range(max(self._seen - units.first_queue_offset, 0), len(offsets)):
                message = record_at(log, offsets[index], sizes[index])
                self._expect(message is not None, f"no record at {offsets[index]}")
                assert message is not None
                self.groups[message.unique_key or ""].delivered += 1
        self._seen = max(self._seen, units.first_queue_offset + len(offsets))
        for group in self.groups.values():
            self._expect(group.waiting >= 0, f"repeated: {group}")

    def _account(self) -> None:
        """What the store says that waits, with what came, is what was stored."""
        self._count_what_came()
        waits = Counter(each.unique_key or "" for each in self.store.pending())
        for group in self.groups.values():
            self._expect(waits[group.key] == group.waiting, f"{waits[group.key]} wait of {group}")
        found = [each for each in self.store.check() if each.severity is Severity.ERROR]
        self._expect(found == [], found)

    def _look_as_a_broker(self) -> None:
        """All that waits is found by one who takes over now."""
        self._count_what_came()
        is_any = StoreRoot(self.path).timer_queue().exists()
        if self.engine != "wheel" or not is_any or DAMAGE in self.modes:
            return
        now_ms, is_on = self.clock.now_ms(), SNAPSHOTS in self.modes
        view = look_as_a_broker(self.path, now_ms, snapshots_on=is_on)
        found = Counter(view.keys)
        self._expect(view.wrong == [], view.wrong)
        for group in self.groups.values():
            self._expect(found[group.key] >= group.waiting, f"a broker loses some of {group}")

    # --- what happens -----------------------------------------------------------------------------

    def _schedule(self) -> None:
        now_ms, chance = self.clock.now_ms(), self.chance
        born_now = [
            each
            for each in self.groups.values()
            if each.born_ms == now_ms < each.due_ms and not each.is_recalled
        ]
        if born_now and chance.random() < 0.5:
            group = chance.choice(born_now)
        else:
            delay_ms = chance.choice(_DELAYS_MS)
            group = Group(f"K{len(self.groups)}", now_ms + delay_ms, now_ms)
            self.groups[group.key] = group
        for _ in range(chance.choice([1, 1, 2, 3, 5])):
            message = Message("orders", b"body", unique_key=group.key)
            group.handle = self.store.schedule(message, AtMs(group.due_ms)).handle
            group.stored += 1
        self.steps[-1] += f" {group}"

    def _tick(self) -> None:
        step_ms = self.chance.choice([0, 300, 1_000, 1_000, 2_000, 5_000, 20_000, 61_000])
        if MOVING_CLOCK in self.modes and self.chance.random() < 0.2:
            step_ms = -self.chance.choice([1_000, 10_000, 50_000, 100_000])
        self.clock.tick(step_ms)
        self.steps[-1] += f" to {self.clock.now_ms() - START_MS}"

    def _advance(self) -> None:
        ahead_ms = self.chance.choice([0, 0, 0, 5_000, 40_000, 100_000])
        to_ms = self.clock.now_ms() + ahead_ms * (MOVING_CLOCK in self.modes)
        self.steps[-1] += f" to {to_ms - START_MS}"
        for each in self.store.advance(to_ms):
            self._expect(each.lateness_ms >= 0, f"early: {each}")

    def _flush(self) -> None:
        self.store.flush()

    def _look(self) -> None:
        list(self.store.pending())

    def _close(self) -> None:
        store, self._store = self.store, None
        try:
            store.close()
        except Killed:
            abandon(store)

    def _recall(self) -> None:
        self._count_what_came()
        known = [each for each in self.groups.values() if not each.is_recalled]
        if RECALL not in self.modes or not known:
            return
        group = self.chance.choice(known[-6:])
        answer = self.store.cancel(group.handle)
        self.steps[-1] += f" {answer} of {group}"
        if answer is Cancellation.CANCELLED:
            group.is_recalled, group.stored = True, group.delivered
        else:
            self._expect(group.waiting == 0, "it waits")

    def _damage(self) -> None:
        """The timer log loses what lies behind some unit."""
        files = sorted((self.path / "timerlog").glob("*"))
        if not files or self.chance.random() > 0.35:
            return
        file = self.chance.choice([files[0], files[-1]])
        kept_bytes = self.chance.choice([0, 0, self.chance.randrange(1, 8)]) * UNIT_BYTES
        size_bytes = file.stat().st_size
        file.write_bytes(file.read_bytes()[:kept_bytes].ljust(size_bytes, b"\0"))
        for behind in files[files.index(file) + 1 :]:
            behind.unlink()
        self.steps.append(f"damage {file.name} from {kept_bytes}")

    # --- kills ------------------------------------------------------------------------------------

    def _killed(self, do: Callable[[], object]) -> bool:
        """Kill it before one of its changes, unless it has fewer; whether it was."""
        number = int(self.chance.choice(_CHANGES) * self.chance.random())
        self.steps[-1] += f" killed at change {number}"
        with full_disk(self.path, number, is_kill=True) as disk, suppress(Killed):
            do()
        return disk.refused > 0

    def _let_go(self) -> None:
        if self._store is not None:
            abandon(self._store)
            self._store = None

    def _reopen(self) -> None:
        self._look_as_a_broker()
        if DAMAGE in self.modes:
            self._damage()

        def begin() -> None:
            self._store = self._opened()

        while self._store is None and self.chance.random() < 0.35:
            self.steps.append("open")
            if self._killed(begin):
                self._look_as_a_broker()
        if self._store is None:
            self.steps.append("open")
            begin()
        if self.chance.random() < 0.5:
            self._account()

    def step(self) -> None:
        """One more thing."""
        ways: dict[Callable[[], None], float] = {
            self._schedule: 6,
            self._tick: 6,
            self._advance: 6,
            self._flush: 3,
            self._look: 2,
            self._close: 1.2,
            self._recall: 1,
        }
        do = self.chance.choices([*ways], [*ways.values()])[0]
        self.steps.append(do.__name__)
        writes = (self._advance, self._flush, self._look, self._close)
        if do in writes and self.chance.random() < 0.3:
            if self._killed(do):
                self._let_go()
        else:
            do()
        if self.chance.random() < 0.08:
            self.steps[-1] += " abandoned"
            self._let_go()
        if self._store is None:
            self._reopen()
        else:
            self._count_what_came()

    def finish(self) -> None:
        """Let all come, with an end in between."""
        self._account()
        for is_killed in (True, False):
            self.clock.tick(self.chance.choice([20_000, 600_000]))
            self.store.advance(self.clock.now_ms())
            self._count_what_came()
            self._let_go() if is_killed else self._close()
            self._store = self._opened()
        last_ms = max([START_MS, *(each.due_ms for each in self.groups.values())])
        self.clock.tick(max(0, last_ms + 200_000 - self.clock.now_ms()))
        for _ in range(3):
            self.store.advance(self.clock.now_ms())
            self._count_what_came()  # before retention takes it
            self.clock.tick(100_000)
        self._account()
        for group in self.groups.values():
            self._expect(group.waiting == 0, f"waits for ever: {group}")
        self._close()
