# SPDX-License-Identifier: Apache-2.0
"""A store of a random run: what can be done with it, and what its owner may hold it to.

Every step goes through ``do``, which knows what to expect of a step that a fault cut short.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import attrs
import numpy as np

from message_store import (
    AtMs,
    DelayStore,
    Delivered,
    ManualClock,
    MessageBatch,
    Severity,
)
from message_store.base.errors import (
    DelayStoreError,
    OtherEngineWarning,
    StoreLockedError,
    UnsupportedDelayError,
)
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.engine_choice import engines_in
from message_store.redelivery.lineage import first_offset
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from tests.faults import leeway
from tests.faults.broker_view import look_as_a_broker
from tests.faults.damage import copy_store
from tests.faults.engines import abandon
from tests.faults.store_reading import Found, delivered, log_begin
from tests.simulation.account import (
    ABSENT,
    CANCELLED,
    PENDING,
    SHORTEST_LEVEL_MS,
    Account,
    Life,
    message_of,
)
from tests.simulation.bench import START_MS, Setup
from tests.simulation.broker_account import BrokerAccount
from tests.simulation.cases import watched
from tests.simulation.converting import wrong_if_converted
from tests.simulation.simulated_disk import (
    Event,
    Failing,
    Name,
    Resize,
    SimulatedDisk,
    SyncNames,
    any_choice,
    any_files,
    make_disk,
    nothing_unsynced,
)
from tests.simulation.turns import taking_turns
from timer_wheel.format.wheel_math import effective_read_time_ms

DAY_MS = 86_400_000
FAMILIES = {
    **{"levels": "levels", "wheel": "timers", "hierarchy": "timers", "time-index": "index"},
    **{leeway.LEVELS: "levels", leeway.WHEEL: "timers"},
}

_LATE_MS = DAY_MS
"""How much later a broker starts that is late."""
_MADE_ANEW = {"wheel": "timerlog", "hierarchy": "delaywheel/hierarchy/index"}


def is_given_back(topic: str) -> bool:
    """Whether a topic is one of what a consumer group gave back."""
    return topic.startswith("%")


class WrongError(AssertionError):
    """An invariant that does not hold."""


@attrs.frozen
class Owner(Setup):
    """Who has a store open for a while."""

    @property
    def family(self) -> str:
        """Who shows the same pending messages."""
        return FAMILIES[self.engine]

    @property
    def slot_ms(self) -> int:
        """How wide its promises are."""
        return self.precision_ms or {"wheel": 1_000, leeway.WHEEL: 1_000}.get(self.engine, 1)

    @property
    def leeway(self) -> leeway.Leeway:
        """What its promise leaves open."""
        return leeway.leeway_of(self.engine)

    @property
    def delivers_later(self) -> bool:
        """Whether what is due may be under way when an advance comes back."""
        return self.async_delivery and self.family == "levels"


def forgets(owner: Owner) -> bool:
    """Whether retention takes what was delivered."""
    return owner.settings.retention_ms < 30 * DAY_MS


class World:
    """The store, which may be closed, its disk, its clock, and the account of its messages."""

    def __init__(self, owner: Owner, folder: Path) -> None:
        self.owner, self.folder, self.root = owner, folder, folder / "store"
        self.clock = ManualClock(START_MS)
        self.account = Account(owner.family, owner.settings.repeat_after_kill)
        if owner.leeway.works_like_a_broker:
            rolls_from_ms = (owner.window_slots - 1) * owner.slot_ms
            self.account = BrokerAccount(
                owner.family, clock=self.clock, rolls_from_ms=rolls_from_ms
            )
        self.disk = SimulatedDisk(self.root)
        self.trace: list[str] = []
        self.failing: Failing | None = None
        self.events: list[Event] = []
        """Every change of every disk that this store has lain on."""
        self.is_ours_alone = True
        """Whether no step was one that brokers cannot follow."""
        self.former_owner: Owner | None = None
        """Who had the store before, as long as the owner has not opened it."""
        self.is_stale = False
        """Whether messages may have been delivered that nobody has looked for."""
        self._lacks_entries = False
        """Whether power was lost, and nobody has made entries of queues from the log since."""
        self._lacks_files = False
        """Whether files are gone that the next opening makes anew: no broker could."""
        self._store: DelayStore | None = None
        self._seen: dict[int, Found] = {}
        self._placed_ms = 0
        self._always = ExitStack()
        self._always.enter_context(taking_turns())
        self._watch = ExitStack()
        self._watch.enter_context(watched(self.disk))

    # --- the frame of a run -----------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.clock.now_ms() - START_MS:+,} ms: {text}")

    def end(self) -> None:
        """Let go of everything."""
        with suppress(Exception):
            self.kill()
        self._watch.close()
        self._always.close()
        self.events += self.disk.events

    def require(self, wrong: Sequence[str]) -> None:
        """Stop a run in which something is wrong."""
        if wrong:
            raise WrongError("\n  ".join(wrong))

    @property
    def store(self) -> DelayStore:
        """The store, which is open."""
        assert self._store is not None
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether it is."""
        return self._store is not None

    # --- steps ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store; refusals go to whoever asked."""
        if self._store is None:
            self.disk.opened_again()
            with catch_warnings():
                simplefilter("ignore", OtherEngineWarning)  # several have this store by turns
                self._store = self.owner.open(self.root, self.clock)
            self._lacks_entries = self._lacks_files = False
            self.former_owner = None
            self.account.opened()

    def open_or_go_back(self) -> None:
        """Open the store; where a new owner is refused, the one before him goes on."""
        try:
            self.open()
        except DelayStoreError as error:
            if self.former_owner is None or self.disk.refused:
                raise
            self.say(f"  refused: {error}")
            if str(self.root) not in str(error):
                self.require([f"a refusal that names no file: {error}"])
            self.owner = self.former_owner
            self.account.family = self.owner.family
            self.open()

    def close(self, *, is_orderly: bool = True) -> None:
        """The end, after which everything outlives a loss of power if it was an orderly one."""
        if self._store is not None:
            self._may_deliver()
            self._store.close()
            self._store = None
            if is_orderly:
                self.account.flushed()
            else:
                self.account.killed()

    def _may_deliver(self) -> None:
        """What begins may deliver what is due, as a broker's services do whenever they run."""
        if self.owner.leeway.works_like_a_broker:
            self.account.advance(self.clock.now_ms())
            self.is_stale = True

    def was_closed(self) -> None:
        """Some thread closed the store: one in doubt is released as after a kill."""
        is_broken = self.store.live.log.is_broken  # type: ignore[attr-defined]
        self.is_stale = True
        self._store = None
        if is_broken:
            self.account.killed()
        else:
            self.account.flushed()

    def kill(self) -> None:
        """Let go of the files as a kill does, and leave the disk as it is."""
        store, self._store = self._store, None
        if store is None:
            return
        self.disk.failing = None
        if self.owner.engine != "hierarchy":
            abandon(store)
            return
        # Its database writes at its end, which a killed process does not.
        copy = self.folder / "copy"
        self.disk.pause()
        while True:
            shutil.rmtree(copy, ignore_errors=True)
            with suppress(FileNotFoundError):
                before = _files_below(self.root)
                copy_store(self.root, copy)
                if _files_below(self.root) == before:
                    break
        abandon(store)
        shutil.rmtree(self.root)
        copy.rename(self.root)
        self.disk.rebind()
        self.disk.go_on()

    def schedule(self, names: Sequence[str], dues_ms: Sequence[int], *, at_once: bool) -> None:
        """Messages, one by one or in one batch."""
        self.say(f"schedule {list(zip(names, [each - START_MS for each in dues_ms], strict=True))}")
        parts = [range(len(names))] if at_once else [range(n, n + 1) for n in range(len(names))]
        for part in parts:
            chosen = [names[row] for row in part], [dues_ms[row] for row in part]
            begun = self.account.schedule(*chosen, self.clock.now_ms())
            try:
                receipts = self.handed_over(*chosen, at_once=at_once)
            except UnsupportedDelayError:
                self.account.refused(begun)
                self.require_too_long(chosen[1])
                continue
            self.account.scheduled(begun, receipts)
            self._require_promises(begun)

    def handed_over(
        self, names: Sequence[str], dues_ms: Sequence[int], *, at_once: bool
    ) -> list[Any]:
        """The receipts of messages, handed over one by one or in one batch."""
        messages = list(map(message_of, names))
        if at_once:
            batch = MessageBatch.of(messages)
            receipts = self.store.schedule_batch(batch, np.array(dues_ms, np.int64))
            return [receipts.receipt(row) for row in range(len(names))]
        pairs = zip(messages, dues_ms, strict=True)
        return [self.store.schedule(message, AtMs(due_ms)) for message, due_ms in pairs]

    def require_too_long(self, dues_ms: Sequence[int]) -> None:
        """Hold a refusal of these times to what the engine promises."""
        longest_ms = max(dues_ms) - self.clock.now_ms()
        limits_ms = {"levels": 7_200_000, "index": self.owner.settings.retention_ms}
        if longest_ms <= limits_ms.get(self.owner.family, longest_ms):
            self.require([f"a delay of {longest_ms} ms was refused"])

    def _require_promises(self, begun: Sequence[Life]) -> None:
        now_ms = self.clock.now_ms()
        for life in begun:
            receipt = life.receipt
            assert receipt is not None
            late_ms = receipt.promised_ms - max(receipt.due_ms, now_ms)
            limit_ms = 7_200_000 if self.owner.family == "levels" else self.owner.slot_ms
            if not 0 <= late_ms <= max(limit_ms, self.account.widest_ms, 3):
                self.require([f"promised {late_ms} ms after it is due: {life}"])

    @property
    def known(self) -> list[Life]:
        """Those of which the engine that has the store may be asked."""
        lives = self.account.lives if self.owner.leeway.cancels else []
        lives = [life for life in lives if life.receipt is not None]
        return [life for life in lives if life.family == self.account.family]

    def cancel(self, rng: random.Random) -> None:
        """Take one back, or try to: any that was promised, the last ones more often."""
        known = self.known
        if not known:
            return
        life = rng.choice(known[-8:] if rng.random() < 0.7 else known)
        self.cancel_one(life, by_receipt=rng.random() < 0.5)

    def cancel_one(self, life: Life, *, by_receipt: bool) -> None:
        """Take this one back, or what shares its handle."""
        assert life.receipt is not None
        self.say(f"cancel {life} by its {'receipt' if by_receipt else 'handle'}")
        self.is_stale |= self.owner.leeway.works_like_a_broker  # its services run meanwhile
        asked = self.account.cancel(life, by_receipt=by_receipt)
        answer = self.store.cancel(life.receipt if by_receipt else life.receipt.handle)
        self.say(f"  {answer.value}")
        self.require(self.account.cancelled(asked, answer, forgets=self.forgets))

    @property
    def forgets(self) -> bool:
        """Whether retention takes what was delivered."""
        return forgets(self.owner)

    def advance(self, ahead_ms: int = 0) -> None:
        """Deliver what is due, by a clock that may be ahead of the store's or behind it."""
        now_ms = self.clock.now_ms() + ahead_ms
        self.say(f"advance{f' {ahead_ms:+,} ms' if ahead_ms else ''}")
        self.account.advance(now_ms)
        if self.is_stale:
            self.see()
        before = len(self._seen)
        found = self.store.advance(now_ms)
        if not self.owner.delivers_later:
            self.account.advanced(now_ms)
        self._placed_ms = max(self._placed_ms, now_ms)
        self.see()
        new = len(self._seen) - before
        # What a broker's engine delivered for a cancel it tells of later.
        is_told = len(found) >= new if self.owner.leeway.works_like_a_broker else len(found) == new
        if not is_told and not self.account.is_repeating:
            self.require([f"advance tells of {len(found)} deliveries, the topics of {new}"])
        if not self.owner.async_delivery and not self.owner.leeway.works_like_a_broker:
            self._require_order(found)

    def _require_order(self, found: Iterable[Delivered]) -> None:
        """Earlier promises come first; of equal ones what was scheduled first."""
        told = [(each.promised_ms, first_offset(each.message)) for each in found]
        if told != sorted(told):
            self.require([f"delivered out of order: {told}"])

    def flush(self) -> None:
        """What was promised outlives a loss of power."""
        self.say("flush")
        self._may_deliver()
        self.store.flush()
        self.account.flushed()

    # --- what is seen -----------------------------------------------------------------------------

    def see(self) -> None:
        """What is in the topics, and what was until retention took it."""
        self.is_stale = False
        begin = log_begin(self.root)
        over = {at: found for at, found in self._seen.items() if at < begin}
        self._seen = over | {each.commit_log_offset: each for each in delivered(self.root)}

    @property
    def came(self) -> Counter[str]:
        """How often each message was delivered."""
        return Counter(each.name for each in self.found)

    @property
    def found(self) -> list[Found]:
        """What was seen in topics, but for what groups gave back."""
        return [each for each in self._seen.values() if not is_given_back(each.topic)]

    @property
    def came_before(self) -> Counter[str]:
        """How often each message was delivered whose record retention took since."""
        begin = log_begin(self.root)
        return Counter(each.name for at, each in self._seen.items() if at < begin)

    def look(self) -> None:
        """Everything that must hold of an open store."""
        self.see()
        pending = list(self.store.pending())
        self._placed_ms = max(self._placed_ms, self.clock.now_ms())
        own = [each for each in pending if not is_given_back(each.topic)]
        shown = Counter(each.unique_key or "" for each in own)
        self.require(self.account.observe(shown, self.came))
        self.require(self.account.wrong_times(own))
        errors = [each for each in self.store.check() if each.severity is Severity.ERROR]
        self.require([f"check finds: {each}" for each in errors])
        if self.owner.delivers_later:
            return  # what is under way is due before anybody looks at it again
        next_ms = self.store.next_due_ms()
        first_ms = min((each.due_ms for each in pending), default=None)
        limit_ms = 0
        if self.owner.leeway.works_like_a_broker:  # whose levels hold back what is due behind them
            limit_ms = self.clock.now_ms() + SHORTEST_LEVEL_MS
        if (next_ms is None) != (first_ms is None) or (next_ms or 0) > max(first_ms or 0, limit_ms):
            self.require([f"next due at {next_ms}, and the first one pending at {first_ms}"])

    @property
    def tells_readers(self) -> bool:
        """Whether readers know how wide slots are, and do not tell what a broker would repeat."""
        knows_all = self.is_ours_alone and self.owner.engine != leeway.WHEEL
        return knows_all and self.owner.slot_ms in (1, 1_000)

    def look_beside(self) -> None:
        """What readers find in a store that nobody has open. They guess how wide slots are, and
        who closed the store may not be who was killed with it.
        """
        assert self._store is None
        if self.account.is_repeating or not self.account.lives or not self.tells_readers:
            return
        if self.account.others:  # what groups gave back is pending as well
            return
        own = [life for life in self.account.lives if PENDING in life.may]
        if all(len(life.may) == 1 for life in own):
            found = inspect_store(self.root, now_ms=self.clock.now_ms())
            told = sum(map(_counted_as_lost, found.problems))
            if found.pending is None or found.pending + told != len(own):
                self.require([f"inspect counts {found.pending} pending messages, not {len(own)}"])

    def look_beside_and_open(self) -> None:
        """Whoever looks at a store that a process was killed with lists what an opening finds."""
        if self.account.is_repeating or self.account.others or not self.tells_readers:
            return
        if self.owner.leeway.works_like_a_broker:  # which repeats what a reader leaves out
            return
        copy, clock = self.folder / "beside", ManualClock(self.clock.now_ms())
        shutil.rmtree(copy, ignore_errors=True)
        if not self.root.exists() or not engines_in(StoreRoot(self.root)):
            return  # the log alone was on the disk: no listing says whose store it is
        copy_store(self.root, copy)
        try:
            found = inspect_store(copy, now_ms=clock.now_ms())
            rows = list(pending_messages(copy, now_ms=clock.now_ms()))
            with catch_warnings():
                simplefilter("ignore", OtherEngineWarning)
                store = self.owner.open(copy, clock)
        except DelayStoreError:
            return  # a new owner is refused, or nobody has opened it yet
        listed = Counter((e.unique_key, e.due_ms) for e in rows if not isinstance(e, BadRecord))
        opened = Counter((each.unique_key, each.due_ms) for each in store.pending())
        waiting = opened.total()
        abandon(store)
        told = sum(map(_counted_as_lost, found.problems))
        if any(part in each for each in found.problems for part in _TOLD_OTHERWISE):
            return  # which an opening cuts off, and a reader rescues what it can of it
        if found.pending is None or not found.pending <= waiting <= found.pending + told:
            self.require([f"inspect counts {found.pending} and {told}, an opening {waiting}"])
        if len(rows) != found.pending:
            self.require([f"inspect counts {found.pending}, {len(rows)} are listed"])
        if only_listed := listed - opened:
            self.require([f"listed, not opened: {only_listed}; opened alone: {opened - listed}"])

    def look_if_converted(self, rng: random.Random) -> None:
        """A backlog of levels is moved to a wheel whatever its store went through."""
        account = self.account
        is_ours = self.owner.family == "levels" and not self.owner.leeway.works_like_a_broker
        others = account.others or any(
            life.family != "levels" and PENDING in life.may for life in account.lives
        )
        if is_ours and not others and not account.is_repeating and self.root.exists():
            now_ms = self.clock.now_ms()
            self.require(wrong_if_converted(self.root, self.folder, self.owner, now_ms, rng))

    def look_as_a_broker(self, *, is_power_cut: bool = False, was_open: bool = True) -> None:
        """A broker that takes the wheel over finds all that is pending, and nothing cancelled, not
        even if it starts late. After a loss of power it believes the hand, which may be on the
        disk, while what was delivered or rolled by it is not. An opening that was stopped has cut
        units off that it would have made again.
        """
        queue = self.root / "consumequeue" / "rmq_sys_wheel_timer" / "0"
        is_a_broker_s = self.owner.engine == "wheel" and self.is_ours_alone and queue.exists()
        if not is_a_broker_s or self._lacks_files:
            return
        is_power_cut |= self._lacks_entries  # and no opening has come to its end since
        look = partial(
            look_as_a_broker,
            self.root,
            precision_ms=self.owner.slot_ms,
            snapshots_on=self.owner.snapshots,
            torn_from=self._known_end if is_power_cut else LONG_MAX,
            recovers_queues=self._lacks_entries,
        )
        view = look(self.clock.now_ms())
        self.require(view.wrong)
        lives = self.account.lives
        cancelled = {life.name for life in lives if life.may == {CANCELLED}}
        cancelled -= {life.name for life in lives if life.may != {CANCELLED}}
        if is_power_cut or not was_open:  # the marker may have an entry and no unit
            cancelled.clear()
        found = {*view.keys, *look(self.clock.now_ms() + _LATE_MS).keys} if cancelled else set()
        self.require([f"cancelled, a broker delivers it: {name}" for name in cancelled & found])
        names = {life.name for life in lives if life.was_cancelled}
        wanted = Counter(
            life.name
            for life in lives
            if life.may == {PENDING} and life.name not in names and life.family == "timers"
            if not is_power_cut or self._has_never_been_near(life)
            if not self._was_left_behind(life)
        )
        lost = wanted - Counter(view.keys)
        self.require([f"lost to a broker: {name}, {count} of them" for name, count in lost.items()])

    def _was_left_behind(self, life: Life) -> bool:
        """Whether it got its place on the wheel in time, with a listing or an advance, and nobody
        advanced the wheel for so long that a broker which starts now reads no slot as far back.
        What rolls lies within a window.
        """
        first_read_ms = effective_read_time_ms(0, self.clock.now_ms(), self.owner.slot_ms)
        window_ms = self.owner.window_slots * self.owner.slot_ms
        in_slot_ms = min(life.late_ms, self._placed_ms + window_ms)
        return life.scheduled_ms <= self._placed_ms and in_slot_ms < first_read_ms

    def _has_never_been_near(self, life: Life) -> bool:
        """Whether no hand that may be on the disk is behind it, and it has not rolled."""
        window_ms = self.owner.window_slots * self.owner.slot_ms
        is_ahead = life.early_ms - self.owner.slot_ms > self.account.advanced_to_ms
        return is_ahead and life.early_ms - life.scheduled_ms < window_ms // 2

    @property
    def _known_end(self) -> int:
        """Records from here on nobody was told to be durable."""
        return (
            max((life.place for life in self.account.lives if ABSENT not in life.may), default=-1)
            + 1
        )

    # --- faults -----------------------------------------------------------------------------------

    @contextmanager
    def failing_at(self, failing: Failing | None) -> Iterator[None]:
        """A fault may strike what is done meanwhile."""
        self.disk.failing = failing
        try:
            yield
        finally:
            self.disk.failing = None

    def killed(self) -> None:
        """The process is gone."""
        self.kill()
        self.account.killed()

    def power_lost(self, rng: random.Random, *, any_order: bool, by_file: bool = False) -> None:
        """The process is gone, and what nobody had synced."""
        self.kill()
        events, moment = self.disk.events, len(self.disk.events)
        if any_order:
            cut = (any_files if by_file else any_choice)(events, moment, rng)
        else:
            cut = nothing_unsynced(events, moment, names_too=rng.random() < 0.5)
        cut = attrs.evolve(cut, missing=cut.missing - lengths_with_names(events))
        self._watch.close()
        shutil.rmtree(self.root, ignore_errors=True)
        make_disk(events, cut, self.root)
        begin = log_begin(self.root)
        self._seen = {at: found for at, found in self._seen.items() if at < begin}
        self.account.power_lost()
        self._lacks_entries = True
        self.new_disk()

    def lose_what_is_made_anew(self) -> None:
        """The files are gone that the engine makes anew from log and queue; nobody has it open."""
        name = _MADE_ANEW.get(self.owner.engine)
        if name is None:
            return
        self.say(f"{name} is lost")
        shutil.rmtree(self.root / name, ignore_errors=True)
        self._lacks_files = True
        self.new_disk()
        self.account.flushed()

    def open_twice(self) -> None:
        """Nobody else gets a store that is open."""
        with suppress(StoreLockedError):
            self.owner.open(self.root, self.clock).close()
            self.require(["two have the store open"])

    def new_disk(self) -> None:
        """From here on what is there is on the disk."""
        self._watch.close()
        self.events += self.disk.events
        self.disk = SimulatedDisk(self.root)
        take_over(self.disk)
        self._watch = ExitStack()
        self._watch.enter_context(watched(self.disk))


_TOLD_OTHERWISE = (
    "ends the log",
    "hold nothing",
    "would be delivered as duplicates",
    "no record begins at",
    "beyond the end of the log",
    "cannot be read",
    "what such a queue has lost",
    "of its end are missing, by config/timercheck",
)
"""Parts of sentences with which `inspect` says that its count is not what an opening finds."""


def _counted_as_lost(problem: str) -> int:
    """How many messages a listing leaves out, and says so, because a broker would lose them."""
    found = re.fullmatch(
        r"timerwheel: ([\d,]+) messages? (is|are) in slots further back .*", problem
    )
    return int(found[1].replace(",", "")) if found else 0


def _files_below(root: Path) -> list[tuple[str, int]]:
    """What a database that works in the background changes while somebody copies it."""
    return sorted((str(each), each.stat().st_size) for each in root.rglob("*"))


def lengths_with_names(events: Sequence[Event]) -> set[int]:
    """Changes of lengths that are on the disk: a journal keeps order, so that a name that somebody
    waited for comes with the length that its file had before.
    """
    directories: dict[int, str] = {}
    waiting: dict[str, set[int]] = defaultdict(set)
    found: set[int] = set()
    for index, event in enumerate(events):
        if isinstance(event, Name) and event.file is not None:
            directories[event.file] = os.path.dirname(event.path) or "."
        elif isinstance(event, Resize) and event.file in directories:
            waiting[directories[event.file]].add(index)
        elif isinstance(event, SyncNames):
            found |= waiting.pop(event.directory, set())
    return found


def take_over(disk: SimulatedDisk) -> None:
    """All that is there is on the disk; a database is known as a whole."""
    disk.take_over()
    index = Path(disk.root) / "delaywheel" / "hierarchy" / "index"
    if index.is_dir():
        name = os.path.relpath(index, disk.root)
        files = {
            each.file
            for each in disk.events
            if isinstance(each, Name) and each.path.startswith(name + os.sep)
        }
        disk.events = [
            each
            for each in disk.events
            if getattr(each, "file", None) not in files or getattr(each, "file", None) is None
        ]
        disk.foreign(index)
