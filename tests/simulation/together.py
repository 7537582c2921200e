# SPDX-License-Identifier: Apache-2.0
"""A step of a random run in which several threads use the store at once, and one may close it.

Which of them comes first nobody knows, so that more fates are possible while they run. Names are
not scheduled and cancelled in one such step: which of the two came first would not be known.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import attrs

from message_store import Cancellation
from message_store.base.errors import DelayStoreError, StoreClosedError, UnsupportedDelayError
from migrate.look.inspect import inspect_store
from tests.simulation.account import CANCELLED, PENDING, Fates, Life
from tests.simulation.simulated_disk import Killed
from tests.simulation.turns import TURNS
from tests.simulation.world import World, is_given_back

Work = Callable[[], object]


class _NotFlushedError(Exception):
    pass


@attrs.frozen
class ToSchedule:
    """What one thread schedules, at once or one behind the other."""

    names: list[str]
    dues_ms: list[int]
    at_once: bool


class Together:
    """The threads, and what is known before and after them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._account = world.account
        self._works: list[tuple[str, Work]] = []
        self._advances = self._closes = self._looks_beside = False
        self._is_closed = False
        self._shown: list[Counter[str]] = []
        self._counted: list[int] = []
        self._wrong: list[str] = []
        self.cancelled: set[str] = set()
        """Names of what is taken back."""

    # --- what is to be done -----------------------------------------------------------------------

    def schedule(self, wanted: ToSchedule) -> None:
        """A thread schedules these; see above for names."""
        self._works.append((f"schedule {wanted}", lambda: self._schedule(wanted)))

    def cancel(self) -> None:
        """A thread takes one back that no other takes back."""
        known = [life for life in self._world.known if life.name not in self.cancelled]
        if known:
            self._advances |= self._world.owner.leeway.works_like_a_broker
            life, by_receipt = self._rng.choice(known[-8:]), self._rng.random() < 0.5
            self.cancelled.add(life.name)
            self._works.append((f"cancel {life}", lambda: self._cancel(life, by_receipt)))

    def advance(self) -> None:
        """A thread delivers."""
        self._advances = True
        self._works.append(("advance", self._advance))

    def flush(self) -> None:
        """A thread flushes."""
        self._advances |= self._world.owner.leeway.works_like_a_broker
        self._works.append(("flush", self._flush))

    def look(self) -> None:
        """A thread lists what is pending."""
        self._works.append(("look", self._look))

    def look_beside(self) -> None:
        """Somebody looks at the files, who has not opened the store."""
        self._looks_beside = self._world.tells_readers
        if self._looks_beside:
            self._works.append(("look beside", self._look_beside))

    def also(self, told: str, work: Work) -> None:
        """A thread does this."""
        self._works.append((told, work))

    def close(self) -> None:
        """A thread closes the store; a broker's engine delivers what is due."""
        self._closes = True
        self._advances |= self._world.owner.leeway.works_like_a_broker
        self._works.append(("close", self._close))

    # --- how it is done ---------------------------------------------------------------------------

    def run(self) -> None:
        """All of it at once."""
        world, account = self._world, self._account
        for told, _ in self._works:
            world.say(f"at once: {told}")
        if world.is_stale:
            world.see()
        if self._advances:
            account.advance(world.clock.now_ms())
        before = {life: life.may for life in account.lives}
        with self._taking_turns():
            errors = TURNS.run([work for _, work in self._works], self._rng)
        world.say(f"  {', '.join(type(error).__name__ for error in errors)}")
        if self._is_closed:
            world.was_closed()
        self._raise_worst([error for error in errors if error is not None])
        world.require(self._wrong)
        self._require_shown(before)
        if world.is_open:
            world.see()

    @contextmanager
    def _taking_turns(self) -> Iterator[None]:
        disk = self._world.disk
        disk.before_change = TURNS.step
        disk.before_reading = TURNS.step if self._looks_beside else None
        try:
            yield
        finally:
            disk.before_change, disk.before_reading = lambda: None, None

    def _raise_worst(self, errors: list[BaseException]) -> None:
        if self._closes:
            errors = [error for error in errors if not isinstance(error, StoreClosedError)]
        for kind in (Killed, KeyboardInterrupt):
            for error in errors:
                if isinstance(error, kind):
                    raise error
        for error in sorted(errors, key=lambda each: isinstance(each, DelayStoreError)):
            raise error

    def _require_shown(self, before: dict[Life, Fates]) -> None:
        """What waits all the time is there once in each listing and each count; what had come, or
        was taken back before, is not.
        """
        if self._account.is_repeating:
            return
        lives = self._account.lives
        # What rolls may be missing where retention takes its older record meanwhile.
        may_miss = self._advances and self._world.forgets and self._account.family == "timers"
        always = [life for life in lives if before.get(life) == life.may == {PENDING}]
        always = [] if may_miss else always
        ever = [
            life
            for life in lives
            if PENDING in before.get(life, {PENDING})
            for _ in range(self._account.most_of(life))
        ]
        wrong = [
            f"beside it {count} messages are pending, not {len(always)} to {len(ever)}"
            for count in self._counted
            if not len(always) <= count <= len(ever)
        ]
        least, most = self._own_names(always), self._own_names(ever)
        for shown in self._shown:
            wrong += [
                f"a listing beside others has {name} {shown[name]} times, not {least[name]} to"
                f" {most[name]}"
                for name in sorted(shown.keys() | least.keys())
                if not least[name] <= shown[name] <= most[name]
            ]
        self._world.require(wrong)

    def _own_names(self, lives: list[Life]) -> Counter[str]:
        """How many of these have each name, of the engine that is asked."""
        return Counter(life.name for life in lives if life.family == self._account.family)

    # --- in a thread ------------------------------------------------------------------------------

    def _schedule(self, wanted: ToSchedule) -> None:
        count = len(wanted.names)
        parts = [range(count)] if wanted.at_once else [range(n, n + 1) for n in range(count)]
        for part in parts:
            names = [wanted.names[row] for row in part]
            dues_ms = [wanted.dues_ms[row] for row in part]
            begun = self._account.schedule(names, dues_ms, self._world.clock.now_ms())
            self._may_come(begun)
            try:
                receipts = self._world.handed_over(names, dues_ms, at_once=wanted.at_once)
            except (UnsupportedDelayError, StoreClosedError):
                self._account.refused(begun)
                continue
            self._account.scheduled(begun, receipts)
            self._may_come(begun)

    def _may_come(self, begun: list[Life]) -> None:
        if self._advances:
            self._account.advance(self._world.clock.now_ms(), begun)

    def _cancel(self, life: Life, by_receipt: bool) -> None:
        assert life.receipt is not None
        asked = self._account.cancel(life, by_receipt=by_receipt)
        answer = self._world.store.cancel(life.receipt if by_receipt else life.receipt.handle)
        self._wrong += self._account.cancelled(asked, answer, forgets=self._world.forgets)
        is_it = answer is Cancellation.CANCELLED and len(asked.meant) == 1 and not asked.near
        if is_it and not self._account.is_repeating:
            life.become({CANCELLED})  # it was pending, and whoever delivers comes too late

    def _advance(self) -> None:
        world, now_ms = self._world, self._world.clock.now_ms()
        promised = [life for life in self._account.lives if life.receipt is not None]
        world.store.advance(now_ms)
        if not world.owner.delivers_later:
            self._account.advanced(now_ms, promised)

    def _flush(self) -> None:
        with self._account.flushing():
            self._world.store.flush()

    def _look(self) -> None:
        pending = self._world.store.pending()
        own = (each for each in pending if not is_given_back(each.topic))
        self._shown.append(Counter(each.unique_key or "" for each in own))

    def _look_beside(self) -> None:
        found = inspect_store(self._world.root, now_ms=self._world.clock.now_ms())
        if found.pending is not None:
            self._counted.append(found.pending)
        elif not any("deleted meanwhile" in each for each in found.problems):
            self._wrong.append(f"no count beside a writer: {found.problems}")

    def _close(self) -> None:
        """One in doubt is released as after a kill, and has flushed nothing."""
        live = self._world.store.live  # type: ignore[attr-defined]
        with suppress(_NotFlushedError), self._account.flushing():
            self._world.store.close()
            if not live.root.was_stopped_cleanly:
                raise _NotFlushedError
        self._is_closed = True
