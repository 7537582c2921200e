# SPDX-License-Identifier: Apache-2.0
"""Members of DLedger groups and stores with consume queues in RocksDB, converted and delivered by a
new broker: each message once, and never early. Real ones are kept in files, others are made here.
"""

import socket
from collections import Counter
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.independent.level_messages import level_delays_ms as usual_delays_ms
from tests.independent.real_stores import (
    COMBINED_55_CLEAN,
    DLEDGER_49_CRASH,
    ROCKSDB_55_BEHIND,
    ROCKSDB_55_CLEAN,
    ROCKSDB_55_CRASH,
    unpack,
    unpack_group,
)
from tests.interop.account import account, lateness
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.ours import delaywheel
from tests.interop.stages import SMALL_FILES, convert, fill, open_target
from tests.interop.store_maker import read_still
from tests.interop.workload import (
    QUEUES,
    TOPIC_TABLE,
    TOPICS,
    level_delays_ms,
    varied,
    with_levels,
)

OLD: Final = "4.9.7"
FIXTURE_GROUP: Final = "fixture_group"
KEPT: Final = [
    pytest.param(DLEDGER_49_CRASH, "n1", id="a killed leader"),
    pytest.param(ROCKSDB_55_CLEAN, None, id="stopped"),
    pytest.param(ROCKSDB_55_CRASH, None, id="killed"),
    pytest.param(ROCKSDB_55_BEHIND, None, id="killed-later"),
    pytest.param(COMBINED_55_CLEAN, None, id="both"),
]

TABLE: Final = "1s 5s 10s 15s 20s 25s 30s 35s 40s 45s 50s 60s 70s"
GROUP: Final = "orders"
# It has all of its log files read again, else a kill costs what lies before the last ten.
IN_ROCKSDB: Final = {
    "messageDelayLevel": TABLE,
    "storeType": "defaultRocksDB",
    "commitLogRecoverMaxNum": 1_000,
}

pytestmark = pytest.mark.nightly


@pytest.mark.interop(NEWEST)
@pytest.mark.parametrize(("name", "member"), KEPT)
def test_what_waited_comes_once_and_never_early(
    make_broker: MakeBroker, scratch: Path, name: str, member: str | None
) -> None:
    here = scratch / name
    directory, target = here / "store", here / "target"
    store = unpack(name, directory) if member is None else unpack_group(name, directory)[member]
    flags = ("--after-crash",) if store.is_crashed else ()
    report = convert(store.root, target, SMALL_FILES, *flags)
    assert report["converted"] == len(store.pending_in_levels()) > 2_000
    delaywheel("verify", store.root, target)
    broker = make_broker(NEWEST, target)
    judge = Judge(broker, here / "judge")
    opened = open_target(broker, judge, [FIXTURE_GROUP], report["converted"])
    waited = {(line.unique_key, line.kind == "retry"): line for line in store.pending_in_levels()}
    found = Counter((each.unique_key, each.is_retry) for each in opened.received)
    assert found == dict.fromkeys(waited, 1)
    delays = usual_delays_ms()
    for each in opened.received:
        line = waited[each.unique_key or "", each.is_retry]
        assert line.level is not None
        assert line.store_timestamp_ms is not None
        assert each.stored_ms >= line.store_timestamp_ms + delays[line.level]
        assert each.body_sha1 == line.body_sha1


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


@attrs.frozen
class Journey:
    """An old broker of some kind, and the new one that follows it."""

    old: str
    new: str
    is_member: bool
    is_killed: bool = False


def _journey(journey: Journey, name: str) -> object:
    return pytest.param(journey, id=name, marks=pytest.mark.interop(journey.old, journey.new))


JOURNEYS: Final = [
    _journey(Journey(OLD, NEWEST, is_member=True), f"member to {NEWEST}"),
    _journey(Journey(OLD, LAST, is_member=True), f"member to {LAST}"),
    _journey(Journey(NEWEST, NEWEST, is_member=False), "RocksDB stopped"),
    _journey(Journey(NEWEST, NEWEST, is_member=False, is_killed=True), "RocksDB killed"),
]


@pytest.mark.parametrize("journey", JOURNEYS)
def test_delivered_by_the_old_and_by_the_new_broker_is_what_was_sent(
    make_broker: MakeBroker,
    scratch: Path,
    tell: Tell,
    journey: Journey,
    request: pytest.FixtureRequest,
) -> None:
    here = scratch / request.node.callspec.id.replace(" ", "-")
    here.mkdir()
    delays = level_delays_ms(TABLE)
    ports = free_ports(3)
    settings = member_settings(ports[0]) if journey.is_member else IN_ROCKSDB
    # A member that misses the others is never elected, and serves what it has as a slave.
    still = member_settings(*ports) if journey.is_member else IN_ROCKSDB
    old = make_broker(journey.old, here / "old", settings=settings, topics=TOPIC_TABLE)
    messages = with_levels(varied(31, 600), [*delays], seed=5, ordinary_every=10)
    judge = Judge(old, here / "old-judge")
    backlog = fill(old, judge, messages, [GROUP], linger_s=8, killed=journey.is_killed)
    assert (backlog.root / "commitlog").is_dir() is not journey.is_member
    assert (backlog.root / "consumequeue/CURRENT").is_file() is not journey.is_member
    flags = ["--after-crash"] if journey.is_killed else []
    report = convert(backlog.root, here / "target", SMALL_FILES, "--level-table", TABLE, *flags)
    assert report["converted"] > 100
    delaywheel("verify", backlog.root, here / "target")
    new = make_broker(journey.new, here / "target")
    opened = open_target(new, Judge(new, here / "new-judge"), [GROUP], report["converted"])
    queue_count = None if journey.is_member else QUEUES
    by_the_old = read_still(journey.old, still, backlog.root, here, TOPICS, queue_count=queue_count)
    late = lateness(backlog.sent, opened.received, delays, due_after_ms=opened.opened_ms)
    tell(f"{journey}: {len(opened.received)} by the new broker: {late}")
    assert account(backlog.sent, [*by_the_old, *opened.received], delays).faults == {}
