# SPDX-License-Identifier: Apache-2.0
"""DLedger groups, converted, and a new broker in their place: each message once, and never early.

One store is the leader's of a group of three that was killed. Another group lives here: it delivers
a part of its messages, is stopped and converted.
"""

import socket
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.independent.level_messages import level_delays_ms as usual_delays_ms
from tests.independent.real_stores import DLEDGER_49_CLEAN, DLEDGER_49_CRASH, unpack_group
from tests.interop.account import account, lateness
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.ours import delaywheel
from tests.interop.stages import SMALL_FILES, convert, fill, open_target
from tests.interop.store_maker import read_still
from tests.interop.workload import TOPIC_TABLE, TOPICS, level_delays_ms, varied, with_levels

OLD: Final = "4.9.7"
LEADER: Final = "n1"
FOLLOWER: Final = "n2"
FIXTURE_GROUP: Final = "fixture_group"
TABLE: Final = "1s 5s 10s 15s 20s 25s 30s 35s 40s 45s 50s 60s 70s"
GROUP: Final = "orders"

pytestmark = pytest.mark.nightly
AFTER: Final = tuple(
    pytest.param(version, marks=pytest.mark.interop(OLD, version)) for version in (NEWEST, LAST)
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.mark.interop(NEWEST)
def test_what_waited_in_a_killed_leader_comes_once_and_never_early(
    make_broker: MakeBroker, scratch: Path
) -> None:
    store = unpack_group(DLEDGER_49_CRASH, scratch / "group")[LEADER]
    target = scratch / "target"
    report = convert(store.root, target, SMALL_FILES, "--after-crash")
    assert report["converted"] == len(store.pending_in_levels()) > 3_000
    delaywheel("verify", store.root, target)
    broker = make_broker(NEWEST, target)
    opened = open_target(
        broker, Judge(broker, scratch / "judge"), [FIXTURE_GROUP], report["converted"]
    )
    waited = {(line.unique_key, line.kind == "retry"): line for line in store.pending_in_levels()}
    assert Counter((each.unique_key, each.is_retry) for each in opened.received) == dict.fromkeys(
        waited, 1
    )
    delays = usual_delays_ms()
    for each in opened.received:
        line = waited[each.unique_key or "", each.is_retry]
        assert line.level is not None
        assert line.store_timestamp_ms is not None
        assert each.stored_ms >= line.store_timestamp_ms + delays[line.level]
        assert each.body_sha1 == line.body_sha1


@pytest.mark.parametrize("new_version", AFTER)
def test_delivered_by_a_group_and_by_the_new_broker_is_what_was_sent(
    make_broker: MakeBroker, scratch: Path, tell: Tell, new_version: str
) -> None:
    here = scratch / f"journey-{new_version}"
    here.mkdir()
    delays = level_delays_ms(TABLE)
    [port, second, third] = free_ports(3)
    old = make_broker(OLD, here / "old", settings=member_settings(port), topics=TOPIC_TABLE)
    messages = with_levels(varied(31, 600), [*delays], seed=5, ordinary_every=10)
    backlog = fill(old, Judge(old, here / "old-judge"), messages, [GROUP], linger_s=8)
    assert not (backlog.root / "commitlog").is_dir()
    target = here / "target"
    report = convert(backlog.root, target, SMALL_FILES, "--level-table", TABLE)
    assert report["converted"] > 100
    delaywheel("verify", backlog.root, target)
    new = make_broker(new_version, target)
    opened = open_target(new, Judge(new, here / "new-judge"), [GROUP], report["converted"])
    # A member that misses the others is never elected, and serves what it has as a slave.
    still = member_settings(port, second, third)
    by_the_old = read_still(OLD, still, backlog.root, here, TOPICS)
    late = lateness(backlog.sent, opened.received, delays, due_after_ms=opened.opened_ms)
    tell(f"{OLD} DLedger to {new_version}, {len(opened.received)} by the new broker: {late}")
    assert account(backlog.sent, [*by_the_old, *opened.received], delays).faults == {}


@pytest.mark.interop(NEWEST)
def test_a_plain_store_is_served_as_the_group_would_have(
    make_broker: MakeBroker, scratch: Path
) -> None:
    here = scratch / "plain"
    store = unpack_group(DLEDGER_49_CLEAN, here / "group")[FOLLOWER]
    delaywheel("plain", store.root, here / "store")
    wanted = {
        (line.unique_key, line.topic): line.body_sha1
        for line in store.truth
        if line.kind == "sent" and line.state in ("pending", "delivered", "normal")
    }
    broker = make_broker(NEWEST, here / "store", settings={"fileReservedTime": 1_000_000})
    opened = open_target(broker, Judge(broker, here / "judge"), ["readers"], len(wanted))
    found = Counter((each.unique_key, each.topic) for each in opened.received)
    assert found == dict.fromkeys(wanted, 1)
    assert {(e.unique_key, e.topic): e.body_sha1 for e in opened.received} == wanted
