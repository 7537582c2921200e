# SPDX-License-Identifier: Apache-2.0
"""Tables of what a backlog may hold and how a target may be asked for; each row is a rule."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store.base.errors import BadRecordsError, PlanError
from message_store.format.delay_levels import DelayLevels
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from migrate.settings import ENGINES, WHEEL
from migrate.spark.tasks import write_logs
from migrate.verify.verify import verify
from tests.independent.expected_conversion import MAY_DIFFER
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
    retry_message,
)
from tests.independent.raw_records import TRANSACTION_COMMIT
from tests.migrate.conversions import (
    NOW_MS,
    SMALL,
    Converted,
    assert_right,
    build_and_convert,
    checked_target,
    messages_of,
    options_for,
)

USUAL = [LevelMessage(level=3, body=b"usual"), LevelMessage(level=14, body=b"another")]


def one(**fields: Any) -> list[Item]:
    """A message that is special among two that are not."""
    return [USUAL[0], LevelMessage(**{"level": 5, **fields}), USUAL[1]]


MESSAGES: dict[str, list[Item]] = {
    "a retried message twice with one unique key": [
        retry_message(level=3, store_timestamp_ms=T0 + 3000, body=b"again", unique_key="same"),
        retry_message(level=4, store_timestamp_ms=T0 + 3001, body=b"again", unique_key="same"),
    ],
    "the same retry twice, alike in every field": [
        retry_message(level=3, unique_key="same", reconsume_times=2) for _ in range(2)
    ],
    "the same key sent twice": [LevelMessage(unique_key="k", body=b"a") for _ in range(2)],
    "no unique key at all": one(unique_key=None),
    "no key, no tag, one byte of body": one(unique_key=None, tags=None, body=b"0"),
    "a compressed body": one(body=b"z" * 5000, compress_body=True),
    "an IPv6 born host": one(born_host=("2001:db8::1", 9)),
    "an IPv6 store host": one(store_host=("2001:db8::2", 10911)),
    "IPv6 hosts on both sides": one(born_host=("::1", 1), store_host=("fe80::1", 2)),
    "non-ASCII tags, keys, properties": one(
        tags="标签", keys="ключ clé", user_properties={"城市": "上海", "emoji": "🕰"}
    ),
    "a topic beyond ASCII": one(topic="订单"),
    "properties that end with their separator": one(ends_with_separator=True),
    "properties that end without it": one(ends_with_separator=False),
    "tags that are no UTF-8": one(
        raw_properties=b"TAGS\x01a\xff\xc3\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02DELAY\x015\x02"
    ),
    "a name twice and an empty value": one(extra_pairs=[("a", "1"), ("a", "2"), ("empty", "")]),
    "a committed transaction": one(sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=77),
    "a flag, and consumed before": one(flag=-7, reconsume_times=16),
    "the highest queue": one(queue_id=65_535),
    "the longest topic": one(topic="t" * 127),
    "a retry topic of its own group": [retry_message(group="group_b", level=2)],
    "DELAY at the very end": one(raw_properties=b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02DELAY\x015"),
    "a body longer than a chunk of the reader": one(body=bytes(range(256)) * 9000),
}
LARGE = attrs.evolve(SMALL, commit_log_file_bytes=4 << 20)


@pytest.mark.parametrize("dialect", ["4.9", "5.x"])
@pytest.mark.parametrize("items", MESSAGES.values(), ids=MESSAGES)
def test_every_kind_of_message_is_converted(
    tmp_path: Path, items: list[Item], dialect: str
) -> None:
    converted = build_and_convert(
        tmp_path, items, dialect=dialect, settings=LARGE, commit_log_file_bytes=4 << 20
    )
    assert_right(converted, items)


def test_messages_of_every_level_over_several_files_of_each_kind(tmp_path: Path) -> None:
    items: list[Item] = []
    for number in range(90):
        level = number % 18 + 1
        items.append(
            LevelMessage(level=level, store_timestamp_ms=T0 + number, body=bytes(number + 1))
        )
        items.append(OrdinaryMessage(store_timestamp_ms=T0 + number))
    converted = build_and_convert(tmp_path, items, commit_log_file_bytes=8192)
    assert_right(converted, messages_of(items))
    for name in ("commitlog", "timerlog", "consumequeue/rmq_sys_wheel_timer/0"):
        assert len(list((converted.target / name).iterdir())) > 3


def test_delivered_and_ordinary_messages_are_left_alone(tmp_path: Path) -> None:
    done, waiting = LevelMessage(level=1, body=b"done"), LevelMessage(level=1, body=b"waiting")
    items = [done, OrdinaryMessage(), waiting, DeliveredCopy(of=done)]
    assert_right(build_and_convert(tmp_path, items, offsets={1: 1}), [waiting])


def test_nothing_pending_makes_an_empty_target(tmp_path: Path) -> None:
    items = [LevelMessage(level=1)]
    converted = build_and_convert(tmp_path, [*items, DeliveredCopy(of=items[0])], offsets={1: 1})
    assert_right(converted, [])
    assert converted.report.due_min_ms is converted.report.open_before_ms is None


def test_a_store_without_messages_makes_an_empty_target(tmp_path: Path) -> None:
    assert_right(build_and_convert(tmp_path, []), [])


def test_one_message(tmp_path: Path) -> None:
    assert_right(build_and_convert(tmp_path, USUAL[:1]), USUAL[:1])


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
def test_due_times_are_rounded_by_the_precision(tmp_path: Path, precision_ms: int) -> None:
    """Every millisecond around the borders of slots, before, at and after now."""
    due = [NOW_MS + step + off for step in (-1000, 0, 1000) for off in (-501, -500, -1, 0, 1, 100)]
    items = [LevelMessage(level=17, store_timestamp_ms=due_ms - 3_600_000) for due_ms in due]
    arguments = attrs.evolve(SMALL, precision_ms=precision_ms)
    assert_right(build_and_convert(tmp_path, items, settings=arguments), items)


def test_what_fell_due_in_a_stopped_night_is_spread_over_the_slots_of_an_hour(
    tmp_path: Path,
) -> None:
    """No slot gets more than its share, whatever the levels and their order."""
    items = [
        LevelMessage(
            level=number % 3 + 1, store_timestamp_ms=NOW_MS - 40_000_000 + number * 777 % 500_000
        )
        for number in range(300)
    ]
    converted = build_and_convert(tmp_path, items)
    assert_right(converted, items)
    slots = [message.slot_time_ms for message in checked_target(converted.options)]
    assert {after - before for before, after in pairwise(slots)} == {12_000}
    assert converted.report.total("overdue") == 300


def test_overdue_messages_of_one_moment_keep_the_order_of_the_log(tmp_path: Path) -> None:
    items = [LevelMessage(level=1, body=b"%d" % number) for number in range(50)]
    converted = build_and_convert(tmp_path, items)
    found = [message.record.body for message in checked_target(converted.options)]
    assert found == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("table", ["1s 5s 1h 30d", "10s 7d 14d 30d", "2d 1s"])
def test_levels_of_up_to_thirty_days(tmp_path: Path, table: str) -> None:
    count = len(table.split())
    items = [
        LevelMessage(level=number % count + 1, store_timestamp_ms=T0 + number * 60_000)
        for number in range(40)
    ]
    converted = convert_with_table(tmp_path, items, table)
    assert_right(converted, items)
    assert converted.report.level_table == table


def convert_with_table(
    tmp_path: Path, items: list[Any], table: str, window_slots: int = 172_800
) -> Converted:
    """The option and the builder's argument of a level table share their name."""
    built = build_level_store(tmp_path / "source", items, level_table=table)
    options = options_for(
        tmp_path,
        level_table=DelayLevels.parse(table),
        settings=attrs.evolve(SMALL, roll_window_slots=window_slots),
    )
    return Converted(built=built, options=options, report=convert(options))


def test_what_is_beyond_the_window_is_spread_over_its_second_half(tmp_path: Path) -> None:
    items = [
        LevelMessage(level=2, store_timestamp_ms=NOW_MS - 500 + number % 7, body=b"0")
        for number in range(60)
    ]
    converted = convert_with_table(tmp_path, items, "1s 30d", window_slots=60)
    assert_right(converted, items)
    assert converted.report.total("rolled") == 60
    load = collections.Counter(
        message.slot_time_ms for message in checked_target(converted.options)
    )
    assert sorted(load.values()) == [2] * 30


def test_a_level_table_that_is_not_the_store_s_is_shown_beside_it(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", USUAL)
    options = options_for(tmp_path, level_table=DelayLevels.parse("1s 5s 11s 30s"))
    with pytest.raises(PlanError, match=r"(?s)does not fit.*1s 5s 11s 30s.*3: 10s, 14: 10m"):
        convert(options)
    assert not (tmp_path / "target").exists()


def test_a_store_of_another_table_is_not_taken_for_one_of_the_default(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [LevelMessage(level=2)], level_table="1s 7s")
    with pytest.raises(PlanError, match="2: 7s"):
        convert(options_for(tmp_path))


def test_now_beyond_the_clock_is_refused(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", USUAL)
    with pytest.raises(PlanError, match="later than this machine's clock"):
        convert(options_for(tmp_path, now_ms=4_000_000_000_000))


# --- properties and sizes ------------------------------------------------------------------------

GOING = sorted(MAY_DIFFER - {"DELAY"})


@pytest.mark.parametrize("name", GOING)
def test_a_property_that_must_go_is_gone(tmp_path: Path, name: str) -> None:
    items = one(extra_pairs=[("kept", "1"), (name, "1"), ("also", "2")])
    assert_right(build_and_convert(tmp_path, items), items)


def test_a_name_that_only_begins_like_one_that_must_go_is_kept(tmp_path: Path) -> None:
    items = one(extra_pairs=[(name + "X", "1") for name in [*GOING, "DELAY"]])
    assert_right(build_and_convert(tmp_path, items), items)


def test_records_of_all_sizes_of_growth_in_many_files(tmp_path: Path) -> None:
    items: list[Item] = [
        LevelMessage(
            level=number % 18 + 1,
            body=bytes(1 + number % 50),
            extra_pairs=[(name, "7" * (number % 11 + 1)) for name in GOING[: number % 8]],
        )
        for number in range(70)
    ]
    assert_right(build_and_convert(tmp_path, items), items)


GOOD = [LevelMessage(level=1 + number % 9, body=bytes(150)) for number in range(200)]
BAD = LevelMessage(level=5, without=["REAL_TOPIC"])
CHECKED = [LevelMessage(level=3, body=bytes(150), extra_pairs=[("__CRC32#", "1")])] * 9


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("bad", "times"),
    [([], 1), ([0], 1), ([3, 30, 31], 1), ([199], 1), (range(100), 2)],
    ids=["none", "the first", "some", "the last", "more than are held back"],
)
def test_what_is_bad_or_odd_is_left_out_without_writing_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Iterable[int], times: int, engine: str
) -> None:
    written: list[int] = []

    def count(*arguments: Any) -> Any:
        written.append(1)
        return write_logs(*arguments)

    monkeypatch.setattr("migrate.convert.write_logs", count)
    items = [attrs.evolve(each) for each in [*CHECKED, *GOOD, *CHECKED]]
    for at in sorted(bad, reverse=True):
        items.insert(at, attrs.evolve(BAD))
    settings = attrs.evolve(SMALL, commit_log_file_bytes=16 << 10)
    facts = {"settings": settings, "to": engine, "on_bad_record": "quarantine"}
    converted = build_and_convert(tmp_path, items, **facts)
    assert len(written) == times
    assert converted.report.total("converted") == len(items) - len(list(bad))
    assert verify(converted.options.source, converted.target, spark=None).is_clean
    if engine == WHEEL:
        checked_target(converted.options)


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("over", [0, 60, 122, 123, 140])
def test_a_record_that_fits_a_file_only_without_what_must_go_is_converted(
    tmp_path: Path, before: int, over: int
) -> None:
    """Its claimed length is more than a file holds, and so is no measure of the room it takes."""
    extra = [("INNER_MULTI_DISPATCH", "x" * 100)]
    room = SMALL.commit_log_file_bytes - 8
    probe = build_level_store(tmp_path / "probe", [LevelMessage(level=5, body=b"")])
    body = b"x" * (room + over - 19 - 122 - len(probe.placed[0].data))
    items = [
        *(LevelMessage(level=5, body=bytes(1000)) for _ in range(before)),
        LevelMessage(level=5, body=body, extra_pairs=extra),
        *(LevelMessage(level=5, body=bytes(1000)) for _ in range(before)),
    ]
    fits = over <= 122  # as long as what goes
    arguments = {"on_bad_record": "quarantine", "commit_log_file_bytes": 1 << 14}
    converted = build_and_convert(tmp_path, items, **arguments)
    assert converted.report.total("converted") == len(items) - (not fits)


def filling(tmp_path: Path, record_bytes: int) -> list[Item]:
    """A message whose converted record has so many bytes (level 5 grows by 19)."""
    probe = build_level_store(tmp_path / "probe", [LevelMessage(level=5, body=b"")])
    return [LevelMessage(level=5, body=b"x" * (record_bytes - 19 - len(probe.placed[0].data)))]


@pytest.mark.parametrize("behind", [[], USUAL], ids=["alone", "with others behind it"])
def test_a_record_that_leaves_just_the_eight_bytes_of_the_blank(
    tmp_path: Path, behind: list[Item]
) -> None:
    items = [*filling(tmp_path, 4096 - 8), *behind]
    assert_right(build_and_convert(tmp_path, items), items)


def test_a_record_one_byte_too_long_for_a_log_file_is_bad(tmp_path: Path) -> None:
    with pytest.raises(BadRecordsError) as caught:
        build_and_convert(tmp_path, [*filling(tmp_path, 4096 - 7), *USUAL])
    [bad] = caught.value.records
    assert "more than a commit log file of the target holds" in bad.reason  # type: ignore[attr-defined]


#: What a record may grow by when it rolls: with it, too, a wheel has to read it.
ROLLING_BYTES = 150


@pytest.mark.parametrize(
    ("limit", "is_bad"), [(1000 + ROLLING_BYTES, False), (999 + ROLLING_BYTES, True)]
)
def test_the_wheel_reads_records_of_its_buffer_s_length_and_no_longer(
    tmp_path: Path, limit: int, is_bad: bool
) -> None:
    items = [*filling(tmp_path, 1100), *USUAL]
    arguments = {
        "settings": attrs.evolve(SMALL, max_message_bytes=limit),
        "on_bad_record": "quarantine",
    }
    converted = build_and_convert(tmp_path, items, **arguments)
    assert_right(converted, USUAL if is_bad else items)
    assert converted.report.broker_conf["maxMessageSize"] == str(limit)


def test_a_record_longer_than_a_broker_s_default_asks_for_a_larger_one(tmp_path: Path) -> None:
    items = filling(tmp_path, (4 << 20) + 101)
    size = 8 << 20
    build_level_store(tmp_path / "source", items, commit_log_file_bytes=size)
    options = options_for(tmp_path, settings=attrs.evolve(SMALL, commit_log_file_bytes=size))
    assert convert(options).broker_conf["maxMessageSize"] == str((4 << 20) + 1 + ROLLING_BYTES)
    conf = (options.target / "delaywheel/broker.conf").read_text()
    assert f"maxMessageSize={(4 << 20) + 1 + ROLLING_BYTES}\n" in conf


# --- what the queues say -------------------------------------------------------------------------


def test_due_times_behind_queue_extensions(tmp_path: Path) -> None:
    items = [LevelMessage(level=number % 3 + 1) for number in range(100)]
    assert_right(build_and_convert(tmp_path, items, queue_ext=True), items)


def test_after_a_crash_the_log_s_tail_is_pending_too(tmp_path: Path) -> None:
    items = [LevelMessage(level=number % 2 + 14, body=b"%d" % number) for number in range(20)]
    converted = build_and_convert(
        tmp_path, items, indexed_items=15, abort=True, after_crash=True, checkpoint=False
    )
    assert_right(converted, items)
    assert any("not yet in a level's queue" in line for line in converted.report.warnings)


def test_after_a_crash_what_was_delivered_since_the_offsets_were_kept_is_left_out(
    tmp_path: Path,
) -> None:
    done = [
        LevelMessage(level=1, store_timestamp_ms=T0 + number, body=b"%d" % number)
        for number in range(10)
    ]
    waiting = [LevelMessage(level=14, body=b"later"), LevelMessage(level=1, body=b"last")]
    items = [*done, *waiting, *(DeliveredCopy(of=message) for message in done)]
    converted = build_and_convert(tmp_path, items, offsets={1: 4}, abort=True, after_crash=True)
    assert_right(converted, waiting)
    assert converted.report.total("already_delivered") == 6


@given(st.lists(st.tuples(st.sampled_from([1, 3, 14]), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=20)
def test_of_equal_messages_those_are_left_out_that_a_delivery_of_ours_names(
    tmp_path_factory: pytest.TempPathFactory, twins: list[tuple[int, bool]]
) -> None:
    """Killed before any offset was saved; equal in all but the level, whose due time tells them."""
    stored = [LevelMessage(level=level, unique_key="twin", body=b"twin") for level, _ in twins]
    done = [each for each, (_, is_done) in zip(stored, twins, strict=True) if is_done]
    copies = [DeliveredCopy(of=each, names=each) for each in done]
    converted = build_and_convert(
        tmp_path_factory.mktemp("twins"), [*stored, *copies], abort=True, after_crash=True
    )
    assert_right(converted, [each for each in stored if each not in done])
    assert converted.report.total("already_delivered") == len(done)


def test_entries_whose_records_retention_has_removed_are_expired(tmp_path: Path) -> None:
    items = [LevelMessage(level=18, body=bytes(900), unique_key=None) for _ in range(12)]
    converted = build_and_convert(tmp_path, items, commit_log_file_bytes=4096, drop_log_files=1)
    kept = [placed.item for placed in converted.built.placed if placed.commit_log_offset >= 4096]
    assert 0 < len(kept) < 12
    assert_right(converted, kept)
    assert converted.report.total("expired") == 12 - len(kept)


TORN = b'{\n\t"offsetTable":{1:2,2:1'
WHOLE = b'{\n\t"offsetTable":{1:1,2:2\n\t}\n}'


@pytest.mark.parametrize(
    ("main", "backup", "choice", "taken", "first_offsets"),
    [
        pytest.param(TORN, WHOLE, "auto", "bak", (1, 2), id="torn: a broker takes the backup"),
        pytest.param(TORN, WHOLE, "main", "main", (2, 0), id="torn but chosen: what it still says"),
        pytest.param(TORN, WHOLE, "none", "none", (0, 0), id="none: everything in the queues"),
        pytest.param(b"", WHOLE, "auto", "bak", (1, 2), id="empty: the backup"),
        pytest.param(bytes(64), WHOLE, "auto", "bak", (1, 2), id="zeros: the backup"),
        pytest.param(WHOLE, None, "auto", "main", (1, 2), id="whole, no backup"),
        pytest.param(None, WHOLE, "auto", "bak", (1, 2), id="gone: the backup"),
        pytest.param(None, None, "auto", "none", (0, 0), id="both gone: everything"),
        pytest.param(WHOLE, TORN, "bak", "bak", (2, 0), id="the torn backup, chosen"),
    ],
)
def test_a_damaged_offset_file_gets_a_broker_s_choice_or_the_one_asked_for(
    tmp_path: Path,
    main: bytes | None,
    backup: bytes | None,
    choice: str,
    taken: str,
    first_offsets: tuple[int, int],
) -> None:
    levels = [[LevelMessage(level=level, body=b"%d" % n) for n in range(4)] for level in (1, 2)]
    built = build_level_store(
        tmp_path / "source", [*levels[0], *levels[1]], offsets=main, backup_offsets=backup
    )
    options = options_for(tmp_path, offsets=choice)
    converted = Converted(built=built, options=options, report=convert(options))
    assert_right(converted, [*levels[0][first_offsets[0] :], *levels[1][first_offsets[1] :]])
    assert converted.report.offsets_source == taken
    is_odd = main != WHOLE or backup == TORN or choice not in ("auto", "main")
    assert any("--offsets" in line for line in converted.report.warnings) == is_odd


@pytest.mark.parametrize(
    ("main", "backup", "choice", "sentence"),
    [
        (WHOLE, WHOLE, "none", "taken: none, as --offsets said; a broker would take main"),
        (WHOLE, WHOLE, "bak", "taken: bak, as --offsets said; a broker would take main"),
        (TORN, WHOLE, "main", "taken: main, as --offsets said; a broker would take bak"),
        (TORN, TORN, "none", "taken: none, as --offsets said; a broker would not start on these"),
        (TORN, WHOLE, "bak", "taken: bak, as a broker would"),
        (TORN, WHOLE, "auto", "taken: bak, as a broker would"),
    ],
)
def test_which_offsets_were_taken_and_why_is_said(
    tmp_path: Path, main: bytes, backup: bytes, choice: str, sentence: str
) -> None:
    items = [LevelMessage(level=level, body=b"%d" % n) for level in (1, 2) for n in range(4)]
    build_level_store(tmp_path / "source", items, offsets=main, backup_offsets=backup)
    warnings = convert(options_for(tmp_path, offsets=choice)).warnings
    assert any(line.startswith(sentence) for line in warnings), warnings
    assert "--offsets none would find 8 messages queued" in warnings
    found = inspect_store(tmp_path / "source", now_ms=NOW_MS, offsets=choice).problems
    assert any("--offsets none delivers 8" in line for line in found), found
    assert any(line.startswith(sentence) for line in found) == ("as --offsets said" in sentence)


# --- all of it at once ---------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", min_codepoint=3, exclude_categories=["Cs"]), max_size=9)
NAMES = st.sampled_from(["a", "名", "TIMER_OUT_MS", "__CRC32#", "INNER_MULTI_DISPATCH", "DELAYED"])
ANY_MESSAGE = st.builds(
    LevelMessage,
    level=st.integers(1, 18),
    topic=st.sampled_from(["TopicA", "TopicB", "%RETRY%group_a", "订单"]),
    queue_id=st.integers(0, 9),
    store_timestamp_ms=st.integers(T0, T0 + 3_600_000),
    body=st.binary(min_size=1, max_size=600),
    tags=st.one_of(st.none(), TEXT.filter(bool)),
    unique_key=st.sampled_from([None, "same", "other"]),
    extra_pairs=st.lists(st.tuples(NAMES, st.sampled_from(["", "1", "22"])), max_size=3),
    born_host=st.sampled_from([("10.0.0.1", 1), ("2001:db8::1", 65_535)]),
    compress_body=st.booleans(),
    ends_with_separator=st.booleans(),
    sys_flag=st.sampled_from([0, TRANSACTION_COMMIT]),
)


@pytest.mark.check
@settings(max_examples=15)
@given(
    st.lists(ANY_MESSAGE, max_size=30, unique_by=id),
    st.sampled_from([100, 200, 500, 1000]),
)
def test_any_backlog_is_converted_whole(
    tmp_path_factory: pytest.TempPathFactory,
    items: list[Item],
    precision_ms: int,
) -> None:
    converted = build_and_convert(
        tmp_path_factory.mktemp("any"),
        items,
        settings=attrs.evolve(SMALL, precision_ms=precision_ms),
    )
    assert_right(converted, items)


def test_an_offset_outside_its_queue_is_warned_of(tmp_path: Path) -> None:
    items = [LevelMessage(level=3), LevelMessage(level=5)]
    converted = build_and_convert(tmp_path, items, offsets={3: 40})
    [warning] = [each for each in converted.report.warnings if "outside its queue" in each]
    assert warning.startswith("level 3: offset 40 lies outside its queue (0 to 1); taken as ")
