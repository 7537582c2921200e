# SPDX-License-Identifier: Apache-2.0
"""A member of a DLedger group, made a plain store, and a new broker in its place."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.independent.real_stores import DLEDGER_49_CLEAN, unpack_group
from tests.interop.conftest import MakeBroker
from tests.interop.jars import NEWEST
from tests.interop.judge import Judge
from tests.interop.ours import delaywheel
from tests.interop.stages import open_target

FOLLOWER: Final = "n2"


@pytest.mark.nightly
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
