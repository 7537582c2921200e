# SPDX-License-Identifier: Apache-2.0
"""The verbs of consumer groups: what they print, acknowledge, retry and drive back."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli

NOW = "2026-01-02T03:04:05Z"
LATER = "2026-01-02T03:05:05Z"


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
        {"group": "billing", "topic": "orders", "ready": 1}
    ]
    assert "billing  orders: 1 message ready" in run("groups", store, "--now", NOW).stdout


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
