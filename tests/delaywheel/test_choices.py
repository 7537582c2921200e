# SPDX-License-Identifier: Apache-2.0
"""What verbs say of levels, topics and times that were asked for and that a store does not have."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cli
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store

NOW_MS = T0 + 20_000
WAITING = [LevelMessage(level=3, topic="Orders"), LevelMessage(level=18, topic="Payments")]

Verb = Callable[..., Result]


@pytest.fixture(params=["pending", "export"])
def verb(request: pytest.FixtureRequest, tmp_path: Path) -> Verb:
    """A verb that chooses messages by flags, on a store with levels 3 and 18."""
    build_level_store(tmp_path / "store", WAITING)
    out = [tmp_path / "out.parquet"] if request.param == "export" else []

    def run(*flags: object) -> Result:
        words = (request.param, tmp_path / "store", *out, "--now", NOW_MS, "--quiet", *flags)
        return CliRunner().invoke(cli.main, [str(word) for word in words])

    return run


def warnings(result: Result) -> list[str]:
    return result.stderr.splitlines()


@pytest.mark.parametrize("level", [19, 99, 2**31 - 1])
def test_a_level_that_is_not_in_the_table_is_refused(
    level: int, verb: Verb, tmp_path: Path
) -> None:
    refused = verb("--level", level)
    assert refused.exit_code == cli.USAGE, refused.output
    assert f"the store has no level {level}; it has levels 1 to 18" in refused.stderr
    assert refused.stdout == ""
    assert not (tmp_path / "out.parquet").exists()


def test_a_conversion_names_the_levels_that_there_are(tmp_path: Path) -> None:
    build_level_store(tmp_path / "store", WAITING)
    words = ("convert", tmp_path / "store", "--in-place", "--only-level", 99, "--now", NOW_MS)
    refused = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert refused.exit_code == cli.USAGE, refused.output
    assert "no queue of level 99; it has queues of levels: 3, 18" in refused.stderr


def test_a_level_or_topic_that_was_never_used_is_named(verb: Verb) -> None:
    result = verb("--level", 7)
    assert result.exit_code == cli.DONE
    [warning] = warnings(result)
    assert "nothing was ever put into level 7; levels with a queue: 3, 18" in warning


@pytest.mark.parametrize("topic", ["Order", "", "orders\x1b"])
def test_a_topic_that_was_never_used_is_named(topic: str, verb: Verb) -> None:
    result = verb("--topic", topic)
    assert result.exit_code == cli.DONE
    [warning] = warnings(result)
    assert "the store does not know that topic; it knows: Orders, Payments" in warning
    assert "\x1b" not in warning


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--level", 3),
        ("--topic", "Orders"),
        ("--topic", "Payments", "--level", 18),
        ("--due-before", T0 + 30_000),
        ("--due-after", T0, "--due-before", T0 + 1),
    ],
)
def test_nothing_is_said_of_what_is_there(flags: tuple[object, ...], verb: Verb) -> None:
    result = verb(*flags)
    assert (result.exit_code, warnings(result)) == (cli.DONE, [])


def test_of_several_topics_the_unknown_one_is_named(tmp_path: Path) -> None:
    build_level_store(tmp_path / "store", WAITING)
    words = ["export", tmp_path / "store", tmp_path / "out.parquet", "--now", NOW_MS, "--quiet"]
    words += ["--topic", "Orders", "--topic", "Payment"]
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert "1 message" in result.stdout
    [warning] = warnings(result)
    assert "no message for topic 'Payment' was found" in warning


@pytest.mark.parametrize("before_ms", [T0, T0 - 1])
def test_no_time_between_two_due_times_is_refused(before_ms: int, verb: Verb) -> None:
    refused = verb("--due-after", T0, "--due-before", before_ms)
    assert refused.exit_code == cli.USAGE
    assert "--due-before must be later than --due-after" in refused.stderr


def test_a_level_of_the_wheel_is_refused(tmp_path: Path) -> None:
    words = ["export", "S", str(tmp_path / "o.parquet"), "--of", "wheel", "--level", "3"]
    refused = CliRunner().invoke(cli.main, words)
    assert refused.exit_code == cli.USAGE
    assert "--of wheel leaves out" in refused.stderr
