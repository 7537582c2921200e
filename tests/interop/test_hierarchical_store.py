# SPDX-License-Identifier: Apache-2.0
"""No broker starts on a hierarchical wheel's store; one that ``WheelStore`` made a wheel's again is
a broker's like any other, with nothing lost, repeated or early.
"""

from pathlib import Path

import pytest

from message_store import AfterMs, Cancellation, Message
from message_store.writing.settings import StoreSettings
from tests.interop.broker import BrokerError
from tests.interop.conftest import MakeBroker
from tests.interop.generated import faults, receive
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.stages import SMALL_FILES, now_ms
from timer_wheel import HierarchicalWheelStore, WheelStore

SETTINGS = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=40_000, timer_log_file_bytes=102_400
)
MESSAGES = 300


@pytest.mark.nightly
@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.interop(version)) for version in (NEWEST, LAST)],
)
def test_a_broker_gets_the_store_by_way_of_a_wheel_and_not_before(
    version: str, make_broker: MakeBroker, scratch: Path
) -> None:
    root = scratch / f"hierarchical-{version}"
    with HierarchicalWheelStore.open(root, settings=SETTINGS) as store:
        receipts = [
            store.schedule(
                Message("Orders", b"x", unique_key=f"KEY{number:08X}", queue_id=number % 4),
                AfterMs(0 if number < 100 else 20_000 + 137 * number),
            )
            for number in range(MESSAGES)
        ]
        assert len(store.advance(now_ms())) == 100
        taken_back = receipts[150::50]
        assert {store.cancel(each) for each in taken_back} == {Cancellation.CANCELLED}

    broker = make_broker(version, root, settings=SMALL_FILES)
    with pytest.raises(BrokerError, match=f"{version} ended with"):
        broker.start()
    assert "Timer wheel length" in broker.log_tail(10_000)

    WheelStore.open(root, settings=SETTINGS).close()
    kept = [each for each in receipts if each not in taken_back]
    waiting = [{"unique_key": each.unique_key, "due_ms": each.due_ms} for each in kept]
    broker = make_broker(version, root, settings=SMALL_FILES)
    judge = Judge(broker, scratch / f"hierarchical-judge-{version}")
    received = receive(broker, judge, ["Orders"], len(kept))
    assert faults(waiting, received) == {}
