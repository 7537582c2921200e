# SPDX-License-Identifier: Apache-2.0
"""What a simulated store was told and answered, as notes among the events of its disk; and what
must hold of it at any moment: nothing lost, nothing twice, nothing early, what is reported adds up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from message_store import DelayStore, Severity
from message_store.format.java_numbers import LONG_MAX
from tests.faults.broker_view import look_as_a_broker
from tests.faults.kill_account import early, faults
from tests.faults.kill_journal import History, Life
from tests.faults.store_reading import SYSTEM_TOPICS, Found, delivered, log_begin
from tests.independent.raw_files import commit_log_records
from tests.simulation.simulated_disk import Event, Note

FLUSHED, CAME, AT = "flushed", "came", "at"
"""Notes that are no part of a history: a flush that came back; messages that were found in their
topics; the step that follows, and its time.
"""


@attrs.define
class Ledger:
    """What is known from outside. ``seen`` is what was found in the topics at any time: retention
    may have taken it since.
    """

    history: History
    seen: list[Found]
    now_ms: int


def told(events: Sequence[Event], moment: int) -> tuple[Ledger, History]:
    """What was answered before this moment; and that part of it that was flushed."""
    notes = [event.facts for event in events[:moment] if isinstance(event, Note)]
    flushes = [index for index, facts in enumerate(notes) if facts["step"] == FLUSHED]
    everything, flushed = History(), History()
    for history, until in ((everything, len(notes)), (flushed, max(flushes, default=0))):
        for facts in notes[:until]:
            if facts["step"] not in (FLUSHED, CAME, AT):
                history.add(dict(facts))
    seen = [Found(*each) for facts in notes if facts["step"] == CAME for each in facts["found"]]
    times_ms = [facts["now_ms"] for facts in notes if facts["step"] == AT]
    now_ms = times_ms[-1] if times_ms else everything.now_ms
    return Ledger(everything, seen, now_ms), flushed


def owed(everything: History, flushed: History) -> History:
    """What must hold after the power came back: of the flushed everything, of the rest nothing but
    that it comes once at most, never early, and that what was asked back later may still come.
    """
    lives = []
    for number, life in enumerate(everything.lives):
        kept = flushed.lives[number] if number < len(flushed.lives) else Life(life.row, 0, 0)
        answer = life.answer if kept.answer or life.answer == "already delivered" else None
        lives.append(attrs.evolve(life, batch=number, receipt=kept.receipt, answer=answer))
    return attrs.evolve(everything, lives=lives)


def found_in_topics(root: Path, ledger: Ledger) -> list[Found]:
    """What is in the topics, and what was until retention took it."""
    return [*delivered(root), *over(root, ledger)]


def over(root: Path, ledger: Ledger) -> list[Found]:
    """What retention took."""
    begin = log_begin(root)
    return [each for each in ledger.seen if each.commit_log_offset < begin]


def wrong_with(
    store: DelayStore, root: Path, ledger: Ledger, *, may_repeat: bool = False
) -> list[str]:
    """Everything that does not hold of an open store."""
    wrong = [f"found: {each}" for each in store.check() if each.severity is Severity.ERROR]
    came = found_in_topics(root, ledger)
    waits = _waiting(store, ledger.history)
    wrong += faults(ledger.history, [*came, *waits], may_repeat=may_repeat)
    return wrong + early(ledger.history, came)


def _waiting(store: DelayStore, history: History) -> list[Found]:
    """What is said to wait, as if it had come."""
    bodies = {life.row.name: life.row.body for life in history.lives}
    return [
        Found(
            each.topic,
            each.queue_id,
            -1,
            each.unique_key or "",
            bodies.get(each.unique_key or "", ""),
            each.due_ms,
            each.commit_log_offset,
        )
        for each in store.pending()
    ]


def lost_to_a_broker(
    root: Path,
    ledger: Ledger,
    promised: Iterable[Life],
    precision_ms: int,
    torn_from: int = LONG_MAX,
    *,
    recovers_queues: bool = False,
) -> list[str]:
    """What a broker that takes a wheel over would never deliver, and where its chains lead astray,
    by the reader that follows its rules. What it would repeat is not told. Its topics hold what the
    log does: it puts that into queues when it starts.
    """
    view = look_as_a_broker(
        root,
        ledger.now_ms,
        precision_ms=precision_ms,
        torn_from=torn_from,
        recovers_queues=recovers_queues,
    )
    records = (placed.record for placed in commit_log_records(root / "commitlog"))
    comes = Counter(
        each.effective["UNIQ_KEY"] for each in records if each.topic not in SYSTEM_TOPICS
    )
    comes.update(each.name for each in over(root, ledger))
    comes.update(view.keys)
    wanted = Counter(life.row.name for life in promised if life.receipt and not life.was_asked_back)
    lost = (wanted - comes).items()
    return view.wrong + [f"lost to a broker: {name}, {count} of them" for name, count in lost]
