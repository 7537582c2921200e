# SPDX-License-Identifier: Apache-2.0
"""What the command line says of a result, and of words that it does not take."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import cli
from delaywheel.terminal.render import text
from delaywheel.terminal.render.inspection import level_table
from delaywheel.terminal.render.output import Output
from message_store.base import errors
from message_store.files.store_root import StoreRoot
from migrate.look.inspection import LevelState
from migrate.report.report import BadRecord
from migrate.verify.report import OPENED, Difference, Problem, VerifyReport
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.source_laws import ROOT


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store in which one message waits."""
    build_level_store(tmp_path / "store", [LevelMessage(level=3)])
    return tmp_path / "store"


def usage_error(result: Result, *sentences: str) -> None:
    assert result.exit_code == cli.USAGE, result.output
    assert isinstance(result.exception, SystemExit)
    for sentence in sentences:
        assert sentence in result.stderr


# --- what a verification comes to -----------------------------------------------------------------

WHOLE = "every message is there, once, unchanged and at its time"
ELSEWHERE = "the other messages were left out on purpose and wait only in the source"
ANOTHER_STORE = [
    "nothing that waits in the source is in the target: that was made from another",
    "store, or the source was retired or used since",
]
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
            [WHOLE, "messages of the source's own timer wheel were left behind (--levels-only)"],
        ),
        (
            {"missing": 1},
            [
                "messages came into the source since, or a level queue is lost or shorter:",
                "convert anew, in the latter case with --whole-log",
                NO_BROKER,
            ],
        ),
        ({"missing": 1, "whole_log": True}, [NO_BROKER]),
        ({"unexpected": 1}, [NO_BROKER]),
        ({"converted": 0, "missing": 2, "unexpected": 3}, [*ANOTHER_STORE, NO_BROKER]),
    ],
)
def test_the_verdict_is_about_what_was_looked_at(
    facts: dict[str, Any], lines: Sequence[str]
) -> None:
    counts = {"converted": 4, "missing": 0, "unexpected": 0, "different": 0}
    report = VerifyReport(**{**counts, **facts})
    assert list(text.verdict(report, "TARGET")) == lines


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"sampled": 200}, ["200 of 4,003 sampled"]),
        ({"sampled": 0, "only_counted": 1_000}, ["1,000 only counted"]),
        ({"sampled": 0, "has_source": False}, []),
    ],
)
def test_a_sample_is_said_with_what_it_is_of(facts: dict[str, Any], told: Sequence[str]) -> None:
    report = VerifyReport(4_000, missing=1, unexpected=7, different=2, quarantined=5, **facts)
    states = ["4,000 converted", "1 missing", "7 unexpected", "2 different", "5 quarantined"]
    assert list(text.account(report)) == [*states, *told]


def test_what_is_wrong_beside_the_messages_is_counted_where_it_is_more_than_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = VerifyReport(
        converted=0,
        missing=0,
        unexpected=0,
        different=0,
        problems=(Problem("topics", "too few queues", 1), Problem("wheel", "a slot is off", 3)),
    )
    Output(as_json=False, is_quiet=True).verification(report, "TARGET")
    said = capsys.readouterr().out
    assert "topics: too few queues\n" in said
    assert "wheel: a slot is off (3 times)\n" in said


def test_of_a_target_that_was_opened_that_is_said_first_and_nothing_is_listed_that_it_explains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = VerifyReport(
        0,
        missing=2,
        unexpected=0,
        different=0,
        differences=(Difference("missing", "orders", "K1"),),
        problems=(
            Problem("files", f"{OPENED} (lock): messages have moved"),
            Problem("timer wheel", "a slot is off", 3),
            Problem("source", "record at 7: the body is not what its CRC says"),
        ),
    )
    Output(as_json=False, is_quiet=True).verification(report, "TARGET")
    first, _second, counts, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("TARGET was opened since it was made")
    assert counts.startswith("0 converted, 2 missing")
    assert rest == ["source: record at 7: the body is not what its CRC says"]


@pytest.mark.parametrize(("named", "said"), [(0, None), (1, "4 more"), (130, "35 more")])
def test_differences_that_are_not_listed_are_counted_where_some_are(
    capsys: pytest.CaptureFixture[str], named: int, said: str | None
) -> None:
    """A report names a few of many; one of a target alone names none."""
    count = 135 if named > 100 else 5
    differences = tuple(Difference("missing", "orders", f"K{n}") for n in range(named))
    report = VerifyReport(0, missing=count, unexpected=0, different=0, differences=differences)
    Output(as_json=False, is_quiet=True).verification(report, "TARGET")
    out = capsys.readouterr().out
    assert ("more;" in out) == (said is not None)
    assert said is None or f"... and {said}; --differences FILE has them\n" in out


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
        ("run", ""),
        ("read", "", "T"),
    ],
)
def test_an_empty_word_is_no_path(words: tuple[object, ...]) -> None:
    usage_error(run(*words), "an empty path")


@pytest.mark.parametrize("words", [("inspect",), ("verify", "S"), ("convert", "S")])
def test_what_no_file_can_be_at_is_no_path(words: tuple[str, ...], tmp_path: Path) -> None:
    usage_error(run(*words, "x" * 300), "File name too long")
    (tmp_path / "loop").symlink_to("loop")
    usage_error(run(*words, tmp_path / "loop"), "Too many levels of symbolic links")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--messages", 1), "1 message waits in 1 level"),
        (("--messages", 20, "--levels", "3,5"), "wait in 2 levels"),
    ],
)
def test_a_made_up_store_is_said_with_the_levels_that_have_messages(
    words: tuple[object, ...], told: str, tmp_path: Path
) -> None:
    assert told in run("generate", tmp_path / "store", *words).stdout


@pytest.mark.parametrize("number", ["4294967295", "99999999999", "9" * 5_000, "²"])
def test_what_no_user_or_group_can_have_is_no_number_of_one(number: str) -> None:
    usage_error(run("convert", "S", "T", "--owner", f"{number}:0"), "is no user of this machine")
    usage_error(run("convert", "S", "T", "--owner", f"0:{number}"), "is no group of this machine")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("1700000000", "'1700000000' looks like seconds; milliseconds are wanted"),
        ("99999999999", "looks like seconds"),
        ("10000000000000", "is beyond the year 2286; milliseconds are wanted"),
        ("9" * 5000, "is beyond the year 2286"),
        ("1969-12-31", "is before 1970"),
    ],
)
@pytest.mark.parametrize("flag", ["--now", "--due-before", "--due-after"])
def test_a_number_that_is_no_time_in_milliseconds(flag: str, number: str, sentence: str) -> None:
    usage_error(run("pending", "S", flag, number), sentence)


def test_bytes_that_are_no_text_are_a_body_at_most() -> None:
    words = ("schedule", "S", "--engine", "wheel", "--after", "1s", "--topic")
    usage_error(run(*words, "caf\udce9", "--body", "x"), "not UTF-8: 'caf\\udce9'\n")
    usage_error(run(*words, "t", "--body", "\udcff"), "--body-file takes any bytes")


def test_every_flag_that_takes_a_time_says_in_which_zone() -> None:
    for verb in ("inspect", "convert", "pending", "generate", "schedule", "run", "read"):
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


# --- two sides that are none ----------------------------------------------------------------------


def test_one_directory_is_not_two_sides(store: Path) -> None:
    usage_error(run("verify", store, store), "given twice", "SOURCE and TARGET are two stores")


def test_a_store_that_may_not_be_read_is_no_matter_of_words(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: StoreRoot) -> None:
        raise errors.SourceError(f"{self.path}: cannot be read: Permission denied")

    monkeypatch.setattr("os.access", lambda *_given: False)
    monkeypatch.setattr(StoreRoot, "require_readable", refuse)
    result = run("inspect", store)
    assert result.exit_code == cli.SOURCE_UNREADABLE
    assert result.stderr.endswith(f"{store}: cannot be read: Permission denied\n")


def test_a_target_that_is_not_there_is_called_the_target(store: Path, tmp_path: Path) -> None:
    result = run("verify", store, tmp_path / "nowhere")
    assert result.exit_code == cli.SOURCE_UNREADABLE
    assert f"the target {tmp_path / 'nowhere'}: no such directory" in result.stderr


def test_arguments_in_the_wrong_order(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    build_level_store(target, [LevelMessage(level=3)])
    (target / "delaywheel").mkdir()
    (target / "delaywheel" / "conversion.json").write_text("{}")
    result = run("verify", target, store)
    assert result.exit_code == cli.SOURCE_UNREADABLE
    assert f"{target} is one: the order is SOURCE TARGET" in result.stderr


@pytest.mark.parametrize("verb", ["verify", "verify alone", "pending", "inspect"])
def test_an_unfinished_target_is_called_that(verb: str, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "delaywheel" / "staging").mkdir(parents=True)
    words = [store, target] if verb == "verify" else [target]
    result = run(verb.removesuffix(" alone"), *words)
    assert result.exit_code == cli.SOURCE_UNREADABLE
    assert f"{target}: an unfinished conversion; run the same convert command again" in (
        result.stderr
    )


@pytest.mark.parametrize("verb", ["convert", "generate"])
def test_a_target_that_is_a_file(verb: str, store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = [store, tmp_path / "file"] if verb == "convert" else [tmp_path / "file"]
    result = run(verb, *words, *(["--messages", 1] if verb == "generate" else []))
    assert result.exit_code == cli.TARGET_UNWRITABLE
    assert f"{tmp_path / 'file'}: is a file, not a directory" in result.stderr


# --- records that cannot be converted -------------------------------------------------------------


def bad_records(count: int) -> list[BadRecord]:
    return [BadRecord(4, at, 100 * at, f"checksum at {at} is wrong") for at in range(count)]


def test_reasons_are_counted_before_the_first_records_are_listed() -> None:
    odd = BadRecord(5, 0, 7, "its topic is missing")
    lines = text.refused_lines([odd, *bad_records(30)])
    assert lines[:2] == ["30 times: checksum at N is wrong", "1 time: its topic is missing"]
    listed = [line for line in lines if line.startswith("  level")]
    assert len(listed) == text.LISTED_RECORDS
    assert lines[-1] == "  and 11 more (--json lists them all)"


def test_a_refusal_ends_with_its_sentence_and_the_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(as_json=False, is_quiet=True).failure(errors.BadRecordsError(bad_records(1)))
    assert capsys.readouterr().err.splitlines() == [
        "  level 4, queue offset 0, log offset 0: checksum at 0 is wrong",
        "1 pending record cannot be converted; nothing was written",
        "--on-bad-record quarantine converts the others and quarantines these",
    ]


def test_programs_get_all_records(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True, is_quiet=True).failure(errors.BadRecordsError(bad_records(50)))
    assert len(json.loads(capsys.readouterr().out)["bad_records"]) == 50


# --- interrupted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "place", "goes_on"),
    [
        (
            ("generate", "S", "--messages", 1),
            "legacy_levels.generate.store.generate_level_store",
            False,
        ),
        (("inspect", "S"), "migrate.look.inspect.inspect_store", False),
        (("convert", "S", "T"), "migrate.convert.check_request", True),
        (("put-back", "Q", "S"), "migrate.quarantine.restore.restore_records", True),
    ],
)
def test_only_a_conversion_promises_to_go_on(
    words: tuple[object, ...],
    place: str,
    goes_on: bool,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_given: object, **_named: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(place, stop)
    result = run(*words)
    assert result.exit_code == cli.INTERRUPTED
    assert "interrupted" in result.stderr
    assert ("goes on where it stopped" in result.stderr) is goes_on


def test_too_little_memory_is_no_bug(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("migrate.look.inspect.inspect_store", fail)
    result = run("inspect", store)
    assert result.exit_code == cli.TARGET_UNWRITABLE
    assert result.stderr.splitlines()[-1] == "out of memory"


# --- where results go -----------------------------------------------------------------------------


def in_shell(line: str, *words: object) -> subprocess.CompletedProcess[str]:
    """``line`` in bash, ``"$@"`` being delaywheel with these words."""
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "cli", *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.check
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('"$@" >&-', "standard output is closed"),
        ('"$@" >/dev/full', "standard output cannot be written: No space left on device"),
    ],
)
def test_a_result_that_cannot_be_written_is_said(line: str, sentence: str, store: Path) -> None:
    for words in (("inspect", store), ("--help",), ("inspect", "--help"), ("--version",)):
        result = in_shell(line, *words)
        assert result.returncode == cli.TARGET_UNWRITABLE
        assert result.stderr.splitlines()[-1].startswith(sentence)
        assert "Traceback" not in result.stderr


def test_help_and_version_are_printed() -> None:
    assert run("--help").stdout.startswith("Usage: ")
    assert run("inspect", "-h").stdout.startswith("Usage: ")
    version = CliRunner().invoke(cli.main, ["--version"], prog_name="python -m cli")
    assert version.stdout.startswith("delaywheel, version ")
    assert in_shell('"$@" | true', "--help").stderr == ""


@pytest.mark.parametrize("columns", [200, 100, 80, 40])
def test_numbers_and_times_are_whole_however_narrow_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    level = LevelState(
        level=18,
        delay_ms=7_200_000,
        offset=12_345_678,
        queue_min=11_111_111,
        queue_max=22_222_222,
        pending=9_876_544,
        already_delivered=1_234_567,
        neutral=None,
        expired=7_654_321,
        overdue=5_555_555,
        next_due_ms=T0,
    )
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output(as_json=False, is_quiet=True)._print_table(level_table([level], T0 - 250_000))
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if "level 18" in line)
    for cell in (
        "level 18 (2h)",
        "12,345,678",
        "11,111,111 to 22,222,222",
        "1,234,567",
        "7,654,321",
        "9,876,544",
        "5,555,555",
        "2023-11-14T22:13:20Z (in 4m 10s)",
    ):
        assert cell in row
    assert "…" not in shown


@pytest.mark.check
def test_a_refusal_whose_records_cannot_be_written_keeps_its_exit_code(tmp_path: Path) -> None:
    torn = LevelMessage(level=4, damage=lambda data: data[:90] + bytes(len(data) - 90))
    build_level_store(tmp_path / "source", [torn])
    words = ("convert", "--in-process", tmp_path / "source", tmp_path / "target", "--json")
    result = in_shell('"$@" >/dev/full', *words, "--now", T0 + 1_000)
    assert result.returncode == cli.STOPPED_BY_POLICY
    assert "standard output cannot be written" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.check
def test_what_is_stored_is_said_to_be_although_its_handle_cannot_be_printed(tmp_path: Path) -> None:
    words = ("schedule", tmp_path / "new", "--engine", "wheel", "--topic", "t", "--body", "x")
    result = in_shell('"$@" >/dev/full', *words, "--after", "1h")
    assert result.returncode == cli.TARGET_UNWRITABLE
    assert "No space left on device; 1 message is stored all the same" in result.stderr
    assert len(run("pending", tmp_path / "new", "--json").stdout.splitlines()) == 1


@pytest.mark.check
def test_what_was_delivered_is_said_to_be_although_it_cannot_be_printed(tmp_path: Path) -> None:
    words = ("--engine", "levels", "--topic", "t", "--body", "x", "--level", 1)
    assert run("schedule", tmp_path / "new", *words, "--now", "2029-01-01").exit_code == cli.DONE
    later = ("run", tmp_path / "new", "--json", "--now", "2030-01-01")
    result = in_shell('"$@" >/dev/full', *later)
    assert result.returncode == cli.TARGET_UNWRITABLE
    assert "No space left on device; 1 message was delivered all the same" in result.stderr
    assert len(run("read", tmp_path / "new", "t", "--json").stdout.splitlines()) == 1


def test_a_link_to_nothing_is_named_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    words = ("schedule", tmp_path / "link", "--engine", "wheel", "--topic", "t", "--body", "x")
    for command in ((*words, "--after", "1s"), ("generate", tmp_path / "link", "--messages", 1)):
        result = run(*command)
        assert result.exit_code == cli.TARGET_UNWRITABLE
        assert "link: cannot be written" in result.stderr
        assert "a symbolic link to nowhere, which does not exist" in result.stderr


def test_a_time_beyond_the_calendar_is_named_once(tmp_path: Path) -> None:
    words = ("schedule", tmp_path / "new", "--engine", "wheel", "--topic", "t", "--body", "x")
    shown = run(*words, "--after", "1s", "--now", "9999-12-31T23:59:59Z").stdout
    assert "will be delivered at 253402300800000 ms since 1970 (in 1s)" in shown


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    items = [LevelMessage(level=3, keys="k" * 200) for _ in range(2000)]
    build_level_store(tmp_path / "many", items)
    line = '"$@" | head -1; exit ${PIPESTATUS[0]}'
    result = in_shell(line, "pending", tmp_path / "many", "--quiet")
    assert (result.returncode, result.stderr) == (cli.DONE, "")
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.check
def test_nobody_reading_the_progress_does_not_stop_the_work(store: Path) -> None:
    result = in_shell('"$@" 2>/dev/full', "inspect", store)
    assert result.returncode == cli.DONE
    assert "1 pending" in result.stdout


# --- commands to copy -----------------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_commands_to_copy_are_quoted_and_files_named(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "two words; and 'more'"
    result = run("convert", store, target, "--now", T0 + 1_000)
    assert result.exit_code == cli.DONE, result.output
    [line] = [line for line in result.stdout.splitlines() if "check it:" in line]
    words = ["delaywheel", "verify", str(store), str(target)]
    assert shlex.split(line.partition("check it:")[2]) == words
    assert f"{target}/delaywheel/broker.conf:" in result.stdout


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_was_set_aside_is_said_with_its_place(tmp_path: Path) -> None:
    torn = LevelMessage(level=4, damage=lambda data: data[:90] + bytes(len(data) - 90))
    build_level_store(tmp_path / "source", [torn, LevelMessage(level=3)])
    words = ("--now", T0 + 1_000, "--on-bad-record", "quarantine")
    result = run("convert", tmp_path / "source", tmp_path / "target", *words)
    aside = f"{tmp_path / 'target'}/delaywheel/quarantine"
    assert f"their raw bytes, and all reasons: {aside}" in result.stdout
    verified = run("verify", tmp_path / "source", tmp_path / "target")
    assert verified.exit_code == cli.DONE
    assert f"all but 1, which are in {aside}" in verified.stdout


def test_what_a_glance_tells_is_refused_before_spark_is_started(
    store: Path, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "notes.txt").write_text("mine")
    result = run("convert", store, tmp_path / "target")
    assert result.exit_code == cli.TARGET_UNWRITABLE
    assert "is not empty: notes.txt" in result.stderr
    assert "starting Spark" not in result.stderr


def test_every_flag_says_what_it_is_for() -> None:
    silent = [
        f"{name} {flag.opts[0]}"
        for name, verb in cli.main.commands.items()
        for flag in verb.params
        if isinstance(flag, click.Option) and not flag.help
    ]
    assert silent == []
