# SPDX-License-Identifier: Apache-2.0
"""What was delivered is read from the files: what is there, and not what an engine says."""

from pathlib import Path

import pytest

from compare.report.delivered_topics import read_delivered, read_delivered_of
from compare.running.engines import ENGINES
from compare.running.observation import Delivered
from compare.workloads.workload import MessageMaker
from message_store.base.clock import ManualClock
from message_store.files.store_root import StoreRoot
from tests.compare.races import EXACT, small


def delivered_store(path: Path, name: str, messages: int) -> tuple[Delivered, tuple[str, ...]]:
    """A closed store in which everything was delivered; what its readers said before."""
    workload = small("uniform", messages=messages)
    clock = ManualClock(workload.start_ms)
    with ENGINES[name].open_store(path, clock, EXACT) as store:
        store.schedule_batch(MessageMaker(workload).batch(0, messages), workload.due_ms)
        clock.tick(3 * 3_600_000)
        store.advance(clock.now_ms())
        return read_delivered_of(store, workload.topics), workload.topics


@pytest.mark.parametrize("name", ["levels", "wheel"])
def test_files_and_readers_tell_the_same(tmp_path: Path, name: str) -> None:
    said, topics = delivered_store(tmp_path / "store", name, 100)
    found = read_delivered(tmp_path / "store", topics)
    assert sorted(found.number.tolist()) == list(range(100))
    assert found.number.tolist() == said.number.tolist()
    assert found.stored_ms.tolist() == said.stored_ms.tolist()


def test_a_record_that_is_damaged_was_not_delivered(tmp_path: Path) -> None:
    _said, topics = delivered_store(tmp_path / "store", "levels", 50)
    whole = read_delivered(tmp_path / "store", topics)
    [log] = StoreRoot(tmp_path / "store").commit_log.iterdir()
    content = bytearray(log.read_bytes())
    place = content.rindex(int(whole.number[7]).to_bytes(8, "big"))
    content[place + 20] ^= 1
    log.write_bytes(content)
    left = read_delivered(tmp_path / "store", topics)
    assert left.number.tolist() == [*whole.number[:7], *whole.number[8:]]


def test_what_no_queue_leads_to_was_not_delivered(tmp_path: Path) -> None:
    _said, topics = delivered_store(tmp_path / "store", "levels", 50)
    assert len(read_delivered(tmp_path / "store", topics[:1])) < 50
    assert len(read_delivered(tmp_path / "store", ["nobody"])) == 0


def test_a_directory_without_a_store_holds_no_deliveries(tmp_path: Path) -> None:
    assert len(read_delivered(tmp_path / "nothing", ["race-0"])) == 0
