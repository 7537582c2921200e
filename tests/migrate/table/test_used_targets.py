# SPDX-License-Identifier: Apache-2.0
"""A target that came to life before it was finished: the stub was taken away, a broker was started
and works there. The same command again is refused, and every byte stays as it was.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from message_store.base.errors import SourceError, TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import check_request, convert, convert_merged
from migrate.fleet import FAILED, Fleet
from migrate.settings import ConvertOptions
from migrate.table.wheel_commit import begin_write, commit_rows
from tests.independent.raw_files import WHEEL_BYTES
from tests.migrate.conversions import broker_files
from tests.migrate.stopped_conversions import MARKER, made, made_merge, never_stopped
from tests.migrate.stops import Stopped, stopping_before
from tests.migrate.written_wheels import assert_holds, messages, run_for, staged, write
from timer_wheel.wheel.store import WheelStore


def come_to_life(target: Path) -> None:
    """What a broker leaves that works in a store without our wheel."""
    wheel = target / "timerwheel"
    if not wheel.exists() or wheel.stat().st_size != WHEEL_BYTES:
        wheel.unlink(missing_ok=True)
        with wheel.open("wb") as file:
            file.truncate(WHEEL_BYTES)
    for name in ("commitlog", "consumequeue/orders/0"):
        (target / name).mkdir(parents=True, exist_ok=True)
        with (target / name / f"{0:020d}").open("ab") as file:
            file.write(b"what a broker wrote")
    (target / "config").mkdir(exist_ok=True)
    (target / "config/topics.json").write_text("{}")


def leave_lock(target: Path) -> None:
    (target / "lock").write_bytes(b"lock")


def leave_abort(target: Path) -> None:
    (target / "abort").touch()


def leave_checkpoint(target: Path) -> None:
    (target / "checkpoint").write_bytes(bytes(4096))


TRACES = (leave_lock, leave_abort, leave_checkpoint)


def everything(target: Path) -> dict[str, tuple[str, int]]:
    """Digest and time of every file and directory of a target."""
    return {
        path.relative_to(target).as_posix(): (
            hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.lstat().st_mtime_ns,
        )
        for path in (target, *target.rglob("*"))
    }


def assert_refused(target: Path, command: Callable[[], object], last: str) -> None:
    before = everything(target)
    with pytest.raises(TargetError, match=r"was started here|is not empty|was opened since"):
        command()
    assert everything(target) == before, last


def stop_then_use(
    target: Path, command: Callable[[], object], *, step: int, traces: Sequence[Callable[..., None]]
) -> int:
    """Stop the command before each change of the disk, let a broker work there, and give it again;
    returns how many changes there are.
    """
    uses = itertools.cycle(traces)
    for number in itertools.count(1, step):
        shutil.rmtree(target, ignore_errors=True)
        try:
            with stopping_before(target, number) as done:
                command()
        except Stopped:
            pass
        else:
            return number
        is_begun = (target / "delaywheel/staging").exists()
        is_marked = any((target / "delaywheel").glob("[cw]*n.json"))  # conversion, written
        if is_begun and not is_marked:
            come_to_life(target)
            next(uses)(target)
            assert_refused(target, command, f"stopped after {number} changes, {done[-1:]}")
    raise AssertionError


STEPS = [7, pytest.param(1, marks=pytest.mark.nightly)]


@pytest.mark.check
@pytest.mark.parametrize("step", STEPS)
def test_a_conversion_again_destroys_nothing_of_a_store_that_came_to_life(
    tmp_path: Path, step: int
) -> None:
    options = made(tmp_path)
    assert stop_then_use(options.target, lambda: convert(options), step=step, traces=TRACES) > 80


@pytest.mark.check
@pytest.mark.parametrize("step", STEPS)
def test_a_merge_again_destroys_nothing_of_a_store_that_came_to_life(
    tmp_path: Path, step: int
) -> None:
    members = made_merge(tmp_path, 2)
    target = members[0].target
    assert stop_then_use(target, lambda: convert_merged(members), step=step, traces=TRACES) > 80


@pytest.mark.check
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_write_again_destroys_nothing_of_a_store_that_came_to_life(
    tmp_path: Path, step: int, overwrite: bool
) -> None:
    target, names = tmp_path / "reminders", (f"run{number}" for number in itertools.count())

    def command() -> None:
        write(target, [messages(5), messages(4, 5)], overwrite=overwrite, name=next(names))

    assert stop_then_use(target, command, step=step, traces=TRACES) > 20


@pytest.mark.check
@pytest.mark.parametrize("step", STEPS)
def test_a_store_that_was_being_replaced_and_came_to_life_is_not_replaced(
    tmp_path: Path, step: int
) -> None:
    old, target = tmp_path / "old", tmp_path / "reminders"
    write(old, [messages(9)])
    names = (f"run{number}" for number in itertools.count())

    def command() -> None:
        write(target, [messages(5)], overwrite=True, name=next(names))

    for number in itertools.count(1, step):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(old, target)
        try:
            with stopping_before(target, number) as done:
                command()
        except Stopped:
            come_to_life(target)
            TRACES[number % len(TRACES)](target)
            assert_refused(target, command, f"stopped after {number} changes, {done[-1:]}")
        else:
            break
    assert number > 20


@pytest.mark.check
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_write_that_was_stopped_while_it_replaced_a_store_can_be_done_again(
    tmp_path: Path, step: int
) -> None:
    old, target = tmp_path / "old", tmp_path / "reminders"
    write(old, [messages(9)])
    write(tmp_path / "right", [messages(5)])
    for number in itertools.count(1, step):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(old, target)
        try:
            with stopping_before(target, number):
                write(target, [messages(5)], overwrite=True)
        except Stopped:
            write(target, [messages(5)], overwrite=True, name="again")
        else:
            break
        assert broker_files(target) == broker_files(tmp_path / "right"), number
    assert number > 20


def stop_writing(options: ConvertOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a conversion whose files are still to be written."""

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("migrate.convert.write_logs", stop)
        with pytest.raises(Stopped):
            convert(options)


@pytest.mark.parametrize("trace", TRACES)
def test_a_fleet_leaves_a_store_alone_that_came_to_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Callable[[Path], None]
) -> None:
    options = made(tmp_path)
    stop_writing(options, monkeypatch)
    come_to_life(options.target)
    trace(options.target)
    before = everything(options.target)
    fleet = Fleet([options])
    fleet.examine()
    fleet.convert(None, lambda *_: None)
    [entry] = fleet.entries
    assert entry.state == FAILED
    assert "was started here" in str(entry.error)
    assert_refused(options.target, lambda: check_request(options), "a glance")
    assert everything(options.target) == before


def test_a_store_in_which_nobody_left_a_trace_is_known_by_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = made(tmp_path)
    stop_writing(options, monkeypatch)
    come_to_life(options.target)
    assert_refused(options.target, lambda: convert(options), "no trace")


def test_a_store_that_comes_to_life_while_it_is_written_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = made(tmp_path)
    target = options.target
    before: list[dict[str, str]] = []

    def use_when_written(stage: str, _done: int, _total: int) -> None:
        if stage == "seal" and not before:
            come_to_life(target)
            leave_lock(target)
            before.append(broker_files(target))

    with pytest.raises(TargetError, match="was started here"):
        convert(options, progress=use_when_written)
    assert broker_files(target) == before[0]


def test_a_store_that_comes_to_life_while_rows_are_staged_is_not_published(tmp_path: Path) -> None:
    run = run_for(tmp_path / "reminders")
    begin_write(run, overwrite=False)
    rows = staged(run, [messages(5)])
    come_to_life(run.target)
    leave_abort(run.target)
    assert_refused(run.target, lambda: commit_rows(run, rows, overwrite=False), "staged")


def test_a_target_whose_lock_is_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = made(tmp_path)
    stop_writing(options, monkeypatch)
    lock = StoreRoot(options.target).take_lock()
    try:
        before = everything(options.target)
        for command in (lambda: convert(options), lambda: check_request(options)):
            with pytest.raises(Exception, match="the store is open in this process"):
                command()
        assert everything(options.target) == before
    finally:
        lock.release()


def test_a_stub_that_was_taken_away_alone_is_put_back(tmp_path: Path) -> None:
    options = made(tmp_path)
    right = never_stopped(tmp_path)
    with pytest.raises(Stopped), stopping_before(options.target, 20):
        convert(options)
    os.unlink(options.target / "timerwheel")
    convert(options)
    assert broker_files(options.target) == right
    assert (options.target / MARKER).exists()


def test_an_engine_does_not_open_what_is_half_published_and_leaves_no_trace(tmp_path: Path) -> None:
    target = tmp_path / "reminders"
    real = os.replace

    def stop_at_the_wheel(one: Path, other: Path) -> None:
        if other == target / "timerwheel" and (target / "commitlog").exists():
            raise Stopped
        real(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", stop_at_the_wheel)
        with pytest.raises(Stopped):
            write(target, [messages(5)])
    before = everything(target)
    with pytest.raises(SourceError, match="unfinished"):
        WheelStore.open(target)
    assert everything(target) == before
    write(target, [messages(5)], name="again")
    assert_holds(target, messages(5))
