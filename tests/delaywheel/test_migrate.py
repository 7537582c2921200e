# SPDX-License-Identifier: Apache-2.0
"""The verbs that change a store in place: what they print, and what they refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from migrate.changes.retire import LeftBehindError
from migrate.convert import convert
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do, tree
from tests.migrate.stops import Stopped, stopping_before

NOW_MS = T0 + 500
ITEMS = [
    LevelMessage(level=3),
    LevelMessage(level=3, topic="TopicB"),
    LevelMessage(level=5),
    LevelMessage(level=18),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "source", ITEMS)
    return tmp_path / "source"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def in_place(store: Path, *more: object) -> Result:
    return run("convert", "--in-place", store, "--now", NOW_MS, *more)


def refused(result: Result, code: int, *words: str) -> None:
    """One clear sentence on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def converted(store: Path, **more: Any) -> Path:
    target = store.parent / "target"
    convert(options_for(store.parent, source=store, target=target, now_ms=NOW_MS, **more))
    return target


def test_a_plan_is_for_people_and_writes_nothing(store: Path) -> None:
    before = tree(store)
    result = in_place(store)
    assert result.exit_code == cli.DONE
    assert "4 of 4 pending messages would be converted in place" in result.stdout
    assert "offset of level 3 (10s): from 0 to 2" in result.stdout
    assert "the same command with --execute does it" in result.stdout
    assert tree(store) == before


def test_execute_does_it_and_says_how_to_take_it_back(store: Path) -> None:
    result = in_place(store, "--execute")
    assert result.exit_code == cli.DONE
    assert "4 of 4 pending messages converted in place" in result.stdout
    assert f"delaywheel rollback {store} --execute" in result.stdout
    assert "timerPrecisionMs=1000" in result.stdout


def test_a_store_converted_in_place_is_for_check_and_not_for_verify(
    store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    assert in_place(store, "--execute").exit_code == cli.DONE
    for stores in ((copy, store), (store,)):
        result = run("verify", *stores)
        refused(result, cli.SOURCE_UNREADABLE, f"run `delaywheel check {store}`")
        assert "converted in place, so that nothing is left" in result.stderr


def test_json_is_that_of_convert_and_more(store: Path, tmp_path: Path) -> None:
    fresh = convert(options_for(tmp_path, now_ms=NOW_MS)).as_json()
    told = json.loads(in_place(store, "--execute", "--json").stdout)
    assert set(told) - set(fresh) == {
        "in_place", "state", "log_from", "log_to", "queue_from", "queue_to", "offsets", "backup",
    }  # fmt: skip
    assert set(fresh) <= set(told)
    assert (told["state"], told["in_place"], told["converted"]) == ("done", True, 4)
    assert told["offsets"] == {"3": 2, "5": 1, "18": 1}


def test_the_same_command_again_finds_nothing_to_do(store: Path) -> None:
    assert in_place(store, "--execute").exit_code == cli.DONE
    again = in_place(store, "--execute")
    assert again.exit_code == cli.DONE, again.output
    assert "nothing waits in the levels that were asked for" in again.stdout
    assert "nothing was written, and nothing has to be" in again.stdout


def test_rollback_shows_a_plan_and_then_does_it(store: Path) -> None:
    before = tree(store)
    assert in_place(store, "--execute").exit_code == cli.DONE
    planned = run("rollback", store)
    assert "in-place of 2023-11-14T22:13:20.500Z (done) would be undone" in planned.stdout
    assert tree(store) != before
    told = json.loads(run("rollback", store, "--execute", "--json").stdout)
    assert (told["state"], told["kind"], told["messages"]) == ("rolled back", "in-place", 4)
    assert tree(store) == before
    assert "no change to undo" in run("rollback", store).stdout


def test_retire_shows_a_plan_and_then_does_it(store: Path) -> None:
    target = converted(store, only_levels=[3])
    before = tree(store)
    planned = run("retire", store, "--converted-to", target)
    assert planned.exit_code == cli.DONE
    assert f"1 level would move past 2 messages that {target} has" in planned.stdout
    assert "level 5 stays: 1 message that a broker still delivers" in planned.stdout
    assert tree(store) == before
    told = json.loads(run("retire", store, "--converted-to", target, "--execute", "--json").stdout)
    assert (told["state"], told["converted"], told["stays"]) == ("done", 2, {"5": 1, "18": 1})
    assert "already skipped" in run("retire", store, "--converted-to", target).stdout


def test_an_unfinished_run_says_so(store: Path) -> None:
    with pytest.raises(Stopped), stopping_before(store, 60):
        do(store, NOW_MS)
    result = in_place(store)
    assert "a run was stopped that converts 4 of 4" in result.stdout
    assert "start no broker now" in result.stdout
    assert in_place(store, "--execute").exit_code == cli.DONE


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["TARGET"], cli.USAGE, "there is no TARGET"),
        (["--report", "r.html"], cli.USAGE, "--report is for a fresh TARGET"),
        (["--only-topic", "TopicB"], cli.USAGE, "a level has one delivery offset"),
        (["--whole-log"], cli.USAGE, "no offset to move past"),
        (["--only-level", "7"], cli.USAGE, "no queue of level 7"),
    ],
)
def test_what_does_not_go_with_in_place(
    store: Path, words: list[str], code: int, said: str
) -> None:
    refused(in_place(store, *words), code, said)


def test_a_fresh_target_needs_a_target_and_no_execute(store: Path, tmp_path: Path) -> None:
    refused(run("convert", store), cli.USAGE, "Missing argument 'TARGET'")
    words = ("convert", store, tmp_path / "t", "--execute")
    refused(run(*words), cli.USAGE, "--execute goes with --in-place")


def test_refusals_have_the_exit_codes_of_their_kind(store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SLAVE\n")
    refused(in_place(store, "--broker-conf", conf), cli.SOURCE_UNREADABLE, "a slave's store")
    refused(in_place(tmp_path / "nothing"), cli.SOURCE_UNREADABLE, "no such directory")
    (store / "abort").touch()
    refused(in_place(store), cli.SOURCE_UNREADABLE, "--after-crash")


def test_messages_left_behind_are_a_matter_of_policy(store: Path) -> None:
    target = converted(store, only_topics=["TopicB"])
    result = run("retire", store, "--converted-to", target)
    refused(result, cli.STOPPED_BY_POLICY, "level 3: 1 of its messages was left out")
    assert cli.exit_code(LeftBehindError("x")) == cli.STOPPED_BY_POLICY


def test_a_broker_that_wrote_since_stops_a_rollback(store: Path) -> None:
    assert in_place(store, "--execute").exit_code == cli.DONE
    (store / "config/timercheck").write_bytes(b"\1" * 56)
    refused(run("rollback", store, "--execute"), cli.TARGET_UNWRITABLE, "a broker has written")


@pytest.mark.parametrize("name", ["convert", "retire", "rollback"])
def test_help_says_what_execute_is_for(name: str) -> None:
    words = " ".join(run(name, "--help").stdout.split())
    assert "Without this flag the plan is only printed." in words
