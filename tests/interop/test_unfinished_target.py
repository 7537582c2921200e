# SPDX-License-Identifier: Apache-2.0
"""A conversion that was killed: no broker starts on what it left, and the same command ends it.

Where the wheel belongs lies a stub until the last rename. A broker that was started by mistake adds
files of its own before it gives up; the conversion has to get along with those.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker import BrokerError
from tests.interop.conftest import MakeBroker
from tests.interop.generated import Converted, faults, generate, receive
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge
from tests.interop.ours import delaywheel_killed_before
from tests.interop.stages import SMALL_FILES, conversion, convert, now_ms
from tests.interop.store_maker import WHEEL_TOPIC

HOUR_MS: Final = 3_600_000
MESSAGES: Final = 1_000
ALL_LINES: Final = 10_000

# All parts are written and nothing is published; all is published but the wheel.
RENAMES: Final = ("delaywheel/broker.conf", "delaywheel/staging/*/store/timerwheel")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=pytest.mark.interop(version))
        for version in ("5.3.3", "5.4.0", NEWEST, LAST)
    ],
)
def test_an_unfinished_target_is_refused_and_finished_by_the_same_command(
    version: str, make_broker: MakeBroker, scratch: Path
) -> None:
    # All is overdue: a broker that started would deliver at once.
    source = generate(
        scratch / f"{version}-source", MESSAGES, level=5, generated_ms=now_ms() - HOUR_MS
    )
    target = scratch / f"{version}-target"
    for rename in RENAMES:
        delaywheel_killed_before(target / rename, *conversion(source, target, SMALL_FILES))
        broker = make_broker(version, target, settings=SMALL_FILES)
        with pytest.raises(BrokerError, match=f"{version} ended with"):
            broker.start()
        assert "Timer wheel length" in broker.log_tail(ALL_LINES)
        assert {each.name for each in target.glob("consumequeue/*")} <= {WHEEL_TOPIC}

    report = convert(source, target, SMALL_FILES)
    store = Converted(source, target, report)
    broker = make_broker(version, target)
    received = receive(broker, Judge(broker, scratch / f"{version}-judge"), store.topics, MESSAGES)
    assert len(received) == MESSAGES
    assert faults(store.waiting(), received) == {}
