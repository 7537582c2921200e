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

from message_store import Cancellation, Message, Pending, Receipt

_FOR_EVER = 10**15
SHORTEST_LEVEL_MS = 1_000
WIDE = "WIDE"
"""With what the names begin of messages that differ more from each other."""


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
    if name.startswith(WIDE):
        return _wide_message(name, int(name.removeprefix(WIDE)))
    number = sum(name.encode())
    body = name + "x" * (0, 0, 50, 400, 3_000)[number % 5]
    topic = ("orders", "orders2")[number % 2]
    return Message(topic, body.encode(), queue_id=number // 2 % 2, unique_key=name)


def _wide_message(name: str, number: int) -> Message:
    """Of many topics and queues, as long as a file or empty, with all that a message may have."""
    body = name + "x" * (0, 5_000, 7_000, 1)[number % 4]
    return Message(
        f"{WIDE}{number % 20}",
        body.encode(),
        tags=(None, "ätzend", "t" * 60)[number % 3],
        keys=("42", "größer")[: number % 3],
        properties={"Käufer": "𝄞 Müller"} if number % 2 else {},
        queue_id=number % 7,
        unique_key=name,
    )


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
    before: tuple[int, int] | None = None
    """The first and last of its times since the last flush, if it was rescheduled."""
    replaced_by: Life | None = None
    """Of a receipt that names nothing any more: the message that it named before that moved."""
    may_count_as_delivered: bool = False
    """It was cancelled on a level whose offset went on; the power took what says so of its entry.
    """

    @property
    def place(self) -> int:
        """Where its receipt says that its record is; -1 without one."""
        return -1 if self.receipt is None else self.receipt.commit_log_offset

    @property
    def may_be_rebuilt(self) -> bool:
        """Whether it was due when it was stored, and its level's entry may have been made again."""
        is_late = self.early_ms <= self.scheduled_ms and self.late_ms > self.early_ms
        return self.family == "levels" and is_late

    def become(self, fates: Iterable[Fate]) -> None:
        """These fates are possible now, and no others."""
        self.may = frozenset(fates)
        self.since |= self.may

    def may_also(self, fate: Fate) -> None:
        """This fate is possible too, if the message was pending."""
        if PENDING in self.may:
            self.become(self.may | {fate})

    def may_be_repeated(self) -> None:
        """It may wait once more, whatever became of it."""
        self.become(self.may | {PENDING})

    def surely(self, fate: Fate) -> None:
        """Where it was pending it has this fate."""
        if PENDING in self.may:
            self.become(self.may - {PENDING} | {fate})

    def wait_for(self, early_ms: int, late_ms: int, receipt: Receipt | None) -> None:
        """It has other times; a loss of power may bring the ones before back."""
        self.before = _both((self.early_ms, self.late_ms), self.before)
        self.early_ms, self.late_ms, self.receipt = early_ms, late_ms, receipt

    def may_be_back(self) -> None:
        """The power was lost: it may have any of its times since the last flush."""
        if self.before is not None:
            self.early_ms, self.late_ms = _both((self.early_ms, self.late_ms), self.before)
            self.receipt = self.before = None

    def __str__(self) -> str:
        fates = "/".join(sorted(fate.value for fate in self.may))
        span = f"{self.early_ms}..{self.late_ms if self.late_ms < _FOR_EVER else ''}"
        return f"{self.name} of {self.family} due {span}: {fates}"


@attrs.frozen
class Asked:
    """A cancellation: the messages that it names, those beside them that a wheel takes back with
    them, and what was possible of both before it. A handle may name those beside too: a wheel of
    another width gave them one time.
    """

    meant: list[Life]
    near: list[Life]
    fates: list[Fates]
    near_fates: list[Fates]
    by_receipt: bool

    @property
    def may_wait(self) -> list[Life]:
        """Those that may have been pending."""
        every = zip(self.meant + self.near, self.fates + self.near_fates, strict=True)
        return [life for life, may in every if PENDING in may]

    def right_answers(self, *, forgets: bool) -> set[Cancellation]:
        """What a store may answer; one with a short retention may have forgotten deliveries."""
        if frozenset({PENDING}) in self.fates:
            return {Cancellation.CANCELLED}
        if any(PENDING in may for may in self.fates + self.near_fates):
            return set(Cancellation)
        # A message whose receipt is not known may have the handle that names it.
        near = zip(self.near, self.near_fates, strict=True)
        told = {may for life, may in near if life.receipt is None or not self.by_receipt}
        fates = {*self.fates, *told}
        is_told = any(each != {ABSENT} for each in self.fates)
        if not is_told or any(len(may) > 1 for may in fates):
            return set(Cancellation)
        right: set[Cancellation] = set()
        if frozenset({CANCELLED}) in fates:
            right |= {Cancellation.CANCELLED, Cancellation.NEVER_EXISTED}
            if any(life.may_count_as_delivered for life in self.meant):
                right |= {Cancellation.ALREADY_DELIVERED}
        if frozenset({DELIVERED}) in fates:
            right |= {Cancellation.ALREADY_DELIVERED}
            right |= {Cancellation.NEVER_EXISTED} if forgets else set()
        return right


@attrs.frozen
class Moving:
    """A reschedule that began: what it names, and how each of these was promised before."""

    asked: Asked
    now_ms: int
    before: dict[Life, Life]

    def did_nothing(self) -> None:
        """All is as it was."""
        for life, before in self.before.items():
            life.early_ms, life.late_ms = before.early_ms, before.late_ms
            life.scheduled_ms, life.receipt = before.scheduled_ms, before.receipt
            life.before = before.before

    def wrong_answer(self, answer: Receipt | Cancellation | None, *, forgets: bool) -> bool:
        """Whether a store may not answer that; None: that several share what names the message."""
        waits = self.asked.fates.count(frozenset({PENDING}))
        if isinstance(answer, Receipt):
            return waits > 1 or not self.before
        if answer is None:
            return len(self.asked.may_wait) < 2
        return waits > 0 or answer not in self.asked.right_answers(forgets=forgets)


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
        asked = self._asked(life, by_receipt=by_receipt)
        for each in asked.meant + asked.near:
            each.may_also(CANCELLED)
            each.was_cancelled = True
        return asked

    def _asked(self, life: Life, *, by_receipt: bool) -> Asked:
        """What a receipt or a handle names."""
        assert life.receipt is not None
        alike = [each for each in self._own() if each.name == life.name]
        if by_receipt and self.family != "timers":
            # After a loss of power another may lie where a message was that is lost.
            there = [each for each in alike if each.place == life.place]
            meant = [each for each in there if self._is_named(each, life.receipt)]
            near = [each for each in there if each not in meant]
        else:
            named = [each for each in alike if self._is_named(each, life.receipt)]
            # By a receipt a wheel takes its message, and of those that share its handle any.
            meant = [life] if by_receipt else named
            near = [each for each in alike if each not in meant and self._is_near(each, life)]
            near = [*(each for each in named if each not in meant and each not in near), *near]
        return Asked(
            meant, near, [each.may for each in meant], [each.may for each in near], by_receipt
        )

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
                # Of a level a handle takes those with entries of its time, or those without.
                if len(asked.meant) == 1 or not each.may_be_rebuilt:
                    each.surely(CANCELLED)
        if answer in asked.right_answers(forgets=forgets) or self.is_repeating:
            return []
        told = ", ".join(map(str, asked.meant))
        return [f"cancel answers {answer.value!r} about: {told}, before: {asked.fates}"]

    def reschedule(
        self, life: Life, times_ms: tuple[int, int], now_ms: int, *, by_receipt: bool
    ) -> Moving:
        """This message begins to move to a time between these two; it has the old one or the new
        one.
        """
        asked = self._asked(life, by_receipt=by_receipt)
        named = [each for each in asked.may_wait if not by_receipt or each in asked.meant]
        moving = Moving(asked, now_ms, {each: attrs.evolve(each) for each in named})
        first_ms, last_ms = times_ms
        for each in named:
            each.wait_for(min(each.early_ms, first_ms), max(each.late_ms, last_ms), None)
            each.scheduled_ms = max(each.scheduled_ms, now_ms)
        return moving

    def rescheduled(
        self, moving: Moving, answer: Receipt | Cancellation | None, *, forgets: bool
    ) -> list[str]:
        """The answer, see ``Moving``; what is wrong with it."""
        asked = moving.asked
        wrong = moving.wrong_answer(answer, forgets=forgets) and not self.is_repeating
        if isinstance(answer, Receipt):
            sure = [each for each in asked.meant if each.may == {PENDING}] or list(moving.before)
            if len(sure) == 1:
                self._moved(moving, sure[0], answer)
        else:
            moving.did_nothing()
        if not wrong:
            return []
        told = ", ".join(map(str, asked.meant + asked.near))
        return [f"reschedule answers {answer} about: {told}, before: {asked.fates}"]

    def _moved(self, moving: Moving, life: Life, receipt: Receipt) -> None:
        """This one surely moved."""
        moving.did_nothing()
        came: Fates = life.may & {DELIVERED} if self.is_repeating else frozenset()
        life.become({PENDING} | came)
        if receipt.commit_log_offset == life.place:  # it would have stayed in its slot
            life.receipt = receipt
            return
        self._batches += 1
        gone: Fates = frozenset({CANCELLED})
        self.lives.append(
            attrs.evolve(life, batch=self._batches, may=gone, since=gone, was_cancelled=True,
                         before=None, replaced_by=life)
        )  # fmt: skip
        life.wait_for(receipt.promised_ms, receipt.promised_ms, receipt)
        life.scheduled_ms = moving.now_ms
        if self.family == "levels":  # which wait for the disk
            life.since, life.before = life.may, None

    def cancel_all(self, name: str) -> Asked:
        """All pending messages of a name begin to be cancelled."""
        alike = [each for each in self.lives if self.is_own(each, name) and PENDING in each.may]
        asked = Asked(alike, [], [each.may for each in alike], [], by_receipt=False)
        for each in alike:
            each.may_also(CANCELLED)
            each.was_cancelled = True
        return asked

    def is_own(self, life: Life, name: str) -> bool:
        """Whether the engine that is asked has it, and it has this name."""
        return life.name == name and life.family == self.family

    def cancelled_all(self, asked: Asked, answers: Sequence[Cancellation]) -> list[str]:
        """The answers about each that was found; what is wrong with them."""
        for each in asked.meant:
            each.surely(CANCELLED)
        least = asked.fates.count(frozenset({PENDING}))
        is_right = least <= len(answers) <= len(asked.fates)
        if (is_right and set(answers) <= {Cancellation.CANCELLED}) or self.is_repeating:
            return []
        told = ", ".join(map(str, asked.meant))
        return [f"cancel by key answers {answers} about: {told}, before: {asked.fates}"]

    def wrong_times(self, pending: Sequence[Pending]) -> list[str]:
        """What is wrong with the times for which messages are said to wait."""
        if self.is_repeating:
            return []
        own = [each for each in self._own() if PENDING in each.may]
        left = [each for each in own for _ in range(self.most_of(each))]
        wrong = []
        for each in sorted(pending, key=lambda one: one.due_ms):
            fits = [
                life
                for life in left
                if life.name == each.unique_key and life.early_ms <= each.due_ms <= life.late_ms
            ]
            if fits:
                left.remove(min(fits, key=lambda life: life.late_ms))
            else:
                told = "; ".join(str(life) for life in self.lives if life.name == each.unique_key)
                wrong.append(f"said to wait for {each.due_ms}, of: {told}")
        return wrong

    def flushed(self) -> None:
        """What is so now outlives a loss of power."""
        for each in self._all:
            each.since = each.may
        for life in self.lives:
            life.before = None

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """A flush beside other threads: what was so when it began, and all that was so since, may
        be on the disk. One that fails makes nothing certain.
        """
        before = [(each, each.since) for each in self._all]
        moved = [(each, each.before) for each in self.lives if each.before is not None]
        self.flushed()
        try:
            yield
        except BaseException:
            for each, since in before:
                each.since |= since
            for life, times_ms in moved:
                life.before = _both(times_ms, life.before)
            raise

    def power_lost(self) -> None:
        """Nothing is certain but what was so all the time since the last flush."""
        for other in self.others:
            other.may = other.since
        for each in self.lives:
            if each.replaced_by is not None and _may_name_again(each):
                each.replaced_by.was_cancelled = True  # its marker may be on the disk
        self.lives = [each for each in self.lives if not _may_name_again(each)]
        for life in self.lives:
            life.may_be_back()
            is_unsure = {CANCELLED, PENDING} <= life.since
            life.may_count_as_delivered |= life.family == "levels" and is_unsure
            life.become(life.since)
            if ABSENT in life.may:  # a batch that nobody flushed may be there in part
                self._batches += 1
                life.batch = self._batches
        self.killed()

    def opened(self) -> None:
        """Engines of ours deliver nothing again because somebody opened them."""

    def killed(self) -> None:
        """A store that repeats after a kill does so from now on. An entry of a level that is made
        again from its record knows nothing of a message that was due at once.
        """
        self.is_repeating |= self.may_repeat
        for life in self.lives:
            if life.family == "levels" and life.early_ms <= life.scheduled_ms:
                life.late_ms = max(life.late_ms, life.early_ms + SHORTEST_LEVEL_MS)

    def struck(self) -> None:
        """A fault struck, and may have been told to nobody."""

    def changed_hands(self, family: str, precision_ms: int) -> None:
        """Another owner holds to slots of this width: what it took over comes up to one later."""
        self.widest_ms = max(self.widest_ms, precision_ms)
        is_the_same = family in (self.family, "timers")  # levels may have been in between
        self.family = family
        if is_the_same:
            for life in self._own():
                life.late_ms += precision_ms
                if life.before is not None:
                    life.before = life.before[0], life.before[1] + precision_ms

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

    def most_of(self, life: Life) -> int:
        """How many of this message there may be."""
        return 1

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


def _both(span: tuple[int, int], other: tuple[int, int] | None) -> tuple[int, int]:
    """The shortest span with both in it."""
    return span if other is None else (min(span[0], other[0]), max(span[1], other[1]))


def _may_name_again(life: Life) -> bool:
    """Whether this receipt named nothing, and a loss of power may have brought its message back."""
    return life.replaced_by is not None and life.replaced_by.before is not None


def _sums(counts: Sequence[dict[Fate, tuple[int, int]]]) -> set[tuple[int, int]]:
    """Every number of pending and delivered messages that a choice of fates may come to."""
    found = {(0, 0)}
    for each in counts:
        found = {(p + q, d + e) for p, d in found for q, e in set(each.values())}
    return found
