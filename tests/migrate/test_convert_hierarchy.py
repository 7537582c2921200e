# SPDX-License-Identifier: Apache-2.0
"""``convert --to hierarchy``: the same log and queue as for a wheel, and an index over them that
the engine opens and goes on with.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest
from click.testing import CliRunner

import cli
from message_store.base.clock import ManualClock
from message_store.base.errors import OptionsError, SourceError, TargetError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import DelayStore
from migrate.convert import convert
from migrate.settings import ConvertOptions
from migrate.verify.verify import verify
from tests.independent.level_messages import Item, LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.independent.raw_files import WHEEL_BYTES
from tests.migrate.conversions import NOW_MS, SMALL, options_for
from tests.migrate.stops import Stopped, stopping_before
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.index_layouts import HOURS, IDS
from timer_wheel.hierarchy.index_db import IndexDb
from timer_wheel.reading.hierarchy_reader import IndexContent, read_index
from timer_wheel.reading.ownership import index_path
from timer_wheel.reading.pending_timers import record_at

ITEMS: list[Item] = [
    *(LevelMessage(level=number % 18 + 1, body=bytes(number * 20 + 1)) for number in range(40)),
    LevelMessage(level=2, extra_pairs=[("__CRC32#", "0")]),
    LevelMessage(level=5, unique_key=None),
    LevelMessage(level=18, topic="TopicB"),
]
MARKER = "delaywheel/conversion.json"
Row = tuple[str | None, str, bytes]


@pytest.fixture
def options(tmp_path: Path) -> ConvertOptions:
    build_level_store(tmp_path / "source", ITEMS)
    return options_for(tmp_path, to="hierarchy")


def log_and_queue(target: Path) -> dict[str, bytes]:
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for folder in ("commitlog", "consumequeue", "config")
        for path in sorted((target / folder).rglob("*"))
        if path.is_file() and not path.name.startswith("timer")
    }


def content_of(target: Path) -> list[bytes]:
    index = read_index(StoreRoot(target))
    assert index.state is not None
    arrays = [index.waiting, index.slots_ms, index.marks, index.ids, index.buckets]
    return [*(array.tobytes() for array in arrays), str(index.state).encode()]


def delivered(store: DelayStore, clock: ManualClock) -> list[tuple[int, Row]]:
    """Everything that comes, with the time at which it did, from promise to promise."""
    came = []
    while True:
        now_ms = clock.now_ms()
        came += [
            (now_ms, (each.message.unique_key, each.message.topic, each.message.body))
            for each in store.advance(now_ms)
        ]
        next_ms = store.next_due_ms()
        if next_ms is None:
            return came
        clock.tick(max(next_ms, now_ms + 1) - now_ms)


def promises(target: Path) -> list[tuple[int, Row]]:
    """When each message is due by its own record: the end of the slot of its out time, or now."""
    root = StoreRoot(target)
    found = []
    with SegmentReader(root.commit_log) as log:
        for row in read_index(root).waiting:
            record = record_at(log, int(row["commit_log_offset"]), int(row["size_bytes"]))
            assert record is not None
            end_ms = int(record.properties["TIMER_OUT_MS"]) + SMALL.precision_ms
            key = (record.unique_key, record.real_topic, record.body)
            found.append((max(end_ms, NOW_MS), key))
    return found


def test_messages_without_a_unique_key_have_no_ids(tmp_path: Path) -> None:
    keyless: list[Item] = [LevelMessage(level=3, unique_key=None) for _ in range(5)]
    build_level_store(tmp_path / "source", keyless)
    options = options_for(tmp_path, to="hierarchy")
    assert convert(options).total("converted") == len(keyless)
    assert verify(options.source, options.target, spark=None).is_clean
    with HierarchicalWheelStore.open(options.target, clock=ManualClock(NOW_MS)) as store:
        assert len(list(store.pending())) == len(keyless)


def test_the_engine_delivers_every_message_once_at_its_time(options: ConvertOptions) -> None:
    report = convert(options)
    assert report.engine == "hierarchy"
    expected = promises(options.target)
    clock = ManualClock(NOW_MS)
    with HierarchicalWheelStore.open(options.target, clock=clock) as store:
        assert store.check() == []
        assert Counter(delivered(store, clock)) == Counter(expected)
    assert len(expected) == report.total("converted") == len(ITEMS)


def test_log_and_queue_are_those_of_a_wheel(options: ConvertOptions, tmp_path: Path) -> None:
    convert(options)
    wheel = attrs.evolve(options, target=tmp_path / "wheel", to="wheel")
    convert(wheel)
    assert log_and_queue(options.target) == log_and_queue(wheel.target)
    assert not (options.target / "timerlog").exists()


def test_the_index_is_what_the_engine_would_make_of_the_queue(options: ConvertOptions) -> None:
    convert(options)

    def waiting() -> list[tuple[object, ...]]:
        with HierarchicalWheelStore.open(options.target, clock=ManualClock(NOW_MS)) as store:
            found = [attrs.astuple(each) for each in store.pending()]
            key = next(key for each in store.pending() if (key := each.unique_key))
            assert len(list(store.pending(unique_key=key))) == 1
        return sorted(found, key=str)

    as_converted = waiting()
    shutil.rmtree(index_path(StoreRoot(options.target)))
    assert waiting() == as_converted


def test_a_wheel_takes_the_target_over(options: ConvertOptions) -> None:
    """Which is the way to give it to a broker."""
    convert(options)
    expected = promises(options.target)
    clock = ManualClock(NOW_MS)
    precision_ms = options.settings.precision_ms
    with WheelStore.open(options.target, clock=clock, precision_ms=precision_ms) as store:
        came = delivered(store, clock)
    assert Counter(row for _, row in came) == Counter(row for _, row in expected)


def test_no_broker_starts_on_it(options: ConvertOptions) -> None:
    convert(options)
    assert (options.target / "timerwheel").stat().st_size not in (0, WHEEL_BYTES)


def test_the_broker_s_settings_say_that_a_wheel_must_take_the_store_over(
    options: ConvertOptions, tmp_path: Path
) -> None:
    wheel = attrs.evolve(options, target=tmp_path / "wheel", to="wheel")
    text = {}
    for each in (options, wheel):
        convert(each)
        text[each.to] = (each.target / "delaywheel/broker.conf").read_text()
    assert text["hierarchy"].startswith("# No broker starts on this store")
    assert "WheelStore must take" in text["hierarchy"]
    assert text["hierarchy"].endswith(text["wheel"])
    assert "No broker starts" not in text["wheel"]


# --- stopped and continued ------------------------------------------------------------------------


@pytest.mark.parametrize("step", [61, pytest.param(7, marks=pytest.mark.nightly)])
def test_a_conversion_that_was_stopped_ends_in_the_same_store(
    options: ConvertOptions, tmp_path: Path, step: int
) -> None:
    right = tmp_path / "never-stopped"
    convert(attrs.evolve(options, target=right))
    files, content = log_and_queue(right), content_of(right)
    for number in itertools.count(step, step):
        shutil.rmtree(options.target, ignore_errors=True)
        try:
            with stopping_before(options.target, number):
                convert(options)
        except Stopped:
            pass
        else:
            break
        if (options.target / MARKER).exists():
            with pytest.raises(TargetError, match="already holds a finished conversion"):
                convert(options)
        else:
            convert(options)
        assert log_and_queue(options.target) == files, number
        assert content_of(options.target) == content, number
    assert number > 120


def test_what_a_broker_wrote_before_it_gave_up_is_written_over(
    options: ConvertOptions, tmp_path: Path
) -> None:
    right = tmp_path / "never-stopped"
    convert(attrs.evolve(options, target=right))
    moved = options.target / "commitlog"
    with stopping_before(options.target, lambda _: moved.exists()), pytest.raises(Stopped):
        convert(options)
    (options.target / "config" / "topics.json").write_bytes(b"{}")
    convert(options)
    assert log_and_queue(options.target) == log_and_queue(right)
    assert content_of(options.target) == content_of(right)


def test_a_target_that_was_begun_for_another_engine_is_refused(options: ConvertOptions) -> None:
    with stopping_before(options.target, 40), pytest.raises(Stopped):
        convert(options)
    with pytest.raises(Exception, match="was begun from something else"):
        convert(attrs.evolve(options, to="wheel"))


# --- verification ---------------------------------------------------------------------------------


def test_a_target_is_verified_against_its_source(options: ConvertOptions) -> None:
    convert(options)
    report = verify(options.source, options.target, spark=None)
    assert report.is_clean, report
    assert report.converted == len(ITEMS)


Damage = Callable[[IndexDb, IndexContent], None]


def without_a_block(db: IndexDb, content: IndexContent) -> None:
    batch = db.batch()
    block = next(db.blocks(HOURS.name))
    batch.drop_block(HOURS.name, block.slot_ms, block.queue_offset)
    db.move(batch)


def another_due_time(db: IndexDb, content: IndexContent) -> None:
    change_rows(db, "due_ms", 1000)


def another_record(db: IndexDb, content: IndexContent) -> None:
    change_rows(db, "commit_log_offset", 4)


def another_topic(db: IndexDb, content: IndexContent) -> None:
    change_rows(db, "topic_hash", 1)


def change_rows(db: IndexDb, name: str, by: int) -> None:
    batch = db.batch()
    *_, block = db.blocks(HOURS.name)
    rows = block.rows.copy()
    rows[name][-1] += by
    batch.put_block(HOURS.name, block.slot_ms, rows)
    db.move(batch)


def twice(db: IndexDb, content: IndexContent) -> None:
    batch = db.batch()
    block = next(db.blocks(HOURS.name))
    batch.put_block(HOURS.name, block.slot_ms + HOURS.slot_ms, block.rows)
    db.move(batch)


def another_id(db: IndexDb, content: IndexContent) -> None:
    batch = db.batch()
    ids = content.ids[:1].copy()
    ids["key_hash"] += 1 << 20
    batch.put_ids(0, int(content.buckets[0]), ids)
    db.move(batch)


def another_state(db: IndexDb, content: IndexContent) -> None:
    assert content.state is not None
    state = attrs.evolve(content.state, placed_end=content.state.placed_end - 1)
    db.write(db.batch(), state)


DAMAGES: dict[Damage, str] = {
    without_a_block: "messages for 43 queue entries",
    another_due_time: "",
    another_record: "not the record of its queue entry",
    another_topic: "",
    twice: "the same queue entry once more",
    another_id: "its id is not that of its record",
    another_state: "placed_end is 42 and should be 43",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_wrong_with_an_index_is_found(damage: Damage, options: ConvertOptions) -> None:
    convert(options)
    root = StoreRoot(options.target)
    content = read_index(root)
    db = IndexDb(index_path(root))
    damage(db, content)
    db.close()
    report = verify(options.source, options.target, spark=None)
    assert not report.is_clean
    said = [problem.what for problem in report.problems]
    assert any(DAMAGES[damage] in what for what in said), said


def test_an_index_that_is_gone_is_found(options: ConvertOptions) -> None:
    convert(options)
    shutil.rmtree(index_path(StoreRoot(options.target)))
    report = verify(options.source, options.target, spark=None)
    assert report.missing == len(ITEMS)


def test_a_target_that_an_engine_has_opened_is_said_to_be(options: ConvertOptions) -> None:
    convert(options)
    clock = ManualClock(NOW_MS)
    with HierarchicalWheelStore.open(options.target, clock=clock) as store:
        store.advance(NOW_MS)
    report = verify(options.source, options.target, spark=None)
    assert report.was_opened


def test_reading_an_index_leaves_no_trace(options: ConvertOptions) -> None:
    convert(options)

    def facts() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in options.target.rglob("*")}
        return {path: (fact.st_size, fact.st_mtime_ns) for path, fact in found.items()}

    before = facts()
    content = read_index(StoreRoot(options.target))
    assert facts() == before
    assert len(content.waiting) == len(ITEMS)
    assert len(content.ids) == len(ITEMS) - 1
    assert (np.diff(content.waiting["queue_offset"]) == 1).all()
    assert IDS == "ids"


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_command_says_which_engine_opens_it(options: ConvertOptions) -> None:
    places = [str(options.source), str(options.target)]
    run = CliRunner().invoke(cli.main, ["convert", *places, "--to", "hierarchy", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["engine"] == "hierarchy"
    assert verify(options.source, options.target, spark=None).is_clean


def test_in_place_there_is_no_choice(options: ConvertOptions) -> None:
    from migrate.in_place.convert import convert_in_place

    with pytest.raises(OptionsError, match="--to says nothing in place"):
        convert_in_place(attrs.evolve(options, target=options.source))


def test_an_unfinished_target_is_no_store(options: ConvertOptions) -> None:
    with stopping_before(options.target, 40), pytest.raises(Stopped):
        convert(options)
    with pytest.raises(SourceError):
        HierarchicalWheelStore.open(options.target)
