# SPDX-License-Identifier: Apache-2.0
"""DLedger groups, converted, and a new broker in their place: each message once, and never early.

One group lives here: it delivers a part of its messages, is stopped and converted. Another is
retired, and its members opened again.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.ports import free_ports
from tests.independent.real_stores import DLEDGER_49_CLEAN, unpack_group
from tests.interop.account import account, lateness, once
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received
from tests.interop.ours import delaywheel, write_settings
from tests.interop.stages import SMALL_FILES, convert, fill, open_target
from tests.interop.store_maker import read_still
from tests.interop.workload import (
    TOPIC_TABLE,
    TOPICS,
    Outgoing,
    level_delays_ms,
    varied,
    with_levels,
)

OLD: Final = "4.9.7"
FOLLOWER: Final = "n2"
TABLE: Final = "1s 5s 10s 15s 20s 25s 30s 35s 40s 45s 50s 60s 70s"
GROUP: Final = "orders"

pytestmark = pytest.mark.nightly
JOURNEYS: Final = tuple(
    pytest.param(old, new, killed, marks=pytest.mark.interop(old, new))
    for old, new, killed in (
        (OLD, NEWEST, False),
        (OLD, LAST, False),
        (LAST, LAST, False),
        (LAST, LAST, True),
    )
)


def member_settings(*ports: int) -> dict[str, object]:
    """The settings of member n0 of a group with members at these ports."""
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    return {
        "messageDelayLevel": TABLE,
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "judge-a",
        "dLegerPeers": peers,
        "dLegerSelfId": "n0",
    }


@pytest.mark.parametrize(("old_version", "new_version", "killed"), JOURNEYS)
def test_delivered_by_a_group_and_by_the_new_broker_is_what_was_sent(
    make_broker: MakeBroker,
    scratch: Path,
    tell: Tell,
    old_version: str,
    new_version: str,
    killed: bool,
) -> None:
    here = scratch / f"journey-{old_version}-{new_version}-{killed}"
    here.mkdir()
    delays = level_delays_ms(TABLE)
    port, second, third, *_ = free_ports()
    old = make_broker(old_version, here / "old", settings=member_settings(port), topics=TOPIC_TABLE)
    messages = with_levels(varied(31, 600), [*delays], seed=5, ordinary_every=10)
    backlog = fill(
        old, Judge(old, here / "old-judge"), messages, [GROUP], linger_s=8, killed=killed
    )
    assert not (backlog.root / "commitlog").is_dir()
    target = here / "target"
    flags = ["--after-crash"] if killed else []
    report = convert(backlog.root, target, SMALL_FILES, "--level-table", TABLE, *flags)
    assert report["converted"] > 100
    delaywheel("verify", backlog.root, target)
    new = make_broker(new_version, target)
    opened = open_target(new, Judge(new, here / "new-judge"), [GROUP], report["converted"])
    # A member that misses the others is never elected, and serves what it has as a slave.
    still = member_settings(port, second, third)
    by_the_old = read_still(old_version, still, backlog.root, here, TOPICS)
    late = lateness(backlog.sent, opened.received, delays, due_after_ms=opened.opened_ms)
    journey = f"{old_version} DLedger to {new_version}"
    tell(f"{journey}, {len(opened.received)} by the new broker: {late}")
    assert account(backlog.sent, [*by_the_old, *opened.received], delays).faults == {}


@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.interop(version)) for version in (NEWEST, LAST)],
)
def test_a_plain_store_is_served_as_the_group_would_have(
    version: str, make_broker: MakeBroker, scratch: Path
) -> None:
    here = scratch / f"plain-{version}"
    store = unpack_group(DLEDGER_49_CLEAN, here / "group")[FOLLOWER]
    delaywheel("plain", store.root, here / "store")
    wanted = {
        (line.unique_key, line.topic): line.body_sha1
        for line in store.truth
        if line.kind == "sent" and line.state in ("pending", "delivered", "normal")
    }
    broker = make_broker(version, here / "store", settings={"fileReservedTime": 1_000_000})
    opened = open_target(broker, Judge(broker, here / "judge"), ["readers"], len(wanted))
    found = Counter((each.unique_key, each.topic) for each in opened.received)
    assert found == dict.fromkeys(wanted, 1)
    assert {(e.unique_key, e.topic): e.body_sha1 for e in opened.received} == wanted


@pytest.mark.interop(OLD, NEWEST, LAST)
def test_a_retired_member_that_is_opened_alone_delivers_nothing_that_was_converted(
    make_broker: MakeBroker, scratch: Path
) -> None:
    """All of it was overdue. New messages, one a level, show that each level was looked at."""
    here = scratch / "retired"
    members = unpack_group(DLEDGER_49_CLEAN, here / "group")
    roots = [member.root for member in members.values()]
    report = convert(members[FOLLOWER].root, here / "target", SMALL_FILES)
    assert report["converted"] == len(members[FOLLOWER].pending_in_levels())
    conf = write_settings(here / "n0.conf", member_settings(1, 2, 3))
    words = ["--converted-to", here / "target", "--broker-conf", conf, "--execute"]
    assert [each["state"] for each in delaywheel("retire", *roots, *words)] == ["done"] * 3
    stood = {
        line.unique_key
        for line in members[FOLLOWER].truth
        if line.kind == "sent" and line.state in ("delivered", "normal")
    }
    levels = range(1, 19)
    probes = [
        Outgoing(level, TOPICS[0], b"is it looked at?", delay_level=level) for level in levels
    ]
    alone = {
        member: {
            **member_settings(port),
            "dLegerSelfId": member,
            "dLegerPeers": f"{member}-127.0.0.1:{port}",
            "messageDelayLevel": " ".join("1s" for _level in levels),
            "fileReservedTime": 1_000_000,
        }
        for member, port in zip(members, free_ports(), strict=False)
    }
    versions = dict(zip(members, (OLD, NEWEST, LAST), strict=True))
    brokers = {
        name: make_broker(versions[name], members[name].root, settings=alone[name])
        for name in members
    }

    def open_one(member: str) -> tuple[set[str], list[Received]]:
        judge = Judge(brokers[member], here / f"judge-{member}")
        with brokers[member]:
            sent = judge.send(probes)
            expect = len(stood) + len(probes)
            with judge.consume(
                TOPICS, "fresh", expect=expect, deadline_s=240, settle_s=4
            ) as consumer:
                return {each.unique_key for each in sent}, once(consumer.wait())

    with ThreadPoolExecutor(len(members)) as pool:
        opened = list(pool.map(open_one, members))
    for sent, received in opened:
        assert Counter(each.unique_key for each in received) == dict.fromkeys({*stood, *sent}, 1)
