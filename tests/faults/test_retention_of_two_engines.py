# SPDX-License-Identifier: Apache-2.0
"""Retention of one engine spares what waits in the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, Clock, DelayStore, ManualClock, Message
from tests.faults.engines import SMALL, open_hierarchy, open_levels, open_time_index, open_wheel
from tests.faults.kill_worker import START_MS

SHORT = attrs.evolve(SMALL, commit_log_file_bytes=16 << 10, retention_ms=60_000)


OPEN: dict[str, Callable[[Path, Clock], DelayStore]] = {
    "levels": lambda folder, clock: open_levels(folder, clock, SHORT),
    "wheel": lambda folder, clock: open_wheel(folder, clock, SHORT),
    "hierarchy": lambda folder, clock: open_hierarchy(folder, clock, SHORT),
    "time-index": lambda folder, clock: open_time_index(folder, clock, SHORT),
}
WAIT_MS = {"time-index": 60_000}
"""A time index keeps no longer delay than the log."""


@pytest.mark.filterwarnings("ignore::message_store.base.errors.OtherEngineWarning")
@pytest.mark.parametrize(
    ("waiting", "working"),
    [
        *(
            ("levels", "wheel"),
            ("wheel", "levels"),
            ("levels", "hierarchy"),
            ("hierarchy", "levels"),
        ),
        *(("time-index", "levels"), ("time-index", "wheel"), ("time-index", "hierarchy")),
        *(("levels", "time-index"), ("wheel", "time-index")),
    ],
)
def test_retention_of_one_engine_spares_what_waits_in_the_other(
    tmp_path: Path, waiting: str, working: str
) -> None:
    """No engine knows what of the other's came; so what the other's queue leads to stays."""
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    wanted = Counter(f"waits {number}" for number in range(30))
    with OPEN[waiting](folder, clock) as store:
        for text in wanted:
            store.schedule(
                Message("patient", text.encode()), AfterMs(WAIT_MS.get(waiting, 7_200_000))
            )
    with OPEN[working](folder, clock) as store:
        for number in range(200):
            store.schedule(Message("orders", bytes(1_000)), AfterMs(1_000))
            clock.tick(5_000)
            assert len(store.advance(clock.now_ms())) <= number + 1
    with OPEN[waiting](folder, clock) as store:
        clock.tick(7_200_000 + 1_000)
        store.advance(clock.now_ms())
        found = store.topic("patient").read(0, 0, 100)
    assert Counter(message.body.decode() for message in found) == wanted
