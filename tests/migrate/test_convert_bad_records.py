# SPDX-License-Identifier: Apache-2.0
"""Pending records that cannot be converted: all are listed, or kept aside while the rest goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store.base.errors import BadRecordsError, FormatError, SourceError
from message_store.files import small_files
from message_store.reading.indexed_end import newest_places
from migrate.changes.retire import retire
from migrate.convert import convert, convert_merged
from migrate.quarantine.kept import Quarantine
from migrate.report.finished_target import finished_before
from migrate.report.report import BadRecord
from migrate.settings import TargetSettings
from migrate.verify.verify import verify
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.independent.real_stores import LEVELS_49_CRASH, unpack
from tests.migrate.conversions import (
    SMALL,
    Converted,
    assert_right,
    build_and_convert,
    checked_target,
    options_for,
)
from tests.migrate.stopped_conversions import made_merge


def flipped(at: int) -> Any:
    """Damage: the byte at this place is another one."""
    return lambda data: data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def longer_by_its_own_word(data: bytes) -> bytes:
    return (len(data) + 1).to_bytes(4, "big") + data[4:]


def garbage(data: bytes) -> bytes:
    return bytes(range(1, 200)).ljust(len(data), b"#")[: len(data)]


def cut_off(data: bytes) -> bytes:
    return data[: len(data) // 2].ljust(len(data), b"\0")


def text(*pairs: tuple[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


REAL = [("REAL_TOPIC", "T"), ("REAL_QID", "0")]
UNREADABLE = "unreadable"

DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "zeros": ({"damage": lambda data: bytes(len(data))}, UNREADABLE),
    "garbage": ({"damage": garbage}, UNREADABLE),
    "torn in the middle": ({"damage": cut_off, "body": b"x" * 300}, UNREADABLE),
    "another body CRC": ({"record_fields": {"body_crc": 7}}, UNREADABLE),
    "a byte of the body": ({"damage": flipped(90), "body": b"y" * 90}, UNREADABLE),
    "another magic": ({"record_fields": {"magic": 0x0BAD}}, UNREADABLE),
    "another length": ({"damage": longer_by_its_own_word}, "record"),
    "a blank": ({"record_fields": {"magic": -875286124}}, UNREADABLE),
    "another place": ({"record_fields": {"commit_log_offset": 5}}, "lies at 5"),
    "another queue": ({"record_fields": {"queue_id": 7}}, "of queue 7, found in queue 4"),
    "another topic": ({"record_fields": {"topic": "Elsewhere"}}, "a record of topic 'Elsewhere'"),
    "no DELAY": ({"without": ["DELAY"]}, "no DELAY"),
    "another DELAY": ({"raw_properties": text(*REAL, ("DELAY", "6"))}, "DELAY is '6'"),
    "a DELAY that is no number": ({"raw_properties": text(*REAL, ("DELAY", "x"))}, "DELAY is 'x'"),
    "no REAL_TOPIC": ({"without": ["REAL_TOPIC"]}, "no REAL_TOPIC"),
    "no REAL_QID": ({"without": ["REAL_QID"]}, "no REAL_QID"),
    "a REAL_QID that is no number": (
        {"raw_properties": text(("REAL_TOPIC", "T"), ("REAL_QID", "-1"), ("DELAY", "5"))},
        "REAL_QID '-1' is no queue",
    ),
    "a topic with a way up": ({"topic": "../../etc/passwd"}, "cannot be delivered to"),
    "a topic with a slash": ({"topic": "a/b"}, "cannot be delivered to"),
    "a topic with a control sign": ({"topic": "a\x1b[31mb"}, "cannot be delivered to"),
    "the level topic itself": ({"topic": "SCHEDULE_TOPIC_XXXX"}, "cannot be delivered to"),
    "the wheel's topic": ({"topic": "rmq_sys_wheel_timer"}, "cannot be delivered to"),
    "the half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "cannot be delivered to"),
    "no body": ({"body": b""}, "no body: no broker with a timer wheel delivers it"),
    "no room left in its properties": (
        {"user_properties": {"long": "x" * 32_500}}, "would outgrow 32767"
    ),
    "an entry of another size": ({"unit_fields": {"size_bytes": 120}}, ""),
    "an entry into the middle of its record": ({"unit_fields": {"commit_log_offset": 50}}, ""),
    "an entry behind the end of the log": ({"unit_fields": {"commit_log_offset": 60_000}}, ""),
    "an entry far behind the end": ({"unit_fields": {"commit_log_offset": 2**40}}, "ends before"),
    "the largest offset": ({"unit_fields": {"commit_log_offset": 2**63 - 1}}, "ends before"),
    "the largest size there is": ({"unit_fields": {"size_bytes": 2**31 - 1}}, "ends before"),
    "a size beyond its file": ({"unit_fields": {"size_bytes": 200_000}}, "ends before"),
    "a size of many records": ({"unit_fields": {"size_bytes": 70_000}}, "entry says 70000"),
    "a size of one": ({"unit_fields": {"size_bytes": 1}}, UNREADABLE),
}  # fmt: skip

BEFORE = [LevelMessage(level=5, body=b"before"), OrdinaryMessage()]
BEHIND = [LevelMessage(level=5, body=b"behind"), LevelMessage(level=3, body=b"of another level")]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_a_record_that_cannot_be_converted_is_kept_aside(
    tmp_path: Path, damage: dict[str, Any], reason: str
) -> None:
    bad = LevelMessage(level=5, **damage)
    items: list[Item] = [*BEFORE, bad, *BEHIND]
    source_file = 128 * 1024
    built = build_level_store(tmp_path / "source", items, commit_log_file_bytes=source_file)
    large = attrs.evolve(SMALL, commit_log_file_bytes=source_file)
    options = options_for(tmp_path, on_bad_record="quarantine", settings=large)
    converted = Converted(built=built, options=options, report=convert(options))

    assert_right(converted, [BEFORE[0], *BEHIND])
    [record] = converted.report.bad_records
    unit = built.of(bad).unit
    assert unit is not None
    assert (record.level, record.queue_offset) == (5, 1)
    assert record.commit_log_offset == unit.commit_log_offset
    assert reason in record.reason
    [level] = [level for level in converted.report.levels if level.level == 5]
    assert (level.pending, level.converted, level.quarantined) == (3, 2, 1)
    assert_kept(options.target, record, tmp_path / "source", unit.size_bytes)


def assert_kept(target: Path, record: BadRecord, source: Path, size_bytes: int) -> None:
    """The raw bytes and the reason lie beside the target, for the owner's eyes only."""
    directory = target / "delaywheel/quarantine"
    [reason] = map(json.loads, (directory / "reasons.jsonl").read_text().splitlines())
    assert BadRecord(**{key: reason[key] for key in attrs.asdict(record)}) == record
    [log] = (source / "commitlog").iterdir()
    with log.open("rb") as file:
        start = min(record.commit_log_offset, 1 << 30)
        file.seek(start)
        lies_there = file.read(size_bytes)
    if int.from_bytes(lies_there[:4], "big") != size_bytes:  # a false size keeps 64 KiB
        lies_there = lies_there[: 64 * 1024]
    raw = directory / reason["file"]
    assert raw.exists() == bool(lies_there)  # of nothing there is no file
    assert not lies_there or raw.read_bytes() == lies_there
    assert reason["bytes"] == len(lies_there)
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_all_bad_records_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    kinds = ["zeros", "no DELAY", "a topic with a slash", "the largest size there is"]
    items: list[Item] = [*BEFORE, *(LevelMessage(level=5, **DAMAGE[kind][0]) for kind in kinds)]
    built = build_level_store(tmp_path / "source", [*items, *BEHIND])
    options = options_for(tmp_path)
    with pytest.raises(
        BadRecordsError, match=r"^4 pending records .* nothing was written$"
    ) as caught:
        convert(options)
    records = [record for record in caught.value.records if isinstance(record, BadRecord)]
    offsets = [built.of(item).commit_log_offset for item in items[2:]]
    assert [record.commit_log_offset for record in records] == offsets
    assert [record.queue_offset for record in records] == [1, 2, 3, 4]
    assert not options.target.exists()


def test_after_a_refusal_the_same_command_can_set_them_aside(tmp_path: Path) -> None:
    bad = LevelMessage(level=5, without=["DELAY"])
    built = build_level_store(tmp_path / "source", [*BEFORE, bad])
    with pytest.raises(BadRecordsError):
        convert(options_for(tmp_path))
    options = options_for(tmp_path, on_bad_record="quarantine")
    assert_right(Converted(built=built, options=options, report=convert(options)), BEFORE[:1])


def test_many_bad_and_odd_records_in_many_files(tmp_path: Path) -> None:
    """More are bad than are held back: a second plan leaves them out."""
    items: list[Item] = []
    for number in range(120):
        change: dict[str, Any] = {"body": bytes(number + 1)}
        if number % 7 == 3:
            change["without"] = ["REAL_TOPIC"]
        elif number % 5 == 2:
            change["extra_pairs"] = [("TIMER_ROLL_TIMES", "1" * (number % 9 + 1))]
        elif number % 11 == 4:
            change["unit_fields"] = {"size_bytes": 2**31 - 1 - number}
        items.append(LevelMessage(level=number % 4 + 1, **change))
    fine = [
        item
        for item in items
        if isinstance(item, LevelMessage) and not item.without and not item.unit_fields
    ]
    converted = build_and_convert(
        tmp_path, items, on_bad_record="quarantine", queue_file_bytes=100 * 20
    )
    assert_right(converted, fine)
    assert len(converted.report.bad_records) == len(items) - len(fine)
    assert len(list((converted.target / "delaywheel/quarantine").glob("*.record"))) == len(
        converted.report.bad_records
    )


@pytest.mark.parametrize("due_ms", [-1, 0, 5, 12_345, 2**62, -(2**40)])
def test_a_due_time_that_is_none_is_made_anew_from_store_time_and_level(
    tmp_path: Path, due_ms: int
) -> None:
    odd = LevelMessage(level=5, body=b"odd", unit_fields={"tags_code": due_ms})
    items: list[Item] = [*BEFORE, odd, *BEHIND]
    assert_right(build_and_convert(tmp_path, items), [BEFORE[0], odd, *BEHIND])


def test_an_entry_without_size_ends_its_queue(tmp_path: Path) -> None:
    """As it does for a broker: what lies behind it is not pending."""
    end = LevelMessage(level=5, unit_fields={"size_bytes": 0, "commit_log_offset": 0})
    converted = build_and_convert(tmp_path, [BEFORE[0], BEHIND[1], end], on_bad_record="quarantine")
    checked_target(converted.options)
    assert converted.report.total("quarantined") == 0


def test_a_log_file_cut_short_hides_only_what_lay_behind_the_cut(tmp_path: Path) -> None:
    items = [LevelMessage(level=5, body=bytes(500), tags=str(number)) for number in range(12)]
    built = build_level_store(tmp_path / "source", items, commit_log_file_bytes=4096)
    first, *others = sorted((tmp_path / "source/commitlog").iterdir())
    assert others
    cut = built.placed[2].commit_log_offset + 100
    with first.open("r+b") as file:
        file.truncate(cut)
    options = options_for(tmp_path, on_bad_record="quarantine")
    converted = Converted(built=built, options=options, report=convert(options))
    hidden = [
        placed.item for placed in built.placed if cut - 100 <= placed.commit_log_offset < 4096
    ]
    assert_right(converted, [item for item in items if item not in hidden])
    assert converted.report.total("quarantined") == len(hidden) > 2
    assert {bad.reason for bad in converted.report.bad_records} == {
        "the log ends before the record does, or has no such place"
    }


def test_a_log_file_in_the_middle_that_is_gone_makes_its_records_bad(tmp_path: Path) -> None:
    items = [LevelMessage(level=5, body=bytes(900)) for _ in range(12)]
    built = build_level_store(tmp_path / "source", items, commit_log_file_bytes=4096)
    sorted((tmp_path / "source/commitlog").iterdir())[1].unlink()
    options = options_for(tmp_path, on_bad_record="quarantine")
    converted = Converted(built=built, options=options, report=convert(options))
    gone = [p.item for p in built.placed if 4096 <= p.commit_log_offset < 8192]
    assert_right(converted, [item for item in items if item not in gone])
    assert converted.report.total("quarantined") == len(gone) > 0


def test_very_many_bad_records_leave_a_target_that_every_verb_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log files in the middle are gone: their entries lead to nothing, and nothing can be kept."""
    items: list[Item] = [LevelMessage(level=5, body=bytes(300)) for _ in range(300)]
    items += [LevelMessage(level=5, without=["REAL_TOPIC"]), LevelMessage(level=6)]
    build_level_store(tmp_path / "source", items, commit_log_file_bytes=4096)
    for log in sorted((tmp_path / "source/commitlog").iterdir())[1:-1]:
        log.unlink()
    options = options_for(tmp_path, on_bad_record="quarantine")
    report = convert(options)
    count = report.total("quarantined")
    assert count > 250
    assert report.total("converted") == len(items) - count
    own = options.target / "delaywheel"
    assert len(list((own / "quarantine").glob("*.record"))) == 1
    lines = (own / "bad-records.jsonl").read_text().splitlines()
    assert len(lines) == count
    limit = (own / "conversion.json").stat().st_size + 2000
    assert (own / "quarantine/reasons.jsonl").stat().st_size > limit
    monkeypatch.setattr(small_files, "SMALL_FILE_MAX_BYTES", limit)

    assert finished_before(options) == report
    found = verify(options.source, options.target, spark=None)
    assert (found.quarantined, found.missing, found.unexpected) == (count, 0, 0)
    assert len(Quarantine(options.target).waiting) == count
    assert retire(options.source, options.target, execute=True).state == "done"

    (own / "bad-records.jsonl").write_text("\n".join([*lines[1:], ""]))
    with pytest.raises(FormatError, match="lines are missing"):
        verify(options.source, options.target, spark=None)
    (own / "bad-records.jsonl").unlink()
    with pytest.raises(SourceError, match="is missing"):
        verify(options.source, options.target, spark=None)


def test_the_bad_records_of_each_source_are_its_own(tmp_path: Path) -> None:
    members = made_merge(tmp_path, 2)
    report = convert_merged(members)
    for options, source in zip(members, report.sources, strict=True):
        found = verify(options.source, options.target, spark=None)
        assert found.quarantined == len(source.bad_records) == 1
        assert (found.missing, found.unexpected, found.problems) == (0, 0, ())


def test_deliveries_behind_damage_are_told_as_unknown_after_a_crash(tmp_path: Path) -> None:
    """A broker that starts cuts the log there, and delivers their messages again."""
    store = unpack(LEVELS_49_CRASH, tmp_path / "store")
    place = next(at for at in sorted(newest_places(store.root)) if at > 7_400_000)
    file = store.root / "commitlog" / f"{place >> 20 << 20:020}"
    with file.open("r+b") as log:
        log.seek(place % (1 << 20))
        log.write(bytes(4))
    asked: dict[str, Any] = {"source": store.root, "now_ms": store.stopped_ms}
    asked |= {"after_crash": True, "on_bad_record": "quarantine", "settings": TargetSettings()}
    report = convert(options_for(tmp_path, **asked))
    assert any(f"the log is damaged at {place}" in each for each in report.warnings)
    assert any("such messages are taken again" in each for each in report.warnings)
