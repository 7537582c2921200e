# SPDX-License-Identifier: Apache-2.0
"""What the command line says of a result, and of words that it does not take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
import cli_text
from migrate.verify_report import VerifyReport


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def usage_error(result: Result, *sentences: str) -> None:
    assert result.exit_code == cli.USAGE, result.output
    assert isinstance(result.exception, SystemExit)
    for sentence in sentences:
        assert sentence in result.stderr


# --- what a verification comes to -----------------------------------------------------------------

WHOLE = "every message is there, once, unchanged and at its time"
ELSEWHERE = "the other messages were left out on purpose and wait only in the source"
NO_BROKER = "do not start a broker on this target"


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({}, [WHOLE]),
        (
            {"quarantined": 2},
            [f"{WHOLE}: all but 2, which are in TARGET/delaywheel/quarantine"],
        ),
        (
            {"only_levels": (3, 5), "only_topics": ("Orders",)},
            [WHOLE.replace("message", "message of level 3, 5 and topic Orders"), ELSEWHERE],
        ),
        (
            {"levels_only": True},
            [WHOLE, "what waits in the source's own timer wheel was left behind (--levels-only)"],
        ),
        (
            {"missing": 1},
            [
                "a lost or shortened level queue may be the reason: convert anew with --whole-log",
                NO_BROKER,
            ],
        ),
        ({"missing": 1, "whole_log": True}, [NO_BROKER]),
        ({"unexpected": 1}, [NO_BROKER]),
    ],
)
def test_the_verdict_is_about_what_was_looked_at(
    facts: dict[str, Any], lines: Sequence[str]
) -> None:
    counts = {"converted": 4, "missing": 0, "unexpected": 0, "different": 0}
    report = VerifyReport(**{**counts, **facts})
    assert list(cli_text.verdict(report, "TARGET")) == lines


# --- words that are not taken ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", ""),
        ("pending", ""),
        ("convert", "", "T"),
        ("convert", "S", ""),
        ("convert", "S", "T", "--report", ""),
        ("convert", "S", "T", "--broker-conf", ""),
        ("verify", "S", ""),
        ("generate", "", "--messages", 1),
    ],
)
def test_an_empty_word_is_no_path(words: tuple[object, ...]) -> None:
    usage_error(run(*words), "an empty path")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("1700000000", "'1700000000' looks like seconds; milliseconds are wanted"),
        ("99999999999", "looks like seconds"),
        ("10000000000000", "is beyond the year 2286; milliseconds are wanted"),
        ("9" * 5000, "is beyond the year 2286"),
    ],
)
@pytest.mark.parametrize("flag", ["--now", "--due-before", "--due-after"])
def test_a_number_that_is_no_time_in_milliseconds(flag: str, number: str, sentence: str) -> None:
    usage_error(run("pending", "S", flag, number), sentence)


def test_every_flag_that_takes_a_time_says_in_which_zone() -> None:
    for verb in ("inspect", "convert", "pending", "generate"):
        words = " ".join(run(verb, "--help").output.split())
        assert "ISO 8601 (UTC where it names no zone) or epoch milliseconds" in words


def test_a_configuration_that_is_not_there_is_named_once() -> None:
    result = run("convert", "S", "T", "--broker-conf", "no.conf")
    usage_error(result, "no.conf: no such file")
    assert result.stderr.count("no.conf") == 1


def test_a_level_table_that_cannot_be_read_is_said_with_its_file(tmp_path: Path) -> None:
    conf = tmp_path / "old.conf"
    conf.write_text("messageDelayLevel=1s 5x\n")
    usage_error(run("convert", "S", "T", "--broker-conf", conf), str(conf), "level 2")
