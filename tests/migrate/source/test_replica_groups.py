# SPDX-License-Identifier: Apache-2.0
"""Stores of 5.5.1: of a group with a controller, and of a slave that acted as master: which has the
truth, what it says, what only its offsets know, and how all members are retired.
"""

import json
import lzma
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import OptionsError, PlanError, UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from migrate.changes.retire import retire_members
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.look.inspect import inspect_store
from migrate.settings import ConvertOptions
from migrate.source.members import (
    EPOCHS_NAME,
    choose_of_group,
    find_replicas,
    member_state,
    same_broker,
)
from tests.independent.real_stores import (
    ACTING_SLAVE_55,
    CONTROLLER_55,
    FIXTURES,
    RealStore,
    unpack_group,
    unpack_roots,
)

STOPPED_MS = 1_795_507_420_646
"""When a1 was stopped."""
ACTING = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "brokerRole": "SLAVE"}


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, RealStore]:
    return unpack_group(CONTROLLER_55, tmp_path_factory.mktemp("controlled"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The roots a0 (a killed master), a1 (its slave, which acted as master) and b0 (another)."""
    return unpack_roots(ACTING_SLAVE_55, tmp_path_factory.mktemp("sets"))


def test_the_member_of_the_highest_epoch_is_chosen(controlled: Mapping[str, RealStore]) -> None:
    stores = [controlled[name].root for name in ("n0", "n1")]
    chosen = choose_of_group(stores)
    assert chosen.store == controlled["n1"].root
    assert (chosen.state.last_term, chosen.state.is_controlled) == (3, True)
    assert chosen.others == (f"{stores[0]} ends at log offset 5,735,381 of epoch 2",)
    [group] = find_replicas(stores)
    assert f"Convert {stores[1]} only, which the group would elect" in str(
        same_broker(stores, group)
    )


def test_its_pending_messages_are_the_truth(controlled: Mapping[str, RealStore]) -> None:
    store = controlled["n1"]
    backlog = read_backlog(store.root, after_crash=True)
    rows = zip(backlog.level.tolist(), backlog.queue_offset.tolist(), strict=True)
    wanted = [(line.level, line.delay_queue_offset) for line in store.pending_in_levels()]
    assert Counter(rows) == Counter(wanted)
    seen = inspect_store(store.root, now_ms=store.stopped_ms)
    assert seen.member is not None
    assert (seen.member.last_term, seen.member.is_controlled) == (3, True)
    findings = check_store(store.root, CheckOptions(now_ms=store.stopped_ms)).findings
    assert "controller-member" in [each.code for each in findings]


def test_a_member_is_not_changed_in_place(controlled: Mapping[str, RealStore]) -> None:
    root = controlled["n1"].root
    options = ConvertOptions(source=root, target=root, after_crash=True)
    with pytest.raises(UnsupportedStoreError, match="a group with a controller"):
        convert_in_place(options)


def test_an_epoch_file_that_is_damaged_gives_way_to_its_backup(
    controlled: Mapping[str, RealStore], tmp_path: Path
) -> None:
    root = controlled["n0"].root
    before = member_state(StoreRoot(root))
    assert before is not None
    path = root / EPOCHS_NAME
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-3])
        state = member_state(StoreRoot(root))
        assert state is not None
        assert (before.last_term, state.last_term) == (2, 1)  # the .bak is of an epoch before
        (root / f"{EPOCHS_NAME}.bak").rename(tmp_path / "kept")
        state = member_state(StoreRoot(root))
        assert state is not None
        assert state.last_term == -1
    finally:
        path.write_bytes(content)
        (tmp_path / "kept").rename(root / f"{EPOCHS_NAME}.bak")


def truth() -> list[dict[str, Any]]:
    with lzma.open(FIXTURES / f"{ACTING_SLAVE_55}.expected.jsonl.xz", "rt", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def test_a_slave_that_acted_knows_by_its_offsets_what_it_gave_to_another_broker(
    sets: Path,
) -> None:
    lines = [line for line in truth() if line.get("waitsIn") == "a1"]
    pending = [line for line in lines if line["state"] == "pending"]
    elsewhere = [line for line in lines if line.get("deliveredElsewhere")]
    backlog = read_backlog(sets / "a1")
    rows = zip(backlog.level.tolist(), backlog.queue_offset.tolist(), strict=True)
    assert Counter(rows) == Counter(
        (line["delayLevel"], line["delayQueueOffset"]) for line in pending
    )
    options = CheckOptions(now_ms=STOPPED_MS, conf=ACTING)
    findings = check_store(sets / "a1", options).findings
    assert "store-of-acting-slave" in [each.code for each in findings]
    counted = [
        int(each.problem.removeprefix("no copy here of ").split()[0])
        for each in findings
        if each.code == "delivered-elsewhere"
    ]
    assert sum(counted) == len(elsewhere) == 139


def test_an_ordinary_store_gave_nothing_to_another_broker(sets: Path) -> None:
    findings = check_store(sets / "b0", CheckOptions(now_ms=STOPPED_MS, conf=ACTING)).findings
    assert "delivered-elsewhere" not in [each.code for each in findings]


def test_of_master_and_acting_slave_the_one_is_named_that_delivered_last(sets: Path) -> None:
    stores = [sets / "a0", sets / "a1"]
    [group] = find_replicas(stores)
    assert f"that of {stores[1]} is ahead" in str(same_broker(stores, group))


# --- all members, retired -------------------------------------------------------------------------


@pytest.fixture
def copied(controlled: Mapping[str, RealStore], tmp_path: Path) -> list[Path]:
    """Both members, to be changed; the second is the one to convert."""
    return [
        shutil.copytree(controlled[name].root, tmp_path / "group" / name) for name in ("n0", "n1")
    ]


def test_all_members_are_retired_together(copied: list[Path], tmp_path: Path) -> None:
    options = ConvertOptions(source=copied[1], target=tmp_path / "target", after_crash=True)
    count = convert(options).total("converted")
    planned = retire_members(copied, options.target, peers=())
    assert [report.state for report in planned] == ["planned"] * 2
    done = retire_members(copied, options.target, peers=(), execute=True)
    assert [(report.state, report.converted) for report in done] == [("done", count)] * 2
    pending = [read_backlog(root, after_crash=True).total("pending") for root in copied]
    assert pending == [0, 0]


def test_the_member_of_an_older_epoch_was_not_the_one_to_convert(
    copied: list[Path], tmp_path: Path
) -> None:
    options = ConvertOptions(source=copied[0], target=tmp_path / "target", after_crash=True)
    convert(options)
    with pytest.raises(PlanError, match=r"has entries that .*n0 lacks"):
        retire_members(copied, options.target, peers=(), execute=True)
    with pytest.raises(OptionsError, match="has the members n0, n1, and the stores given are of"):
        retire_members(copied, options.target, peers=("n0", "n1"), execute=True)
