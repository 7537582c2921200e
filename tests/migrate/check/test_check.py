# SPDX-License-Identifier: Apache-2.0
"""``check``: each thing that can be wrong is found, and on a healthy store nothing is."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import cli
from legacy_levels import LevelStore
from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import SourceError
from message_store.interface.delay_store import Severity
from migrate.check.store import RULES
from migrate.check.time import predict_load
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.independent.real_stores import ALL_STORES, WHEEL_55_CLEAN, unpack
from tests.migrate.check_case import NOW_MS, Case, codes, look
from tests.migrate.check_level_cases import CASES as LEVEL_CASES
from tests.migrate.check_level_cases import delivered, many
from tests.migrate.check_store_cases import CASES as STORE_CASES
from tests.migrate.check_timeline_cases import CASES as TIMELINE_CASES
from tests.migrate.check_wheel_cases import CASES as WHEEL_CASES
from tests.migrate.check_wheel_cases import wheel
from tests.migrate.conversions import NOW_MS as CONVERTED_MS
from tests.migrate.conversions import build_and_convert
from tests.migrate.written_wheels import NOW_MS as WRITTEN_MS
from tests.migrate.written_wheels import messages, run_for, staged, write
from tools.generate_check import CHECK_PAGE, generated

CASES = [*LEVEL_CASES, *STORE_CASES, *WHEEL_CASES, *TIMELINE_CASES]
ELSEWHERE = {"broker-running", "timercheck-damaged"}
"""Each found in a test of its own: one needs a second process, one is `test_damaged_checkpoint`."""


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.code}-{number}" for number, case in enumerate(CASES)]
)
def test_what_is_wrong_is_found(tmp_path: Path, case: Case) -> None:
    case.make(tmp_path / "store")
    report = look(tmp_path / "store", **case.options)
    found = [finding for finding in report.findings if finding.code == case.code]
    assert found, codes(report)
    assert any(case.says in finding.problem for finding in found), found
    assert case.code == "unreadable" or "unreadable" not in codes(report), report.findings
    [rule] = [rule for rule in RULES if rule.code == case.code]
    assert {finding.severity for finding in found} == {rule.severity}


def test_what_was_delivered_ahead_of_the_clock_is_not_missed(tmp_path: Path) -> None:
    """Somebody let time run ahead, and stored more when the clock was the clock again."""
    clock = ManualClock(NOW_MS)
    with LevelStore.open(tmp_path / "store", clock=clock) as store:
        store.schedule(Message("orders", b"delivered"), AfterMs(1_800_000))
        assert len(store.advance(NOW_MS + 3_600_000)) == 1
        store.schedule(Message("orders", b"waits"), AfterMs(1_800_000))
    assert "offsets-ahead" not in codes(look(tmp_path / "store"))


def test_every_kind_of_finding_has_a_case_and_a_code_of_its_own() -> None:
    known = [rule.code for rule in RULES]
    assert sorted(known) == sorted(set(known))
    assert {case.code for case in CASES} | ELSEWHERE == set(known)


# --- healthy stores -------------------------------------------------------------------------------


@pytest.mark.parametrize("with_conf", [False, True], ids=["no configuration", "its own"])
@pytest.mark.parametrize("name", ALL_STORES)
def test_a_store_that_a_real_broker_left_has_no_warnings(
    name: str, with_conf: bool, tmp_path: Path
) -> None:
    store = unpack(name, tmp_path / "store")
    conf = {key: str(value) for key, value in store.about["config"].items()} if with_conf else {}
    report = look(store.root, now_ms=store.stopped_ms, conf=conf)
    bad = {finding.code for finding in report.findings if finding.severity is not Severity.INFO}
    # Killed: 206 messages are in their topics and not in the offsets.
    assert bad == ({"store-crashed", "offsets-behind"} if store.is_crashed else set())
    assert report.is_healthy is not store.is_crashed
    told = [finding.problem for finding in report.findings if finding.code == "offsets-behind"]
    assert sum(int(problem.split()[0]) for problem in told) == (206 if store.is_crashed else 0)


def test_a_fresh_target_has_no_warnings(tmp_path: Path) -> None:
    items = [LevelMessage(level=18, store_timestamp_ms=CONVERTED_MS - 1000 + n) for n in range(30)]
    target = build_and_convert(tmp_path, items).target
    report = look(target, now_ms=CONVERTED_MS)
    assert report.is_healthy, report.findings
    assert codes(report) == ["open-before"]


def test_a_fresh_target_for_a_program_has_no_warnings(tmp_path: Path) -> None:
    items = [LevelMessage(level=18, store_timestamp_ms=CONVERTED_MS - 1000 + n) for n in range(30)]
    target = build_and_convert(tmp_path, items, to="hierarchy").target
    report = look(target, now_ms=CONVERTED_MS)
    assert codes(report) == ["hierarchical-wheel"]


def test_a_written_wheel_that_is_being_replaced_is_whole_until_it_is(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, [messages(5)])
    staged(run_for(target, "next"), [messages(5)])
    assert "target-unfinished" not in codes(look(target, now_ms=WRITTEN_MS))
    (target / "delaywheel/written.json").unlink()
    [finding] = look(target, now_ms=WRITTEN_MS).findings
    assert finding.problem == "an unfinished write of a table; write it again"


def test_nothing_is_written(tmp_path: Path) -> None:
    """Not even times of access matter: names, sizes, times of change stay as they were."""
    store = unpack(WHEEL_55_CLEAN, tmp_path / "store")

    def facts() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in store.root.rglob("*")}
        return {path: (fact.st_size, fact.st_mtime_ns) for path, fact in found.items()}

    before = facts()
    look(store.root, now_ms=store.stopped_ms)
    assert facts() == before


# --- beside a broker, and without one -------------------------------------------------------------


def test_a_running_broker_is_said_and_is_in_nobodys_way(tmp_path: Path) -> None:
    build_level_store(tmp_path / "store", [LevelMessage(level=18)], abort=True)
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        report = look(tmp_path / "store")
        broker.communicate()
    assert report.is_running
    assert "broker-running" in codes(report)
    assert report.is_healthy, report.findings
    assert "store-crashed" in codes(look(tmp_path / "store"))


@pytest.mark.parametrize("what", ["missing", "a file", "empty"])
def test_what_is_no_store_is_refused(what: str, tmp_path: Path) -> None:
    if what == "a file":
        (tmp_path / "store").write_text("x")
    elif what == "empty":
        (tmp_path / "store").mkdir()
    with pytest.raises(SourceError):
        look(tmp_path / "store")


# --- what is answered -----------------------------------------------------------------------------


def test_the_worst_comes_first_and_the_keys_of_json_are_a_promise(tmp_path: Path) -> None:
    items = [LevelMessage(level=5), LevelMessage(level=5, without=["REAL_QID"])]
    build_level_store(tmp_path / "store", items, offsets=b"", backup_offsets={5: 0})
    report = look(tmp_path / "store")
    answer = json.loads(json.dumps(report.as_json()))
    assert set(answer) == {
        "path", "now_ms", "is_running", "errors", "warnings", "infos", "findings", "load",
    }  # fmt: skip
    severities = [finding["severity"] for finding in answer["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert (answer["errors"], answer["warnings"]) == (1, 1)
    assert set(answer["findings"][0]) == {
        "code", "severity", "where", "problem", "effect", "remedy",
    }  # fmt: skip
    assert answer["findings"][0]["code"] == "record-no-destination"
    assert answer["load"]["waiting"] == 2


@pytest.mark.parametrize(
    ("due_s", "capacity", "peak", "late_ms"),
    [
        ([], 10, 0, 0),
        ([5] * 20, 10, 20, 2_000),
        ([5] * 20 + [6] * 20, 10, 20, 3_000),
        ([5] * 20 + [9] * 20, 10, 20, 2_000),
        ([-7] * 30 + [5] * 20, 10, 30, 3_000),
    ],
)
def test_a_queue_that_empties_at_its_capacity(
    due_s: list[int], capacity: int, peak: int, late_ms: int
) -> None:
    load = predict_load(np.array(due_s, np.int64) * 1000, 0, capacity)
    assert (load.peak_messages, load.lateness_ms) == (peak, late_ms)


@given(due_s=st.lists(st.integers(-20, 40), max_size=80), capacity=st.integers(1, 9))
def test_the_predicted_lateness_is_that_of_a_queue_second_by_second(
    due_s: list[int], capacity: int
) -> None:
    left, most = 0, 0
    for second in range(41):
        left += sum(max(0, due) == second for due in due_s)
        most = max(most, left)
        left = max(0, left - capacity)
    load = predict_load(np.array(due_s, np.int64) * 1000, 0, capacity)
    assert load.lateness_ms == most * 1000 // capacity


# --- the page and the command ---------------------------------------------------------------------


def test_the_page_lists_every_finding() -> None:
    page = CHECK_PAGE.read_text(encoding="utf-8")
    assert generated(page) == page, "run: make docs"
    assert all(f"| `{rule.code}` |" in page for rule in RULES)


def test_the_command(tmp_path: Path) -> None:
    build_level_store(tmp_path / "store", [LevelMessage(level=5)], offsets={5: 0})
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "diskMaxUsedSpaceRatio=95\nmessageDelayLevel=1s 5s 10s 30s 1m\nbrokerRole=SLAVE\n"
    )
    words = ["check", str(tmp_path / "store"), "--now", str(NOW_MS), "--broker-conf", str(conf)]
    result = CliRunner().invoke(cli.main, words)
    assert result.exit_code == cli.FINDINGS, result.output
    assert "warning store-of-slave: the broker's configuration: brokerRole=SLAVE" in result.stdout
    assert "  what to do: check and convert the master's store" in result.stdout
    answer = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)
    assert "store-of-slave" in [finding["code"] for finding in answer["findings"]]
    refused = CliRunner().invoke(cli.main, ["check", str(tmp_path / "nothing")])
    assert refused.exit_code == cli.SOURCE_UNREADABLE
    conf.write_text("fileReservedTime=soon\n")
    assert CliRunner().invoke(cli.main, words).exit_code == cli.USAGE


# --- whatever a disk does -------------------------------------------------------------------------


def damage(path: Path, chance: random.Random) -> None:
    """Something that a disk or a person does to a file."""
    size = path.stat().st_size
    match chance.randrange(5):
        case 0:
            path.unlink()
        case 1:
            os.truncate(path, chance.randrange(size + 1))
        case 2:
            os.truncate(path, size + chance.randrange(5_000))
        case _:
            extremes = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), bytes(8)]
            with path.open("r+b") as file:
                file.seek(chance.randrange(min(size, 2_000) + 1) // 4 * 4)
                file.write(chance.choice([*extremes, chance.randbytes(60)]))


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(12, 200))]
)
def test_damage_is_never_an_exception(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    make = chance.choice([delivered(offsets={3: 0}), many(commit_log_file_bytes=4096), wheel()])
    make(tmp_path / "store")
    files = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
    for path in chance.sample(files, chance.randint(1, 4)):
        damage(path, chance)
    for now_ms in (NOW_MS, 10**12):
        report = look(tmp_path / "store", now_ms=now_ms)
        assert all(finding.code for finding in report.findings)
