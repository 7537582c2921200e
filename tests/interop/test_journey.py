# SPDX-License-Identifier: Apache-2.0
"""The whole journey: what the old broker delivered and what the new one delivers is what was sent.

The old broker delivers part of a backlog of all 18 levels, consumers return some messages for a
retry, it is stopped or killed in the middle, we convert, and a new broker delivers the rest.
"""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.interop.account import account, lateness
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.stages import SMALL_FILES, convert, fill, open_target
from tests.interop.store_maker import RETRY_PREFIX, read_still
from tests.interop.workload import TOPIC_TABLE, TOPICS, level_delays_ms, varied, with_levels

# All 18 levels, packed into a minute and a half. A returned message waits at level 3.
TABLE: Final = "1s 5s 10s 15s 20s 25s 30s 35s 40s 45s 50s 55s 60s 65s 70s 75s 80s 90s"
SHORT_TABLE: Final = "1s 5s 10s 15s 20s 25s 30s 35s 40s 45s 50s"
GROUP: Final = "orders"
OVERDUE: Final = "all overdue before it was ready"


@pytest.mark.parametrize(
    ("old", "new_version", "table", "count", "linger_s", "killed"),
    [
        pytest.param(
            NEWEST, NEWEST, SHORT_TABLE, 400, 8, False,
            id=f"{NEWEST} stopped, small", marks=pytest.mark.interop(NEWEST),
        ),
        *(
            pytest.param(
                old, new, TABLE, 4000, 18, killed, id=f"{old} {'killed' if killed else 'stopped'}",
                marks=[pytest.mark.interop(old, new), pytest.mark.nightly],
            )
            for old, new in (("4.9.7", NEWEST), (LAST, LAST))
            for killed in (False, True)
        ),
    ],
)  # fmt: skip
def test_delivered_by_the_old_and_by_the_new_broker_is_what_was_sent(
    old: str,
    new_version: str,
    table: str,
    count: int,
    linger_s: float,
    killed: bool,
    make_broker: MakeBroker,
    scratch: Path,
    tell: Tell,
) -> None:
    here = scratch / f"{old}-{killed}"
    here.mkdir()
    settings = {"messageDelayLevel": table}
    delays = level_delays_ms(table)
    broker = make_broker(old, here / "old", settings=settings, topics=TOPIC_TABLE)
    messages = with_levels(varied(3, count), [*delays], seed=4, ordinary_every=10)
    backlog = fill(
        broker, Judge(broker, here / "old-judge"), messages, [GROUP],
        linger_s=linger_s, return_one_in=5, killed=killed,
    )  # fmt: skip
    options = ["--level-table", table, *(["--after-crash"] if killed else [])]
    report = convert(backlog.root, here / "target", SMALL_FILES, *options)
    new = make_broker(new_version, here / "target")
    opened = open_target(new, Judge(new, here / "new-judge"), [GROUP], report["converted"])
    # What the old broker had delivered stands in its topics, received or not.
    topics = {*TOPICS, RETRY_PREFIX + GROUP}
    by_the_old = read_still(old, settings, backlog.root, here, topics)

    late = lateness(backlog.sent, opened.received, delays, due_after_ms=opened.opened_ms)
    journey = f"{old} to {new_version}"
    tell(f"{journey}, {len(opened.received)} delivered by the new broker: {late or OVERDUE}")
    records = [*by_the_old, *opened.received]
    assert account(backlog.sent, records, delays).faults == {}
    returned = {each.unique_key for each in backlog.received if each.returned}
    retries = Counter(each.unique_key for each in records if each.is_retry)
    assert returned
    assert {key: times for key, times in retries.items() if times > 1} == {}
    assert retries.keys() <= returned
    # A message that was returned to a broker about to be killed may not have reached it.
    assert killed or retries.keys() == returned
