# SPDX-License-Identifier: Apache-2.0
"""A conversion that is stopped anywhere is no target yet; the same command continues it, to the
same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_store.base.errors import PlanError, TargetError
from migrate.convert import convert
from migrate.settings import ConvertOptions
from tests.independent.raw_files import WHEEL_BYTES
from tests.migrate.conversions import NOW_MS, broker_files, checked_target, options_for
from tests.migrate.stopped_conversions import (
    ITEMS,
    made,
    never_stopped,
    notes_of,
    staged_of,
    stopping_at,
)
from tests.migrate.stops import Stopped

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def options(tmp_path: Path) -> ConvertOptions:
    return made(tmp_path)


@pytest.fixture
def right(tmp_path: Path, options: ConvertOptions) -> dict[str, str]:
    return never_stopped(tmp_path)


def assert_cannot_be_booted(target: Path) -> None:
    """A broker refuses a wheel file that has bytes, but not a wheel's; an empty one it fills."""
    stub = target / "timerwheel"
    published = {path.name for path in target.glob("[!.]*")} - {"delaywheel"}
    if published:
        assert stub.is_file(), published
        assert stub.stat().st_size not in (0, WHEEL_BYTES)


CHILD = """
import sys, time
from pathlib import Path
from migrate.write import log_file as write
from migrate.convert import convert
from tests.migrate.conversions import options_for

def write_slowly(path, content, *, known=write.write_note, **how):
    known(path, content, **how)
    if path.name == "note.json" and b'"number": 1,' in content:
        print("in the middle", flush=True)
        time.sleep(600)

write.write_note = write_slowly
convert(options_for(Path(sys.argv[1]), on_bad_record="quarantine"))
"""


@pytest.mark.check
def test_a_killed_process_is_continued_by_the_next(
    tmp_path: Path, options: ConvertOptions, right: dict[str, str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in the middle\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert sorted(notes_of(options.target)) == [0, 1]
    assert_cannot_be_booted(options.target)
    continued = convert(options)
    assert broker_files(options.target) == right
    assert continued.total("converted") == len(ITEMS) - 1


def stop_in_the_middle(options: ConvertOptions, after_files: int = 2) -> None:
    """Leave a conversion with its plan and some of its log files."""
    with pytest.raises(Stopped):
        convert(options, progress=stopping_at("seal"))
    for number, path in notes_of(options.target).items():
        if number >= after_files:
            path.unlink()


def times_of(options: ConvertOptions) -> dict[int, int]:
    return {number: path.stat().st_mtime_ns for number, path in notes_of(options.target).items()}


def test_what_is_written_is_not_written_again(
    options: ConvertOptions, right: dict[str, str]
) -> None:
    stop_in_the_middle(options)
    before = times_of(options)
    stop_in_the_middle(options, after_files=99)
    after = times_of(options)
    assert len(before) == 2 < len(after)
    assert {number: after[number] for number in before} == before
    convert(options)
    assert broker_files(options.target) == right


def test_what_is_found_written_shows_in_the_progress(options: ConvertOptions) -> None:
    stop_in_the_middle(options)
    kept = len(notes_of(options.target))
    seen: list[int] = []

    def look(stage: str, done: int, _total: int) -> None:
        if stage == "write":
            seen.append(done)

    convert(options, progress=look)
    assert seen[: kept + 1] == [*range(1, kept + 1), kept]
    assert seen == sorted(seen)


def test_a_note_that_is_torn_or_of_another_plan_counts_for_nothing(
    options: ConvertOptions, right: dict[str, str]
) -> None:
    stop_in_the_middle(options, after_files=99)
    staging = staged_of(options.target)
    torn, foreign, *_ = notes_of(options.target).values()
    torn.write_bytes(torn.read_bytes()[:-9])
    foreign.write_text(json.dumps({**json.loads(foreign.read_bytes()), "identity": "another"}))
    first_log = staging / "store/commitlog" / f"{0:020d}"
    with first_log.open("r+b") as file:
        file.write(bytes(200))
    convert(options)
    assert broker_files(options.target) == right


@pytest.mark.parametrize("place", ["commitlog", "consumequeue/rmq_sys_wheel_timer/0", "timerlog"])
@pytest.mark.parametrize("which", [0, -1])
def test_pages_lost_with_the_power_are_written_again_though_a_note_remains(
    options: ConvertOptions, right: dict[str, str], place: str, which: int
) -> None:
    stop_in_the_middle(options, after_files=99)
    path = sorted((staged_of(options.target) / "store" / place).iterdir())[which]
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)
    convert(options)
    assert broker_files(options.target) == right


@pytest.mark.parametrize("name", ["numbers.npy", "bad.jsonl"])
@pytest.mark.parametrize("loss", ["zeros", "cut", "gone"])
def test_what_lies_beside_records_is_believed_with_its_checksum_alone(
    options: ConvertOptions, right: dict[str, str], name: str, loss: str
) -> None:
    stop_in_the_middle(options, after_files=99)
    for note in notes_of(options.target).values():
        path = note.with_name(name)
        content = path.read_bytes()
        path.unlink()
        if loss != "gone" and content:
            path.write_bytes(bytes(len(content)) if loss == "zeros" else content[:-3])
    convert(options)
    assert broker_files(options.target) == right


def test_a_log_file_that_is_damaged_while_it_is_published_is_not_called_finished(
    options: ConvertOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def stop_behind_the_log(one: Path, other: Path) -> None:
        real(one, other)
        if other == options.target / "commitlog":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_behind_the_log)
        with pytest.raises(Stopped):
            convert(options)
    log = options.target / "commitlog" / f"{0:020d}"
    log.write_bytes(bytes(log.stat().st_size))
    with pytest.raises(TargetError, match="log file 0 was damaged after it was published"):
        convert(options)
    assert_cannot_be_booted(options.target)


@pytest.mark.parametrize("behind", ["config", "timerlog", "commitlog"])
def test_what_a_broker_wrote_before_it_gave_up_is_written_over(
    behind: str, options: ConvertOptions, right: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timercheck may say that nothing was placed: a broker would place all a second time."""
    real = os.replace

    def stop(one: Path, other: Path) -> None:
        real(one, other)
        if other == options.target / behind:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(Stopped):
            convert(options)
    for name in ("timercheck", "topics.json", "timermetrics", "consumerOffset.json"):
        (options.target / "config" / name).write_bytes(bytes(48))
    convert(options)
    assert broker_files(options.target) == right


def test_a_continued_run_keeps_its_now(tmp_path: Path, options: ConvertOptions) -> None:
    stop_in_the_middle(options)
    report = convert(options_for(tmp_path, now_ms=None, on_bad_record="quarantine"))
    assert report.now_ms == NOW_MS


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"now_ms": NOW_MS + 1000}, "now_ms"),
        ({"levels_only": True, "whole_log": True}, "levels_only, whole_log"),
        ({"on_bad_record": "fail"}, "on_bad_record"),
        ({"only_levels": [1]}, "only_levels"),
        ({"levels_only": True}, "levels_only"),
        ({"offsets": "none"}, "offsets"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_command_is_refused_and_mixes_nothing(
    tmp_path: Path,
    options: ConvertOptions,
    right: dict[str, str],
    changes: dict[str, Any],
    named: str,
) -> None:
    stop_in_the_middle(options)
    before = times_of(options)
    facts = {"on_bad_record": "quarantine", **changes}
    with pytest.raises(PlanError, match=f"begun from something else .differs in: {named}"):
        convert(options_for(tmp_path, **facts))
    assert times_of(options) == before
    convert(options)
    assert broker_files(options.target) == right


def touch_the_log(source: Path) -> None:
    [log] = (source / "commitlog").iterdir()
    os.utime(log, ns=(1, 1))


def deliver_one(source: Path) -> None:
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        path = source / "config" / name
        path.write_bytes(b'{\n\t"offsetTable":{1:1\n\t}\n}')


@pytest.mark.parametrize(
    ("change", "named"), [(touch_the_log, "source_log"), (deliver_one, "the level queues")]
)
def test_a_source_that_has_changed_is_refused(
    options: ConvertOptions, change: Callable[[Path], None], named: str
) -> None:
    stop_in_the_middle(options)
    change(options.source)
    with pytest.raises(PlanError, match=f"differs in: {named}"):
        convert(options)


def test_a_source_that_was_moved_is_refused(tmp_path: Path, options: ConvertOptions) -> None:
    stop_in_the_middle(options)
    moved = options.source.rename(tmp_path / "moved")
    arguments = {"on_bad_record": "quarantine"}
    with pytest.raises(PlanError, match="differs in: source"):
        convert(options_for(tmp_path, source=moved, **arguments))


def test_a_refused_target_can_be_begun_anew_as_the_sentence_says(
    tmp_path: Path, options: ConvertOptions
) -> None:
    stop_in_the_middle(options)
    other = options_for(tmp_path, on_bad_record="quarantine", now_ms=NOW_MS - 1)
    with pytest.raises(PlanError) as caught:
        convert(other)
    assert f"or empty {options.target} and begin anew" in str(caught.value)
    shutil.rmtree(options.target)
    convert(other)
    checked_target(other)


def test_a_finished_target_is_refused(options: ConvertOptions) -> None:
    convert(options)
    before = broker_files(options.target)
    with pytest.raises(TargetError, match="already holds a finished conversion"):
        convert(options)
    assert broker_files(options.target) == before


def test_a_plan_of_another_version_is_not_continued(options: ConvertOptions) -> None:
    stop_in_the_middle(options)
    plan = options.target / "delaywheel/staging/plan.json"
    facts = json.loads(plan.read_bytes())
    del facts["format"]
    plan.write_text(json.dumps(facts))
    with pytest.raises(PlanError, match=r"begun by another version; empty .* and begin anew"):
        convert(options)


def test_a_torn_plan_is_named_and_nothing_is_made_of_it(options: ConvertOptions) -> None:
    stop_in_the_middle(options)
    plan = options.target / "delaywheel/staging/plan.json"
    plan.write_bytes(plan.read_bytes()[:40])
    with pytest.raises(PlanError, match=r"not a plan; empty .* and begin anew"):
        convert(options)


@pytest.mark.parametrize("name", ["levels", "outs_ms", "source_offsets", "source_sizes"])
@pytest.mark.parametrize("loss", ["zeros", "cut", "gone"])
def test_plan_arrays_that_a_loss_of_power_took_are_made_anew(
    options: ConvertOptions, right: dict[str, str], name: str, loss: str
) -> None:
    stop_in_the_middle(options)
    array = staged_of(options.target) / f"plan/{name}.npy"
    content = array.read_bytes()
    lost = {"zeros": content[:128] + bytes(len(content) - 128), "cut": content[:70]}
    if loss == "gone":
        array.unlink()
    else:
        array.write_bytes(lost[loss])
    convert(options)
    assert broker_files(options.target) == right


@pytest.mark.parametrize("published", range(1, 5))
def test_a_stop_between_two_renames_is_continued(
    options: ConvertOptions,
    right: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    published: int,
) -> None:
    real_replace, done = os.replace, []

    def stop_later(one: Path, other: Path) -> None:
        if Path(other).parent == options.target:
            done.append(other)
            if len(done) > published:
                raise KeyboardInterrupt
        real_replace(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_later)
        with pytest.raises(KeyboardInterrupt):
            convert(options)
    assert not (options.target / "delaywheel/conversion.json").exists()
    convert(options)
    assert broker_files(options.target) == right


def test_a_run_that_was_stopped_at_its_very_end_is_finished(options: ConvertOptions) -> None:
    convert(options)
    left = options.target / "delaywheel/staging"
    left.mkdir()
    (left / "plan.json").write_text("{}")
    with pytest.raises(TargetError, match="already holds a finished conversion"):
        convert(options)
    assert not left.exists()
