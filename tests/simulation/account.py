# SPDX-License-Identifier: Apache-2.0
"""The oracle of random runs: what may have become of each message, as far as its owner can know.

A message is in one of four fates. Each call of the store and each fault changes the fates that are
possible; what the store shows then leaves only those that agree with it. A store is wrong when no
choice of possible fates agrees. Messages of one name are equal in every field, so they are counted.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import attrs

from message_store import Cancellation, Message, Receipt

_FOR_EVER = 10**15
SHORTEST_LEVEL_MS = 1_000


class Fate(enum.Enum):
    """What became of a message."""

    ABSENT = "absent"
    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"


ABSENT, PENDING, DELIVERED, CANCELLED = Fate
Fates = frozenset[Fate]


class Uncertain(Protocol):
    """Something of which is known what may have become of it, now and since the last flush."""

    may: frozenset[Any]
    since: frozenset[Any]


def message_of(name: str) -> Message:
    """The message of a name: whoever schedules a name twice schedules equal messages."""
    number = sum(name.encode())
    body = name + "x" * (0, 0, 50, 400, 3_000)[number % 5]
    topic = ("orders", "orders2")[number % 2]
    return Message(topic, body.encode(), queue_id=number // 2 % 2, unique_key=name)


@attrs.define(eq=False)
class Life:
    """One message. ``early_ms`` is the first time at which it may be delivered, ``late_ms`` the
    last; ``since`` are all its fates since the last flush, which a loss of power may bring back.
    """

    name: str
    family: str
    batch: int
    scheduled_ms: int
    early_ms: int
    late_ms: int = _FOR_EVER
    receipt: Receipt | None = None
    may: Fates = frozenset({ABSENT, PENDING})
    since: Fates = frozenset({ABSENT, PENDING})
    was_cancelled: bool = False

    @property
    def place(self) -> int:
        """Where its receipt says that its record is; -1 without one."""
        return -1 if self.receipt is None else self.receipt.commit_log_offset

    def become(self, fates: Iterable[Fate]) -> None:
        """These fates are possible now, and no others."""
        self.may = frozenset(fates)
        self.since |= self.may

    def may_also(self, fate: Fate) -> None:
        """This fate is possible too, if the message was pending."""
        if PENDING in self.may:
            self.become(self.may | {fate})

    def surely(self, fate: Fate) -> None:
        """Where it was pending it has this fate."""
        if PENDING in self.may:
            self.become(self.may - {PENDING} | {fate})

    def __str__(self) -> str:
        fates = "/".join(sorted(fate.value for fate in self.may))
        span = f"{self.early_ms}..{self.late_ms if self.late_ms < _FOR_EVER else ''}"
        return f"{self.name} of {self.family} due {span}: {fates}"


@attrs.frozen
class Asked:
    """A cancellation: the messages that it names, those beside them that a wheel takes back with
    them, and what was possible of both before it.
    """

    meant: list[Life]
    near: list[Life]
    fates: list[Fates]
    near_fates: list[Fates]

    def right_answers(self, *, forgets: bool) -> set[Cancellation]:
        """What a store may answer; one with a short retention may have forgotten deliveries."""
        if frozenset({PENDING}) in self.fates:
            return {Cancellation.CANCELLED}
        if any(PENDING in may for may in self.fates + self.near_fates):
            return set(Cancellation)
        if not all(len(may) == 1 for may in self.fates):
            return set(Cancellation)
        if frozenset({CANCELLED}) in self.fates:
            right = {Cancellation.CANCELLED, Cancellation.NEVER_EXISTED}
            is_delivered = frozenset({DELIVERED}) in self.fates
            return right | ({Cancellation.ALREADY_DELIVERED} if is_delivered else set())
        if frozenset({DELIVERED}) in self.fates:
            right = {Cancellation.ALREADY_DELIVERED}
            return right | ({Cancellation.NEVER_EXISTED} if forgets else set())
        return set(Cancellation)


@attrs.define
class Account:
    """All messages of a run. ``family`` is the kind of engine that shows its pending messages now;
    ``slack_ms`` is how much later than promised messages come that another owner promised.
    """

    family: str
    may_repeat: bool = False
    is_repeating: bool = False
    lives: list[Life] = attrs.field(factory=list)
    others: list[Uncertain] = attrs.field(factory=list)
    """What is known of the same store beside its messages."""
    advanced_to_ms: int = -1
    widest_ms: int = 1
    _batches: int = 0

    # --- what is asked and answered ---------------------------------------------------------------

    def schedule(self, names: Sequence[str], dues_ms: Sequence[int], now_ms: int) -> list[Life]:
        """Messages are handed over together: all of them or none."""
        self._batches += 1
        begun = [
            Life(name, self.family, self._batches, now_ms, max(due_ms, now_ms))
            for name, due_ms in zip(names, dues_ms, strict=True)
        ]
        self.lives += begun
        return begun

    def scheduled(self, begun: Sequence[Life], receipts: Sequence[Receipt]) -> None:
        """They are promised."""
        for life, receipt in zip(begun, receipts, strict=True):
            life.receipt = receipt
            life.early_ms = life.late_ms = receipt.promised_ms
            life.become({PENDING})

    def refused(self, begun: Sequence[Life]) -> None:
        """The store said that it takes none of them."""
        self.lives = [life for life in self.lives if life not in begun]

    def advance(self, now_ms: int, lives: Sequence[Life] | None = None) -> None:
        """Somebody begins to deliver these, or all."""
        self.advanced_to_ms = max(self.advanced_to_ms, now_ms)
        for life in self._own() if lives is None else lives:
            if life.early_ms <= now_ms:
                life.may_also(DELIVERED)

    def advanced(self, now_ms: int, lives: Sequence[Life] | None = None) -> None:
        """That came back."""
        for life in self._own() if lives is None else lives:
            if life.late_ms <= now_ms and life.family == self.family:
                life.surely(DELIVERED)

    def cancel(self, life: Life, *, by_receipt: bool) -> Asked:
        """A cancellation of this message begins."""
        assert life.receipt is not None
        alike = [each for each in self._own() if each.name == life.name]
        if by_receipt and self.family != "timers":
            # After a loss of power another may lie where a message was that is lost.
            meant = [each for each in alike if each.place == life.place]
            near = []
        else:
            named = [each for each in alike if self._is_named(each, life.receipt)]
            # By a receipt a wheel takes its message, and of those that share its handle any.
            meant = [life] if by_receipt else named
            near = [each for each in alike if each not in meant and self._is_near(each, life)]
            near = [*(each for each in named if each not in meant and each not in near), *near]
        asked = Asked(meant, near, [each.may for each in meant], [each.may for each in near])
        for each in meant + near:
            each.may_also(CANCELLED)
            each.was_cancelled = True
        return asked

    @staticmethod
    def _is_named(life: Life, receipt: Receipt) -> bool:
        return life.receipt is not None and life.receipt.handle == receipt.handle

    def _is_near(self, life: Life, other: Life) -> bool:
        """Whether a wheel may have both in one slot, or nobody knows what it was promised for."""
        if life.receipt is None:
            return True
        at_once = any(each.early_ms <= each.scheduled_ms for each in (life, other))
        is_close = abs(life.early_ms - other.early_ms) <= self.widest_ms
        return self.family == "timers" and (at_once or is_close)

    def cancelled(self, asked: Asked, answer: Cancellation, *, forgets: bool) -> list[str]:
        """The answer; what is wrong with it."""
        if answer is Cancellation.CANCELLED:
            for each in asked.meant:
                each.surely(CANCELLED)
        if answer in asked.right_answers(forgets=forgets) or self.is_repeating:
            return []
        told = ", ".join(map(str, asked.meant))
        return [f"cancel answers {answer.value!r} about: {told}, before: {asked.fates}"]

    def flushed(self) -> None:
        """What is so now outlives a loss of power."""
        for each in self._all:
            each.since = each.may

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """A flush beside other threads: what was so when it began, and all that was so since, may
        be on the disk. One that fails makes nothing certain.
        """
        before = [(each, each.since) for each in self._all]
        for each in self._all:
            each.since = each.may
        try:
            yield
        except BaseException:
            for each, since in before:
                each.since |= since
            raise

    def power_lost(self) -> None:
        """Nothing is certain but what was so all the time since the last flush."""
        for other in self.others:
            other.may = other.since
        for life in self.lives:
            life.become(life.since)
            if ABSENT in life.may:  # a batch that nobody flushed may be there in part
                self._batches += 1
                life.batch = self._batches
        self.killed()

    def killed(self) -> None:
        """A store that repeats after a kill does so from now on. An entry of a level that is made
        again from its record knows nothing of a message that was due at once.
        """
        self.is_repeating |= self.may_repeat
        for life in self.lives:
            if life.family == "levels" and life.early_ms <= life.scheduled_ms:
                life.late_ms = max(life.late_ms, life.early_ms + SHORTEST_LEVEL_MS)

    def changed_hands(self, family: str, precision_ms: int) -> None:
        """Another owner holds to slots of this width: what it took over comes up to one later."""
        self.widest_ms = max(self.widest_ms, precision_ms)
        if family == self.family:
            for life in self._own():
                life.late_ms += precision_ms
        self.family = family

    def moved(self, source: str, target: str, precision_ms: int) -> None:
        """A migration moved what was pending from one kind of engine to another."""
        for life in self.lives:
            if life.family == source and PENDING in life.may:
                life.family, life.receipt = target, None
                life.late_ms += precision_ms
        self.widest_ms = max(self.widest_ms, precision_ms)

    @property
    def _all(self) -> list[Uncertain]:
        return [*self.lives, *self.others]

    def _own(self) -> list[Life]:
        return [life for life in self.lives if life.family == self.family]

    # --- what is seen -----------------------------------------------------------------------------

    def observe(self, pending: Counter[str], came: Counter[str]) -> list[str]:
        """What is wrong with what a store shows; fates that do not agree with it go."""
        groups: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives:
            groups[life.name].append(life)
        wrong = [f"nobody scheduled {name}" for name in (pending | came).keys() - groups.keys()]
        for name, lives in groups.items():
            wrong += self._observe_name(lives, (pending[name], came[name]))
        return wrong + self._torn_batches()

    def _observe_name(self, lives: list[Life], seen: tuple[int, int]) -> list[str]:
        if self.is_repeating:
            return self._at_least(lives, seen)
        if not self._narrow(lives, seen):
            pending, came = seen
            told = "; ".join(map(str, lives))
            return [f"{self._kind(lives, seen)}: {pending} pending, {came} delivered of: {told}"]
        return []

    def _at_least(self, lives: list[Life], seen: tuple[int, int]) -> list[str]:
        """Of a store that repeats: nothing lost, nothing early, what was never due never came."""
        own = [life for life in lives if life.family == self.family]
        least = sum(life.may <= {PENDING, DELIVERED} for life in own)
        pending, came = seen
        told = f"{pending} pending, {came} delivered of: {'; '.join(map(str, lives))}"
        wrong = [f"lost: {told}"] if pending + came < least else []
        is_due = any(DELIVERED in life.may for life in lives)
        return wrong + ([f"early: {told}"] if came and not is_due else [])

    def _kind(self, lives: list[Life], seen: tuple[int, int]) -> str:
        """Lost, doubled or early, in a word."""
        sums = _sums([self._counts(life) for life in lives])
        pending, came = seen
        if pending + came < min(sum(each) for each in sums):
            return "lost"
        if pending + came > max(sum(each) for each in sums):
            return "doubled"
        return "early" if came > max(each[1] for each in sums) else "not as promised"

    def _counts(self, life: Life) -> dict[Fate, tuple[int, int]]:
        shown = int(life.family == self.family)
        return {
            fate: (shown if fate is PENDING else 0, int(fate is DELIVERED)) for fate in life.may
        }

    def _narrow(self, lives: list[Life], seen: tuple[int, int]) -> bool:
        """Leave the fates that some choice has in which the counts are those; False: none has."""
        if all(len(life.may) == 1 for life in lives):
            return seen in _sums([self._counts(life) for life in lives])
        counts = [self._counts(life) for life in lives]
        for index, life in enumerate(lives):
            others = _sums(counts[:index] + counts[index + 1 :])
            left = [
                fate
                for fate, (pending, came) in counts[index].items()
                if (seen[0] - pending, seen[1] - came) in others
            ]
            if not left:
                return False
            life.may = frozenset(left)
            counts[index] = self._counts(life)
        return True

    def _torn_batches(self) -> list[str]:
        """Of messages that were handed over together either all are there or none."""
        batches: dict[int, list[Life]] = defaultdict(list)
        for life in self.lives:
            batches[life.batch].append(life)
        wrong = []
        for lives in batches.values():
            there = [life for life in lives if ABSENT not in life.may]
            absent = [life for life in lives if life.may == {ABSENT}]
            if there and absent:
                wrong.append(f"torn: {len(there)} of {len(lives)} handed over with {there[0].name}")
        return wrong


def _sums(counts: Sequence[dict[Fate, tuple[int, int]]]) -> set[tuple[int, int]]:
    """Every number of pending and delivered messages that a choice of fates may come to."""
    found = {(0, 0)}
    for each in counts:
        found = {(p + q, d + e) for p, d in found for q, e in set(each.values())}
    return found
