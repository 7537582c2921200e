# SPDX-License-Identifier: Apache-2.0
"""A conversion with ``--whole-log``: what a level queue knew and lost is converted, verified and
retired like everything else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import BadRecordsError
from migrate.changes.retire import retire
from migrate.convert import convert, convert_merged
from migrate.verify.verify import verify
from tests.independent.level_store_builder import (
    T0,
    BuiltStore,
    DeliveredCopy,
    LevelMessage,
    build_level_store,
)
from tests.migrate.conversions import Converted, assert_right, options_for

QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX/17"
FIRST_FILE = f"{QUEUE}/{0:020d}"
NO_HARM: Mapping[int, dict[str, int]] = MappingProxyType({})


def messages(
    *, first: int = 0, wrong: Mapping[int, dict[str, int]] = NO_HARM
) -> list[LevelMessage]:
    """Twelve of level 18; ``wrong`` are fields of entries by number."""
    return [
        LevelMessage(
            level=18,
            store_timestamp_ms=T0 + number * 1000,
            unique_key=f"K{first + number}",
            unit_fields=wrong.get(number, {}),
        )
        for number in range(12)
    ]


def build(root: Path, items: Sequence[LevelMessage | DeliveredCopy], **more: Any) -> BuiltStore:
    """A source whose queue has five entries a file, and whose first three were delivered."""
    return build_level_store(root, items, offsets={18: 3}, queue_file_bytes=100, **more)


def converted(built: BuiltStore, name: str = "target", **asked: Any) -> Converted:
    options = options_for(built.root.parent, target=built.root.parent / name, **asked)
    return Converted(built=built, options=options, report=convert(options))


def test_what_waited_before_the_first_file_is_converted(tmp_path: Path) -> None:
    items = messages()
    built = build(tmp_path / "source", items)
    (built.root / FIRST_FILE).unlink()
    without = converted(built, "without")
    assert without.report.total("converted") == 7
    assert any("--whole-log looks there" in each for each in without.report.warnings)
    missed = verify(built.root, without.target, spark=None)
    assert (missed.missing, missed.unexpected) == (2, 0)
    whole = converted(built, whole_log=True)
    assert_right(whole, items[3:])
    [level] = [level for level in whole.report.levels if level.level == 18]
    assert (level.from_offset, level.to_offset, level.before_queue) == (5, 12, 2)
    assert any("2 messages lay in the log before" in each for each in whole.report.warnings)
    assert not any("--whole-log" in each for each in whole.report.warnings)
    assert verify(built.root, whole.target, spark=None).is_clean


def test_a_source_without_offsets_is_warned_of(tmp_path: Path) -> None:
    built = build(tmp_path / "source", messages())
    (built.root / FIRST_FILE).unlink()
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (built.root / "config" / name).unlink()
    without = converted(built, "without")
    assert any("no offset is known" in each for each in without.report.warnings)
    assert any("--whole-log looks there" in each for each in without.report.warnings)
    assert converted(built, whole_log=True).report.total("converted") == 12


def test_a_retired_source_repeats_nothing_when_its_files_come_back(tmp_path: Path) -> None:
    built = build(tmp_path / "source", messages())
    kept = shutil.copy2(built.root / FIRST_FILE, tmp_path)
    (built.root / FIRST_FILE).unlink()
    target = converted(built, whole_log=True).target
    report = retire(built.root, target, execute=True)
    assert (report.offsets, report.converted) == ({18: 12}, 9)
    assert retire(built.root, target, execute=True).state == "nothing to do"
    shutil.copy2(kept, built.root / FIRST_FILE)
    assert len(read_backlog(built.root, whole_log=True)) == 0


def test_the_report_of_an_older_conversion_is_good_for_retiring(tmp_path: Path) -> None:
    built = build(tmp_path / "source", messages())
    target = converted(built).target
    marker = target / "delaywheel/conversion.json"
    facts = json.loads(marker.read_bytes())
    for level in facts["levels"]:
        del level["before_queue"]
    marker.write_text(json.dumps(facts))
    assert retire(built.root, target).offsets == {18: 12}


def test_merged_sources_have_the_sum_in_their_books(tmp_path: Path) -> None:
    asked = []
    for number in range(2):
        built = build(tmp_path / f"source{number}", messages(first=100 * number))
        (built.root / FIRST_FILE).unlink()
        place = {"source": built.root, "target": tmp_path / "target"}
        asked.append(options_for(tmp_path, whole_log=True, **place))
    report = convert_merged(asked)
    assert report.total("converted") == 18
    [level] = [level for level in report.levels if level.level == 18]
    assert level.queued == level.to_offset - level.from_offset + level.before_queue == 18


@pytest.mark.parametrize("number", [3, 7, 11])
@pytest.mark.parametrize("wrong", [{"commit_log_offset": 40}, {"commit_log_offset": 1 << 40}])
def test_the_message_of_an_entry_that_leads_nowhere_is_converted(
    tmp_path: Path, wrong: dict[str, int], number: int
) -> None:
    items = messages(wrong={number: wrong})
    built = build(tmp_path / "source", items)
    with pytest.raises(BadRecordsError):
        converted(built)
    aside = converted(built, "aside", on_bad_record="quarantine")
    assert aside.report.total("quarantined") == 1
    told = verify(built.root, aside.target, spark=None)
    is_last = number == 11  # which is converted as one that is in the log alone
    assert (told.converted, told.missing, told.unexpected) == (8 + is_last, 0, 0)
    assert (told.quarantined, len(told.problems)) == ((0, 0) if is_last else (1, 1))
    assert all("nothing is wrong with its message" in each.what for each in told.problems)
    whole = converted(built, whole_log=True)
    assert_right(whole, items[3:])
    assert any("1 entry of a level's queue led nowhere" in each for each in whole.report.warnings)
    assert verify(built.root, whole.target, spark=None).is_clean
    assert retire(built.root, whole.target, execute=True).offsets == {18: 12}


def test_what_is_not_proven_stays_set_aside(tmp_path: Path) -> None:
    """The entry is right, and its record is damaged: none other is taken for it."""
    items = messages()
    items[5] = LevelMessage(level=18, damage=lambda data: b"\x5a" * len(data))
    built = build(tmp_path / "source", items)
    whole = converted(built, whole_log=True, on_bad_record="quarantine")
    assert (whole.report.total("converted"), whole.report.total("quarantined")) == (8, 1)
    assert verify(built.root, whole.target, spark=None).is_clean


def test_what_was_delivered_before_the_first_file_is_left_out(tmp_path: Path) -> None:
    waiting = [LevelMessage(level=3, store_timestamp_ms=T0 + n * 1000) for n in range(12)]
    items = [*waiting, DeliveredCopy(of=waiting[0]), DeliveredCopy(of=waiting[1])]
    built = build_level_store(
        tmp_path / "source", items, offsets={3: 0}, queue_file_bytes=100, abort=True
    )
    (built.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2" / f"{0:020d}").unlink()
    whole = converted(built, whole_log=True, after_crash=True)
    assert_right(whole, waiting[2:])
    assert whole.report.total("already_delivered") == 2
    assert verify(built.root, whole.target, spark=None).is_clean
