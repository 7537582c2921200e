# SPDX-License-Identifier: Apache-2.0
"""What random runs do with a backlog: a sound conversion passes in each way, and one that leaves a
message behind does not.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, ManualClock, Message
from migrate.settings import ConvertOptions
from tests.faults.engines import SMALL, abandon
from tests.simulation import converting
from tests.simulation.bench import START_MS, Setup

ROUNDS = 12
"""So many draws choose each way."""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_message_that_a_conversion_leaves_behind_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    owner, clock = Setup("levels", SMALL), ManualClock(START_MS)
    store = owner.open(tmp_path / "store", clock)
    for number, delay_ms in enumerate([1_000, 5_000, 5_000, 60_000]):
        store.schedule(Message("orders", b"x", unique_key=f"K{number}"), AfterMs(delay_ms))
    abandon(store) if is_killed else store.close()

    def rounds() -> list[list[str]]:
        asked = tmp_path / "store", tmp_path, owner, clock.now_ms()
        draws = map(random.Random, range(ROUNDS))
        return [converting.wrong_if_converted(*asked, rng) for rng in draws]

    assert rounds() == [[]] * ROUNDS

    def without_one(**facts: Any) -> ConvertOptions:
        return ConvertOptions(**{"only_levels": (2, 5), **facts})

    monkeypatch.setattr(converting, "ConvertOptions", without_one)
    texts = [text for found in rounds() for text in found]
    assert any("still in the levels" in text for text in texts), texts
    assert any("comes from the wheel" in text and "K0" in text for text in texts), texts
