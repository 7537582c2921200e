# SPDX-License-Identifier: Apache-2.0
"""The oracle of a consumer group in a random run: which records of each message it may have left.

Of a message the group may have left the record in its topic, records that were given back so many
times, and dead letters: that is one ``Left``. What is not certain after a fault is a set of them.
Whatever the group does leads from each to others, and what it receives rules some out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import attrs

from consumer_groups import Received
from tests.faults.store_reading import Found
from tests.simulation.account import message_of

LEVEL_DELAYS_S = (1, 5, 10, 30, *(60 * each for each in range(1, 11)), 1_200, 1_800, 3_600, 7_200)
_FIRST_LEVEL = 3

Place = tuple[str, int, int]
"""Topic, queue and queue offset of a record."""


@attrs.frozen(order=True)
class Stage:
    """How far a record has come; ``retries`` is how often its message was given back."""

    kind: str
    retries: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the group has to receive it."""
        return self.kind not in (DEAD.kind, _MARK)


_MANY = 200
"""From so many possibilities on the marks of seeks are dropped: a choice, to keep runs short."""

BASE, DEAD = Stage("in its topic"), Stage("dead")
_MARK = "by an action"
"""Not a record: the number marks what is left if an action was done, and is on the disk."""
Left = tuple[Stage, ...]
"""The records of a message that a group has left, in order."""


def retried(times: int) -> Stage:
    """It was given back for another try."""
    return Stage("retried", times)


def retry_delay_ms(retries: int) -> int:
    """How long a message waits that was given back so many times before."""
    return 1_000 * LEVEL_DELAYS_S[_FIRST_LEVEL - 1 + retries]


@attrs.frozen
class Move:
    """A record at one stage becomes one at another; ``None`` is no record."""

    stage: Stage | None
    to: Stage | None

    def whole(self, left: Left) -> Left:
        """What is left when all of it was done. Of what is not there nothing becomes anything."""
        if self.stage is None:
            return left if self.to in left else _sorted(left, self.to)
        rest = list(left)
        if self.stage not in rest:
            return left
        rest.remove(self.stage)
        return _sorted(rest, self.to)

    def twice(self, left: Left) -> Left:
        """The new record is on the disk after a loss of power, and what says so is not; nor need be
        what made the old one, a seek.
        """
        return left if self.stage is None else _sorted(left, self.to)


def _sorted(left: Sequence[Stage], more: Stage | None) -> Left:
    if more is None or (more.kind == _MARK and more in left):
        return tuple(left)
    return tuple(sorted((*left, more)))


_BEGIN, _SKIP = Move(None, BASE), Move(BASE, None)


def _without(lefts: Iterable[Left], marks: Sequence[Stage] = ()) -> frozenset[Left]:
    """The same without these marks, or without any."""
    return frozenset(
        tuple(each for each in left if each.kind != _MARK or (marks and each not in marks))
        for left in lefts
    )


@attrs.define(eq=False)
class Hand:
    """A message in somebody's hands, at which stage it was received, and until when it is hidden
    from others.
    """

    message: Received
    stage: Stage
    until_ms: int

    @property
    def name(self) -> str:
        """The message's."""
        return self.message.unique_key or ""

    @property
    def place(self) -> Place:
        """Where its record is."""
        stored = self.message.stored
        return stored.topic, stored.queue_id, stored.queue_offset


@attrs.define(eq=False)
class Known:
    """What is known of one message: what may be left of it, now and since the last flush.

    ``early_ms`` is when each retry may come, ``retries`` which of them this process received and
    did not settle.
    """

    name: str
    may: frozenset[Left] = frozenset({(BASE,)})
    since: frozenset[Left] = frozenset({(BASE,)})
    early_ms: dict[Stage, int] = attrs.field(factory=dict)
    retries: dict[Place, Stage] = attrs.field(factory=dict)
    under_way: set[Stage] = attrs.field(factory=set)
    """The marks of what some thread does to it now."""

    @property
    def is_vague(self) -> bool:
        """Whether so much may be left that what comes of it is no more to be kept in mind: each try
        doubles it until the next flush.
        """
        return len(self.since) > _MANY

    def become(self, may: Iterable[Left]) -> None:
        """These are possible now, and no others."""
        self.may = frozenset(may)
        self.since |= self.may

    def saw(self, stage: Stage, at_least: int = 1) -> bool:
        """There were so many records at a stage, or more; returns whether that may be. What is
        under way may be done after that.
        """
        fits = frozenset(
            left
            for left in self.may
            if left.count(stage) >= at_least or not self.under_way.isdisjoint(left)
        )
        self.may = fits or self.may
        return bool(fits)

    def settle(self, marks: Sequence[Stage], *, is_done: bool, keeps: bool) -> None:
        """What is under way by these marks has an end: all of it was done, or nobody knows."""
        self.under_way.difference_update(marks)
        if is_done:
            done = frozenset(left for left in self.may if set(marks) <= set(left))
            self.may = done or self.may
        if self.is_vague:  # of seeks long ago nobody needs to know
            self.may, self.since = _without(self.may), _without(self.since)
        elif not keeps:
            self.may, self.since = _without(self.may, marks), _without(self.since, marks)

    @property
    def marks(self) -> list[Stage]:
        """Of seeks that surely are on the disk."""
        return [stage for stage in min(self.may) if stage.kind == _MARK and self.at_least(stage)]

    def may_come(self, stage: Stage | None, early_ms: int) -> None:
        """A record is to come at a time, as others at its stage may have to."""
        if stage is not None:
            self.early_ms[stage] = min(early_ms, self.early_ms.get(stage, early_ms))

    def at_least(self, stage: Stage) -> int:
        """So many records surely are at a stage."""
        return min(left.count(stage) for left in self.may)

    def at_most(self, stage: Stage) -> int:
        """So many records may be at a stage."""
        return max(left.count(stage) for left in self.may)

    def live(self, has_base: bool) -> tuple[int, int]:
        """How many records the group has to receive, at least and at most. A loss of power may have
        taken one from its topic: then it is pending again, or was never flushed.
        """
        most = [sum(stage.is_live for stage in left) for left in self.may]
        least = [
            sum(stage.is_live and (has_base or stage != BASE) for stage in left)
            for left in self.may
        ]
        return min(least), max(most)

    def __str__(self) -> str:
        lefts = sorted(_without(self.may))
        told = [" and ".join(f"{s.kind} {s.retries}" for s in left) for left in lefts]
        return f"{self.name}: {' or '.join(each or 'done' for each in told)}"


class GroupAccount:
    """One group's: its settings, and what is known of all messages that reached their topics."""

    def __init__(
        self, name: str, max_retries: int, *, is_ordered: bool, is_synced: bool = False
    ) -> None:
        self.name, self.max_retries = name, max_retries
        self.is_ordered, self.is_synced = is_ordered, is_synced
        self.known: dict[str, Known] = {}
        self._hands: dict[Place, Hand] = {}
        self.old_hands: list[Hand] = []
        """Messages that were received again since, or that a seek took from their holders."""
        self.places: dict[str, Place] = {}
        self._actions = count()

    # --- what is there ----------------------------------------------------------------------------

    def take_in(self, found: Iterable[Found]) -> list[Known]:
        """These messages are in their topics now; returns those that are new."""
        self.places = {each.name: (each.topic, each.queue_id, each.queue_offset) for each in found}
        new = [Known(name) for name in self.places if name not in self.known]
        self.known |= {each.name: each for each in new}
        return new

    def forget_hands(self) -> None:
        """Another process has the store."""
        self.old_hands.clear()
        self._hands.clear()
        for each in self.known.values():
            each.retries.clear()

    @property
    def in_hand(self) -> list[Hand]:
        """What somebody works on."""
        return list(self._hands.values())

    # --- receiving --------------------------------------------------------------------------------

    def received(
        self, messages: Sequence[Received], now_ms: int, advanced_to_ms: int
    ) -> Iterator[str]:
        """Messages that the group received; yields what is wrong with it."""
        if self.is_ordered:
            yield from self._disorder(messages, now_ms)
        for message in messages:
            yield from self._received_one(message, now_ms, advanced_to_ms)

    def _received_one(self, message: Received, now_ms: int, advanced_to_ms: int) -> Iterator[str]:
        is_retry = message.stored.topic == f"%RETRY%{self.name}"
        stage = retried(message.retries) if is_retry else BASE
        hand = Hand(message, stage, message.visible_ms)
        told = f"{self.name}: {hand.name}, {stage.kind} {message.retries}"
        known = self.known.get(hand.name)
        if known is None:
            yield f"{told} times, is received, and is not known"
            return
        if is_retry:
            known.retries[hand.place] = stage
        if not known.saw(stage, sum(each == stage for each in known.retries.values()) or 1):
            yield f"{told} times, is received, and it is: {known}"
        for mark in known.marks:
            for other in self.known.values():
                if other.at_most(mark):  # it was among those
                    other.saw(mark)
        wanted = message_of(hand.name)
        if (message.topic, message.body) != (wanted.topic, wanted.body):
            yield f"{told}: received from {message.topic} with another body or topic"
        if advanced_to_ms < (early_ms := known.early_ms.get(stage, 0)):
            yield f"{told}: {early_ms - advanced_to_ms} ms early"
        if (old := self._hands.pop(hand.place, None)) is not None:
            self.old_hands.append(old)
            if now_ms < old.until_ms:
                yield f"{told}: received again {old.until_ms - now_ms} ms before it is visible"
        self._hands[hand.place] = hand

    def _disorder(self, messages: Sequence[Received], now_ms: int) -> Iterator[str]:
        """A queue gives its messages in their order, and none while one is in somebody's hands."""
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        for message in messages:
            stored = message.stored
            offsets[stored.topic, stored.queue_id].append(stored.queue_offset)
        # What a refused call may have settled holds nobody back for certain.
        held = {
            hand.place[:2]
            for hand in self.in_hand
            if now_ms < hand.until_ms and self.known[hand.name].at_least(hand.stage)
        }
        for queue, came in offsets.items():
            if queue in held:
                yield f"{self.name}: {queue} is held by another message"
            if came != sorted(came):
                yield f"{self.name}: {queue} gives {came}"
            before = {
                self.places[each.name][2]
                for each in self.known.values()
                if each.at_least(BASE) and self.places.get(each.name, ("", 0))[:2] == queue
            }
            if skipped := [each for each in before if each < came[-1] and each not in came]:
                yield f"{self.name}: {queue} gives {came} before {sorted(skipped)}"

    # --- settling ---------------------------------------------------------------------------------

    @contextmanager
    def settling(
        self, hands: Sequence[Hand], to: Stage | None, early_ms: int = 0
    ) -> Iterator[None]:
        """Messages go to another stage, or are done. If that fails, each may be at either."""
        moves: dict[Known, list[Move]] = defaultdict(list)
        hidden: list[tuple[Hand, int]] = []
        for hand in hands:
            known = self.known[hand.name]
            if hand.place in self._hands:  # from somewhere in here on it holds nobody back
                hidden.append((self._hands[hand.place], self._hands[hand.place].until_ms))
                self._hands[hand.place].until_ms = 0
            # A retry that is settled is settled: nothing more becomes of it.
            if hand.stage == BASE or known.retries.pop(hand.place, None) is not None:
                moves[known].append(Move(hand.stage, to))
                known.may_come(to, early_ms)
        try:
            with self._changing(moves):
                yield
        except BaseException:
            for hand, until_ms in hidden:
                hand.until_ms = until_ms
            raise
        for hand in hands:
            self._hands.pop(hand.place, None)

    @contextmanager
    def _changing(
        self, moves: Mapping[Known, Sequence[Move]], seeks: Mapping[Known, Stage] | None = None
    ) -> Iterator[None]:
        """Each message takes its moves, or, when it fails, some of them. What a loss of power may
        leave are any of those since the last flush. A group that syncs has them on the disk.
        The power takes a seek from all messages of a queue or from none: these marks stay.
        """
        seeks = seeks or {}
        marks: dict[Known, list[Stage]] = defaultdict(list)
        by_power: dict[Known, frozenset[Left]] = {}
        for each, its in moves.items():
            by_power[each] = each.may
            for move in its:
                if move.stage is not None and not each.at_most(move.stage):
                    continue  # it was settled before: nothing is written
                mark = seeks.get(each) or self._mark()
                marks[each].append(mark)
                each.under_way.add(mark)
                each.become(each.may | {_sorted(move.whole(left), mark) for left in each.may})
                by_power[each] |= self._by_power(move, mark, by_power[each])
                each.since |= self._by_power(move, mark, each.since)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            for each, its_marks in marks.items():
                each.since |= by_power[each]  # a flush meanwhile found some of it done
                each.settle(its_marks, is_done=is_done, keeps=each in seeks)
                if self.is_synced and is_done:
                    each.since = each.may

    def _by_power(self, move: Move, mark: Stage, lefts: Iterable[Left]) -> set[Left]:
        """What a move may leave when the power goes, where the disk had one of these."""
        found = {_sorted(move.whole(left), mark) for left in lefts}
        return found if self.is_synced else found | {move.twice(left) for left in lefts}

    def _mark(self) -> Stage:
        return Stage(_MARK, next(self._actions))

    def stage_after_retry(self, hand: Hand) -> Stage:
        """What becomes of it when it is given back."""
        times = hand.message.retries
        return DEAD if times >= self.max_retries else retried(times + 1)

    def held(self, hand: Hand, until_ms: int) -> None:
        """A retry in an ordered queue: it comes then, and what was received behind it after it."""
        topic, queue_id, queue_offset = hand.place
        hand.until_ms = until_ms
        for other in self.in_hand:
            if other.place[:2] == (topic, queue_id) and other.place[2] > queue_offset:
                self.old_hands.append(self._hands.pop(other.place))

    @contextmanager
    def redriving(self, name: str, now_ms: int) -> Iterator[None]:
        """A dead letter becomes a message that was never retried."""
        known, to = self.known[name], retried(0)
        known.saw(DEAD)
        known.may_come(to, now_ms)
        with self._changing({known: [Move(DEAD, to)]}):
            yield

    # --- seeking ----------------------------------------------------------------------------------

    @contextmanager
    def seeking(self, topic: str, offsets: dict[int, int]) -> Iterator[None]:
        """The group goes on at these offsets; what was given back stays."""
        moves = {
            self.known[name]: [_BEGIN if queue_offset >= offsets[queue_id] else _SKIP]
            for name, (its_topic, queue_id, queue_offset) in self.places.items()
            if its_topic == topic and queue_id in offsets
        }
        marks = {queue_id: self._mark() for queue_id in offsets}
        seeks = {each: marks[self.places[each.name][1]] for each in moves}
        with self._changing(moves, seeks):
            yield
        for hand in self.in_hand:
            if hand.place[0] == topic and hand.place[1] in offsets:
                self.old_hands.append(self._hands.pop(hand.place))

    # --- what must hold ---------------------------------------------------------------------------

    def wrong_counts(
        self, open_count: int, given_back: Counter[str], letters: Counter[str]
    ) -> Iterator[str]:
        """What is wrong with counts: ``open_count`` messages in topics that are not done, those
        whose retry waits, and the dead letters, listed or on their way.
        """
        seen = open_count + given_back.total()
        live = [each.live(each.name in self.places) for each in self.known.values()]
        least, most = sum(each for each, _ in live), sum(each for _, each in live)
        if not least <= seen <= most:
            told = f"{open_count} to receive, {given_back.total()} wait for their retry"
            yield f"{self.name}: {told}; that should be {least} to {most}"
        for name in letters.keys() - self.known.keys():
            yield f"{self.name}: a dead letter {name} of no message"
        for each in self.known.values():
            least, most = each.at_least(DEAD), each.at_most(DEAD)
            if not least <= letters[each.name] <= most:
                told = f"{letters[each.name]} dead letters {each.name}"
                yield f"{self.name}: {told}, not {least} to {most}"

    @property
    def to_receive(self) -> list[Known]:
        """The messages of which the group surely has to receive something."""
        return [each for each in self.known.values() if each.live(each.name in self.places)[0]]
