# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in the record of a delete marker, however the store was left: a message that was
cancelled may be delivered then, but whoever opens the store and ``check`` tell of it, and nothing
else is lost.
"""

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message, Pending, Severity
from migrate.look.pending import pending_messages
from tests.faults.damage import copy_store
from tests.faults.engines import ENGINES, SMALL, abandon
from tests.migrate.check_case import look
from timer_wheel import WheelStore
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.timers.store import TimerStore

START_MS = 1_793_000_000_000
ENDS = ("closed", "flushed and killed", "killed")
STEPS = (
    211,
    pytest.param(37, marks=pytest.mark.check),
    pytest.param(3, marks=pytest.mark.nightly),
)
"""How many bits from one that is flipped to the next."""


@attrs.frozen
class Left:
    """A store as it was left, and where the record of its delete marker lies in the log file."""

    path: Path
    engine: str
    marker: range
    expected: Counter[str]

    def open(self, path: Path, clock: ManualClock) -> TimerStore:
        store = ENGINES[self.engine].open(path, clock, False)
        assert isinstance(store, TimerStore)
        return store

    def with_flipped(self, path: Path, bit: int | None) -> Path:
        copy_store(self.path, path)
        if bit is None:
            return path
        [log] = (path / "commitlog").iterdir()
        content = bytearray(log.read_bytes())
        content[self.marker[bit // 8]] ^= 1 << bit % 8
        log.write_bytes(content)
        return path


def leave(path: Path, engine: str, end: str) -> Left:
    clock = ManualClock(START_MS)
    store = ENGINES[engine].open(path, clock, False)
    assert isinstance(store, TimerStore)
    store.advance(START_MS)
    receipts = [
        store.schedule(Message("orders", b"x", unique_key=f"K{number}"), AfterMs(delay_ms))
        for number, delay_ms in enumerate((3_000, 4_000, 5_000, 4_000, 5_000, 4_000))
    ]
    begin = store.live.log.end
    assert store.cancel(receipts.pop(3)) is Cancellation.CANCELLED
    marker = range(begin, store.live.log.end)
    receipts.append(store.schedule(Message("orders", b"x", unique_key="L"), AfterMs(4_000)))
    if end == "closed":
        store.close()
    else:
        if end == "flushed and killed":
            store.flush()
        abandon(store)
    return Left(path, engine, marker, Counter(each.unique_key for each in receipts))


Made = Callable[[str, str], Left]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Made:
    @functools.cache
    def made(engine: str, end: str) -> Left:
        return leave(tmp_path_factory.mktemp("left") / "store", engine, end)

    return made


def warned_of(path: Path, now_ms: int) -> set[str]:
    """What ``check`` warns of, but for the kill."""
    found = look(path, now_ms=now_ms).findings
    return {each.code for each in found if each.severity is not Severity.INFO} - {"store-crashed"}


def require_told(left: Left, path: Path, bit: int | None) -> None:
    clock = ManualClock(START_MS)
    before = warned_of(path, START_MS)
    store = left.open(path, clock)
    told = [*store.undelivered(), *store.check()]
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        store.advance(clock.now_ms())
    came = Counter(each.unique_key or "" for each in store.topic("orders").read(0, 0, 99))
    store.close()
    if bit is None:
        assert (came, told, before) == (left.expected, [], set())
    elif came != left.expected:
        assert left.expected - came <= Counter(["L"]), f"bit {bit}: lost beside the marker"
        assert told, f"bit {bit}: whoever opens the store says nothing"
        is_cut = left.expected - came  # the log ends at the marker then, as a kill may leave it
        assert is_cut or before or warned_of(path, clock.now_ms()), f"bit {bit}: check is content"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
@pytest.mark.parametrize("end", ENDS)
def test_a_cancel_that_is_lost_is_told(
    engine: str, end: str, step: int, left: Made, tmp_path: Path
) -> None:
    store = left(engine, end)
    require_told(store, store.with_flipped(tmp_path / "whole", None), None)
    for bit in range(0, len(store.marker) * 8, step):
        require_told(store, store.with_flipped(tmp_path / str(bit), bit), bit)


@pytest.mark.parametrize(
    ("text", "place", "flipped"),
    [
        (b"TIMER_DEL_UNIQKEY\x01K3", -1, ord("1")),
        (b"rmq_sys_wheel_timer", 1, ord("m") | 0x80),
        (b"TIMER_OUT_MS\x0117", -2, ord("0")),
        (b"DELAYWHEEL_CANCELS\x015", -1, ord("7")),
    ],
    ids=["the key of another", "a topic that is no text", "a time long past", "another's place"],
)
@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_marker_that_says_something_else_is_told(
    engine: str, end: str, text: bytes, place: int, flipped: int, left: Made, tmp_path: Path
) -> None:
    """Found by the bits of the test before."""
    store = left(engine, end)
    log = min((store.path / "commitlog").iterdir()).read_bytes()
    begin = store.marker.start
    at = log.index(text, begin) - begin + place % len(text)
    bit = (log[begin + at] ^ flipped).bit_length() - 1
    assert log[begin + at] ^ flipped == 1 << bit
    path = store.with_flipped(tmp_path / "flipped", at * 8 + bit)
    listed = [each for each in pending_messages(path, now_ms=START_MS) if isinstance(each, Pending)]
    assert store.expected.keys() <= {each.unique_key for each in listed}
    require_told(store, path, at * 8 + bit)


def test_a_cancel_that_took_place_is_no_damage_when_its_unit_is_lost(tmp_path: Path) -> None:
    """The slot of the marker was over at the last flush."""
    clock = ManualClock(START_MS)
    store = ENGINES["wheel"].open(tmp_path, clock, False)
    receipt = store.schedule(Message("orders", b"x", unique_key="K"), AfterMs(3_000))
    assert store.cancel(receipt) is Cancellation.CANCELLED
    clock.tick(60_000)
    assert len(store.advance(clock.now_ms())) == 0
    store.flush()
    abandon(store)
    file = min((tmp_path / "timerlog").iterdir())
    data = bytearray(file.read_bytes())
    end = len(data.rstrip(b"\0"))
    begin = end - end % TIMER_UNIT.size
    data[begin : begin + TIMER_UNIT.size] = bytes(TIMER_UNIT.size)
    file.write_bytes(data)
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL) as again:
        assert [*again.undelivered(), *again.check()] == []
