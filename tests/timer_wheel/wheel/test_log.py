# SPDX-License-Identifier: Apache-2.0
"""Timer log and slots as they are written: known bytes, file borders, kills in the middle."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store import ManualClock
from message_store.base.errors import TargetError
from message_store.columns.byte_column import int64s
from message_store.files.live_segments import LiveSegments
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import string_hash
from tests.independent.raw_files import timer_units
from timer_wheel.format.checkpoint import OwnCheckpoint, TimerCheckpoint, encode_timer_checkpoint
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES
from timer_wheel.timers.rows import TimerRows
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.leaving import put_away, unhang
from timer_wheel.wheel.log import KnownSlot, LiveTimerLog
from timer_wheel.wheel.slots import LiveWheel

WRITE_MS = 1_700_000_001_000
OUT_MS = 1_700_003_600_000
TOPIC_HASH = string_hash("TopicA")
SMALL_FILE_BYTES = 4 * 52 + 20
"""Four units, and a blank of twenty bytes."""


def rows_of(*rows: tuple[int, int, int, int], write_ms: int = WRITE_MS) -> TimerRows:
    """Slot time, flags, log offset and size of each."""
    found = TimerRows.empty(len(rows))
    for column, (slot_ms, flags, offset, size) in enumerate(rows):
        found.table[:, column] = 0, slot_ms, write_ms, flags, offset, size, TOPIC_HASH
    return found


def open_log(path: Path, file_bytes: int = SMALL_FILE_BYTES) -> LiveTimerLog:
    log = LiveTimerLog(LiveSegments(path / "timerlog", file_bytes, root=path))
    log.find_end()
    return log


def content(path: Path, start: int = 0) -> bytes:
    return (path / "timerlog" / f"{start:020d}").read_bytes()


T1 = (
    "00000034ffffffffffffffff000000010000018bcfe56be80036ea98000000000000162e000000cb95a7c512"
    "0000000000000000"
)
T2 = (
    "000000340000000000000000000000010000018bcfe56be80036ea9800000000000016f9000000cb95a7c512"
    "0000000000000000"
)
ROLL = (
    "00000034ffffffffffffffff000000030000018bcfe56be805265c00000000000000162e000000cb95a7c512"
    "0000000000000000"
)
MARKER = (
    "00000034ffffffffffffffff000000050000018bcfe56be80036ea98000000000000162e000000cb95a7c512"
    "0000000000000000"
)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(OUT_MS, 1, 5678, 203), (OUT_MS, 1, 5881, 203)], T1 + T2),
        ([(WRITE_MS + 86_400_000, 3, 5678, 203)], ROLL),
        ([(OUT_MS, 5, 5678, 203)], MARKER),
    ],
    ids=["two of a slot", "roll", "delete marker"],
)
def test_units_are_the_bytes_that_a_broker_was_seen_to_read(
    tmp_path: Path, rows: list[tuple[int, int, int, int]], text: str
) -> None:
    log = open_log(tmp_path, 100 << 20)
    log.append(rows_of(*rows), LiveWheel(1000, WRITE_MS))
    assert content(tmp_path)[: len(text) // 2].hex() == text


def test_a_slot_is_the_bytes_that_a_broker_was_seen_to_read(tmp_path: Path) -> None:
    log, wheel = open_log(tmp_path, 100 << 20), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((OUT_MS, 1, 5678, 203), (OUT_MS, 1, 5881, 203)), wheel)
    expected = "000000006553ff10000000000000000000000000000000340000000200000000"
    assert wheel.image[16_499_200:][:32].tobytes().hex() == expected
    assert wheel.unit_count(OUT_MS) == 2
    files = WheelFiles(StoreRoot(tmp_path), ManualClock(0), snapshots=False)
    files.write_wheel(wheel, log.end)
    files.close()
    written = (tmp_path / "timerwheel").read_bytes()
    assert len(written) == WHEEL_FILE_BYTES
    assert written == wheel.image.tobytes()


def test_the_checkpoint_is_the_bytes_that_a_broker_was_seen_to_read(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    path.parent.mkdir()
    path.write_bytes(encode_timer_checkpoint(TimerCheckpoint(counter=2)))
    files = WheelFiles(StoreRoot(tmp_path), ManualClock(1_700_000_000_500), snapshots=False)
    files.save(1_700_000_000_000, 2)
    files.sync_checkpoint(104, OwnCheckpoint(1_700_000_000_000, 0, 1000), 2)
    files.close()
    assert path.read_bytes()[:56].hex() == (
        "0000018bcfe5680000000000000000680000000000000002000000000000000200000000000000000000018b"
        "cfe569f40000000000000003"
    )
    assert len(path.read_bytes()) == 4096


# --- borders --------------------------------------------------------------------------------------

slot_times = st.integers(0, 40).map(lambda second: WRITE_MS + 1000 * second)


@pytest.mark.check
@settings(deadline=None, max_examples=40)
@given(batches=st.lists(st.lists(slot_times, max_size=14), max_size=6))
def test_any_units_are_read_back_in_their_chains(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("log")
    log, wheel = open_log(path), LiveWheel(1000, WRITE_MS)
    placed: list[int] = []
    for batch in batches:
        first = len(placed)
        log.append(rows_of(*((ms, 1, 1000 + first + i, 200) for i, ms in enumerate(batch))), wheel)
        placed += batch
    units = list(timer_units(path / "timerlog")) if placed else []
    assert [unit.commit_log_offset for unit in units] == [1000 + i for i in range(len(placed))]
    assert [unit.slot_time_ms for unit in units] == placed
    rows, astray = log.walk(wheel, wheel.used_slots())
    assert astray == 0
    order = sorted(range(len(placed)), key=lambda index: placed[index])
    assert rows.commit_log_offset.tolist() == [1000 + index for index in order]
    again, anew = open_log(path), LiveWheel(1000, WRITE_MS)
    again.revise(anew)
    assert again.end == log.end
    assert anew.image.tobytes() == wheel.image.tobytes()


def test_a_file_ends_in_a_blank_when_the_next_one_begins(tmp_path: Path) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of(*[(OUT_MS, 1, index, 200) for index in range(4)]), wheel)
    assert content(tmp_path)[208:] == bytes(20)
    log.append(rows_of((OUT_MS, 1, 9, 200)), wheel)
    assert content(tmp_path)[208:].hex() == "000000140000000000000000cbd43194" + "00" * 4
    assert [unit.position for unit in timer_units(tmp_path / "timerlog")][-1] == SMALL_FILE_BYTES


@pytest.mark.parametrize("there", [2, 4], ids=["half a file", "a whole file"])
def test_a_stop_at_any_write_leaves_all_units_of_an_append_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    """Eleven units over three files or four, behind those that are there. The last unit lies right
    before the end, where a broker looks for it.
    """
    for stop in range(12):
        path = tmp_path / str(stop)
        log, wheel = open_log(path), LiveWheel(1000, WRITE_MS)
        log.append(rows_of(*[(OUT_MS, 1, 1 + index, 200) for index in range(there)]), wheel)
        left = stop
        write_at = log.segments.write_at

        def stopping(offset: int, data: bytes) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            write_at(offset, data)  # noqa: B023

        more = rows_of(*[(OUT_MS, 1, there + 1 + index, 200) for index in range(11)])
        with monkeypatch.context() as patch:
            patch.setattr(log.segments, "write_at", stopping)
            patch.setattr(log.segments, "zero_from", lambda _offset: 0)
            try:
                log.append(more, wheel)
                is_whole = True
            except KeyboardInterrupt:
                is_whole = False
        again = open_log(path)
        rows = TimerRows.together(list(again.all_units()))
        count = there + 11 if is_whole else there
        assert again.end % SMALL_FILE_BYTES > 0
        assert rows.commit_log_offset.tolist() == list(range(1, count + 1))
        again.append(rows_of((OUT_MS, 1, 99, 200)), LiveWheel(1000, WRITE_MS))
        assert len(list(timer_units(path / "timerlog"))) == count + 1
    assert is_whole


def test_a_disk_that_refuses_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((OUT_MS, 1, 1, 200)), wheel)

    def refuse(_start: int) -> None:
        raise TargetError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(log.segments, "make_file", refuse)
        with pytest.raises(TargetError):
            log.append(rows_of(*[(OUT_MS, 1, 2 + index, 200) for index in range(9)]), wheel)
    assert log.end == 52
    log.append(rows_of((OUT_MS, 1, 77, 200)), LiveWheel(1000, WRITE_MS))
    assert [u.commit_log_offset for u in timer_units(tmp_path / "timerlog")] == [1, 77]


def test_a_failed_append_that_cannot_be_taken_away_leaves_no_log_that_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its units lie behind the end, where those of a shorter append would lead to them."""
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((OUT_MS, 1, 1, 200)), wheel)
    write_at = log.segments.write_at

    def all_but_the_head(offset: int, data: bytes) -> None:
        if len(data) == 8:
            raise TargetError("no space")
        write_at(offset, data)

    def refuse(_offset: int) -> int:
        raise TargetError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(log.segments, "write_at", all_but_the_head)
        patch.setattr(log.segments, "zero_from", refuse)
        with pytest.raises(TargetError, match="no space"):
            log.append(rows_of(*[(OUT_MS, 1, 2 + index, 200) for index in range(9)]), wheel)
    with pytest.raises(TargetError, match="open it again"):
        log.append(rows_of((OUT_MS, 1, 77, 200)), wheel)
    again = open_log(tmp_path)
    again.append(rows_of((OUT_MS, 1, 77, 200)), LiveWheel(1000, WRITE_MS))
    assert [u.commit_log_offset for u in timer_units(tmp_path / "timerlog")] == [1, 77]


# --- slots ----------------------------------------------------------------------------------------


def test_a_slot_of_another_time_is_taken_over(tmp_path: Path) -> None:
    """Fourteen days apart two times share a slot; by then the earlier one is over."""
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    later_ms = WRITE_MS + 1_209_600_000
    log.append(rows_of((WRITE_MS, 1, 1, 200)), wheel)
    wheel.move_hand(WRITE_MS + 1000)
    log.append(rows_of((later_ms, 1, 2, 200)), wheel)
    rows, _ = log.walk(wheel, wheel.used_slots())
    assert rows.commit_log_offset.tolist() == [2]
    assert [unit.previous_position for unit in timer_units(tmp_path / "timerlog")] == [-1, -1]


def test_the_hand_never_moves_back(tmp_path: Path) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((WRITE_MS, 1, 1, 200)), wheel)
    wheel.move_hand(WRITE_MS + 5000)
    assert wheel.next_slot_ms() is None
    wheel.move_hand(WRITE_MS)
    assert wheel.hand_ms == WRITE_MS + 5000
    assert wheel.next_slot_ms() is None, "what was taken stays taken"


@pytest.mark.parametrize("ahead", [0, 1, 4_095, 4_096, 200_000, 604_740, 1_209_599])
def test_the_next_slot_is_found_however_far_it_is(tmp_path: Path, ahead: int) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    slot_ms = WRITE_MS + 1000 * ahead
    log.append(rows_of((slot_ms, 1, 1, 200)), wheel)
    assert wheel.next_slot_ms() == slot_ms
    assert (wheel.used_slots() * 1000).tolist() == [slot_ms]
    assert len(wheel.used_slots(slot_ms)) == 0


@pytest.mark.parametrize(("previous", "lost"), [(0, 0), (52, 1), (30, 1), (10**15, 1), (-7, 1)])
def test_a_link_that_leads_astray_ends_its_chain(tmp_path: Path, previous: int, lost: int) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((OUT_MS, 1, 1, 200), (OUT_MS, 1, 2, 200)), wheel)
    log.segments.write_at(52 + 4, previous.to_bytes(8, "big", signed=True))
    rows, astray = log.walk(wheel, wheel.used_slots())
    assert astray == lost
    assert rows.commit_log_offset.tolist() == [1, 2][lost:]


def test_a_link_to_a_unit_of_another_slot_ends_its_chain(tmp_path: Path) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((OUT_MS + 5000, 1, 1, 200), (OUT_MS, 1, 2, 200)), wheel)
    log.segments.write_at(52 + 4, bytes(8))  # the second unit leads to the first
    rows, astray = log.walk(wheel, wheel.used_slots())
    assert astray == 1
    assert rows.commit_log_offset.tolist() == [2, 1]


def known_of(log: LiveTimerLog, wheel: LiveWheel, slot_ms: int) -> KnownSlot:
    rows, _ = log.walk(wheel, int64s([slot_ms // 1000]))
    return KnownSlot(slot_ms // 1000, rows, log.rewrite_count)


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_a_slot_of_which_some_is_known_is_what_it_is(first: list[int], then: list[int]) -> None:
    """Over the borders of files, and whatever else came between."""
    with TemporaryDirectory() as folder:
        log, wheel = open_log(Path(folder)), LiveWheel(1000, WRITE_MS)
        log.append(rows_of((OUT_MS, 1, 7, 200)), wheel)
        log.append(rows_of(*((OUT_MS + 1000 * n, 1, n, 200) for n in first)), wheel)
        known = known_of(log, wheel, OUT_MS)
        log.append(rows_of(*((OUT_MS + 1000 * n, 1, n, 200) for n in then)), wheel)
        for slots in (wheel.used_slots(OUT_MS + 1000), wheel.used_slots()):
            expected, _ = log.walk(wheel, slots)
            found, astray = log.walk(wheel, slots, known)
            assert found.table.tolist() == expected.table.tolist()
            assert astray == 0


def test_what_is_known_of_a_slot_ends_with_its_chain(tmp_path: Path) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of((OUT_MS, 1, 1, 200), (OUT_MS, 1, 2, 200)), wheel)
    known = known_of(log, wheel, OUT_MS)
    wheel.set_slot(OUT_MS // 1000, int64s([]), 0)
    log.append(rows_of((OUT_MS, 1, 3, 200)), wheel)
    rows, _ = log.walk(wheel, wheel.used_slots(), known)
    assert rows.commit_log_offset.tolist() == [3]


@pytest.mark.parametrize("change", ["unhung", "put away", "cut"])
def test_what_is_known_of_a_slot_ends_where_the_log_is_rewritten(
    tmp_path: Path, change: str
) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    log.append(rows_of(*((OUT_MS, 1, number, 200) for number in range(3))), wheel)
    known = known_of(log, wheel, OUT_MS)
    match change:
        case "unhung":
            unhang(log, wheel, known.rows, np.array([True, False, False]))
        case "put away":
            put_away(log, known.rows.rows(slice(0, 1)), WRITE_MS - 1000, log.segments.sync)
        case "cut":
            log.cut(2 * 52)
    slots = wheel.used_slots()
    assert (
        log.walk(wheel, slots, known)[0].table.tolist() == log.walk(wheel, slots)[0].table.tolist()
    )
    assert not known.is_of(slots, log.rewrite_count)


@pytest.mark.check
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_whatever_of_an_unhung_chain_is_written_all_that_is_kept_is_found_from_any_unit_above(
    taken: list[bool], data: st.DataObject
) -> None:
    """Also where taken units are put away in any order, when all of it is written."""
    is_taken = np.array(taken)
    with TemporaryDirectory() as folder:
        log, wheel = open_log(Path(folder)), LiveWheel(1000, WRITE_MS)
        log.append(rows_of(*((OUT_MS, 1, number, 200) for number in range(len(taken)))), wheel)
        slots = wheel.used_slots()
        chain, _ = log.walk(wheel, slots)
        kept = set(chain.position[~is_taken].tolist())
        before = [log.segments.read_at(place, 52) for place in chain.position.tolist()]
        unhang(log, wheel, chain, is_taken)
        assert set(log.walk(wheel, wheel.used_slots())[0].position.tolist()) == kept
        after = [log.segments.read_at(place, 52) for place in chain.position.tolist()]
        is_written = [data.draw(st.booleans()) for _ in taken]
        for index, place in enumerate(chain.position.tolist()):
            log.segments.write_at(place, after[index] if is_written[index] else before[index])
            found = found_from(log, wheel, place)
            assert found >= {each for each in kept if each <= place}
        for index, place in enumerate(chain.position.tolist()):
            log.segments.write_at(place, after[index])
        gone = [index for index in np.flatnonzero(is_taken) if data.draw(st.booleans())]
        put_away(log, chain.rows(np.array(gone, np.int64)), WRITE_MS - 1000, log.segments.sync)
        for index, place in enumerate(chain.position.tolist()):
            if index not in gone:
                assert found_from(log, wheel, place) >= {each for each in kept if each <= place}


@given(
    taken=st.lists(st.booleans(), min_size=1, max_size=6),
    data=st.data(),
)
def test_what_is_put_away_is_harmless_wherever_writing_is_cut(
    taken: list[bool], data: st.DataObject
) -> None:
    """All that is kept is found, and nothing in another slot. A kill leaves the first writes; a
    loss of power any words of what was not synced, for a sector's edge may lie between two.
    """
    is_taken = np.array(taken)
    with TemporaryDirectory() as folder:
        log, wheel = open_log(Path(folder), 100 * 52), LiveWheel(1000, WRITE_MS)
        log.append(rows_of(*((OUT_MS, 1, number, 200) for number in range(len(taken)))), wheel)
        chain, _ = log.walk(wheel, wheel.used_slots())
        kept = set(chain.position[~is_taken].tolist())
        unhang(log, wheel, chain, is_taken)
        before = bytearray(log.segments.read_at(0, log.end))
        words: list[tuple[int, bytes]] = []
        synced = 0

        def noted(position: int, **values: int) -> None:
            old = log.segments.read_at(position, 52)
            overwrite(position, **values)
            new = log.segments.read_at(position, 52)
            words.extend(
                (position + at, new[at : at + 4])
                for at in range(0, 52, 4)
                if old[at : at + 4] != new[at : at + 4]
            )

        def sync() -> None:
            nonlocal synced
            synced = len(words)

        overwrite = log.overwrite
        log.overwrite = noted  # type: ignore[method-assign]
        put_away(log, chain.rows(is_taken), WRITE_MS - 1000, sync)
        cut = data.draw(st.integers(0, len(words)))
        certain = synced if cut >= synced else 0
        for index, (at, word) in enumerate(words[:cut]):
            if index < certain or data.draw(st.booleans()):
                before[at : at + 4] = word
        log.segments.write_at(0, before)
        anew = LiveWheel(1000, WRITE_MS)
        log.revise(anew)
        rows, _ = log.walk(anew, anew.used_slots())
        assert set(rows.position.tolist()) >= kept
        assert (rows.slot_time_ms == OUT_MS).all()


def found_from(log: LiveTimerLog, wheel: LiveWheel, position: int) -> set[int]:
    """What a slot would hold whose last unit is this one."""
    wheel.set_slot(OUT_MS // 1000, int64s([position]), 1)
    return set(log.walk(wheel, int64s([OUT_MS // 1000]))[0].position.tolist())


def test_delete_markers_are_taken_off_the_count_of_a_slot(tmp_path: Path) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    assert wheel.unit_count(OUT_MS) == 0
    log.append(rows_of((OUT_MS, 1, 1, 200), (OUT_MS, 3, 2, 200), (OUT_MS, 5, 3, 200)), wheel)
    assert wheel.unit_count(OUT_MS) == 1
    assert wheel.unit_count(OUT_MS + 1000) == 0


@pytest.mark.parametrize(
    ("last_offsets", "log_min_offset", "count"),
    [
        ((100, 200, 300), 0, 0),
        ((100, 200, 300), 100, 0),
        ((100, 200, 300), 101, 1),
        ((100, 200, 300), 201, 2),
        # The last file stays whatever it points at.
        ((100, 200, 300), 10_000, 2),
        # The first file that stays ends the search.
        ((300, 100, 300), 200, 0),
    ],
)
def test_cleanup_deletes_files_whose_last_record_is_gone(
    tmp_path: Path, last_offsets: tuple[int, ...], log_min_offset: int, count: int
) -> None:
    log, wheel = open_log(tmp_path), LiveWheel(1000, WRITE_MS)
    for last_offset in last_offsets:
        offsets = (1, 2, 3, last_offset)
        log.append(rows_of(*((OUT_MS, 1, offset, 203) for offset in offsets)), wheel)
    starts = list(log.segments.starts)
    deleted = log.delete_expired(log_min_offset)
    assert [int(path.name) for path in deleted] == starts[:count]
    assert log.segments.starts == starts[count:]
    log.segments.close()
