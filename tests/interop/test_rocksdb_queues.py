# SPDX-License-Identifier: Apache-2.0
"""What waited in stores with consume queues in RocksDB, converted and delivered by a new broker:
each message once, and never early. Brokers of 5.5.1 left some of the stores, others are made here.
"""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.independent.level_messages import level_delays_ms
from tests.independent.real_stores import (
    COMBINED_55_CLEAN,
    ROCKSDB_55_BEHIND,
    ROCKSDB_55_CLEAN,
    ROCKSDB_55_CRASH,
    unpack,
)
from tests.interop.account import account, lateness
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import NEWEST
from tests.interop.judge import Judge
from tests.interop.ours import delaywheel
from tests.interop.stages import SMALL_FILES, convert, fill, open_target
from tests.interop.store_maker import read_still
from tests.interop.workload import (
    QUEUES,
    TOPIC_TABLE,
    TOPICS,
    varied,
    with_levels,
)
from tests.interop.workload import level_delays_ms as delays_of

FIXTURE_GROUP: Final = "fixture_group"
STORES: Final = [
    pytest.param(ROCKSDB_55_CLEAN, id="stopped"),
    pytest.param(ROCKSDB_55_CRASH, id="killed"),
    pytest.param(ROCKSDB_55_BEHIND, id="killed-later"),
    pytest.param(COMBINED_55_CLEAN, id="both"),
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
@pytest.mark.parametrize("name", STORES)
def test_what_waited_comes_once_and_never_early(
    make_broker: MakeBroker, scratch: Path, name: str
) -> None:
    store = unpack(name, scratch / name / "store")
    target = scratch / name / "target"
    flags = ("--after-crash",) if store.is_crashed else ()
    report = convert(store.root, target, SMALL_FILES, *flags)
    assert report["converted"] == len(store.pending_in_levels()) > 2_000
    delaywheel("verify", store.root, target)
    broker = make_broker(NEWEST, target)
    opened = open_target(
        broker, Judge(broker, scratch / name / "judge"), [FIXTURE_GROUP], report["converted"]
    )
    waited = {(line.unique_key, line.kind == "retry"): line for line in store.pending_in_levels()}
    assert Counter((each.unique_key, each.is_retry) for each in opened.received) == dict.fromkeys(
        waited, 1
    )
    delays = level_delays_ms()
    for each in opened.received:
        line = waited[each.unique_key or "", each.is_retry]
        assert line.level is not None
        assert line.store_timestamp_ms is not None
        assert each.stored_ms >= line.store_timestamp_ms + delays[line.level]
        assert each.body_sha1 == line.body_sha1


@pytest.mark.interop(NEWEST)
@pytest.mark.parametrize("killed", [False, True])
def test_delivered_by_the_old_and_by_the_new_broker_is_what_was_sent(
    make_broker: MakeBroker, scratch: Path, tell: Tell, killed: bool
) -> None:
    here = scratch / f"made-{killed}"
    here.mkdir()
    delays = delays_of(TABLE)
    broker = make_broker(NEWEST, here / "old", settings=IN_ROCKSDB, topics=TOPIC_TABLE)
    messages = with_levels(varied(31, 600), [*delays], seed=5, ordinary_every=10)
    backlog = fill(
        broker, Judge(broker, here / "old-judge"), messages, [GROUP], linger_s=8, killed=killed
    )
    assert (backlog.root / "consumequeue/CURRENT").is_file()
    flags = ["--after-crash"] if killed else []
    report = convert(backlog.root, here / "target", SMALL_FILES, "--level-table", TABLE, *flags)
    assert report["converted"] > 100
    new = make_broker(NEWEST, here / "target")
    opened = open_target(new, Judge(new, here / "new-judge"), [GROUP], report["converted"])
    by_the_old = read_still(NEWEST, IN_ROCKSDB, backlog.root, here, TOPICS, queue_count=QUEUES)
    late = lateness(backlog.sent, opened.received, delays, due_after_ms=opened.opened_ms)
    tell(f"{NEWEST} in RocksDB to {NEWEST}, {len(opened.received)} by the new broker: {late}")
    assert account(backlog.sent, [*by_the_old, *opened.received], delays).faults == {}
