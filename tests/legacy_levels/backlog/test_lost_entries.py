# SPDX-License-Identifier: Apache-2.0
"""What a queue knew and lost is found in the whole log: each message once, and none that was
delivered.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.backlog.backlog import LevelBacklog, LevelCounts, read_backlog
from message_store.base.errors import OptionsError
from message_store.format.delay_levels import DelayLevels
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    BuiltStore,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    RawBytes,
    build_level_store,
)
from tests.independent.raw_files import segments
from tests.independent.real_stores import LEVELS_49_CLEAN, LEVELS_55_CLEAN, WHEEL_55_CLEAN, unpack

LOG_FILE_BYTES = 2048
UNITS_A_FILE = 5
QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX"


def at(seconds: float, level: int = 18, **fields: Any) -> LevelMessage:
    return LevelMessage(level=level, store_timestamp_ms=T0 + int(seconds * 1000), **fields)


def build(
    path: Path, items: Sequence[Item], *, lost_files: dict[int, int] | None = None, **options: Any
) -> BuiltStore:
    """A store of which levels have lost so many of their queue's first files."""
    built = build_level_store(
        path / "store",
        items,
        commit_log_file_bytes=LOG_FILE_BYTES,
        queue_file_bytes=UNITS_A_FILE * 20,
        **options,
    )
    for level, count in (lost_files or {}).items():
        for file in segments(built.root / QUEUE / str(level - 1))[:count]:
            file.unlink()
    return built


def read(store: BuiltStore, *, whole_log: bool = True, **options: Any) -> LevelBacklog:
    backlog = read_backlog(
        store.root,
        commit_log_file_bytes=LOG_FILE_BYTES,
        queue_file_bytes=UNITS_A_FILE * 20,
        whole_log=whole_log,
        **options,
    )
    for counts in backlog.counts:
        parts = (counts.pending, counts.already_delivered, counts.neutral, counts.expired)
        assert counts.queued == sum(parts)
        in_a_row = counts.to_queue_offset - counts.from_queue_offset
        assert counts.queued == in_a_row + counts.before_queue
    assert backlog.total("pending") == len(backlog)
    return backlog


def found(store: BuiltStore, backlog: LevelBacklog) -> list[Item | None]:
    """The items that are pending, in log order; None for an entry that leads to none."""
    by_offset = {placed.commit_log_offset: placed for placed in store.placed}
    items: list[Item | None] = []
    for offset, size in zip(
        backlog.commit_log_offset.tolist(), backlog.size_bytes.tolist(), strict=True
    ):
        placed = by_offset.get(offset)
        is_one = placed is not None and len(placed.data) == size
        items.append(placed.item if placed is not None and is_one else None)
    return items


def of_level(backlog: LevelBacklog, level: int = 18) -> LevelCounts:
    return next(counts for counts in backlog.counts if counts.level == level)


# --- the first files of a queue are gone ----------------------------------------------------------


def test_what_waited_before_the_first_entry_is_found(tmp_path: Path) -> None:
    items = [at(number) for number in range(17)]
    store = build(tmp_path, items, lost_files={18: 2}, offsets={18: 4})
    assert found(store, read(store, whole_log=False)) == items[10:]
    backlog = read(store)
    assert found(store, backlog) == items[4:]
    assert backlog.queue_offset.tolist() == list(range(4, 17))
    assert backlog.due_ms.tolist() == [store.of(item).due_ms for item in items[4:]]
    counts = of_level(backlog)
    assert (counts.before_queue, counts.not_in_queue, counts.mended) == (6, 0, 0)
    assert (counts.from_queue_offset, counts.to_queue_offset) == (10, 17)


@pytest.mark.parametrize(("offset", "before"), [(9, 1), (10, 0), (13, 0), (17, 0), (-3, 10)])
def test_only_what_lies_behind_the_offset_is_looked_for(
    tmp_path: Path, offset: int, before: int
) -> None:
    items = [at(number) for number in range(17)]
    store = build(tmp_path, items, lost_files={18: 2}, offsets={18: offset})
    assert of_level(read(store)).before_queue == before


def test_what_was_delivered_is_not_found(tmp_path: Path) -> None:
    """The offsets are old after a crash, and gone where nobody believes them: the log tells."""
    waiting = [at(number, level=3) for number in range(12)]
    items: list[Item] = [*waiting, *(DeliveredCopy(of=waiting[n]) for n in (0, 1, 2, 3, 5, 7))]
    store = build(tmp_path, items, lost_files={3: 2}, offsets={3: 4}, abort=True)
    left = [waiting[n] for n in (4, 6, 8, 9, 10, 11)]
    backlog = read(store, after_crash=True)
    assert found(store, backlog) == left
    assert of_level(backlog, 3).already_delivered == 2
    unknown = read(store, after_crash=True, offsets_choice="none")
    assert found(store, unknown) == left
    assert of_level(unknown, 3).already_delivered == 6


def test_every_level_is_told_by_itself(tmp_path: Path) -> None:
    items = [at(number, level=number % 3 + 16) for number in range(40)]
    store = build(tmp_path, items, lost_files={16: 1, 18: 2}, offsets={16: 3, 17: 1, 18: 7})
    backlog = read(store)
    assert [of_level(backlog, level).before_queue for level in (16, 17, 18)] == [2, 0, 3]
    own = [[item for item in items if item.level == level] for level in (16, 17, 18)]
    wanted = {*own[0][3:], *own[1][1:], *own[2][7:]}
    assert set(found(store, backlog)) == wanted


def test_a_queue_that_was_made_anew_is_told_by_its_order(tmp_path: Path) -> None:
    """Where a broker has made a queue anew, the ordinals of its records are not their places."""
    items = [at(n, record_fields={"queue_offset": n + (7 if n < 6 else 9)}) for n in range(17)]
    store = build(tmp_path, items, lost_files={18: 2}, offsets={18: 4})
    backlog = read(store)
    assert found(store, backlog) == items[4:]
    assert backlog.queue_offset.tolist() == list(range(4, 17))


def test_a_queue_that_was_begun_anew_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    """The ordinals began at 0 again, and the first queue's messages stand before those."""
    old = [at(number, record_fields={"queue_offset": number}, indexed=False) for number in range(8)]
    new = [at(8 + n, record_fields={"queue_offset": n}) for n in range(12)]
    store = build(tmp_path, [*old, *new], lost_files={18: 1}, offsets={18: 0})
    backlog = read(store)
    assert found(store, backlog) == new
    assert of_level(backlog).before_queue == 5


def test_records_that_the_log_has_lost_count_as_the_places_that_they_had(tmp_path: Path) -> None:
    """Else so many would be found too many, delivered ones."""
    items: list[Item] = [at(number) for number in range(17)]
    items[5] = at(5, damage=lambda data: b"\x5a" * len(data))
    items[6] = at(6, damage=lambda data: b"\x5a" * len(data))
    store = build(tmp_path, items, lost_files={18: 2}, offsets={18: 4})
    backlog = read(store)
    assert found(store, backlog) == [items[4], *items[7:]]
    assert backlog.queue_offset.tolist() == [4, *range(7, 17)]
    assert len(backlog.damaged_places) == 1


def test_what_waited_where_a_queue_is_only_filled_up_is_found(tmp_path: Path) -> None:
    """A broker that begins a queue anew behind some records fills their places with nothing."""
    blank = {"commit_log_offset": 0, "size_bytes": 2**31 - 1, "tags_code": 0}
    items = [at(number, unit_fields=blank if number < 7 else {}) for number in range(12)]
    store = build(tmp_path, items, offsets={18: 2})
    assert found(store, read(store, whole_log=False)) == items[7:]
    backlog = read(store)
    assert found(store, backlog) == items[2:]
    counts = of_level(backlog)
    assert (counts.before_queue, counts.expired, counts.to_queue_offset) == (5, 5, 12)


def test_an_entry_that_was_mended_is_good_to_go_back_from(tmp_path: Path) -> None:
    items = [at(number) for number in range(6)]
    items[5] = attrs.evolve(items[5], unit_fields={"commit_log_offset": 1 << 40})
    store = build(tmp_path, items, lost_files={18: 1}, offsets={18: 2})
    backlog = read(store)
    assert found(store, backlog) == items[2:]
    assert (of_level(backlog).before_queue, of_level(backlog).mended) == (3, 1)


def test_what_retention_has_taken_is_not_missed(tmp_path: Path) -> None:
    items = [at(number) for number in range(30)]
    whole = build(tmp_path / "whole", items)
    gone = sum(placed.commit_log_offset < 2 * LOG_FILE_BYTES for placed in whole.placed)
    lost = gone // UNITS_A_FILE
    store = build(tmp_path, items, drop_log_files=2, lost_files={18: lost}, offsets={18: 1})
    backlog = read(store)
    assert found(store, backlog) == items[gone:]
    assert of_level(backlog).before_queue == 0


# --- entries that lead nowhere --------------------------------------------------------------------

WRONG = {
    "beyond the log": {"commit_log_offset": 1 << 40},
    "before it": {"commit_log_offset": -(1 << 40)},
    "into a record": {"commit_log_offset": 33},
    "to the log's start": {"commit_log_offset": 0},
    "as long as nothing": {"size_bytes": 0},
    "too long": {"size_bytes": 100_000},
    "as one taken back": {"size_bytes": 1},
    "as a filler with a due time": {"commit_log_offset": 0, "size_bytes": 2**31 - 1},
    "nothing": {"commit_log_offset": 0, "size_bytes": 0, "tags_code": 0},
    "with no due time": {"commit_log_offset": 33, "tags_code": 12},
}
IN_THE_FILES_BEFORE_THE_LAST = ("as long as nothing", "before it", "nothing")
"""In the last files such a unit ends the queue."""


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("number", [0, 7, 25, 26, 27])
def test_the_message_of_an_entry_that_leads_nowhere_is_found(
    tmp_path: Path, wrong: str, number: int
) -> None:
    items: list[Item] = [OrdinaryMessage(), *(at(n) for n in range(27))]
    items.insert(14, OrdinaryMessage())
    waiting = [item for item in items if isinstance(item, LevelMessage)]
    number = min(number, len(waiting) - 1)
    hurt = at(number, unit_fields=WRONG[wrong])
    items[items.index(waiting[number])] = waiting[number] = hurt
    store = build(tmp_path, items)
    backlog = read(store)
    assert found(store, backlog) == waiting
    assert backlog.due_ms.tolist() == [store.of(item).due_ms for item in waiting]
    if number < 10 or wrong not in IN_THE_FILES_BEFORE_THE_LAST:
        assert (backlog.total("mended"), backlog.total("not_in_queue")) == (1, 0)
        assert backlog.queue_offset.tolist() == list(range(27))


@pytest.mark.parametrize(("number", "other"), [(8, 7), (8, 2), (4, 5), (4, 7), (4, 0), (0, 1)])
def test_two_entries_for_one_message_become_those_of_two(
    tmp_path: Path, number: int, other: int
) -> None:
    items = [at(number) for number in range(9)]
    right = build(tmp_path / "right", items).of(items[other])
    fields = {"commit_log_offset": right.commit_log_offset, "size_bytes": len(right.data)}
    items[number] = at(number, unit_fields=fields)
    store = build(tmp_path, items, offsets={18: min(1, number)})
    backlog = read(store)
    assert found(store, backlog) == items[min(1, number) :]
    assert backlog.queue_offset.tolist() == list(range(min(1, number), 9))
    assert backlog.total("mended") == 1


def test_a_message_that_was_delivered_is_not_found_for_its_entry(tmp_path: Path) -> None:
    waiting = [at(n, level=3, unit_fields=WRONG["into a record"]) for n in range(3)]
    waiting = [at(0, level=3), *waiting[1:], at(3, level=3)]
    items: list[Item] = [*waiting, DeliveredCopy(of=waiting[0]), DeliveredCopy(of=waiting[1])]
    store = build(tmp_path, items, offsets={3: 0}, abort=True)
    backlog = read(store, after_crash=True)
    assert found(store, backlog) == waiting[2:]
    assert of_level(backlog, 3).already_delivered == 2


def test_an_entry_whose_record_is_damaged_stays_that_one(tmp_path: Path) -> None:
    """A record with its ordinal that is of an earlier queue is not taken in its place."""
    old = [at(n, record_fields={"queue_offset": n}, indexed=False) for n in range(4)]
    new = [at(4 + n, record_fields={"queue_offset": n}) for n in range(4)]
    new[0] = attrs.evolve(new[0], damage=lambda data: b"\x5a" * len(data))
    store = build(tmp_path, [*old, *new], offsets={18: 0})
    backlog = read(store)
    assert found(store, backlog) == new
    assert backlog.total("mended") == 0


def test_records_that_all_say_the_same_ordinal_tell_nothing(tmp_path: Path) -> None:
    items = [at(n, record_fields={"queue_offset": 0}) for n in range(130)]
    items[0] = attrs.evolve(items[0], unit_fields=WRONG["into a record"])
    items[120] = attrs.evolve(items[120], unit_fields=WRONG["beyond the log"])
    backlog = read(store := build(tmp_path, items))
    assert (len(backlog), backlog.total("mended")) == (130, 0)
    assert found(store, backlog).count(None) == 2


def test_no_record_is_taken_that_another_one_may_be(tmp_path: Path) -> None:
    """Two records say the ordinal of the entry: neither is proven to be its own."""
    items = [at(n, record_fields={"queue_offset": n}) for n in range(4)]
    items[2] = attrs.evolve(items[2], unit_fields=WRONG["into a record"])
    twin = at(2, record_fields={"queue_offset": 2}, indexed=False)
    store = build(tmp_path, [*items[:3], twin, items[3]])
    backlog = read(store)
    assert found(store, backlog) == [items[0], None, items[1], items[3]]
    assert backlog.total("mended") == 0


def test_a_due_time_of_another_table_is_not_made_early(tmp_path: Path) -> None:
    later = T0 + 7_200_000 + 86_400_000
    hurt = at(1, unit_fields={"commit_log_offset": 33, "tags_code": later + 1000})
    store = build(tmp_path, [at(0), hurt, at(2)])
    with pytest.raises(OptionsError, match="stored under another level table"):
        read(store)


def test_only_the_whole_log_is_asked(tmp_path: Path) -> None:
    items = [at(n, unit_fields=WRONG["into a record"] if n == 3 else {}) for n in range(8)]
    store = build(tmp_path, items)
    assert None in found(store, read(store, whole_log=False))
    assert read(store, whole_log=False).total("mended") == 0


# --- whatever is lost -----------------------------------------------------------------------------


@st.composite
def losses(draw: st.DrawFn) -> tuple[list[Item], dict[int, int], dict[int, int], set[int]]:
    """Items, lost first files and offsets by level, and which items were delivered."""
    levels = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=45))
    told_apart = [fields for name, fields in WRONG.items() if name != "to the log's start"]
    wrong = st.sampled_from([{}, {}, {}, *told_apart])  # two lead to one record: another delay
    waiting = [
        at(n, level, unit_fields=draw(wrong), queue_id=n % 3) for n, level in enumerate(levels)
    ]
    delivered = draw(st.sets(st.integers(0, len(waiting) - 1)))
    items: list[Item] = [*waiting, *(DeliveredCopy(of=waiting[n]) for n in sorted(delivered))]
    for place in draw(st.lists(st.integers(0, len(items)), max_size=2)):
        items.insert(place, draw(st.sampled_from([OrdinaryMessage(), RawBytes(b"\x5a" * 150)])))
    files = {level: draw(st.integers(0, 3)) for level in (2, 3, 4)}
    offsets = {level: draw(st.integers(0, 16)) for level in (2, 3, 4)}
    return items, files, offsets, delivered


@pytest.mark.check
@given(losses())
def test_whatever_is_lost_nothing_is_found_twice_and_nothing_delivered(
    lost: tuple[list[Item], dict[int, int], dict[int, int], set[int]],
) -> None:
    items, files, offsets, delivered = lost
    with tempfile.TemporaryDirectory() as place:
        there = {item.level for item in items if isinstance(item, LevelMessage)}
        known = {level: count for level, count in files.items() if level in there}
        store = build(Path(place), items, lost_files=known, offsets=offsets, abort=True)
        backlog = read(store, after_crash=True, level_table=DelayLevels.parse())
        taken = [item for item in found(store, backlog) if item is not None]
    waiting = [item for item in items if isinstance(item, LevelMessage)]
    # Recovery ends the log at the first damage, and a delivery behind it tells of nothing.
    whole = itertools.takewhile(lambda item: not isinstance(item, RawBytes), items)
    told = {item.of for item in whole if isinstance(item, DeliveredCopy)}
    gone = {waiting[number] for number in delivered} & told
    assert len(taken) == len(set(taken))
    assert not set(taken) & gone
    is_damaged = any(isinstance(item, RawBytes) for item in items)
    if not is_damaged:
        behind = {
            item
            for level in offsets
            for item in [each for each in waiting if each.level == level][offsets[level] :]
        }
        assert behind - gone <= set(taken)


@pytest.mark.parametrize("name", [LEVELS_49_CLEAN, LEVELS_55_CLEAN, WHEEL_55_CLEAN])
def test_a_real_store_has_lost_nothing(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    whole = read_backlog(store.root, whole_log=True, after_crash=True)
    usual = read_backlog(store.root, after_crash=True)
    assert whole.commit_log_offset.tolist() == usual.commit_log_offset.tolist()
    assert whole.queue_offset.tolist() == usual.queue_offset.tolist()
    assert (whole.total("mended"), whole.total("before_queue")) == (0, 0)
