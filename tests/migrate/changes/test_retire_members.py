# SPDX-License-Identifier: Apache-2.0
"""The members of a DLedger group, retired together: all of them, or none; stopped anywhere, the
same command goes on.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import OptionsError, PlanError, SourceError, UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from migrate.changes import retire as retire_module
from migrate.changes.note import put_offsets
from migrate.changes.retire import RetireReport, retire, retire_members
from migrate.changes.undo import roll_back
from migrate.convert import convert
from migrate.source.members import ChosenMember, choose_of_group
from tests.independent.dledger_member import Member, make_member
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store
from tests.independent.raw_files import read_config
from tests.independent.real_stores import DLEDGER_49_CRASH, unpack_group
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import tree

PEERS = ("n0", "n1", "n2")
ITEMS = [
    LevelMessage(level=number % 3 + 3, body=bytes(number * 40 + 1), store_timestamp_ms=T0 + number)
    for number in range(12)
]


def make_group(folder: Path, lacking: int = 0, delivered: int = 0) -> list[Member]:
    """Three members, of which the last lacks so many entries at its end. The first knows how many
    messages of level 3 were delivered.
    """
    made = []
    for name in PEERS:
        items = ITEMS[: len(ITEMS) - lacking] if name == PEERS[-1] else ITEMS
        root = folder / name
        offsets = {3: delivered if name == PEERS[0] else 0}
        build_level_store(root, items, commit_log_file_bytes=4096, offsets=offsets)
        made.append(make_member(root, name=name))
    return made


@pytest.fixture
def group(tmp_path: Path) -> list[Path]:
    return [member.root for member in make_group(tmp_path / "group", lacking=4)]


def converted(tmp_path: Path, chosen: Path) -> Path:
    options = options_for(tmp_path, source=chosen, target=tmp_path / "target", now_ms=T0 + 500)
    assert convert(options).total("converted") == len(ITEMS)
    return options.target


def retire_all(
    group: list[Path], target: Path, peers: tuple[str, ...] = PEERS, **more: Any
) -> tuple[RetireReport, ...]:
    return retire_members(group, target, peers=peers, **more)


def offsets_of(root: Path) -> dict[int, int]:
    table = read_config(root, "delayOffset.json")["offsetTable"]
    return {int(level): offset for level, offset in table.items()}


def test_the_member_is_chosen_that_the_group_would_elect(group: list[Path]) -> None:
    chosen = choose_of_group(group[::-1])
    assert isinstance(chosen, ChosenMember)
    assert chosen.store == group[1]  # of two that end alike it is the first that was given
    behind, alike = chosen.others
    assert behind == f"{group[2]} ends at entry 7 of term 1 and lacks the last 4 entries"
    assert alike == f"{group[0]} ends at entry 11 of term 1 as well"


def test_stores_of_no_group_or_of_two_are_not_chosen_from(
    tmp_path: Path, group: list[Path]
) -> None:
    build_level_store(tmp_path / "ordinary", ITEMS)
    with pytest.raises(OptionsError, match="not all of them are members"):
        choose_of_group([*group, tmp_path / "ordinary"])
    build_level_store(tmp_path / "other", [LevelMessage(level=3, body=b"another")])
    make_member(tmp_path / "other", name="n3")
    with pytest.raises(OptionsError, match="not of one group"):
        choose_of_group([*group, tmp_path / "other"])


def test_of_a_real_group_the_member_that_led_is_chosen(tmp_path: Path) -> None:
    members = unpack_group(DLEDGER_49_CRASH, tmp_path)
    chosen = choose_of_group([members[name].root for name in ("n2", "n1", "n0")])
    assert chosen.store == members["n1"].root
    assert "lacks the last 625 entries" in chosen.others[0]


def test_all_members_are_retired_or_planned_to_be(tmp_path: Path, group: list[Path]) -> None:
    target = converted(tmp_path, group[0])
    before = [tree(root) for root in group]
    planned = retire_all(group, target)
    assert [tree(root) for root in group] == before
    assert [report.state for report in planned] == ["planned"] * 3
    done = retire_all(group, target, execute=True)
    assert [(report.source, report.state) for report in done] == [
        (str(root), "done") for root in group
    ]
    assert [offsets_of(root) for root in group] == [{3: 4, 4: 4, 5: 4}] * 3
    assert [len(read_backlog(root)) for root in group] == [0, 0, 0]
    again = retire_all(group, target, execute=True)
    assert [report.state for report in again] == ["nothing to do"] * 3


def test_a_level_that_was_delivered_as_a_whole_moves_in_members_that_do_not_know_it(
    tmp_path: Path,
) -> None:
    group = [member.root for member in make_group(tmp_path / "group", delivered=4)]
    options = options_for(tmp_path, source=group[0], target=tmp_path / "target", now_ms=T0 + 500)
    assert convert(options).total("converted") == len(ITEMS) - 4
    retire_all(group, options.target, execute=True)
    assert [offsets_of(root) for root in group] == [{3: 4, 4: 4, 5: 4}] * 3


def test_levels_that_were_not_converted_stay_as_they_are_in_every_member(tmp_path: Path) -> None:
    """Of level 3 the followers know an older offset, which is theirs to repeat from."""
    group = [member.root for member in make_group(tmp_path / "group", delivered=1)]
    facts = {"source": group[0], "now_ms": T0 + 500}
    options = options_for(tmp_path, **facts, only_levels=(4,))
    assert convert(options).total("converted") == 4
    reports = retire_all(group, options.target, execute=True)
    assert [report.stays for report in reports] == [{3: 3, 5: 4}] * 3
    assert [offsets_of(root) for root in group] == [{3: 1, 4: 4}, {3: 0, 4: 4}, {3: 0, 4: 4}]
    assert [len(read_backlog(root)) for root in group] == [7, 8, 8]
    rest = options_for(tmp_path, **facts, target=tmp_path / "rest", only_levels=(3, 5))
    assert convert(rest).total("converted") == 7
    assert [report.stays for report in retire_all(group, rest.target, execute=True)] == [{}] * 3
    assert [offsets_of(root) for root in group] == [{3: 4, 4: 4, 5: 4}] * 3


def test_a_retired_member_can_be_rolled_back(tmp_path: Path, group: list[Path]) -> None:
    target = converted(tmp_path, group[0])
    retire_all(group, target, execute=True)
    for root in group:
        assert roll_back(StoreRoot(root), execute=True).state == "rolled back"
    assert [len(read_backlog(root)) for root in group] == [12, 12, 8]


@pytest.mark.parametrize("stops_at", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stopped_run_leaves_each_member_as_it_was_or_retired_and_goes_on(
    tmp_path: Path, group: list[Path], monkeypatch: pytest.MonkeyPatch, stops_at: int, when: str
) -> None:
    target = converted(tmp_path, group[0])
    calls = 0

    def stopping(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == stops_at and when == "before":
            raise KeyboardInterrupt
        put_offsets(*given)
        if calls == stops_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(retire_module, "put_offsets", stopping)
        with pytest.raises(KeyboardInterrupt):
            retire_all(group, target, execute=True)
    assert offsets_of(group[0]) == {3: 0} or stops_at == 3  # the converted one is the last
    retire_all(group, target, execute=True)
    assert [offsets_of(root) for root in group] == [{3: 4, 4: 4, 5: 4}] * 3


def refused(group: list[Path], target: Path, words: str, **more: Any) -> None:
    before = [tree(root) for root in group]
    with pytest.raises((OptionsError, PlanError, SourceError), match=words):
        retire_all(group, target, execute=True, **more)
    assert [_without_lock(tree(root)) for root in group] == [_without_lock(each) for each in before]


def _without_lock(files: Any) -> Any:
    return {name: content for name, content in files.items() if str(name) != "lock"}


def test_less_than_all_members_are_not_retired(tmp_path: Path, group: list[Path]) -> None:
    target = converted(tmp_path, group[0])
    refused(group[:2], target, "the group has the members n0, n1, n2")
    refused([*group[:2], group[1]], target, "open in this process|the group has the members")
    with pytest.raises(UnsupportedStoreError, match="Name all members, with --broker-conf"):
        retire(group[0], target)


def test_a_member_with_more_than_the_converted_one_is_not_retired(
    tmp_path: Path, group: list[Path]
) -> None:
    root = group[2]  # four entries short
    options = options_for(tmp_path, source=root, target=tmp_path / "target", now_ms=T0 + 500)
    convert(options)
    refused(group, options.target, "has entries that .*n2 lacks")


def test_a_member_that_went_another_way_is_not_retired(tmp_path: Path) -> None:
    members = make_group(tmp_path / "group", lacking=4)
    last = members[2].entries[-1]
    target = converted(tmp_path, members[0].root)
    members[2].append(members[2].entries[0], index=last.index + 1, term=1)
    refused([member.root for member in members], target, "has entries that")


def test_members_of_which_none_was_converted_are_not_retired(
    tmp_path: Path, group: list[Path]
) -> None:
    target = converted(tmp_path, group[0])
    shutil.rmtree(group[0])
    shutil.copytree(group[1], group[0])
    (group[0] / "dledger-n1").rename(group[0] / "dledger-n0")
    refused(group, target, "none of them is the one")
