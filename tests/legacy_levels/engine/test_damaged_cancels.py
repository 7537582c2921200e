# SPDX-License-Identifier: Apache-2.0
"""Zeros in a cancelled entry bring nothing back that was cancelled, and take nothing else away."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_store import AtLevel, Cancellation
from message_store.format.queue_unit import QUEUE_UNIT
from tests.faults.damage import copy_store
from tests.legacy_levels.level_stores import Bench, message

COUNT = 4
SIZE_AT, TAGS_CODE_AT = map(QUEUE_UNIT.offset_of, ("size_bytes", "tags_code"))


@pytest.mark.parametrize("cancelled", [{0}, {1}, {COUNT - 1}, {1, 2}])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_zeros_in_a_cancelled_entry_bring_nothing_back(
    tmp_path: Path, how: str, cancelled: set[int]
) -> None:
    """All of its size, or only the last bytes of that."""
    bench = Bench(tmp_path / "store")
    store = bench.open()
    receipts = [store.schedule(message(number), AtLevel(3)) for number in range(COUNT)]
    for number in cancelled:
        assert store.cancel(receipts[number]) is Cancellation.CANCELLED
    if how == "closed":
        store.close()
    else:
        store.flush()
        store.abandon()
    expected = {
        receipts[number].unique_key: b"body %d" % number
        for number in range(COUNT)
        if number not in cancelled
    }
    first = min(cancelled) * QUEUE_UNIT.size
    for begin in range(SIZE_AT, TAGS_CODE_AT):
        other = Bench(tmp_path / f"zero from {begin}")
        copy_store(bench.root, other.root)
        [path] = (other.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir()
        with path.open("r+b") as file:
            file.seek(first + begin)
            file.write(bytes(TAGS_CODE_AT - begin))
        with other.open() as store:
            assert {each.unique_key for each in store.pending()} == {*expected}, begin
            for number in cancelled:
                assert store.cancel(receipts[number]) is Cancellation.CANCELLED
            assert sorted(other.advance(store, 10_000)) == sorted(expected.values()), begin
