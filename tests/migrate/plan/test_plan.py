# SPDX-License-Identifier: Apache-2.0
"""The plan says where everything goes, held to the same rules said message by message; stored, it
comes back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.backlog.backlog import LevelBacklog
from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice, OffsetsFile
from message_store.base.errors import PlanError, TargetError
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from migrate.plan.plan import (
    Corrections,
    Plan,
    implausible_due,
    make_plan,
)
from migrate.plan.stored_plan import (
    load_plan,
    mismatch,
    read_plan_facts,
    store_plan,
    stored_corrections,
)
from migrate.plan.target_rows import TargetRows
from migrate.settings import TargetSettings
from migrate.write.rewrite import growth_bytes
from migrate.write.staging import Staging

NOW_MS = 1_700_000_000_123
SETTINGS = TargetSettings(
    commit_log_file_bytes=2000, queue_file_bytes=200, timer_log_file_bytes=5 * 52 + 20
)


@attrs.frozen(kw_only=True)
class Entry:
    """One pending message as a level queue knows it."""

    size_bytes: int = 300
    level: int = 5
    due_ms: int = NOW_MS + 60_000


def backlog_of(entries: list[Entry]) -> LevelBacklog:
    sizes = np.array([entry.size_bytes for entry in entries], np.int32)
    no_file = OffsetsFile(Path("delayOffset.json"), None, None)
    return LevelBacklog(
        commit_log_offset=np.arange(len(entries), dtype=np.int64) * 10_000,
        size_bytes=sizes,
        level=np.array([entry.level for entry in entries], np.int16),
        queue_offset=np.arange(len(entries), dtype=np.int64),
        due_ms=np.array([entry.due_ms for entry in entries], np.int64),
        counts=(),
        level_table=DelayLevels.parse(),
        offsets=DelayOffsets({}, OffsetsChoice.NONE, no_file, no_file),
        log_min=0,
        log_end=len(entries) * 10_000,
        newest_store_ms=NOW_MS,
        bytes_scanned=0,
    )


def plan_of(entries: list[Entry], **changes: Any) -> Plan:
    backlog = backlog_of(entries)
    facts: dict[str, Any] = {
        "chosen": np.ones(len(entries), np.bool_),
        "now_ms": NOW_MS,
        "settings": SETTINGS,
        "request": {"some": "request"},
        "corrections": Corrections(),
        **changes,
    }
    return make_plan(backlog, facts.pop("chosen"), **facts)


ENTRIES = st.lists(
    st.builds(
        Entry,
        size_bytes=st.integers(91, 1900),
        level=st.integers(1, 18),
        due_ms=st.integers(NOW_MS - 5000, NOW_MS + 5000),
    ),
    max_size=40,
)


@given(ENTRIES)
def test_slots_and_chains_are_those_of_placing_one_after_the_other(entries: list[Entry]) -> None:
    plan = TargetRows.expected(plan_of(entries))
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    counts: dict[int, int] = {}
    for number, slot_ms in enumerate(plan.slot_times_ms.tolist()):
        expected = number - last[slot_ms] if slot_ms in last else 0
        assert plan.distances[number] == expected
        first.setdefault(slot_ms, number)
        last[slot_ms] = number
        counts[slot_ms] = counts.get(slot_ms, 0) + 1
    slots = plan.slots
    times = slots.slot_time_ms.tolist()
    assert sorted(times) == sorted(first)
    assert slots.first_index.tolist() == [first[time] for time in times]
    assert slots.last_index.tolist() == [last[time] for time in times]
    assert slots.counts.tolist() == [counts[time] for time in times]


@given(ENTRIES)
def test_a_record_is_planned_with_the_growth_of_a_usual_one(entries: list[Entry]) -> None:
    assert plan_of(entries).most_bytes.tolist() == [
        entry.size_bytes + growth_bytes(entry.level, NOW_MS) for entry in entries
    ]


@given(ENTRIES, st.data())
def test_only_chosen_and_sound_messages_are_planned(
    entries: list[Entry], data: st.DataObject
) -> None:
    chosen = np.array([data.draw(st.booleans()) for _ in entries], np.bool_)
    bad = {at: "bad" for at in range(len(entries)) if data.draw(st.booleans())}
    plan = plan_of(entries, chosen=chosen, corrections=Corrections(bad=bad))
    assert list(plan.chosen) == [at for at in range(len(entries)) if chosen[at] and at not in bad]
    assert plan.source_offsets.tolist() == [at * 10_000 for at in plan.chosen]


@pytest.mark.parametrize("size", [2**31 - 1, -(2**31), 1992 + 32_767 - 18])
def test_a_size_that_cannot_be_gets_no_room(size: int) -> None:
    plan = plan_of([Entry(), Entry(size_bytes=size), Entry()])
    assert plan.most_bytes.tolist() == [319, 0, 319]


@pytest.mark.parametrize("size", [1992 - 19, 1992 - 18, 1992 + 32_767 - 19])
def test_a_size_that_may_come_to_fit_a_file_gets_its_room(size: int) -> None:
    assert plan_of([Entry(size_bytes=size)]).most_bytes.tolist() == [1992]


@pytest.mark.parametrize(
    ("due_ms", "is_implausible"),
    [
        (0, True),
        (-1, True),
        (10**12 - 1, True),
        (10**12 + 1000, False),
        (NOW_MS, False),
        (10**13 - 1, False),
        (10**13, True),
        (2**63 - 1, True),
    ],
)
def test_a_due_time_without_thirteen_digits_is_none(due_ms: int, is_implausible: bool) -> None:
    assert implausible_due(np.array([due_ms]), 1000).tolist() == [is_implausible]


def test_the_identity_is_that_of_everything_that_decides_about_bytes() -> None:
    entries = [Entry(), Entry(size_bytes=400)]
    same = {plan_of(entries).identity for _ in range(3)}
    assert len(same) == 1
    others = [
        plan_of(entries[:1]),
        plan_of([Entry(), Entry(size_bytes=401)]),
        plan_of([Entry(), Entry(size_bytes=400, level=6)]),
        plan_of([Entry(), Entry(size_bytes=400, due_ms=NOW_MS)]),
        plan_of(entries, request={"some": "other"}),
        plan_of(entries, corrections=Corrections(bad={0: "bad"})),
    ]
    assert len(same | {plan.identity for plan in others}) == 1 + len(others)


# --- stored --------------------------------------------------------------------------------------


def stored(tmp_path: Path, plan: Plan) -> Staging:
    staging = Staging(StoreRoot(tmp_path), plan.identity)
    corrections = Corrections(bad={3: "why"})
    sources = [tmp_path / "source"]
    store_plan(plan, staging, sources=sources, request={"a": [1]}, corrections=corrections)
    return staging


@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_stored_plan_comes_back(tmp_path: Path, count: int) -> None:
    plan = plan_of([Entry(level=number % 18 + 1) for number in range(count)])
    stored(tmp_path, plan)
    loaded = load_plan(tmp_path)
    assert (loaded.identity, loaded.cut, loaded.now_ms) == (plan.identity, plan.cut, NOW_MS)
    assert loaded.settings == SETTINGS
    assert loaded.sources == (tmp_path / "source",)
    records = loaded.rewriter(0, count)
    for name in loaded.arrays:
        assert getattr(records, name).tolist() == getattr(plan, name).tolist()
        assert getattr(records, name).flags.writeable


def test_a_task_of_another_plan_than_the_one_that_counts_is_told_so(tmp_path: Path) -> None:
    plan = plan_of([Entry()])
    stored(tmp_path, plan)
    assert load_plan(tmp_path, plan.identity).identity == plan.identity
    with pytest.raises(PlanError, match="another plan has taken the place"):
        load_plan(tmp_path, "0" * 64)


def test_what_was_learned_comes_back(tmp_path: Path) -> None:
    facts = read_plan_facts(stored(tmp_path, plan_of([Entry()])))
    assert facts is not None
    first = Corrections(bad={3: "first", 4: "also"})
    assert stored_corrections(facts, first) == Corrections(bad={3: "why", 4: "also"})


def test_the_difference_to_another_request_is_named(tmp_path: Path) -> None:
    staging = stored(tmp_path, plan_of([Entry()]))
    facts = read_plan_facts(staging)
    assert facts is not None
    assert "(differs in: a)" in mismatch(staging, {"a": [2]}, facts)
    assert "(differs in: the level queues)" in mismatch(staging, {"a": [1]}, facts)
    assert "was begun by another version" in mismatch(staging, {"a": [1]}, {**facts, "format": 1})


def test_a_plan_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert read_plan_facts(Staging(StoreRoot(tmp_path))) is None
    with pytest.raises(PlanError, match=r"plan\.json: no plan"):
        load_plan(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"{}", b"\xff\xfe"])
def test_a_plan_that_cannot_be_read_is_said(tmp_path: Path, content: bytes) -> None:
    stored(tmp_path, plan_of([Entry()])).plan_file.write_bytes(content)
    with pytest.raises(PlanError, match="not a plan; empty"):
        load_plan(tmp_path)


def test_a_plan_without_one_of_its_arrays_is_said(tmp_path: Path) -> None:
    stored(tmp_path, plan_of([Entry()])).plan_array("outs_ms").unlink()
    with pytest.raises(TargetError, match=r"outs_ms.npy: cannot be written|No such file"):
        load_plan(tmp_path)
