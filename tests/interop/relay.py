# SPDX-License-Identifier: Apache-2.0
"""A store that changes its owner again and again, one of our engines and a broker by turns.

Each owner sends messages for its own time, for the next owner's and for later, takes some back that
it or the owner before it had sent, and leaves cleanly or is killed. The last is a broker, whose
fresh group receives all that ever came to the topics.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.interop.account import Account, account
from tests.interop.judge import Received, Sent
from tests.interop.stages import SMALL_FILES
from tests.interop.workload import level_delays_ms

SOON_S: Final = 1
SAVE_INTERVAL_MS: Final = 10_000
"""How often a level store writes down how far its levels are, a broker's and ours."""
SLOT_IN_HAND_MS: Final = 2_000
"""A slot, and how long it may take to deliver it."""


@attrs.frozen
class Plan:
    """Which engine, for which version; whether all owners but the last are killed.

    ``next_s`` is the delay of what is sent for the next owner, ``far_s`` of what is for later, and
    beyond the roll window if there is to be any rolling; ``doomed_s`` of what the next owner takes
    back, which is soon enough on a slow machine too.
    """

    engine: str
    version: str
    killed: bool = False
    owners: int = 4
    next_s: int = 60
    far_s: int = 90
    doomed_s: int = 180
    roll_window_slots: int = 40

    @property
    def name(self) -> str:
        """For folders and for what is told."""
        return f"{self.engine} {self.version} {'killed' if self.killed else 'stopped'}"

    @property
    def level_table(self) -> str:
        """Level 1 is for the next owner, 2 soon, 3 far, 4 far and all taken back, 5 taken back by
        the next owner.
        """
        return f"{self.next_s}s {SOON_S}s {self.far_s}s {self.far_s}s {self.doomed_s}s"

    @property
    def broker_settings(self) -> dict[str, object]:
        """What both sides are told."""
        if self.engine == "levels":
            return {**SMALL_FILES, "messageDelayLevel": self.level_table}
        wheel = {"timerRollWindowSlot": self.roll_window_slots, "recallMessageEnable": "true"}
        return {**SMALL_FILES, **wheel}

    @property
    def forgotten_ms(self) -> int:
        """How long before its end a killed owner may have delivered what the next one repeats."""
        return SAVE_INTERVAL_MS if self.engine == "levels" else SLOT_IN_HAND_MS

    def spec(self, root: Path) -> dict[str, Any]:
        """The same for our engine."""
        return {
            "engine": self.engine,
            "version": self.version,
            "root": str(root),
            "levelTable": self.level_table,
            "rollWindowSlots": self.roll_window_slots,
            "commitLogFileBytes": SMALL_FILES["mappedFileSizeCommitLog"],
            "queueFileBytes": SMALL_FILES["mappedFileSizeConsumeQueue"],
            "timerLogFileBytes": SMALL_FILES["mappedFileSizeTimerLog"],
        }


@attrs.frozen
class Tenure:
    """One owner's time, from the first it could have stored to the last."""

    owner: str
    is_ours: bool
    began_ms: int
    ended_ms: int


@attrs.frozen
class Relay:
    """All that happened to one store.

    ``taken_back`` says in whose time messages were, ``refused`` when it was said of others that it
    is too late.
    """

    plan: Plan
    tenures: Sequence[Tenure]
    sent: Sequence[Sequence[Sent]]
    taken_back: Mapping[str, int]
    refused: Mapping[str, int]
    received: Sequence[Received]

    def account(self) -> Account:
        """Hold what came against what was sent; of what was taken back see `came_back`."""
        taken = self.taken_back
        return account(
            [each for each in itertools.chain(*self.sent) if each.unique_key not in taken],
            [each for each in self.received if each.unique_key not in taken],
            level_delays_ms(self.plan.level_table),
        )

    def came_back(self) -> list[Received]:
        """What was taken back and came all the same."""
        return [each for each in self.received if each.unique_key in self.taken_back]

    def wrongly_refused(self) -> list[str]:
        """What was not taken back though it was not yet due."""
        delays = level_delays_ms(self.plan.level_table)
        return [
            each.unique_key
            for each in itertools.chain(*self.sent)
            if each.unique_key in self.refused
            and each.message.due_ms(each.sent_ms, delays) > self.refused[each.unique_key]
        ]

    def tenure_of(self, time_ms: int) -> int:
        """Whose time it was."""
        return next(i for i, each in enumerate(self.tenures) if time_ms <= each.ended_ms)

    def delivered(self) -> dict[tuple[int, int], int]:
        """How many messages by (who sent, who delivered first)."""
        first: dict[str, int] = {}
        for each in sorted(self.received, key=lambda each: each.stored_ms):
            first.setdefault(str(each.unique_key), self.tenure_of(each.stored_ms))
        counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        for sender, sent in ((i, sent) for i, batch in enumerate(self.sent) for sent in batch):
            if sent.unique_key in first:
                counts[sender, first[sent.unique_key]] += 1
        return dict(sorted(counts.items()))

    def repeats(self) -> list[tuple[Received, Received]]:
        """Each later copy of a message, with the one before it."""
        copies: defaultdict[str, list[Received]] = defaultdict(list)
        for each in sorted(self.received, key=lambda each: each.stored_ms):
            copies[str(each.unique_key)].append(each)
        return [pair for each in copies.values() for pair in itertools.pairwise(each)]


def lost_its_marker(received: Received) -> bool:
    """Whether a message that was taken back came because no broker could help it.

    It rolled, and was placed again in the slot that it was due in, or later: its delete marker,
    which rolls behind it, then comes too late.
    """
    properties = received.properties
    if "TIMER_ROLL_TIMES" not in properties:
        return False
    return int(properties["TIMER_ENQUEUE_MS"]) >= int(properties["TIMER_OUT_MS"])
