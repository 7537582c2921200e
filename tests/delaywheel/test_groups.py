# SPDX-License-Identifier: Apache-2.0
"""The verbs of consumer groups: what they print, acknowledge, retry and drive back."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

import cli
from consumer_groups import GroupStore, consumer_group
from consumer_groups.runner import _Loop
from delaywheel import open_store
from legacy_levels import LevelStore
from message_store import AtMs, ManualClock, Message
from message_store.format.message_rules import UNDELIVERABLE_TOPICS
from tests.faults.engines import ENGINES

NOW = "2026-01-02T03:04:05Z"
LATER = "2026-01-02T03:05:05Z"
T0 = 1_793_000_000_000


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def lines(result: Result, code: int = cli.DONE) -> list[dict[str, Any]]:
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two messages that are due."""
    for body in ("a", "b"):
        given = ("--topic", "orders", "--body", body, "--after", "0s", "--tags", body)
        result = run("schedule", tmp_path / "store", "--engine", "levels", *given, "--now", NOW)
        assert result.exit_code == cli.DONE, result.output
    return tmp_path / "store"


def consume(store: Path, *words: object, now: str = NOW) -> Result:
    return run("consume", store, "orders", "--group", "billing", "--now", now, *words)


def test_messages_are_printed_and_acknowledged(store: Path) -> None:
    result = consume(store, "--limit", 1)
    assert [(line["body"], line["retries"]) for line in lines(result)] == [("a", 0)]
    assert "1 message acknowledged" in result.stderr
    assert [line["body"] for line in lines(consume(store))] == ["b"]
    assert lines(consume(store)) == []


def test_a_tag_filter_is_a_groups(store: Path) -> None:
    assert [line["body"] for line in lines(consume(store, "--tags", "b || c"))] == ["b"]
    assert lines(consume(store)) == []


def test_an_exit_code_decides(store: Path) -> None:
    program = "import sys; sys.exit(sys.stdin.read() == 'a')"
    command = f'{sys.executable} -c "{program}"'
    result = consume(store, "--exec", command)
    assert lines(result, cli.FINDINGS) == []
    assert "1 message acknowledged, 1 retried" in result.stderr
    [again] = lines(consume(store, now=LATER))
    assert (again["body"], again["topic"], again["retries"]) == ("a", "orders", 1)


def test_groups_are_listed_with_what_is_ready(store: Path) -> None:
    consume(store, "--limit", 1)
    result = run("groups", store, "--now", NOW, "--json")
    assert result.exit_code == cli.DONE, result.output
    assert json.loads(result.stdout)["groups"] == [
        {
            "name": "billing",
            "ready": {"orders": 1},
            "retries_ready": 0,
            "retries_waiting": 0,
            "dead": 0,
            "in_flight": 0,
            "in_flight_unknown": None,
        }
    ]
    assert "billing  orders: 1 message ready" in run("groups", store, "--now", NOW).stdout


def counts_of(store: Path, *, now: str = NOW) -> dict[str, Any]:
    result = run("groups", store, "--now", now, "--json")
    assert result.exit_code == cli.DONE, result.output
    [facts] = json.loads(result.stdout)["groups"]
    return dict(facts)


def none_is_left(store: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all files, which change where anybody writes."""
    files = (each for each in store.rglob("*") if each.is_file())
    return {str(each): (each.stat().st_mtime_ns, each.stat().st_size) for each in files}


def test_groups_count_retries_that_wait_and_that_are_ready_and_dead_letters(store: Path) -> None:
    program = "import sys; sys.exit(sys.stdin.read() == 'a')"
    consume(store, "--exec", f'{sys.executable} -c "{program}"')
    found = counts_of(store)
    assert (found["ready"], found["retries_ready"], found["retries_waiting"]) == (
        {"orders": 0},
        0,
        1,
    )
    assert run("run", store, "--now", LATER).exit_code == cli.DONE
    found = counts_of(store, now=LATER)
    assert (found["retries_ready"], found["retries_waiting"]) == (1, 0)
    with LevelStore.open(store) as opened:
        group = consumer_group(opened, "billing")
        [message] = group.receive("orders")
        group.reject(message)
    found = counts_of(store, now=LATER)
    assert (found["retries_ready"], found["dead"]) == (0, 1)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_groups_and_dead_letters_are_looked_at_beside_a_process_that_has_the_store(
    tmp_path: Path, engine: str
) -> None:
    path, clock = tmp_path / "store", ManualClock(T0)
    store = cast(GroupStore, ENGINES[engine].open(path, clock, False))
    try:
        for number in range(6):
            store.schedule(Message("orders", b"%d" % number), AtMs(clock.now_ms()))
        store.advance(clock.now_ms())
        group = consumer_group(store, "billing")
        first, second, third, *_ = group.receive("orders")
        group.ack(first)
        group.retry(second)
        group.reject(third)
        before = none_is_left(path)
        now = str(clock.now_ms())
        assert counts_of(path, now=now) == {
            "name": "billing",
            "ready": {"orders": 3},
            "retries_ready": 0,
            "retries_waiting": 1,
            "dead": 1,
            "in_flight": None,
            "in_flight_unknown": "only the process that has the store open knows what is in flight",
        }
        shown = run("groups", path, "--now", now)
        assert "billing  orders: 3 messages ready or in flight" in shown.stdout
        assert "has the store open" in shown.stderr
        assert none_is_left(path) == before
        store.advance(clock.now_ms())
        before = none_is_left(path)
        letters = lines(run("dead-letters", path, "billing", "--now", now))
        assert [letter["body"] for letter in letters] == ["2"]
        assert none_is_left(path) == before
    finally:
        store.close()


def test_a_damaged_dead_letter_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock(T0)
    with LevelStore.open(path, clock=clock) as store:
        for number in range(3):
            store.schedule(Message("orders", b"letter %d" % number), AtMs(T0))
        store.advance(T0)
        group = consumer_group(store, "billing")
        for message in group.receive("orders"):
            group.reject(message)
        store.advance(T0)
        place = list(group.dead_letters())[1].stored.commit_log_offset
    [log] = (path / "commitlog").iterdir()
    with log.open("rb") as file:
        data = file.read(1 << 20)
    with log.open("r+b") as file:
        file.seek(data.index(b"letter 1", place))
        file.write(b"L")
    for words, code in (((), cli.FINDINGS), (("--redrive",), cli.FINDINGS)):
        result = run("dead-letters", path, "billing", "--now", T0, *words)
        assert [letter["body"] for letter in lines(result, code)] == ["letter 0", "letter 2"]
        assert "cannot be read: %DLQ%billing, queue 0, queue offset 1: " in result.stderr


@pytest.mark.parametrize("tags", [None, "b"])
@pytest.mark.parametrize("engine", ENGINES)
def test_simulated_days_take_a_round_for_each_thing_that_happens(
    engine: str, tags: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages over a month, one that fails each time, and many that a filter skips."""
    path, clock, hour_ms = tmp_path / "store", ManualClock(T0), 3_600_000
    most = {"levels": (2, 2, 2), "hierarchy": (50, 700, 720)}  # the others take three days
    late = most.get(engine, (50, 60, 71))
    with open_store(path, engine=cast(Any, engine), clock=clock) as store:
        for hours in (0, 0, 1, 1, *late):
            due = AtMs(T0 + hours * hour_ms)
            store.schedule(Message("orders", b"%d" % hours, tags="b"), due)
        for _ in range(1_100 if tags else 1):
            store.schedule(Message("orders", b"0", tags="a"), AtMs(T0 + hour_ms))
        store.schedule(Message("other", b"other"), AtMs(T0 + hour_ms))
    rounds, seen = 0, []

    def hand_over(_output: object, message: Any, _words: object) -> None:
        seen.append(int(message.body))
        if len(seen) == 2 or 0 < message.retries < 5:
            raise RuntimeError("not now")

    def next_round(_loop: _Loop) -> bool:
        nonlocal rounds
        rounds += 1
        return real(_loop)

    real = _Loop.work
    monkeypatch.setattr(_Loop, "work", next_round)
    monkeypatch.setattr("delaywheel.terminal.verbs.groups._hand_over", hand_over)
    result = consume(path, "--for", "30d", *(("--tags", tags) if tags else ()), now=str(T0))
    assert result.exit_code == cli.FINDINGS, result.output
    passing = 2 if tags else 3
    assert sorted(set(seen)) == sorted({0, 1, *late})
    assert len(seen) == passing + 2 + len(late) + 5
    assert rounds < 150


def test_a_topic_that_is_not_there_is_refused_at_once(store: Path) -> None:
    result = run("consume", store, "order", "--group", "billing", "--now", NOW)
    assert result.exit_code == cli.USAGE
    assert "nothing was ever put into order; it holds no topic yet" in result.stderr
    assert json.loads(run("groups", store, "--now", NOW, "--json").stdout) == {"groups": []}
    consume(store, "--limit", 1)
    result = run("consume", store, "order", "--group", "billing", "--now", NOW)
    assert "it holds orders, and nothing waits for it" in result.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_a_topic_that_an_engine_keeps_for_itself_is_read_and_not_consumed(
    engine: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    words = ("--topic", "orders", "--body", "a", "--after", "1m", "--now", NOW)
    run("schedule", store, "--engine", engine, *words)
    for topic in sorted(UNDELIVERABLE_TOPICS):
        result = run("consume", store, topic, "--group", "billing", "--now", NOW)
        assert (result.exit_code, result.stdout) == (cli.USAGE, "")
        assert "no group can receive of this topic" in result.stderr
        assert run("read", store, topic).exit_code == cli.DONE
    assert json.loads(run("groups", store, "--now", NOW, "--json").stdout) == {"groups": []}


def test_a_name_that_no_group_can_have_is_bad_usage(store: Path) -> None:
    for name in ("b ad/..", "", "a@b"):
        result = run("consume", store, "orders", "--group", name, "--now", NOW)
        assert result.exit_code == cli.USAGE
        assert "--group" in result.stderr


def test_the_examples_of_the_help_run(tmp_path: Path) -> None:
    words = ("--topic", "orders", "--body", "cancel 42", "--after", "0s", "--now", NOW)
    for key in ("order-41", "order-42"):
        run("schedule", tmp_path / "orders", "--engine", "levels", *words, "--unique-key", key)
    told = {}
    for name in ("consume", "groups", "dead-letters", "trace", "state"):
        epilog = cli.main.commands[name].epilog or ""
        for line in epilog.partition("Example:\n")[2].splitlines():
            program, *words_of_it = shlex.split(line.replace("/tmp", str(tmp_path)))
            result = run(*words_of_it)
            assert (program, result.exit_code) == ("delaywheel", cli.DONE), result.output
            told[name] = result.stdout
    assert (tmp_path / "cancelled").read_text() == "cancel 42"
    assert told["groups"].startswith("billing  orders: 0 messages ready")
    assert told["state"] == "acknowledged\n"


@pytest.mark.check
def test_ctrl_c_during_a_command_costs_no_retry_and_says_what_becomes_of_its_message(
    store: Path,
) -> None:
    """As a terminal does, it interrupts the command as well."""
    program = "import time; print('works', flush=True); time.sleep(60)"
    start = [sys.executable, "-m", "delaywheel", "consume", str(store)]
    words = [*start, "orders", "--group", "billing"]
    with subprocess.Popen(
        [*words, "--exec", f'{sys.executable} -c "{program}"'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=250)
    assert process.returncode == cli.INTERRUPTED, told
    assert "the message is not acknowledged, and the next consume receives it again" in told
    again = lines(consume(store, now="2030-01-01T00:00:00Z"))
    assert [(line["body"], line["retries"]) for line in again] == [("a", 0), ("b", 0)]


def test_dead_letters_are_listed_and_driven_back(store: Path) -> None:
    (store / "config").mkdir(exist_ok=True)
    known = '{"subscriptionGroupTable":{"billing":{"groupName":"billing","retryMaxTimes":0}}}'
    (store / "config" / "subscriptionGroup.json").write_text(known)
    assert lines(consume(store, "--exec", "false"), cli.FINDINGS) == []
    dead = lines(run("dead-letters", store, "billing", "--now", NOW))
    assert [(line["body"], line["topic"]) for line in dead] == [("a", "orders"), ("b", "orders")]
    assert len(lines(run("dead-letters", store, "billing", "--redrive", "--now", NOW))) == 2
    assert lines(run("dead-letters", store, "billing", "--now", NOW)) == []
    assert [line["body"] for line in lines(consume(store))] == ["a", "b"]
