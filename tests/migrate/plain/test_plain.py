# SPDX-License-Identifier: Apache-2.0
"""A member's store as an ordinary one: every record and queue as it was, at offsets of its own."""

import shutil
from pathlib import Path

import attrs
import numpy as np
import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.clock import ManualClock
from message_store.base.errors import (
    OptionsError,
    SourceError,
    TargetError,
    UncleanStoreError,
    UnsupportedStoreError,
)
from message_store.format.message import Message
from message_store.interface.delay_store import AfterMs, Pending
from message_store.writing.settings import StoreSettings
from migrate.convert import convert
from migrate.look.pending import pending_messages
from migrate.plain import plain
from migrate.plain.moved_records import MovedRecords
from migrate.plain.plain import make_plain
from tests.independent.dledger_member import Member, make_member
from tests.independent.level_messages import DeliveredCopy, Item, LevelMessage, OrdinaryMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.raw_files import QueueUnit, queue_units, read_config, record_at
from tests.independent.raw_records import RawRecord
from tests.independent.real_stores import (
    DLEDGER_49_CLEAN,
    DLEDGER_49_CRASH,
    DLEDGER_49_UPGRADED,
    DLEDGER_55_CLEAN,
    RealStore,
    unpack_group,
)
from tests.independent.variant_b_log import read_commit_log
from tests.migrate.conversions import broker_files, options_for
from timer_wheel.wheel.store import WheelStore

FILE_BYTES = 4096
FIRST = LevelMessage(level=3, body=b"first")
LATER = T0 + 10_010
ITEMS: list[Item] = [
    FIRST,
    LevelMessage(level=5, body=b"x" * 700),
    OrdinaryMessage(body=b"y" * 900),
    DeliveredCopy(of=FIRST),
    *(
        LevelMessage(level=4 + n % 3, body=b"%d" % n * 300, store_timestamp_ms=LATER + n)
        for n in range(12)
    ),
]
PENDING = 13


def build(root: Path, **more: object) -> Path:
    build_level_store(
        root,
        ITEMS,
        offsets={3: 1},
        commit_log_file_bytes=FILE_BYTES,
        **more,  # type: ignore[arg-type]
    )
    return root


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return make_member(build(tmp_path / "store"))


def files(root: Path, directory: str) -> dict[str, bytes]:
    paths = (path for path in (root / directory).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("from_offset", [0, FILE_BYTES])
def test_an_ordinary_store_that_became_a_members_comes_back_byte_for_byte(
    tmp_path: Path, from_offset: int
) -> None:
    ordinary = build(tmp_path / "ordinary")
    made = make_member(build(tmp_path / "member"), from_offset=from_offset)
    report = make_plain(made.root, tmp_path / "plain")
    assert (report.records, report.recovered_entries) == (len(ITEMS), 0)
    for directory in ("commitlog", "consumequeue"):
        assert files(tmp_path / "plain", directory) == files(ordinary, directory)
    assert not (tmp_path / "plain" / "abort").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_plain_store_is_converted_to_the_same_bytes(member: Member, tmp_path: Path) -> None:
    make_plain(member.root, tmp_path / "plain")
    targets = []
    for name, source in (("one", member.root), ("two", tmp_path / "plain")):
        options = options_for(tmp_path, source=source, target=tmp_path / name)
        assert convert(options).total("converted") == PENDING
        targets.append(broker_files(options.target))
    assert targets[0] == targets[1]


def test_entries_that_no_queue_had_are_added(tmp_path: Path) -> None:
    member = make_member(build(tmp_path / "store", abort=True, indexed_items=10))
    with pytest.raises(UncleanStoreError):
        make_plain(member.root, tmp_path / "plain")
    report = make_plain(member.root, tmp_path / "plain", after_crash=True)
    assert report.recovered_entries == len(ITEMS) - 10
    backlog = read_backlog(tmp_path / "plain")
    assert (backlog.total("pending"), backlog.total("not_in_queue")) == (PENDING, 0)


# --- real members ---------------------------------------------------------------------------------


def same_but_for_places(record: RawRecord) -> RawRecord:
    return attrs.evolve(record, commit_log_offset=0, prepared_transaction_offset=0)


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "member_id"),
    [
        (DLEDGER_49_CLEAN, "n2"),
        (DLEDGER_49_CRASH, "n2"),
        (DLEDGER_49_UPGRADED, "n0"),
        (DLEDGER_55_CLEAN, "n0"),
    ],
)
def test_every_queue_of_a_real_member_leads_to_the_same_records(
    tmp_path: Path, name: str, member_id: str
) -> None:
    store = unpack_group(name, tmp_path / "group")[member_id]
    target = tmp_path / "plain"
    report = make_plain(store.root, target, after_crash=store.is_crashed)
    problems: list[str] = []
    records = read_commit_log(target / "commitlog", store.commit_log_file_bytes, problems)
    assert problems == []
    assert len(records) == report.records
    halves = 0  # how many records name one
    for queue in sorted((store.root / "consumequeue").glob("*/*")):
        ours = queue_units(target / queue.relative_to(store.root))
        theirs = queue_units(queue)
        assert len(ours) - len(theirs) in (0, 1)  # a killed follower's last entry was in no queue
        for one, two in zip(ours, theirs, strict=False):
            halves += compare(store, target, one, two)
    assert halves > 0
    pending = read_backlog(store.root, after_crash=store.is_crashed)
    assert len(read_backlog(target)) == len(pending)
    assert read_backlog(target).total("already_delivered") == 0  # its offsets are not behind
    for config in ("topics.json", "consumerOffset.json", "subscriptionGroup.json"):
        assert read_config(target, config) == read_config(store.root, config)


def compare(store: RealStore, target: Path, one: QueueUnit, two: QueueUnit) -> bool:
    """Hold one entry against the member's; True where its record names a half message."""
    file_bytes = store.commit_log_file_bytes
    assert (one.size_bytes, one.tags_code) == (two.size_bytes, two.tags_code)
    ours = record_at(target / "commitlog", file_bytes, one.commit_log_offset)
    theirs = record_at(store.log_at(two.commit_log_offset), file_bytes, two.commit_log_offset)
    assert ours.commit_log_offset == one.commit_log_offset
    assert same_but_for_places(ours) == same_but_for_places(theirs)
    named = theirs.prepared_transaction_offset
    if not named:
        assert ours.prepared_transaction_offset == 0
        return False
    half = record_at(target / "commitlog", file_bytes, ours.prepared_transaction_offset)
    was = record_at(store.log_at(named), file_bytes, named)
    assert same_but_for_places(half) == same_but_for_places(was)
    return True


# --- where records went ---------------------------------------------------------------------------


def test_places_and_names_of_moved_records() -> None:
    moved = MovedRecords()
    assert moved.places(np.array([5])).tolist() == [-1]
    moved.add(np.array([48, 248]), np.array([100, 50]), np.array([0, 100]))
    asked = np.array([47, 48, 147, 148, 248, 297, 298])
    assert moved.places(asked).tolist() == [-1, 0, 99, -1, 100, 149, -1]
    assert moved.named(np.array([0, 248, ~248, 7, ~7])).tolist() == [0, 100, ~100, 7, ~7]


# --- what is refused, and what is left then -------------------------------------------------------


def assert_nothing_is_left(tmp_path: Path) -> None:
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_damaged_record_is_refused(member: Member, tmp_path: Path) -> None:
    member.flip(member.entries[2].record_offset + 100)
    with pytest.raises(SourceError, match="no record begins at log offset"):
        make_plain(member.root, tmp_path / "plain")
    assert_nothing_is_left(tmp_path)


def test_an_entry_that_leads_to_no_record_is_refused(member: Member, tmp_path: Path) -> None:
    queue = next((member.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "4").iterdir())
    content = bytearray(queue.read_bytes())
    content[5] = 0x7F
    queue.write_bytes(content)
    with pytest.raises(SourceError, match="entry 0 leads to no record"):
        make_plain(member.root, tmp_path / "plain")
    assert_nothing_is_left(tmp_path)


def test_an_ordinary_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="is an ordinary store already"):
        make_plain(build(tmp_path / "store"), tmp_path / "plain")
    assert_nothing_is_left(tmp_path)


def test_a_store_with_batch_queues_is_refused(member: Member, tmp_path: Path) -> None:
    queue = member.root / "batchconsumequeue" / "T" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020d}").write_bytes(b"\1" * 2000)
    with pytest.raises(UnsupportedStoreError, match="convert the levels into a fresh store"):
        make_plain(member.root, tmp_path / "plain")
    assert_nothing_is_left(tmp_path)


# --- the wheel ------------------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A used wheel: some messages were delivered, others wait, one was cancelled."""
    clock, settings = ManualClock(T0), StoreSettings(commit_log_file_bytes=FILE_BYTES)
    with WheelStore.open(tmp_path / "wheel", clock=clock, settings=settings) as store:
        handles = [
            store.schedule(Message("orders", b"%d" % n * 90), AfterMs(1_000 * n + 1))
            for n in range(30)
        ]
        store.advance(T0 + 12_000)
        store.cancel(handles[20])
    return tmp_path / "wheel"


def test_a_used_wheel_comes_back_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    member = make_member(Path(shutil.copytree(wheel, tmp_path / "store")))
    make_plain(member.root, tmp_path / "plain")
    for directory in ("commitlog", "consumequeue", "timerlog"):
        assert files(tmp_path / "plain", directory) == files(wheel, directory)
    assert (tmp_path / "plain" / "timerwheel").read_bytes() == (wheel / "timerwheel").read_bytes()
    assert pending_bodies(tmp_path / "plain") == pending_bodies(wheel) != []
    clock = ManualClock(T0 + 60_000)
    with WheelStore.open(tmp_path / "plain", clock=clock) as store:
        assert len(store.advance(T0 + 60_000)) == len(pending_bodies(wheel))


def pending_bodies(root: Path) -> list[tuple[int, str | None]]:
    found = list(pending_messages(root, now_ms=T0 + 12_000))
    return [(each.due_ms, each.unique_key) for each in found if isinstance(each, Pending)]


def test_a_unit_of_the_wheel_that_leads_to_no_record_is_refused(
    wheel: Path, tmp_path: Path
) -> None:
    member = make_member(Path(shutil.copytree(wheel, tmp_path / "store")))
    [log] = (member.root / "timerlog").iterdir()
    with log.open("r+b") as file:
        file.seek(52 + 28)
        file.write(b"\0\0\0\1")
    with pytest.raises(SourceError, match="the unit at 52 leads to no record"):
        make_plain(member.root, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_a_target_that_is_not_empty_or_around_the_source_is_refused(
    member: Member, tmp_path: Path
) -> None:
    for target in (tmp_path, member.root / "plain", member.root):
        with pytest.raises(TargetError):
            make_plain(member.root, target)
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "step", ["_move_queue", "_move_timers", "_copy_small_files", "sync_tree", "take_place"]
)
def test_what_is_stopped_before_its_end_leaves_no_target(
    member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(plain, step, stop)
        with pytest.raises(KeyboardInterrupt):
            make_plain(member.root, tmp_path / "plain")
    assert_nothing_is_left(tmp_path)
    (tmp_path / "plain").mkdir()
    make_plain(member.root, tmp_path / "plain")
    assert len(read_backlog(tmp_path / "plain")) == PENDING


@pytest.mark.parametrize("how", ["where we stand", "behind a link"])
def test_an_empty_directory_is_a_place_whatever_it_is_called(
    member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    place, name = tmp_path / "empty", Path()
    place.mkdir()
    if how == "where we stand":
        monkeypatch.chdir(place)
    else:
        name = tmp_path / "link"
        name.symlink_to("empty")
    make_plain(member.root, name)
    make_plain(member.root, tmp_path / "usual")
    assert broker_files(place) == broker_files(tmp_path / "usual")
