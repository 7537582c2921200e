# SPDX-License-Identifier: Apache-2.0
"""Holds what a store was told against what its topics hold: nothing lost, early or repeated.

Of a step that the kill cut short both outcomes are right: a message that nobody was promised may
come or not, one that was being taken back as well. A batch comes as a whole or not at all.

Who repeats after a kill takes what was delivered before it for waiting: a broker's slot is done
when its time is in the checkpoint, a level's message when its offset is written. It can be taken
back like any other that waits, and then does not come again.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.faults.kill_journal import History, Life
from tests.faults.store_reading import Found

LEVELS_REPEAT_MS = 10_000


class Key(NamedTuple):
    """What tells messages apart, for one who reads the topics; twins are alike in all of it."""

    topic: str
    queue_id: int
    name: str
    body: str

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}/{self.queue_id}"


def key_of(life: Life) -> Key:
    return Key(life.row.topic, life.row.queue_id, life.row.name, life.row.body)


def key_found(found: Found) -> Key:
    return Key(found.topic, found.queue_id, found.name, found.body)


def faults(history: History, found: Iterable[Found], *, may_repeat: bool = False) -> list[str]:
    """Everything that is not as promised, once the store was advanced beyond every due time.

    ``may_repeat`` allows messages to come again, but for those that were taken back: they may have
    come before the process began that was asked for it.
    """
    found = list(found)
    came = Counter(map(key_found, found))
    lives: dict[Key, list[Life]] = defaultdict(list)
    for life in history.lives:
        lives[key_of(life)].append(life)
    wrong = [f"error: {text}" for text in history.errors]
    wrong += [f"never scheduled: {key} came {came[key]} times" for key in came if key not in lives]
    for key, alike in lives.items():
        least, most = sum(map(_at_least, alike)), sum(map(_at_most, alike))
        if came[key] < least:
            wrong.append(f"lost: {key} came {came[key]} times instead of {least}: {alike}")
        is_repeated = may_repeat and (most or not _came_late(alike, found))
        if came[key] > most and not is_repeated:
            kind = "repeated" if most else "cancelled, and delivered"
            wrong.append(f"{kind}: {key} came {came[key]} times instead of {most}: {alike}")
    return wrong + _torn_batches(history, came) + _wrong_answers(history, came)


def _at_least(life: Life) -> int:
    """1 when it must come: it was promised, and nobody may have taken it back."""
    was_kept = not life.was_asked_back or life.answer == "already delivered"
    return int(life.receipt is not None and was_kept)


def _at_most(life: Life) -> int:
    return int(life.answer != "cancelled")


def _came_late(cancelled: Sequence[Life], found: Iterable[Found]) -> bool:
    """Whether any came although the process that took it back began before."""
    begun = {key_of(life): life.answered_from for life in cancelled}
    return any(each.commit_log_offset >= begun.get(key_found(each), sys.maxsize) for each in found)


def _torn_batches(history: History, came: Counter[Key]) -> list[str]:
    batches: dict[int, list[Life]] = defaultdict(list)
    for life in history.lives:
        if life.receipt is None and life.row.name != "TWIN":
            batches[life.batch].append(life)
    wrong = []
    for batch in batches.values():
        count = sum(came[key_of(life)] > 0 for life in batch)
        if count not in (0, len(batch)):
            wrong.append(f"torn: {count} of the {len(batch)} that were handed over together")
    return wrong


def _wrong_answers(history: History, came: Counter[Key]) -> list[str]:
    return [
        f"denied: {life} came {came[key_of(life)]} times"
        for life in history.lives
        if life.answer == "never existed" and life.receipt is not None
    ]


def early(history: History, found: Iterable[Found]) -> list[str]:
    """What came before anybody advanced to its promise, or carries an earlier time.

    Twins are told apart by nothing, so only the first of their promises can be held against them.
    """
    promised: dict[Key, int] = {}
    for life in history.lives:
        least_ms = life.receipt[0] if life.receipt else max(life.row.due_ms, life.now_ms)
        key = key_of(life)
        promised[key] = min(promised.get(key, least_ms), least_ms)
    return [
        f"early: {each}, promised for {promised[key_found(each)]}"
        for each in found
        if key_found(each) in promised
        and not promised[key_found(each)] <= min(each.store_timestamp_ms, history.advanced_to_ms)
    ]


def repeats(before: Sequence[Found], after: Sequence[Found]) -> list[Found]:
    """What came after a kill and had come before it; twins left out, who may come several times."""
    known = {key_found(each): each for each in before}
    places = {each.commit_log_offset for each in before}
    return [
        known[key_found(each)]
        for each in after
        if each.commit_log_offset not in places and each.name != "TWIN" and key_found(each) in known
    ]
