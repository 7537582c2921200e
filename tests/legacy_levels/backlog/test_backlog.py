# SPDX-License-Identifier: Apache-2.0
"""What small hand-made stores still owe: offsets, expiry, the tail, repairs, delivered copies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.backlog.backlog import LevelBacklog, LevelCounts, read_backlog
from legacy_levels.backlog.queues import queued_by_choice
from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from message_store.base.errors import DelayStoreError, OptionsError, PlanError, SourceError
from message_store.format.delay_levels import DelayLevels, format_delay
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    BuiltStore,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    RawBytes,
    build_level_store,
    retry_message,
)

FILE_BYTES = 4096
QUEUE_FILE_BYTES = 2_000


def build(path: Path, items: Sequence[Item], **options: Any) -> BuiltStore:
    options = {"commit_log_file_bytes": FILE_BYTES} | options
    return build_level_store(path / "store", items, **options)


def read(store: BuiltStore, **options: Any) -> LevelBacklog:
    backlog = read_backlog(
        store.root,
        commit_log_file_bytes=FILE_BYTES,
        queue_file_bytes=QUEUE_FILE_BYTES,
        **({"after_crash": True} | options),
    )
    for counts in backlog.counts:
        parts = (counts.pending, counts.already_delivered, counts.neutral, counts.expired)
        assert counts.queued == sum(parts) == counts.to_queue_offset - counts.from_queue_offset
    assert backlog.total("pending") == len(backlog)
    return backlog


def found(store: BuiltStore, backlog: LevelBacklog) -> list[Item]:
    """The items that are pending, in log order."""
    by_offset = {placed.commit_log_offset: placed.item for placed in store.placed}
    return [by_offset[offset] for offset in backlog.commit_log_offset.tolist()]


def of_level(backlog: LevelBacklog, level: int) -> LevelCounts:
    return next(counts for counts in backlog.counts if counts.level == level)


def at(seconds: float, level: int = 3, **fields: Any) -> LevelMessage:
    return LevelMessage(level=level, store_timestamp_ms=T0 + int(seconds * 1000), **fields)


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "first"), [(None, 0), (0, 0), (4, 4), (10, 10), (11, 10), (99, 10), (-5, 0)]
)
def test_a_level_is_pending_from_its_offset_on(
    tmp_path: Path, offset: int | None, first: int
) -> None:
    items = [at(number) for number in range(10)]
    store = build(tmp_path, items, offsets={} if offset is None else {3: offset})
    backlog = read(store)
    assert found(store, backlog) == items[first:]
    counts = of_level(backlog, 3)
    assert (counts.stored_offset, counts.from_queue_offset) == (offset, first)
    assert (counts.queue_min, counts.queue_max, counts.to_queue_offset) == (0, 10, 10)


def test_an_offset_far_beyond_its_queue_leaves_nothing_after_a_crash_either(tmp_path: Path) -> None:
    items = [at(number, level) for number in range(10) for level in (3, 4)]
    store = build(tmp_path, items, offsets={3: 10**6, 4: 10}, abort=True, checkpoint=False)
    assert len(read(store)) == 0


def test_levels_come_together_in_log_order_with_their_due_times(tmp_path: Path) -> None:
    items = [at(number, level) for number, level in enumerate([3, 1, 18, 1, 3, 7])]
    store = build(tmp_path, [*items, OrdinaryMessage()], offsets={1: 1})
    backlog = read(store)
    assert backlog.level.tolist() == [3, 18, 1, 3, 7]
    assert backlog.queue_offset.tolist() == [0, 0, 1, 1, 0]
    assert backlog.due_ms.tolist() == [store.of(item).due_ms for item in found(store, backlog)]
    assert backlog.size_bytes.tolist() == [
        len(store.of(item).data) for item in found(store, backlog)
    ]
    assert backlog.log_end == store.log_end


def test_an_empty_store_owes_nothing(tmp_path: Path) -> None:
    assert len(read(build(tmp_path, []))) == 0
    assert read(build(tmp_path / "2", [OrdinaryMessage()])).counts == ()


def test_what_retention_has_removed_is_expired(tmp_path: Path) -> None:
    items = [at(number, level) for number in range(30) for level in (3, 4)]
    store = build(tmp_path, items, drop_log_files=2)
    backlog = read(store)
    kept = [one.item for one in store.placed if one.commit_log_offset >= 2 * FILE_BYTES]
    assert found(store, backlog) == kept
    assert backlog.total("expired") == 60 - len(kept) > 0
    assert backlog.log_min == 2 * FILE_BYTES


DAMAGES = {
    "good": ({3: 6}, {3: 2}, "main", (4, 8, 10)),
    "main missing": (None, {3: 2}, "bak", (None, 8, 10)),
    "main empty": (b"", {3: 2}, "bak", (None, 8, 10)),
    "main filled with NUL": (bytes(40), {3: 2}, "bak", (None, 8, 10)),
    "main truncated": (b'{"offsetTable":{3:6,4:1', {3: 2}, "bak", (4, 8, 10)),
    "main with a stale tail": (b'{"offsetTable":{3:6}}}', {3: 2}, "bak", (4, 8, 10)),
    "both gone": (None, None, "none", (None, None, 10)),
    "main empty, no bak": (b"", None, "none", (None, None, 10)),
    "main good, bak damaged": ({3: 6}, b"{", "main", (4, None, 10)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_of_the_offsets_has_its_price(tmp_path: Path, damage: str) -> None:
    offsets, backup, source, prices = DAMAGES[damage]
    items = [at(number) for number in range(10)]
    store = build(tmp_path, items, offsets=offsets, backup_offsets=backup)
    backlog = read(store)
    assert backlog.offsets.source.value == source
    price = queued_by_choice(store.root, backlog.offsets)
    choices = (OffsetsChoice.MAIN, OffsetsChoice.BACKUP, OffsetsChoice.NONE)
    assert tuple(price.get(choice) for choice in choices) == prices
    for choice, count in price.items():
        assert len(read(store, offsets_choice=choice)) == count


def test_offsets_that_stop_a_broker_stop_us_until_one_is_chosen(tmp_path: Path) -> None:
    items = [at(number) for number in range(10)]
    store = build(tmp_path, items, offsets=b"", backup_offsets=b'{"offsetTable":{3:8,')
    with pytest.raises(SourceError, match="would not start"):
        read(store)
    known = read_delay_offsets(store.root, OffsetsChoice.NONE)
    price = queued_by_choice(store.root, known)
    assert price == {OffsetsChoice.BACKUP: 2, OffsetsChoice.NONE: 10}
    assert len(read(store, offsets_choice="bak")) == 2


# --- the level table ------------------------------------------------------------------------------


def test_a_store_of_other_levels_wants_its_own_table(tmp_path: Path) -> None:
    items = [at(0, level=2), at(0, level=20)]
    line = " ".join(f"{number}m" for number in range(1, 21))
    store = build(tmp_path, items, level_table=line)
    with pytest.raises(PlanError, match=r"(?s)2: 2m.*differ at level 2"):
        read(store)
    backlog = read(store, level_table=DelayLevels.parse(line))
    assert backlog.due_ms.tolist() == [T0 + 120_000, T0 + 1_200_000]
    assert [counts.delay_ms for counts in backlog.counts] == [120_000, 1_200_000]


def test_queues_beyond_the_table_stop_nothing_once_they_are_delivered(tmp_path: Path) -> None:
    line = " ".join(f"{number}s" for number in range(1, 21))
    store = build(tmp_path, [at(0, level=20)], level_table=line, offsets={20: 1})
    assert len(read(store)) == 0


LONGER = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 30d"
DAY = 86_400
OLD, NEW = 2 * 3_600, 30 * DAY


def due_after(stored: int, delay: int) -> LevelMessage:
    """A message of level 18, both in seconds."""
    return at(stored, level=18, unit_fields={"tags_code": T0 + (stored + delay) * 1000})


def test_a_table_made_longer_since_the_last_delivery_is_told_by_what_waits(tmp_path: Path) -> None:
    items = [due_after(n, OLD) for n in range(300)] + [due_after(n, NEW) for n in range(300, 400)]
    store = build(tmp_path, items, offsets={18: 300})
    for table in (None, DelayLevels.parse()):
        with pytest.raises(OptionsError, match=r"(?s)1h 2h\n.*18: 30d.*differ at level 18 \(2h\)"):
            read(store, level_table=table)
    backlog = read(store, level_table=DelayLevels.parse(LONGER))
    assert backlog.due_ms.tolist() == [T0 + (n + NEW) * 1000 for n in range(300, 400)]
    assert backlog.total("repaired") == 0


@pytest.mark.parametrize("table", [None, LONGER])
@pytest.mark.parametrize("delays", [(OLD, NEW), (NEW, OLD), (OLD, 3_600)])
def test_messages_of_two_tables_waiting_in_one_level_are_no_one_s_guess(
    tmp_path: Path, table: str | None, delays: tuple[int, int]
) -> None:
    items = [due_after(n, delays[n >= 30]) for n in range(60)]
    shown = " and ".join(format_delay(seconds * 1000) for seconds in sorted(delays))
    with pytest.raises(OptionsError, match=rf"level 18: {shown}.*run the source's broker with the"):
        read(build(tmp_path, items), level_table=table and DelayLevels.parse(table))


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_messages_of_a_longer_table_are_not_made_early(tmp_path: Path, count: int) -> None:
    items = [due_after(n, OLD) for n in range(2_000)]
    for number in range(count):
        items[501 + number] = due_after(501 + number, NEW)
    words = rf"level 18 \(2h\) holds {count} that are due after 30d; .*run the source's broker"
    with pytest.raises(OptionsError, match=words):
        read(build(tmp_path, items))


def test_due_times_of_a_clock_that_went_back_far_are_the_table_s_own(tmp_path: Path) -> None:
    items = [at(5 * DAY), at(0), at(1)]
    assert read(build(tmp_path, items)).due_ms.tolist() == [
        T0 + (second + 10) * 1000 for second in (5 * DAY, 0, 1)
    ]


def test_what_was_delivered_tells_the_delay_of_records_in_no_queue(tmp_path: Path) -> None:
    items = [due_after(n, NEW) for n in range(10)] + [at(11, level=18)]
    store = build(tmp_path, items, offsets={18: 10}, indexed_items=10, abort=True)
    with pytest.raises(OptionsError, match=r"(?s)18: 30d.*differ at level 18"):
        read(store)
    backlog = read(store, level_table=DelayLevels.parse(LONGER))
    assert backlog.due_ms.tolist() == [T0 + (11 + NEW) * 1000]


# --- the tail of the log --------------------------------------------------------------------------


def test_records_that_no_queue_knows_are_added_behind_their_queue(tmp_path: Path) -> None:
    items = [at(n, level) for n, level in enumerate([3, 4, 3, 3, 4, 5])]
    for abort in (False, True):
        store = build(tmp_path / str(abort), items, indexed_items=2, abort=abort)
        backlog = read(store)
        assert found(store, backlog) == items
        assert backlog.queue_offset.tolist() == [0, 0, 1, 2, 1, 0]
        assert backlog.due_ms.tolist() == [store.of(item).due_ms for item in items]
        assert {c.level: c.not_in_queue for c in backlog.counts} == {3: 2, 4: 1, 5: 1}
        assert of_level(backlog, 5).queue_max == 0
        assert of_level(backlog, 5).to_queue_offset == 1


def test_each_level_is_believed_up_to_its_own_end(tmp_path: Path) -> None:
    items = [at(n, level) for n, level in enumerate([3, 4, 3, 4, 3, 4])]
    options: dict[str, Any] = {"level_queue_ends": {4: 1}, "checkpoint": False}
    crashed = build(tmp_path / "crashed", items, abort=True, **options)
    assert found(crashed, read(crashed)) == items
    clean = build(tmp_path / "clean", items, **options)
    assert found(clean, read(clean)) == items


def test_without_any_queue_everything_comes_from_the_log(tmp_path: Path) -> None:
    items = [at(n, level) for n, level in enumerate([3, 4] * 20)]
    store = build(tmp_path, items, indexed_items=0)
    assert found(store, read(store)) == items


def test_halves_of_transactions_wait_for_nothing(tmp_path: Path) -> None:
    half = LevelMessage(sys_flag=0x4)
    store = build(tmp_path, [at(0), half, at(1)], indexed_items=1)
    assert len(read(store)) == 2


def test_a_level_that_no_table_has_is_refused_in_the_tail_too(tmp_path: Path) -> None:
    line = " ".join(f"{number}s" for number in range(1, 21))
    store = build(tmp_path, [at(0, level=20)], level_table=line, indexed_items=0)
    with pytest.raises(PlanError, match="messages of level 20"):
        read(store)


def test_garbage_in_the_log_costs_only_what_it_hits(tmp_path: Path) -> None:
    items: list[Item] = [at(number) for number in range(20)]
    items.insert(3, RawBytes(b"\x5a" * 200))
    store = build(tmp_path, items, indexed_items=10, abort=True)
    assert found(store, read(store)) == [i for i in items if isinstance(i, LevelMessage)]


# --- due times ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags_code", [0, 2598919, -5, T0 * 1000, 2**62])
def test_a_due_time_that_is_none_is_made_anew(tmp_path: Path, tags_code: int) -> None:
    items = [at(0), at(1, unit_fields={"tags_code": tags_code}), at(2)]
    backlog = read(build(tmp_path, items))
    assert backlog.due_ms.tolist() == [T0 + 10_000, T0 + 11_000, T0 + 12_000]
    assert of_level(backlog, 3).repaired == 1


def test_a_due_time_that_can_be_one_is_believed(tmp_path: Path) -> None:
    items = [at(0), at(1, unit_fields={"tags_code": T0 + 4_000}), at(2)]
    assert read(build(tmp_path, items)).due_ms.tolist()[1] == T0 + 4_000


def test_due_times_come_through_the_queue_extension(tmp_path: Path) -> None:
    items = [at(number) for number in range(5)]
    store = build(tmp_path, items, queue_ext=True)
    backlog = read(store)
    assert backlog.due_ms.tolist() == [store.of(item).due_ms for item in items]
    assert backlog.total("repaired") == 0


def test_due_times_are_made_anew_where_the_extension_is_gone(tmp_path: Path) -> None:
    items = [at(number) for number in range(5)]
    store = build(tmp_path, items, queue_ext=True)
    for path in (store.root / "consumequeue_ext").rglob("0*"):
        if path.is_file():
            path.unlink()
    backlog = read(store)
    assert backlog.due_ms.tolist() == [store.of(item).due_ms for item in items]
    assert backlog.total("repaired") == 5


@pytest.mark.parametrize(
    "fields", [{"commit_log_offset": 10**9}, {"commit_log_offset": 7}, {"size_bytes": 5}]
)
def test_an_entry_that_leads_to_no_record_stays_pending_for_the_converter_to_see(
    tmp_path: Path, fields: Mapping[str, int]
) -> None:
    items = [at(0), at(1, unit_fields=dict(fields)), at(2)]
    backlog = read(build(tmp_path, items))
    assert len(backlog) == 3
    wrong = [at(1, unit_fields={**fields, "tags_code": 0}), at(2)]
    assert -1 in read(build(tmp_path / "2", wrong)).due_ms.tolist()


# --- already delivered ----------------------------------------------------------------------------


def test_what_was_delivered_behind_stale_offsets_is_left_out(tmp_path: Path) -> None:
    items = [at(number) for number in range(8)]
    copies = [DeliveredCopy(of=item) for item in items[:5]]
    store = build(tmp_path, [*items, *copies], offsets={3: 2})
    backlog = read(store)
    assert found(store, backlog) == items[5:]
    assert of_level(backlog, 3).already_delivered == 3


@pytest.mark.parametrize("dialect", ["4.9", "5.x"])
@pytest.mark.parametrize(
    "fields",
    [
        {"unique_key": None},
        {"unique_key": "SAME"},
        {"unique_key": None, "tags": None, "keys": None, "body": b""},
        {"compress_body": True},
        {"born_host": ("2001:db8::1", 1), "store_host": ("2001:db8::2", 2)},
        {"user_properties": {"城市": "上海", "empty": "", "x": "y"}},
        {"extra_pairs": [("x", "1"), ("x", "2")]},
        {"extra_pairs": [("__CRC32#", "0123456789")]},
    ],
)
def test_copies_are_recognised_by_all_that_survives(
    tmp_path: Path, dialect: str, fields: dict[str, Any]
) -> None:
    items = [at(number, **{"body": b"%d" % number, **fields}) for number in range(6)]
    copies = [DeliveredCopy(of=item) for item in (items[1], items[4])]
    store = build(tmp_path, [*items, *copies], dialect=dialect)
    assert found(store, read(store)) == [items[n] for n in (0, 2, 3, 5)]


def test_a_message_retried_twice_under_one_key_is_two_messages(tmp_path: Path) -> None:
    first = retry_message(unique_key="K", reconsume_times=1, store_timestamp_ms=T0)
    again = retry_message(unique_key="K", reconsume_times=2, store_timestamp_ms=T0 + 50)
    store = build(tmp_path, [first, again, DeliveredCopy(of=first)])
    assert found(store, read(store)) == [again]


def test_of_messages_that_are_the_same_in_every_field_the_earliest_due_was_delivered(
    tmp_path: Path,
) -> None:
    same: dict[str, Any] = {"unique_key": "K", "born_timestamp_ms": T0 - 9}
    items = [at(number, **same) for number in range(4)]
    store = build(tmp_path, [*items, DeliveredCopy(of=items[0]), DeliveredCopy(of=items[1])])
    assert found(store, read(store)) == items[2:]


def test_a_copy_older_than_a_message_s_due_time_is_not_its_copy(tmp_path: Path) -> None:
    same: dict[str, Any] = {"unique_key": "K", "born_timestamp_ms": T0 - 9}
    done, waiting = at(0, **same), at(8, **same)
    store = build(
        tmp_path,
        [done, waiting, DeliveredCopy(of=done), at(30, level=9)],
        offsets={3: 1},
    )
    assert waiting in found(store, read(store))


def test_a_copy_in_another_topic_or_queue_is_none(tmp_path: Path) -> None:
    item = at(0)
    wrong = OrdinaryMessage(
        topic="TopicB",
        store_timestamp_ms=T0 + 10_005,
        extra_pairs=[("DELAY", "3"), ("REAL_TOPIC", "TopicA"), ("REAL_QID", "0")],
    )
    store = build(tmp_path, [item, wrong])
    assert found(store, read(store)) == [item]


def test_a_damaged_copy_is_none(tmp_path: Path) -> None:
    item, later = at(0), OrdinaryMessage(store_timestamp_ms=T0 + 20_000)
    torn = DeliveredCopy(of=item, damage=lambda data: data.replace(b"hello", b"hellO"))
    store = build(tmp_path, [item, torn, later])
    assert found(store, read(store)) == [item]


def test_messages_with_a_nonsense_due_time_may_have_been_delivered_at_once(tmp_path: Path) -> None:
    items = [at(number, level=17, unit_fields={"tags_code": 2598919}) for number in range(3)]
    copies = [DeliveredCopy(of=item, store_timestamp_ms=T0 + 4_000) for item in items[:2]]
    store = build(tmp_path, [*items, *copies], abort=True)
    backlog = read(store)
    assert found(store, backlog) == items[2:]
    assert backlog.due_ms.tolist() == [T0 + 2_000 + 3_600_000]


def test_copies_are_found_although_the_clock_went_back(tmp_path: Path) -> None:
    early = [at(number) for number in range(40)]
    copies = [
        DeliveredCopy(of=item, store_timestamp_ms=T0 - 3_600_000 + n)
        for n, item in enumerate(early[:20])
    ]
    late = [at(-3_000 + number) for number in range(40)]
    last = OrdinaryMessage(store_timestamp_ms=T0 + 60_000)
    store = build(tmp_path, [*early, *copies, *late, last])
    assert found(store, read(store)) == [*early[20:], *late]


def test_only_the_end_of_the_log_is_read_for_copies(tmp_path: Path) -> None:
    old = [at(number, level=18) for number in range(0, 400)]
    new = [at(400 + number / 10, level=1) for number in range(20)]
    copies = [DeliveredCopy(of=item) for item in new[:10]]
    store = build(tmp_path, [*old, *new, *copies], offsets={1: 5})
    backlog = read(store)
    assert found(store, backlog) == [*old, *new[10:]]
    assert backlog.bytes_scanned < store.log_end / 5


@pytest.mark.check
@given(data=st.data())
def test_whatever_the_offsets_missed_is_what_was_not_delivered(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Messages of a few levels come in and go out in due order; the offsets lag behind."""
    count = data.draw(st.integers(1, 25))
    kinds: list[dict[str, Any]] = [{}, {"unique_key": None}, {"unique_key": "K", "body": b"same"}]
    fields = st.sampled_from(kinds)
    items = [
        at(number / 2, level=data.draw(st.sampled_from([1, 2, 3])), **data.draw(fields))
        for number in range(count)
    ]
    stop_ms = T0 + data.draw(st.integers(0, 25_000))
    delays = {1: 1_000, 2: 5_000, 3: 10_000}
    due_ms = {item: item.store_timestamp_ms + delays[item.level] for item in items}
    events: list[tuple[int, Item]] = [(item.store_timestamp_ms, item) for item in items]
    delivered = [item for item in items if due_ms[item] <= stop_ms]
    events += [
        (due_ms[i] + 1, DeliveredCopy(of=i, store_timestamp_ms=due_ms[i] + 1)) for i in delivered
    ]
    events.sort(key=lambda event: event[0])
    offsets = {}
    for level in delays:
        done = sum(item.level == level for item in delivered)
        offsets[level] = data.draw(st.integers(0, done))
    store = build(
        tmp_path_factory.mktemp("drawn"),
        [item for _time, item in events],
        offsets=offsets,
        dialect=data.draw(st.sampled_from(["4.9", "5.x"])),
        indexed_items=data.draw(st.none() | st.integers(0, len(events))),
        abort=True,
    )
    backlog = read(store)
    assert found(store, backlog) == [item for item in items if due_ms[item] > stop_ms]


# --- any bytes ------------------------------------------------------------------------------------


@pytest.mark.check
@given(
    log=st.lists(st.tuples(st.integers(0, 8191), st.binary(min_size=1, max_size=30)), max_size=4),
    queue=st.lists(st.tuples(st.integers(0, 1999), st.binary(min_size=1, max_size=20)), max_size=3),
    is_ext=st.booleans(),
)
def test_a_store_with_any_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    log: list[tuple[int, bytes]],
    queue: list[tuple[int, bytes]],
    is_ext: bool,
) -> None:
    items = [at(number, level=1 + number % 3) for number in range(20)]
    copies = [DeliveredCopy(of=item) for item in items[:5]]
    store = build(tmp_path_factory.mktemp("any"), [*items, *copies], abort=True, queue_ext=is_ext)
    for directory, changes in (("commitlog", log), ("consumequeue/SCHEDULE_TOPIC_XXXX/0", queue)):
        for place, garbage in changes:
            files = sorted((store.root / directory).iterdir())
            path = files[place % len(files)]
            content = bytearray(path.read_bytes())
            content[place : place + len(garbage)] = garbage[: max(len(content) - place, 0)]
            path.write_bytes(content)
    try:
        read(store)
    except DelayStoreError:
        return
