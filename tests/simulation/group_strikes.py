# SPDX-License-Identifier: Apache-2.0
"""Random runs of groups in which faults strike where a group relies on what it wrote down.

Elsewhere a fault strikes whatever is done. Here some steps make what is needed for an old note to
be taken for a new one, and end in the fault that would show it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from consumer_groups import ConsumerGroup
from consumer_groups.progress_table import SAVE_EVERY_MS
from tests.simulation.draws import Strike
from tests.simulation.group_account import BASE, GroupAccount, Hand
from tests.simulation.group_run import TOPICS, GroupRun
from tests.simulation.simulated_disk import Failing
from tests.simulation.together import Together
from tests.simulation.world import DAY_MS

_TOPIC: Final = TOPICS[0]
_ALL: Final = 1_000
_MOST_LOSSES: Final = 2
"""After more losses of power an account knows little: each leaves more that may be so."""


class StruckGroupRun(GroupRun):
    """The run of a seed with such steps among the others."""

    _losses = 0

    def _actions(self) -> list[tuple[Callable[[random.Random], None], float]]:
        actions = [*super()._actions(), (self._kill_in_a_second_retry, 4)]
        if self._losses < _MOST_LOSSES:
            actions += [
                (self._lose_what_was_settled, 8),
                (self._lose_a_moment_of_all, 8),
                (self._lose_a_retry_beside_a_flush, 8),
            ]
        return actions

    def _lose_what_was_settled(self, rng: random.Random) -> None:
        """Some messages are settled, and the power goes before a flush. Or a kill comes first, and
        whoever opens the store then flushes, and has no groups.
        """
        self._deliver(rng, 3)
        self.world.flush()
        for _ in range(rng.choice([1, 2, 3])):
            rng.choice([self._ack, self._retry, self._retry, self._reject, self._redrive])(rng)
        if rng.random() < 0.4:
            self.world.killed()
            self._reopen(rng)
            self.world.flush()
        self._lose_power(rng)

    def _lose_a_moment_of_all(self, rng: random.Random) -> None:
        """Messages are scheduled, delivered and acknowledged between two flushes. The power goes,
        and others take their place in the log.
        """
        self.world.flush()
        for is_over in (False, True):
            self._deliver(rng, rng.choice([1, 1, 2, 4]))
            for account in self.accounts:
                self._receive_of(account, self.group(account), _TOPIC, _ALL, 60_000)
                if not is_over:
                    self._acked(account, self.group(account), account.in_hand, rng)
            if not is_over:
                self._lose_power(rng)
                self._reopen(rng)

    def _lose_a_retry_beside_a_flush(self, rng: random.Random) -> None:
        """While a flush saves the offsets, because another topic was worked on, the group goes back
        in a queue, and gives a message back that it had done.
        """
        self._deliver(rng, 12)
        if (account := self._unordered(rng)) is None:
            return
        group = self.group(account)
        for topic in TOPICS:
            self._receive_of(account, group, topic, _ALL, DAY_MS)
        others = [each for each in account.in_hand if _is_elsewhere(each)]
        self._acked(account, group, [e for e in account.in_hand if not _is_elsewhere(e)], rng)
        self.world.flush()
        together = Together(self.world, rng)
        mine = random.Random(rng.random())
        together.also(
            "flushes that save the offsets",
            lambda: self._flush_and_save(account, group, others[: mine.choice([1, 2, 3])], mine),
        )
        together.also(
            f"{account.name}: back, and one retry",
            lambda: self._back_and_retry(account, group, mine),
        )
        together.run()
        if self.world.is_open:
            self._lose_power(rng)

    def _kill_in_a_second_retry(self, rng: random.Random) -> None:
        """A message is given back, and once more after a seek; that is killed on its way."""
        if (account := self._unordered(rng)) is None:
            return
        group = self.group(account)
        if (hand := self._first_again(account, group)) is None:
            return
        self._give_back(account, group, hand, None, None)
        if (again := self._first_again(account, group)) is None:
            return
        self._strike, self.world.is_stale = Strike("kill", 0), True
        with self.world.failing_at(Failing(rng.choice([1, 1, 2, 3]), "kill")):
            self._give_back(account, group, again, None, None)

    def _flush_and_save(
        self,
        account: GroupAccount,
        group: ConsumerGroup,
        hands: Sequence[Hand],
        rng: random.Random,
    ) -> None:
        """Acknowledge and flush again and again: one flush in five seconds saves what changed."""
        for hand in hands:
            self.world.clock.tick(SAVE_EVERY_MS)
            self._acked(account, group, [hand], rng)
            with self.world.account.flushing():
                self.world.store.flush()

    # --- what these are made of -------------------------------------------------------------------

    def _deliver(self, rng: random.Random, count: int) -> None:
        """So many messages reach their topics."""
        names = [self._name(rng) for _ in range(count)]
        self.world.schedule(names, [self.world.clock.now_ms() - 1] * count, at_once=False)
        self.world.clock.tick(1_000)
        self.world.advance()
        self._take_in()

    def _unordered(self, rng: random.Random) -> GroupAccount | None:
        """A group whose retries are records, if there is one."""
        self._take_in()
        accounts = [each for each in self.accounts if not each.is_ordered]
        return rng.choice(accounts) if accounts else None

    def _first_again(self, account: GroupAccount, group: ConsumerGroup) -> Hand | None:
        """The first message of the topic in somebody's hand, after the group went back to it."""
        ranges = self.world.store.topic(_TOPIC).ranges()
        offsets = {queue_id: first for queue_id, (first, _) in ranges.items()}
        with account.seeking(_TOPIC, offsets):
            group.seek(_TOPIC, "first")
        self._receive_of(account, group, _TOPIC, 1, DAY_MS)
        hands = [hand for hand in account.in_hand if not _is_elsewhere(hand)]
        return next((hand for hand in hands if hand.stage == BASE), None)

    def _back_and_retry(
        self, account: GroupAccount, group: ConsumerGroup, rng: random.Random
    ) -> None:
        if (hand := self._first_again(account, group)) is not None:
            self._give_back(account, group, hand, None, rng.choice([None, 0]))

    def _lose_power(self, rng: random.Random) -> None:
        """The power goes; of each file all is there that was written, or what was synced."""
        self.world.say("  power, file by file")
        self.world.is_stale, self._losses = True, self._losses + 1
        self.world.power_lost(rng, any_order=True, by_file=True)
        self.world.look_as_a_broker(is_power_cut=True)


def _is_elsewhere(hand: Hand) -> bool:
    """Whether a message in somebody's hands is of another topic."""
    return hand.place[0] != _TOPIC
