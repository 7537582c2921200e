# SPDX-License-Identifier: Apache-2.0
"""Stores as real brokers leave them, with the truth about every message beside them.

The truth has two halves: what the producer got confirmed, and what the official client reads from
a broker of the same version that runs as a slave on a copy of the stopped store. A slave neither
delivers levels nor turns its wheel, so the copy stands still while it is read. Nothing here uses
this project's own readers.
"""

import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.independent.real_stores import FIXTURE_GROUP
from tests.interop.account import user_properties
from tests.interop.broker import LOGS, Broker
from tests.interop.judge import Judge, Received, Sent, copy_store, queues_of
from tests.interop.workload import TOPIC_TABLE, TOPICS, Outgoing, varied

GROUP: Final = FIXTURE_GROUP
RETRY_PREFIX: Final = "%RETRY%"
RETRY_TOPIC: Final = RETRY_PREFIX + GROUP
LEVEL_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"

_HALF_A_DAY_MS: Final = 12 * 3_600_000
_SLAVE: Final = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}

Line = dict[str, Any]
# A message and one of its retries share the unique key, not the topic.
Key = tuple[str, str]


@attrs.frozen
class StorePlan:
    """How one store comes to be.

    `timers` mixes in messages with free due times and recalls one in five of them (5.3.2 and
    newer, `recallMessageEnable`). `killed` ends the broker by SIGKILL while it delivers, and
    `kill_s` says when: so long after the beginning of the second in which the last message was
    sent. Otherwise the end comes `linger_s` after the last recall. With `rolls_every_s` a RocksDB
    timeline rolls so often, and not once an hour.
    """

    name: str
    version: str
    seed: int
    messages: int
    killed: bool = False
    timers: bool = False
    settings: Mapping[str, object] = attrs.field(factory=dict)
    linger_s: float = 30.0
    kill_s: float | None = None
    rolls_every_s: int | None = None


@attrs.frozen
class RealStore:
    """A stopped broker's store root, one line per message, and the facts of the run."""

    root: Path
    lines: Sequence[Line]
    about: Mapping[str, Any]


def make_store(plan: StorePlan, scratch: Path) -> RealStore:
    """Let a broker fill a store as planned, stop it, and find out what it holds."""
    root = scratch / "store"
    (scratch / "master").mkdir(parents=True)
    broker = Broker(
        plan.version,
        root,
        scratch / "master",
        settings=plan.settings,
        topics=TOPIC_TABLE,
        rolls_every_s=plan.rolls_every_s,
    )
    judge = Judge(broker, scratch / "judge")
    try:
        broker.start()
        with judge.consume(TOPICS, GROUP, deadline_s=600, return_one_in=10) as consumer:
            sent = judge.send(workload(plan))
            recalled = judge.recall(_to_recall(plan, sent)) if plan.timers else set()
            _linger(plan, sent)
            if plan.killed:
                broker.kill()
            seen = consumer.stop()
        broker.stop()
        stopped_ms = time.time_ns() // 1_000_000
    finally:
        broker.kill()
    topics = (*TOPICS, RETRY_TOPIC, LEVEL_TOPIC, WHEEL_TOPIC)
    records = read_still(plan.version, plan.settings, root, scratch, topics)
    lines = truth(sent, records, recalled)
    about = _about(plan, broker, sent, records, lines)
    about |= {"stoppedMs": stopped_ms, "consumerSaw": len({each.place for each in seen})}
    return RealStore(root, lines, about)


def workload(plan: StorePlan) -> list[Outgoing]:
    """Make a plan's messages: delayed mostly, some ordinary, a few transactional."""
    dice = random.Random(plan.seed)
    now_ms = time.time_ns() // 1_000_000
    return [_delayed(each, dice, plan, now_ms) for each in varied(plan.seed, plan.messages)]


def _linger(plan: StorePlan, sent: Iterable[Sent]) -> None:
    left_s = plan.linger_s
    if plan.kill_s is not None:
        last_second = max(each.sent_ms for each in sent) // 1000
        left_s = last_second + plan.kill_s - time.time()
    time.sleep(max(0.0, left_s))


def read_still(
    version: str,
    settings: Mapping[str, object],
    root: Path,
    scratch: Path,
    topics: Iterable[str],
    *,
    queue_count: int | None = None,
) -> list[Received]:
    """Read every record of some topics from a slave on a copy; the store itself is not opened.

    A log that lies elsewhere, in whatever many directories, is one log in the copy.
    Where no directories show the queues, each topic has `queue_count` of them.
    """
    copy = copy_store(root, scratch / "copy")
    log = copy / "commitlog"
    for elsewhere in filter(None, str(settings.get(LOGS, "")).split(",")):
        shutil.copytree(elsewhere, log, dirs_exist_ok=True)
    (scratch / "slave").mkdir()
    slave = Broker(version, copy, scratch / "slave", settings={**settings, **_SLAVE, LOGS: log})
    wanted = sorted(set(topics))
    try:
        slave.start()
        if queue_count is None:
            queues = [each for each in queues_of(copy) if each[0] in wanted]
        else:
            queues = [(topic, number) for topic in wanted for number in range(queue_count)]
        return Judge(slave, scratch / "slave-judge").read(queues)
    finally:
        slave.kill()


def truth(sent: Iterable[Sent], records: Iterable[Received], recalled: set[str]) -> list[Line]:
    """Write one line per message that was sent, and one per message a consumer returned.

    What the broker has stored counts, also where its answer never came: of messages and of recalls.
    """
    recalled = set(recalled)
    waiting: defaultdict[Key, list[Received]] = defaultdict(list)
    stored: dict[Key, Received] = {}
    for record in records:
        if record.topic not in (LEVEL_TOPIC, WHEEL_TOPIC):
            stored[_key(record)] = record
        elif "TIMER_DEL_UNIQKEY" in record.properties:
            recalled.add(str(record.unique_key))
        else:
            waiting[_key(record)].append(record)
    found = waiting.keys() | stored.keys()
    lines = [
        _sent_line(each, waiting, stored, recalled)
        for each in sent
        if each.accepted or (each.unique_key, each.message.topic) in found
    ]
    returned = {key for key in found if key[1] == RETRY_TOPIC}
    return lines + [_retry_line(key, waiting, stored) for key in sorted(returned)]


def _key(record: Received) -> Key:
    """Name a record by its message and the topic it is for, wherever it waits."""
    waits = record.topic in (LEVEL_TOPIC, WHEEL_TOPIC)
    topic = record.properties["REAL_TOPIC"] if waits else record.topic
    return (str(record.unique_key), topic)


def _delayed(message: Outgoing, dice: random.Random, plan: StorePlan, now_ms: int) -> Outgoing:
    kind = dice.random()
    if kind < 0.12:
        return message
    if kind < 0.14:
        outcome = dice.choice(("commit", "rollback", "unknown"))
        return attrs.evolve(message, transaction=outcome)
    if plan.timers and kind < 0.8:
        # Mostly soon, so that both sides of the stop are well filled; a few overdue at the put.
        delay_ms = int(dice.choice((60_000, 600_000, _HALF_A_DAY_MS)) * dice.random()) + 1
        match dice.randrange(3):
            case 0:
                return attrs.evolve(message, deliver_ms=now_ms - 60_000 + delay_ms)
            case 1:
                return attrs.evolve(message, delay_ms=delay_ms)
            case _:
                return attrs.evolve(message, delay_sec=delay_ms // 1000 + 1)
    return attrs.evolve(message, delay_level=dice.randint(1, 18))


def _to_recall(plan: StorePlan, sent: Iterable[Sent]) -> list[Sent]:
    """Choose among those that are due in more than ten minutes: no race with the delivery."""
    dice = random.Random(plan.seed)
    return [
        each
        for each in sent
        if each.recall_handle
        and each.message.due_ms(each.sent_ms, defaultdict(int)) > each.sent_ms + 600_000
        and dice.randrange(5) == 0
    ]


def _sent_line(
    sent: Sent,
    waiting: Mapping[Key, list[Received]],
    stored: Mapping[Key, Received],
    recalled: set[str],
) -> Line:
    message = sent.message
    key = (sent.unique_key, message.topic)
    delayed = sorted(waiting.get(key, ()), key=lambda each: each.queue_offset)
    there = stored.get(key)
    first = delayed[0] if delayed else there
    state = (
        "pending" if delayed else {"rollback": "rolledback"}.get(message.transaction or "", "half")
    )
    if there is not None:
        was_put_aside = delayed or message.deliver_ms is not None
        state = "delivered" if was_put_aside else "normal"
    elif sent.unique_key in recalled:
        state = "recalled"
    line = message.line()
    return {
        "kind": "sent",
        "uniqKey": sent.unique_key,
        "topic": message.topic,
        "realQueueId": _queue_of(sent, delayed, there),
        "tag": message.tags,
        "keys": " ".join(message.keys) or None,
        **_body_of(sent),
        "bornTimestamp": first and first.born_ms,
        "sendTime": sent.sent_ms,
        "storeTimestamp": first and first.stored_ms,
        "userProperties": dict(message.properties),
        "state": state,
        **({"tx": message.transaction} if message.transaction else {}),
        **{
            name: line[name]
            for name in ("delayLevel", "deliverMs", "delayMs", "delaySec")
            if name in line
        },
        **_delay_of(delayed),
        **_delivery_of(there),
    }


def _retry_line(
    key: Key,
    waiting: Mapping[Key, list[Received]],
    stored: Mapping[Key, Received],
) -> Line:
    delayed, there = waiting.get(key, []), stored.get(key)
    first = delayed[0] if delayed else there
    assert first is not None
    properties = first.properties
    return {
        "kind": "retry",
        "uniqKey": key[0],
        "topic": key[1],
        "realQueueId": int(properties.get("REAL_QID", 0)),
        "originalTopic": properties["RETRY_TOPIC"],
        "tag": first.tags,
        "keys": first.keys,
        "bodySha1": first.body_sha1,
        "bodyLength": first.body_length,
        "bornTimestamp": first.born_ms,
        "storeTimestamp": first.stored_ms,
        "userProperties": user_properties(properties),
        "state": "pending" if there is None else "delivered",
        **({"delayLevel": int(properties["DELAY"])} if "DELAY" in properties else {}),
        **_delay_of(delayed),
        **_delivery_of(there),
    }


def _queue_of(sent: Sent, delayed: Sequence[Received], there: Received | None) -> int:
    """Take the producer's word, and the record's where the producer got no answer."""
    if sent.accepted:
        return sent.queue_id
    if there is not None:
        return there.queue_id
    return int(delayed[0].properties["REAL_QID"])


def _body_of(sent: Sent) -> Line:
    return {"bodySha1": sent.message.body_sha1, "bodyLength": len(sent.message.body)}


def _delay_of(delayed: Sequence[Received]) -> Line:
    """Describe the waiting record: of a rolled message the last one is the live one."""
    if not delayed:
        return {}
    line: Line = {"delayQueueOffset": delayed[0].queue_offset}
    # A retry of a timer message waits in a level and still carries the timer's properties.
    if delayed[-1].topic == LEVEL_TOPIC:
        return line
    out_ms = int(delayed[-1].properties["TIMER_OUT_MS"])
    return {**line, "timerOutMs": out_ms, "rolls": len(delayed) - 1}


def _delivery_of(there: Received | None) -> Line:
    if there is None:
        return {}
    return {
        "deliveredStoreTimestamp": there.stored_ms,
        "deliveredQueueOffset": there.queue_offset,
    }


def _about(
    plan: StorePlan,
    broker: Broker,
    sent: Sequence[Sent],
    records: Sequence[Received],
    lines: Sequence[Line],
) -> dict[str, Any]:
    counts: defaultdict[str, int] = defaultdict(int)
    levels: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        counts[f"{line['kind']}:{line['state']}"] += 1
        if "delayLevel" in line and line["state"] in ("delivered", "pending"):
            levels[line["delayLevel"]][line["state"]] += 1
    failures = [each.error or each.status for each in sent if not each.accepted]
    known = {_key(record) for record in records}
    return {
        "name": plan.name,
        "version": plan.version,
        "config": broker.settings(),
        "seed": plan.seed,
        "topics": list(TOPICS),
        "consumerGroup": GROUP,
        "howStopped": "SIGKILL while delivering (abort present)" if plan.killed
        else "SIGTERM, clean",
        "lastStoreTimestampMs": max(record.stored_ms for record in records),
        "counts": dict(sorted(counts.items())),
        "lines": len(lines),
        "byLevel": {level: dict(states) for level, states in sorted(levels.items())},
        "notSent": failures,
        "extraInStoreNotInExpected": len(known - {(x["uniqKey"], x["topic"]) for x in lines}),
        "commitlogFiles": sum(1 for _ in (broker.store_root / "commitlog").glob("*")),
        "truth": "the producer's record, and the official client reading a broker of the same"
        " version that ran as a slave on a copy of the stopped store",
    }  # fmt: skip
