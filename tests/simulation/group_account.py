# SPDX-License-Identifier: Apache-2.0
"""The oracle of a consumer group in a random run: at which stage each message may be for it.

A message is in its topic, given back so many times, dead, or done. It goes from stage to stage as
the group settles it. A seek begins it once more from its topic, while what was given back stays: so
a message may have more than one chain of stages. Each has a name of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from consumer_groups import Received
from tests.faults.store_reading import Found
from tests.simulation.account import message_of

LEVEL_DELAYS_S = (1, 5, 10, 30, *(60 * each for each in range(1, 11)), 1_200, 1_800, 3_600, 7_200)
_FIRST_LEVEL = 3
_NEVER_MS = 10**15

Place = tuple[str, int, int]
"""Topic, queue and queue offset of a record."""


@attrs.frozen
class Stage:
    """How far a chain has come; ``retries`` is how often it was given back."""

    kind: str
    retries: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the group has to receive it."""
        return self not in (DEAD, DONE, NEVER)


BASE, DEAD, DONE = Stage("in its topic"), Stage("dead"), Stage("done")
NEVER = Stage("never sought")
"""The seek that began a chain was lost with the power, for its whole queue."""


def retried(times: int) -> Stage:
    """It was given back for another try."""
    return Stage("retried", times)


def retry_delay_ms(retries: int) -> int:
    """How long a message waits that was given back so many times before."""
    return 1_000 * LEVEL_DELAYS_S[_FIRST_LEVEL - 1 + retries]


@attrs.frozen
class Hand:
    """A message in somebody's hands, and the stage at which it was received."""

    message: Received
    stage: Stage

    @property
    def place(self) -> Place:
        """Where its record is."""
        stored = self.message.stored
        return stored.topic, stored.queue_id, stored.queue_offset


@attrs.define(eq=False)
class Chain:
    """One message as a group sees it: the stages at which it may be now, and since the last flush.

    ``early_ms`` is when each retry may come, ``record`` where the record is that was received last
    by this process, ``hand`` who has that, until ``until_ms``. ``seek`` is which one began
    it, and in which queue.
    """

    name: str
    may: frozenset[Stage] = frozenset({BASE})
    since: frozenset[Stage] = frozenset({BASE})
    early_ms: dict[Stage, int] = attrs.field(factory=dict)
    record: Place | None = None
    hand: Hand | None = None
    until_ms: int = 0
    seek: tuple[int, int] | None = None

    def become(self, stages: Iterable[Stage]) -> None:
        """These stages are possible now, and no others; none is one that is done."""
        self.may = frozenset(stages) or frozenset({DONE})
        self.since |= self.may

    def leave(self, stage: Stage) -> None:
        """It is at any stage but this one."""
        if stage in self.may:
            self.become(self.may - {stage})

    @property
    def is_live(self) -> bool:
        """Whether the group surely has to receive it."""
        return all(stage.is_live for stage in self.may)

    @property
    def may_be_live(self) -> bool:
        """Whether the group may have to receive it."""
        return any(stage.is_live for stage in self.may)

    def __str__(self) -> str:
        return f"{self.name}: {' or '.join(sorted(f'{s.kind} {s.retries}' for s in self.may))}"


class GroupAccount:
    """One group's: its settings, and the chains of all messages that reached their topics."""

    def __init__(
        self, name: str, max_retries: int, *, is_ordered: bool, is_synced: bool = False
    ) -> None:
        self.name, self.max_retries = name, max_retries
        self.is_ordered, self.is_synced = is_ordered, is_synced
        self._seeks = 0
        self.chains: dict[str, list[Chain]] = defaultdict(list)
        self.old_hands: list[Hand] = []
        """Messages that were received again since, or that a seek took from their holders."""
        self.places: dict[str, Place] = {}

    # --- what is there ----------------------------------------------------------------------------

    def take_in(self, found: Iterable[Found]) -> list[Chain]:
        """These messages are in their topics now; returns a chain for each new one."""
        self.places = {each.name: (each.topic, each.queue_id, each.queue_offset) for each in found}
        new = [Chain(name) for name in self.places if name not in self.chains]
        for chain in new:
            self.chains[chain.name].append(chain)
        return new

    def forget_hands(self) -> None:
        """Another process has the store."""
        self.old_hands.clear()
        for chain in self.all:
            chain.hand = chain.record = None

    def power_lost(self) -> list[Chain]:
        """What was given back and never flushed may be there twice: the record was written to the
        disk, and the journal's line of it was not. Returns a chain for each that may be so. A group
        that syncs has that line on the disk first.
        """
        more = []
        for chain in () if self.is_synced else self.all:
            stages = chain.since - {DONE, NEVER}
            for stage in stages if len(stages) > 1 else ():
                may = frozenset({stage, DONE})
                more.append(Chain(chain.name, may, may, dict(chain.early_ms)))
        for chain in more:
            self.chains[chain.name].append(chain)
        return more

    @property
    def all(self) -> list[Chain]:
        """Every chain."""
        return [chain for chains in self.chains.values() for chain in chains]

    @property
    def in_hand(self) -> list[Chain]:
        """The chains that somebody works on."""
        return [chain for chain in self.all if chain.hand is not None]

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
        name = message.unique_key or ""
        is_retry = message.stored.topic == f"%RETRY%{self.name}"
        stage = retried(message.retries) if is_retry else BASE
        hand = Hand(message, stage)
        chain = self._chain_of(name, hand)
        told = f"{self.name}: {name}, {stage.kind} {message.retries}"
        if chain is None:
            known = "; ".join(map(str, self.chains.get(name, [])))
            yield f"{told} times, is received, and it is: {known or 'unknown'}"
            return
        wanted = message_of(name)
        if (message.topic, message.body) != (wanted.topic, wanted.body):
            yield f"{told}: received from {message.topic} with another body or topic"
        if chain.hand is not None and now_ms < chain.until_ms:
            yield f"{told}: received again {chain.until_ms - now_ms} ms before it is visible"
        # Of two retries of a message, each of its own chain, nobody knows which this is.
        early = [each.early_ms[stage] for each in self.chains[name] if stage in each.early_ms]
        if advanced_to_ms < (early_ms := min(early, default=0)):
            yield f"{told}: {early_ms - advanced_to_ms} ms early"
        if chain.hand is not None:
            self.old_hands.append(chain.hand)
        if stage == BASE and NEVER in chain.may:  # so it is not lost for any message of the queue
            for other in self.all:
                if other.seek == chain.seek:
                    other.leave(NEVER)
        chain.become({stage})
        chain.record, chain.hand, chain.until_ms = hand.place, hand, message.visible_ms
        for other in self.chains[name]:
            if other is not chain and stage == BASE:
                other.leave(BASE)  # there is one record in its topic

    def _chain_of(self, name: str, hand: Hand) -> Chain | None:
        """Which chain a received record is: the one that it was before, else one that is surely at
        this stage, else one that surely has to come, else one that may.
        """
        able = [chain for chain in self.chains.get(name, []) if hand.stage in chain.may]
        bound = [chain for chain in able if chain.record == hand.place]
        free = [chain for chain in able if chain.record is None or hand.stage == BASE]
        left = [chain for chain in able if chain.record is not None and len(chain.may) > 1]
        sure = [chain for chain in free if len(chain.may) == 1]
        live = [chain for chain in free if chain.is_live]
        return next(iter([*bound, *sure, *live, *free, *left]), None)

    def _disorder(self, messages: Sequence[Received], now_ms: int) -> Iterator[str]:
        """A queue gives its messages in their order, and none while one is in somebody's hands."""
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        for message in messages:
            stored = message.stored
            offsets[stored.topic, stored.queue_id].append(stored.queue_offset)
        held = {
            chain.hand.place[:2]
            for chain in self.in_hand
            if chain.hand is not None and now_ms < chain.until_ms
        }
        for queue, came in offsets.items():
            if queue in held:
                yield f"{self.name}: {queue} is held by another message"
            if came != sorted(came):
                yield f"{self.name}: {queue} gives {came}"
            before = {
                self.places[chain.name][2]
                for chain in self.all
                if chain.may == {BASE} and self.places.get(chain.name, ("", 0))[:2] == queue
            }
            if skipped := [each for each in before if each < came[-1] and each not in came]:
                yield f"{self.name}: {queue} gives {came} before {sorted(skipped)}"

    # --- settling ---------------------------------------------------------------------------------

    @contextmanager
    def settling(self, hands: Sequence[Hand], to: Stage, early_ms: int = 0) -> Iterator[None]:
        """Messages go to another stage; while that is done, and if it fails, they may be there."""
        chains = [(chain, hand) for hand in hands for chain in self._meant(hand)]
        for chain, _ in chains:
            chain.become(chain.may | {to})
            chain.early_ms[to] = min(early_ms, chain.early_ms.get(to, _NEVER_MS))
        yield
        for chain, hand in chains:
            chain.leave(hand.stage)
            chain.hand = chain.record = None
        self._synced(chain for chain, _ in chains)

    def _synced(self, chains: Iterable[Chain]) -> None:
        """What came back to a group that syncs is on the disk."""
        for chain in chains if self.is_synced else ():
            chain.since = chain.may

    def _meant(self, hand: Hand) -> list[Chain]:
        """Whose record it is; none where it was settled before."""
        return [
            chain
            for chain in self.chains[hand.message.unique_key or ""]
            if hand.stage in chain.may and (hand.stage == BASE or chain.record == hand.place)
        ]

    def stage_after_retry(self, hand: Hand) -> Stage:
        """What becomes of it when it is given back."""
        times = hand.message.retries
        return DEAD if times >= self.max_retries else retried(times + 1)

    def held(self, chain: Chain, until_ms: int) -> None:
        """A retry in an ordered queue: it comes then, and what was received behind it after it."""
        assert chain.hand is not None
        topic, queue_id, queue_offset = chain.hand.place
        chain.until_ms = until_ms
        for other in self.in_hand:
            assert other.hand is not None
            if other.hand.place[:2] == (topic, queue_id) and other.hand.place[2] > queue_offset:
                self.old_hands.append(other.hand)
                other.hand = None

    @contextmanager
    def redriving(self, name: str, now_ms: int) -> Iterator[None]:
        """A dead letter becomes a message that was never retried."""
        able = [chain for chain in self.chains[name] if DEAD in chain.may]
        chain = min(able, key=lambda each: len(each.may))
        to = retried(0)
        chain.become({DEAD})  # the letter was seen
        chain.become({DEAD, to})
        chain.early_ms[to] = min(now_ms, chain.early_ms.get(to, _NEVER_MS))
        yield
        chain.leave(DEAD)
        self._synced([chain])

    # --- seeking ----------------------------------------------------------------------------------

    @contextmanager
    def seeking(self, topic: str, offsets: dict[int, int]) -> Iterator[list[Chain]]:
        """The group goes on at these offsets; gives the chains that may begin by it."""
        begun: list[Chain] = []
        ended: list[Chain] = []
        self._seeks += 1
        for name, (its_topic, queue_id, queue_offset) in self.places.items():
            if its_topic != topic or queue_id not in offsets:
                continue
            chains = [chain for chain in self.chains[name] if BASE in chain.may]
            is_behind = queue_offset >= offsets[queue_id]
            if is_behind and any(chain.may == {BASE} for chain in chains):
                continue
            for chain in chains:
                chain.become(chain.may | {DONE})
            ended += chains
            if is_behind:
                may = frozenset({BASE, NEVER})
                new = Chain(name, may, may, seek=(self._seeks, queue_id))
                self.chains[name].append(new)
                begun.append(new)
        yield begun
        for chain in ended:
            chain.leave(BASE)
        for chain in begun:
            chain.become({BASE})
        for chain in self.in_hand:
            assert chain.hand is not None
            if chain.hand.place[0] == topic and chain.hand.place[1] in offsets:
                self.old_hands.append(chain.hand)
                chain.hand = None
        self._synced([*ended, *begun])

    # --- what must hold ---------------------------------------------------------------------------

    def wrong_counts(
        self, open_count: int, given_back: Counter[str], letters: Counter[str]
    ) -> Iterator[str]:
        """What is wrong with counts: ``open_count`` messages in topics that are not done, those
        whose retry waits, and the dead letters, listed or on their way.
        """
        seen = open_count + given_back.total()
        least = len(self.to_receive)
        most = sum(chain.may_be_live for chain in self.all)
        if not least <= seen <= most:
            told = f"{open_count} to receive, {given_back.total()} wait for their retry"
            yield f"{self.name}: {told}; that should be {least} to {most}"
        for name in letters.keys() | self.chains.keys():
            chains = self.chains.get(name, [])
            least = sum(chain.may == {DEAD} for chain in chains)
            most = sum(DEAD in chain.may for chain in chains)
            if not least <= letters[name] <= most:
                yield f"{self.name}: {letters[name]} dead letters {name}, not {least} to {most}"

    @property
    def to_receive(self) -> list[Chain]:
        """The chains that the group surely has to receive. A loss of power may have taken a record
        from its topic: then it is pending again, or was never flushed.
        """
        return [
            chain
            for chain in self.all
            if chain.is_live and (BASE not in chain.may or chain.name in self.places)
        ]
