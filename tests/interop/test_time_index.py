# SPDX-License-Identifier: Apache-2.0
"""A broker starts on a store with a time index, consumers get what was delivered, and what is
pending there stays pending for the engine.
"""

import time
from collections import Counter
from pathlib import Path

import pytest

from message_store import AfterMs, Message
from message_store.writing.settings import StoreSettings
from tests.faults.store_reading import delivered
from tests.interop.conftest import MakeBroker
from tests.interop.generated import receive
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.stages import SMALL_FILES, now_ms
from time_index import TimeIndexStore

SETTINGS = StoreSettings(commit_log_file_bytes=1 << 20, queue_file_bytes=40_000)
MESSAGES = 60


@pytest.mark.nightly
@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.interop(version)) for version in (NEWEST, LAST)],
)
def test_a_broker_delivers_nothing_that_is_pending_and_harms_nothing(
    version: str, make_broker: MakeBroker, scratch: Path
) -> None:
    root = scratch / f"time-index-{version}"
    keys = [f"KEY{number:08X}" for number in range(MESSAGES)]
    with TimeIndexStore.open(root, settings=SETTINGS) as store:
        for number, key in enumerate(keys):
            message = Message("Orders", b"x", unique_key=key, queue_id=number % 4)
            store.schedule(message, AfterMs(0 if number < 20 else 1_000))
        assert len(store.advance(now_ms())) == 20

    broker = make_broker(version, root, settings=SMALL_FILES)
    time.sleep(1)  # from here on all are due
    judge = Judge(broker, scratch / f"time-index-judge-{version}")
    received = receive(broker, judge, ["Orders"], 20)
    assert Counter(each.unique_key for each in received) == Counter(keys[:20])

    with TimeIndexStore.open(root, settings=SETTINGS) as store:
        assert {each.unique_key for each in store.pending()} == set(keys[20:])
        assert len(store.advance(now_ms())) == MESSAGES - 20
        assert store.check() == []
    found = Counter(each.name for each in delivered(root) if each.topic == "Orders")
    assert found == Counter(keys)
