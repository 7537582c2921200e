# SPDX-License-Identifier: Apache-2.0
"""A random run in which consumer groups work on what a store delivers.

Every message has a name of its own. Faults strike what the groups do as they strike everything
else; what a group receives then must agree with an account of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from consumer_groups import ConsumerGroup, GroupStore, Position, consumer_group
from message_store import AfterMs, AtMs
from message_store.interface.delay_store import Due
from tests.simulation.draws import GROUPS
from tests.simulation.group_account import (
    DEAD,
    GroupAccount,
    Hand,
    retry_delay_ms,
)
from tests.simulation.random_run import RandomRun
from tests.simulation.together import Together, ToSchedule
from tests.simulation.world import DAY_MS, WrongError

TOPICS: Final = ("orders", "orders2")
_INVISIBLE_MS: Final = (1_000, 5_000, 60_000)
_ALL: Final = 1_000


class GroupRun(RandomRun):
    """The run of a seed with the focus on groups."""

    def __init__(self, seed: int, folder: Path, skipped: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, folder, skipped, GROUPS)
        rng = random.Random(f"{seed} groups")
        self.accounts = [
            GroupAccount(
                name,
                rng.choice([0, 1, 2, 3, 16]),
                is_ordered=rng.random() < is_often_ordered,
                is_synced=rng.random() < 0.25,
            )
            for name, is_often_ordered in (("billing", 0.1), ("mailing", 0.5))
        ][: rng.choice([1, 2, 2])]
        self._groups: dict[str, ConsumerGroup] = {}
        self._session: object = None
        self._was_set_back = False

    # --- the groups of whoever has the store ------------------------------------------------------

    def group(self, account: GroupAccount) -> ConsumerGroup:
        """The group of an account; hands of an earlier process hold nothing."""
        self._begin_session()
        if account.name not in self._groups:
            self._groups[account.name] = consumer_group(
                cast(GroupStore, self.world.store),
                account.name,
                max_retries=account.max_retries,
                ordered=account.is_ordered,
                sync=account.is_synced,
            )
        return self._groups[account.name]

    def _begin_session(self) -> None:
        if self._session is not self.world.store:
            self._session, self._groups = self.world.store, {}
            for account in self.accounts:
                account.forget_hands()

    def _take_in(self) -> None:
        """Every group has to receive what is in its topics."""
        self._begin_session()
        self.world.see()
        for account in self.accounts:
            self.world.account.others += account.take_in(self.world.found)

    def _require(self, wrong: Sequence[str]) -> None:
        self.world.require(wrong)

    # --- what may be done -------------------------------------------------------------------------

    def _actions(self) -> list[tuple[Callable[[random.Random], None], float]]:
        world = self.world
        actions: list[tuple[Callable[[random.Random], None], float]] = [
            (self._schedule, 10),
            (self._batch, 4),
            (world.cancel, 2),
            (self._time, 10),
            (self._stand, 2),
            (self._clock_back, 1),
            (self._flush, 4),
            (lambda _rng: world.look(), 2),
            (self._reopen_orderly, 3),
            (self._kill, 5),
            (self._together, 4),
            (self._receive, 16),
            (self._ack, 12),
            (self._retry, 10),
            (self._reject, 4),
            (self._redrive, 3),
            (self._settle_old_hands, 3),
            (self._seek, 4),
            (self._retry_to_the_end, 2),
            (lambda _rng: self._count(), 4),
        ]
        if world.owner.family == "timers":
            actions.append((self._change_hands, 2))
        return actions

    def _name(self, rng: random.Random) -> str:
        return f"N{rng.randrange(10**12)}"

    def _dues_ms(self, rng: random.Random) -> int:
        """Mostly at once, so that there is something to receive."""
        if rng.random() < 0.2:
            return super()._dues_ms(rng)
        return self.world.clock.now_ms() + rng.choice([-1, 0, 0, 900, 5_000, 61_000])

    def _schedule(self, rng: random.Random) -> None:
        names = [self._name(rng) for _ in range(rng.choice([1, 1, 2, 5]))]
        self.world.schedule(names, [self._dues_ms(rng) for _ in names], at_once=False)
        if rng.random() < 0.6:
            self.world.clock.tick(rng.choice([0, 1_000, 1_000]))
            self.world.advance()

    def _clock_back(self, rng: random.Random) -> None:
        self._was_set_back = True
        super()._clock_back(rng)

    def _flush(self, rng: random.Random) -> None:
        self.world.flush()
        if rng.random() < 0.5:
            rng.choice([self._schedule, self._receive, self._ack, self._retry])(rng)
            self.world.flush()

    def _together(self, rng: random.Random) -> None:
        """Threads that deliver, flush, receive and settle; one may close the store."""
        self._take_in()
        together = Together(self.world, rng)
        names = [self._name(rng) for _ in range(rng.choice([0, 1, 3]))]
        if names:
            together.schedule(ToSchedule(names, [self._dues_ms(rng) for _ in names], True))
        for do, odds in (
            (together.flush, 0.8),
            (together.advance, 0.6),
            (together.look, 0.1),
            (together.close, 0.15),
        ):
            if rng.random() < odds:
                do()
        for account in self.accounts:
            self._work_beside(together, account, rng)
        together.run()

    def _work_beside(self, together: Together, account: GroupAccount, rng: random.Random) -> None:
        """A thread that settles what it has, and one that receives more."""
        hands, group = account.in_hand[:4], self.group(account)
        mine = random.Random(rng.random())
        if hands and rng.random() < 0.8:
            do = rng.choice([self._acked, self._acked, self._one_retried])
            together.also(f"{account.name}: {do.__name__}", lambda: do(account, group, hands, mine))
        if rng.random() < 0.4:
            together.also(
                f"{account.name}: receive",
                lambda: self._receive_of(account, group, "orders", 8, 60_000),
            )

    # --- receiving --------------------------------------------------------------------------------

    def _receive(self, rng: random.Random) -> None:
        account, topic = rng.choice(self.accounts), rng.choice(TOPICS)
        count, invisible_ms = rng.choice([1, 3, 32, 32]), rng.choice(_INVISIBLE_MS)
        self._take_in()
        self._receive_of(account, self.group(account), topic, count, invisible_ms)

    def _receive_of(
        self,
        account: GroupAccount,
        group: ConsumerGroup,
        topic: str,
        count: int,
        invisible_ms: int,
    ) -> int:
        """Receive, and hold it to the account; returns how many came."""
        world = self.world
        now_ms = world.clock.now_ms()
        messages = group.receive(topic, count, invisible_ms)
        told = [f"{m.unique_key}{'+' * m.retries}" for m in messages]
        self._say(account, f"receive {topic}: {told}")
        world.see()  # somebody else may have delivered it meanwhile
        world.account.others += account.take_in(world.found)
        wrong = account.received(messages, now_ms, world.account.advanced_to_ms)
        self._require(list(wrong))
        if len(messages) > count:
            self._require([f"{len(messages)} messages, and {count} were asked for"])
        return len(messages)

    def _say(self, account: GroupAccount, text: str) -> None:
        self.world.say(f"{account.name}: {text}")

    # --- settling ---------------------------------------------------------------------------------

    def _some_in_hand(self, rng: random.Random) -> tuple[GroupAccount, list[Hand]] | None:
        """Messages that one group has in hand; it receives some where it has none."""
        self._take_in()
        account = rng.choice(self.accounts)
        group = self.group(account)
        if not account.in_hand:
            self._receive_of(account, group, rng.choice(TOPICS), 5, rng.choice(_INVISIBLE_MS))
        hands = account.in_hand
        rng.shuffle(hands)
        return (account, hands) if hands else None

    def _ack(self, rng: random.Random) -> None:
        if (some := self._some_in_hand(rng)) is not None:
            account, hands = some
            chosen = hands[: rng.choice([1, 1, 2, 5, 40])]
            self._acked(account, self.group(account), chosen, rng)

    def _acked(
        self,
        account: GroupAccount,
        group: ConsumerGroup,
        hands: Sequence[Hand],
        _rng: random.Random,
    ) -> None:
        self._say(account, f"ack {[hand.name for hand in hands]}")
        with account.settling(hands, None):
            group.ack(*(hand.message for hand in hands))

    def _retry(self, rng: random.Random) -> None:
        if (some := self._some_in_hand(rng)) is not None:
            account, hands = some
            self._one_retried(account, self.group(account), hands, rng)

    def _one_retried(
        self,
        account: GroupAccount,
        group: ConsumerGroup,
        hands: Sequence[Hand],
        rng: random.Random,
    ) -> None:
        """Give the first of these back, mostly for as long as RocketMQ would."""
        delay_ms = rng.choice([None, None, None, 0, 1_000, 61_000])
        due = None if delay_ms is None else AfterMs(delay_ms)
        if account.is_ordered:
            self._hold(account, group, hands[0], due, delay_ms)
        else:
            self._give_back(account, group, hands[0], due, delay_ms)

    def _hold(
        self,
        account: GroupAccount,
        group: ConsumerGroup,
        hand: Hand,
        due: Due | None,
        delay_ms: int | None,
    ) -> None:
        """In an ordered group the queue waits."""
        if hand.until_ms != hand.message.visible_ms:
            return
        self._say(account, f"hold {hand.name}")
        group.retry(hand.message, due)
        held_ms = 1_000 if delay_ms is None else delay_ms
        account.held(hand, self.world.clock.now_ms() + held_ms)

    def _give_back(
        self,
        account: GroupAccount,
        group: ConsumerGroup,
        hand: Hand,
        due: Due | None,
        delay_ms: int | None,
    ) -> None:
        to, now_ms = account.stage_after_retry(hand), self.world.clock.now_ms()
        if delay_ms is None and to != DEAD:
            delay_ms = retry_delay_ms(hand.message.retries)
        self._say(account, f"retry {hand.message.unique_key}: {to.kind} {to.retries}, {due}")
        with account.settling([hand], to, now_ms + (delay_ms or 0)):
            group.retry(hand.message, due)

    def _reject(self, rng: random.Random) -> None:
        if (some := self._some_in_hand(rng)) is not None:
            account, (hand, *_) = some
            self._say(account, f"reject {hand.name}")
            with account.settling([hand], DEAD):
                self.group(account).reject(hand.message)

    def _redrive(self, rng: random.Random) -> None:
        self._take_in()
        account = rng.choice(self.accounts)
        group = self.group(account)
        if letters := list(group.dead_letters()):
            letter = rng.choice(letters)
            name = letter.unique_key or ""
            self._say(account, f"redrive {name}")
            if not account.known[name].at_most(DEAD):
                self._require([f"{account.name}: a dead letter {name} that nobody rejected"])
            with account.redriving(name, self.world.clock.now_ms()):
                group.redrive(letter)

    def _settle_old_hands(self, rng: random.Random) -> None:
        """Whoever received a message before others did settles it: that counts, and once."""
        self._take_in()
        account = rng.choice(self.accounts)
        group = self.group(account)
        if not account.old_hands:
            return
        hand = account.old_hands.pop(rng.randrange(len(account.old_hands)))
        if rng.random() < 0.7 or account.is_ordered:
            self._say(account, f"a late ack of {hand.name}, {hand.stage}")
            with account.settling([hand], None):
                group.ack(hand.message)
        else:
            self._give_back(account, group, hand, None, None)

    def _retry_to_the_end(self, rng: random.Random) -> None:
        """One message fails again and again: each retry comes in its time, and after the last it is
        a dead letter.
        """
        some = self._some_in_hand(rng)
        if some is None or some[0].is_ordered:
            return
        account, hands = some
        hand: Hand | None = hands[0]
        while hand is not None:
            if account.known[hand.name].is_vague:
                return
            retries, to = hand.message.retries, account.stage_after_retry(hand)
            self._give_back(account, self.group(account), hand, None, None)
            if to == DEAD:
                return
            self.world.clock.tick(retry_delay_ms(retries) - 1)
            self.world.advance()
            self._receive_all(account)  # which holds it to its time
            self.world.clock.tick(1 + self._slack_ms)
            self.world.advance()
            self._receive_all(account)
            name = hand.name
            mine = [each for each in account.in_hand if (each.name, each.stage) == (name, to)]
            hand = mine[0] if mine else None
            if hand is None and not self._was_set_back and not self._is_async:
                self._require([f"{account.name}: {name}: not received at its level's time"])

    @property
    def _is_async(self) -> bool:
        return self.world.owner.delivers_later

    @property
    def _slack_ms(self) -> int:
        """By how much an engine moves a due time; a hierarchical wheel does by up to three."""
        return max(self.world.owner.slot_ms, self.world.account.widest_ms, 3)

    def _receive_all(self, account: GroupAccount) -> None:
        self.world.see()
        for topic in TOPICS:
            self._receive_of(account, self.group(account), topic, _ALL, DAY_MS)

    # --- seeking ----------------------------------------------------------------------------------

    def _seek(self, rng: random.Random) -> None:
        """Go on elsewhere in a topic; what is in hand stays with its holders."""
        self._take_in()
        account, topic = rng.choice(self.accounts), rng.choice(TOPICS)
        ranges = dict(self.world.store.topic(topic).ranges())
        position, offsets = self._position(rng, topic, ranges)
        self._say(account, f"seek {topic} {position}")
        with account.seeking(topic, offsets):
            self.group(account).seek(topic, position)

    def _position(
        self, rng: random.Random, topic: str, ranges: dict[int, tuple[int, int]]
    ) -> tuple[Position, dict[int, int]]:
        """A position, and the queue offsets that it must mean."""
        if rng.random() < 0.3:
            return "first", {queue_id: first for queue_id, (first, _) in ranges.items()}
        if rng.random() < 0.2:
            return "last", {queue_id: end for queue_id, (_, end) in ranges.items()}
        times = self._store_times(topic)
        if rng.random() < 0.5 and all(each == sorted(each) for each in times.values()):
            all_times = sorted({time_ms for each in times.values() for time_ms in each})
            time_ms = rng.choice([*all_times, self.world.clock.now_ms()])
            offsets = {
                queue_id: first + sum(each < time_ms for each in times.get(queue_id, []))
                for queue_id, (first, _) in ranges.items()
            }
            return AtMs(time_ms), offsets
        some = {queue_id: span for queue_id, span in ranges.items() if rng.random() < 0.7}
        wanted = {queue_id: rng.randint(first, end) for queue_id, (first, end) in some.items()}
        return wanted, wanted

    def _store_times(self, topic: str) -> dict[int, list[int]]:
        """When the messages of each queue were stored, in the queue's order."""
        times: dict[int, list[tuple[int, int]]] = {}
        for each in self.world.found:
            if each.topic == topic:
                times.setdefault(each.queue_id, []).append(
                    (each.queue_offset, each.store_timestamp_ms)
                )
        return {queue_id: [ms for _, ms in sorted(each)] for queue_id, each in times.items()}

    # --- what must hold ---------------------------------------------------------------------------

    def _count(self) -> None:
        """What is to be received, what waits, and what is dead: nothing is lost or doubled."""
        self._take_in()
        for account in self.accounts:
            group = self.group(account)
            retry, dead = f"%RETRY%{account.name}", f"%DLQ%{account.name}"
            given_back: dict[str, Counter[str]] = {retry: Counter(), dead: Counter()}
            for each in self.world.store.pending():
                if each.topic in given_back:
                    given_back[each.topic][each.unique_key or ""] += 1
            letters = Counter(letter.unique_key or "" for letter in group.dead_letters())
            left = sum(group.lag(topic).total for topic in (*TOPICS, retry))
            self._require(
                list(account.wrong_counts(left, given_back[retry], letters + given_back[dead]))
            )

    def _end(self) -> None:
        """Everything is delivered and received; nothing comes again."""
        super()._end()
        self.world.say("-- the end of the groups")
        self._count()
        for account in self.accounts:
            self._drain(account)
        self._count()
        self.world.close()
        self.world.open()
        self._take_in()
        for account in self.accounts:
            for topic in TOPICS:
                if self._receive_of(account, self.group(account), topic, _ALL, DAY_MS):
                    raise WrongError(f"{account.name}: something comes after the end")
        self._count()

    def _drain(self, account: GroupAccount) -> None:
        """Receive and acknowledge until nothing comes."""
        self._take_in()
        group = self.group(account)
        for topic in TOPICS:
            while self._receive_of(account, group, topic, _ALL, DAY_MS):
                self._acked(account, group, account.in_hand, random.Random(0))
        if left := [str(each) for each in account.to_receive]:
            raise WrongError(f"{account.name}: lost: {'; '.join(left)}")
        letters = Counter(letter.unique_key or "" for letter in group.dead_letters())
        sure = Counter({each.name: each.at_least(DEAD) for each in account.known.values()})
        if missing := sure - letters:
            raise WrongError(f"{account.name}: dead letters are lost: {missing}")
