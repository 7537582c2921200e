# SPDX-License-Identifier: Apache-2.0
"""A source that is retired: its offsets move past what its target has, and past nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.clock import ManualClock
from message_store.base.errors import (
    FormatError,
    OptionsError,
    PlanError,
    SourceError,
    StoreLockedError,
    UncleanStoreError,
)
from message_store.files.store_root import StoreRoot
from message_store.format.message import Message
from message_store.interface.delay_store import AfterMs
from message_store.writing.settings import StoreSettings
from migrate.changes import retire as retire_module
from migrate.changes.note import put_offsets
from migrate.changes.retire import LeftBehindError, retire
from migrate.changes.undo import roll_back
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.report import whole_target
from migrate.report.finished_target import finished_before
from migrate.settings import ENGINES, HIERARCHY, TargetSettings
from migrate.verify.verify import verify
from migrate.write.publishing import UNFINISHED_WHEEL
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store
from tests.independent.raw_files import read_config
from tests.independent.real_stores import LEVELS_49_CLEAN, LEVELS_49_CRASH, unpack
from tests.migrate.conversions import SMALL, options_for
from tests.migrate.in_place_stores import do, tree
from timer_wheel.hierarchy.store import HierarchicalWheelStore
from timer_wheel.wheel.store import WheelStore

NOW_MS = T0 + 500
FIRST = LevelMessage(level=3, body=b"delivered before")
ITEMS = [
    FIRST,
    *(LevelMessage(level=number % 3 + 3, body=bytes(number + 1)) for number in range(9)),
    LevelMessage(level=5, topic="TopicB"),
    LevelMessage(level=18, topic="TopicB"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "source", ITEMS, offsets={3: 1})
    return tmp_path / "source"


def converted(source: Path, name: str = "target", **more: Any) -> Path:
    target = source.parent / name
    convert(options_for(source.parent, source=source, target=target, now_ms=NOW_MS, **more))
    return target


def offsets_of(source: Path) -> dict[int, int]:
    table = read_config(source, "delayOffset.json")["offsetTable"]
    assert table == read_config(source, "delayOffset.json.bak")["offsetTable"]
    return {int(level): offset for level, offset in table.items()}


def pending_of(source: Path) -> int:
    return len(read_backlog(source, after_crash=True))


def test_a_plan_writes_nothing_and_names_every_level(source: Path) -> None:
    target = converted(source)
    before = tree(source)
    report = retire(source, target)
    assert tree(source) == before
    assert not (source / "delaywheel").exists()
    assert (report.state, report.converted) == ("planned", 11)
    assert report.offsets == {3: 4, 4: 3, 5: 4, 18: 1}


def test_nothing_is_pending_afterwards_and_nothing_but_the_offsets_has_changed(
    source: Path,
) -> None:
    target = converted(source)
    before = tree(source)
    report = retire(source, target, execute=True)
    assert offsets_of(source) == report.offsets
    assert pending_of(source) == 0
    after = tree(source)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"config/delayOffset.json", "config/delayOffset.json.bak"}
    backup = Path(str(report.backup))
    assert backup.parent == source / "delaywheel"
    assert (backup / "config/delayOffset.json").stat().st_mode & 0o777 == 0o600


def test_twice_is_once(source: Path) -> None:
    target = converted(source)
    retire(source, target, execute=True)
    before = tree(source)
    again = retire(source, target, execute=True)
    assert (again.state, again.levels) == ("nothing to do", ())
    assert tree(source) == before


def test_it_can_be_rolled_back(source: Path) -> None:
    before = tree(source)
    retire(source, converted(source), execute=True)
    assert roll_back(StoreRoot(source)).state == "planned"
    assert roll_back(StoreRoot(source), execute=True).kind == "retire"
    assert tree(source) == before
    assert pending_of(source) == 11


def test_a_rollback_says_that_the_target_may_have_delivered_what_waits_again(source: Path) -> None:
    target = converted(source)
    retire(source, target, execute=True)
    assert roll_back(StoreRoot(source)).warnings == ()
    WheelStore.open(target, clock=ManualClock(NOW_MS)).close()
    [told] = roll_back(StoreRoot(source)).warnings
    assert told.startswith(f"{target}: a broker or an engine was started there (checkpoint")
    target.rename(target.with_name("elsewhere"))
    [told] = roll_back(StoreRoot(source), execute=True).warnings
    assert "restored from it" in told
    assert told.startswith(f"{target}: is not there")


def test_levels_that_were_not_converted_stay(source: Path) -> None:
    target = converted(source, only_levels=[4, 18])
    report = retire(source, target, execute=True)
    assert offsets_of(source) == {3: 1, 4: 3, 18: 1}
    assert report.stays == {3: 3, 5: 4}
    assert pending_of(source) == 7


def test_several_targets_of_one_source(source: Path) -> None:
    targets = [converted(source, f"level-{level}", only_levels=[level]) for level in (3, 4, 5, 18)]
    before = tree(source)
    for target in targets:
        retire(source, target, execute=True)
    assert pending_of(source) == 0
    for _target in targets:
        roll_back(StoreRoot(source), execute=True)
    assert tree(source) == before


def test_messages_between_those_converted_forbid_it(source: Path) -> None:
    target = converted(source, only_topics=["TopicB"])
    before = tree(source)
    for execute in (False, True):
        with pytest.raises(LeftBehindError, match=r"level 5: 3 of its messages were left out"):
            retire(source, target, execute=execute)
    assert tree(source) == before


def test_a_level_of_one_topic_alone_may_move(tmp_path: Path) -> None:
    items = [LevelMessage(level=4), LevelMessage(level=18, topic="TopicB")]
    build_level_store(tmp_path / "source", items)
    target = converted(tmp_path / "source", only_topics=["TopicB"])
    report = retire(tmp_path / "source", target, execute=True)
    assert (report.offsets, report.stays) == ({18: 1}, {4: 1})


def test_what_is_kept_aside_is_passed_over_too(tmp_path: Path) -> None:
    bad = LevelMessage(level=3, without=["REAL_TOPIC"])
    build_level_store(tmp_path / "source", [bad, LevelMessage(level=3)])
    target = converted(tmp_path / "source", on_bad_record="quarantine")
    [level] = retire(tmp_path / "source", target, execute=True).levels
    assert (level.converted, level.quarantined, level.to_offset) == (1, 1, 2)


# --- refusals -------------------------------------------------------------------------------------


def test_the_target_of_another_store_is_refused(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    build_level_store(other, ITEMS, offsets={3: 1})
    target = converted(other, "target-of-other")
    before = tree(source)
    with pytest.raises(PlanError, match="its log is not the one that"):
        retire(source, target, execute=True)
    assert tree(source) == before


def test_another_store_of_the_same_counts_and_lengths_is_not_told_to_take_the_times(
    source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    items = [attrs.evolve(each, body=b"x" * len(each.body)) for each in ITEMS]
    build_level_store(other, items, offsets={3: 1})
    target = converted(source)
    assert [path.stat().st_size for path in (other / "commitlog").iterdir()] == [
        path.stat().st_size for path in (source / "commitlog").iterdir()
    ]
    with pytest.raises(PlanError, match=r"another store \(1 of its files begins with") as refused:
        retire(other, target)
    assert "touch" not in str(refused.value)


def test_a_source_whose_log_has_changed_is_refused(source: Path) -> None:
    target = converted(source)
    [log] = (source / "commitlog").iterdir()
    os.utime(log, ns=(1, 1))
    with pytest.raises(PlanError, match="a broker was started on it since"):
        retire(source, target, execute=True)


def test_a_copy_that_lost_its_times_is_told_how_to_get_them_back(
    source: Path, tmp_path: Path
) -> None:
    target = converted(source)
    copy = tmp_path / "a copy"
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    with pytest.raises(PlanError, match="a copy without its times") as refused:
        retire(copy, target)
    commands = [line for line in str(refused.value).splitlines() if line.startswith("  touch")]
    assert len(commands) == len(list((copy / "commitlog").iterdir()))
    subprocess.run("\n".join(commands), shell=True, check=True)
    assert retire(copy, target, execute=True).state == "done"


def test_a_source_that_has_delivered_since_is_refused(source: Path) -> None:
    target = converted(source)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (source / "config" / name).write_bytes(b'{\n\t"offsetTable":{3:2\n\t}\n}')
    with pytest.raises(PlanError, match="level 3: from_offset is 2, and was 1"):
        retire(source, target, execute=True)


def test_a_source_on_which_a_broker_crashed_since_is_refused(source: Path) -> None:
    target = converted(source)
    (source / "abort").touch()
    with pytest.raises(UncleanStoreError):
        retire(source, target, execute=True)


def test_an_unfinished_target_is_refused(source: Path) -> None:
    target = converted(source)
    (target / "delaywheel/staging").mkdir()
    (target / "delaywheel/conversion.json").unlink()
    with pytest.raises(SourceError, match="an unfinished conversion"):
        retire(source, target, execute=True)


def test_what_is_no_target_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="given twice"):
        retire(source, source, execute=True)
    with pytest.raises(SourceError):
        retire(source, tmp_path / "nothing", execute=True)
    build_level_store(tmp_path / "other", ITEMS)
    with pytest.raises(SourceError, match="not the target of a finished conversion"):
        retire(source, tmp_path / "other", execute=True)


def test_a_report_that_was_damaged_is_refused(source: Path) -> None:
    target = converted(source)
    path = target / "delaywheel/conversion.json"
    facts = json.loads(path.read_text())
    del facts["levels"][0]["converted"]
    path.write_text(json.dumps(facts))
    before = tree(source)
    with pytest.raises(FormatError, match="not the report of a conversion"):
        retire(source, target, execute=True)
    assert tree(source) == before


def test_a_store_that_was_changed_in_place_is_not_the_source_any_more(source: Path) -> None:
    target = converted(source)
    do(source, NOW_MS)
    with pytest.raises(PlanError, match="this store was converted in place") as refused:
        retire(source, target, execute=True)
    assert "touch" not in str(refused.value)


def test_a_store_whose_change_was_taken_back_only_has_other_times(source: Path) -> None:
    target = converted(source)
    do(source, NOW_MS)
    roll_back(StoreRoot(source), execute=True)
    with pytest.raises(PlanError, match="  touch -d @") as refused:
        retire(source, target, execute=True)
    assert "in place" not in str(refused.value)


# --- stops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [LEVELS_49_CLEAN, LEVELS_49_CRASH])
def test_a_real_source_is_retired(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "source")
    target = tmp_path / "target"
    crashed = store.is_crashed
    convert(
        options_for(
            tmp_path, source=store.root, target=target, now_ms=store.stopped_ms,
            after_crash=crashed, settings=TargetSettings(),
        )
    )  # fmt: skip
    report = retire(store.root, target, execute=True)
    assert report.converted == len(store.pending_in_levels())
    assert pending_of(store.root) == 0
    assert (store.root / "abort").exists() == crashed


# --- a target that is not whole -------------------------------------------------------------------


def every_file(target: Path) -> list[Path]:
    """The files of a target that hold messages or lead to them."""
    places = ("commitlog", "consumequeue", "timerlog", "timerwheel")
    return [
        path
        for place in places
        for path in (target / place, *sorted((target / place).rglob("*")))
        if path.is_file()
    ]


def gone(path: Path) -> None:
    path.unlink()


def zeros(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(bytes(size))


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [gone, zeros, halved])
@pytest.mark.parametrize("to", ENGINES)
def test_a_target_that_lost_any_of_its_files_retires_nothing(
    source: Path, harm: Callable[[Path], None], to: str
) -> None:
    target = converted(source, to=to)
    (source / "lock").unlink()  # a copy has none, and none is made before all is looked at
    before = tree(source)
    kept = target.parent / "kept"
    shutil.copytree(target, kept)
    harmed = 0
    for path in every_file(target):
        if path.name == "timerwheel" and (to == HIERARCHY or harm is zeros):
            continue  # what stands there keeps brokers away; slots are what verify looks at
        harm(path)
        harmed += 1
        for execute in (False, True):
            with pytest.raises(SourceError, match="does not hold what its report says"):
                retire(source, target, execute=execute)
        assert tree(source) == before, path
        shutil.rmtree(target)
        shutil.copytree(kept, target)
    assert harmed >= 2
    assert retire(source, target, execute=True).state == "done"


@pytest.mark.parametrize("name", ["timerlog", "consumequeue", "timerwheel", "config/timercheck"])
def test_what_is_gone_of_a_target_is_said_by_all_that_judge_it(source: Path, name: str) -> None:
    target = converted(source)
    path = target / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SourceError, match="does not hold what its report says"):
        retire(source, target)
    with pytest.raises(SourceError, match="does not hold what its report says"):
        finished_before(options_for(source.parent, source=source, target=target, now_ms=NOW_MS))
    assert not check_store(target, CheckOptions(now_ms=NOW_MS)).is_healthy
    assert not verify(source, target, spark=None).is_clean


@pytest.mark.parametrize("names", [("commitlog", "timerlog", "consumequeue"), ("commitlog",)])
def test_a_target_without_its_log_retires_nothing(source: Path, names: Sequence[str]) -> None:
    target = converted(source)
    for name in names:
        shutil.rmtree(target / name)
    (target / "commitlog").mkdir()
    before = tree(source)
    with pytest.raises(SourceError, match="does not hold what its report says"):
        retire(source, target, execute=True)
    assert tree(source) == before


def test_a_target_whose_wheel_is_the_stub_retires_nothing(source: Path) -> None:
    target = converted(source)
    (target / "timerwheel").write_bytes(UNFINISHED_WHEEL)
    with pytest.raises(SourceError, match="no wheel is there"):
        retire(source, target, execute=True)


def test_a_target_without_its_index_retires_nothing(source: Path) -> None:
    target = converted(source, to=HIERARCHY)
    shutil.rmtree(target / "delaywheel/hierarchy/index")
    with pytest.raises(SourceError, match="no index is there"):
        retire(source, target, execute=True)


def test_a_target_that_holds_more_without_having_been_opened_retires_nothing(source: Path) -> None:
    target = converted(source)
    path = target / "delaywheel/conversion.json"
    facts = json.loads(path.read_text())
    facts["converted"] -= 1
    path.write_text(json.dumps(facts))
    with pytest.raises(SourceError, match="holds more messages than"):
        retire(source, target, execute=True)


@pytest.mark.parametrize("deliver", [False, True])
def test_a_target_that_was_opened_and_took_more_retires_its_source(
    source: Path, deliver: bool
) -> None:
    target = converted(source)
    clock = ManualClock(NOW_MS)
    settings = StoreSettings(
        commit_log_file_bytes=SMALL.commit_log_file_bytes, queue_file_bytes=SMALL.queue_file_bytes
    )
    with WheelStore.open(target, clock=clock, settings=settings) as store:
        store.schedule(Message(topic="TopicC", body=b"more"), AfterMs(5_000))
        if deliver:
            clock.tick(60_000)
            assert store.advance(clock.now_ms())
    assert retire(source, target, execute=True).state == "done"
    assert pending_of(source) == 0


def test_an_empty_conversion_retires_nothing_and_is_right(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [FIRST], offsets={3: 1})
    target = converted(tmp_path / "source")
    assert retire(tmp_path / "source", target, execute=True).state == "nothing to do"


# --- every entry of the target's queue ------------------------------------------------------------


def queue_file(target: Path, entry: int) -> tuple[Path, int]:
    """The file of the timer queue that holds an entry, and the entry's position in it."""
    files, position = divmod(entry * 20, SMALL.queue_file_bytes)
    name = f"{files * SMALL.queue_file_bytes:020d}"
    return target / "consumequeue/rmq_sys_wheel_timer/0" / name, position


def change_entry(target: Path, entry: int, change: Callable[[int, int], tuple[int, int]]) -> Path:
    path, position = queue_file(target, entry)
    data = bytearray(path.read_bytes())
    found = struct.unpack_from(">qi", data, position)
    struct.pack_into(">qi", data, position, *change(*found))
    path.write_bytes(data)
    return path


DAMAGED: dict[str, tuple[Callable[[int, int], tuple[int, int]], str]] = {
    "a hole": (lambda _offset, _size: (0, 0), "there is no entry 5"),
    "no length": (lambda offset, _size: (offset, -1), "there is no entry 5"),
    "far": (lambda _offset, size: (1 << 40, size), "entry 5 leads out of the commit log's"),
    "farthest": (lambda _offset, size: (2**63 - 1, size), "entry 5 leads out of the commit log's"),
    "long": (lambda offset, _size: (offset, 2**31 - 1), "entry 5 leads out of the commit log's"),
    "negative": (lambda _offset, size: (-size, size), "entry 5 leads out of the commit log's"),
    "back": (lambda _offset, size: (0, size), "entry 5 does not lead behind the one before it"),
    "overlaps": (lambda offset, size: (offset - 1, size), "entry 5 does not lead behind"),
    "overlapped": (lambda offset, size: (offset, size + 1), "entry 6 does not lead behind"),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("piece", [20, 1 << 20])
def test_a_damaged_entry_amid_the_target_s_queue_is_named_and_retires_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch, damage: str, piece: int
) -> None:
    change, problem = DAMAGED[damage]
    monkeypatch.setattr(whole_target, "_PIECE_BYTES", piece)
    target = converted(source)
    path = change_entry(target, 5, change)
    before = tree(source)
    for execute in (False, True):
        with pytest.raises(SourceError, match=re.escape(f"{path.parent}/")) as refused:
            retire(source, target, execute=execute)
        assert problem in str(refused.value)
    assert tree(source) == before


def test_an_entry_that_ends_in_the_next_file_of_the_log_retires_nothing(source: Path) -> None:
    target = converted(source, settings=attrs.evolve(SMALL, commit_log_file_bytes=1_000))
    logs = sorted((target / "commitlog").iterdir())
    assert len(logs) > 2
    path = change_entry(target, 2, lambda offset, _size: (offset, 1_000 - offset % 1_000 + 1))
    with pytest.raises(SourceError, match="entry 2 leads out of the commit log's files") as refused:
        retire(source, target, execute=True)
    assert str(path) in str(refused.value)


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def broker_on(store: Path) -> Iterator[None]:
    """Another process holds the store's lock, as a broker that is starting does."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(store / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        yield
        assert broker.stdin is not None
        broker.stdin.close()


def test_a_target_that_somebody_holds_retires_nothing(source: Path) -> None:
    target = converted(source)
    before = tree(source)
    with broker_on(target):
        for execute in (False, True):
            with pytest.raises(StoreLockedError, match=re.escape(str(target / "lock"))):
                retire(source, target, execute=execute)
    assert tree(source) == before
    assert retire(source, target, execute=True).state == "done"


def test_a_broker_that_starts_while_the_target_is_looked_at_is_noticed(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target was never opened, so that there is no lock file to hold."""
    target = converted(source)
    before = tree(source)
    with ExitStack() as running:

        def start_then_look(*arguments: Any) -> None:
            running.enter_context(broker_on(target))
            whole_target.require_whole(*arguments)

        monkeypatch.setattr(retire_module, "require_whole", start_then_look)
        with pytest.raises(StoreLockedError):
            retire(source, target, execute=True)
    assert tree(source) == before


def test_nobody_opens_the_target_while_its_source_is_retired(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = converted(source)
    (target / "lock").touch()
    seen: list[str] = []

    def try_to_open(*arguments: Any) -> None:
        command = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), 6, 1)"
        opened = subprocess.run(
            [sys.executable, "-c", command, str(target / "lock")], capture_output=True, check=False
        )
        seen.append(opened.stderr.decode().splitlines()[-1])
        put_offsets(*arguments)

    monkeypatch.setattr(retire_module, "put_offsets", try_to_open)
    assert retire(source, target, execute=True).state == "done"
    assert seen[0].startswith("BlockingIOError")


# --- other changes of both stores in between ------------------------------------------------------


@pytest.mark.parametrize("to", ["wheel", "hierarchy"])
def test_a_target_that_changed_hands_among_our_engines_retires_its_source(
    source: Path, to: str
) -> None:
    """Each makes its own files anew from the queue and the log."""
    target, now_ms = converted(source, to=to), NOW_MS
    settings = StoreSettings(
        commit_log_file_bytes=SMALL.commit_log_file_bytes, queue_file_bytes=SMALL.queue_file_bytes
    )
    for kind in (HierarchicalWheelStore, WheelStore):
        now_ms += 30_000
        with kind.open(target, clock=ManualClock(now_ms), settings=settings) as store:
            store.advance(now_ms)
    assert retire(source, target, execute=True).state == "done"
    assert pending_of(source) == 0


def test_a_target_of_our_wheel_that_lost_its_timer_log_retires_nothing(source: Path) -> None:
    target = converted(source)
    settings = StoreSettings(
        commit_log_file_bytes=SMALL.commit_log_file_bytes, queue_file_bytes=SMALL.queue_file_bytes
    )
    WheelStore.open(target, clock=ManualClock(NOW_MS), settings=settings).close()
    shutil.rmtree(target / "timerlog")
    with pytest.raises(SourceError, match="timerlog: files are missing"):
        retire(source, target, execute=True)


def test_levels_go_in_place_and_elsewhere_in_any_order(tmp_path: Path) -> None:
    source = tmp_path / "source"
    build_level_store(source, [LevelMessage(level=level) for level in (3, 4, 5, 3, 4, 5)])
    do(source, NOW_MS, only_levels=[3])
    target = converted(source, only_levels=[4], levels_only=True)
    assert retire(source, target, execute=True).state == "done"
    do(source, NOW_MS, only_levels=[5])
    assert pending_of(source) == 0
    states = [roll_back(StoreRoot(source), execute=True).state for _ in range(3)]
    assert states == ["rolled back"] * 3
    assert pending_of(source) == 6
