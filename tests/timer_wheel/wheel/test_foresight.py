# SPDX-License-Identifier: Apache-2.0
"""A wheel that looks at its next slot before that is over does what one does that cannot."""

import random
from pathlib import Path

import pytest

from message_store import AtMs, ManualClock, Message
from message_store.base.errors import SourceError
from message_store.redelivery.batch import Measured
from message_store.writing.settings import StoreSettings
from timer_wheel import WheelStore
from timer_wheel.timers.rows import TimerRows
from timer_wheel.wheel import turn as foresight
from timer_wheel.wheel.slots import LiveWheel
from timer_wheel.wheel.turn import Foresight

T0 = 1_793_000_000_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=50 * 20, timer_log_file_bytes=40 * 52 + 16
)


def opened(path: Path, clock: ManualClock) -> WheelStore:
    return WheelStore.open(path, clock=clock, settings=SMALL, roll_window_slots=60)


def live_through(path: Path, seed: int) -> None:
    """A minute of a busy store: looks between the ends of slots, late and early messages, some
    taken back, rolls, a clock that steps back, a restart.
    """
    rng, clock = random.Random(seed), ManualClock(T0)
    store = opened(path, clock)
    handles: list[str] = []
    for _ in range(250):
        match rng.choices(
            ["schedule", "cancel", "advance", "step back", "reopen"], [8, 2, 6, 1, 1]
        )[0]:
            case "schedule":
                for _ in range(rng.choice([1, 20])):
                    due = AtMs(clock.now_ms() + rng.choice([-500, 100, 900, 1_500, 2_000, 90_000]))
                    name = f"K{len(handles)}"
                    message = Message(rng.choice("ABC"), b"x" * rng.randrange(300), unique_key=name)
                    handles.append(store.schedule(message, due).handle)
            case "cancel" if handles:
                store.cancel(rng.choice(handles[-30:]))
            case "advance":
                clock.tick(rng.choice([0, 100, 300, 300, 1_000]))
                store.advance(clock.now_ms())
            case "step back":
                clock.tick(-rng.choice([100, 2_500]))
            case "reopen":
                store.close()
                store = opened(path, clock)
    store.close()


def files_of(path: Path) -> dict[Path, bytes]:
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.check
@pytest.mark.parametrize("seed", range(8))
def test_looking_ahead_leaves_the_same_files(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foresight, "WORTH_IT_UNITS", 10**9)
    live_through(tmp_path / "without", seed)
    monkeypatch.setattr(foresight, "WORTH_IT_UNITS", 1)
    looked, measure = [], Foresight._measured

    def note(known: Foresight, rows: TimerRows, now_ms: int) -> Measured:
        looked.append(len(rows))
        return measure(known, rows, now_ms)

    monkeypatch.setattr(Foresight, "_measured", note)
    live_through(tmp_path / "with", seed)
    assert sum(looked) > 20
    assert files_of(tmp_path / "with") == files_of(tmp_path / "without")


def look_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[WheelStore, ManualClock, Foresight]:
    """A store with three messages for the next second, and what it knows of them halfway."""
    monkeypatch.setattr(foresight, "WORTH_IT_UNITS", 3)
    clock = ManualClock(T0 - 5_000)
    store = opened(path, clock)
    for number in range(3):
        store.schedule(Message("A", b"%d" % number), AtMs(T0 + 100 + number))
    clock.tick(5_300)
    assert len(store.advance(clock.now_ms())) == 0
    return store, clock, store._turning._foresight


def is_empty(known: Foresight) -> bool:
    return known.units is None and known.records is None


def test_what_is_due_next_is_known_before_and_forgotten_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, known = look_at(tmp_path / "store", monkeypatch)
    assert known.units is not None
    assert known.records is not None
    assert len(known.units.rows) == len(known.records.offsets) == 3
    store.schedule(Message("A", b"3"), AtMs(T0 + 900))
    clock.tick(200)
    store.advance(clock.now_ms())
    assert len(known.units.rows) == len(known.records.offsets) == 4
    clock.tick(600)
    delivered = store.advance(clock.now_ms())
    assert [each.message.body for each in delivered] == [b"0", b"1", b"2", b"3"]
    assert is_empty(known)
    store.close()


def test_nobody_looks_where_the_slot_is_nearly_over_or_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, known = look_at(tmp_path / "store", monkeypatch)
    for number in range(3):
        store.schedule(Message("A", b"%d" % number), AtMs(T0 + 1_500))
    clock.tick(1_685)
    assert len(store.advance(clock.now_ms())) == 3
    store.advance(clock.now_ms())
    assert is_empty(known), "fifteen milliseconds are left"
    store.schedule(Message("A", b"small"), AtMs(T0 + 2_500))
    clock.tick(315)
    store.advance(clock.now_ms())
    clock.tick(100)
    assert len(store.advance(clock.now_ms())) == 0
    assert is_empty(known), "one message is not worth it"
    store.close()


def test_what_is_known_may_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, known = look_at(tmp_path / "store", monkeypatch)
    last = store.schedule(Message("A", b"3"), AtMs(T0 + 900))
    store.cancel(last)
    clock.tick(100)
    store.advance(clock.now_ms())
    assert known.units is not None
    clock.tick(600)
    assert [each.message.body for each in store.advance(clock.now_ms())] == [b"0", b"1", b"2"]
    store.close()


def test_what_goes_wrong_while_looking_is_told_when_the_slot_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SourceError("cannot be mapped")

    store, clock, known = look_at(tmp_path / "store", monkeypatch)
    for number in range(3):
        store.schedule(Message("A", b"%d" % number), AtMs(T0 + 900))
    clock.tick(100)
    with monkeypatch.context() as patch:
        patch.setattr(LiveWheel, "last_positions", fail)
        store.advance(clock.now_ms())
        assert is_empty(known)
        clock.tick(600)
        with pytest.raises(SourceError, match="cannot be mapped"):
            store.advance(clock.now_ms())
    assert len(store.advance(clock.now_ms())) == 6
    store.close()


def test_records_are_brought_near_once_and_shortly_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    monkeypatch.setattr(Measured, "prefetch", lambda records: touched.append(len(records.offsets)))
    store, clock, _ = look_at(tmp_path / "store", monkeypatch)
    store.schedule(Message("A", b"3"), AtMs(T0 + 900))
    for left_ms in (600, 400, 200, 160, 120, 80, 40):
        clock.tick(T0 + 1_000 - left_ms - clock.now_ms())
        assert len(store.advance(clock.now_ms())) == 0
        assert touched == ([4] if left_ms < 170 else [])
    store.close()


def test_a_slot_that_grows_little_is_looked_at_again_at_the_end_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, known = look_at(tmp_path / "store", monkeypatch)
    for number, is_known in [(20, 23), (1, 23), (3, 27)]:
        for each in range(number):
            store.schedule(Message("A", b"%d" % each), AtMs(T0 + 900))
        clock.tick(50)
        store.advance(clock.now_ms())
        assert known.units is not None
        assert len(known.units.rows) == is_known
    store.schedule(Message("A", b"last"), AtMs(T0 + 900))
    clock.tick(400)
    store.advance(clock.now_ms())
    assert known.units is not None
    assert len(known.units.rows) == 28
    clock.tick(200)
    assert len(store.advance(clock.now_ms())) == 28
    store.close()


def test_a_hand_that_moves_back_finds_only_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, known = look_at(tmp_path / "store", monkeypatch)
    clock.tick(700)
    assert len(store.advance(clock.now_ms())) == 3
    clock.tick(-800)
    for number in range(3):
        store.schedule(Message("A", b"new %d" % number), AtMs(T0 + 500))
    store.advance(clock.now_ms())
    assert known.units is not None
    assert len(known.units.rows) == 3
    clock.tick(800)
    assert [each.message.body[:3] for each in store.advance(clock.now_ms())] == [b"new"] * 3
    store.close()
