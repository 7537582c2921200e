# SPDX-License-Identifier: Apache-2.0
"""Members of DLedger groups. A hand-made one is converted to the bytes of an ordinary store; damage
is said or made good. Real ones are in ``test_real_sources``.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.base.errors import SourceError, UnsupportedStoreError
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.reading import entries
from message_store.reading.commit_log import start_of_last_used_file
from message_store.reading.topic_listing import list_topic
from migrate.changes.retire import retire
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.look.inspect import inspect_store
from migrate.look.inspection import StoreInspection
from migrate.settings import ConvertOptions
from migrate.source.members import find_replicas, same_broker
from migrate.verify.verify import verify
from tests.independent.dledger_member import Member, make_member
from tests.independent.level_store_builder import T0
from tests.independent.real_stores import (
    DLEDGER_49_CRASH,
    DLEDGER_49_UPGRADED,
    DLEDGER_GROUPS,
    RealStore,
    unpack_group,
)
from tests.migrate.conversions import broker_files, options_for
from tests.migrate.mixed_store import FILE_BYTES, PENDING, build

Stores = Callable[[str, str], RealStore]


@pytest.fixture(scope="module")
def member_store(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    groups = {
        name: unpack_group(name, tmp_path_factory.mktemp("group") / name) for name in DLEDGER_GROUPS
    }
    return lambda name, member: groups[name][member]


# --- what real members left -----------------------------------------------------------------------


def test_of_a_group_the_member_is_named_that_it_would_elect(member_store: Stores) -> None:
    stores = [member_store(DLEDGER_49_CRASH, member).root for member in ("n2", "n0", "n1")]
    [group] = find_replicas(stores)
    sentence = str(same_broker(stores, group))
    # Of two that end alike it is the first.
    assert f"Convert {stores[1]} only, which the group would elect" in sentence
    assert "it ends at entry 6,861 of term 1" in sentence
    assert f"{stores[0]} ends at entry 6,236 of term 1" in sentence


def test_a_topic_of_a_member_is_read(member_store: Stores) -> None:
    store = member_store(DLEDGER_49_UPGRADED, "n0")
    topic = "PayNotify"
    found = list(list_topic(store.root, topic))
    assert all(isinstance(each, StoredMessage) for each in found)
    states = ("delivered", "normal")
    assert len(found) == sum(e.topic == topic and e.state in states for e in store.truth)


# --- hand-made members ----------------------------------------------------------------------------


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return make_member(build(tmp_path / "store"))


def look(member: Member) -> StoreInspection:
    return inspect_store(member.root, now_ms=T0)


@pytest.mark.parametrize("from_offset", [0, FILE_BYTES])
def test_a_member_is_converted_to_the_same_bytes_as_an_ordinary_store(
    tmp_path: Path, from_offset: int
) -> None:
    ordinary = options_for(tmp_path, source=build(tmp_path / "ordinary"), target=tmp_path / "one")
    report = convert(ordinary)
    assert report.total("converted") == PENDING
    made = make_member(build(tmp_path / "member"), from_offset=from_offset)
    assert len(list(made.data.iterdir())) > 1
    options = options_for(tmp_path, source=made.root, target=tmp_path / "two")
    assert convert(options).total("converted") == PENDING
    assert broker_files(options.target) == broker_files(ordinary.target)
    assert verify(made.root, options.target, spark=None).is_clean


def test_the_copies_of_messages_are_found_though_the_offsets_are_those_of_the_beginning(
    member: Member,
) -> None:
    backlog = read_backlog(member.root)
    assert (backlog.total("pending"), backlog.total("already_delivered")) == (PENDING, 1)
    assert backlog.log_end == member.entries[-1].end
    assert backlog.damaged_places == ()


def cut_queues(root: Path, keep: int) -> None:
    """Leave so many units in each queue: a follower's queues lag behind its log."""
    for path in (root / "consumequeue").glob("*/*/*"):
        path.write_bytes(path.read_bytes()[: keep * 20].ljust(path.stat().st_size, b"\0"))


def test_entries_that_no_queue_knows_yet_are_pending(tmp_path: Path) -> None:
    member = make_member(build(tmp_path / "store", abort=True))
    cut_queues(member.root, 1)
    backlog = read_backlog(member.root, after_crash=True)
    assert backlog.total("pending") == PENDING
    assert backlog.total("not_in_queue") > 0


def test_a_torn_last_entry_that_no_queue_knows_is_not_there(member: Member) -> None:
    last = member.entries[-1]
    new = member.append(last, index=last.index + 1, term=1)
    assert read_backlog(member.root).total("pending") == PENDING + 1
    torn_bytes = new.record_bytes - 87  # in the midst of its body
    member.write(new.end - torn_bytes, bytes(torn_bytes))
    assert read_backlog(member.root).total("pending") == PENDING
    member.write(new.record_offset - 8, bytes(new.record_bytes + 8))
    assert read_backlog(member.root).total("pending") == PENDING


@pytest.mark.parametrize(
    ("index", "term", "counts"),
    [(1, 1, True), (1, 2, True), (1, 0, False), (2, 1, False), (0, 1, False), (-3, 1, False)],
    ids=["next", "new term", "term falls", "gap", "index again", "earlier index"],
)
def test_what_a_new_leader_cut_off_is_not_there(
    member: Member, index: int, term: int, counts: bool
) -> None:
    last = member.entries[-1]
    member.append(last, index=last.index + index, term=term)
    assert read_backlog(member.root).total("pending") == PENDING + counts


def test_a_cut_off_tail_behind_the_new_leaders_entries_is_not_there(member: Member) -> None:
    last = member.entries[-1]
    new = member.append(last, index=last.index + 1, term=2)
    member.append(last, index=last.index + 2, term=1, at=new.end)
    assert read_backlog(member.root).total("pending") == PENDING + 1


@pytest.mark.parametrize(("index", "term", "counts"), [(1, 2, True), (1, 1, False), (2, 2, False)])
def test_the_end_of_a_log_is_looked_for_from_the_last_entry_that_a_queue_knows(
    member: Member, monkeypatch: pytest.MonkeyPatch, index: int, term: int, counts: bool
) -> None:
    """Nothing before it is read: that may be a GiB."""
    known = member.append(member.entries[-1], index=member.entries[-1].index + 1, term=2)
    new = member.append(known, index=known.index + index, term=term, at=known.end)
    monkeypatch.setattr(entries, "_WINDOW_BYTES", known.end - known.offset)
    with open_log(StoreRoot(member.root)) as log:
        start = start_of_last_used_file(log)
        read_into, read_at = log.read_into, list[int]()

        def noting(offset: int, buffer: memoryview) -> int:
            read_at.append(offset)
            return read_into(offset, buffer)

        monkeypatch.setattr(log, "read_into", noting)
        found = entries.find_last_entry(log, start, known_end=known.end)
    assert min(read_at) == known.offset > start
    assert (found.index, found.term) == (known.index + counts, 2)
    assert found.end_offset == (new.end if counts else known.end)


@pytest.mark.parametrize("field", ["magic", "size", "index", "term", "pos", "body size"])
@pytest.mark.parametrize("which", [2, -1])
def test_a_flipped_bit_in_a_head_loses_no_message(member: Member, field: str, which: int) -> None:
    at = {"magic": 3, "size": 7, "index": 15, "term": 23, "pos": 31, "body size": 47}[field]
    member.flip(member.entries[which].offset + at)
    backlog = read_backlog(member.root, whole_log=True)
    assert backlog.total("pending") == PENDING
    assert backlog.total("already_delivered") == 1


def test_a_flipped_bit_in_the_head_of_a_copy_does_not_deliver_it_twice(member: Member) -> None:
    member.flip(member.entries[3].offset + 7)
    assert read_backlog(member.root).total("already_delivered") == 1


def test_a_damaged_record_is_named_and_the_others_are_converted(
    member: Member, tmp_path: Path
) -> None:
    damaged = member.entries[1]
    member.flip(damaged.record_offset + 100)
    options = options_for(
        tmp_path, source=member.root, target=tmp_path / "target", on_bad_record="quarantine"
    )
    report = convert(options)
    assert report.total("converted") == PENDING - 1
    assert [bad.commit_log_offset for bad in report.bad_records] == [damaged.record_offset]
    assert verify(member.root, options.target, spark=None).is_clean


def test_a_missing_file_is_named(member: Member) -> None:
    second = sorted(member.data.iterdir())[1]
    second.unlink()
    seen = look(member)
    assert any("a file is missing between" in problem for problem in seen.problems)
    assert any(str(member.data) in problem for problem in seen.problems)
    assert seen.pending is not None


def test_a_missing_file_at_the_divide_is_named(tmp_path: Path) -> None:
    member = make_member(build(tmp_path / "store"), from_offset=FILE_BYTES)
    sorted(member.data.iterdir())[0].unlink()
    assert any("a file is missing between" in problem for problem in look(member).problems)


def test_a_half_written_file_is_named(member: Member) -> None:
    last = sorted(member.data.iterdir())[-1]
    with last.open("r+b") as file:
        file.truncate(FILE_BYTES // 2)
    assert any("bytes long, not 4,096" in problem for problem in look(member).problems)


# --- what is refused ------------------------------------------------------------------------------


def test_two_members_in_one_store_are_refused(member: Member) -> None:
    shutil.copytree(member.data.parent, member.root / "dledger-n1")
    with pytest.raises(UnsupportedStoreError, match="holds dledger-n0 and dledger-n1"):
        look(member)


def test_a_member_without_any_file_of_its_log_is_refused(member: Member) -> None:
    for path in member.data.iterdir():
        path.unlink()
    with pytest.raises(UnsupportedStoreError, match="no file of the DLedger log"):
        look(member)


def test_a_link_in_place_of_the_log_is_refused(member: Member, tmp_path: Path) -> None:
    member.data.parent.rename(tmp_path / "elsewhere")
    member.data.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="a link in the place of a store's own file"):
        look(member)


def test_a_broker_that_wrote_beside_the_group_is_named(member: Member) -> None:
    log = member.root / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    assert look(member).pending == PENDING
    (log / f"{0:020d}").write_bytes(b"x" * FILE_BYTES)
    with pytest.raises(SourceError, match="without enableDLegerCommitLog"):
        look(member)


def test_a_member_is_not_converted_in_place_nor_retired_nor_opened(
    member: Member, tmp_path: Path
) -> None:
    options = options_for(tmp_path, source=member.root, target=tmp_path / "target")
    convert(options)
    before = sorted(path.name for path in member.root.rglob("*"))
    with pytest.raises(UnsupportedStoreError, match="takes it apart from the others"):
        convert_in_place(ConvertOptions(source=member.root, target=member.root, now_ms=T0))
    with pytest.raises(UnsupportedStoreError, match="Name all members"):
        retire(member.root, options.target)
    with pytest.raises(UnsupportedStoreError, match="no engine can append"):
        LevelStore.open(member.root, clock=ManualClock(T0))
    assert sorted(path.name for path in member.root.rglob("*")) == before
