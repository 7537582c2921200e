# SPDX-License-Identifier: Apache-2.0
"""What waited in stores with consume queues in RocksDB, alone or besides files, converted and
delivered by a new broker: each message once, and never early.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

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
    varied,
    with_levels,
)
from tests.interop.workload import level_delays_ms as delays_of

TABLE: Final = "1s 5s 10s 15s 20s 25s 30s 35s 40s 45s 50s 60s 70s"
GROUP: Final = "orders"
# It has all of its log files read again, else a kill costs what lies before the last ten.
IN_ROCKSDB: Final = {
    "messageDelayLevel": TABLE,
    "storeType": "defaultRocksDB",
    "commitLogRecoverMaxNum": 1_000,
}

# Both kinds of queues; 5.5 starts only if those of LMQ are in RocksDB. What a kill loses of them
# differs: the files are whole.
COMBINED: Final = {
    "messageDelayLevel": TABLE,
    "rocksdbCQDoubleWriteEnable": "true",
    "combineCQUseRocksdbForLmq": "true",
}
JOURNEYS: Final = [
    pytest.param(old, settings, killed, new, id=id_, marks=pytest.mark.interop(old, new))
    for id_, old, settings, killed, new in (
        ("stopped", NEWEST, IN_ROCKSDB, False, NEWEST),
        ("killed", NEWEST, IN_ROCKSDB, True, LAST),
        ("5.5.1 stopped", LAST, IN_ROCKSDB, False, LAST),
        ("5.5.1 killed", LAST, IN_ROCKSDB, True, LAST),
        ("5.5.1 both killed", LAST, COMBINED, True, LAST),
        ("5.3.3 stopped", "5.3.3", IN_ROCKSDB, False, NEWEST),
        ("5.4.0 killed", "5.4.0", IN_ROCKSDB, True, NEWEST),
        ("both killed", NEWEST, COMBINED, True, NEWEST),
    )
]

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(("old", "settings", "killed", "new"), JOURNEYS)
def test_delivered_by_the_old_and_by_the_new_broker_is_what_was_sent(
    make_broker: MakeBroker,
    scratch: Path,
    tell: Tell,
    request: pytest.FixtureRequest,
    old: str,
    settings: Mapping[str, object],
    killed: bool,
    new: str,
) -> None:
    here = scratch / request.node.callspec.id.replace(" ", "-")
    here.mkdir()
    delays = delays_of(TABLE)
    broker = make_broker(old, here / "old", settings=settings, topics=TOPIC_TABLE)
    messages = with_levels(varied(31, 600), [*delays], seed=5, ordinary_every=10)
    backlog = fill(
        broker, Judge(broker, here / "old-judge"), messages, [GROUP], linger_s=8, killed=killed
    )
    assert (backlog.root / "consumequeue/CURRENT").is_file()
    has_files = (backlog.root / "consumequeue/SCHEDULE_TOPIC_XXXX").is_dir()
    assert has_files == (settings is COMBINED)
    flags = ["--after-crash"] if killed else []
    report = convert(backlog.root, here / "target", SMALL_FILES, "--level-table", TABLE, *flags)
    assert report["converted"] > 100
    delaywheel("verify", backlog.root, here / "target")
    new_broker = make_broker(new, here / "target")
    judge = Judge(new_broker, here / "new-judge")
    opened = open_target(new_broker, judge, [GROUP], report["converted"])
    by_the_old = read_still(old, settings, backlog.root, here, TOPICS, queue_count=QUEUES)
    late = lateness(backlog.sent, opened.received, delays, due_after_ms=opened.opened_ms)
    tell(f"{old} in RocksDB to {new}, {len(opened.received)} by the new broker: {late}")
    assert account(backlog.sent, [*by_the_old, *opened.received], delays).faults == {}
