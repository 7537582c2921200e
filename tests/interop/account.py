# SPDX-License-Identifier: Apache-2.0
"""Holds what was sent against what came out: each once, never early, every field as it was."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from tests.interop.judge import Received, Sent

# What clients and brokers add themselves; every other property is the user's.
_SYSTEM_PROPERTIES: Final = """
KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
ORIGIN_MESSAGE_ID RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY MAX_RECONSUME_TIMES CLUSTER
CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES __transactionId__
CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID __BORNHOST __CRC32#
TIMER_DELIVER_MS TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
TIMER_ROLL_TIMES TIMER_ROLL_LABEL TIMER_DEL_UNIQKEY
"""
SYSTEM_PROPERTIES: Final = frozenset(_SYSTEM_PROPERTIES.split())


@attrs.frozen
class Spread:
    """Milliseconds after the due time: the median, 99 of 100, and the worst."""

    p50_ms: int
    p99_ms: int
    max_ms: int

    @classmethod
    def of(cls, late_ms: Iterable[int]) -> "Spread":
        """Sort the values, of which there must be some, and take three."""
        values = sorted(late_ms)
        return cls(values[len(values) // 2], values[len(values) * 99 // 100], values[-1])

    def __str__(self) -> str:
        return f"P50 {self.p50_ms:,} P99 {self.p99_ms:,} max {self.max_ms:,} ms"


@attrs.frozen
class Lateness:
    """How late messages were `stored` in their real topic, and `seen` by the consumer."""

    stored: Spread
    seen: Spread

    def __str__(self) -> str:
        return f"late stored {self.stored}; seen {self.seen}"


@attrs.frozen
class Account:
    """What was wrong, as unique keys (or sentences); all empty is right."""

    expected: int
    received: int
    missing: tuple[str, ...]
    repeated: tuple[str, ...]
    unexpected: tuple[str, ...]
    early: tuple[str, ...]
    different: tuple[str, ...]

    @property
    def faults(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return how many of each fault, with a few examples: {} is what a test asks for."""
        kinds = ("missing", "repeated", "unexpected", "early", "different")
        lists: dict[str, tuple[str, ...]] = {kind: getattr(self, kind) for kind in kinds}
        return {kind: (len(found), found[:5]) for kind, found in lists.items() if found}


def account(
    sent: Sequence[Sent], received: Iterable[Received], level_delays_ms: Mapping[int, int]
) -> Account:
    """Compare what the producer got confirmed with the records of the real topics.

    Give each record once (`once`). A send that failed may have been stored all the same, so it may
    come once or not at all, and a transaction that was not committed must not come. Retries are
    not for here.
    """
    records = [each for each in received if not each.is_retry]
    by_key = {each.unique_key: each for each in sent}
    wanted = {
        each.unique_key
        for each in sent
        if each.accepted and each.message.transaction in (None, "commit")
    }
    doubtful = {each.unique_key for each in sent if not each.accepted}
    found = Counter(each.unique_key for each in records)
    early, different = [], []
    for record in records:
        origin = by_key.get(record.unique_key or "")
        if origin is None:
            continue
        if record.stored_ms < origin.message.due_ms(origin.sent_ms, level_delays_ms):
            early.append(origin.unique_key)
        different += [f"{origin.unique_key}: {what}" for what in differences(origin, record)]
    return Account(
        expected=len(wanted),
        received=len(records),
        missing=tuple(sorted(wanted - found.keys())),
        repeated=tuple(sorted(str(key) for key, times in found.items() if times > 1)),
        unexpected=tuple(sorted(str(key) for key in found.keys() - wanted - doubtful)),
        early=tuple(early),
        different=tuple(different),
    )


def once(received: Iterable[Received]) -> list[Received]:
    """Leave out what a client handed over again: one record of a queue counts once, the first."""
    firsts: dict[object, Received] = {}
    for each in received:
        firsts.setdefault(each.place, each)
    return list(firsts.values())


def differences(sent: Sent, received: Received) -> list[str]:
    """Name each field that did not survive the way from the producer to the consumer."""
    message = sent.message
    pairs = {
        "topic": (message.topic, received.topic),
        # Nobody told the producer where a message lies whose sending was not confirmed.
        "queue id": (sent.queue_id if sent.accepted else received.queue_id, received.queue_id),
        "tags": (message.tags, received.tags),
        "keys": (" ".join(message.keys) or None, received.keys),
        "body": (message.body_sha1, received.body_sha1),
        "properties": (dict(message.properties), user_properties(received.properties)),
    }
    return [f"{name} {was!r} became {now!r}" for name, (was, now) in pairs.items() if was != now]


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Leave out what the client or the broker put there."""
    return {key: value for key, value in properties.items() if key not in SYSTEM_PROPERTIES}


def lateness(
    sent: Sequence[Sent],
    received: Iterable[Received],
    level_delays_ms: Mapping[int, int],
    due_after_ms: int = 0,
) -> Lateness | None:
    """Return how late messages came that were sent; retries do not count (lateness_of)."""
    due = {
        each.unique_key: each.message.due_ms(each.sent_ms, level_delays_ms)
        for each in sent
        if each.accepted
    }
    return lateness_of(due, (each for each in received if not each.is_retry), due_after_ms)


def lateness_of(
    due_ms: Mapping[str, int], received: Iterable[Received], due_after_ms: int = 0
) -> Lateness | None:
    """Return how long after their due time (by unique key) messages came.

    Only those due after `due_after_ms` count: what was overdue when the broker started is as
    late as the start. None if there are none.
    """
    timed = [
        (due_ms[each.unique_key], each)
        for each in received
        if each.unique_key is not None and due_ms.get(each.unique_key, -1) >= due_after_ms
    ]
    if not timed:
        return None
    return Lateness(
        stored=Spread.of(each.stored_ms - due for due, each in timed),
        seen=Spread.of(each.received_ms - due for due, each in timed),
    )
