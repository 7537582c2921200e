# SPDX-License-Identifier: Apache-2.0
"""Verification as a tool of its own: a sample, a target without its source, a target that was
opened already, the groups that read it, and all differences as a table.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legacy_levels.engine.store import LevelStore
from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import BadFieldError, SourceError, TargetError
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import parse
from message_store.writing.settings import StoreSettings
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.report.finished_target import require_pair
from migrate.verify.report import OPENED, VerifyReport, require_table_place, write_differences
from migrate.verify.verify import VerifyOptions, require_made, verify, verify_alone
from tests.independent.level_messages import retry_message
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, Converted, build_and_convert
from tests.migrate.written_wheels import messages, write
from timer_wheel import HierarchicalWheelStore, WheelStore

LEVELS = (3, 5, 16, 18)


def items(count: int = 60) -> list[LevelMessage]:
    plain = [
        LevelMessage(level=LEVELS[number % 4], topic=f"T{number % 3}", body=b"x" * (number + 1))
        for number in range(count)
    ]
    return [*plain, retry_message(level=5, group="slow")]


@pytest.fixture
def converted(tmp_path: Path) -> Converted:
    offsets = {"T0@readers": {0: 5}, "T1@readers": {0: 2}, "Other@readers": {0: 9}}
    return build_and_convert(
        tmp_path, items(), consumer_offsets=offsets, groups=["readers", "slow", "idle"]
    )


def verified(converted: Converted, **options: Any) -> VerifyReport:
    source, target = converted.options.source, converted.options.target
    return verify(source, target, spark=None, options=VerifyOptions(**options))


# --- a sample -------------------------------------------------------------------------------------


def test_a_sample_is_read_and_the_rest_is_counted(converted: Converted) -> None:
    report = verified(converted, read_only=20)
    assert report.is_clean
    assert (report.converted, report.only_counted) == (20, 41)
    assert verified(converted, read_only=61) == verified(converted)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_sample_that_differs_has_everything_read(converted: Converted) -> None:
    logs = sorted((converted.target / "commitlog").iterdir())
    for log in logs:
        flip(log, 90)  # a byte of the body of its first record, or behind it
    report = verified(converted, read_only=60)
    assert not report.is_clean
    assert (report.only_counted, report) == (0, verified(converted))


def test_a_sample_does_not_hide_what_the_wheel_has_lost(converted: Converted) -> None:
    queue = next((converted.target / "consumequeue/rmq_sys_wheel_timer/0").iterdir())
    flip(queue, 7)  # where the record of its first entry lies
    report = verified(converted, read_only=1)
    assert not report.is_clean


def test_only_some_topics_cannot_be_sampled_by_rank(tmp_path: Path) -> None:
    some: dict[str, Any] = {"only_topics": ("T1",)}
    report = verified(build_and_convert(tmp_path, items(), **some), read_only=3)
    assert (report.is_clean, report.converted, report.only_counted) == (True, 20, 0)


# --- a target by itself ---------------------------------------------------------------------------


def test_a_converted_target_is_looked_at_without_its_source(converted: Converted) -> None:
    report = verify_alone(converted.target, spark=None)
    assert (report.converted, report.is_clean, report.has_source) == (61, True, False)


@pytest.mark.parametrize("count", [0, 50])
def test_a_written_wheel_is_looked_at(tmp_path: Path, count: int) -> None:
    target = tmp_path / "target"
    write(target, [messages(count)] if count else [])
    report = verify_alone(target, spark=None)
    assert report.is_clean, report
    assert report.converted == count


def test_damage_of_a_written_wheel_is_found(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, [messages(50)])
    log = min((target / "commitlog").iterdir())
    data = log.read_bytes()
    log.write_bytes(data[:4] + bytes(4) + data[8:])  # the magic of its first record
    report = verify_alone(target, spark=None)
    assert (report.is_clean, report.missing) == (False, 1)


def test_a_count_that_is_not_reached_is_missing(converted: Converted) -> None:
    path = converted.target / "delaywheel/conversion.json"
    facts = json.loads(path.read_bytes())
    path.write_text(json.dumps({**facts, "converted": 63}))
    report = verify_alone(converted.target, spark=None)
    assert (report.converted, report.missing) == (61, 2)
    path.write_text(json.dumps({**facts, "converted": "many"}))
    with pytest.raises(BadFieldError, match="converted is no count"):
        verify_alone(converted.target, spark=None)


SETTINGS = StoreSettings(commit_log_file_bytes=1 << 20)


def of_a_broker(root: Path) -> None:
    build_level_store(root, items())


Engine = type[LevelStore] | type[WheelStore] | type[HierarchicalWheelStore]


def of_engine(engine: Engine) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        clock = ManualClock(NOW_MS)
        with engine.open(root, settings=SETTINGS, clock=clock) as store:
            store.schedule(Message("orders", b"waits"), AfterMs(60_000))

    return make


@pytest.mark.parametrize(
    "make",
    [of_a_broker, of_engine(LevelStore), of_engine(WheelStore), of_engine(HierarchicalWheelStore)],
    ids=["broker", "levels", "wheel", "hierarchy"],
)
def test_a_store_that_nobody_has_counted_is_sent_to_check_which_reads_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    root = tmp_path / "a store"
    make(root)
    with pytest.raises(SourceError, match=f"`delaywheel check '{root}'`"):
        require_made(root)
    report = check_store(root, CheckOptions(now_ms=NOW_MS, disk_used=0.5))
    assert report.is_healthy, report.findings
    assert report.load is not None
    assert report.load.waiting > 0


def test_a_written_wheel_has_no_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    build_level_store(source, items())
    write(target, [messages(5)])
    with pytest.raises(SourceError, match=f"give it alone: `delaywheel verify {target}`"):
        require_pair(source, target)


# --- a target that was opened ---------------------------------------------------------------------


def test_a_target_that_was_delivered_from_is_said_to_be_one(converted: Converted) -> None:
    with WheelStore.open(converted.target, clock=ManualClock(NOW_MS + 60_000)) as store:
        assert len(store.advance(NOW_MS + 60_000)) > 0
    for report in (verified(converted), verify_alone(converted.target, spark=None)):
        assert report.was_opened
        assert any(problem.what.startswith(OPENED) for problem in report.problems)
        assert report.unexplained_problems == ()


# --- who reads it ---------------------------------------------------------------------------------


def without_group(config: dict[str, Any]) -> None:
    del config["subscriptionGroup.json"]["subscriptionGroupTable"]["readers"]


def without_retry_group(config: dict[str, Any]) -> None:
    del config["subscriptionGroup.json"]["subscriptionGroupTable"]["slow"]


def without_offsets(config: dict[str, Any]) -> None:
    del config["consumerOffset.json"]["offsetTable"]["T1@readers"]


def without_retry_offsets(config: dict[str, Any]) -> None:
    del config["consumerOffset.json"]["offsetTable"]["%RETRY%slow@slow"]


def later(config: dict[str, Any]) -> None:
    config["consumerOffset.json"]["offsetTable"]["T0@readers"][0] = 3


def no_number(config: dict[str, Any]) -> None:
    config["consumerOffset.json"]["offsetTable"]["T0@readers"] = {"²": 0, "9" * 5_000: 0}


@pytest.mark.parametrize(
    ("damage", "where", "what"),
    [
        (without_group, "subscriptionGroup.json", "'readers' is not there"),
        (without_retry_group, "subscriptionGroup.json", "'slow' is not there"),
        (without_offsets, "consumerOffset.json", "'readers' has no offset for queue 0 of 'T1'"),
        (without_retry_offsets, "consumerOffset.json", "'slow' has no offset for queue 0 of '%R"),
        (later, "consumerOffset.json", "'readers' begins at 3 of queue 0 of 'T0'"),
        (no_number, "consumerOffset.json", "'readers' has no offset for queue 0 of 'T0'"),
    ],
)
def test_a_group_that_would_miss_messages_is_found(
    converted: Converted, damage: Callable[[dict[str, Any]], None], where: str, what: str
) -> None:
    paths = {
        name: StoreRoot(converted.target).config_file(name)
        for name in ("subscriptionGroup.json", "consumerOffset.json")
    }
    config: dict[str, Any] = {name: parse(path.read_bytes()) for name, path in paths.items()}
    damage(config)
    for name, path in paths.items():
        path.write_text(json.dumps(config[name]))
    [problem] = verified(converted).problems
    assert problem.where == where
    assert problem.what.startswith(what)


# --- a table --------------------------------------------------------------------------------------


def test_all_differences_are_written_as_lines(converted: Converted, tmp_path: Path) -> None:
    log = min((converted.target / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[0:4096] = bytes(4096)
    log.write_bytes(data)
    report = verified(converted, listed=1_000)
    table = tmp_path / "differences.jsonl"
    require_table_place(table)
    write_differences({"here": report}, table)
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert report.missing == kinds.count("missing") > 1
    assert kinds.count("problem") == len(report.problems)
    assert all(line["source"] == "here" for line in lines)
    with pytest.raises(TargetError, match="is already there"):
        require_table_place(table)
    with pytest.raises(TargetError, match="no such directory"):
        require_table_place(tmp_path / "nowhere" / "table")
