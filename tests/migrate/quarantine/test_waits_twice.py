# SPDX-License-Identifier: Apache-2.0
"""What was set aside waits in one place: not in the levels and where it was put back to."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.base.errors import PlanError, SourceError, TargetError
from message_store.files.store_root import StoreRoot
from message_store.reading.unfinished_change import UNDOING
from migrate.changes.note import all_changes_of
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert, convert_merged
from migrate.quarantine.kept import Quarantine, Repair, obstacles
from migrate.quarantine.restore import (
    DONE,
    PLANNED,
    RecordInserter,
    RestoreOptions,
    RestoreReport,
    restore_records,
)
from migrate.write.staging import sole_writer
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import NOW_MS, build_and_convert, options_for
from tests.migrate.in_place_stores import do, tree
from tests.migrate.stops import Stopped, stopping_before
from timer_wheel.wheel.store import WheelStore

STORED_MS = NOW_MS - 60_000
ODD = "level-18-1.record"


def properties(unique_key: str) -> bytes:
    """Properties that say another level than the queue does: a broker delivers it all the same."""
    pairs = [("REAL_TOPIC", "T"), ("UNIQ_KEY", unique_key), ("DELAY", "7"), ("REAL_QID", "1")]
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def items() -> list[LevelMessage]:
    """The first is fine, the second is set aside and can be put back."""
    return [
        LevelMessage(level=18, store_timestamp_ms=STORED_MS, unique_key="K1"),
        LevelMessage(level=18, store_timestamp_ms=STORED_MS, raw_properties=properties("K2")),
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of levels, not converted yet."""
    build_level_store(tmp_path / "store", items())
    return tmp_path / "store"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another store, in which one message waits."""
    message = LevelMessage(level=18, store_timestamp_ms=STORED_MS, unique_key="K0")
    build_level_store(tmp_path / "other", [message])
    return tmp_path / "other"


def convert_it(store: Path) -> Path:
    """Convert it in place; where it keeps what it set aside."""
    do(store, NOW_MS, on_bad_record="quarantine")
    return Quarantine(store).directory


def back(quarantine: Path, store: Path, *, execute: bool = True) -> RestoreReport:
    request = RestoreOptions(quarantine=quarantine, store=store)
    return restore_records(request, execute=execute, clock=ManualClock(NOW_MS))


def undo(store: Path, *, execute: bool = True) -> str:
    return roll_back(StoreRoot(store), execute=execute).state


def keys_in(store: Path) -> set[str | None]:
    with LevelStore.open(store, clock=ManualClock(NOW_MS)) as opened:
        return {each.unique_key for each in opened.pending()}


# --- put back, and then rolled back ---------------------------------------------------------------


def test_what_was_put_back_elsewhere_is_not_rolled_back_as_well(store: Path, other: Path) -> None:
    aside = convert_it(store)
    assert back(store, other).state == DONE
    assert keys_in(other) == {"K0", "K2"}
    before = tree(store)
    for execute in (False, True):
        with pytest.raises(PlanError, match=rf"{ODD} into .*other.*duplicates") as refusal:
            undo(store, execute=execute)
        assert str(aside / "put-back.json") in str(refusal.value)
    assert tree(store) == before
    assert len(read_backlog(store)) == 0


def test_what_is_about_to_be_put_back_is_not_rolled_back_either(
    store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_it(store)

    def stop(*_given: Any) -> int:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(RecordInserter, "append", stop)
        patched.setattr(LevelStore, "__exit__", lambda opened, *_: opened.abandon())
        with pytest.raises(Stopped):
            back(store, other)
    with pytest.raises(PlanError, match=r"about to be .*duplicates"):
        undo(store)
    back(store, other)
    with pytest.raises(PlanError, match="duplicates"):
        undo(store)


def test_once_it_is_taken_out_of_there_the_change_can_be_rolled_back(
    store: Path, other: Path
) -> None:
    before, aside = tree(store), convert_it(store)
    back(store, other)
    (aside / "put-back.json").write_text(json.dumps({"done": {}, "begun": None}))
    assert undo(store) == "rolled back"
    assert tree(store) == before


def test_what_was_put_back_into_the_store_itself_is_seen_in_its_log(store: Path) -> None:
    convert_it(store)
    request = RestoreOptions(quarantine=store, store=store, engine="levels")
    assert restore_records(request, execute=True, clock=ManualClock(NOW_MS)).state == DONE
    with pytest.raises(PlanError, match="has written to it since"):
        undo(store)


def test_nobody_puts_back_while_a_change_is_rolled_back(store: Path) -> None:
    aside = convert_it(store)
    with (
        sole_writer(StoreRoot(aside)),
        pytest.raises(TargetError, match="another conversion is writing here"),
    ):
        undo(store)
    assert undo(store) == "rolled back"


# --- rolled back, and then put back ---------------------------------------------------------------


def test_what_was_rolled_back_is_not_put_back_as_well(store: Path, other: Path) -> None:
    aside = convert_it(store)
    undo(store)
    assert len(read_backlog(store)) == 2  # both wait in the levels again
    before = tree(other)
    for quarantine, execute in itertools.product((store, aside), (False, True)):
        with pytest.raises(PlanError, match=r"rolled back.*in their levels again"):
            back(quarantine, other, execute=execute)
    with pytest.raises(PlanError, match="rolled back"):
        back(store, store)
    assert tree(other) == before
    [reason] = obstacles(Quarantine(store)).values()
    assert "rolled back" in reason


def test_a_rollback_that_was_stopped_lets_nothing_be_put_back(store: Path, other: Path) -> None:
    convert_it(store)
    states = set[str]()
    for number in itertools.count():
        try:
            with stopping_before(store, number):
                undo(store)
            break
        except Stopped:
            pass
        state = all_changes_of(StoreRoot(store))[-1].state
        states.add(state)
        if state == UNDOING:
            with pytest.raises(PlanError, match="in their levels"):
                back(store, other)
    assert UNDOING in states
    with pytest.raises(PlanError, match="rolled back"):
        back(store, other)


def test_a_conversion_that_was_stopped_lets_nothing_be_put_back(store: Path, other: Path) -> None:
    def has_quarantine(_steps: list[str]) -> bool:
        return any((store / "delaywheel").glob("backup-*/delaywheel/quarantine/reasons.jsonl"))

    with pytest.raises(Stopped), stopping_before(store, has_quarantine):
        do(store, NOW_MS, on_bad_record="quarantine")
    for place in (store, next((store / "delaywheel").glob("backup-*/delaywheel/quarantine"))):
        assert Quarantine(store).records == ()
        with pytest.raises(SourceError, match="no quarantined records"):
            back(place, other)
    with (
        pytest.raises(Stopped),
        stopping_before(store, lambda _: bool(all_changes_of(StoreRoot(store)))),
    ):
        do(store, NOW_MS, on_bad_record="quarantine")
    with pytest.raises(PlanError, match=r"stopped while it was begun.*rollback"):
        back(store, other)
    convert_it(store)
    assert back(store, other).state == DONE


def test_of_two_conversions_the_one_rolled_back_has_set_nothing_aside(
    store: Path, other: Path
) -> None:
    convert_it(store)
    undo(store)
    convert_it(store)
    assert back(store, other, execute=False).state == PLANNED
    assert back(store, other).state == DONE


# --- converted elsewhere --------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Converted into ``target`` beside it, where the second message is set aside."""
    build_and_convert(tmp_path, items(), on_bad_record="quarantine")
    return tmp_path / "source"


def test_a_level_that_still_has_a_record_does_not_get_it_once_more(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    report = back(target, source)
    assert report.put_back == ()
    assert "waits in level 18 of" in report.in_the_way[ODD]
    assert "retire" in report.in_the_way[ODD]
    retire(source, target, execute=True)
    assert back(target, source).state == DONE
    assert keys_in(source) == {"K2"}


def test_a_level_of_the_source_under_another_name_is_known_by_its_log(
    source: Path, tmp_path: Path
) -> None:
    moved = source.rename(tmp_path / "moved")
    assert "waits in level 18 of" in back(tmp_path / "target", moved).in_the_way[ODD]


def test_a_source_is_not_brought_back_whose_record_was_put_into_a_third_store(
    source: Path, other: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    retire(source, target, execute=True)
    back(target, other)
    with pytest.raises(PlanError, match=rf"{ODD} into .*other.*duplicates"):
        undo(source)


def test_a_source_is_brought_back_whose_record_lies_with_all_others_in_the_target(
    source: Path, tmp_path: Path
) -> None:
    """The target is thrown away, then, with all that is in it."""
    target = tmp_path / "target"
    retire(source, target, execute=True)
    back(target, target)
    with WheelStore.open(target, clock=ManualClock(NOW_MS)) as opened:
        assert {each.unique_key for each in opened.pending()} == {"K1", "K2"}
    assert undo(source) == "rolled back"
    assert keys_in(source) == {"K1", "K2"}


def test_a_bad_body_is_set_aside_for_its_own_topic_alone(tmp_path: Path) -> None:
    """Else each conversion of some topics would set it aside, and each could put it back."""
    build_level_store(
        tmp_path / "source",
        [
            LevelMessage(level=18, store_timestamp_ms=STORED_MS, unique_key="A1", topic="A"),
            LevelMessage(level=18, store_timestamp_ms=STORED_MS, unique_key="B1", topic="B"),
            LevelMessage(
                level=18,
                store_timestamp_ms=STORED_MS,
                unique_key="BAD",
                topic="A",
                record_fields={"body_crc": 7},
            ),
        ],
    )
    for topic, quarantined in (("A", 1), ("B", 0)):
        report = convert(
            options_for(
                tmp_path,
                target=tmp_path / topic,
                only_topics=(topic,),
                on_bad_record="quarantine",
            )
        )
        assert (report.total("converted"), report.total("quarantined")) == (1, quarantined)


# --- whatever the source is called ----------------------------------------------------------------


@pytest.mark.parametrize("called", ["as it was typed", "by another name", "as another member"])
def test_whatever_a_source_is_called_its_restored_record_is_known(
    source: Path, other: Path, tmp_path: Path, called: str
) -> None:
    target, root = tmp_path / "target", source
    if called == "as it was typed":  # older lists have the path as it was given
        reasons = target / "delaywheel/quarantine/reasons.jsonl"
        line = {**json.loads(reasons.read_text()), "source": "source"}
        reasons.write_text(json.dumps(line) + "\n")
    elif called == "as another member":
        root = tmp_path / "member"
        shutil.copytree(source, root)
    retire(root, target, execute=True)
    back(target, other)
    if called == "by another name":
        root = source.rename(tmp_path / "old")
    with pytest.raises(PlanError, match=rf"{ODD} into .*other.*duplicates"):
        undo(root)


def test_of_several_sources_those_of_which_nothing_was_restored_can_come_back(
    tmp_path: Path, other: Path
) -> None:
    sources = [tmp_path / "one", tmp_path / "two"]
    for number, root in enumerate(sources):
        at_ms = STORED_MS + number
        odd = LevelMessage(
            level=18, store_timestamp_ms=at_ms, raw_properties=properties(f"ODD{number}")
        )
        good = LevelMessage(level=18, store_timestamp_ms=at_ms, unique_key=f"K{number}")
        build_level_store(root, [good, odd])
    target = tmp_path / "target"
    convert_merged(
        [options_for(tmp_path, source=root, on_bad_record="quarantine") for root in sources]
    )
    for root in sources:
        retire(root, target, execute=True)
    [file] = [each.file for each in Quarantine(target).records if each.source == str(sources[0])]
    request = RestoreOptions(quarantine=target, store=other, only=(file,))
    assert restore_records(request, execute=True, clock=ManualClock(NOW_MS)).state == DONE
    with pytest.raises(PlanError, match="duplicates"):
        undo(sources[0])
    assert undo(sources[1]) == "rolled back"


def test_a_record_that_two_conversions_set_aside_is_restored_once(
    tmp_path: Path, other: Path
) -> None:
    """One without a topic is in the quarantine of each."""
    nowhere = LevelMessage(level=18, store_timestamp_ms=STORED_MS, without=["REAL_TOPIC"])
    named = [
        LevelMessage(level=18, store_timestamp_ms=STORED_MS, unique_key=key, topic=key)
        for key in "AB"
    ]
    build_level_store(tmp_path / "source", [*named, nowhere])
    targets = [tmp_path / key for key in "AB"]
    for target in targets:
        convert(
            options_for(
                tmp_path, target=target, only_topics=(target.name,), on_bad_record="quarantine"
            )
        )
    requests = [
        RestoreOptions(quarantine=target, store=other, repair=Repair(topic="A"))
        for target in targets
    ]
    states = [
        restore_records(request, execute=True, clock=ManualClock(NOW_MS)) for request in requests
    ]
    assert [len(state.put_back) for state in states] == [1, 0]
    [why] = states[1].in_the_way.values()
    assert str(targets[0]) in why
    assert "was restored from there" in why
    # Whoever takes it out there again, and out of the notes, can restore it from the other.
    (targets[0] / "delaywheel/quarantine/put-back.json").unlink()
    last = restore_records(requests[1], execute=True, clock=ManualClock(NOW_MS))
    assert len(last.put_back) == 1
