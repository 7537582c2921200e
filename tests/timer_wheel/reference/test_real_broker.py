# SPDX-License-Identifier: Apache-2.0
"""The reference wheel against what a real 5.5.0 broker left: its units, its slots, its records."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from message_store import ManualClock
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.writing.settings import StoreSettings
from tests.independent.raw_files import queue_units, read_timer_check
from tests.independent.real_stores import WHEEL_55_CLEAN, RealStore, unpack
from timer_wheel import read_wheel_store
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_file import SLOT, read_slots
from timer_wheel.reference.files import LogOfUnits, SlotsOfWheel
from timer_wheel.reference.protocol import TimerRequest
from timer_wheel.reference.store import ReferenceWheelStore
from timer_wheel.wheel.settings import WheelSettings

TIMERS = Path("consumequeue") / "rmq_sys_wheel_timer" / "0"
RULES = WheelSettings.of_broker("5.5.0", roll_window_slots=60)
TIMER_FILE_BYTES = 102_400


@pytest.fixture
def real(tmp_path: Path) -> RealStore:
    return unpack(WHEEL_55_CLEAN, tmp_path / "real")


@pytest.fixture
def store(real: RealStore) -> Iterator[ReferenceWheelStore]:
    clock = ManualClock(real.stopped_ms)
    with ReferenceWheelStore.open(real.root, clock=clock, rules=RULES) as store:
        yield store


def brokers_units(root: Path) -> list[bytes]:
    """The 52 bytes of each unit, in order."""
    found = []
    for file in sorted((root / "timerlog").iterdir()):
        content = file.read_bytes()
        for at in range(0, len(content) - 67, TIMER_UNIT.size):
            unit = content[at : at + TIMER_UNIT.size]
            if int.from_bytes(unit[:4], "big") == TIMER_UNIT.size:
                found.append(unit)
    return found


class AtTimes(ManualClock):
    """A clock that is set to when the broker wrote."""

    def show(self, now_ms: int) -> None:
        self.tick(now_ms - self.now_ms())


def test_every_unit_that_the_broker_placed_is_placed_alike(
    store: ReferenceWheelStore, real: RealStore, tmp_path: Path
) -> None:
    """The same messages at the same moments give the broker's timer log, byte for byte."""
    units = brokers_units(real.root)
    assert len(units) == 3950
    timers, root = store.timers, StoreRoot(tmp_path / "again")
    (tmp_path / "again").mkdir()
    log, wheel = LogOfUnits(root, TIMER_FILE_BYTES), SlotsOfWheel(root, 1000)
    timers.timer_log, timers.timer_wheel = log, wheel
    for unit in units:
        fields = TIMER_UNIT.decode_at(unit, 0)
        place = fields["commit_log_offset"], fields["record_size_bytes"]
        message = store.live.log.record(*place)
        timers.curr_write_time_ms = fields["write_time_ms"]
        out_ms = int(message.properties["TIMER_OUT_MS"])
        assert timers.do_enqueue(TimerRequest(*place, out_ms, 0, 1, message), message)
    again = [file.read_bytes() for file in sorted((tmp_path / "again" / "timerlog").iterdir())]
    theirs = [file.read_bytes() for file in sorted((real.root / "timerlog").iterdir())]
    assert again == theirs
    file = read_slots(real.root / "timerwheel")
    assert file is not None
    for row in file.slots.tolist():  # the file is stale by the units behind its last flush
        slot = wheel.get_slot(row[0] * 1000)
        if slot.last_pos == row[2]:
            assert (slot.first_pos, slot.num, slot.magic) == (row[1], row[3], row[4])
    assert SLOT.size == 32
    log.close()
    wheel.close()


def test_recovery_finds_what_the_broker_had(store: ReferenceWheelStore, real: RealStore) -> None:
    state = read_wheel_store(StoreRoot(real.root), now_ms=real.stopped_ms)
    assert store.timers.curr_queue_offset == state.resume_queue_offset
    check = read_timer_check(real.root / "config" / "timercheck")
    assert store.timers.curr_read_time_ms == check.last_read_time_ms


def test_what_waits_is_the_truth(store: ReferenceWheelStore, real: RealStore) -> None:
    found = Counter((each.unique_key, each.topic, each.due_ms) for each in store.pending())
    assert found == Counter(
        (line.unique_key, line.topic, line.timer_out_ms + 1000)
        for line in real.truth
        if line.state == "pending" and line.timer_out_ms is not None
    )


def taken_on(records: list[StoredMessage]) -> Iterator[tuple[StoredMessage, StoredMessage]]:
    """Each record of a key that rolled, with the record that it became."""
    latest: dict[str, StoredMessage] = {}
    for record in records:
        key = record.unique_key
        if key is None or "TIMER_DEL_UNIQKEY" in record.properties:
            continue
        times = int(record.properties.get("TIMER_ROLL_TIMES", 0))
        before = latest.get(key)
        if before is not None and int(before.properties.get("TIMER_ROLL_TIMES", 0)) + 1 == times:
            yield before, record
        latest[key] = record


def test_every_roll_says_what_the_brokers_says(store: ReferenceWheelStore, real: RealStore) -> None:
    units = queue_units(real.root / TIMERS)
    log = store.live.log
    records = [log.record(unit.commit_log_offset, unit.size_bytes) for unit in units]
    clock = AtTimes(0)
    store.timers.clock = clock
    count = 0
    for before, after in taken_on(records):
        theirs = after.properties
        clock.show(int(theirs["TIMER_DEQUEUE_MS"]))
        request = TimerRequest(0, 0, 0, int(theirs["TIMER_ENQUEUE_MS"]), 3)
        ours = store.timers.convert(before, request)
        assert before.properties | dict(ours.properties) == theirs
        assert (ours.topic, ours.queue_id) == (after.topic, after.queue_id)
        count += 1
    assert count > 1000


def test_it_delivers_the_next_minutes_as_the_broker_would_have(
    real: RealStore, tmp_path: Path
) -> None:
    clock = ManualClock(real.stopped_ms)
    settings = StoreSettings(timer_log_file_bytes=TIMER_FILE_BYTES)
    with ReferenceWheelStore.open(real.root, clock=clock, rules=RULES, settings=settings) as store:
        waits = Counter((e.unique_key, e.topic, e.due_ms) for e in store.pending())
        came: Counter[tuple[str | None, str, int]] = Counter()
        for _ in range(180):
            clock.tick(1000)
            for each in store.advance(clock.now_ms()):
                came[each.message.unique_key, each.message.topic, each.promised_ms] += 1
        until_ms = clock.now_ms() // 1000 * 1000
        assert came == Counter({row: n for row, n in waits.items() if row[2] <= until_ms})
        rest = Counter((e.unique_key, e.topic, e.due_ms) for e in store.pending())
        assert came + rest == waits
