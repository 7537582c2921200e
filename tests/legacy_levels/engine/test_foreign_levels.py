# SPDX-License-Identifier: Apache-2.0
"""The rules of delivery on stores that others have written: records that cannot be delivered, due
times that are none, deliveries that nobody has counted.
"""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import attrs
import pytest

from legacy_levels import LevelRules, LevelStore
from legacy_levels.engine.rules import AsyncRules, LevelTimings
from message_store import AtLevel, ManualClock, Severity
from message_store.base.errors import TargetError, UnsupportedStoreError
from message_store.format.dialect import Dialect
from message_store.reading.consume_queue import UnitArray
from message_store.writing.queue import LiveQueue
from tests.independent.config_text import Dialect as ConfigDialect
from tests.independent.level_store_builder import (
    DeliveredCopy,
    LevelMessage,
    build_level_store,
    retry_message,
)
from tests.independent.raw_files import queue_units
from tests.legacy_levels.level_stores import BOTH, SMALL, START_MS, Bench, message

NAMES: dict[Dialect, ConfigDialect] = {Dialect.ROCKETMQ_4_9: "4.9", Dialect.ROCKETMQ_5_5: "5.5"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store", ManualClock(START_MS + 3_600_000))


def waiting(number: int, **fields: object) -> LevelMessage:
    given: dict[str, object] = {"store_timestamp_ms": START_MS, "body": b"body %d" % number}
    return LevelMessage(**(given | fields))  # type: ignore[arg-type]


POISON = {
    "no REAL_TOPIC": waiting(2, without=["REAL_TOPIC"]),
    "no REAL_QID": waiting(2, without=["REAL_QID"]),
    "REAL_QID is no number": waiting(2, without=["REAL_QID"], extra_pairs=[("REAL_QID", "two")]),
    "REAL_QID too large": waiting(2, without=["REAL_QID"], extra_pairs=[("REAL_QID", "9" * 12)]),
}


@pytest.mark.parametrize("dialect", BOTH, ids=str)
@pytest.mark.parametrize("poison", POISON)
def test_a_record_that_cannot_be_prepared_is_passed_over_and_reported(
    bench: Bench, dialect: Dialect, poison: str
) -> None:
    """5.x passes over it without a word, and 4.9 stops there: see the next test."""
    items = [waiting(1), POISON[poison], waiting(3)]
    build_level_store(bench.root, items, dialect=NAMES[dialect])
    with bench.open(dialect=dialect) as store:
        assert [each.severity for each in store.check()] == [Severity.ERROR]
        assert bench.advance(store) == [b"body 1", b"body 3"]
        assert store.next_due_ms() is None
    with bench.open(dialect=dialect) as store:
        [finding] = store.check()
        assert finding.severity is Severity.ERROR
        assert finding.where == "level 3, queue offset 1"
        assert "could not be delivered" in finding.problem
    assert bench.offsets() == {3: 3}


def test_a_note_that_cannot_be_written_repeats_no_delivery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_level_store(bench.root, [waiting(1), POISON["no REAL_QID"], waiting(3)])

    def refuse(*_: object, **__: object) -> None:
        raise TargetError("no space left")

    with bench.open() as store:
        with monkeypatch.context() as patch:
            patch.setattr("message_store.files.notes.replace_file", refuse)
            assert bench.advance(store) == [b"body 1", b"body 3"]
            assert bench.advance(store) == []
        assert not (bench.root / "delaywheel/levels-skipped.json").exists()
        store.flush()
        assert (bench.root / "delaywheel/levels-skipped.json").exists()


@pytest.mark.parametrize("poison", POISON)
def test_such_a_record_blocks_its_level_for_ever_in_4_9(bench: Bench, poison: str) -> None:
    items = [waiting(1), POISON[poison], waiting(3), waiting(4, level=2)]
    build_level_store(bench.root, items)
    with bench.open(rules=LevelRules(poison="block")) as store:
        assert sorted(bench.advance(store)) == [b"body 1", b"body 4"]
        for _ in range(3):
            assert bench.advance(store, 100) == []
            assert store.next_due_ms() == bench.clock.now_ms() + 100
    assert bench.offsets() == {2: 1, 3: 1}


@pytest.mark.parametrize("dialect", BOTH, ids=str)
@pytest.mark.parametrize(
    ("unit", "rules"),
    [
        ({"size_bytes": 117}, LevelRules.of_broker("5.5.0")),
        ({"commit_log_offset": 3}, LevelRules(poison="block")),
    ],
    ids=["another size", "inside a record"],
)
def test_an_entry_whose_record_is_missing_or_damaged_is_passed_over(
    bench: Bench, dialect: Dialect, unit: dict[str, int], rules: LevelRules
) -> None:
    """A length that is another than the record's by a broker's rules alone. The first opening makes
    such an entry anew.
    """
    build_level_store(bench.root, [waiting(n) for n in (1, 2, 3)], dialect=NAMES[dialect])
    bench.open(dialect=dialect).close()
    [file] = (bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir()
    with file.open("r+b") as queue:
        queue.seek(20)
        found = dict(
            zip(
                ("commit_log_offset", "size_bytes"),
                struct.unpack(">qi", queue.read(12)),
                strict=True,
            )
        )
        queue.seek(20)
        queue.write(struct.pack(">qi", *(found | unit).values()))
    rules = attrs.evolve(rules, timings=LevelTimings())
    with bench.open(dialect=dialect, rules=rules) as store:
        assert bench.advance(store) == [b"body 1", b"body 3"]
    assert bench.offsets() == {3: 3}


@pytest.mark.parametrize("dialect", BOTH, ids=str)
@pytest.mark.parametrize(
    "unit",
    [
        {"commit_log_offset": 10**9},
        {"commit_log_offset": 0, "size_bytes": 2**31 - 1},
        {"size_bytes": 117},
    ],
    ids=["beyond the log", "a filler's size", "another size"],
)
def test_an_entry_that_does_not_lead_between_its_neighbours_is_made_anew(
    bench: Bench, dialect: Dialect, unit: dict[str, int]
) -> None:
    items = [waiting(1), waiting(2, unit_fields=unit), waiting(3)]
    build_level_store(bench.root, items, dialect=NAMES[dialect])
    with bench.open(dialect=dialect) as store:
        assert bench.advance(store) == [b"body 1", b"body 2", b"body 3"]


@pytest.mark.parametrize("offset", [0, None])
def test_a_first_entry_of_a_filler_s_size_is_damage_and_no_log_file_that_is_lost(
    bench: Bench, offset: int | None
) -> None:
    unit = {"size_bytes": 2**31 - 1} | ({} if offset is None else {"commit_log_offset": offset})
    build_level_store(bench.root, [waiting(1, unit_fields=unit), waiting(2)])
    with bench.open() as store:
        assert bench.advance(store) == [b"body 1", b"body 2"]
        [finding] = store.check()
    assert (finding.where, finding.severity) == ("consumequeue", Severity.WARNING)
    assert "missing or damaged" in finding.problem


def test_an_entry_whose_record_retention_has_taken_is_passed_over(bench: Bench) -> None:
    items = [waiting(n, body=b"x" * 3_000) for n in range(40)]
    build_level_store(bench.root, items, drop_log_files=1)
    with bench.open() as store:
        assert 0 < len(bench.advance(store)) < 40
        assert store.next_due_ms() is None


@pytest.mark.parametrize("dialect", BOTH, ids=str)
def test_a_half_message_of_a_transaction_is_dropped(bench: Bench, dialect: Dialect) -> None:
    items = [waiting(1), waiting(2, topic="RMQ_SYS_TRANS_HALF_TOPIC"), waiting(3)]
    build_level_store(bench.root, items, dialect=NAMES[dialect])
    with bench.open(dialect=dialect) as store:
        assert bench.advance(store) == [b"body 1", b"body 3"]
        assert [each.severity for each in store.check()] == [Severity.INFO]
    assert bench.bodies("RMQ_SYS_TRANS_HALF_TOPIC") == []


def test_fields_that_only_foreign_records_have_survive_delivery(bench: Bench) -> None:
    items = [
        retry_message(
            store_timestamp_ms=START_MS,
            reconsume_times=3,
            born_host=("2001:db8::1", 5),
            prepared_transaction_offset=77,
            compress_body=True,
        )
    ]
    build_level_store(bench.root, items, dialect="5.5")
    with bench.open(dialect=Dialect.ROCKETMQ_5_5) as store:
        assert len(bench.advance(store)) == 1
    [record] = bench.records("%RETRY%group_a")
    assert (record.reconsume_times, record.prepared_transaction_offset) == (3, ~0)
    assert (len(record.born_ip), record.effective["RETRY_TOPIC"]) == (16, "TopicA")


@pytest.mark.parametrize("tags_code", [0, 2_598_919, -7])
def test_a_queue_built_anew_by_4_9_after_a_crash_tells_no_due_times(
    bench: Bench, tags_code: int
) -> None:
    """A broker delivers what stands there at once; here it waits for its time."""
    bench.clock = ManualClock(START_MS + 1_000)
    build_level_store(bench.root, [waiting(1, unit_fields={"tags_code": tags_code})])
    with bench.open() as store:
        assert store.next_due_ms() == START_MS + 10_000
        assert bench.advance(store) == []
        assert bench.advance(store, 9_000) == [b"body 1"]
    [unit] = queue_units(bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2")
    assert unit.tags_code == START_MS + 10_000


def test_a_queue_with_extension_files_is_not_appended_to(bench: Bench) -> None:
    """It can be read and converted; its due times stand in files that nobody here writes."""
    build_level_store(bench.root, [waiting(1)], queue_ext=True)
    with pytest.raises(UnsupportedStoreError):
        bench.open()


def test_records_that_their_queue_does_not_know_are_found_after_a_crash(bench: Bench) -> None:
    items = [waiting(1), waiting(2), waiting(3)]
    build_level_store(bench.root, items, indexed_items=1, abort=True, checkpoint=False)
    with bench.open() as store:
        assert bench.advance(store) == [b"body 1", b"body 2", b"body 3"]


def test_what_a_killed_broker_had_delivered_is_not_delivered_again(bench: Bench) -> None:
    """Its offsets were ten seconds old; the copies in the log tell, each for one message."""
    first, twin, other_twin = waiting(1), waiting(2, unique_key="T"), waiting(2, unique_key="T")
    items = [first, twin, other_twin, waiting(4), DeliveredCopy(of=first), DeliveredCopy(of=twin)]
    build_level_store(bench.root, items, abort=True)
    with bench.open() as store:
        assert bench.advance(store) == [b"body 2", b"body 4"]
        assert any("not in its offsets" in each.problem for each in store.check())


def test_a_killed_broker_itself_would_deliver_it_again(bench: Bench) -> None:
    first = waiting(1)
    build_level_store(bench.root, [first, waiting(2), DeliveredCopy(of=first)], abort=True)
    with bench.open(settings=attrs.evolve(SMALL, repeat_after_kill=True)) as store:
        assert bench.advance(store) == [b"body 1", b"body 2"]


# --- a disk that refuses --------------------------------------------------------------------------


class Refusal:
    """Makes appending of deliveries fail while it is on."""

    def __init__(self, store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = True
        self.refused = 0
        log = store.live.log
        real = log.append_rows

        def append_rows(*arguments: object) -> object:
            if self.is_on:
                self.refused += 1
                raise TargetError("no space left")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(log, "append_rows", append_rows)


def test_a_synchronous_put_that_fails_is_tried_again_from_the_same_offset(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open() as store:
        for number in range(3):
            store.schedule(message(number), AtLevel(1))
        disk = Refusal(store, monkeypatch)
        for _ in range(10):
            with pytest.raises(TargetError, match="no space left"):
                bench.advance(store, 1_000)
        assert [len(list(store.pending())), bench.offsets()] == [3, {}]
        disk.is_on = False
        assert bench.advance(store, 100) == [b"body 0", b"body 1", b"body 2"]


@pytest.mark.parametrize("is_async", [False, True])
def test_copies_that_a_queue_refused_are_not_made_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """They are in the log, and one of the two queues has its own: a second try would repeat."""
    rules = LevelRules(async_delivery=is_async)
    real, calls = LiveQueue.append, itertools.count(1)

    def append(queue: LiveQueue, units: UnitArray) -> int:
        if next(calls) == (2 if is_async else 4):
            raise TargetError("no space left")
        return real(queue, units)

    with bench.open(rules=rules) as store:
        for number in range(6):
            store.schedule(message(number, "TopicA" if number % 2 else "TopicB"), AtLevel(1))
        with monkeypatch.context() as patch:
            patch.setattr("legacy_levels.engine.delivery.ROWS_AT_ONCE", 2)
            patch.setattr(LiveQueue, "append", append)
            if is_async:
                with pytest.raises(TargetError, match="no space left"):
                    bench.advance(store, 1_000)
            else:
                assert bench.advance(store, 1_000) == [b"body 0", b"body 1"]
        for _ in range(3):
            with pytest.raises(TargetError, match="open it again"):
                bench.advance(store, 20_000)
    with bench.open(rules=rules) as store:
        bench.advance(store)
    assert bench.bodies("TopicA") == [b"body 1", b"body 3", b"body 5"]
    assert bench.bodies("TopicB") == [b"body 0", b"body 2", b"body 4"]


BROKER_4_9, BROKER_5 = (
    attrs.evolve(LevelRules.of_broker(version, async_delivery=True), timings=LevelTimings())
    for version in ("4.9.7", "5.5.0")
)


@pytest.mark.parametrize(
    ("rules", "dialect", "expected"),
    [
        (LevelRules(async_delivery=True), Dialect.ROCKETMQ_4_9, [100, 200, 400, 700, 1_100]),
        (LevelRules(async_delivery=True), Dialect.ROCKETMQ_5_5, [100, 200, 400, 700, 1_100]),
        (BROKER_4_9, Dialect.ROCKETMQ_4_9, [100, 200, 400, 700, 1_100]),
        (BROKER_5, Dialect.ROCKETMQ_5_5, [100, 300, 600, 1_000, 1_500]),
    ],
    ids=["safe in 4.9", "safe in 5.5", "4.9.7", "5.5.0"],
)
def test_an_asynchronous_put_that_fails_is_sent_again_and_blocks_its_level(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    rules: LevelRules,
    dialect: Dialect,
    expected: list[int],
) -> None:
    """By the safe rules, those behind it follow at once when the disk takes the first one again."""
    with bench.open(rules=rules, dialect=dialect) as store:
        for number in range(3):
            store.schedule(message(number), AtLevel(1))
        disk = Refusal(store, monkeypatch)
        assert bench.advance(store, 1_000) == []
        refused_at = []
        for step in range(1, 16):
            before = disk.refused
            assert bench.advance(store, 100) == []
            refused_at += [step * 100] * (disk.refused > before)
        assert refused_at == expected
        assert len(list(store.pending())) == 3
        [finding] = [each for each in store.check() if each.severity is Severity.WARNING]
        assert "sent again 5 times" in finding.problem
        store.schedule(message(3), AtLevel(1))
        before = disk.refused
        bench.advance(store, 1)
        bench.clock.tick(1_000)
        disk.is_on = False
        came = bench.advance(store)
        if rules.async_rules.first_wait == 0:
            assert came == [b"body 0", b"body 1", b"body 2", b"body 3"]
        else:  # each failed one waits 100 ms once it is the oldest; a new one is put meanwhile
            assert came == [b"body 0", b"body 3"]
            assert [bench.advance(store, 100) for _ in range(2)] == [[b"body 1"], [b"body 2"]]
        assert disk.refused == before
    assert bench.offsets() == {1: 4}


def test_asynchronous_deliveries_under_way_have_a_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = LevelRules(async_delivery=True, async_rules=AsyncRules(max_pending=4))
    with bench.open(rules=rules) as store:
        for number in range(20):
            store.schedule(message(number), AtLevel(1))
        disk = Refusal(store, monkeypatch)
        assert bench.advance(store, 1_000) == []
        disk.is_on = False
        monkeypatch.undo()
        assert len(bench.advance(store, 100)) == 20
    assert bench.bodies("TopicA") == [b"body %d" % number for number in range(20)]


def test_a_message_under_way_can_still_be_taken_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open(rules=LevelRules(async_delivery=True)) as store:
        receipts = [store.schedule(message(number), AtLevel(1)) for number in range(3)]
        disk = Refusal(store, monkeypatch)
        bench.advance(store, 1_000)
        store.cancel(receipts[0])
        disk.is_on = False
        assert bench.advance(store, 100) == [b"body 1", b"body 2"]


def test_a_record_that_vanished_under_way_is_given_up_after_six_resends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open(rules=LevelRules(async_delivery=True)) as store:
        for number in range(2):
            store.schedule(message(number), AtLevel(1))
        disk = Refusal(store, monkeypatch)
        bench.advance(store, 1_000)
        disk.is_on = False
        first = queue_units(bench.root / "consumequeue/SCHEDULE_TOPIC_XXXX/0")[0]
        store.live.log.segments.write_at(first.commit_log_offset, b"\0" * 8)
        found: list[bytes] = []
        for _ in range(60):
            found += bench.advance(store, 100)
        assert found == [b"body 1"]
        assert store.next_due_ms() is None
        assert any("could not be delivered" in each.problem for each in store.check())
