# SPDX-License-Identifier: Apache-2.0
"""The harness itself, before it judges anyone: brokers of every version do what they always did."""

from pathlib import Path

import pytest

from tests.interop.account import account, once
from tests.interop.conftest import MakeBroker
from tests.interop.jars import NEWEST, VERSIONS
from tests.interop.judge import Judge
from tests.interop.workload import TOPIC_TABLE, TOPICS, level_delays_ms, varied, with_levels

# Longer than it takes to send a few messages and to kill the broker, on a slow machine too.
TABLE = "30s"

every_version = pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=[pytest.mark.interop(version)])
        if version == NEWEST
        else pytest.param(version, marks=[pytest.mark.interop(version), pytest.mark.nightly])
        for version in VERSIONS
    ],
)


@pytest.mark.check
@every_version
def test_delayed_messages_outlive_a_kill_and_a_clean_stop_leaves_no_abort(
    version: str, make_broker: MakeBroker, scratch: Path
) -> None:
    store = scratch / f"store-{version}"
    broker = make_broker(version, store, settings={"messageDelayLevel": TABLE}, topics=TOPIC_TABLE)
    judge = Judge(broker, scratch / f"judge-{version}")
    messages = with_levels(varied(seed=1, count=60), levels=[1], seed=2, ordinary_every=5)

    broker.start()
    sent = judge.send(messages)
    broker.kill()
    assert broker.left_abort()
    with broker, judge.consume(TOPICS, "fresh_group", expect=60, deadline_s=150) as consumer:
        received = consumer.wait()

    assert not broker.left_abort()
    assert [each.error for each in sent if not each.accepted] == []
    result = account(sent, once(received), level_delays_ms(TABLE))
    assert (result.received, result.faults) == (60, {})
